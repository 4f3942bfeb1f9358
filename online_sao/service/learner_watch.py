"""Whether the learner is there: starting, alive, silent, ended. Owns that judgement, which the alarm, the status routes and the dashboard share.

The row keeps the last sign of life of a process that may have ended days ago. So silence is counted by a clock that never jumps, from the start of
this server at the earliest, and from the start of the learner's process where that comes later. Knows nothing of how processes are kept alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from online_sao.storage.tables import LearnerRow

LATE_SECONDS = 10.0
"""A learner gives a sign of life every 1.5 s; this long without one, something holds it up."""

Presence = Literal["starting", "alive", "silent", "ended", "stopped", "off"]
"""``starting``: no sign of life yet from the process that is expected, and it is not overdue. ``ended``: there is no process, and
one is started again by itself. ``stopped``: there is none until somebody changes what keeps it from working. ``off``: this server runs none, and
nobody else's gives a sign of life."""


@dataclass(frozen=True, slots=True)
class LearnerProcess:
    """What the one that keeps the learner's process alive knows of it. ``started_at``: when it was started last, in seconds of ``time.monotonic``;
    None: not yet. ``gave_up``: it ended because it cannot work, and is not started again by itself. ``separate``: somebody else keeps it alive, and
    ``started_at`` is when it was to be expected."""

    started_at: float | None
    running: bool
    gave_up: bool
    separate: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """``silence``: seconds without a sign of life, as far as this server can tell."""

    presence: Presence
    silence: float


class LearnerWatch:
    """Create it when the server starts. ``process``: the learner's process (None: none is expected). ``limit``: the longest
    silence in seconds that a start may take. ``clock`` gives Unix seconds, ``monotonic`` seconds that never jump."""

    def __init__(
        self,
        process: Callable[[], LearnerProcess | None] = lambda: None,
        limit: float = 60.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._limit = limit
        self._clock = clock
        self._monotonic = monotonic
        self._since = monotonic()
        self._heartbeat: float | None = None
        self._looked = False
        self._alive = False
        """Whether the newest heartbeat came while this server ran, and was no last word."""
        self._start_counted = False

    def look(self, row: LearnerRow) -> Sighting:
        """Call it every few seconds: a sign of life counts from when it is first seen."""
        process = self._process()
        self._notice_heartbeat(row)
        self._notice_start(process)
        silence = self._monotonic() - self._since
        return Sighting(self._presence(row, process, silence), silence)

    def overdue_silence(self, row: LearnerRow) -> float:
        """Seconds of silence that an alarm may be raised for: none while the learner's process waits for the engine."""
        process = self._process()
        sighting = self.look(row)
        return 0.0 if process is not None and process.started_at is None and not self._alive else sighting.silence

    def _notice_heartbeat(self, row: LearnerRow) -> None:
        if self._looked and row.heartbeat_at == self._heartbeat:
            return
        # What stands there at the first look may be hours old, or the word of a learner that was there before this server.
        fresh = self._looked or (row.heartbeat_at is not None and abs(self._clock() - row.heartbeat_at) <= LATE_SECONDS)
        self._looked, self._heartbeat = True, row.heartbeat_at
        if fresh:
            self._since, self._alive, self._start_counted = self._monotonic(), row.phase != "stopped", False

    def _notice_start(self, process: LearnerProcess | None) -> None:
        """Only the first start since a sign of life puts the count back: a process that dies again and again before it gives one is silent."""
        if process is not None and process.started_at is not None and process.started_at > self._since and not self._start_counted:
            self._since, self._alive, self._start_counted = process.started_at, False, True

    def _presence(self, row: LearnerRow, process: LearnerProcess | None, silence: float) -> Presence:
        if self._alive and silence <= LATE_SECONDS:
            return "alive"
        if process is None:
            return "silent" if self._alive else "off"
        if process.separate and not self._alive and row.phase == "stopped":
            return "off"
        if process.gave_up:
            return "stopped"
        if process.started_at is None:
            return "starting"
        if not process.running:
            return "ended"
        return "starting" if not self._alive and silence <= self._limit else "silent"
