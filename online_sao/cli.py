"""The command line. Owns flags, what is printed and exit codes; every piece of work is done elsewhere.

Exit codes: 0 done; 1 it ran and something failed; 2 it could not run as asked (one line says what to change). Heavy packages are imported
inside the commands: ``--help`` is instant, and OMP_WAIT_POLICY is set before torch can be imported.
"""

from __future__ import annotations

import os

# Spinning OpenMP threads of one process starve the other on a shared CPU (decoding was 4 times slower); torch reads this once, on import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import importlib.metadata
import logging
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from online_sao import logs
from online_sao.commands import database, learner, policies
from online_sao.commands.alarms import alarms
from online_sao.commands.common import ConfigOption, DataDirOption, console, errors, load_settings, start_logging
from online_sao.commands.demo import demo
from online_sao.commands.doctor import doctor
from online_sao.commands.erase import erase
from online_sao.commands.export import export
from online_sao.commands.pretrain_value import pretrain_value
from online_sao.commands.replay import replay
from online_sao.commands.scores import scores
from online_sao.commands.simulate import simulate
from online_sao.errors import OnlineSAOError

app = typer.Typer(
    name="online-sao",
    help="A chat service whose model learns, while it serves, from the scores its users give.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # as rich markup, "[default: 8000]" would be a tag, and vanish
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulate)
app.command()(demo)
app.command()(doctor)
app.command()(alarms)
app.command()(scores)
app.command()(erase)
app.command()(export)
app.command()(replay)
app.command()(pretrain_value)
bench_app = typer.Typer(no_args_is_help=True, help="Benchmarks of the parts.")
app.add_typer(database.app, name="db")
app.add_typer(bench_app, name="bench")
app.add_typer(policies.app, name="policies")
app.add_typer(learner.app, name="learner")


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
    engine: Annotated[
        str | None, typer.Option(help="Inference engine: 'transformers' (embedded) or 'vllm' (installed apart). [default: transformers]")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Engines, each a process of its own in a Ray cluster (extra 'ray'). [default: 0, one engine inside the server]")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster to join, host:port of its head. [default: one of the server's own, on this machine]")
    ] = None,
    no_learner: Annotated[bool, typer.Option("--no-learner", help="Serve and keep scores, but start no learner beside the server.")] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Serve beside other servers on one PostgreSQL database; one of them runs the learner.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Start API, dashboard and learner. Ctrl-C ends them all."""
    settings = load_settings(
        config,
        server={"host": host, "port": port, "shared": shared or None},
        storage={"data_dir": data_dir},
        policy={"model": model},
        engine={"kind": engine},
        cluster={"replicas": replicas, "ray_address": ray_address},
        learning={"enabled": False if no_learner else None},
    )
    from online_sao.launch import launch

    start_logging(settings)
    # A service manager's SIGTERM ends it as Ctrl-C does, at whatever point of the start it comes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        started = launch(settings, Console(quiet=True) if logs.is_json() else console)
    except KeyboardInterrupt:
        if logs.is_json():
            logging.getLogger(__name__).info("stopped")
        else:
            console.print("Stopped.", style="dim")
    else:
        raise typer.Exit(0 if started else 1)


@app.command()
def learn(data_dir: DataDirOption = None, config: ConfigOption = None) -> None:
    """Run the learner alone, on the database and policy store of a running server."""
    settings = load_settings(config, storage={"data_dir": data_dir})
    start_logging(settings)
    from online_sao.runtime.learning import run

    raise typer.Exit(run(settings))


def _benchmark(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that hands its words on to a program with a parser of its own, --help among them."""
    return bench_app.command(name, add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})


@_benchmark("swap")
def bench_swap(context: typer.Context) -> None:
    """Swap weights under concurrent clients and count what fails."""
    from online_sao.benchmarks.swap import main as swap

    raise typer.Exit(swap(context.args))


@_benchmark("adaptation")
def bench_adaptation(context: typer.Context) -> None:
    """Shift what users want, and compare what is learned with a frozen policy, with the anchor alone, and between recipes."""
    from online_sao.benchmarks.adaptation import main as adaptation

    raise typer.Exit(adaptation(context.args))


@_benchmark("serving")
def bench_serving(context: typer.Context) -> None:
    """Compare this service with a plain `vllm serve`, and with itself while it learns."""
    from online_sao.benchmarks.serving import main as serving

    raise typer.Exit(serving(context.args))


@_benchmark("learner")
def bench_learner(context: typer.Context) -> None:
    """What an update costs, against this machine's matmul peak and TRL's GRPO step."""
    from online_sao.benchmarks.learner import main as learner

    raise typer.Exit(learner(context.args))


@_benchmark("decode")
def bench_decode(context: typer.Context) -> None:
    """Tokens per second of the embedded engine, against the time to read its weights once a step."""
    from online_sao.benchmarks.decode import main as decode

    raise typer.Exit(decode(context.args))


@_benchmark("stability")
def bench_stability(context: typer.Context) -> None:
    """Compare recipes over hundreds of updates of a tiny model whose rollouts are some updates old."""
    from online_sao.benchmarks.stability.command import main as stability

    raise typer.Exit(stability(context.args))


@_benchmark("adaptation-lab")
def bench_adaptation_lab(context: typer.Context) -> None:
    """Compare how fast recipes follow shifts of preference, on a tiny model and over many seeds."""
    from online_sao.benchmarks.adaptation_lab.command import main as adaptation_lab

    raise typer.Exit(adaptation_lab(context.args))


@_benchmark("base-rates")
def bench_base_rates(context: typer.Context) -> None:
    """How often a model that has learned nothing pleases each simulated preference."""
    from online_sao.benchmarks.base_rates import main as base_rates

    raise typer.Exit(base_rates(context.args))


@_benchmark("barrier")
def bench_barrier(context: typer.Context) -> None:
    """What synchronous batches, asynchronous groups and single rollouts cost: simulated to 10,000 workers, and for real."""
    from online_sao.benchmarks.barrier import main as barrier

    raise typer.Exit(barrier(context.args))


@_benchmark("ingest")
def bench_ingest(context: typer.Context) -> None:
    """Scores a second, and the dashboard's readings, with a million interactions stored."""
    from online_sao.benchmarks.ingest import main as ingest

    raise typer.Exit(ingest(context.args))


def main() -> None:
    """Entry point. An error of ours is one line (red, or JSON where the log is), never a traceback."""
    try:
        app()
    except OnlineSAOError as error:
        if logs.is_json():
            logging.getLogger(__name__).critical("%s", error.message)
        else:
            errors.print(Text(error.message, style="red"), soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
