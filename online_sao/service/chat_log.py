"""The rows of a chat request: begun before the first byte, ended before the last. Owns where they go: to the database, or while it is away to the
spool, and from there into the database, in order, each once.

Where neither can keep a row, no answer is begun, and one under way ends in an error: nothing is answered unlogged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from online_sao.config import RewardSettings
from online_sao.errors import StorageError, StorageFullError
from online_sao.service.chat_entries import Begun, Ended, from_record
from online_sao.service.chat_records import AdmittedRequest, Outcome
from online_sao.storage.session import Database, Session
from online_sao.storage.spool import Spool, SpoolFullError

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 5
ENTRY_BYTES = 1024
TOKEN_BYTES = 64
"""What the end of a choice may take in the spool, at most in practice: an id, a logprob of 17 digits and the text, escaped."""
BATCH = 20
"""Records written in one transaction, unless one of them makes no sense."""
REFUSALS = 3
REFUSAL_SECONDS = 0.5
"""How often the oldest record may fail for what it is before it is set aside, and between two tries."""


@dataclass(frozen=True, slots=True)
class SpoolState:
    """``records`` wait for the database. ``bytes``: what they and those of their files that were written already take, of ``limit_bytes``.
    ``has_room``: whether one more answer of the default length could be kept."""

    records: int
    bytes: int
    limit_bytes: int
    has_room: bool


class ChatLog:
    """``deadline_clock`` gives the Unix seconds from which the wait for a score is counted. Without a ``spool``, what the database refuses is
    refused. ``owner``: this process, as it names itself in leases."""

    def __init__(
        self,
        database: Database,
        reward: RewardSettings,
        deadline_clock: Callable[[], float] = time.time,
        spool: Spool | None = None,
        owner: str | None = None,
    ) -> None:
        self._owner = owner
        self._database = database
        self._reward = reward
        self._deadline_clock = deadline_clock
        self._spool = spool
        self._spooling = asyncio.Lock()
        self._replaying = asyncio.Lock()
        self._away: str | None = None
        """Why the database was not reached when it was last asked: until it is, rows go to the spool at once."""
        self._spooled: set[str] = set()
        """Completions whose beginning is in the spool: their ends must come after it."""
        self._reserved: dict[str, int] = {}
        """Completion → bytes of the spool that its running choices may need for their ends."""
        self._refusals = self._singly = 0
        self._kept: list[Ended] = []
        """Ends that neither database nor spool would take: their rows stay `generating` until one does."""

    def state(self, tokens: int = 256) -> SpoolState:
        """``tokens``: the default length of an answer."""
        if self._spool is None:
            return SpoolState(0, 0, 0, has_room=False)
        spool = self._spool
        needed = 2 * ENTRY_BYTES + tokens * TOKEN_BYTES + sum(self._reserved.values())
        return SpoolState(spool.records, spool.bytes, spool.limit_bytes, has_room=spool.bytes + needed <= spool.limit_bytes)

    def waits(self, completion_id: str) -> bool:
        """Whether the database does not know this completion yet because it is still in the spool."""
        return completion_id in self._spooled

    async def open(self, request: AdmittedRequest) -> None:
        """A `generating` row for each choice. Raises StorageError where it can be kept nowhere."""
        begun = Begun.of(request, self._owner)
        self._reserved[begun.completion_id] = begun.choices * _most_bytes(request)
        try:
            if self._away is None:
                try:
                    return await self._write(begun.write)
                except StorageError as error:
                    self._notice(error)
            self._spooled.add(begun.completion_id)
            await self._append(begun)
        except BaseException:
            # Of a request that was cancelled more may be kept than is known here: it is found to have been interrupted.
            self._spooled.discard(begun.completion_id)
            del self._reserved[begun.completion_id]
            raise

    async def complete(self, request: AdmittedRequest, choice: int, outcome: Outcome) -> str | None:
        """Complete the row, make its trajectory, and count a score that came while it was generating. Returns why it cannot train, if it cannot.

        Raises StorageError where it can be kept nowhere; ``write_kept`` then tries again.
        """
        ended = Ended.of(request, choice, outcome, self._deadline_clock() + self._reward.score_deadline_seconds)
        self._release(request)
        if self._away is None and not self.waits(ended.completion_id):
            try:
                return await self._write(partial(ended.write, reward=self._reward))
            except StorageError as error:
                try:
                    self._notice(error)
                except StorageError:
                    self._kept.append(ended)
                    raise
        try:
            await self._append(ended)
        except StorageError:
            self._kept.append(ended)
            raise
        return ended.not_trainable_reason

    async def adopt(self) -> None:
        """Write what processes that are gone left in the spool. Raises StorageError while it cannot be written."""
        if self._spool is not None:
            async with self._replaying:
                found = await self._in_spool(self._spool.adopt)
            if found:
                logger.warning("%d records of chats are in the spool of a process that died, and are being written", found)
            await self.write_kept()

    async def write_kept(self) -> None:
        """Write what the database did not take when it happened, in order. Raises StorageError while it still does not."""
        async with self._replaying:
            try:
                if self._away is not None:
                    async with self._database.promptly():
                        await self._database.ping()
                    logger.warning("the database answers again")
                    self._away = None
                written = 0
                while self._spool is not None and self._spool.records:
                    written += await self._replay_oldest(self._spool)
                if written:
                    logger.warning("%d records of chats were written from the spool", written)
                while self._kept:
                    await self._write(partial(self._kept[0].replay, reward=self._reward))
                    self._kept.pop(0)
            except StorageError as error:
                self._away = self._away or (error.message if self._may_spool(error) else None)
                raise

    def close(self) -> None:
        """What is in the spool stays there for the next process."""
        if self._spool is not None:
            self._spool.close()

    async def _replay_oldest(self, spool: Spool) -> int:
        """Write the oldest records, in one transaction. Returns how many; 0: it is to be tried again. Raises StorageError."""
        records = await self._in_spool(lambda: spool.peek(1 if self._singly else BATCH))
        entries: list[Begun | Ended] = []
        try:
            entries += [from_record(record) for record in records]
            await self._write(partial(self._replay, entries))
        except StorageError:
            raise
        except Exception as error:
            if len(records) > 1:
                self._singly = len(records)
                return 0
            # A commit whose answer was lost may still be on its way and collide once. What fails again and again must not hold up the rest.
            self._refusals += 1
            if self._refusals < REFUSALS:
                await asyncio.sleep(REFUSAL_SECONDS)
                return 0
            logger.exception("a record of the spool cannot be written (%s), and is set aside", error)
            spool.mark_damaged()
        self._refusals, self._singly = 0, max(0, self._singly - 1)
        if records:
            await self._in_spool(lambda: spool.advance(len(records)))
        self._spooled.difference_update(entry.completion_id for entry in entries if isinstance(entry, Begun))
        return len(records)

    async def _replay(self, entries: Sequence[Begun | Ended], session: Session) -> None:
        for entry in entries:
            if isinstance(entry, Begun):
                await entry.replay(session)
            else:
                await entry.replay(session, self._reward)

    async def _write(self, write: Callable[[Session], Awaitable[T]]) -> T:
        async with self._database.promptly(), self._database.write() as session:
            return await write(session)

    async def _append(self, entry: Begun | Ended) -> None:
        """On disk when this returns. Raises StorageError, in the words of the database's trouble and the spool's."""
        assert self._spool is not None
        spool, why = self._spool, self._away or ""
        try:
            # What running answers need stays free: one that was begun can be ended.
            await self._in_spool(lambda: spool.append(entry.record(), spare=sum(self._reserved.values())))
        except SpoolFullError as error:
            full = f"The spool that keeps answers meanwhile (storage.spool_bytes = {spool.limit_bytes}) is full, and no more are begun."
            raise StorageError(f"{why} {full}".strip(), retry_after=RETRY_SECONDS) from error
        except OSError as error:
            raise StorageError(f"{why} The spool that would keep answers meanwhile fails too: {error}".strip(), retry_after=RETRY_SECONDS) from error

    async def _in_spool(self, function: Callable[[], T]) -> T:
        """One at a time, in a thread. To its end, also where the caller is cancelled."""

        async def run() -> T:
            async with self._spooling:
                return await asyncio.to_thread(function)

        return await asyncio.shield(asyncio.create_task(run()))

    def _notice(self, error: StorageError) -> None:
        """The database does not take rows now. Raises the error where the spool is no way out."""
        if not self._may_spool(error):
            raise error
        if self._away is None:
            logger.error("rows of chats are kept in the spool until the database takes them: %s", error.message)
        self._away = error.message

    def _may_spool(self, error: StorageError) -> bool:
        if self._spool is None or not self._spool.limit_bytes:
            return False
        # SQLite's file is on the spool's own disk: room that is missing there is missing here.
        return not (self._database.dialect == "sqlite" and isinstance(error, StorageFullError))

    def _release(self, request: AdmittedRequest) -> None:
        left = self._reserved.pop(request.completion_id, 0) - _most_bytes(request)
        if left > 0:
            self._reserved[request.completion_id] = left


def _most_bytes(request: AdmittedRequest) -> int:
    return ENTRY_BYTES + (request.sampling.max_tokens * TOKEN_BYTES if request.command.store else 0)
