"""What many ask for, read once for all of them. Owns how fresh it is; knows nothing of what is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """One reading at a time, whose result serves everybody who asks while it is fresh. ``monotonic`` gives seconds."""

    def __init__(self, read: Callable[[], Awaitable[T]], fresh_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._fresh_seconds = fresh_seconds
        self._monotonic = monotonic
        self._turn = asyncio.Lock()
        self._known: tuple[float, T] | None = None

    async def get(self) -> T:
        """Raises what the reading raises; the next to ask reads again."""
        async with self._turn:
            if self._known is None or self._monotonic() - self._known[0] > self._fresh_seconds:
                started = self._monotonic()
                self._known = (started, await self._read())
            return self._known[1]
