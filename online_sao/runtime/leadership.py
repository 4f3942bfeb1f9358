"""Which of the serving processes of a database leads, and signs of life of each. Owns when leading begins and ends; knows nothing of what leaders do.

Alone on its database (the default) a process leads from start to end, or does not start. With ``server.shared`` it leads while it holds the lease,
and follows otherwise. Whoever leads must ask ``leading`` before each piece of work: it turns false by this process's own clock when the lease may
have run out, also while the database is away and nobody can say who holds it.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from online_sao.errors import LeaseHeldError, LeaseLostError
from online_sao.storage.repositories import instances, leases
from online_sao.storage.session import Database, Session
from online_sao.storage.tables import ServingInstanceRow

logger = logging.getLogger(__name__)

SHARED_LEASE_SECONDS = 7.0
SHARED_POLL_SECONDS = 1.5
"""A leader that was killed is followed by another within the lease and one poll: well below 10 s."""


@dataclass(frozen=True, slots=True)
class Condition:
    """What a process tells of itself. ``policy_version`` None: its engine is loading. ``able``: whether it may lead."""

    policy_version: int | None
    problem: str | None
    spool_records: int
    able: bool = True


class Leadership:
    """``begin`` is awaited when this process has become the leader, ``end`` when it is none any more. ``condition`` says how it is."""

    def __init__(
        self,
        database: Database,
        owner: str,
        *,
        shared: bool,
        condition: Callable[[], Condition],
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._owner = owner
        self._shared = shared
        self._condition = condition
        self._begin = begin
        self._end = end
        self._started_at = time.time()
        self._holds = False
        self._until = 0.0
        self.seconds = SHARED_LEASE_SECONDS if shared else leases.LEASE_SECONDS
        self.poll_seconds = SHARED_POLL_SECONDS if shared else leases.RENEW_SECONDS

    @property
    def leading(self) -> bool:
        """Whether this process may do a leader's work now."""
        return self._holds and time.monotonic() < self._until

    async def require(self, session: Session) -> None:
        """Inside a transaction: nobody else becomes the leader before it ends. Raises LeaseLostError if somebody has."""
        await leases.require(session, "serving", self._owner)

    async def poll(self) -> None:
        """A sign of life, and the lease renewed, or tried for. Raises StorageError; LeaseHeldError where it must lead and another process does."""
        asked, held = time.monotonic(), self._holds
        condition = self._condition()
        async with self._database.promptly(), self._database.write() as session:
            holds = await self._renew(session, condition) if held else await self._try(session, condition)
            sign = ServingInstanceRow(
                owner=self._owner,
                leading=holds,
                policy_version=condition.policy_version,
                problem=condition.problem,
                spool_records=condition.spool_records,
                started_at=self._started_at,
                heartbeat_at=await leases.database_clock(session),
            )
            await instances.beat(session, sign)
        if holds:
            self._until = asked + self.seconds
        if holds and not held:
            self._holds = True
            logger.info("this process leads: it runs jobs, activation and the learner")
            await self._begin()
        elif held and not holds:
            await self._lost()

    async def leave(self) -> None:
        """Give up the lease and the row: another process may lead at once. Raises StorageError; they lapse then."""
        self._holds = False
        async with self._database.promptly(), self._database.write() as session:
            await leases.release(session, "serving", self._owner)
            await instances.remove(session, [self._owner])

    async def _renew(self, session: Session, condition: Condition) -> bool:
        if not condition.able and self._shared:
            await leases.release(session, "serving", self._owner)
            return False
        try:
            await leases.renew(session, "serving", self._owner, await leases.database_clock(session), self.seconds)
        except LeaseLostError:
            return False
        return True

    async def _try(self, session: Session, condition: Condition) -> bool:
        if not condition.able:
            return False
        try:
            await leases.acquire(session, "serving", self._owner, await leases.database_clock(session), self.seconds)
        except LeaseHeldError:
            if not self._shared:
                raise
            return False
        return True

    async def _lost(self) -> None:
        self._holds = False
        if self._shared:
            logger.warning("this process does not lead any more: it follows")
            await self._end()
            return
        logger.critical("The serving lease was taken by another process. Ending: two on one database would undo each other's work.")
        os.kill(os.getpid(), signal.SIGTERM)
