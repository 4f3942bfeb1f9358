"""What the page shows, read once for all open pages. Owns how fresh it is; what is read is view.py's."""

from __future__ import annotations

import asyncio
import logging
import time

from api.dashboard.interactions import SINCE
from api.dashboard.versions import EVALUATIONS_SHOWN
from api.dashboard.view import View, read
from api.dependencies import Backend
from api.shared import Shared
from online_sao.service.alarms import AlarmStatus
from online_sao.service.evaluations import EvaluationStatus
from online_sao.service.history import ShiftStatus
from online_sao.service.interactions import Unused
from online_sao.service.status import UpdateStatus

logger = logging.getLogger(__name__)

FRESH_SECONDS = 0.9
"""Pages ask once a second; whoever asks first within this time reads for all."""
UPDATES_SHOWN = 200
ALARMS_READ = 50
SLOW_SECONDS = 5.0
"""What is counted over all rows, or seldom changes, is read less often."""


class Feed:
    """Of one running server."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._updates: tuple[UpdateStatus, ...] = ()
        self._shifts: tuple[ShiftStatus, ...] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._view: Shared[View] = Shared(self._read_view, FRESH_SECONDS)
        self._series: Shared[tuple[UpdateStatus, ...]] = Shared(self._read_updates, FRESH_SECONDS)
        self._samples: Shared[tuple[EvaluationStatus, ...]] = Shared(self._read_evaluations, 2.0)
        self._unused: Shared[tuple[Unused, ...]] = Shared(self._read_unused, SLOW_SECONDS)
        self._without_effect: Shared[tuple[Unused, ...]] = Shared(self._read_without_effect, SLOW_SECONDS)
        self._past_alarms: Shared[tuple[AlarmStatus, ...]] = Shared(self._read_past_alarms, SLOW_SECONDS)

    async def view(self) -> View:
        return await self._view.get()

    async def updates(self) -> tuple[UpdateStatus, ...]:
        """The newest UPDATES_SHOWN, oldest first."""
        return await self._series.get()

    async def evaluations(self) -> tuple[EvaluationStatus, ...]:
        """Newest version first."""
        return await self._samples.get()

    async def _read_view(self) -> View:
        """Shifts are looked for beside it and shown with the next view: the first time, that takes seconds."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_shifts())
        return await read(self._backend, self._shifts, await self._unused.get(), await self._without_effect.get(), await self._past_alarms.get())

    async def _look_for_shifts(self) -> None:
        try:
            self._shifts = await self._backend.history.shifts()
        except Exception:
            logger.exception("shifts could not be looked for")

    async def _read_unused(self) -> tuple[Unused, ...]:
        return await self._backend.interactions.unused()

    async def _read_without_effect(self) -> tuple[Unused, ...]:
        return await self._backend.interactions.scores_without_effect(time.time() - SINCE["day"])

    async def _read_past_alarms(self) -> tuple[AlarmStatus, ...]:
        return tuple(alarm for alarm in await self._backend.alarms.list(limit=ALARMS_READ) if alarm.cleared_at is not None)

    async def _read_updates(self) -> tuple[UpdateStatus, ...]:
        """Updates never change, so only new ones are read."""
        if not self._updates:
            self._updates = tuple(reversed(await self._backend.history.updates(UPDATES_SHOWN)))
        else:
            newer = await self._backend.history.updates_since(self._updates[-1].number, UPDATES_SHOWN)
            self._updates = (*self._updates, *newer)[-UPDATES_SHOWN:]
        return self._updates

    async def _read_evaluations(self) -> tuple[EvaluationStatus, ...]:
        return await self._backend.evaluations.list(limit=EVALUATIONS_SHOWN)
