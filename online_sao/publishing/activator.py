"""Puts published versions in place, in the serving process: checksums, swap, served digest, then the row. Owns that order.

A version that fails any step is marked FAILED with the reason and the one before it goes on serving. Knows nothing of how versions are made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from online_sao.errors import PolicyStoreError
from online_sao.inference.engine import InferenceEngine, SwapReport
from online_sao.models.fingerprint import matches
from online_sao.publishing import lifecycle
from online_sao.publishing.policy_store import verify
from online_sao.storage.repositories import learner, policies
from online_sao.storage.session import Database
from online_sao.storage.tables import SwapRow
from online_sao.types import PolicyVersion, VersionState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartVersion:
    """What the engine must start on. ``adapter_dir`` None: the base model."""

    policy_version: int
    adapter_dir: Path | None
    served_digest: tuple[float, ...]


class Activator:
    """``store``: the policy store's folder. ``base_digest``: models.catalog.base_digest of the model the engine serves."""

    def __init__(self, database: Database, engine: InferenceEngine, store: Path, base_digest: str) -> None:
        self._database = database
        self._engine = engine
        self._store = store
        self._base_digest = base_digest

    async def start_version(self) -> StartVersion:
        """The ACTIVE version, its files checked. One whose files are missing or damaged is marked FAILED, and the newest that served before it
        and is whole takes its place: at the latest the base model, which has no files."""
        async with self._database.read() as session:
            version = policies.to_record(await policies.active(session))
            earlier = [policies.to_record(row) for row in await policies.retired_before(session, version.version)]
        damage = ""
        for candidate in (version, *earlier):
            try:
                folder = await self._checked_folder(candidate)
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
        async with self._database.write() as session:
            await lifecycle.move_version(session, damaged.version, VersionState.FAILED, now=now, reason=reason)
            await lifecycle.move_version(session, whole.version, VersionState.ACTIVE, now=now, reason=f"version {damaged.version} is damaged")
        logger.error("serving version %d in place of the damaged version %d", whole.version, damaged.version)

    async def confirm_started(self, start: StartVersion) -> None:
        """Raises PolicyStoreError unless the started engine really serves the version it was told to."""
        _check_digest(start.served_digest, await asyncio.to_thread(self._engine.served_digest))

    async def poll(self) -> SwapReport | None:
        """Activate the oldest version that waits for it, if any does. Returns how the swap went; None: nothing waited, or it failed."""
        if not self._engine.healthy:
            return None
        async with self._database.read() as session:
            active = policies.to_record(await policies.active(session))
            row = await policies.next_to_activate(session, (await learner.get(session)).lineage_epoch, active.version)
            version = policies.to_record(row) if row is not None else None
        if version is None:
            return None
        try:
            folder = await self._checked_folder(version)
        except PolicyStoreError as error:
            await self._fail(version.version, error.message)
            return None
        if version.state is VersionState.STAGED:
            await self._move(version.version, VersionState.VERIFIED)
        try:
            report = await self._engine.swap(version.version, folder)
            _check_digest(version.served_digest, report.served_digest)
        except Exception as error:
            # Whatever it was, weights that nobody vouches for must not serve a token more than they have. A dead engine serves none, and is
            # started again on the active version.
            if self._engine.healthy:
                await self._put_back(active)
            await self._fail(version.version, str(error))
            return None
        await self._record(report)
        logger.info(
            "policy version %d is live (%d requests in flight, paused %.3f s)", version.version, report.requests_in_flight, report.pause_seconds
        )
        return report

    async def _checked_folder(self, version: PolicyVersion) -> Path | None:
        """The version's adapter folder, every checksum right; None for the base model."""
        if version.path is None:
            if version.version != 0:
                raise PolicyStoreError(f"Policy version {version.version} names no folder.")
            return None
        folder = self._store / version.path
        manifest = await asyncio.to_thread(verify, folder, base_digest=self._base_digest)
        if (manifest.version, manifest.lineage_epoch, manifest.served_digest) != (version.version, version.lineage_epoch, version.served_digest):
            raise PolicyStoreError(f"{folder} holds version {manifest.version} of another publication than the database's version {version.version}.")
        return folder

    async def _record(self, report: SwapReport) -> None:
        """One transaction: the version before is RETIRED, this one ACTIVE, the swap noted."""
        now = time.time()
        async with self._database.write() as session:
            await lifecycle.activate(session, report.policy_version, now)
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
        folder = self._store / active.path if active.path is not None else None
        _check_digest(active.served_digest, (await self._engine.swap(active.version, folder)).served_digest)

    async def _move(self, version: int, target: VersionState, reason: str | None = None) -> None:
        async with self._database.write() as session:
            await lifecycle.move_version(session, version, target, now=time.time(), reason=reason)

    async def _fail(self, version: int, reason: str) -> None:
        logger.error("policy version %d cannot be served and is set aside: %s", version, reason)
        await self._move(version, VersionState.FAILED, reason)


def _check_digest(expected: tuple[float, ...], served: tuple[float, ...]) -> None:
    # Version 0 is the base model itself: nobody published an expectation for it.
    if expected and not matches(expected, served):
        raise PolicyStoreError("The served digest differs from the published one: the weights in place are not this version's.")
