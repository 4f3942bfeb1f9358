"""Scores as they were given. Owns which of them is the current one. Knows nothing of what a score does to training.

The current score of an interaction and metric is the one row that is neither superseded nor refused. Rows are never edited, except that
``superseded_by`` is set once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, select, update
from sqlalchemy import insert as insert_into
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import load_only

from online_sao.errors import IdempotencyConflictError
from online_sao.storage.repositories.interactions import WITHOUT_CONTENT
from online_sao.storage.tables import FeedbackRow, InteractionRow, TrajectoryRow

DUPLICATE = "duplicate"
"""``refused_reason`` of a row that repeats the current score under an idempotency key of its own. It exists so that the key is recognised
later; the score it repeats (``superseded_by``) stands for it everywhere else."""

_TABLE = FeedbackRow.metadata.tables[FeedbackRow.__tablename__]
_INSERT = insert_into(_TABLE)


async def insert(session: AsyncSession, rows: Sequence[FeedbackRow]) -> None:
    """Raises IdempotencyConflictError if another transaction has just used one of their keys: leave this one, and look at what it wrote."""
    if not rows:
        return
    # By key: two transactions with the same keys must not each wait for the other.
    rows = sorted(rows, key=lambda row: row.idempotency_key or "")
    try:
        await session.execute(_INSERT, [{column.key: getattr(row, column.key) for column in _TABLE.c} for row in rows])
    except IntegrityError as error:
        keys = ", ".join(repr(row.idempotency_key) for row in rows)
        raise IdempotencyConflictError(f"The idempotency key {keys} has just been used.") from error


async def by_id(session: AsyncSession, feedback_id: str) -> FeedbackRow | None:
    """Also resolves a duplicate to the score that stands for it."""
    row = await session.get(FeedbackRow, feedback_id)
    return await _standing(session, row)


async def by_idempotency_keys(session: AsyncSession, keys: Sequence[str]) -> dict[str, FeedbackRow]:
    """key → the row written under it, which may be a duplicate: its ``body_digest`` is that of the key's own body."""
    if not keys:
        return {}
    found = await session.scalars(select(FeedbackRow).where(FeedbackRow.idempotency_key.in_(keys)))
    return {row.idempotency_key: row for row in found if row.idempotency_key is not None}


# Built once: putting it together costs as much as running it. Not pairs, which SQLite looks for in the whole table.
_CHOSEN = and_(
    InteractionRow.completion_id.in_(bindparam("completion_ids", expanding=True)), InteractionRow.choice.in_(bindparam("choices", expanding=True))
)
_TARGETS = (
    select(InteractionRow, TrajectoryRow, FeedbackRow)
    .options(load_only(*WITHOUT_CONTENT))
    .outerjoin(TrajectoryRow, TrajectoryRow.interaction_id == InteractionRow.id)
    .outerjoin(FeedbackRow, and_(FeedbackRow.interaction_id == InteractionRow.id, FeedbackRow.superseded_by.is_(None)))
    .where(_CHOSEN)
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a score is given to. ``interaction`` carries no content columns; ``scores`` are the metric's and every other's, oldest first, without
    those superseded and without duplicates. ``held``: no other transaction changes them before this one ends."""

    interaction: InteractionRow
    trajectory: TrajectoryRow | None
    scores: tuple[FeedbackRow, ...]
    held: bool

    @property
    def current(self) -> dict[str, FeedbackRow]:
        return {row.metric: row for row in self.scores if row.refused_reason is None}

    def standing(self, metric: str) -> list[FeedbackRow]:
        """The scores a further one of this metric is compared with: the current one, and the newest that was refused."""
        refused = [row for row in self.scores if row.metric == metric and row.refused_reason is not None]
        counting = self.current.get(metric)
        return ([counting] if counting else []) + refused[-1:]


async def targets(session: AsyncSession, chosen: Sequence[tuple[str, int]], *, wait: bool) -> dict[tuple[str, int], Target]:
    """(completion id, choice) → it with its trajectory and scores, for those that exist.

    ``wait``: until other transactions let go of them, so that all are held. Only one at a time: two transactions that each wait for several could
    wait for each other.
    """
    # A query that waits for a lock sees the locked row as it is afterwards, but rows joined to it as they were before. So: lock, then look.
    parameters = {"completion_ids": {completion for completion, _ in chosen}, "choices": {choice for _, choice in chosen}}
    held = None if session.get_bind().dialect.name == "sqlite" else await _hold(session, parameters, wait=wait)
    found: dict[int, tuple[InteractionRow, TrajectoryRow | None, list[FeedbackRow]]] = {}
    for interaction, trajectory, score in await session.execute(_TARGETS, parameters):
        _, _, scores = found.setdefault(interaction.id, (interaction, trajectory, []))
        if score is not None:
            scores.append(score)
    return {
        (row.completion_id, row.choice): Target(
            row, trajectory, tuple(sorted(scores, key=lambda score: score.created_at)), held is None or (row.id, trajectory is not None) in held
        )
        for row, trajectory, scores in found.values()
    }


async def _hold(session: AsyncSession, parameters: Mapping[str, Any], *, wait: bool) -> set[tuple[int, bool]]:
    """(interaction id, whether its trajectory too) of what this transaction has locked. ``wait`` False: without what another one holds."""
    ids = (await session.scalars(select(InteractionRow.id).where(_CHOSEN).with_for_update(skip_locked=not wait), parameters)).all()
    theirs = select(TrajectoryRow.interaction_id).where(TrajectoryRow.interaction_id.in_(ids)).with_for_update(skip_locked=not wait)
    return {(id_, False) for id_ in ids} | {(id_, True) for id_ in await session.scalars(theirs)}


async def current(session: AsyncSession, interaction_id: int) -> dict[str, FeedbackRow]:
    """The current score of each metric of an interaction."""
    query = select(FeedbackRow).where(
        FeedbackRow.interaction_id == interaction_id, FeedbackRow.superseded_by.is_(None), FeedbackRow.refused_reason.is_(None)
    )
    return {row.metric: row for row in await session.scalars(query)}


async def supersede(session: AsyncSession, replaced: Mapping[str, str]) -> None:
    """Id of a score → id of the one that takes its place."""
    if replaced:
        await session.execute(update(FeedbackRow), [{"id": old, "superseded_by": new} for old, new in replaced.items()])


async def list_for_interactions(session: AsyncSession, interaction_ids: Sequence[int]) -> dict[int, list[FeedbackRow]]:
    """Every score given to each interaction, oldest first, superseded and refused ones included, duplicates not."""
    query = (
        select(FeedbackRow)
        .where(FeedbackRow.interaction_id.in_(interaction_ids), FeedbackRow.refused_reason.is_distinct_from(DUPLICATE))
        .order_by(FeedbackRow.created_at, FeedbackRow.id)
    )
    found: dict[int, list[FeedbackRow]] = {}
    for row in await session.scalars(query):
        found.setdefault(row.interaction_id, []).append(row)
    return found


async def _standing(session: AsyncSession, row: FeedbackRow | None) -> FeedbackRow | None:
    if row is not None and row.refused_reason == DUPLICATE:
        return await session.get(FeedbackRow, row.superseded_by)
    return row
