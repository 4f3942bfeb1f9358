"""The InferenceEngine contract over several engines, each in a process of its own. Owns which replica answers, what becomes of the requests of one
that dies, its replacement, and swaps that go through the replicas one after the other.

A replica is met through a small protocol (replica.py); where it runs and how it is reached is its source's business. Every replica admitted has been
verified: its served digest is that of the others, after its start and after every swap. Knows nothing of Ray, chat, storage or how versions come
about."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from online_sao.errors import EngineError, OnlineSAOError, ReplicaLostError
from online_sao.inference.engine import FP32_LOGPROB_TOLERANCE, EngineLoad, EngineRequest, ReplicaStatus, SwapReport, TokenDelta
from online_sao.inference.replica import Replica, ReplicaSource
from online_sao.models.fingerprint import ServedDigest

logger = logging.getLogger(__name__)

LONGEST_DELAY_SECONDS = 60.0
"""Between two attempts to start a replica that does not come up; the first wait is a second."""


@dataclass(slots=True)
class _Slot:
    """The place of one replica, whoever fills it. ``replica`` None: none serves. ``failures``: starts that failed since one last served."""

    number: int
    first_try: asyncio.Future[Exception | None]
    replica: Replica | None = None
    version: int = 0
    running: int = 0
    failures: int = 0
    problem: str | None = None
    keeper: asyncio.Task[None] | None = field(default=None, repr=False)


class EnginePool:
    """``count`` replicas with ``places`` completions each. Use from one event loop. It is healthy while one replica serves; a replica that dies is
    replaced by itself."""

    def __init__(self, source: ReplicaSource, count: int, places: int) -> None:
        self._source = source
        self._count = count
        self._places = places
        self._slots: list[_Slot] = []
        self._target: tuple[int, Path | None] = (0, None)
        self._digest: ServedDigest | None = None
        self._swaps = 0
        self._open = False
        self._changing = asyncio.Lock()
        # One queue for all: nobody waits for one replica while another has a place.
        self._queue: deque[asyncio.Future[tuple[_Slot, Replica]]] = deque()

    @property
    def policy_version(self) -> int:
        """The version every replica serves. While a swap goes through them, those it has reached are ahead of it."""
        return self._target[0]

    @property
    def healthy(self) -> bool:
        return self._open and any(slot.replica is not None for slot in self._slots)

    @property
    def recovering(self) -> bool:
        """Not once each replica has failed to come back: then what they were to be started on, or with, may be at fault."""
        return self._open and self._source.problem is None and any(slot.failures == 0 for slot in self._slots)

    @property
    def max_top_logprobs(self) -> int:
        return min((replica.max_top_logprobs for _, replica in self._serving()), default=0)

    @property
    def logprob_tolerance(self) -> float:
        return max((replica.logprob_tolerance for _, replica in self._serving()), default=FP32_LOGPROB_TOLERANCE)

    @property
    def serves_pinned(self) -> bool:
        """Known once one serves: they are built from the same settings."""
        return any(replica.serves_pinned for _, replica in self._serving())

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return tuple(
            ReplicaStatus(slot.number, slot.replica.place, True, slot.version, slot.running)
            if slot.replica is not None
            else ReplicaStatus(slot.number, "", False, None, 0, slot.problem)
            for slot in self._slots
        )

    def load(self) -> EngineLoad:
        return EngineLoad(running=sum(slot.running for slot in self._slots), waiting=sum(not granted.done() for granted in self._queue))

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Returns when the first replica serves; the others follow. Raises what the first one failed with if none comes up."""
        if self._open:
            raise EngineError("The engine is already started.")
        await self._source.open()
        self._open, self._digest, self._target = True, None, (policy_version, adapter_dir)
        loop = asyncio.get_running_loop()
        self._slots = [_Slot(number, loop.create_future()) for number in range(self._count)]
        for slot in self._slots:
            slot.keeper = asyncio.create_task(self._keep(slot), name=f"engine replica {slot.number}")
        try:
            error = await self._first_to_serve()
        except BaseException:
            await self.stop()
            raise
        if error is not None:
            await self.stop()
            raise error

    async def stop(self) -> None:
        """Ends within seconds; requests in flight get EngineError. No process is left."""
        was_open, self._open = self._open, False
        slots, self._slots = self._slots, []
        self._grant()
        for slot in slots:
            if slot.keeper is not None:
                slot.keeper.cancel()
        await asyncio.gather(*(slot.keeper for slot in slots if slot.keeper is not None), return_exceptions=True)
        if was_open:
            await self._source.close()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """See the contract. Of a replica that dies, whoever has no token yet is answered by another; the others get ReplicaLostError."""
        begun, again = False, False
        while not begun:
            slot, replica = await self._place(first=again)
            try:
                async with aclosing(replica.generate(request)) as deltas:
                    async for delta in deltas:
                        begun = True
                        yield delta
                return
            except ReplicaLostError as error:
                self._lose(slot, replica)
                self._require_open()
                if begun:
                    raise ReplicaLostError("The engine replica that was answering has ended, and the answer with it. Ask again.") from error
                again = True
            finally:
                slot.running -= 1
                self._grant()

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        """One replica after the other, so that the rest serve meanwhile. If one refuses, or serves other weights than the others afterwards, those
        already swapped get the old weights back and its error is raised. One that dies of it is replaced, on what is in place then."""
        # A task of its own: a caller that is cancelled must not leave the replicas on two versions.
        return await asyncio.shield(asyncio.create_task(self._swap_alone(policy_version, adapter_dir)))

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        swaps = self._swaps
        while True:
            slot, replica = self._least_loaded()
            version = slot.version
            try:
                logprobs = await replica.score_text(token_ids)
            except ReplicaLostError:
                self._lose(slot, replica)
                self._require_open()
                continue
            if self._swaps != swaps or version != self.policy_version:
                raise EngineError("The text was not scored: the version was replaced meanwhile.")
            return logprobs

    async def served_digest(self) -> ServedDigest:
        """That of every replica. Raises EngineError if they do not serve the same weights."""
        async with self._changing:
            found = [(slot, await self._digest_of(slot, replica)) for slot, replica in self._serving()]
            digests = [digest for _, digest in found if digest is not None]
            if not digests:
                raise self._nobody()
            for slot, digest in found:
                if digest is not None and not digest.matches(digests[0].values):
                    raise EngineError(f"Engine replica {slot.number} serves other weights than replica {found[0][0].number}.")
            return digests[0]

    async def _swap_alone(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        async with self._changing:
            self._swaps += 1
            started = time.perf_counter()
            done: list[tuple[_Slot, Replica, SwapReport]] = []
            for slot, replica in self._serving():
                try:
                    report = await replica.swap(policy_version, adapter_dir)
                    if done and not report.served_digest.matches(done[0][2].served_digest.values):
                        done.append((slot, replica, report))
                        raise EngineError(f"After the swap, engine replica {slot.number} serves other weights than replica {done[0][0].number}.")
                except ReplicaLostError:
                    self._lose(slot, replica)
                    continue
                except Exception:
                    await self._put_back(done)
                    raise
                slot.version = policy_version
                done.append((slot, replica, report))
            if not done:
                raise self._nobody()
            self._target, self._digest = (policy_version, adapter_dir), done[0][2].served_digest
            reports = [report for _, _, report in done]
            return SwapReport(
                policy_version=policy_version,
                pause_seconds=max(report.pause_seconds for report in reports),
                total_seconds=time.perf_counter() - started,
                requests_in_flight=sum(report.requests_in_flight for report in reports),
                recomputed_tokens=sum(report.recomputed_tokens for report in reports),
                served_digest=self._digest,
            )

    async def _put_back(self, done: Sequence[tuple[_Slot, Replica, SwapReport]]) -> None:
        """The weights from before the swap, on those it had reached; one that does not take them is replaced."""
        for slot, replica, _ in done:
            try:
                report = await replica.swap(*self._target)
                slot.version = self.policy_version
                if self._digest is not None and not report.served_digest.matches(self._digest.values):
                    raise EngineError("it serves other weights than before")
            except Exception as error:
                logger.error("engine replica %d did not go back to version %d (%s) and is replaced", slot.number, self.policy_version, error)
                self._lose(slot, replica)
                await replica.stop()

    async def _keep(self, slot: _Slot) -> None:
        """A replica in the slot, and another when it has ended, for as long as the pool is open."""
        while True:
            try:
                reason = await self._fill(slot)
                slot.failures = 0
            except Exception as error:
                slot.failures += 1
                reason = error.message if isinstance(error, OnlineSAOError) else f"{type(error).__name__}: {error}"
                if not slot.first_try.done():
                    slot.first_try.set_result(error)
            delay = min(LONGEST_DELAY_SECONDS, 2.0 ** (slot.failures - 1)) if slot.failures else 0.0
            slot.problem = reason
            logger.warning("engine replica %d: %s; starting another in %.0f s", slot.number, reason, delay)
            await asyncio.sleep(delay)

    async def _fill(self, slot: _Slot) -> str:
        """Start a replica, verify and admit it; returns, when it has ended, why."""
        replica = await self._source.create(slot.number)
        try:
            target = self._target
            await replica.start(*target)
            async with self._changing:
                if self._target != target:
                    await replica.swap(*self._target)
                digest = await replica.served_digest()
                if self._digest is not None and not digest.matches(self._digest.values):
                    raise EngineError(f"it does not serve the weights that the others serve as version {self.policy_version}")
                self._digest = digest
                slot.replica, slot.version, slot.failures, slot.problem = replica, self.policy_version, 0, None
            self._grant()
            if not slot.first_try.done():
                slot.first_try.set_result(None)
            logger.info("engine replica %d serves version %d (%s)", slot.number, slot.version, replica.place)
            return await replica.ended()
        finally:
            self._lose(slot, replica)
            await replica.stop()

    async def _first_to_serve(self) -> Exception | None:
        """None once a replica serves; what the first one failed with once each has failed."""
        waiting = {slot.first_try for slot in self._slots}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(tried.result() is None for tried in done):
                return None
        return self._slots[0].first_try.result()

    async def _digest_of(self, slot: _Slot, replica: Replica) -> ServedDigest | None:
        try:
            return await replica.served_digest()
        except ReplicaLostError:
            self._lose(slot, replica)
            return None

    async def _place(self, *, first: bool) -> tuple[_Slot, Replica]:
        """A place on the replica that has the fewest taken: counted as taken, the caller gives it back. First come, first served; ``first``: who has
        waited already. Raises EngineError if none serves."""
        self._require_open()
        granted: asyncio.Future[tuple[_Slot, Replica]] = asyncio.get_running_loop().create_future()
        (self._queue.appendleft if first else self._queue.append)(granted)
        self._grant()
        try:
            return await granted
        except asyncio.CancelledError:
            # Granted and cancelled in the same turn of the loop: what was granted must not be lost.
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                granted.result()[0].running -= 1
                self._grant()
            raise

    def _grant(self) -> None:
        """Let in from the head of the queue. With no replica there, nobody is kept waiting for one."""
        while self._queue:
            granted = self._queue[0]
            if not granted.done():
                serving = self._serving()
                if serving:
                    slot, replica = min(serving, key=lambda found: found[0].running)
                    if slot.running >= self._places:
                        return
                    slot.running += 1
                    granted.set_result((slot, replica))
                else:
                    granted.set_exception(self._nobody())
            self._queue.popleft()

    def _lose(self, slot: _Slot, replica: Replica) -> None:
        """Nobody is sent to it any more. Its keeper does the rest."""
        if slot.replica is replica:
            slot.replica = None
            self._grant()

    def _serving(self) -> list[tuple[_Slot, Replica]]:
        return [(slot, slot.replica) for slot in self._slots if slot.replica is not None]

    def _least_loaded(self) -> tuple[_Slot, Replica]:
        self._require_open()
        serving = self._serving()
        if not serving:
            raise self._nobody()
        return min(serving, key=lambda found: found[0].running)

    def _require_open(self) -> None:
        if not self._open:
            raise EngineError("The engine is not started, or was stopped.")

    def _nobody(self) -> EngineError:
        if not self._open:
            return EngineError("The engine is not started, or was stopped.")
        return EngineError("No engine replica serves now; they are being started again.")
