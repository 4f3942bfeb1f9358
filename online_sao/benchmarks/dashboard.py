"""What a refresh of the dashboard costs when there is much to show. Fills a database of its own through the real tables, then times the readings that
the page is made of. Run with `python -m online_sao.benchmarks.dashboard`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from online_sao.config import RewardSettings
from online_sao.service.history import HistoryService
from online_sao.service.interactions import InteractionService
from online_sao.service.score_rollup import ScoreRollup
from online_sao.service.status import StatusService
from online_sao.storage.migrations import upgrade
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database
from online_sao.storage.tables import FeedbackRow, InteractionRow, PolicyVersionRow, TrajectoryRow, UpdateRow
from online_sao.types import InteractionStatus, TrajectoryState, VersionState

BUDGET_SECONDS = 0.3
TOKENS = 48
SPAN_SECONDS = 3 * 24 * 3600.0
"""The interactions lie in the last three days, a third of them in the day whose coverage is shown."""
_CHUNK = 5000


async def fill(database: Database, count: int, *, versions: int = 200, now: float) -> None:
    """``count`` completed, scored and trained interactions; one in twenty scores is replaced by another."""
    rng = random.Random(0)
    async with database.write() as session:
        (await policies.active(session)).state = VersionState.RETIRED
        for number in range(1, versions + 1):
            at = now - SPAN_SECONDS * (1 - number / (versions + 1))
            session.add_all([_update(number, at), _version(number, at, active=number == versions)])
    for start in range(0, count, _CHUNK):
        numbers = range(start, min(start + _CHUNK, count))
        made = [_rows(number, now - SPAN_SECONDS * (1 - number / count), min(versions, number * (versions + 1) // count), rng) for number in numbers]
        async with database.write() as session:
            session.add_all([interaction for interaction, _ in made])
            await session.flush()
            session.add_all([row for _, rows in made for row in rows])


def _rows(number: int, at: float, version: int, rng: random.Random) -> tuple[InteractionRow, list[Any]]:
    """An interaction, and the rows that refer to it."""
    key = number + 1
    ids = [rng.randrange(49_152) for _ in range(TOKENS)]
    interaction = InteractionRow(
        id=key,
        completion_id=f"chatcmpl-{number:032x}",
        choice=0,
        request_id=f"req_{number:032x}",
        user=f"user-{number % 97}",
        model="smollm2-135m",
        status=InteractionStatus.COMPLETED,
        stored=True,
        request_metadata={},
        messages=[{"role": "user", "content": "Tell me about a walk in the park."}],
        sampling={"max_tokens": TOKENS, "temperature": 1.0, "top_p": 1.0, "stop": []},
        prompt_ids=ids[:40],
        token_ids=ids,
        behavior_logprobs=[-rng.random() for _ in ids],
        version_spans=[[0, TOKENS, version]],
        text="A walk in the park is a fine thing to do on a quiet morning. " * 3,
        finish_reason="stop",
        policy_version=version,
        prompt_tokens=40,
        completion_tokens=TOKENS,
        created_at=at,
        first_token_at=at + 0.1,
        completed_at=at + 2.0,
    )
    wanted = 0.2 + 0.6 * (number % 20_000) / 20_000
    scores = [_score(f"fb-{number:032x}", key, float(rng.random() < wanted), at + 5.0)]
    if number % 20 == 0:
        scores.append(_score(f"fb-{number:032x}-b", key, 0.5, at + 9.0))
        scores[0].superseded_by = scores[1].id
    trajectory = TrajectoryRow(
        interaction_id=key,
        state=TrajectoryState.TRAINED,
        reason=None,
        oldest_policy_version=version,
        reward=0.5,
        created_at=at + 2.0,
        deadline_at=at + 86_400.0,
        ready_at=at + 5.0,
        update_number=max(1, version),
        policy_lag=1,
        masked_fraction=0.01,
        updated_at=at + 30.0,
    )
    return interaction, [*scores, trajectory]


def _score(identity: str, interaction: int, value: float, at: float) -> FeedbackRow:
    return FeedbackRow(id=identity, interaction_id=interaction, metric="score", value=value, body_digest="0" * 64, created_at=at)


def _update(number: int, at: float) -> UpdateRow:
    return UpdateRow(
        update_number=number,
        lineage_epoch=0,
        claim_id=f"claim-{number}",
        policy_version=number,
        parent_version=number - 1,
        accepted=True,
        metrics={f"policy/metric_{index}": index / (number + 1) for index in range(36)},
        ratio_histogram={"edges": [0.5, 1.0, 2.0], "counts": [1, 2, 3, 4], "non_finite": 0},
        started_at=at - 20.0,
        finished_at=at,
    )


def _version(number: int, at: float, *, active: bool) -> PolicyVersionRow:
    return PolicyVersionRow(
        version=number,
        parent=number - 1,
        lineage_epoch=0,
        state=VersionState.ACTIVE if active else VersionState.RETIRED,
        update_number=number,
        path=f"v{number}",
        served_digest=[],
        created_at=at,
        activated_at=at + 1.0,
    )


async def measure(url: str, count: int, repetitions: int, *, there: bool) -> dict[str, Any]:
    """Seconds of each reading: the first, on a connection that has seen nothing, and the median and maximum of the others. A database that is
    ``there`` already is measured as it is."""
    await upgrade(url)
    database = Database(url)
    started = time.perf_counter()
    if not there:
        await fill(database, count, now=time.time())
    filled = time.perf_counter() - started
    status, history, interactions = StatusService(database), HistoryService(database, RewardSettings()), InteractionService(database)
    rollup = ScoreRollup(database)
    started = time.perf_counter()
    await rollup.advance()
    rolled = time.perf_counter() - started
    readings: dict[str, Callable[[], Awaitable[object]]] = {
        "snapshot": lambda: status.snapshot(scores=400),
        "rollup": rollup.advance,
        "shifts": HistoryService(database, RewardSettings()).shifts,
        "updates": lambda: history.updates(200),
        "unused answers": interactions.unused,
        "scores without effect": lambda: interactions.scores_without_effect(time.time() - 86400),
        "interactions": lambda: interactions.page(limit=20),
        "interactions by user": lambda: interactions.page(limit=20, user="user-3"),
        "interactions by text nobody wrote": lambda: interactions.page(limit=20, text="zebra crossing"),
    }
    try:
        return {
            "interactions": count,
            "fill_seconds": filled,
            "first_rollup_seconds": rolled,
            "readings": {name: await _timed(reading, repetitions) for name, reading in readings.items()},
        }
    finally:
        await database.dispose()


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
