"""Updates the learner made, accepted or refused by a gate. Owns their rows; knows nothing of how an update is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import UpdateRow


async def insert(session: AsyncSession, row: UpdateRow) -> None:
    """Insert and flush, so that trajectories can refer to it. Non-finite metrics are stored as null: JSON has no word for them."""
    row.metrics = _finite(row.metrics)
    row.ratio_histogram = _finite(row.ratio_histogram)
    session.add(row)
    await session.flush()


async def get(session: AsyncSession, update_number: int) -> UpdateRow | None:
    return await session.get(UpdateRow, update_number)


async def by_claim(session: AsyncSession, claim_id: str) -> UpdateRow | None:
    return (await session.scalars(select(UpdateRow).where(UpdateRow.claim_id == claim_id))).one_or_none()


async def by_versions(session: AsyncSession, versions: Sequence[int]) -> Sequence[UpdateRow]:
    """The updates that made those versions, oldest first."""
    query = select(UpdateRow).where(UpdateRow.policy_version.in_(versions)).order_by(UpdateRow.update_number)
    return (await session.scalars(query)).all()


async def latest(session: AsyncSession, *, accepted_only: bool = False) -> UpdateRow | None:
    query = select(UpdateRow).order_by(UpdateRow.update_number.desc()).limit(1)
    return (await session.scalars(query.where(UpdateRow.accepted) if accepted_only else query)).one_or_none()


async def max_update_number(session: AsyncSession) -> int:
    """The newest number given out, refused updates included; 0 when there is none."""
    return (await session.scalar(select(func.max(UpdateRow.update_number)))) or 0


async def counts(session: AsyncSession) -> tuple[int, int]:
    """How many were (accepted, refused)."""
    total, accepted = (await session.execute(select(func.count(), func.count().filter(UpdateRow.accepted)))).one()
    return accepted, total - accepted


async def since(session: AsyncSession, update_number: int, limit: int = 200) -> Sequence[UpdateRow]:
    """Updates after ``update_number``, oldest first."""
    query = select(UpdateRow).where(UpdateRow.update_number > update_number).order_by(UpdateRow.update_number).limit(limit)
    return (await session.scalars(query)).all()


async def newest(session: AsyncSession, limit: int = 200, *, before: int | None = None) -> Sequence[UpdateRow]:
    """The last ``limit`` updates (of those with a smaller number than ``before``), oldest first: a series to draw."""
    query = select(UpdateRow).order_by(UpdateRow.update_number.desc()).limit(limit)
    rows = (await session.scalars(query if before is None else query.where(UpdateRow.update_number < before))).all()
    return rows[::-1]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
