"""Probe completions: what the serving side sampled after a swap, and how far the learner's own logprobs were from it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import ProbeRow


async def insert(session: AsyncSession, rows: Sequence[ProbeRow]) -> None:
    session.add_all(rows)
    await session.flush()


async def unchecked_of_newest_version(session: AsyncSession) -> Sequence[ProbeRow]:
    """Probes of the version that was sampled last, as far as nobody has checked them yet. Others' no longer matter. (After a rollback, the version
    that was sampled last is not the one of the highest number.)"""
    newest = select(ProbeRow.policy_version).order_by(ProbeRow.id.desc()).limit(1).scalar_subquery()
    query = select(ProbeRow).where(ProbeRow.policy_version == newest, ProbeRow.checked_at.is_(None)).order_by(ProbeRow.id)
    return (await session.scalars(query)).all()


async def set_checked(session: AsyncSession, probe_id: int, *, mean_abs_difference: float, now: float) -> None:
    await session.execute(update(ProbeRow).where(ProbeRow.id == probe_id).values(mean_abs_difference=mean_abs_difference, checked_at=now))


async def by_version(session: AsyncSession, policy_version: int) -> Sequence[ProbeRow]:
    return (await session.scalars(select(ProbeRow).where(ProbeRow.policy_version == policy_version).order_by(ProbeRow.id))).all()


async def newest(session: AsyncSession, limit: int = 50) -> Sequence[ProbeRow]:
    """The last ``limit`` probes, newest first."""
    return (await session.scalars(select(ProbeRow).order_by(ProbeRow.id.desc()).limit(limit))).all()
