"""Writes that share a transaction: what is asked for while one runs is written together in the next, for one commit to the disk. Owns who waits,
what goes together and who is told what; knows neither tables nor what is written.

Nobody waits for company: what comes to an idle database begins at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from online_sao.errors import StorageError
from online_sao.storage.session import Database, Session

T = TypeVar("T")
R = TypeVar("R")

MOST = 50
"""Writes of one transaction. Other transactions of this process wait for so many at most."""


class MustWaitError(Exception):
    """Another transaction holds what this write needs: it is to wait for it in a transaction of its own."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T, R]):
    item: T
    answer: asyncio.Future[R]


class GroupCommit(Generic[T, R]):
    """``write(session, items, wait)`` writes them and returns for each, in order, its result or its error; without ``wait``, a MustWaitError for what
    another transaction holds. What it raises undoes all of them: each is then tried by itself, unless it is a StorageError, which answers them all.

    ``touches``: what an item depends on. Two that touch the same are never written together, and the one that came first is written first.
    ``seconds``: what a caller, and a transaction, waits for a PostgreSQL server that says nothing.
    """

    def __init__(
        self,
        database: Database,
        write: Callable[[Session, Sequence[T], bool], Awaitable[Sequence[R | Exception]]],
        touches: Callable[[T], Iterable[Hashable]],
        seconds: float,
    ) -> None:
        self._database = database
        self._write = write
        self._touches = touches
        self._seconds = seconds
        self._waiting: list[_Waiting[T, R]] = []
        self._running: asyncio.Task[None] | None = None
        self._apart: dict[asyncio.Task[None], set[Hashable]] = {}
        """What is being written by itself, beside the groups, and what it touches."""

    async def submit(self, item: T) -> R:
        """What ``write`` returned for the item, once it is committed. Raises the item's error, or StorageError.

        Cancelled before its transaction begins, it is not written; afterwards, what becomes of it is not known.
        """
        waiting: _Waiting[T, R] = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._go_on()
        async with self._database.promptly(self._seconds):
            return await waiting.answer

    def _go_on(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Group after group until nobody waits but for what is being written apart."""
        group: list[_Waiting[T, R]] = []
        try:
            while group := self._next_group():
                for waiting in await self._commit(group, wait=False):
                    task = asyncio.create_task(self._write_apart(waiting))
                    self._apart[task] = set(self._touches(waiting.item))
                    task.add_done_callback(self._written_apart)
        except BaseException:
            for waiting in [*group, *self._waiting]:
                waiting.answer.cancel()
            raise
        finally:
            self._running = None

    def _next_group(self) -> list[_Waiting[T, R]]:
        """Take the first that wait, as far as they touch nothing that one before them touches."""
        group: list[_Waiting[T, R]] = []
        later: list[_Waiting[T, R]] = []
        touched: set[Hashable] = set().union(*self._apart.values())
        for waiting in self._waiting:
            if waiting.answer.done():
                continue  # who asked has left
            touches = set(self._touches(waiting.item))
            (group if len(group) < MOST and touched.isdisjoint(touches) else later).append(waiting)
            touched |= touches
        self._waiting = later
        return group

    async def _write_apart(self, waiting: _Waiting[T, R]) -> None:
        try:
            if not waiting.answer.done():
                await self._commit([waiting], wait=True)
        finally:
            waiting.answer.cancel()  # nothing, where it is answered

    def _written_apart(self, task: asyncio.Task[None]) -> None:
        del self._apart[task]
        if self._waiting:
            self._go_on()

    async def _commit(self, group: Sequence[_Waiting[T, R]], *, wait: bool) -> list[_Waiting[T, R]]:
        """Write them in one transaction and tell each. Returns those that are to be written apart."""
        answers: Sequence[R | Exception]
        try:
            async with self._database.promptly(self._seconds), self._database.write() as session:
                answers = await self._write(session, [waiting.item for waiting in group], wait)
        except StorageError as error:
            answers = [error] * len(group)
        except Exception as error:
            if len(group) > 1:
                return list(group)  # one of them is at fault, and the others must not suffer
            answers = [error]
        apart = []
        for waiting, answer in zip(group, answers, strict=True):
            if isinstance(answer, MustWaitError) and not wait:
                apart.append(waiting)
            elif not waiting.answer.done():
                if isinstance(answer, Exception):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)
        return apart
