"""Blocking work beside the event loop, which a process can leave behind. Owns the thread; knows nothing of the work."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Background:
    """Pieces of work, one after the other, in one thread. Unlike an executor it holds no process back from ending: nobody joins its thread.

    Always the same thread: the C library keeps freed memory for each thread apart, and OpenMP a team of workers. A new thread for every update
    doubled the learner's memory.
    """

    def __init__(self, name: str = "compute") -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

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

        self._work.put(body)
        return await future

    def then(self, work: Callable[[], object]) -> None:
        """``work()`` after all that was asked before it. Nobody waits for it."""
        self._work.put(work)

    def end(self) -> None:
        """The thread ends when all that was asked of it is done. Nothing may be asked of it afterwards."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
