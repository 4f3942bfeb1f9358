"""What a refresh of the dashboard costs when there is much to show. Fills a database of its own through the real tables, then times the readings that
the page is made of. Run with `python -m online_sao.benchmarks.dashboard`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from online_sao.benchmarks.stored_rows import fill
from online_sao.config import RewardSettings
from online_sao.service.history import HistoryService
from online_sao.service.interactions import InteractionService
from online_sao.service.score_rollup import ScoreRollup
from online_sao.service.status import StatusService
from online_sao.storage.migrations import upgrade
from online_sao.storage.session import Database

BUDGET_SECONDS = 0.3


async def measure(url: str, count: int, repetitions: int, *, there: bool) -> dict[str, Any]:
    """Seconds of each reading: the first, on a connection that has seen nothing, and the median and maximum of the others. A database that is
    ``there`` already is measured as it is."""
    await upgrade(url)
    database = Database(url)
    started = time.perf_counter()
    if not there:
        await fill(database, count, now=time.time())
    filled = time.perf_counter() - started
    rollup = ScoreRollup(database)
    started = time.perf_counter()
    await rollup.advance()
    rolled = time.perf_counter() - started
    try:
        return {
            "interactions": count,
            "fill_seconds": filled,
            "first_rollup_seconds": rolled,
            "readings": await time_readings(database, repetitions),
        }
    finally:
        await database.dispose()


async def time_readings(database: Database, repetitions: int) -> dict[str, dict[str, float]]:
    """Seconds of everything the page reads of the database."""
    status, history, interactions = StatusService(database), HistoryService(database, RewardSettings()), InteractionService(database)
    readings: dict[str, Callable[[], Awaitable[object]]] = {
        "snapshot": lambda: status.snapshot(scores=400),
        "rollup": ScoreRollup(database).advance,
        "shifts": history.shifts,
        "updates": lambda: history.updates(200),
        "unused answers": interactions.unused,
        "scores without effect": lambda: interactions.scores_without_effect(time.time() - 86400),
        "interactions": lambda: interactions.page(limit=20),
        "interactions by user": lambda: interactions.page(limit=20, user="user-3"),
        "interactions by text nobody wrote": lambda: interactions.page(limit=20, text="zebra crossing"),
    }
    return {name: await _timed(reading, repetitions) for name, reading in readings.items()}


async def _timed(reading: Callable[[], Awaitable[object]], repetitions: int) -> dict[str, float]:
    times = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        await reading()
        times.append(time.perf_counter() - started)
    return {"first": times[0], "median": statistics.median(times[1:]), "maximum": max(times[1:])}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a snapshot took longer than the budget."""
    parser = argparse.ArgumentParser(prog="online_sao.benchmarks.dashboard", description=__doc__)
    parser.add_argument("--interactions", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--database", type=Path, help="keep the database here, and measure it as it is if it is there already")
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.database or Path(folder) / "dashboard.db"
        result = asyncio.run(measure(f"sqlite+aiosqlite:///{path.absolute()}", options.interactions, options.repetitions, there=path.exists()))
    table = Table("reading", "first ms", "median ms", "maximum ms", title=f"{options.interactions:,} interactions, SQLite")
    for name, times in result["readings"].items():
        table.add_row(name, *(f"{1000 * times[key]:.1f}" for key in ("first", "median", "maximum")))
    Console().print(table, f"filled in {result['fill_seconds']:.0f} s, first roll-up in {1000 * result['first_rollup_seconds']:.0f} ms")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(result["readings"]["snapshot"]["maximum"] > BUDGET_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
