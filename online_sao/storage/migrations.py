"""Bringing a database to the schema of this code, and refusing to run on any other. Owns the use of Alembic; the steps are in migrations/."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from online_sao.errors import ConfigurationError
from online_sao.storage.repositories import leases
from online_sao.storage.session import Database, create_engine, for_writing, sqlite_path

_LOCK = 7607250826
"""Any number that nobody else on the server locks."""
_CHECKOUT = Path(__file__).resolve().parents[2] / "migrations"


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration without an ini file. With ``connection``, migrations run on it, inside its transaction."""
    config = Config()
    config.set_main_option("script_location", str(_scripts()))
    config.attributes["connection"] = connection
    return config


def _scripts() -> Path:
    """Beside the sources in a checkout; where the installer has put them otherwise (pyproject's data-files)."""
    if (_CHECKOUT / "env.py").is_file():
        return _CHECKOUT
    try:
        installed = importlib.metadata.files("online-sao") or ()
    except importlib.metadata.PackageNotFoundError:
        installed = ()
    for file in installed:
        if file.parts[-2:] == ("migrations", "env.py"):
            return Path(str(file.locate())).resolve().parent
    raise ConfigurationError(f"The migrations are neither at {_CHECKOUT} nor installed. Install online-sao again, from its wheel or its checkout.")


async def upgrade(url: str) -> None:
    """Bring the database at ``url`` to the newest schema, all or nothing. Creates a SQLite file and its folder if they are missing."""
    await _migrate(url, "head")


async def downgrade(url: str, revision: str) -> None:
    """Take the database back to ``revision`` ("base": no tables). Data of what is dropped is lost. Raises ConfigurationError for one unknown here."""
    if revision not in {"base", *_known()}:
        raise ConfigurationError(f"There is no revision {revision}. There are: {', '.join(sorted(_known()))}, and base: no tables at all.")
    await _migrate(url, revision, down=True)


@dataclass(frozen=True, slots=True)
class Revision:
    """``current`` None: the database has no tables yet."""

    current: str | None
    needed: str


async def revision(url: str) -> Revision:
    """Where the schema stands, and where this code needs it. Changes nothing. Raises ConfigurationError where there is no database."""
    database = Database(url)
    try:
        current, head = await _revisions(database)
    finally:
        await database.dispose()
    return Revision(current, head)


async def in_use(url: str, now: float) -> leases.LeaseName | None:
    """Which process works on the database now, if any does."""
    database = Database(url)
    try:
        async with database.read() as session:
            for name in get_args(leases.LeaseName):
                if await leases.is_held(session, name, now):
                    return cast(leases.LeaseName, name)
    finally:
        await database.dispose()
    return None


async def require_current(database: Database) -> None:
    """Raise ConfigurationError unless the database has exactly the schema of this code."""
    advice = "Run `online-sao db upgrade`."
    found, head = await _revisions(database)
    if found == head:
        return
    if found is None:
        raise ConfigurationError(f"The database has no tables yet. {advice}")
    if found not in _known():
        raise ConfigurationError(
            f"The database schema is at revision {found}, which this version of online-sao does not know. Install the newer version."
        )
    raise ConfigurationError(f"The database schema is at revision {found}, but this code needs {head}. {advice}")


def _known() -> set[str]:
    return {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}


async def _revisions(database: Database) -> tuple[str | None, str]:
    """(that of the database, the newest)."""
    path = sqlite_path(database.url)
    if path is not None and not path.exists():
        raise ConfigurationError(
            f"There is no database at {path}. Name your service's folder with --data-dir (storage.data_dir). Only for a new, empty one: "
            "`online-sao db upgrade`."
        )
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    async with database.read() as session:
        connection = await session.connection()
        return await connection.run_sync(lambda c: MigrationContext.configure(c).get_current_revision()), head


async def _migrate(url: str, revision: str, *, down: bool = False) -> None:
    path = sqlite_path(url)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, foreign_keys=False)
    try:
        async with for_writing(engine).begin() as connection:
            await connection.run_sync(_run, revision, down)
    except (OperationalError, ConnectionError) as error:
        advice = "the database server runs" if path is None else f"{path} can be written"
        raise ConfigurationError(
            f"The database cannot be opened: {getattr(error, 'orig', error)}. Check storage.database_url, and that {advice}."
        ) from error
    finally:
        await engine.dispose()


def _run(connection: Connection, revision: str, down: bool) -> None:
    if connection.dialect.name == "postgresql":
        # SQLite's transaction has the file to itself. Here a second process that upgrades at once waits its turn, and finds nothing left to do.
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    (command.downgrade if down else command.upgrade)(alembic_config(connection), revision)
    if connection.dialect.name == "sqlite" and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()):
        raise ConfigurationError(
            f"The migration would leave {len(broken)} rows pointing at nothing (first: {tuple(broken[0])}); nothing was changed."
        )
