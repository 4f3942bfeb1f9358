"""Aggregates for the dashboard and the status route. Owns queries that read across tables; every one of them is bounded or answered from an index.

"Score" here is the default metric, and only scores that count: not superseded, not refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import FeedbackRow, InteractionRow
from online_sao.types import InteractionStatus


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """One score: feedback ``id``, when it came (Unix seconds), and the newest version that wrote the scored answer."""

    id: str
    at: float
    value: float
    policy_version: int


@dataclass(frozen=True, slots=True)
class MeanScore:
    mean: float
    count: int


def _counts(metric: str) -> ColumnElement[bool]:
    return and_(FeedbackRow.metric == metric, FeedbackRow.superseded_by.is_(None), FeedbackRow.refused_reason.is_(None))


async def recent_scores(session: AsyncSession, limit: int, metric: str = "score") -> list[ScorePoint]:
    """The last ``limit`` scores, oldest first."""
    query = (
        select(FeedbackRow.id, FeedbackRow.created_at, FeedbackRow.value, InteractionRow.policy_version)
        .join(InteractionRow, InteractionRow.id == FeedbackRow.interaction_id)
        .where(_counts(metric))
        .order_by(FeedbackRow.created_at.desc(), FeedbackRow.id.desc())
        .limit(limit)
    )
    return [ScorePoint(*row) for row in reversed((await session.execute(query)).all())]


async def mean_scores(session: AsyncSession, versions: Sequence[int], metric: str = "score") -> dict[int, MeanScore]:
    """version → mean and number of the scores given to answers it wrote, for those of ``versions`` that have any."""
    query = (
        select(InteractionRow.policy_version, func.avg(FeedbackRow.value), func.count())
        .join(FeedbackRow, FeedbackRow.interaction_id == InteractionRow.id)
        .where(InteractionRow.policy_version.in_(versions), _counts(metric))
        .group_by(InteractionRow.policy_version)
    )
    return {version: MeanScore(float(mean), count) for version, mean, count in await session.execute(query)}


async def total_scores(session: AsyncSession, metric: str = "score") -> int:
    return (await session.scalar(select(func.count()).select_from(FeedbackRow).where(_counts(metric)))) or 0


async def generating(session: AsyncSession) -> int:
    """Completions being generated now."""
    query = select(func.count()).select_from(InteractionRow).where(InteractionRow.status == InteractionStatus.GENERATING)
    return (await session.scalar(query)) or 0


async def coverage(session: AsyncSession, since: float, metric: str = "score") -> tuple[int, int]:
    """(completed answers asked for since then, how many of them have a score)."""
    completed = InteractionRow.status == InteractionStatus.COMPLETED
    query = (
        # The status is counted, not filtered: as a filter it would tempt SQLite away from the index on created_at, which rules out far more.
        select(func.count(case((completed, 1))), func.count(case((and_(completed, FeedbackRow.id.is_not(None)), 1))))
        .select_from(InteractionRow)
        # At most one score per metric and answer counts, so the join repeats no answer.
        .outerjoin(FeedbackRow, and_(FeedbackRow.interaction_id == InteractionRow.id, _counts(metric)))
        .where(InteractionRow.created_at >= since)
    )
    answers, scored = (await session.execute(query)).one()
    return answers, scored
