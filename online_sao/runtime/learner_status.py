"""What the learner process tells of itself while it works: phase and detail in its database row, and its lease kept alive.

Owns the heartbeat; knows nothing of what the phases do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Literal

from online_sao.errors import StorageError
from online_sao.storage.repositories import learner, leases
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)

Phase = Literal["starting", "pretraining", "waiting", "updating", "publishing", "paused", "alarm", "stopped"]

BEAT_SECONDS = 1.5
"""Longest time between two signs of life."""


class LearnerStatus:
    """``set`` from anywhere in the event loop; ``beat`` runs beside everything else for as long as the process lives."""

    def __init__(self, database: Database, owner: str) -> None:
        self._database = database
        self._owner = owner
        self._phase: Phase = "starting"
        self._detail: str | None = None
        self._epoch: int | None = None
        self._changed = asyncio.Event()
        self._renewed = time.monotonic()

    def set(self, phase: Phase, detail: str | None = None, lineage_epoch: int | None = None) -> None:
        """Shown at once. ``lineage_epoch``: the one that the work belongs to. Where a rollback begins another meanwhile, the work will be thrown
        away, and that is told in the place of ``detail``."""
        if (phase, detail) != (self._phase, self._detail):
            self._phase, self._detail = phase, detail
            self._changed.set()
        self._epoch = lineage_epoch

    async def beat(self) -> None:
        """Raises LeaseLostError when another process has become the learner. A disk that cannot be written silences it, and does not end it: an
        update of minutes is not thrown away for a full disk that may have room again when it is done."""
        silent = False
        while True:
            try:
                await self._tell()
                silent = False
            except StorageError as error:
                if not silent:
                    logger.error("no sign of life can be given: %s", error.message)
                silent = True
            try:
                await asyncio.wait_for(self._changed.wait(), timeout=BEAT_SECONDS)
            except TimeoutError:
                continue
            self._changed.clear()

    async def _tell(self) -> None:
        now = time.time()
        async with self._database.write() as session:
            row = await learner.get(session)
            detail = self._detail
            if self._epoch not in (None, row.lineage_epoch):
                detail = f"the update under way will be discarded: rolled back to version {row.head_version}"
            await learner.heartbeat(session, phase=self._phase, detail=detail, pid=os.getpid(), now=now)
            if time.monotonic() - self._renewed >= leases.RENEW_SECONDS:
                await leases.renew(session, "learner", self._owner, now)
                self._renewed = time.monotonic()

    async def end(self) -> None:
        """The last words: stopped, and the lease given up."""
        async with self._database.write() as session:
            await learner.heartbeat(session, phase="stopped", detail=self._detail, pid=None, now=time.time())
            await leases.release(session, "learner", self._owner)
