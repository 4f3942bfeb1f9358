"""``online-sao db``: the schema of the database; where it stands, up, and down again for an older version of the software."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from online_sao.commands.common import ConfigOption, DataDirOption, console, load_settings
from online_sao.errors import ConfigurationError

if TYPE_CHECKING:
    from online_sao.config import Settings

app = typer.Typer(no_args_is_help=True, help="The database schema.")


@app.command()
def status(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """The schema's revision, and the one this version of online-sao needs. Exit code 1 where they differ."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    from online_sao.storage.migrations import revision

    found = asyncio.run(revision(settings.database_url))
    console.print(f"{_named(settings)} is at revision {found.current or 'none'}; this version needs {found.needed}.", soft_wrap=True)
    raise typer.Exit(0 if found.current == found.needed else 1)


@app.command()
def upgrade(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Bring the database to the newest schema. `serve` does this by itself."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    from online_sao.storage import migrations

    settings.storage.data_dir.mkdir(parents=True, exist_ok=True)
    asyncio.run(migrations.upgrade(settings.database_url))
    console.print(f"The database is at the newest schema: {_named(settings)}", soft_wrap=True)


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="The one that the older version needs: its `online-sao db status` says which.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_dir: DataDirOption = None,
    config: ConfigOption = None,
) -> None:
    """Take the schema back for an older version of online-sao. What newer tables and columns hold is lost: make a backup first."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    if not yes:
        typer.confirm(f"Take {_named(settings)} back to revision {revision}? What it cannot hold is lost.", abort=True)
    from online_sao.storage import migrations

    asyncio.run(_down(settings, revision))
    found = asyncio.run(migrations.revision(settings.database_url))
    console.print(f"The database is at revision {found.current or 'none'}: {_named(settings)}", soft_wrap=True)


async def _down(settings: Settings, revision: str) -> None:
    from online_sao.storage import migrations

    if (holder := await migrations.in_use(settings.database_url, time.time())) is not None:
        raise ConfigurationError(f"The database is in use: the {holder} process runs. Stop server and learner first. Nothing has been changed.")
    await migrations.downgrade(settings.database_url, revision)


def _named(settings: Settings) -> str:
    """The database, without user and password."""
    return settings.database_url.split("@")[-1]
