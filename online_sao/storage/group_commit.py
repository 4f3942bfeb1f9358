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


class NotTogetherError(Exception):
    """This write needs a transaction of its own."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T, R]):
    item: T
    answer: asyncio.Future[R]


class GroupCommit(Generic[T, R]):
    """``write`` writes several items and returns for each, in order, its result or its error; NotTogetherError puts an item into a transaction of its
    own. What it raises undoes all of them: each is then tried by itself, in order, unless it is a StorageError, which answers them all.

    ``touches``: what an item depends on. Two that touch the same are never written together, and the one that came first is written first.
    ``seconds``: what a caller, and a transaction, waits for a PostgreSQL server that says nothing.
    """

    def __init__(
        self,
        database: Database,
        write: Callable[[Session, Sequence[T]], Awaitable[Sequence[R | Exception]]],
        touches: Callable[[T], Iterable[Hashable]],
        seconds: float,
    ) -> None:
        self._database = database
        self._write = write
        self._touches = touches
        self._seconds = seconds
        self._waiting: list[_Waiting[T, R]] = []
        self._running: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """What ``write`` returned for the item, once it is committed. Raises the item's error, or StorageError.

        Cancelled before its transaction begins, it is not written; afterwards, what becomes of it is not known.
        """
        waiting: _Waiting[T, R] = _Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        async with self._database.promptly(self._seconds):
            return await waiting.answer

    async def _run(self) -> None:
        """Group after group until nobody waits."""
        group: list[_Waiting[T, R]] = []
        try:
            while group := self._next_group():
                await self._commit(group)
        finally:
            self._running = None
            for waiting in [*group, *self._waiting]:
                waiting.answer.cancel()

    def _next_group(self) -> list[_Waiting[T, R]]:
        """Take the first that wait, as far as they touch nothing that one before them touches."""
        group: list[_Waiting[T, R]] = []
        later: list[_Waiting[T, R]] = []
        touched: set[Hashable] = set()
        for waiting in self._waiting:
            if waiting.answer.done():
                continue  # who asked has left
            touches = set(self._touches(waiting.item))
            (group if len(group) < MOST and touched.isdisjoint(touches) else later).append(waiting)
            touched |= touches
        self._waiting = later
        return group

    async def _commit(self, group: Sequence[_Waiting[T, R]]) -> None:
        answers: Sequence[R | Exception]
        try:
            async with self._database.promptly(self._seconds), self._database.write() as session:
                answers = await self._write(session, [waiting.item for waiting in group])
        except StorageError as error:
            answers = [error] * len(group)
        except Exception as error:
            # One of them is at fault, or another transaction was in the way of one: the others must not suffer.
            answers = [error if len(group) == 1 else NotTogetherError()] * len(group)
        apart = []
        for waiting, answer in zip(group, answers, strict=True):
            if isinstance(answer, NotTogetherError) and len(group) > 1:
                apart.append(waiting)
            elif not waiting.answer.done():
                if isinstance(answer, Exception):
                    waiting.answer.set_exception(answer)
                else:
                    waiting.answer.set_result(answer)
        for waiting in apart:
            if not waiting.answer.done():
                await self._commit([waiting])
