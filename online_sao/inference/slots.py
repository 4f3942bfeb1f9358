"""Places in an engine: how many completions run together and how much KV cache they may need at worst. First come, first served.

Owns the count of the running and the queue of the waiting; knows nothing of models or requests. For one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """``places``: completions running together. ``pages``: KV cache pages they share. A completion is let in once a place is free and its worst case
    fits, so the cache can never run out under those inside."""

    def __init__(self, places: int, pages: int) -> None:
        self._free_places = places
        self._free_pages = pages
        self._places = places
        self._pages = pages
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        return self._places - self._free_places

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, future in self._queue)

    @property
    def pages_taken(self) -> float:
        """The part of the pages that those inside may need at worst, from 0 to 1."""
        return 1 - self._free_pages / self._pages

    @asynccontextmanager
    async def hold(self, pages: int) -> AsyncIterator[None]:
        """Wait for a place and ``pages`` pages; give them back on leaving, however that comes about."""
        await self._take(pages)
        try:
            yield
        finally:
            self._give_back(pages)

    async def _take(self, pages: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((pages, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            # Granted and cancelled in the same turn of the loop: what was granted must not be lost.
            if granted.done() and not granted.cancelled():
                self._give_back(pages)
            else:
                granted.cancel()
                self._grant()
            raise

    def _give_back(self, pages: int) -> None:
        self._free_places += 1
        self._free_pages += pages
        self._grant()

    def _grant(self) -> None:
        """Let in from the head of the queue. Nobody overtakes: a large completion is not starved by small ones."""
        while self._queue:
            pages, granted = self._queue[0]
            if granted.done():
                self._queue.popleft()
            elif self._free_places and pages <= self._free_pages:
                self._queue.popleft()
                self._free_places -= 1
                self._free_pages -= pages
                granted.set_result(None)
            else:
                return
