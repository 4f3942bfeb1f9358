"""Which replica of a pool takes a request: the one with the fewest, first come first served. Owns the places and the one queue before them; knows
nothing of how replicas come about, nor of what they serve."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from online_sao.errors import EngineError
from online_sao.inference.replica import Replica


@dataclass(slots=True)
class Slot:
    """The place of one replica, whoever fills it. ``replica`` None: none serves. ``failures``: starts that failed since one last served."""

    number: int
    first_try: asyncio.Future[Exception | None]
    replica: Replica | None = None
    version: int = 0
    running: int = 0
    failures: int = 0
    problem: str | None = None
    keeper: asyncio.Task[None] | None = field(default=None, repr=False)


class Places:
    """``each``: completions of one replica. Use from one event loop; ``grant`` after a change of ``slots``; before a start and after a stop
    there are none."""

    def __init__(self, each: int) -> None:
        self._each = each
        self.slots: list[Slot] = []
        # One queue for all: nobody waits for one replica while another has a place.
        self._queue: deque[asyncio.Future[tuple[Slot, Replica]]] = deque()

    @property
    def waiting(self) -> int:
        return sum(not granted.done() for granted in self._queue)

    def serving(self) -> list[tuple[Slot, Replica]]:
        return [(slot, slot.replica) for slot in self.slots if slot.replica is not None]

    def emptiest(self) -> tuple[Slot, Replica]:
        """Raises EngineError if none serves."""
        serving = self.serving()
        if not serving:
            raise self.nobody()
        return min(serving, key=lambda found: found[0].running)

    @asynccontextmanager
    async def hold(self, *, first: bool, background: bool) -> AsyncIterator[tuple[Slot, Replica]]:
        """``take`` and ``give_back``. ``background``: without a place of those there are; the replica has others for it. Raises EngineError if none
        serves."""
        if background:
            yield self.emptiest()
            return
        found = await self.take(first=first)
        try:
            yield found
        finally:
            self.give_back(found[0])

    async def take(self, *, first: bool) -> tuple[Slot, Replica]:
        """A place on the replica that has the fewest taken: counted as taken, the caller gives it back. First come, first served; ``first``: who has
        waited already. Raises EngineError if none serves."""
        granted: asyncio.Future[tuple[Slot, Replica]] = asyncio.get_running_loop().create_future()
        (self._queue.appendleft if first else self._queue.append)(granted)
        self.grant()
        try:
            return await granted
        except asyncio.CancelledError:
            # Granted and cancelled in the same turn of the loop: what was granted must not be lost.
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.give_back(granted.result()[0])
            raise

    def give_back(self, slot: Slot) -> None:
        slot.running -= 1
        self.grant()

    def grant(self) -> None:
        """Let in from the head of the queue. With no replica there, nobody is kept waiting for one."""
        while self._queue:
            granted = self._queue[0]
            if not granted.done():
                try:
                    slot, replica = self.emptiest()
                except EngineError as error:
                    granted.set_exception(error)
                else:
                    if slot.running >= self._each:
                        return
                    slot.running += 1
                    granted.set_result((slot, replica))
            self._queue.popleft()

    def lose(self, slot: Slot, replica: Replica) -> None:
        """Nobody is sent to it any more. Its keeper does the rest."""
        if slot.replica is replica:
            slot.replica = None
            self.grant()

    def nobody(self) -> EngineError:
        if not self.slots:
            return EngineError("The engine is not started, or was stopped.")
        return EngineError("No engine replica serves now; they are being started again.")
