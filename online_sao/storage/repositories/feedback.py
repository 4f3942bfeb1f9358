"""Scores as they were given. Owns which of them is the current one. Knows nothing of what a score does to training.

The current score of an interaction and metric is the one row that is neither superseded nor refused. Rows are never edited, except that
``superseded_by`` is set once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, bindparam, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import load_only

from online_sao.errors import IdempotencyConflictError
from online_sao.storage.repositories.interactions import WITHOUT_CONTENT
from online_sao.storage.tables import FeedbackRow, InteractionRow, TrajectoryRow

DUPLICATE = "duplicate"
"""``refused_reason`` of a row that repeats the current score under an idempotency key of its own. It exists so that the key is recognised
later; the score it repeats (``superseded_by``) stands for it everywhere else."""


async def insert(session: AsyncSession, row: FeedbackRow) -> None:
    """Raises IdempotencyConflictError if another transaction has just used the same key: leave this one, and look at what it wrote."""
    session.add(row)
    try:
        await session.flush()
    except IntegrityError as error:
        raise IdempotencyConflictError(f"The idempotency key {row.idempotency_key!r} has just been used.") from error


async def by_id(session: AsyncSession, feedback_id: str) -> FeedbackRow | None:
    """Also resolves a duplicate to the score that stands for it."""
    row = await session.get(FeedbackRow, feedback_id)
    return await _standing(session, row)


async def by_idempotency_key(session: AsyncSession, key: str) -> FeedbackRow | None:
    """The row written under ``key``, which may be a duplicate: its ``body_digest`` is that of the key's own body."""
    return (await session.scalars(select(FeedbackRow).where(FeedbackRow.idempotency_key == key))).one_or_none()


# Built once: putting it together costs as much as running it.
_TARGET = (
    select(InteractionRow, TrajectoryRow, FeedbackRow)
    .options(load_only(*WITHOUT_CONTENT))
    .outerjoin(TrajectoryRow, TrajectoryRow.interaction_id == InteractionRow.id)
    .outerjoin(FeedbackRow, and_(FeedbackRow.interaction_id == InteractionRow.id, FeedbackRow.superseded_by.is_(None)))
    .where(InteractionRow.completion_id == bindparam("completion_id"), InteractionRow.choice == bindparam("choice"))
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a score is given to. ``interaction`` carries no content columns; ``scores`` are the metric's and every other's, oldest first, without
    those superseded and without duplicates."""

    interaction: InteractionRow
    trajectory: TrajectoryRow | None
    scores: tuple[FeedbackRow, ...]

    @property
    def current(self) -> dict[str, FeedbackRow]:
        return {row.metric: row for row in self.scores if row.refused_reason is None}

    def standing(self, metric: str) -> list[FeedbackRow]:
        """The scores a further one of this metric is compared with: the current one, and the newest that was refused."""
        refused = [row for row in self.scores if row.metric == metric and row.refused_reason is not None]
        counting = self.current.get(metric)
        return ([counting] if counting else []) + refused[-1:]


async def target(session: AsyncSession, completion_id: str, choice: int) -> Target | None:
    """One choice of a completion with its trajectory and scores, held until the transaction ends."""
    chosen = (InteractionRow.completion_id == completion_id, InteractionRow.choice == choice)
    if session.get_bind().dialect.name != "sqlite":
        # A query that waits for a lock sees the locked row as it is afterwards, but rows joined to it as they were before. So: lock, then look.
        await session.execute(select(InteractionRow.id).where(*chosen).with_for_update())
        await session.execute(
            select(TrajectoryRow.id).join(InteractionRow, InteractionRow.id == TrajectoryRow.interaction_id).where(*chosen).with_for_update()
        )
    found = (await session.execute(_TARGET, {"completion_id": completion_id, "choice": choice})).all()
    if not found:
        return None
    scores = sorted((row for _, _, row in found if row is not None), key=lambda row: row.created_at)
    return Target(found[0][0], found[0][1], tuple(scores))


async def current(session: AsyncSession, interaction_id: int) -> dict[str, FeedbackRow]:
    """The current score of each metric of an interaction."""
    query = select(FeedbackRow).where(
        FeedbackRow.interaction_id == interaction_id, FeedbackRow.superseded_by.is_(None), FeedbackRow.refused_reason.is_(None)
    )
    return {row.metric: row for row in await session.scalars(query)}


async def supersede(session: AsyncSession, feedback_id: str, *, by: str) -> None:
    await session.execute(update(FeedbackRow).where(FeedbackRow.id == feedback_id).values(superseded_by=by))


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
