"""The learner's one row: what it stands on, whether it may work, and when it last gave a sign of life."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import LearnerRow

_ID = 1


async def get(session: AsyncSession, *, lock: bool = False) -> LearnerRow:
    return await session.get_one(LearnerRow, _ID, populate_existing=True, with_for_update=lock or None)


async def heartbeat(session: AsyncSession, *, phase: str, detail: str | None, pid: int | None, now: float) -> None:
    """A sign of life, with what the learner is doing: starting, waiting, updating, publishing, paused, alarm or stopped."""
    await _set(session, phase=phase, detail=detail, pid=pid, heartbeat_at=now)


async def set_head(session: AsyncSession, *, head_version: int, head_update: int) -> None:
    """The version and update the next update starts from; part of the transaction that publishes them."""
    await _set(session, head_version=head_version, head_update=head_update)


async def begin_epoch(session: AsyncSession, lineage_epoch: int, *, head_version: int, head_update: int) -> None:
    """Part of a rollback: whatever was begun in an older epoch is discarded when it ends."""
    await _set(session, lineage_epoch=lineage_epoch, head_version=head_version, head_update=head_update)


async def pause(session: AsyncSession, reason: str) -> None:
    """No batch is claimed from now on; an update under way is finished. A later reason replaces an earlier one."""
    await _set(session, paused=True, pause_reason=reason)


async def resume(session: AsyncSession) -> None:
    await _set(session, paused=False, pause_reason=None)


async def _set(session: AsyncSession, **values: Any) -> None:
    await session.execute(update(LearnerRow).where(LearnerRow.id == _ID).values(**values))
