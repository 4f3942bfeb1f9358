"""What an operator may tell the system: pausing and resuming the learner (it reads its row before it claims), rolling back, and the policy versions.

Owns the order of a rollback: files checked, then one transaction (publishing/rollback.py); the engine follows (publishing/activator.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from online_sao.errors import ConflictError, InvalidRequestError, NotFoundError, PolicyStoreError
from online_sao.publishing import rollback
from online_sao.publishing.policy_store import verify
from online_sao.service.learner_watch import LearnerWatch
from online_sao.service.policy_diff import PolicyDiff, compare
from online_sao.service.status import LearnerStatus, VersionStatus, learner_status, version_statuses
from online_sao.storable import unstorable
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import RollbackRow
from online_sao.types import VersionState

logger = logging.getLogger(__name__)

_MAX_REASON = 500

Lineage = Literal["head", "ancestor", "abandoned", "waiting"]
"""Where a version is, seen from the learner: it stands on it; came by it; left it in a rollback (or it failed before); or it has still to serve."""


@dataclass(frozen=True, slots=True)
class RollbackStatus:
    """One rollback. ``state``: the engine has still to load the version (pending), serves it since ``served_at`` (done), or cannot (failed, with the
    ``problem``; the version before goes on serving then). ``expired_trajectories``: waiting ones that held tokens of the lineage that was left."""

    lineage_epoch: int
    from_version: int
    to_version: int
    resume: bool
    reason: str | None
    expired_trajectories: int
    requested_at: float
    served_at: float | None
    problem: str | None
    state: Literal["pending", "done", "failed"]


@dataclass(frozen=True, slots=True)
class PolicyDetail:
    """One version with what an operator asks before going back to it. ``refusal``: why it cannot be activated now; None: it can.
    ``rollback``: the newest rollback to it, if there was one. ``active_version``: what the engine really serves."""

    version: VersionStatus
    lineage: Lineage
    active_version: int
    refusal: str | None
    rollback: RollbackStatus | None


async def _nobody_to_wake() -> None: ...


class ControlService:
    """``store``: the policy store's folder, for checking files before a rollback. ``clock`` returns Unix seconds. ``wake`` is called after whatever
    may let a learner that has given up work again. ``watch``: what this server has seen of the learner."""

    def __init__(
        self,
        database: Database,
        store: Path,
        clock: Callable[[], float] = time.time,
        *,
        wake: Callable[[], Awaitable[None]] = _nobody_to_wake,
        watch: LearnerWatch | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._store = store
        self._wake = wake
        self._watch = watch or LearnerWatch(clock=clock)

    async def pause_learner(self, reason: str | None = None) -> LearnerStatus:
        """No batch is claimed from now on; an update under way is finished and published. Serving and scoring go on. Pausing twice is no error."""
        reason = _checked_reason(reason) or "paused by the operator"
        async with self._database.write() as session:
            await learner.pause(session, reason)
            return learner_status(await learner.get(session), self._clock(), self._watch)

    async def resume_learner(self) -> LearnerStatus:
        """Claiming goes on. After a failed self-check the learner checks again first, and stops again if nothing has changed."""
        async with self._database.write() as session:
            await learner.resume(session)
            status = learner_status(await learner.get(session), self._clock(), self._watch)
        await self._wake()
        return status

    async def learner(self) -> LearnerStatus:
        async with self._database.read() as session:
            return learner_status(await learner.get(session), self._clock(), self._watch)

    async def rollback(self, version: int, *, resume: bool = False, reason: str | None = None) -> PolicyDetail:
        """Go back (or forward again) to a version that has served before. The learner stands on it from now on, paused unless ``resume``; the engine
        loads it within a second or so, without dropping a request, and until then the version before stays ACTIVE.

        Raises NotFoundError for an unknown version, ConflictError saying why it cannot be (failed, files removed or damaged, active already), and
        InvalidRequestError for a reason that is no short text.
        """
        reason = _checked_reason(reason)
        async with self._database.read() as session:
            path = (await rollback.require_target(session, version)).path
        if path is not None:
            try:
                await asyncio.to_thread(verify, self._store / path)
            except PolicyStoreError as error:
                raise ConflictError(
                    f"Policy version {version} cannot be activated: its files are damaged ({error.message}).", param="version"
                ) from error
        async with self._database.write() as session:
            done = await rollback.roll_back(session, version, resume=resume, reason=reason, now=self._clock())
            detail = await _detail(session, version)
        logger.warning(
            "rolled back from version %d to version %d%s: %d waiting trajectories expired; the learner %s",
            done.from_version,
            version,
            f" ({reason})" if reason else "",
            done.expired_trajectories,
            "goes on from there" if resume else "is paused",
        )
        await self._wake()
        return detail

    async def policy(self, version: int) -> PolicyDetail:
        """Raises NotFoundError."""
        async with self._database.read() as session:
            return await _detail(session, version)

    async def versions(self, *, limit: int = 50, before: int | None = None) -> tuple[VersionStatus, ...]:
        """Policy versions, newest first; ``before``: only those older than that version."""
        async with self._database.read() as session:
            return await version_statuses(session, await policies.newest(session, limit, before=before))

    async def diff(self, first: int, second: int) -> PolicyDiff:
        """Two versions side by side. Raises NotFoundError."""
        return await compare(self._database, self._store, first, second)

    async def rollbacks(self, limit: int = 20) -> tuple[RollbackStatus, ...]:
        """Newest first."""
        async with self._database.read() as session:
            return tuple(_rollback_status(row) for row in await policies.rollbacks(session, limit))


async def _detail(session: Session, version: int) -> PolicyDetail:
    try:
        await rollback.require_target(session, version)
        refusal = None
    except ConflictError as error:
        refusal = error.message
    row = await policies.get(session, version)
    if row is None:
        raise NotFoundError(f"There is no policy version {version}.", param="version")
    (status,) = await version_statuses(session, [row])
    last = next((done for done in await policies.rollbacks(session) if done.to_version == version), None)
    return PolicyDetail(
        version=status,
        lineage=await _lineage(session, status),
        active_version=(await policies.active(session)).version,
        refusal=refusal,
        rollback=_rollback_status(last) if last is not None else None,
    )


async def _lineage(session: Session, version: VersionStatus) -> Lineage:
    row = await learner.get(session)
    if version.version == row.head_version:
        return "head"
    if version.version in await policies.lags(session, row.head_version):
        return "waiting" if version.state in (VersionState.STAGED, VersionState.VERIFIED) else "ancestor"
    return "abandoned"


def _rollback_status(row: RollbackRow) -> RollbackStatus:
    return RollbackStatus(
        lineage_epoch=row.lineage_epoch,
        from_version=row.from_version,
        to_version=row.to_version,
        resume=row.resume,
        reason=row.reason,
        expired_trajectories=row.expired_trajectories,
        requested_at=row.created_at,
        served_at=row.served_at,
        problem=row.problem,
        state="failed" if row.problem is not None else "pending" if row.served_at is None else "done",
    )


def _checked_reason(reason: str | None) -> str | None:
    reason = (reason or "").strip()
    if len(reason) > _MAX_REASON or unstorable(reason) is not None:
        raise InvalidRequestError(f"reason must be at most {_MAX_REASON} characters of text.", param="reason")
    return reason or None
