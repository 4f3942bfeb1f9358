"""Time for deadlines, on a machine whose clock may be set. Owns one rule: nothing is over before every clock says so.

The wall clock may jump (a correction, a wrong battery, a restored machine); the monotonic one does not, but stands for no date. Deadlines in the
database are wall times, so the two are joined: wall time when this began, plus the monotonic time since, never ahead of the wall clock of now.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CautiousClock:
    """Call it for Unix seconds. After a jump forward it goes on as if nothing had happened; after one back it follows the wall clock. Either way a
    deadline set before or after the jump passes late (by the jump at most, until this process is started again), never early."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return min(self._wall(), self._offset + self._monotonic())
