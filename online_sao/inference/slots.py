"""Places in an engine: how many completions run together and how much KV cache they may need at worst. First come, first served.

Owns the count of the running and the queues of the waiting; knows nothing of models or requests. For one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

BACKGROUND_PLACES = 2
"""Beside those of users: the self-check's two prompts are sampled at once after every swap (service/probes.py), and nobody waits for them to end."""


@dataclass(slots=True)
class _Line:
    """Places of one kind, and who waits for them with how many pages."""

    places: int
    free: int
    queue: deque[tuple[int, asyncio.Future[None]]] = field(default_factory=deque)


class Slots:
    """``places``: completions of users running together; BACKGROUND_PLACES run beside them. ``pages``: KV cache pages they all share. A completion is
    let in once a place is free and its worst case fits, so the cache can never run out under those inside."""

    def __init__(self, places: int, pages: int) -> None:
        self._users = _Line(places, places)
        self._background = _Line(BACKGROUND_PLACES, BACKGROUND_PLACES)
        self._free_pages = pages
        self._pages = pages

    @property
    def running(self) -> int:
        """Completions of users that have a place; so with ``waiting``."""
        return self._users.places - self._users.free

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, future in self._users.queue)

    @property
    def pages_taken(self) -> float:
        """The part of the pages that those inside may need at worst, from 0 to 1."""
        return 1 - self._free_pages / self._pages

    @asynccontextmanager
    async def hold(self, pages: int, *, background: bool = False) -> AsyncIterator[None]:
        """Wait for a place and ``pages`` pages; give them back on leaving, however that comes about."""
        line = self._background if background else self._users
        await self._take(line, pages)
        try:
            yield
        finally:
            self._give_back(line, pages)

    async def _take(self, line: _Line, pages: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.queue.append((pages, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            # Granted and cancelled in the same turn of the loop: what was granted must not be lost.
            if granted.done() and not granted.cancelled():
                self._give_back(line, pages)
            else:
                granted.cancel()
                self._grant()
            raise

    def _give_back(self, line: _Line, pages: int) -> None:
        line.free += 1
        self._free_pages += pages
        self._grant()

    def _grant(self) -> None:
        """Let in from the head of each queue, users first. Nobody overtakes in a queue: a large completion is not starved by small ones."""
        for line in (self._users, self._background):
            while line.queue:
                pages, granted = line.queue[0]
                if granted.done():
                    line.queue.popleft()
                elif line.free and pages <= self._free_pages:
                    line.queue.popleft()
                    line.free -= 1
                    self._free_pages -= pages
                    granted.set_result(None)
                else:
                    break
