"""A database as months of use leave it, written straight into the real tables. Owns what its rows look like; measures nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from sqlalchemy import func, insert, select, text

from online_sao.errors import ConfigurationError
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import FeedbackRow, InteractionRow, PolicyVersionRow, TrajectoryRow, UpdateRow
from online_sao.types import InteractionStatus, TrajectoryState, VersionState

TOKENS = 48
SPAN_SECONDS = 3 * 24 * 3600.0
"""The interactions lie in the last three days, a third of them in the day whose coverage is shown."""
NEVER_SECONDS = 10 * 365 * 24 * 3600.0
CHUNK = 5000


async def fill(
    database: Database,
    count: int,
    *,
    now: float,
    versions: int = 200,
    newest_serves: bool = True,
    progress: Callable[[int], None] = lambda _added: None,
) -> None:
    """``versions`` updates, and ``count`` completed, scored and trained interactions; one in twenty scores is replaced by another.

    Goes on where an earlier call with the same numbers was interrupted. ``newest_serves`` False: the base serves, as after a rollback; there are no
    files of the others. ``progress`` is told how many interactions have been added. Raises ConfigurationError for a database that somebody uses.
    """
    there = await stored(database)
    if there:
        await _check_ours(database)
    if not there:
        async with database.write() as session:
            if newest_serves:
                (await policies.active(session)).state = VersionState.RETIRED
            for number in range(1, versions + 1):
                at = now - SPAN_SECONDS * (1 - number / (versions + 1))
                session.add_all([_update(number, at), _version(number, at, active=newest_serves and number == versions)])
    progress(there)
    for start in range(there, count, CHUNK):
        numbers = range(start, min(start + CHUNK, count))
        rng = random.Random(start)
        rows = [
            _scored(number, now - SPAN_SECONDS * (1 - number / count), min(versions, number * (versions + 1) // count), rng) for number in numbers
        ]
        async with database.write() as session:
            await _insert(session, InteractionRow, [row for row, _, _ in rows])
            await _insert(session, FeedbackRow, [score for _, scores, _ in rows for score in scores])
            await _insert(session, TrajectoryRow, [row for _, _, row in rows])
        progress(len(numbers))


async def unscored(database: Database, count: int, *, now: float) -> list[str]:
    """Completion ids of ``count`` interactions whose score is awaited, oldest first. Those that are missing are added."""
    waiting = (
        select(InteractionRow.completion_id)
        .join(TrajectoryRow, TrajectoryRow.interaction_id == InteractionRow.id)
        .where(TrajectoryRow.state == TrajectoryState.PENDING)
        .order_by(InteractionRow.id)
        .limit(count)
    )
    async with database.read() as session:
        found = list(await session.scalars(waiting))
    first = await stored(database)
    for start in range(first, first + count - len(found), CHUNK):
        numbers = range(start, min(start + CHUNK, first + count - len(found)))
        rng = random.Random(start)
        async with database.write() as session:
            await _insert(session, InteractionRow, [_interaction(number, now, 0, rng) for number in numbers])
            await _insert(session, TrajectoryRow, [_trajectory(number + 1, now, 0, TrajectoryState.PENDING) for number in numbers])
    async with database.read() as session:
        return list(await session.scalars(waiting))


async def stored(database: Database) -> int:
    """Interactions there are; also the largest of their ids, where ``fill`` has written them."""
    async with database.read() as session:
        return await session.scalar(select(func.max(InteractionRow.id))) or 0


async def _check_ours(database: Database) -> None:
    async with database.read() as session:
        first = await session.scalar(select(InteractionRow.completion_id).order_by(InteractionRow.id).limit(1))
    if first != completion_id(0):
        raise ConfigurationError("The database holds interactions that this benchmark has not made. Give it one of its own.")


def completion_id(number: int) -> str:
    return f"chatcmpl-{number:032x}"


async def finish(database: Database) -> None:
    """What a database does by itself in the course of time, done now: statistics for its planner; the next id it gives out."""
    async with database.write() as session:
        if database.dialect == "postgresql":
            await session.execute(text("SELECT setval(pg_get_serial_sequence('interactions', 'id'), (SELECT max(id) FROM interactions))"))
        await session.execute(text("ANALYZE"))


async def _insert(session: Session, table: type[Any], rows: list[dict[str, Any]]) -> None:
    if rows:
        await session.execute(insert(table), rows)


def _scored(number: int, at: float, version: int, rng: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """An interaction, its scores and its trajectory."""
    key = number + 1
    wanted = 0.2 + 0.6 * (number % 20_000) / 20_000
    scores = [_score(f"fb-{number:032x}", key, float(rng.random() < wanted), at + 5.0)]
    if number % 20 == 0:
        scores.append(_score(f"fb-{number:032x}-b", key, 0.5, at + 9.0))
        scores[0]["superseded_by"] = scores[1]["id"]
    trained = {"reward": 0.5, "ready_at": at + 5.0, "update_number": max(1, version), "policy_lag": 1, "masked_fraction": 0.01}
    return _interaction(number, at, version, rng), scores, {**_trajectory(key, at, version, TrajectoryState.TRAINED), **trained}


def _interaction(number: int, at: float, version: int, rng: random.Random) -> dict[str, Any]:
    ids = rng.choices(range(49_152), k=TOKENS)
    return {
        "id": number + 1,
        "completion_id": completion_id(number),
        "choice": 0,
        "request_id": f"req_{number:032x}",
        "user": f"user-{number % 97}",
        "model": "smollm2-135m",
        "status": InteractionStatus.COMPLETED,
        "stored": True,
        "request_metadata": {},
        "messages": [{"role": "user", "content": "Tell me about a walk in the park."}],
        "sampling": {"max_tokens": TOKENS, "temperature": 1.0, "top_p": 1.0, "stop": []},
        "prompt_ids": ids[:40],
        "token_ids": ids,
        "behavior_logprobs": [-rng.random() for _ in ids],
        "version_spans": [[0, TOKENS, version]],
        "text": "A walk in the park is a fine thing to do on a quiet morning. " * 3,
        "finish_reason": "stop",
        "policy_version": version,
        "prompt_tokens": 40,
        "completion_tokens": TOKENS,
        "created_at": at,
        "first_token_at": at + 0.1,
        "completed_at": at + 2.0,
    }


def _trajectory(interaction: int, at: float, version: int, state: TrajectoryState) -> dict[str, Any]:
    return {
        "interaction_id": interaction,
        "state": state,
        "oldest_policy_version": version,
        "created_at": at + 2.0,
        "deadline_at": at + NEVER_SECONDS,
        "updated_at": at + 30.0,
    }


def _score(identity: str, interaction: int, value: float, at: float) -> dict[str, Any]:
    return {
        "id": identity,
        "interaction_id": interaction,
        "metric": "score",
        "value": value,
        "body_digest": "0" * 64,
        "superseded_by": None,
        "created_at": at,
    }


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
