"""The InferenceEngine contract over several engines, each in a process of its own. Owns what becomes of the requests of one that dies, its
replacement, and swaps that go through the replicas one after the other.

A replica is met through a small protocol (replica.py); where it runs and how it is reached is its source's business. Every replica admitted has been
verified: its served digest is that of the others, after its start and after every swap. Knows nothing of Ray, chat, storage or how versions come
about."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from online_sao.errors import EngineError, OnlineSAOError, ReplicaLostError
from online_sao.inference.engine import FP32_LOGPROB_TOLERANCE, EngineLoad, EngineRequest, ReplicaStatus, SwapReport, TokenDelta
from online_sao.inference.places import Places, Slot
from online_sao.inference.replica import Replica, ReplicaSource
from online_sao.models.fingerprint import ServedDigest

logger = logging.getLogger(__name__)

LONGEST_DELAY_SECONDS = 60.0
"""Between two attempts to start a replica that does not come up; the first wait is a second."""
LOST_TWICE = "Two engine replicas have ended with this request, and no third is given it: it may be what ends them."


class EnginePool:
    """``count`` replicas of ``places`` completions each. Use from one event loop. It is healthy while one replica serves; a replica that dies is
    replaced by itself."""

    def __init__(self, source: ReplicaSource, count: int, places: int) -> None:
        self._source = source
        self._count = count
        self._places = Places(places)
        self._target: tuple[int, Path | None] = (0, None)
        self._digest: ServedDigest | None = None
        self._swaps = 0
        self._open = False
        self._known = (0, FP32_LOGPROB_TOLERANCE, False)
        """What the last replica admitted can do; the next ones are built from the same settings."""
        self._changing = asyncio.Lock()
        """Of one life of the pool: whoever had it, or waits for it, in the life before holds nobody up."""

    @property
    def policy_version(self) -> int:
        """The version every replica serves. While a swap goes through them, those it has reached are ahead of it."""
        return self._target[0]

    @property
    def healthy(self) -> bool:
        return self._open and any(slot.replica is not None for slot in self._places.slots)

    @property
    def recovering(self) -> bool:
        """Not once each replica has failed to come back: then what they were to be started on, or with, may be at fault."""
        return self._open and self._source.problem is None and any(slot.failures == 0 for slot in self._places.slots)

    @property
    def max_top_logprobs(self) -> int:
        return self._known[0]

    @property
    def logprob_tolerance(self) -> float:
        return self._known[1]

    @property
    def serves_pinned(self) -> bool:
        return self._known[2]

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return tuple(
            ReplicaStatus(slot.number, slot.replica.place, True, slot.version, slot.running)
            if slot.replica is not None
            else ReplicaStatus(slot.number, "", False, None, 0, slot.problem)
            for slot in self._places.slots
        )

    def load(self) -> EngineLoad:
        return EngineLoad(running=sum(slot.running for slot in self._places.slots), waiting=self._places.waiting)

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Returns when the first replica serves; the others follow. Raises what the first one failed with if none comes up."""
        if self._open:
            raise EngineError("The engine is already started.")
        await self._source.open()
        self._open, self._digest, self._target, self._changing = True, None, (policy_version, adapter_dir), asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._places.slots = [Slot(number, loop.create_future()) for number in range(self._count)]
        for slot in self._places.slots:
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
        slots, self._places.slots = self._places.slots, []
        self._places.grant()
        for slot in slots:
            if slot.keeper is not None:
                slot.keeper.cancel()
        await asyncio.gather(*(slot.keeper for slot in slots if slot.keeper is not None), return_exceptions=True)
        if was_open:
            await self._source.close()

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """See the contract. Of a replica that dies, whoever has no token yet is answered by another, once; the others get ReplicaLostError."""
        begun, again = False, False
        while True:
            async with self._places.hold(first=again, background=request.background) as (slot, replica):
                try:
                    async with aclosing(replica.generate(request)) as deltas:
                        async for delta in deltas:
                            begun = True
                            yield delta
                    return
                except ReplicaLostError as error:
                    self._places.lose(slot, replica)
                    self._require_open()
                    if begun:
                        raise ReplicaLostError("The engine replica that was answering has ended, and the answer with it. Ask again.") from error
                    if again:
                        raise ReplicaLostError(LOST_TWICE) from error
                    again = True

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        """One replica after the other, so that the rest serve meanwhile. If one refuses, or serves other weights than the others afterwards, those
        already swapped get the old weights back and its error is raised. One that dies of it is replaced, on what is in place then."""
        # A task of its own: a caller that is cancelled must not leave the replicas on two versions.
        return await asyncio.shield(asyncio.create_task(self._swap_alone(policy_version, adapter_dir)))

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        swaps, again = self._swaps, False
        while True:
            slot, replica = self._places.emptiest()
            version = slot.version
            try:
                logprobs = await replica.score_text(token_ids)
            except ReplicaLostError as error:
                self._places.lose(slot, replica)
                self._require_open()
                if again:
                    raise ReplicaLostError(LOST_TWICE) from error
                again = True
                continue
            if self._swaps != swaps or version != self.policy_version:
                raise EngineError("The text was not scored: the version was replaced meanwhile.")
            return logprobs

    async def served_digest(self) -> ServedDigest:
        """That of every replica. Raises EngineError if they do not serve the same weights."""
        async with self._alone():
            found = [(slot, await self._digest_of(slot, replica)) for slot, replica in self._places.serving()]
            digests = [digest for _, digest in found if digest is not None]
            if not digests:
                raise self._places.nobody()
            for slot, digest in found:
                if digest is not None and not digest.matches(digests[0].values):
                    raise EngineError(f"Engine replica {slot.number} serves other weights than replica {found[0][0].number}.")
            return digests[0]

    async def _swap_alone(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        async with self._alone() as require_same:
            self._swaps += 1
            started = time.perf_counter()
            done: list[tuple[Slot, Replica, SwapReport]] = []
            for slot, replica in self._places.serving():
                try:
                    report = await replica.swap(policy_version, adapter_dir)
                    if done and not report.served_digest.matches(done[0][2].served_digest.values):
                        done.append((slot, replica, report))
                        raise EngineError(f"After the swap, engine replica {slot.number} serves other weights than replica {done[0][0].number}.")
                except ReplicaLostError:
                    self._places.lose(slot, replica)
                    continue
                except Exception:
                    await self._put_back(done)
                    raise
                slot.version = policy_version
                done.append((slot, replica, report))
            require_same()
            if not done:
                raise self._places.nobody()
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

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Callable[[], None]]:
        """Nobody else changes or compares versions meanwhile. Gives what raises EngineError once the pool was started anew."""
        changing = self._changing

        def require_same() -> None:
            if changing is not self._changing:
                raise EngineError("The engine was stopped.")

        async with changing:
            require_same()
            yield require_same

    async def _put_back(self, done: Sequence[tuple[Slot, Replica, SwapReport]]) -> None:
        """The weights from before the swap, on those it had reached; one that does not take them is replaced."""
        for slot, replica, _ in done:
            try:
                report = await replica.swap(*self._target)
                slot.version = self.policy_version
                if self._digest is not None and not report.served_digest.matches(self._digest.values):
                    raise EngineError("it serves other weights than before")
            except Exception as error:
                logger.error("engine replica %d did not go back to version %d (%s) and is replaced", slot.number, self.policy_version, error)
                self._places.lose(slot, replica)
                await replica.stop()

    async def _keep(self, slot: Slot) -> None:
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

    async def _fill(self, slot: Slot) -> str:
        """Start a replica, verify and admit it; returns, when it has ended, why."""
        replica = await self._source.create(slot.number)
        try:
            target = self._target
            await replica.start(*target)
            async with self._alone():
                if self._target != target:
                    await replica.swap(*self._target)
                digest = await replica.served_digest()
                if self._digest is not None and not digest.matches(self._digest.values):
                    raise EngineError(f"it does not serve the weights that the others serve as version {self.policy_version}")
                self._digest = digest
                slot.replica, slot.version, slot.failures, slot.problem = replica, self.policy_version, 0, None
                self._known = (replica.max_top_logprobs, replica.logprob_tolerance, replica.serves_pinned)
            self._places.grant()
            if not slot.first_try.done():
                slot.first_try.set_result(None)
            logger.info("engine replica %d serves version %d (%s)", slot.number, slot.version, replica.place)
            return await replica.ended()
        finally:
            self._places.lose(slot, replica)
            await replica.stop()

    async def _first_to_serve(self) -> Exception | None:
        """None once a replica serves; what the first one failed with once each has failed."""
        waiting = {slot.first_try for slot in self._places.slots}
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(tried.result() is None for tried in done):
                return None
        return self._places.slots[0].first_try.result()

    async def _digest_of(self, slot: Slot, replica: Replica) -> ServedDigest | None:
        try:
            return await replica.served_digest()
        except ReplicaLostError:
            self._places.lose(slot, replica)
            return None

    def _require_open(self) -> None:
        if not self._open:
            raise EngineError("The engine is not started, or was stopped.")
