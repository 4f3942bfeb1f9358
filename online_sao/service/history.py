"""What has happened, as records: every update with its metrics, and the shifts of what people want with how long the policy took to follow.

Owns how much of the past is looked at. The present is status.py's; how the past is drawn is the dashboard's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from online_sao.config import RewardSettings
from online_sao.service.adaptation_lag import Shift, find_shifts
from online_sao.service.status import UpdateStatus, score_tail, update_status
from online_sao.storage.repositories import overview, score_rollups, updates
from online_sao.storage.session import Database

STREAM_SCORES = 5000
STREAM_STEP = 1000
"""Shifts are looked for in the newest 4 000 to 5 000 scores. The window's beginning moves by a thousand at a time: were it to move with each score,
what the detector finds would flicker."""


@dataclass(frozen=True, slots=True)
class ShiftStatus:
    """A shift (service/adaptation_lag.py) with ``interactions_to_recovery``: answers asked for until then, scored or not; None: not recovered."""

    began_at: float
    found_at: float
    began_at_score: int
    """Number of the first score of the fall, counted from the very first score as 1."""
    level: float
    lowest: float
    depth: float
    recovered_at: float | None
    scores_to_recovery: int | None
    interactions_to_recovery: int | None
    seconds_to_recovery: float | None
    overtaken: bool
    clear: bool


class HistoryService:
    def __init__(self, database: Database, reward: RewardSettings) -> None:
        self._database = database
        self._reward = reward
        self._shifts: tuple[object, tuple[ShiftStatus, ...]] = (None, ())

    async def updates(self, limit: int = 200, *, before: int | None = None) -> tuple[UpdateStatus, ...]:
        """The last ``limit`` updates (of those before number ``before``), newest first."""
        async with self._database.read() as session:
            return tuple(update_status(row) for row in reversed(await updates.newest(session, limit, before=before)))

    async def updates_since(self, number: int, limit: int = 200) -> tuple[UpdateStatus, ...]:
        """Those after update ``number``, oldest first."""
        async with self._database.read() as session:
            return tuple(update_status(row) for row in await updates.since(session, number, limit))

    async def shifts(self) -> tuple[ShiftStatus, ...]:
        """Falls of the score, newest first. Looked for again only when there is another score."""
        async with self._database.read() as session:
            total = (await score_rollups.overall(session, await score_tail(session))).scores
            key = (total, await overview.score_stream(session, 1))
            if key == self._shifts[0]:
                return self._shifts[1]
            skipped = max(0, math.ceil((total - STREAM_SCORES) / STREAM_STEP)) * STREAM_STEP
            stream = await overview.score_stream(session, total - skipped)
        # In a thread: a first import of river, and milliseconds of arithmetic, must not hold up answers.
        found = await asyncio.to_thread(find_shifts, stream, self._reward.score_min, self._reward.score_max)
        self._shifts = (key, await self._counted(found, skipped))
        return self._shifts[1]

    async def _counted(self, shifts: Sequence[Shift], skipped: int) -> tuple[ShiftStatus, ...]:
        statuses = []
        async with self._database.read() as session:
            for shift in reversed(shifts):
                recovered_at = shift.recovered_at if shift.clear else None
                asked = None if recovered_at is None else await overview.asked_between(session, shift.began_at, recovered_at)
                statuses.append(_shift_status(shift, skipped, asked))
        return tuple(statuses)


def _shift_status(shift: Shift, skipped: int, asked: int | None) -> ShiftStatus:
    return ShiftStatus(
        began_at=shift.began_at,
        found_at=shift.found_at,
        began_at_score=skipped + shift.began + 1,
        level=shift.level,
        lowest=shift.lowest,
        depth=shift.depth,
        recovered_at=shift.recovered_at,
        scores_to_recovery=shift.scores_to_recovery,
        interactions_to_recovery=asked,
        seconds_to_recovery=shift.seconds_to_recovery,
        overtaken=shift.overtaken,
        clear=shift.clear,
    )
