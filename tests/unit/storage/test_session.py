"""Transactions: what is kept, what is undone, and what other readers and writers see meanwhile."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
import traceback

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from online_sao.errors import StorageError
from online_sao.storage import session as module
from online_sao.storage.repositories import learner
from online_sao.storage.session import Database
from online_sao.storage.tables import FeedbackRow, TrajectoryRow


async def phase(database: Database) -> str:
    async with database.read() as session:
        return (await learner.get(session)).phase


async def set_phase(session, value: str) -> None:
    await learner.heartbeat(session, phase=value, detail=None, pid=1, now=1.0)


@pytest.mark.only_on("sqlite")
async def test_sqlite_is_durable_and_checks_references(database) -> None:
    async with database.read() as session:
        pragmas = {
            name: await session.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "secure_delete")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000, "secure_delete": 1}
    with pytest.raises(IntegrityError):
        async with database.write() as session:
            session.add(TrajectoryRow(interaction_id=999, state="pending", oldest_policy_version=0, created_at=1, deadline_at=1, updated_at=1))


@pytest.mark.only_on("postgresql")
async def test_a_reading_that_is_not_answered_ends(database, monkeypatch) -> None:
    monkeypatch.setattr(module, "_READ_SECONDS", 0.3)
    started = time.monotonic()
    with pytest.raises(StorageError, match="no answer in time"):
        async with database.read() as session:
            await session.execute(text("SELECT pg_sleep(60)"))
    assert time.monotonic() - started < 10
    assert database._engine.pool.checkedout() == 0


async def test_a_write_is_kept_and_a_failed_one_undone(database) -> None:
    async with database.write() as session:
        await set_phase(session, "waiting")

    async def fails() -> None:
        async with database.write() as session:
            await set_phase(session, "updating")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fails()
    assert await phase(database) == "waiting"


async def test_a_read_keeps_nothing(database) -> None:
    with contextlib.suppress(StorageError):  # PostgreSQL does not even let it be written
        async with database.read() as session:
            await set_phase(session, "waiting")
    assert await phase(database) == "stopped"


async def test_a_read_sees_one_moment(database) -> None:
    async with database.read() as reading:
        assert (await learner.get(reading)).phase == "stopped"
        async with database.write() as session:
            await set_phase(session, "waiting")
        assert (await learner.get(reading)).phase == "stopped"
    assert await phase(database) == "waiting"


async def test_readers_do_not_wait_for_a_writer(database) -> None:
    async with database.write() as session:
        await set_phase(session, "waiting")
        assert await asyncio.wait_for(phase(database), timeout=5) == "stopped"


async def test_a_cancelled_write_is_undone_and_blocks_nobody(database) -> None:
    inside = asyncio.Event()

    async def never_ends() -> None:
        async with database.write() as session:
            await set_phase(session, "updating")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(never_ends())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    started = time.monotonic()
    async with database.write() as session:
        await learner.pause(session, "x")
    assert time.monotonic() - started < 5
    assert await phase(database) == "stopped"


async def test_writes_cancelled_at_any_moment_leave_the_database_usable(database) -> None:
    async def write(number: int) -> None:
        async with database.write() as session:
            await set_phase(session, f"phase {number}")

    for delay in range(12):
        tasks = [asyncio.create_task(write(number)) for number in range(4)]
        await asyncio.sleep(delay / 2000)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
    await asyncio.wait_for(write(99), timeout=10)
    assert await phase(database) == "phase 99"


async def test_parallel_writes_are_not_lost(database) -> None:
    other = Database(database.url)

    async def increment(target: Database) -> None:
        async with target.write() as session:
            row = await learner.get(session, lock=True)
            await learner.set_head(session, head_version=row.head_version + 1, head_update=0)

    await asyncio.gather(*(increment(target) for target in [database, other] * 25))
    await other.dispose()
    async with database.read() as session:
        assert (await learner.get(session)).head_version == 50


@pytest.mark.only_on("sqlite")
async def test_another_process_waits_for_its_turn(database) -> None:
    program = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None); c.execute('BEGIN IMMEDIATE'); "
        "c.execute(\"UPDATE learner SET detail = 'from outside'\"); c.execute('COMMIT')"
    )
    path = database.url.removeprefix("sqlite+aiosqlite:///")
    async with database.write() as session:
        await set_phase(session, "waiting")
        process = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", program, path])
        await asyncio.sleep(0.5)
        assert process.poll() is None
    assert await asyncio.to_thread(process.wait, 30) == 0
    async with database.read() as session:
        row = await learner.get(session)
    assert (row.phase, row.detail) == ("waiting", "from outside")


async def test_rows_come_back_whatever_statement_gives_them(database) -> None:
    """The driver fetches rows where it executes: one, several and none, with RETURNING and with many parameter sets."""
    insert = text("INSERT INTO leases (name, owner, expires_at) VALUES (:name, 'me', 1.0)")
    async with database.write() as session:
        await session.execute(insert, [{"name": name} for name in "abc"])
        returned = await session.execute(text("UPDATE leases SET owner = 'you' WHERE name < 'c' RETURNING name"))
        assert sorted(returned.scalars()) == ["a", "b"]
        assert (await session.execute(text("DELETE FROM leases WHERE name > 'a'"))).rowcount == 2
        result = await session.execute(text("SELECT name, owner FROM leases"))
        assert (list(result.keys()), result.all()) == (["name", "owner"], [("a", "you")])
        streamed = await session.execute(text("SELECT name FROM leases WHERE name = 'z'"))
        assert streamed.all() == []
    with pytest.raises(DBAPIError, match="no_such_place"):
        async with database.read() as session:
            await session.execute(text("SELECT * FROM no_such_place"))


async def test_ping(database) -> None:
    await database.ping()


@pytest.mark.only_on("sqlite")
def test_a_file_that_cannot_be_opened_leaves_no_thread_behind(tmp_path) -> None:
    """One that ends after the event loop does would print a traceback over the line that says what to do."""

    async def fail() -> None:
        database = Database(f"sqlite+aiosqlite:///{tmp_path}")  # a folder
        with pytest.raises(StorageError):
            await database.ping()
        left.extend(thread for thread in threading.enumerate() if "_connection_worker_thread" in thread.name)
        await database.dispose()

    left: list[threading.Thread] = []
    for _ in range(10):
        asyncio.run(fail())
    assert left == []


async def test_what_fails_tells_its_statement_and_not_what_users_wrote(database) -> None:
    """Neither as a parameter nor as PostgreSQL's quotation of the row, in the error or in what caused it: tracebacks are logged."""

    async def insert(**more) -> str:
        row = FeedbackRow(id=f"fb-{len(more)}", interaction_id=999, metric="score", value=1.0, comment="xyzzy", body_digest="d", created_at=1.0)
        for name, value in more.items():
            setattr(row, name, value)
        with pytest.raises(DBAPIError) as raised:
            async with database.write() as session:
                session.add(row)
        return "".join(traceback.format_exception(raised.value))

    for told in (await insert(), await insert(metric=None), await insert(metric=None, idempotency_key="xyzzy-plugh")):
        assert "INSERT INTO feedback" in told
        assert "xyzzy" not in told
