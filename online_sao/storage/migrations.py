"""Bringing a database to the schema of this code, and refusing to run on any other. Owns the use of Alembic; the steps are in migrations/."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from online_sao.errors import ConfigurationError
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
    """Take the database back to ``revision`` ("base": no tables). Data of what is dropped is lost."""
    await _migrate(url, revision, down=True)


async def require_current(database: Database) -> None:
    """Raise ConfigurationError unless the database has exactly the schema of this code."""
    advice = "Run `online-sao db upgrade`."
    path = sqlite_path(database.url)
    if path is not None and not path.exists():
        raise ConfigurationError(
            f"There is no database at {path}. Name your service's folder with --data-dir (storage.data_dir). Only for a new, empty one: "
            "`online-sao db upgrade`."
        )
    scripts = ScriptDirectory.from_config(alembic_config())
    async with database.read() as session:
        connection = await session.connection()
        found = await connection.run_sync(lambda c: MigrationContext.configure(c).get_current_revision())
    head = scripts.get_current_head()
    if found == head:
        return
    if found is None:
        raise ConfigurationError(f"The database has no tables yet. {advice}")
    if found not in {script.revision for script in scripts.walk_revisions()}:
        raise ConfigurationError(
            f"The database schema is at revision {found}, which this version of online-sao does not know. Install the newer version."
        )
    raise ConfigurationError(f"The database schema is at revision {found}, but this code needs {head}. {advice}")


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
