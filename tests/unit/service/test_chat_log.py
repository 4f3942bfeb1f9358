"""Where the rows of chats go while the database takes none, and that each is there once when it does again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from online_sao.config import Settings
from online_sao.errors import CompletionNotFoundError, StorageError, StorageFullError
from online_sao.service.chat_entries import Begun, Ended, from_record
from online_sao.service.chat_log import ChatLog
from online_sao.service.chat_records import AdmittedRequest, ChatCommand, Outcome
from online_sao.service.erasure import ErasureService
from online_sao.service.feedback import FeedbackService
from online_sao.service.submissions import FeedbackSubmission
from online_sao.storage.repositories import interactions, trajectories
from online_sao.storage.session import Database, Session
from online_sao.storage.spool import Spool
from online_sao.storage.tables import InteractionRow
from online_sao.types import Completion, SamplingParams, VersionSpan

AWAY = StorageError("The database does not answer.", retry_after=5)


class Unsteady(Database):
    """The real database, behind a line that is cut before a transaction, or after its commit."""

    def __init__(self, database: Database) -> None:
        self.__dict__ |= database.__dict__
        self.error: StorageError | None = None
        self.error_after_commit: StorageError | None = None

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Session]:
        if self.error is not None:
            raise self.error
        async with super().read() as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Session]:
        if self.error is not None:
            raise self.error
        async with super().write() as session:
            yield session
        if self.error_after_commit is not None:
            raise self.error_after_commit


class Bench:
    def __init__(self, database: Database, settings: Settings, folder: Path, limit: int = 1_000_000) -> None:
        self.database = Unsteady(database)
        self.folder = folder
        self.limit = limit
        self.settings = settings
        self.numbers = iter(range(1000))
        self.restart()

    def restart(self) -> None:
        """As after kill -9: what was in memory is gone, and so is the lock."""
        if hasattr(self, "log"):
            self.log.close()
        self.log = ChatLog(self.database, self.settings.reward, spool=Spool(self.folder, self.limit))

    def request(self, n: int = 1, **command: Any) -> AdmittedRequest:
        asked = ChatCommand(request_id="r", model="tiny", messages=({"role": "user", "content": "hé"},), n=n, **command)
        name = f"chatcmpl-{next(self.numbers)}"
        return AdmittedRequest(name, asked, 1.0, (1, 2), SamplingParams(8, stop=("x",)), {"temperature": 0.0}, 0, None)

    async def row(self, request: AdmittedRequest, choice: int = 0) -> InteractionRow:
        async with Database.read(self.database) as session:
            row = await interactions.get(session, request.completion_id, choice)
            assert row is not None
            return row

    async def trajectory(self, row: InteractionRow) -> tuple[str, str | None]:
        async with Database.read(self.database) as session:
            found = await trajectories.by_interaction(session, row.id)
            assert found is not None
            return found.state, found.reason


def content(row: InteractionRow) -> dict[str, Any]:
    return {key: value for key, value in vars(row).items() if key not in ("id", "completion_id", "_sa_instance_state")}


def outcome(finish: Any = "stop") -> Outcome:
    completion = Completion((7, 8), (-0.1234567890123456, -1.5), (VersionSpan(0, 1, 0), VersionSpan(1, 2, 0)), "ué", finish)
    return Outcome(completion, 0, 0, 2.0, 3.0, 1.0)


@pytest.fixture
def bench(database: Database, settings: Settings, tmp_path: Path) -> Bench:
    return Bench(database, settings, tmp_path / "spool")


def on_disk(record: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(record)))


def test_records_of_the_spool_say_exactly_what_was_logged(bench: Bench) -> None:
    request = bench.request(n=2, user="ada", metadata={"episode_id": "e"}, tools=({"type": "function"},))
    begun, ended = Begun.of(request), Ended.of(request, 1, outcome(), 99.0)
    assert from_record(on_disk(begun.record())) == begun
    assert from_record(on_disk(ended.record())) == ended
    hidden = bench.request(store=False, user="ada")
    assert "ada'" not in str(Begun.of(hidden).record())
    read = from_record(on_disk(Ended.of(hidden, 0, outcome(), 99.0).record()))
    assert isinstance(read, Ended)
    assert (len(read.completion.token_ids), read.completion.text, read.completion.behavior_logprobs) == (2, "", ())
    with pytest.raises((LookupError, TypeError)):
        from_record({"else": 1})


async def test_what_was_spooled_is_the_row_that_the_database_would_have(bench: Bench) -> None:
    direct, spooled = bench.request(user="ada"), bench.request(user="ada")
    await bench.log.open(direct)
    assert await bench.log.complete(direct, 0, outcome()) is None
    bench.database.error = AWAY
    await bench.log.open(spooled)
    assert await bench.log.complete(spooled, 0, outcome()) is None
    assert bench.log.state().records == 2
    assert bench.log.waits(spooled.completion_id)
    with pytest.raises(StorageError):
        await bench.log.write_kept()
    bench.database.error = None
    await bench.log.write_kept()
    assert not bench.log.waits(spooled.completion_id)
    first, second = await bench.row(direct), await bench.row(spooled)
    assert content(first) == content(second)
    assert await bench.trajectory(first) == await bench.trajectory(second) == ("pending", None)
    assert list(bench.folder.iterdir()) == []


@pytest.mark.parametrize("begun_in", ["before", "gap"])
@pytest.mark.parametrize("ended_in", ["gap", "after the database is back", "after the spool is written", "never"])
@pytest.mark.parametrize("killed", [False, True])
async def test_wherever_an_answer_begins_and_ends_it_is_logged_once(bench: Bench, begun_in: str, ended_in: str, killed: bool) -> None:
    request = bench.request(n=2)
    if begun_in == "before":
        await bench.log.open(request)
    bench.database.error = AWAY
    if begun_in == "gap":
        await bench.log.open(request)
    await bench.log.complete(request, 1, outcome("length"))
    if ended_in == "gap":
        await bench.log.complete(request, 0, outcome())
    bench.database.error = None
    if ended_in == "after the database is back":
        await bench.log.complete(request, 0, outcome())
    if ended_in == "after the spool is written":
        await bench.log.write_kept()
        await bench.log.complete(request, 0, outcome())
    if killed:
        bench.restart()
        await bench.log.adopt()
    await bench.log.write_kept()
    async with bench.database.write() as session:
        interrupted = await interactions.mark_leftovers_interrupted(session, 9.0)
    assert interrupted == (ended_in == "never")
    row = await bench.row(request)
    if ended_in == "never":
        assert (row.status, await bench.trajectory(row)) == ("interrupted", ("not_trainable", "interrupted"))
    else:
        assert (row.status, row.text, row.token_ids, row.completed_at) == ("completed", "ué", [7, 8], 3.0)
        assert await bench.trajectory(row) == ("pending", None)
    assert (await bench.row(request, 1)).finish_reason == "length"
    assert bench.log.state().records == 0


async def test_a_commit_whose_answer_was_lost_is_not_done_twice(bench: Bench) -> None:
    request = bench.request()
    bench.database.error_after_commit = AWAY
    await bench.log.open(request)
    await bench.log.complete(request, 0, outcome())
    assert bench.log.state().records == 2
    bench.database.error_after_commit = None
    await bench.log.write_kept()
    assert (await bench.row(request)).status == "completed"
    late = bench.request()
    await bench.log.open(late)
    bench.database.error_after_commit = AWAY
    await bench.log.complete(late, 0, outcome())
    bench.database.error_after_commit = None
    await bench.log.write_kept()
    assert (await bench.row(late)).text == "ué"


async def test_an_end_that_comes_after_its_row_was_given_up_is_still_logged(bench: Bench) -> None:
    request = bench.request()
    await bench.log.open(request)
    async with bench.database.write() as session:
        await interactions.mark_leftovers_interrupted(session, 9.0)
    assert await bench.log.complete(request, 0, outcome()) == "interrupted"
    row = await bench.row(request)
    assert (row.status, row.text, await bench.trajectory(row)) == ("completed", "ué", ("not_trainable", "interrupted"))


async def test_a_full_spool_begins_nothing_and_ends_what_it_has_begun(database: Database, settings: Settings, tmp_path: Path) -> None:
    bench = Bench(database, settings, tmp_path / "spool", limit=9_000)
    before = bench.request()
    await bench.log.open(before)
    bench.database.error = AWAY
    begun = [bench.request() for _ in range(2)]
    for request in begun:
        await bench.log.open(request)
    while bench.log.state(8).has_room:
        begun.append(bench.request())
        await bench.log.open(begun[-1])
    with pytest.raises(StorageError, match=r"does not answer. The spool .*spool_bytes = 9000\) is full") as full:
        await bench.log.open(bench.request())
    assert (full.value.status, full.value.headers) == (503, {"Retry-After": "5"})
    for request in (before, *begun):
        await bench.log.complete(request, 0, outcome())
    assert bench.log.state().bytes <= 9_000
    bench.database.error = None
    await bench.log.write_kept()
    assert {(await bench.row(request)).status for request in (before, *begun)} == {"completed"}
    assert bench.log.state(8).has_room
    await bench.log.open(bench.request())


@pytest.mark.only_on("sqlite")
async def test_room_that_is_missing_on_the_disk_of_both_is_said_as_it_is(bench: Bench) -> None:
    before = bench.request()
    await bench.log.open(before)
    bench.database.error = StorageFullError("The disk is full.", retry_after=5)
    with pytest.raises(StorageFullError):
        await bench.log.open(bench.request())
    with pytest.raises(StorageFullError):
        await bench.log.complete(before, 0, outcome())
    assert not bench.folder.exists()
    bench.database.error = None
    await bench.log.write_kept()
    assert (await bench.row(before)).status == "completed", "what could be kept nowhere is written when it can"


async def test_a_spool_that_cannot_be_written_begins_nothing_and_says_both(bench: Bench) -> None:
    before = bench.request()
    await bench.log.open(before)
    bench.folder.parent.mkdir(exist_ok=True)
    bench.folder.write_text("not a folder")
    bench.database.error = AWAY
    with pytest.raises(StorageError, match=r"does not answer. The spool .* fails too"):
        await bench.log.open(bench.request())
    with pytest.raises(StorageError):
        await bench.log.complete(before, 0, outcome())
    bench.database.error = None
    await bench.log.write_kept()
    assert (await bench.row(before)).status == "completed"


async def test_a_record_that_makes_no_sense_does_not_hold_up_the_rest(bench: Bench) -> None:
    bench.database.error = AWAY
    first, second = bench.request(), bench.request()
    await bench.log.open(first)
    bench.log.close()
    stranger = Spool(bench.folder, 1_000_000)
    assert stranger.adopt() == 1
    stranger.append({"nobody": "knows"})
    stranger.append(Ended.of(bench.request(), 0, outcome(), 9.0).record())
    stranger.append(Begun.of(second).record())
    stranger.close()
    bench.restart()
    bench.database.error = None
    await bench.log.adopt()
    await bench.row(first)
    await bench.row(second)
    assert [path.suffix for path in bench.folder.iterdir()] == [".damaged"]


async def test_a_score_finds_a_spooled_completion_or_is_told_to_come_again(bench: Bench, settings: Settings) -> None:
    scores = FeedbackService(bench.database, settings, waits=bench.log.waits)
    request = bench.request()
    bench.database.error = AWAY
    await bench.log.open(request)
    await bench.log.complete(request, 0, outcome())
    bench.database.error = None  # and the spool is not written yet
    with pytest.raises(StorageError, match="Send the score again") as wait:
        await scores.submit(FeedbackSubmission(request.completion_id, 1.0))
    assert (wait.value.status, wait.value.headers) == (503, {"Retry-After": "1"})
    with pytest.raises(CompletionNotFoundError):
        await scores.submit(FeedbackSubmission("chatcmpl-unknown", 1.0))
    await bench.log.write_kept()
    receipt, new = await scores.submit(FeedbackSubmission(request.completion_id, 1.0))
    assert (receipt.status, new) == ("queued", True)
    assert (await scores.get(receipt.id)).status == "queued"


async def test_erasing_a_user_takes_what_is_in_the_spool_along(bench: Bench) -> None:
    erasure = ErasureService(bench.database, settle=bench.log.write_kept)
    request = bench.request(user="ada")
    bench.database.error = AWAY
    await bench.log.open(request)
    await bench.log.complete(request, 0, outcome())
    with pytest.raises(StorageError):
        await erasure.erase_user("ada")
    bench.database.error = None
    assert await erasure.erase_user("ada") == 1
    assert (await bench.row(request)).text is None


async def test_many_at_once_keep_their_order_and_their_ends(bench: Bench) -> None:
    bench.database.error = AWAY
    requests = [bench.request(n=2) for _ in range(20)]

    async def serve(request: AdmittedRequest) -> None:
        await bench.log.open(request)
        await asyncio.gather(*(bench.log.complete(request, choice, outcome()) for choice in range(2)))

    serving = [asyncio.create_task(serve(request)) for request in requests]
    await asyncio.sleep(0.01)
    bench.database.error = None
    await bench.log.write_kept()
    await asyncio.gather(*serving)
    await bench.log.write_kept()
    assert {(await bench.row(request, choice)).status for request in requests for choice in range(2)} == {"completed"}
