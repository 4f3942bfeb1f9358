"""How long to wait before what has ended is started again. Knows nothing of what that is."""

from __future__ import annotations

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0


class Backoff:
    """Each wait is twice the one before, from FIRST_DELAY_SECONDS to LONGEST_DELAY_SECONDS; after ``reset`` they begin anew."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._delay = FIRST_DELAY_SECONDS

    def next(self) -> float:
        delay, self._delay = self._delay, min(LONGEST_DELAY_SECONDS, self._delay * 2)
        return delay
