"""Aggregates for the dashboard and the status route. Owns queries that read across tables; every one of them is bounded or answered from an index.

"Score" here is the default metric, and only scores that count: not superseded, not refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import FeedbackRow, InteractionRow
from online_sao.types import InteractionStatus


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """One score: feedback ``id``, when it came (Unix seconds), and the newest version that wrote the scored answer. ``delay``: seconds between the
    end of the answer and the score; None where the answer has not ended, 0 where it ended later."""

    id: str
    at: float
    value: float
    policy_version: int
    delay: float | None = None


def _counts(metric: str) -> ColumnElement[bool]:
    return and_(FeedbackRow.metric == metric, FeedbackRow.superseded_by.is_(None), FeedbackRow.refused_reason.is_(None))


async def recent_scores(session: AsyncSession, limit: int, metric: str = "score") -> list[ScorePoint]:
    """The last ``limit`` scores, oldest first."""
    query = (
        select(FeedbackRow.id, FeedbackRow.created_at, FeedbackRow.value, InteractionRow.policy_version, InteractionRow.completed_at)
        .join(InteractionRow, InteractionRow.id == FeedbackRow.interaction_id)
        .where(_counts(metric))
        .order_by(FeedbackRow.created_at.desc(), FeedbackRow.id.desc())
        .limit(limit)
    )
    return [
        ScorePoint(id_, at, value, version, None if ended is None else max(0.0, at - ended))
        for id_, at, value, version, ended in reversed((await session.execute(query)).all())
    ]


async def score_stream(session: AsyncSession, limit: int, metric: str = "score") -> list[tuple[float, float]]:
    """(when, value) of the last ``limit`` scores, oldest first; the answers are not read."""
    query = (
        select(FeedbackRow.created_at, FeedbackRow.value)
        .where(_counts(metric))
        .order_by(FeedbackRow.created_at.desc(), FeedbackRow.id.desc())
        .limit(limit)
    )
    return [(at, value) for at, value in reversed((await session.execute(query)).all())]


async def asked_between(session: AsyncSession, start: float, end: float) -> int:
    """Answers asked for from ``start`` to ``end``, whatever became of them."""
    query = select(func.count()).where(InteractionRow.created_at >= start, InteractionRow.created_at <= end)
    return (await session.scalar(query)) or 0


async def generating(session: AsyncSession) -> int:
    """Completions being generated now."""
    query = select(func.count()).select_from(InteractionRow).where(InteractionRow.status == InteractionStatus.GENERATING)
    return (await session.scalar(query)) or 0


async def completed_since(session: AsyncSession, since: float) -> int:
    """Completed answers asked for since then. Answered from an index that holds both columns."""
    completed = func.count(case((InteractionRow.status == InteractionStatus.COMPLETED, 1)))
    # The status is counted, not filtered: as a filter it would tempt SQLite away from the index on created_at, which rules out far more.
    return (await session.scalar(select(completed).where(InteractionRow.created_at >= since))) or 0
