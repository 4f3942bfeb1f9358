"""Alarms: raised, annotated with what was done, cleared; and the lengths of answers that one of them is about. Owns the rule that at most one of a
kind is open; knows nothing of why one is raised."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import AlarmRow, InteractionRow
from online_sao.types import InteractionStatus


async def open_alarms(session: AsyncSession) -> Sequence[AlarmRow]:
    """Those not cleared, newest first."""
    return (await session.scalars(select(AlarmRow).where(AlarmRow.cleared_at.is_(None)).order_by(AlarmRow.id.desc()))).all()


async def newest(session: AsyncSession, limit: int = 50, *, before: int | None = None, open_only: bool = False) -> Sequence[AlarmRow]:
    """The last ``limit`` alarms, newest first; ``before``: only those with a smaller id."""
    query = select(AlarmRow).order_by(AlarmRow.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AlarmRow.id < before)
    if open_only:
        query = query.where(AlarmRow.cleared_at.is_(None))
    return (await session.scalars(query)).all()


async def raise_alarm(session: AsyncSession, row: AlarmRow) -> bool:
    """False, and nothing stored, if one of its kind is open already."""
    query = select(AlarmRow.id).where(AlarmRow.kind == row.kind, AlarmRow.cleared_at.is_(None)).limit(1)
    if await session.scalar(query) is not None:
        return False
    session.add(row)
    await session.flush()
    return True


async def clear(session: AsyncSession, kind: str, now: float) -> AlarmRow | None:
    """The alarm of that kind that was open; None if none was."""
    query = select(AlarmRow).where(AlarmRow.kind == kind, AlarmRow.cleared_at.is_(None))
    row = (await session.scalars(query)).one_or_none()
    if row is not None:
        row.cleared_at = now
        await session.flush()
    return row


async def set_action(session: AsyncSession, alarm_id: int, action: str) -> None:
    """What the service did about it by itself."""
    (await session.get_one(AlarmRow, alarm_id)).action = action
    await session.flush()


async def answer_lengths(session: AsyncSession, limit: int, *, base: bool) -> Sequence[int]:
    """Lengths in tokens of the last ``limit`` completed answers of the base version, or of all versions after it."""
    query = select(InteractionRow.completion_tokens).where(
        InteractionRow.status == InteractionStatus.COMPLETED,
        InteractionRow.completion_tokens.is_not(None),
        InteractionRow.policy_version == 0 if base else InteractionRow.policy_version > 0,
    )
    return [tokens for tokens in await session.scalars(query.order_by(InteractionRow.id.desc()).limit(limit)) if tokens is not None]
