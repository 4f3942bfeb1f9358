"""SQLite connections that cross to their thread once a statement. Owns this one saving; knows nothing of transactions or tables.

aiosqlite runs each connection in a thread of its own, and SQLAlchemy crosses to it four times for a query: to make a cursor, execute, fetch and
close. Next to a learner and an engine that keep every core busy, each crossing waits for its turn on a core.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiosqlite


def connect(path: Path) -> OneCrossingConnection:
    """An awaitable connection, for ``create_async_engine(async_creator=…)``."""
    connection = OneCrossingConnection(lambda: sqlite3.connect(path), iter_chunk_size=64)
    # A thread that waits for statements must not keep a process alive whose work is done.
    connection._thread.daemon = True
    return connection


class OneCrossingConnection(aiosqlite.Connection):
    def cursor(self) -> OneCrossingCursor:  # type: ignore[override]
        return OneCrossingCursor(self)

    async def _connect(self) -> aiosqlite.Connection:
        try:
            return await super()._connect()
        except sqlite3.Error:
            # Its thread has been told to end, and answers to the event loop: which must not be closed by then.
            await asyncio.to_thread(self._thread.join)
            raise

    async def run(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call ``function`` in the connection's thread."""
        await self._execute(function, *arguments)  # type: ignore[no-untyped-call]


class OneCrossingCursor:
    """What SQLAlchemy uses of a cursor. A statement's rows are fetched where it is executed, so nothing is left to fetch or to close."""

    arraysize = 1

    def __init__(self, connection: OneCrossingConnection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> OneCrossingCursor:
        return self

    async def execute(self, operation: str, parameters: Sequence[Any] = ()) -> None:
        await self._connection.run(self._run, sqlite3.Cursor.execute, operation, parameters)

    async def executemany(self, operation: str, parameters: Sequence[Sequence[Any]]) -> None:
        await self._connection.run(self._run, sqlite3.Cursor.executemany, operation, parameters)

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        self._rows = []

    def _run(self, execute: Callable[[sqlite3.Cursor, str, Any], sqlite3.Cursor], operation: str, parameters: Any) -> None:
        """In the connection's thread."""
        cursor = self._connection._conn.cursor()
        try:
            execute(cursor, operation, parameters)
            self.description = cursor.description
            self._rows = cursor.fetchall() if cursor.description else []
            # After the rows: a RETURNING statement has done its work only when all of them are fetched.
            self.rowcount = cursor.rowcount
            self.lastrowid = cursor.lastrowid
        finally:
            cursor.close()
