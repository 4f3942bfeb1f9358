"""Time for deadlines, on a machine whose clock may be set. Owns one rule: nothing is over before every clock says so.

The wall clock may jump (a correction, a wrong battery, a restored machine); the monotonic one does not, but stands for no date. Deadlines in the
database are wall times, so the two are joined: wall time when this began, plus the monotonic time since, never ahead of the wall clock of now.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CautiousClock:
    """``__call__`` gives Unix seconds to judge deadlines by, ``latest`` those to set them from: the earlier and the later of wall clock and steady
    time. Whichever way the wall clock is set, and set back, in between, a deadline passes late (by the jump at most), never early."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return min(self._wall(), self._steady())

    def latest(self) -> float:
        return max(self._wall(), self._steady())

    def _steady(self) -> float:
        return self._offset + self._monotonic()
