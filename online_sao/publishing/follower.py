"""Keeps an engine on the ACTIVE version where another process decides which that is. Owns how it is followed; changes nothing in the database."""

from __future__ import annotations

import logging
import time

from online_sao.inference.engine import InferenceEngine, SwapReport
from online_sao.publishing.activator import StartVersion
from online_sao.publishing.published import PublishedVersions, check_digest
from online_sao.storage.repositories import policies
from online_sao.storage.session import Database
from online_sao.types import PolicyVersion

logger = logging.getLogger(__name__)

RETRY_SECONDS = 10.0


class Follower:
    def __init__(self, database: Database, engine: InferenceEngine, published: PublishedVersions) -> None:
        self._database = database
        self._engine = engine
        self._published = published
        self._failed: tuple[int, float] | None = None
        """A version that could not be loaded, and when (monotonic) it may be tried again."""
        self.problem: str | None = None
        """Why the engine is not on the ACTIVE version; None: it is, as far as is known."""

    async def start_version(self) -> StartVersion:
        """The ACTIVE version, its files checked. Raises PolicyStoreError: to serve another in its place is for whoever activates."""
        version = await self._active()
        return StartVersion(version.version, await self._published.checked_folder(version), version.served_digest)

    async def poll(self) -> SwapReport | None:
        """Load the ACTIVE version where the engine has another. None: it has that, or it could not be loaded and the one before serves on."""
        if not self._engine.healthy:
            return None
        version, before = await self._active(), self._engine.policy_version
        failed = self._failed if self._failed is not None and self._failed[0] == version.version else None
        if version.version == before and failed is None:  # else: on it with weights that are not its own, which could not be put back
            self.problem, self._failed = None, None
            return None
        if failed is not None and time.monotonic() < failed[1]:
            return None
        try:
            folder = await self._published.checked_folder(version)
            report = await self._engine.swap(version.version, folder)
            check_digest(version.served_digest, report.served_digest)
        except Exception as error:
            self._failed = (version.version, time.monotonic() + RETRY_SECONDS)
            self.problem = f"version {version.version} cannot be loaded: {error}"
            logger.error("%s; version %d serves on here", self.problem, before)
            if self._engine.healthy and self._engine.policy_version != before:
                await self._put_back(before)
            return None
        self.problem, self._failed = None, None
        logger.info("policy version %d is live here (paused %.3f s)", report.policy_version, report.pause_seconds)
        return report

    async def _put_back(self, number: int) -> None:
        """Weights that nobody vouches for must not serve a token more than they have."""
        async with self._database.read() as session:
            row = await policies.get(session, number)
        assert row is not None
        version = policies.to_record(row)
        folder = await self._published.checked_folder(version)
        check_digest(version.served_digest, (await self._engine.swap(number, folder)).served_digest)

    async def _active(self) -> PolicyVersion:
        async with self._database.read() as session:
            return policies.to_record(await policies.active(session))
