"""Writes that share a transaction, on a real database: what goes together, what each caller is told, and what is kept."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from sqlalchemy import text

from online_sao.errors import InvalidScoreError, StorageError
from online_sao.storage import group_commit
from online_sao.storage.group_commit import GroupCommit, MustWaitError
from online_sao.storage.session import Database, Session

INSERT = text("INSERT INTO leases (name, owner, expires_at) VALUES (:name, :owner, 1.0)")


class Writer:
    """Inserts names. ``groups``: what was written together, in order. ``gate``: each group waits for it before it ends; ``release``: so does what
    is written apart."""

    def __init__(self, database: Database, touches: Callable[[str], Sequence[str]] = lambda name: [name]) -> None:
        self.database = database
        self.groups: list[list[str]] = []
        self.begun = asyncio.Event()
        self.gate, self.release = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.release.set()
        self.commits = GroupCommit(database, self.write, touches, seconds=10.0)

    async def write(self, session: Session, names: Sequence[str], wait: bool) -> list[str | Exception]:
        self.groups.append(list(names))
        self.begun.set()
        answers: list[str | Exception] = []
        for name in names:
            if name.startswith("refused"):
                answers.append(InvalidScoreError(name))
            elif name.startswith("held") and not wait:
                answers.append(MustWaitError())
            else:
                await session.execute(INSERT, {"name": name, "owner": f"of {len(names)}"})
                answers.append(name.upper())
        await (self.release if wait else self.gate).wait()
        return answers

    async def behind(self, *names: str) -> list[asyncio.Task[str]]:
        """Callers that wait while the transaction of "first" runs; the gate is closed."""
        self.gate.clear()
        tasks = []
        for name in ("first", *names):
            tasks.append(asyncio.create_task(self.commits.submit(name)))
            await asyncio.sleep(0)
        await self.begun.wait()
        return tasks

    async def kept(self) -> set[str]:
        async with self.database.read() as session:
            return set(await session.scalars(text("SELECT name FROM leases")))


@pytest.fixture
def writer(database: Database) -> Writer:
    return Writer(database)


async def test_what_arrives_meanwhile_shares_the_next_transaction(writer) -> None:
    tasks = await writer.behind("a", "b", "c")
    assert await writer.kept() == set()
    writer.gate.set()
    assert await asyncio.gather(*tasks) == ["FIRST", "A", "B", "C"]
    assert writer.groups == [["first"], ["a", "b", "c"]]
    assert await writer.kept() == {"first", "a", "b", "c"}
    assert await writer.commits.submit("d") == "D"
    assert writer.groups[2:] == [["d"]]


async def test_nobody_is_answered_before_the_commit(writer) -> None:
    answered_when_kept: list[bool] = []

    async def submit(name: str) -> None:
        await writer.commits.submit(name)
        answered_when_kept.append(name in await writer.kept())

    await asyncio.gather(*(submit(f"n{number}") for number in range(20)))
    assert answered_when_kept == [True] * 20


async def test_a_group_is_limited(writer, monkeypatch) -> None:
    monkeypatch.setattr(group_commit, "MOST", 3)
    tasks = await writer.behind("a", "b", "c", "d")
    writer.gate.set()
    await asyncio.gather(*tasks)
    assert writer.groups == [["first"], ["a", "b", "c"], ["d"]]


async def test_what_touches_the_same_is_written_one_after_the_other(database) -> None:
    writer = Writer(database, touches=lambda name: name.split("-"))
    tasks = await writer.behind("a", "a-b", "b", "c", "a-c")
    writer.gate.set()
    assert await asyncio.gather(*tasks) == ["FIRST", "A", "A-B", "B", "C", "A-C"]
    # "b" does not overtake "a-b", which waits for "a".
    assert writer.groups == [["first"], ["a", "c"], ["a-b"], ["b", "a-c"]]


async def test_each_is_told_its_own(writer) -> None:
    tasks = await writer.behind("a", "refused", "b")
    writer.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == ["FIRST", "A", "B"]
    assert isinstance(answers[2], InvalidScoreError)
    assert await writer.kept() == {"first", "a", "b"}


async def test_what_must_wait_does_so_apart_and_holds_nobody_up(database) -> None:
    writer = Writer(database, touches=lambda name: name.split("-"))
    writer.release.clear()
    tasks = await writer.behind("a", "held-x", "b")
    writer.gate.set()
    assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == ["FIRST", "A", "B"]
    if database.dialect == "sqlite":  # one writer: what waits in its transaction holds all others up
        writer.release.set()
    after = [asyncio.create_task(writer.commits.submit(name)) for name in ("c", "x-d", "d")]
    assert await after[0] == "C"
    if database.dialect == "postgresql":
        assert not any(task.done() for task in (tasks[2], *after[1:])), "they come after what they touch"
    writer.release.set()
    assert await asyncio.gather(tasks[2], *after[1:]) == ["HELD-X", "X-D", "D"]
    assert writer.groups[:3] == [["first"], ["a", "held-x", "b"], ["held-x"]]
    assert [group for group in writer.groups[3:] if group != ["c"]] == [["x-d"], ["d"]]
    assert await writer.kept() == {"first", "a", "held-x", "b", "c", "x-d", "d"}


async def test_one_that_fails_does_not_take_the_others_along(database, writer) -> None:
    async with database.write() as session:
        await session.execute(INSERT, {"name": "taken", "owner": "somebody"})
    tasks = await writer.behind("a", "taken", "b")
    writer.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[1], answers[3]] == ["A", "B"]
    assert "IntegrityError" in type(answers[2]).__name__
    assert writer.groups == [["first"], ["a", "taken", "b"], ["a"], ["taken"], ["b"]]
    assert await writer.kept() == {"first", "taken", "a", "b"}


async def test_a_database_that_is_away_is_said_to_all_and_tried_again_for_the_next(writer) -> None:
    tasks = await writer.behind("a", "b")
    write = writer.write

    async def away(session: Session, names: Sequence[str], wait: bool) -> list[str | Exception]:
        raise StorageError("away")

    writer.commits._write = away
    writer.gate.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[0] == "FIRST"
    assert [str(answer) for answer in answers[1:]] == ["away", "away"]
    writer.commits._write = write
    assert await writer.commits.submit("c") == "C"
    assert await writer.kept() == {"first", "c"}


async def test_a_caller_who_leaves_before_its_transaction_leaves_nothing_and_holds_nobody_up(writer) -> None:
    tasks = await writer.behind("a", "b", "c")
    tasks[2].cancel()
    with suppress(asyncio.CancelledError):
        await tasks[2]
    writer.gate.set()
    assert await asyncio.gather(tasks[0], tasks[1], tasks[3]) == ["FIRST", "A", "C"]
    assert writer.groups == [["first"], ["a", "c"]]
    assert await writer.kept() == {"first", "a", "c"}


async def test_a_caller_who_leaves_during_its_transaction_does_not_undo_it(writer) -> None:
    first, second = await writer.behind("a")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    writer.gate.set()
    assert await second == "A"
    assert await writer.kept() == {"first", "a"}


@pytest.mark.only_on("postgresql")
async def test_each_caller_has_its_own_patience_with_a_server_that_says_nothing(writer) -> None:
    writer.commits._seconds = 0.5
    tasks = await writer.behind("a")
    with pytest.raises(StorageError, match="no answer in time"):
        await tasks[0]
    with pytest.raises(StorageError, match="no answer in time"):
        await tasks[1]
    writer.commits._seconds = 30.0
    writer.gate.set()
    assert await writer.commits.submit("b") == "B"
    assert "first" not in await writer.kept()
