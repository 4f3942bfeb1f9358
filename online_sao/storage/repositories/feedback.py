"""Scores as they were given. Owns which of them is the current one. Knows nothing of what a score does to training.

The current score of an interaction and metric is the one row that is neither superseded nor refused. Rows are never edited, except that
``superseded_by`` is set once.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import FeedbackRow

DUPLICATE = "duplicate"
"""``refused_reason`` of a row that repeats the current score under an idempotency key of its own. It exists so that the key is recognised
later; the score it repeats (``superseded_by``) stands for it everywhere else."""


async def insert(session: AsyncSession, row: FeedbackRow) -> None:
    """Raises IntegrityError if another transaction has just used the same idempotency key."""
    session.add(row)
    await session.flush()


async def by_id(session: AsyncSession, feedback_id: str) -> FeedbackRow | None:
    """Also resolves a duplicate to the score that stands for it."""
    row = await session.get(FeedbackRow, feedback_id)
    return await _standing(session, row)


async def by_idempotency_key(session: AsyncSession, key: str) -> FeedbackRow | None:
    """The row written under ``key``, which may be a duplicate: its ``body_digest`` is that of the key's own body."""
    return (await session.scalars(select(FeedbackRow).where(FeedbackRow.idempotency_key == key))).one_or_none()


async def current(session: AsyncSession, interaction_id: int) -> dict[str, FeedbackRow]:
    """The current score of each metric of an interaction."""
    query = select(FeedbackRow).where(
        FeedbackRow.interaction_id == interaction_id, FeedbackRow.superseded_by.is_(None), FeedbackRow.refused_reason.is_(None)
    )
    return {row.metric: row for row in await session.scalars(query)}


async def standing(session: AsyncSession, interaction_id: int, metric: str) -> tuple[FeedbackRow | None, FeedbackRow | None]:
    """The current score of one metric, and the newest refused one: what a further score is compared with."""
    query = select(FeedbackRow).where(
        FeedbackRow.interaction_id == interaction_id,
        FeedbackRow.metric == metric,
        FeedbackRow.superseded_by.is_(None),
    )
    rows = sorted(await session.scalars(query), key=lambda row: row.created_at)
    counting = [row for row in rows if row.refused_reason is None]
    refused = [row for row in rows if row.refused_reason is not None]
    return counting[-1] if counting else None, refused[-1] if refused else None


async def supersede(session: AsyncSession, feedback_id: str, *, by: str) -> None:
    await session.execute(update(FeedbackRow).where(FeedbackRow.id == feedback_id).values(superseded_by=by))


async def list_for_interaction(session: AsyncSession, interaction_id: int) -> Sequence[FeedbackRow]:
    """Every score given to an interaction, oldest first, superseded and refused ones included, duplicates not."""
    return (await list_for_interactions(session, [interaction_id])).get(interaction_id, [])


async def list_for_interactions(session: AsyncSession, interaction_ids: Sequence[int]) -> dict[int, list[FeedbackRow]]:
    """The same for a page of interactions, in one query."""
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
