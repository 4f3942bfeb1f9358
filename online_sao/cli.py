"""The command line. Owns flags, what is printed and exit codes; every piece of work is done elsewhere.

Exit codes: 0 done; 1 it ran and something failed; 2 it could not run as asked (one line says what to change). Heavy packages are imported
inside the commands: ``--help`` is instant, and OMP_WAIT_POLICY is set before torch can be imported.
"""

from __future__ import annotations

import os

# Spinning OpenMP threads of one process starve the other on a shared CPU (decoding was 4 times slower); torch reads this once, on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import asyncio
import importlib.metadata
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from online_sao.errors import ConfigurationError, OnlineSAOError

if TYPE_CHECKING:
    from online_sao.config import Settings

app = typer.Typer(
    name="online-sao",
    help="A chat service whose model learns, while it serves, from the scores its users give.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
database_app = typer.Typer(no_args_is_help=True, help="The database schema.")
bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks of the parts.")
app.add_typer(database_app, name="db")
app.add_typer(bench_app, name="bench")

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="TOML settings file. [default: online-sao.toml, where there is one]")]
DataDirOption = Annotated[Path | None, typer.Option("--data-dir", help="Folder of database, policy store and checkpoints.")]


def load_settings(config: Path | None, **groups: dict[str, Any]) -> Settings:
    """Settings from flags > environment > file > defaults. A flag that is None is not a flag. Raises ConfigurationError, one line a fault."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from online_sao.config import Settings

    if config is not None:
        if not config.is_file():
            raise ConfigurationError(f"There is no settings file {config}. Give --config the path of a TOML file.")
        os.environ["ONLINE_SAO_CONFIG"] = str(config)
    given = {name: {key: value for key, value in group.items() if value is not None} for name, group in groups.items()}
    try:
        return Settings(**{name: group for name, group in given.items() if group})  # type: ignore[arg-type]
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}" for fault in error.errors()]
        raise ConfigurationError(f"Settings: {'; '.join(faults)}. docs/configuration.md lists them all.") from error
    except (SettingsError, ValueError) as error:
        raise ConfigurationError(f"Settings cannot be read: {error}") from error


def log_to_terminal() -> None:
    """Our own log lines from INFO up, other packages' from WARNING up, on stderr."""
    from rich.logging import RichHandler

    logging.basicConfig(
        level=logging.WARNING, format="%(name)s: %(message)s", datefmt="%H:%M:%S", handlers=[RichHandler(console=errors, show_path=False)]
    )
    for name in ("online_sao", "api"):
        logging.getLogger(name).setLevel(logging.INFO)


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"online-sao {importlib.metadata.version('online-sao')}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False) -> None:
    pass


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one. [default: 8000]")] = None,
    data_dir: DataDirOption = None,
    model: Annotated[str | None, typer.Option(help="'bundled', or a local folder or hub id of a chat model.")] = None,
    no_learner: Annotated[bool, typer.Option("--no-learner", help="Serve and keep scores, but start no learner beside the server.")] = False,
    config: ConfigOption = None,
) -> None:
    """Start API, dashboard and learner. Ctrl-C ends them all."""
    settings = load_settings(
        config,
        server={"host": host, "port": port},
        storage={"data_dir": data_dir},
        policy={"model": model},
        learning={"enabled": False if no_learner else None},
    )
    from online_sao.launch import launch

    log_to_terminal()
    # A service manager's SIGTERM ends it as Ctrl-C does, at whatever point of the start it comes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        started = launch(settings, console)
    except KeyboardInterrupt:
        console.print("Stopped.", style="dim")
    else:
        raise typer.Exit(0 if started else 1)


@app.command()
def learn(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Run the learner alone, on the database and policy store of a running server."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    from online_sao.runtime.learning import run

    log_to_terminal()
    raise typer.Exit(run(settings))


@app.command()
def simulate(
    url: Annotated[str, typer.Option(help="Where the service answers.")] = "http://127.0.0.1:8000",
    preference: Annotated[str, typer.Option(help="What the users like: first-person or plain-words.")] = "first-person",
    users: Annotated[int, typer.Option(min=1, help="Users at once.")] = 8,
    scores: Annotated[int, typer.Option(min=1, help="Answers asked for and scored.")] = 160,
    seed: Annotated[int, typer.Option(help="Seed of the order of prompts.")] = 0,
    window: Annotated[int, typer.Option(min=1, help="Interactions in a window, and in the frozen control.")] = 40,
    max_backlog: Annotated[int, typer.Option(min=1, help="Most answers under way or not yet learned from; users wait beyond it.")] = 16,
    control: Annotated[bool, typer.Option(help="First sample the last window's prompts on the version served at the start.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="ONLINE_SAO_SERVER__API_TOKEN", help="Bearer token, where the server wants one.")] = None,
) -> None:
    """Let simulated users chat and score by a rule, and measure what the policy learns. Exit code 1 if any call was not answered 2xx."""
    from online_sao.simulation.display import RichDisplay, print_summary
    from online_sao.simulation.run import SimulationOptions
    from online_sao.simulation.run import simulate as run_simulation

    options = SimulationOptions(
        url=url,
        preference=preference,
        users=users,
        scores=scores,
        seed=seed,
        window=window,
        max_backlog=max_backlog,
        control=control,
        api_key=api_key,
    )
    with RichDisplay(console) as display:
        result = asyncio.run(run_simulation(options, display))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
    print_summary(console, result)
    raise typer.Exit(1 if result["http"]["non_2xx"] else 0)


@database_app.command("upgrade")
def database_upgrade(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Bring the database to the newest schema. `serve` does this by itself."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    from online_sao.storage.migrations import upgrade

    settings.storage.data_dir.mkdir(parents=True, exist_ok=True)
    asyncio.run(upgrade(settings.database_url))
    console.print(f"The database is at the newest schema: {settings.database_url.split('@')[-1]}", soft_wrap=True)


@bench_app.command("swap", add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench_swap(context: typer.Context) -> None:
    """Swap weights under concurrent clients and count what fails."""
    from online_sao.benchmarks.swap import main as swap

    raise typer.Exit(swap(context.args))


def main() -> None:
    """Entry point. An error of ours is one red line, never a traceback."""
    try:
        app()
    except OnlineSAOError as error:
        errors.print(Text(error.message, style="red"), soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
