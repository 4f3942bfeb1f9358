"""Sums of scores, so that means over the whole past cost the same whatever the past holds. Owns the sums and their exactness.

The past before ``settled_at`` lies in ``score_rollups``, one row for each policy version and hour; what came since is added up when it is asked
for. Both are the same difference: ``change(start, end)`` is what the scores created in [start, end) add to the sums, and take from them where they
replace an earlier one. "Score" here is the default metric, and only scores that count: not superseded, not refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Function, Integer, Select, and_, case, cast, delete, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased

from online_sao.storage.tables import FeedbackRow, InteractionRow, RollupMarkRow, ScoreRollupRow
from online_sao.types import InteractionStatus

METRIC = "score"
HOUR = 3600.0

Key = tuple[int, int]
"""(policy version that wrote the answer, hour in which it was asked for: Unix seconds // 3600)."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Of a set of scores: how many, their sum and sum of squares; and how many of the scored answers were completed."""

    scores: int = 0
    total: float = 0.0
    total_squares: float = 0.0
    completed: int = 0

    @classmethod
    def of(cls, scores: float | None, total: float | None, total_squares: float | None, completed: float | None) -> Sums:
        """From sums as a database gives them: of nothing they are null, and of integers some give decimals."""
        return cls(int(scores or 0), float(total or 0), float(total_squares or 0), int(completed or 0))

    def plus(self, other: Sums, sign: int = 1) -> Sums:
        return Sums(
            self.scores + sign * other.scores,
            self.total + sign * other.total,
            self.total_squares + sign * other.total_squares,
            self.completed + sign * other.completed,
        )

    @property
    def mean(self) -> float | None:
        return self.total / self.scores if self.scores else None

    @property
    def variance(self) -> float | None:
        """Sample variance; None for fewer than two scores."""
        if self.scores < 2:
            return None
        return max(0.0, (self.total_squares - self.total**2 / self.scores) / (self.scores - 1))


@dataclass(frozen=True, slots=True)
class Mark:
    """The sums hold every score created before ``settled_at``; there were ``rows`` rows of feedback then."""

    settled_at: float
    rows: int


async def mark(session: AsyncSession) -> Mark | None:
    """None: nothing has been rolled up yet."""
    row = await session.get(RollupMarkRow, METRIC)
    return None if row is None else Mark(row.settled_at, row.rows)


async def rows_between(session: AsyncSession, start: float | None, end: float) -> int:
    """Rows of feedback created in [start, end), counting or not; None: from the beginning. If that is not what the mark says, the past has changed
    and the sums are void."""
    return (await session.scalar(select(func.count()).select_from(FeedbackRow).where(_within(FeedbackRow.created_at, start, end)))) or 0


async def oldest_generating(session: AsyncSession) -> float | None:
    """When the oldest completion still being generated was asked for: its version is not final, and it may be scored already."""
    query = select(func.min(InteractionRow.created_at)).where(InteractionRow.status == InteractionStatus.GENERATING)
    return await session.scalar(query)


async def change(session: AsyncSession, start: float | None, end: float | None) -> dict[Key, Sums]:
    """What the scores created in [start, end) change in the sums. None: from the beginning, or to now."""
    found: dict[Key, Sums] = {}
    newer, newest = aliased(FeedbackRow), aliased(FeedbackRow)
    standing: ColumnElement[bool] = FeedbackRow.superseded_by.is_(None)
    if end is not None:
        standing = or_(standing, newer.created_at >= end)
    added = (
        _sums()
        .outerjoin(newer, newer.id == FeedbackRow.superseded_by)
        .where(_within(FeedbackRow.created_at, start, end), FeedbackRow.metric == METRIC, FeedbackRow.refused_reason.is_(None), standing)
    )
    for version, hour, scores, total, squares, completed in await session.execute(added):
        found[version, hour] = Sums.of(scores, total, squares, completed)
    if start is None:
        return found
    # The interactions that got a score in the meantime are few, and lead to their earlier scores by an index. Sums in place of bare columns keep the
    # planner from beginning anywhere else: nearly every row is before ``start``.
    rescored = select(newest.interaction_id).where(_within(newest.created_at, start, end))
    replaced = (
        _sums()
        .join(newer, newer.id == FeedbackRow.superseded_by)
        .where(
            FeedbackRow.interaction_id.in_(rescored),
            _within(newer.created_at + 0.0, start, end),
            newer.refused_reason.is_(None),
            FeedbackRow.created_at + 0.0 < start,
            FeedbackRow.metric == METRIC,
            FeedbackRow.refused_reason.is_(None),
        )
    )
    for version, hour, scores, total, squares, completed in await session.execute(replaced):
        found[version, hour] = found.get((version, hour), Sums()).plus(Sums.of(scores, total, squares, completed), -1)
    return found


async def write(session: AsyncSession, changes: dict[Key, Sums], mark: Mark, *, anew: bool) -> None:
    """Add ``changes`` to the stored sums and move the mark. ``anew``: the stored sums are thrown away first."""
    if anew:
        await session.execute(delete(ScoreRollupRow))
    for (version, hour), sums in changes.items():
        row = await session.get(ScoreRollupRow, (version, hour))
        old = Sums() if row is None else Sums(row.scores, row.total, row.total_squares, row.completed)
        new = old.plus(sums)
        await session.merge(
            ScoreRollupRow(
                policy_version=version, hour=hour, scores=new.scores, total=new.total, total_squares=new.total_squares, completed=new.completed
            )
        )
    await session.merge(RollupMarkRow(metric=METRIC, settled_at=mark.settled_at, rows=mark.rows))
    await session.flush()


async def by_version(session: AsyncSession, versions: Sequence[int], tail: dict[Key, Sums]) -> dict[int, Sums]:
    """version → its sums, for those of ``versions`` that have any scores. ``tail``: the change since the mark."""
    query = (
        select(ScoreRollupRow.policy_version, *_totals()).where(ScoreRollupRow.policy_version.in_(versions)).group_by(ScoreRollupRow.policy_version)
    )
    found = {version: Sums.of(*sums) for version, *sums in await session.execute(query)}
    for (version, _), sums in tail.items():
        if version in versions:
            found[version] = found.get(version, Sums()).plus(sums)
    return {version: sums for version, sums in found.items() if sums.scores}


async def overall(session: AsyncSession, tail: dict[Key, Sums], since_hour: int | None = None) -> Sums:
    """The sums of all scores, or of those whose answer was asked for in ``since_hour`` or later."""
    query = select(*_totals())
    if since_hour is not None:
        query = query.where(ScoreRollupRow.hour >= since_hour)
    scores, total, squares, completed = (await session.execute(query)).one()
    sums = Sums.of(scores, total, squares, completed)
    return _add(sums, (value for (_, hour), value in tail.items() if since_hour is None or hour >= since_hour))


def _add(sums: Sums, others: Iterable[Sums]) -> Sums:
    for other in others:
        sums = sums.plus(other)
    return sums


def _totals() -> tuple[Function[Any], Function[Any], Function[Any], Function[Any]]:
    columns = (ScoreRollupRow.scores, ScoreRollupRow.total, ScoreRollupRow.total_squares, ScoreRollupRow.completed)
    scores, total, squares, completed = map(func.sum, columns)
    return scores, total, squares, completed


def _sums() -> Select[int, int, int, float, float, int]:
    # round(x − ½) and not floor(x): SQLite may be built without the latter, and casts cut on one database and round on the other.
    hour = cast(func.round(InteractionRow.created_at / HOUR - 0.5), Integer)
    return (
        select(
            InteractionRow.policy_version,
            hour,
            func.count(),
            func.sum(FeedbackRow.value),
            func.sum(FeedbackRow.value * FeedbackRow.value),
            func.count(case((InteractionRow.status == InteractionStatus.COMPLETED, 1))),
        )
        .select_from(FeedbackRow)
        .join(InteractionRow, InteractionRow.id == FeedbackRow.interaction_id)
        .group_by(InteractionRow.policy_version, hour)
    )


def _within(column: InstrumentedAttribute[float] | ColumnElement[float], start: float | None, end: float | None) -> ColumnElement[bool]:
    bounds = [column >= start] if start is not None else []
    bounds += [column < end] if end is not None else []
    return and_(True, *bounds)
