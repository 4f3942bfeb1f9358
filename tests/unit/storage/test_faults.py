"""Failures of disk and database as errors that say what to do; faults of our own SQL as they are."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from online_sao.errors import StorageError, StorageFullError
from online_sao.storage.faults import storage_error
from online_sao.storage.repositories import learner

READ_ONLY = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET TRANSACTION READ ONLY"}


@pytest.mark.only_on("sqlite")
async def test_a_full_database_is_507_and_keeps_what_it_had(database):
    async with database.write() as session:
        await session.execute(text("CREATE TABLE filler (content BLOB)"))
        pages = await session.scalar(text("PRAGMA page_count"))

    async def overfill() -> None:
        async with database.write() as session:
            await session.execute(text(f"PRAGMA max_page_count = {pages + 2}"))
            await learner.pause(session, "must not be kept")
            await session.execute(text("INSERT INTO filler VALUES (zeroblob(1000000))"))

    with pytest.raises(StorageFullError, match="Free space") as caught:
        await overfill()
    assert (caught.value.status, caught.value.code, caught.value.headers) == (507, "storage_full", {"Retry-After": "5"})
    async with database.read() as session:
        assert (await learner.get(session)).paused is False


async def test_a_read_only_database_is_503(database):
    async def write() -> None:
        async with database.write() as session:
            await session.execute(text(READ_ONLY[database.dialect]))
            await learner.pause(session, "no")

    with pytest.raises(StorageError, match="read-only") as caught:
        await write()
    assert (caught.value.status, caught.value.code) == (503, "storage_unavailable")


async def test_our_own_mistakes_stay_what_they_are(database):
    with pytest.raises(DBAPIError, match="missing_table"):
        async with database.read() as session:
            await session.execute(text("SELECT * FROM missing_table"))
    with pytest.raises(IntegrityError):
        async with database.write() as session:
            await session.execute(text("INSERT INTO learner SELECT * FROM learner"))
    with pytest.raises(FileNotFoundError):
        async with database.write():
            raise FileNotFoundError("of somebody else")


class Sqlstate(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.sqlstate = code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("53100", StorageFullError),
        ("25006", StorageError),
        ("08006", StorageError),
        ("57P01", StorageError),
        ("57P03", StorageError),
        ("23505", None),
    ],
)
def test_what_postgresql_says(code, expected):
    error = storage_error(DBAPIError("SELECT 1", None, Sqlstate(code)))
    assert type(error) is (expected or type(None))


def test_other_ways_to_fail():
    failed = sqlite3.OperationalError("disk I/O error")
    failed.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert "fails" in storage_error(OperationalError("COMMIT", None, failed)).message
    assert "too busy" in storage_error(PoolTimeoutError("QueuePool limit")).message
    assert "does not answer" in storage_error(ConnectionRefusedError(111, "Connection refused")).message
