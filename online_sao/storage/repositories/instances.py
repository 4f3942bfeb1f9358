"""The serving processes of this database, as they say of themselves. Owns their rows; who of them leads is a lease."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.storage.tables import ServingInstanceRow

SILENT_SECONDS = 3.0
"""Without a sign of life for longer than that, a process has not been in touch with the database."""


async def beat(session: AsyncSession, sign: ServingInstanceRow) -> None:
    """A sign of life: the row of ``sign.owner`` becomes this one."""
    await session.merge(sign)
    await session.flush()


async def all_rows(session: AsyncSession) -> Sequence[ServingInstanceRow]:
    """The longest serving first."""
    return (await session.scalars(select(ServingInstanceRow).order_by(ServingInstanceRow.started_at, ServingInstanceRow.owner))).all()


async def others_may_hold_more(session: AsyncSession, now: float) -> bool:
    """Whether one of several processes says that it has rows still to write, or has said nothing for so long that it may have. ``now``: by the
    database's clock."""
    rows = await all_rows(session)
    return len(rows) > 1 and any(row.spool_records or row.heartbeat_at < now - SILENT_SECONDS for row in rows)


async def remove(session: AsyncSession, owners: Sequence[str]) -> None:
    await session.execute(delete(ServingInstanceRow).where(ServingInstanceRow.owner.in_(owners)))
