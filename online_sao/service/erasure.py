"""Erasing what was logged. Owns the rule that nothing erased is ever trained afterwards; counts and score values stay.

An erased interaction looks like one asked for with ``store: false``. Its texts leave the database's files too: at once where nobody reads in them,
else by ``finish``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from online_sao.errors import CompletionNotFoundError, StorageError
from online_sao.publishing import lifecycle
from online_sao.storage.repositories import instances, interactions, leases, trajectories
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import InteractionRow

ERASED = "erased"
ERASURE_SECONDS = 5.0
"""Between two calls of ``ErasureService.finish``."""
RETENTION = "erased: older than retention.interactions_days"


async def _nothing_waits() -> None: ...


class ErasureService:
    """``clock`` returns Unix seconds. ``settle`` brings what was logged elsewhere into the database, where it can be erased; it raises StorageError
    where it cannot."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time, settle: Callable[[], Awaitable[None]] = _nothing_waits) -> None:
        self._database = database
        self._clock = clock
        self._settle = settle
        self._unfinished = True
        """The files may still hold what is erased. At a start too: the process before may have ended in between."""

    async def erase_completion(self, completion_id: str) -> int:
        """Erase all choices of a completion. Returns how many. Raises CompletionNotFoundError, or StorageError where another server's spool may
        hold more of it. Erasing twice is no error."""
        await self._settle()
        async with self._database.write() as session:
            await _require_settled(session)
            rows = await interactions.by_completion(session, completion_id, lock=True)
            if not rows:
                raise CompletionNotFoundError(f"There is no completion {completion_id[:80]!r}.", param="completion_id")
            erased = await self._erase(session, rows)
        await self._finish_now()
        return erased

    async def erase_user(self, user: str) -> int:
        """Erase everything logged under ``user``. Returns how many interactions; 0 for a user who has none, or none any more. Raises
        StorageError where another server's spool may hold more."""
        await self._settle()
        async with self._database.write() as session:
            await _require_settled(session)
            erased = await self._erase(session, await interactions.by_user(session, user, lock=True))
        await self._finish_now()
        return erased

    async def erase_older(self, seconds: float, limit: int = 200) -> int:
        """Erase at most ``limit`` interactions asked for more than ``seconds`` ago, oldest first. Returns how many; 0: none is left."""
        async with self._database.write() as session:
            erased = await self._erase(session, await interactions.stored_before(session, self._clock() - seconds, limit), RETENTION)
        await self._finish_now()
        return erased

    async def finish(self) -> None:
        """Take what has been erased out of the database's files, as far as that is not done yet. To be called again from time to time."""
        if self._unfinished:
            self._unfinished = not await self._database.forget_overwritten()

    async def _finish_now(self) -> None:
        with contextlib.suppress(StorageError):  # the erasure itself is done, and ``finish`` is called again
            await self.finish()

    async def _erase(self, session: Session, rows: Sequence[InteractionRow], reason: str = ERASED) -> int:
        now = self._clock()
        self._unfinished = self._unfinished or bool(rows)
        await interactions.erase_content(session, rows, now)
        found = await trajectories.by_interactions(session, [row.id for row in rows], lock=True)
        await lifecycle.expire(session, list(found.values()), reason, now)
        return len(rows)


async def _require_settled(session: Session) -> None:
    """``settle`` is this server's own. What another writes from its spool afterwards would bring back what was erased."""
    if await instances.others_may_hold_more(session, await leases.database_clock(session)):
        raise StorageError("More may be in another server's spool: the database was away. Nothing was erased; try again.", retry_after=2)
