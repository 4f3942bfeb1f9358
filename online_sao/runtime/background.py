"""Blocking work beside the event loop, which a process can leave behind. Owns the thread; knows nothing of the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Background:
    """One piece of work at a time. Unlike asyncio.to_thread it holds no process back from ending: nobody joins its thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work()`` returns or raises. A cancelled caller stops waiting; the work goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def body() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                # The loop has ended: the process is about to, and nobody waits for this any more.
                return

        self._thread = threading.Thread(target=body, name="compute", daemon=True)
        self._thread.start()
        return await future
