"""Puts versions in place, in the serving process: checksums, swap, served digest, then the row. Owns that order, for new versions and rollbacks.

A new version that fails any step is marked FAILED with the reason. A rollback that does is ended with the problem, and the learner paused. Either
way the version before goes on serving, and stays the ACTIVE one: that is always the version the engine really has. Knows nothing of how versions are
made, nor what else a rollback changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from online_sao.errors import LeaseLostError, LifecycleError, PolicyStoreError, StorageError
from online_sao.inference.engine import InferenceEngine, SwapReport
from online_sao.publishing import lifecycle, rollback
from online_sao.publishing.published import PublishedVersions, check_digest
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import SwapRow
from online_sao.types import PolicyVersion, VersionState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartVersion:
    """What the engine must start on. ``adapter_dir`` None: the base model."""

    policy_version: int
    adapter_dir: Path | None
    served_digest: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """``version`` is to be loaded in place of ``active``. ``rollback_epoch``: the rollback that asks for it, or None for a new version."""

    active: PolicyVersion
    version: PolicyVersion
    rollback_epoch: int | None = None


class Activator:
    """``fence`` is called first in every transaction that changes what serves, and raises LeaseLostError where that is another process's business by
    now."""

    def __init__(
        self, database: Database, engine: InferenceEngine, published: PublishedVersions, fence: Callable[[Session], Awaitable[None]] | None = None
    ) -> None:
        self._fence = fence
        self._database = database
        self._engine = engine
        self._published = published

    async def start_version(self) -> StartVersion:
        """The ACTIVE version, its files checked. One whose files are missing or damaged is marked FAILED, and the newest that has served, is whole
        and was not rolled back takes its place: at the latest the base model, which has no files."""
        async with self._database.read() as session:
            version = policies.to_record(await policies.active(session))
            others = [policies.to_record(row) for row in await policies.served_once(session)]
            head = await learner.get(session)
            abandoned = await policies.off_lineage(
                session, [other.version for other in others], head=head.head_version, lineage_epoch=head.lineage_epoch
            )
        damage = ""
        for candidate in (version, *(other for other in others if other.version not in abandoned)):
            try:
                folder = await self._published.checked_folder(candidate)
            except PolicyStoreError as error:
                logger.error("policy version %d cannot be served: %s", candidate.version, error.message)
                damage = damage or error.message
                continue
            if candidate is not version:
                await self._fall_back(version, candidate, damage)
            return StartVersion(candidate.version, folder, candidate.served_digest)
        raise PolicyStoreError("No policy version can be served: not even the base model is among the versions that did before.")

    async def _fall_back(self, damaged: PolicyVersion, whole: PolicyVersion, reason: str) -> None:
        now = time.time()
        async with self._write() as session:
            await lifecycle.move_version(session, damaged.version, VersionState.FAILED, now=now, reason=reason)
            await lifecycle.move_version(session, whole.version, VersionState.ACTIVE, now=now, reason=f"version {damaged.version} is damaged")
        logger.error("serving version %d in place of the damaged version %d", whole.version, damaged.version)

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[Session]:
        async with self._database.write() as session:
            if self._fence is not None:
                await self._fence(session)
            yield session

    async def confirm_started(self, start: StartVersion) -> None:
        """Raises PolicyStoreError unless the started engine really serves the version it was told to."""
        check_digest(start.served_digest, await self._engine.served_digest())

    async def poll(self) -> SwapReport | None:
        """Load what waits for it, if anything does: the version of a rollback first, else the oldest new one. Returns how the swap went; None:
        nothing waited, or it failed."""
        if not self._engine.healthy:
            return None
        work = await self._next()
        if work is None:
            return None
        try:
            folder = await self._published.checked_folder(work.version)
        except PolicyStoreError as error:
            await self._fail(work, error.message)
            return None
        try:
            if work.version.state is VersionState.STAGED:
                await self._move(work.version.version, VersionState.VERIFIED)
        except (LifecycleError, LeaseLostError):
            return None  # a rollback has just abandoned it, or it is another process's to activate
        try:
            report = await self._engine.swap(work.version.version, folder)
            check_digest(work.version.served_digest, report.served_digest)
            await self._record(work, report)
        except Exception as error:
            # Whatever it was, weights that nobody vouches for must not serve a token more than they have. A dead engine serves none, and is
            # started again on the active version.
            try:
                if self._engine.healthy:
                    await self._put_back(work.active)
            finally:
                if isinstance(error, (LeaseLostError, StorageError)):
                    # Nothing is wrong with the version. Whether it was recorded is seen when the database answers again.
                    logger.warning("policy version %d was not activated: %s", work.version.version, error.message)
                elif isinstance(error, LifecycleError):
                    logger.info("policy version %d was abandoned while it was being loaded: %s", work.version.version, error.message)
                else:
                    await self._fail(work, str(error))
            return None
        logger.info(
            "policy version %d is live%s (%d requests in flight, paused %.3f s)",
            report.policy_version,
            " again" if work.rollback_epoch is not None else "",
            report.requests_in_flight,
            report.pause_seconds,
        )
        return report

    async def _next(self) -> _Work | None:
        async with self._database.read() as session:
            active = policies.to_record(await policies.active(session))
            last = await policies.last_rollback(session)
            if last is not None and rollback.is_open(last):
                row = await policies.get(session, last.to_version)
                return _Work(active, policies.to_record(row), last.lineage_epoch) if row is not None else None
            row = await policies.next_to_activate(session, (await learner.get(session)).lineage_epoch, active.version)
            return _Work(active, policies.to_record(row)) if row is not None else None

    async def _record(self, work: _Work, report: SwapReport) -> None:
        """One transaction: the version before is RETIRED, this one ACTIVE, the swap and the end of a rollback noted. Raises LifecycleError if the
        version was abandoned by a rollback while the engine loaded it."""
        now = time.time()
        async with self._write() as session:
            await lifecycle.activate(session, report.policy_version, now)
            if work.rollback_epoch is not None:
                await policies.end_rollback(session, work.rollback_epoch, served_at=now)
            swap = SwapRow(
                policy_version=report.policy_version,
                pause_seconds=report.pause_seconds,
                total_seconds=report.total_seconds,
                requests_in_flight=report.requests_in_flight,
                recomputed_tokens=report.recomputed_tokens,
                created_at=now,
            )
            await policies.insert_swap(session, swap)

    async def _put_back(self, active: PolicyVersion) -> None:
        report = await self._engine.swap(active.version, self._published.folder(active))
        check_digest(active.served_digest, report.served_digest)

    async def _move(self, version: int, target: VersionState, reason: str | None = None) -> None:
        async with self._write() as session:
            await lifecycle.move_version(session, version, target, now=time.time(), reason=reason)

    async def _fail(self, work: _Work, reason: str) -> None:
        version = work.version.version
        if work.rollback_epoch is None:
            logger.error("policy version %d cannot be served and is set aside: %s", version, reason)
            try:
                await self._move(version, VersionState.FAILED, reason)
            except LifecycleError:
                return  # a rollback was first
            return
        problem = f"version {version} cannot be served ({reason}); version {work.active.version} goes on serving. Roll back to another version"
        logger.critical("the rollback failed: %s. Learning is paused.", problem)
        async with self._write() as session:
            await policies.end_rollback(session, work.rollback_epoch, problem=reason)
            if (await learner.get(session, lock=True)).lineage_epoch == work.rollback_epoch:
                await learner.pause(session, f"the rollback failed: {problem}")
