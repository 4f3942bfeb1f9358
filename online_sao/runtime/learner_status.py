"""What the learner process tells of itself while it works: phase and detail in its database row, and its lease kept alive.

Owns the heartbeat; knows nothing of what the phases do.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Literal

from online_sao.storage.repositories import learner, leases
from online_sao.storage.session import Database

Phase = Literal["starting", "waiting", "updating", "publishing", "paused", "alarm", "stopped"]

BEAT_SECONDS = 1.5
"""Longest time between two signs of life."""


class LearnerStatus:
    """``set`` from anywhere in the event loop; ``beat`` runs beside everything else for as long as the process lives."""

    def __init__(self, database: Database, owner: str) -> None:
        self._database = database
        self._owner = owner
        self._phase: Phase = "starting"
        self._detail: str | None = None
        self._changed = asyncio.Event()

    def set(self, phase: Phase, detail: str | None = None) -> None:
        """Shown at once."""
        if (phase, detail) != (self._phase, self._detail):
            self._phase, self._detail = phase, detail
            self._changed.set()

    async def beat(self) -> None:
        """Raises LeaseLostError when another process has become the learner."""
        renewed = time.monotonic()
        while True:
            now = time.time()
            async with self._database.write() as session:
                await learner.heartbeat(session, phase=self._phase, detail=self._detail, pid=os.getpid(), now=now)
                if time.monotonic() - renewed >= leases.RENEW_SECONDS:
                    await leases.renew(session, "learner", self._owner, now)
                    renewed = time.monotonic()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout=BEAT_SECONDS)
            except TimeoutError:
                continue
            self._changed.clear()

    async def end(self) -> None:
        """The last words: stopped, and the lease given up."""
        async with self._database.write() as session:
            await learner.heartbeat(session, phase="stopped", detail=self._detail, pid=None, now=time.time())
            await leases.release(session, "learner", self._owner)
