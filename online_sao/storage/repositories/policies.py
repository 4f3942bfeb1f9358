"""Policy versions, the swaps that put them in place and the rollbacks between them. Owns their rows and their lineage.

It reads states but never changes one: online_sao.publishing.lifecycle does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Integer, Select, and_, bindparam, func, literal, not_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from online_sao.errors import NotFoundError
from online_sao.storage.tables import PolicyVersionRow, RollbackRow, SwapRow
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


async def served_once(session: AsyncSession) -> Sequence[PolicyVersionRow]:
    """The RETIRED versions whose files are still kept, newest first."""
    query = select(PolicyVersionRow).where(PolicyVersionRow.state == VersionState.RETIRED, PolicyVersionRow.files_removed_at.is_(None))
    return (await session.scalars(query.order_by(PolicyVersionRow.version.desc()))).all()


async def waiting(session: AsyncSession) -> Sequence[int]:
    """The versions that have been published and have never served, and are not FAILED; oldest first."""
    query = select(PolicyVersionRow.version).where(PolicyVersionRow.state.in_((VersionState.STAGED, VersionState.VERIFIED)))
    return (await session.scalars(query.order_by(PolicyVersionRow.version))).all()


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


def _settled() -> Select[tuple[bool]]:
    active = select(PolicyVersionRow).where(PolicyVersionRow.state == VersionState.ACTIVE, PolicyVersionRow.version == bindparam("serving"))
    waits = select(PolicyVersionRow).where(PolicyVersionRow.state.in_((VersionState.STAGED, VersionState.VERIFIED)))
    newest = select(func.max(RollbackRow.lineage_epoch)).scalar_subquery()
    unserved = select(RollbackRow).where(RollbackRow.lineage_epoch == newest, RollbackRow.served_at.is_(None), RollbackRow.problem.is_(None))
    return select(and_(active.exists(), not_(waits.exists()), not_(unserved.exists())))


_SETTLED = _settled()


async def is_settled(session: AsyncSession, serving: int) -> bool:
    """Whether an engine that serves this version has nothing to do: it is ACTIVE, no version waits, and no rollback is open. One statement, made
    once, for it is asked all the time; what it says No to, the functions above tell in full."""
    return bool(await session.scalar(_SETTLED, {"serving": serving}))


async def with_files(session: AsyncSession) -> Sequence[PolicyVersionRow]:
    """The versions whose files are to be there, newest first."""
    query = select(PolicyVersionRow).where(PolicyVersionRow.path.is_not(None), PolicyVersionRow.files_removed_at.is_(None))
    return (await session.scalars(query.order_by(PolicyVersionRow.version.desc()))).all()


async def mark_files_removed(session: AsyncSession, versions: Sequence[int], now: float) -> None:
    """From now on nobody may count on their files."""
    query = update(PolicyVersionRow).where(PolicyVersionRow.version.in_(versions), PolicyVersionRow.files_removed_at.is_(None))
    await session.execute(query.values(files_removed_at=now))


async def removed_folders(session: AsyncSession) -> Sequence[str]:
    """Names of the folders that should be gone from the policy store, or soon will be."""
    query = select(PolicyVersionRow.path).where(PolicyVersionRow.path.is_not(None), PolicyVersionRow.files_removed_at.is_not(None))
    return [path for path in await session.scalars(query) if path is not None]


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


async def off_lineage(session: AsyncSession, versions: Collection[int], *, head: int, lineage_epoch: int) -> set[int]:
    """Which of ``versions`` are not ``head`` or an ancestor of it: a rollback left them behind, or nobody knows them.

    ``lineage_epoch`` is the learner's: a version of that epoch is on its lineage whatever else, so that the usual question costs one small query.
    """
    wanted = set(versions)
    if not wanted:
        return set()
    current = select(PolicyVersionRow.version).where(PolicyVersionRow.version.in_(wanted), PolicyVersionRow.lineage_epoch == lineage_epoch)
    others = wanted - set(await session.scalars(current))
    return others - set(await lags(session, head)) if others else set()


async def insert_rollback(session: AsyncSession, row: RollbackRow) -> None:
    session.add(row)
    await session.flush()


async def last_rollback(session: AsyncSession) -> RollbackRow | None:
    return (await session.scalars(select(RollbackRow).order_by(RollbackRow.lineage_epoch.desc()).limit(1))).one_or_none()


async def rollbacks(session: AsyncSession, limit: int = 200) -> Sequence[RollbackRow]:
    """The last ``limit``, newest first."""
    return (await session.scalars(select(RollbackRow).order_by(RollbackRow.lineage_epoch.desc()).limit(limit))).all()


async def end_rollback(session: AsyncSession, lineage_epoch: int, *, served_at: float | None = None, problem: str | None = None) -> None:
    """How the serving side ended it: it serves that version since then, or cannot."""
    query = update(RollbackRow).where(RollbackRow.lineage_epoch == lineage_epoch)
    await session.execute(query.values(served_at=served_at, problem=problem))


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
