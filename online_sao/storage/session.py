"""The unit of work. Owns the engine, its pragmas and how a transaction begins and ends. Knows no table.

Everything that talks to the database does it inside ``Database.read()`` or ``Database.write()``; repositories take the session and never commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from online_sao.errors import ConfigurationError
from online_sao.storage import sqlite_driver
from online_sao.storage.faults import as_storage_errors

Session = AsyncSession
"""What ``read`` and ``write`` yield, for the signatures of rooms that use repositories but not SQLAlchemy."""

_BEGIN = "online_sao_sqlite_begin"
_BUSY_TIMEOUT_MS = 30_000
_READERS_TIMEOUT_MS = 500
"""What emptying the write-ahead log waits for readers. Writers wait meanwhile."""
_ANSWER_SECONDS = 10.0
"""What a PostgreSQL server is given to take a connection, or a transaction that somebody waits for: one that is frozen, or behind a dead line,
refuses nothing."""
_READ_SECONDS = 60.0
"""What it is given for a reading, however patient who asked is: one that never ended would keep its connection from the others."""
# A burst of requests waits for a connection rather than failing: with the driver's 30 s, a thousand scores at once on a busy machine lost some.
# An error of the driver tells its statement, but not what users wrote: errors are logged.
_OPTIONS: dict[str, Any] = {"pool_size": 10, "max_overflow": 5, "pool_timeout": 120, "hide_parameters": True}


def sqlite_path(url: str) -> Path | None:
    """The database file a SQLite URL names, or None for another database. In-memory SQLite is refused: two processes must share the data."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None or parsed.drivername not in ("sqlite+aiosqlite", "postgresql+asyncpg"):
        kind = "no URL" if parsed is None else parsed.drivername
        raise ConfigurationError(
            f"storage.database_url is {kind}; give postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE or sqlite+aiosqlite:////absolute/file."
        )
    if parsed.get_backend_name() != "sqlite":
        return None
    if not parsed.database or parsed.database == ":memory:":
        raise ConfigurationError(f"storage.database_url {url!r} is an in-memory database, which server and learner cannot share; name a file.")
    return Path(parsed.database)


def create_engine(url: str, *, foreign_keys: bool = True) -> AsyncEngine:
    """Async engine for SQLite (aiosqlite) or PostgreSQL (asyncpg). ``foreign_keys`` False is for migrations, which may rebuild a table in SQLite."""
    path = sqlite_path(url)
    if path is None:
        return _create_postgresql_engine(url)
    engine = create_async_engine(url, async_creator=partial(sqlite_driver.connect, path), **_OPTIONS)

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # The driver's own transaction control begins lazily and commits before DDL; with it off, BEGIN is ours.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        _use_write_ahead_log(cursor)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, not left in pages that happen to be free
        cursor.execute(f"PRAGMA foreign_keys={'ON' if foreign_keys else 'OFF'}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(_BEGIN, 'DEFERRED')}")

    return engine


def _use_write_ahead_log(cursor: Any) -> None:
    """Two processes that open a new file at once both want to be the one that changes its mode, and SQLite refuses one of them without waiting."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _create_postgresql_engine(url: str) -> AsyncEngine:
    try:
        engine = create_async_engine(url, pool_pre_ping=True, connect_args={"timeout": _ANSWER_SECONDS}, **_OPTIONS)
    except ModuleNotFoundError as error:
        raise ConfigurationError("PostgreSQL needs asyncpg. Install it: pip install 'online-sao[postgresql]'.") from error

    @event.listens_for(engine.sync_engine, "do_connect")
    def _connect(dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        # A server that is down, starting or refusing shows in a dozen types: a socket file that is missing, a timeout, errors of the driver's own.
        try:
            return dialect.connect(*arguments, **parameters)
        except Exception as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    @event.listens_for(engine.sync_engine, "handle_error")
    def _without_values(context: Any) -> None:
        # Its DETAIL quotes the row that broke a constraint.
        error = context.original_exception
        error.args = tuple(part.partition("\nDETAIL:")[0] if isinstance(part, str) else part for part in error.args)
        if getattr(error.__cause__, "detail", None):
            error.__cause__.detail = None

    return engine


def for_writing(engine: AsyncEngine) -> AsyncEngine:
    """The same engine and pool, whose SQLite transactions take the write lock at once: a reader that turns writer midway fails with SQLITE_BUSY."""
    return engine.execution_options(**{_BEGIN: "IMMEDIATE"}) if engine.dialect.name == "sqlite" else engine


def _for_reading(engine: AsyncEngine) -> AsyncEngine:
    """Several selects of one read must see one snapshot. SQLite gives that by itself; PostgreSQL has to be asked."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine


class Database:
    """One database, used from one event loop. Rows stay readable after their transaction has ended (they are not expired on commit)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_engine(url)
        self._reading = async_sessionmaker(_for_reading(self._engine), expire_on_commit=False)
        self._writing = async_sessionmaker(for_writing(self._engine), expire_on_commit=False)
        # SQLite has one writer. Queueing here is fair and costs nothing; queueing on its lock polls, and starves under load.
        self._turn: AbstractAsyncContextManager[Any] = asyncio.Lock() if self.dialect == "sqlite" else nullcontext()

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Session]:
        """A consistent snapshot. Nothing written through it is kept. Raises StorageError where the database cannot be read, or is not in time.
        Keep slow work out of the block."""
        async with as_storage_errors(), self.promptly(_READ_SECONDS), self._reading() as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Session]:
        """One transaction: committed once when the block ends, rolled back if it raises or is cancelled. Keep slow work out of the block.

        Raises StorageError, or StorageFullError, where the database cannot be written: then nothing of the block is kept.
        """
        async with as_storage_errors(), self._turn, self._writing() as session, session.begin():
            yield session

    @asynccontextmanager
    async def promptly(self, seconds: float = _ANSWER_SECONDS) -> AsyncIterator[None]:
        """Inside, a PostgreSQL server that gives no answer in ``seconds`` is a StorageError like one that refuses; whether it has committed is not
        known then. SQLite says by itself, after 30 s, that its file is locked by another process."""
        if self.dialect == "sqlite":
            yield
            return
        async with as_storage_errors(), asyncio.timeout(seconds):
            yield

    async def ping(self) -> None:
        """Raises StorageError where the database does not answer."""
        async with self.read() as session:
            await session.execute(text("SELECT 1"))

    async def damage(self) -> str | None:
        """What SQLite finds wrong with its file, every page read; None: nothing. PostgreSQL keeps checksums of its own."""
        if self.dialect != "sqlite":
            return None
        async with self.read() as session:
            found = (await session.scalars(text("PRAGMA quick_check(1)"))).first()
        return None if found == "ok" else str(found)

    async def forget_overwritten(self) -> bool:
        """Remove what the files still hold of overwritten and deleted content: SQLite's write-ahead log keeps the pages of before. False: somebody
        reads in it just now; try again. PostgreSQL's vacuum does this by itself, in its own time."""
        if self.dialect != "sqlite":
            return True
        async with as_storage_errors(), self._turn, self._engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, sqlite_driver.OneCrossingConnection)
            cursor = driver.cursor()
            try:
                await cursor.execute(f"PRAGMA busy_timeout={_READERS_TIMEOUT_MS}")
                await cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                ((busy, _, _),) = await cursor.fetchall()
            finally:
                await cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        return not busy

    async def dispose(self) -> None:
        """Close every connection."""
        await self._engine.dispose()
