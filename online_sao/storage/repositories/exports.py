"""Logged completions with what was said of them, oldest first and a page at a time: what an export streams. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import FeedbackRow, InteractionRow
from online_sao.types import InteractionStatus


@dataclass(frozen=True, slots=True)
class Filters:
    """``since`` ≤ created_at < ``until`` (Unix seconds). ``scored_only``: at least one score was given, counting or not."""

    since: float | None = None
    until: float | None = None
    user: str | None = None
    scored_only: bool = False


async def page(session: AsyncSession, filters: Filters, *, after_id: int, limit: int) -> list[tuple[InteractionRow, Sequence[FeedbackRow]]]:
    """The next ``limit`` ended interactions beyond ``after_id``, each with its scores, oldest first."""
    query = select(InteractionRow).where(InteractionRow.id > after_id, InteractionRow.status != InteractionStatus.GENERATING)
    if filters.since is not None:
        query = query.where(InteractionRow.created_at >= filters.since)
    if filters.until is not None:
        query = query.where(InteractionRow.created_at < filters.until)
    if filters.user is not None:
        query = query.where(InteractionRow.user == filters.user)
    if filters.scored_only:
        query = query.where(exists().where(FeedbackRow.interaction_id == InteractionRow.id))
    rows = (await session.scalars(query.order_by(InteractionRow.id).limit(limit))).all()
    scores: dict[int, list[FeedbackRow]] = {row.id: [] for row in rows}
    found = select(FeedbackRow).where(FeedbackRow.interaction_id.in_(list(scores))).order_by(FeedbackRow.created_at, FeedbackRow.id)
    for feedback in await session.scalars(found):
        scores[feedback.interaction_id].append(feedback)
    return [(row, scores[row.id]) for row in rows]
