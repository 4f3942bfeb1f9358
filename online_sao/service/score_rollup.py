"""The job that rolls settled scores up. Owns when a score is settled and when the sums are made anew; the sums are storage's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from online_sao.storage.repositories import score_rollups
from online_sao.storage.repositories.score_rollups import Mark
from online_sao.storage.session import Database

logger = logging.getLogger(__name__)

SECONDS = 30.0
"""Between two runs. What is not rolled up yet is added up at every reading, so this is a matter of cost, never of correctness."""
SETTLED_SECONDS = 60.0
"""A score this old is committed: it is stamped inside its own short transaction."""


class ScoreRollup:
    """``clock`` returns Unix seconds."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def advance(self) -> None:
        """Take the scores that have settled since the last run into the sums. The sums are made anew where rows from before the mark have come or
        gone: a clock that was set back, a database restored or cleaned by hand."""
        async with self._database.read() as session:
            # An answer that is still being written may be scored already, and a swap may yet change the version it counts for.
            oldest = await score_rollups.oldest_generating(session)
            end = self._clock() - SETTLED_SECONDS if oldest is None else min(oldest, self._clock() - SETTLED_SECONDS)
            mark = await score_rollups.mark(session)
            anew = mark is None or await score_rollups.rows_between(session, None, mark.settled_at) != mark.rows
            if mark is not None and not anew and end <= mark.settled_at:
                return
            start, rows = (None, 0) if anew or mark is None else (mark.settled_at, mark.rows)
            changes = await score_rollups.change(session, start, end)
            rows += await score_rollups.rows_between(session, start, end)
        async with self._database.write() as session:
            # One process at a time leads and does this; if another takes over amid it, the mark tells.
            if await score_rollups.mark(session) == mark:
                await score_rollups.write(session, changes, Mark(end, rows), anew=anew)
