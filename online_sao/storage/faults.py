"""What a driver says when the disk or the database fails, as errors of ours that tell what to do. Owns the list of such failures; knows no table.

A fault of our own SQL (a broken constraint, a wrong statement) is none of them and passes as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from online_sao.errors import StorageError, StorageFullError

RETRY_SECONDS = 5

_FULL = "The disk of the database is full. Free space there, or move storage.data_dir to a larger disk; nothing that was acknowledged is lost."
_READ_ONLY = (
    "The database cannot be written: its disk or files are read-only. Make storage.data_dir writable again; nothing that was acknowledged is lost."
)
_IO = "The disk of the database fails ({}). Check it and the system's log; nothing that was acknowledged is lost."
_AWAY = "The database does not answer ({}). Check that it runs and that storage.database_url is right."
_BUSY = "The database is too busy ({}). Try again; if it lasts, see what else writes to it."

_SQLITE: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_FULL: (StorageFullError, _FULL),
    sqlite3.SQLITE_READONLY: (StorageError, _READ_ONLY),
    sqlite3.SQLITE_IOERR: (StorageError, _IO),
    sqlite3.SQLITE_CANTOPEN: (StorageError, _AWAY),
    sqlite3.SQLITE_BUSY: (StorageError, _BUSY),
}
_POSTGRESQL: dict[str, tuple[type[StorageError], str]] = {
    "53100": (StorageFullError, _FULL),
    "25006": (StorageError, _READ_ONLY),
    "58030": (StorageError, _IO),
    "53300": (StorageError, _BUSY),
    "57P01": (StorageError, _AWAY),
    "57P02": (StorageError, _AWAY),
    "57P03": (StorageError, _AWAY),
}
"""By SQLSTATE; class 08 (connection exceptions) besides."""


@asynccontextmanager
async def as_storage_errors() -> AsyncIterator[None]:
    """Inside, failures of the disk, the connection or the pool are raised as StorageError."""
    try:
        yield
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        translated = storage_error(error)
        if translated is None:
            raise
        raise translated from error


def storage_error(error: Exception) -> StorageError | None:
    """None: it is a fault of another kind."""
    if isinstance(error, PoolTimeoutError):
        return StorageError(_BUSY.format("no connection was free in time"), retry_after=RETRY_SECONDS)
    if isinstance(error, OSError):
        # What asyncpg raises while it connects, and what waiting for an answer ends with.
        known = isinstance(error, (ConnectionError, TimeoutError))
        return StorageError(_AWAY.format(str(error) or "no answer in time"), retry_after=RETRY_SECONDS) if known else None
    assert isinstance(error, DBAPIError)
    cause = error.orig
    code = getattr(cause, "sqlite_errorcode", None)
    found = _SQLITE.get(code & 0xFF) if isinstance(code, int) else _POSTGRESQL.get(str(getattr(cause, "sqlstate", "")))
    if found is None and (error.connection_invalidated or isinstance(error, InterfaceError) or str(getattr(cause, "sqlstate", "")).startswith("08")):
        found = (StorageError, _AWAY)
    if found is None:
        return None
    kind, message = found
    return kind(message.format(cause), retry_after=RETRY_SECONDS)
