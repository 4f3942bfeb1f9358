"""Policy versions and the swaps that put them in place. Owns their rows and their lineage.

It reads states but never changes one: online_sao.publishing.lifecycle does.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Integer, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.errors import NotFoundError
from online_sao.storage.tables import PolicyVersionRow, SwapRow
from online_sao.types import PolicyVersion, VersionState


async def insert(session: AsyncSession, row: PolicyVersionRow) -> None:
    """A new version begins as STAGED."""
    row.state = VersionState.STAGED
    session.add(row)
    await session.flush()


async def get(session: AsyncSession, version: int) -> PolicyVersionRow | None:
    return await session.get(PolicyVersionRow, version)


async def active(session: AsyncSession) -> PolicyVersionRow:
    """The version that serves. Raises NotFoundError if none does, which only a damaged database can cause."""
    row = (await session.scalars(select(PolicyVersionRow).where(PolicyVersionRow.state == VersionState.ACTIVE))).one_or_none()
    if row is None:
        raise NotFoundError("No policy version is active.")
    return row


async def newest(session: AsyncSession, limit: int = 200, *, before: int | None = None) -> Sequence[PolicyVersionRow]:
    """The last ``limit`` versions (of those older than ``before``), newest first."""
    query = select(PolicyVersionRow).order_by(PolicyVersionRow.version.desc()).limit(limit)
    return (await session.scalars(query if before is None else query.where(PolicyVersionRow.version < before))).all()


async def retired_before(session: AsyncSession, version: int) -> Sequence[PolicyVersionRow]:
    """The versions below ``version`` that served once, newest first."""
    query = select(PolicyVersionRow).where(PolicyVersionRow.state == VersionState.RETIRED, PolicyVersionRow.version < version)
    return (await session.scalars(query.order_by(PolicyVersionRow.version.desc()))).all()


async def next_to_activate(session: AsyncSession, lineage_epoch: int, active_version: int) -> PolicyVersionRow | None:
    """The oldest version of the epoch that is newer than the active one and STAGED, or VERIFIED but never activated (a crash in between)."""
    query = (
        select(PolicyVersionRow)
        .where(
            PolicyVersionRow.state.in_((VersionState.STAGED, VersionState.VERIFIED)),
            PolicyVersionRow.lineage_epoch == lineage_epoch,
            PolicyVersionRow.version > active_version,
        )
        .order_by(PolicyVersionRow.version)
        .limit(1)
    )
    return (await session.scalars(query)).one_or_none()


async def max_version(session: AsyncSession) -> int:
    return (await session.scalar(select(func.max(PolicyVersionRow.version)))) or 0


async def lags(session: AsyncSession, head: int, limit: int | None = None) -> dict[int, int]:
    """version → updates between it and ``head`` along the lineage (head itself: 0), for head and its ancestors, at most ``limit`` back.

    An update that a gate refused published no version and moved no weights, so it adds no lag. Versions missing from the answer are
    further back than ``limit``, or on a lineage that was abandoned.
    """
    start = select(PolicyVersionRow.version, PolicyVersionRow.parent, literal(0, Integer).label("lag")).where(PolicyVersionRow.version == head)
    chain = start.cte("chain", recursive=True)
    step = select(PolicyVersionRow.version, PolicyVersionRow.parent, chain.c.lag + 1).join(chain, PolicyVersionRow.version == chain.c.parent)
    chain = chain.union_all(step if limit is None else step.where(chain.c.lag < limit))
    return dict((await session.execute(select(chain.c.version, chain.c.lag))).all())


async def insert_swap(session: AsyncSession, row: SwapRow) -> None:
    session.add(row)
    await session.flush()


async def swaps(session: AsyncSession, limit: int = 50) -> Sequence[SwapRow]:
    """The last ``limit`` swaps, newest first."""
    return (await session.scalars(select(SwapRow).order_by(SwapRow.id.desc()).limit(limit))).all()


def to_record(row: PolicyVersionRow) -> PolicyVersion:
    return PolicyVersion(
        version=row.version,
        parent=row.parent,
        lineage_epoch=row.lineage_epoch,
        state=VersionState(row.state),
        update=row.update_number,
        path=row.path,
        served_digest=tuple(row.served_digest),
    )
