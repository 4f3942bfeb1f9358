"""Who of several processes leads, and what becomes of what dead ones left: on one real database, without processes."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest

from online_sao.config import Settings
from online_sao.errors import LeaseHeldError, LeaseLostError, StorageError
from online_sao.runtime import leadership as module
from online_sao.runtime.leadership import Condition, Leadership
from online_sao.runtime.leading import DEAD_LOOKS, Leftovers
from online_sao.service.chat_log import ChatLog
from online_sao.storage.repositories import instances, interactions, leases
from online_sao.storage.spool import Spool
from online_sao.storage.tables import ServingInstanceRow

LEASE = 2.0


def elsewhere() -> str:
    """A process of a machine that nobody here can look into."""
    return f"another-host:1:{uuid.uuid4().hex}"


class Member:
    def __init__(self, database, *, shared: bool = True) -> None:
        self.said: list[str] = []
        self.able = True
        self.owner = elsewhere()
        self.leadership = Leadership(database, self.owner, shared=shared, condition=self.condition, begin=self.begin, end=self.end)

    def condition(self) -> Condition:
        return Condition(3, None, 0, self.able)

    async def begin(self) -> None:
        self.said.append("begin")

    async def end(self) -> None:
        self.said.append("end")


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch):
    monkeypatch.setattr(module, "SHARED_LEASE_SECONDS", LEASE)


async def test_one_leads_and_another_takes_over_when_it_falls_silent(database):
    first, second = Member(database), Member(database)
    await first.leadership.poll()
    await second.leadership.poll()
    assert (first.leadership.leading, second.leadership.leading) == (True, False)
    async with database.read() as session:
        rows = {row.owner: row for row in await instances.all_rows(session)}
    assert [rows[member.owner].leading for member in (first, second)] == [True, False]
    assert rows[second.owner].policy_version == 3
    await asyncio.sleep(LEASE + 0.1)
    assert not first.leadership.leading, "by its own clock, before it can ask anybody"
    await second.leadership.poll()
    assert second.leadership.leading
    async with database.write() as session:
        await second.leadership.require(session)
        with pytest.raises(LeaseLostError):
            await first.leadership.require(session)
    await first.leadership.poll()
    assert (first.said, second.said) == (["begin", "end"], ["begin"])
    assert not first.leadership.leading
    await second.leadership.poll()
    assert second.leadership.leading, "it renews"


async def test_who_leaves_hands_over_at_once(database):
    first, second = Member(database), Member(database)
    await first.leadership.poll()
    await first.leadership.leave()
    await second.leadership.poll()
    assert second.leadership.leading
    async with database.read() as session:
        assert [row.owner for row in await instances.all_rows(session)] == [second.owner]


async def test_one_that_cannot_serve_does_not_keep_others_from_leading(database):
    first, second = Member(database), Member(database)
    first.able = False
    await first.leadership.poll()
    assert not first.leadership.leading
    first.able = True
    await first.leadership.poll()
    assert first.leadership.leading
    first.able = False
    await first.leadership.poll()
    await second.leadership.poll()
    assert (first.leadership.leading, second.leadership.leading, first.said) == (False, True, ["begin", "end"])


async def test_alone_it_leads_or_does_not_start(database):
    first, second = Member(database, shared=False), Member(database, shared=False)
    await first.leadership.poll()
    with pytest.raises(LeaseHeldError, match="already the serving process"):
        await second.leadership.poll()
    joined = Member(database)
    await joined.leadership.poll()
    assert not joined.leadership.leading


async def test_many_that_ask_at_once_have_one_leader(database, monkeypatch):
    monkeypatch.setattr(module, "SHARED_LEASE_SECONDS", 60.0)  # none may run out while they ask
    members = [Member(database) for _ in range(6)]
    await asyncio.gather(*(member.leadership.poll() for member in members))
    assert [member.leadership.leading for member in members].count(True) == 1


def test_sharing_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"server.shared needs a PostgreSQL database"):
        Settings(server={"shared": True})  # type: ignore[arg-type]
    Settings(server={"shared": True}, storage={"database_url": "postgresql+asyncpg://host/name"})  # type: ignore[arg-type]


async def add_instance(database, owner: str, heartbeat: float) -> None:
    async with database.write() as session:
        await instances.beat(
            session,
            ServingInstanceRow(owner=owner, leading=False, policy_version=0, problem=None, spool_records=0, started_at=0.0, heartbeat_at=heartbeat),
        )


async def test_only_rows_of_dead_processes_are_interrupted(database, chats, chat_log):
    me, living, dead = leases.new_owner(), elsewhere(), elsewhere()
    leftovers = Leftovers(database, chat_log, me)
    rows = {}
    for owner in (me, living, dead, "nobody:1:0", None):
        (row,) = await chats.start()
        rows[owner] = row.completion_id
        async with database.write() as session:
            found = await interactions.get(session, row.completion_id, 0)
            found.served_by = owner

    async def statuses() -> dict[str | None, str]:
        async with database.read() as session:
            return {owner: (await interactions.get(session, completion, 0)).status for owner, completion in rows.items()}

    for owner in (me, living, dead):
        await add_instance(database, owner, 100.0)
    await leftovers.end()
    assert await statuses() == {me: "generating", living: "generating", dead: "generating", "nobody:1:0": "interrupted", None: "interrupted"}
    for look in range(DEAD_LOOKS):
        await add_instance(database, living, 101.0 + look)
        await leftovers.end()
    assert await statuses() == {me: "generating", living: "generating", dead: "interrupted", "nobody:1:0": "interrupted", None: "interrupted"}
    async with database.read() as session:
        assert {row.owner for row in await instances.all_rows(session)} == {me, living}


async def test_who_begins_to_serve_while_a_spool_is_written_lives(database, chats, chat_log, monkeypatch):
    newcomer, begun = elsewhere(), []

    async def adopt() -> None:
        await add_instance(database, newcomer, 100.0)
        begun.extend(await chats.start())
        async with database.write() as session:
            (await interactions.get(session, begun[0].completion_id, 0)).served_by = newcomer

    monkeypatch.setattr(chat_log, "adopt", adopt)
    await Leftovers(database, chat_log, leases.new_owner()).end()
    async with database.read() as session:
        assert (await interactions.get(session, begun[0].completion_id, 0)).status == "generating"


async def test_while_the_database_is_away_nobody_is_taken_for_dead(database, chat_log, monkeypatch):
    quiet = elsewhere()
    leftovers = Leftovers(database, chat_log, leases.new_owner())
    await add_instance(database, quiet, 100.0)
    for _ in range(DEAD_LOOKS):
        await leftovers.end()
    with monkeypatch.context() as away:

        def fail(*_):
            raise StorageError("away")

        away.setattr(instances, "all_rows", fail)
        with pytest.raises(StorageError):
            await leftovers.end()
    for _ in range(DEAD_LOOKS):
        await leftovers.end()
    async with database.read() as session:
        assert [row.owner for row in await instances.all_rows(session)] == [quiet]
    await leftovers.end()
    async with database.read() as session:
        assert await instances.all_rows(session) == []


async def test_a_dead_process_of_this_machine_is_known_at_once(database, chat_log):
    owner = f"{leases.new_owner().rsplit(':', 2)[0]}:{2**22 - 3}:{uuid.uuid4().hex}"
    await add_instance(database, owner, time.time())
    await Leftovers(database, chat_log, leases.new_owner()).end()
    async with database.read() as session:
        assert await instances.all_rows(session) == []


@pytest.fixture
def chat_log(database, tmp_path, monkeypatch) -> ChatLog:
    monkeypatch.chdir(tmp_path)
    return ChatLog(database, Settings().reward, spool=Spool(tmp_path / "spool", 1_000_000))
