"""Engine replicas as Ray actors: what inference/pool.py needs of each. Owns how an actor is placed, called, watched and ended. Never reaches the
learner.

One task a replica fetches what all its requests produced (host.py). It is also how a death is noticed: the call that waits in a process that ends
fails at once, and a process that is silent is given up and killed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from online_sao.config import ClusterSettings, Settings
from online_sao.errors import EngineError, OnlineSAOError, ReplicaLostError
from online_sao.inference.engine import EngineRequest, SwapReport, TokenDelta
from online_sao.inference.pool import EnginePool
from online_sao.models.fingerprint import ServedDigest
from online_sao.runtime.cluster.adapter_store import AdapterStore, describe
from online_sao.runtime.cluster.host import AdapterAbsentError, EngineHost, Fetched, HostSpec, Started
from online_sao.runtime.cluster.session import Session

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 30.0
"""A replica that answers nothing for so long, though it owes a sign of life every second, is given up."""
WATCH_SECONDS = 1.0
"""Between two looks, while a replica starts, at whether its cluster is there."""
PLACEMENT_SECONDS = 30.0
"""After so long without a place in the cluster, and again and again, it is said."""
LEFT = "the Ray cluster it was in was left"
NAME_PREFIX = "engine-"
"""Of the actors' names in the namespace: who joins it finds them by that."""


def build_pool(settings: Settings, session: Session) -> EnginePool:
    """The pool that the settings ask for. ``cluster.replicas`` is above 0."""
    cluster, engine = settings.cluster, settings.engine
    if cluster.ray_address is None and engine.threads == 0:
        engine = engine.model_copy(update={"threads": max(1, (os.cpu_count() or 1) // cluster.replicas)})
    policy = settings.policy.model_copy(update={"model": settings.policy.model_from_anywhere()})
    return EnginePool(RaySource(session, cluster, HostSpec(engine, policy)), cluster.replicas, engine.max_concurrent)


class RaySource:
    """A ReplicaSource: actors in the cluster that the settings name."""

    def __init__(self, session: Session, settings: ClusterSettings, spec: HostSpec) -> None:
        self._session = session
        self._settings = settings
        self._spec = spec
        self._store = AdapterStore(self._session)

    @property
    def problem(self) -> str | None:
        return self._session.problem

    async def open(self) -> None:
        await self._session.open(self)

    async def create(self, number: int) -> RayReplica:
        if self._session.problem is not None:
            raise EngineError(f"It cannot be started: {self._session.problem}.")
        generation = self._session.generation
        actor = await self._session.call(lambda: self._actor(number))
        return RayReplica(actor, number, self._session, generation, self._store, self._settings)

    async def close(self) -> None:
        self._store.forget()
        await self._session.close(self)

    def _actor(self, number: int) -> Any:
        import ray

        settings = self._settings
        return (
            ray.remote(EngineHost)
            .options(
                # The one before may not be quite gone: a name of its own.
                name=f"{NAME_PREFIX}{number}-{uuid.uuid4().hex[:8]}",
                num_cpus=settings.replica_cpus,
                num_gpus=settings.replica_gpus,
                # After a restart by Ray nobody would have started or verified its engine.
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=10_000,
                scheduling_strategy="SPREAD",
            )
            .remote(self._spec)
        )


class RayReplica:
    """A Replica: one actor. ``start`` once."""

    def __init__(self, actor: Any, number: int, session: Session, generation: int, store: AdapterStore, settings: ClusterSettings) -> None:
        """``generation``: the session's, when the actor was placed."""
        self._actor = actor
        self._number = number
        self._session = session
        self._generation = generation
        self._store = store
        self._settings = settings
        self._requests: dict[int, asyncio.Queue[TokenDelta | OnlineSAOError]] = {}
        self._keys = itertools.count()
        self._why: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._fetching: asyncio.Task[None] | None = None
        self.place = ""
        self.max_top_logprobs = 0
        self.logprob_tolerance = 0.0
        self.serves_pinned = False

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        watching = asyncio.create_task(self._watch_start())
        try:
            started: Started = await self._with_adapter("start", policy_version, adapter_dir)
        finally:
            watching.cancel()
        self.max_top_logprobs = started.max_top_logprobs
        self.logprob_tolerance = started.logprob_tolerance
        self.serves_pinned = started.serves_pinned
        self.place = started.place
        self._fetching = asyncio.create_task(self._fetch(), name=f"fetch from engine replica {self._number}")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        if request.pinned is not None:
            folder = await self._with_adapter("place", request.pinned.policy_version, request.pinned.adapter_dir)
            request = replace(request, pinned=replace(request.pinned, adapter_dir=folder))
        self._require()
        key = next(self._keys)
        arrived: asyncio.Queue[TokenDelta | OnlineSAOError] = asyncio.Queue()
        self._requests[key] = arrived
        ended = False
        try:
            self._ask("begin", key, request)
            while not ended:
                item = await arrived.get()
                ended = isinstance(item, OnlineSAOError) or item.finish_reason is not None
                if isinstance(item, OnlineSAOError):
                    raise item
                yield item
        finally:
            del self._requests[key]
            if not ended and not self._why.done():
                with suppress(ReplicaLostError):
                    self._ask("abort", key)

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        report: SwapReport = await self._with_adapter("swap", policy_version, adapter_dir)
        return report

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        return list(await self._call("score_text", tuple(token_ids)))

    async def served_digest(self) -> ServedDigest:
        digest: ServedDigest = await self._call("served_digest")
        return digest

    async def ended(self) -> str:
        return await asyncio.shield(self._why)

    async def stop(self) -> None:
        import ray

        self._lose("it was stopped")
        if self._fetching is not None:
            self._fetching.cancel()
        if self._session_problem() is None:
            try:
                await self._session.call(lambda: ray.kill(self._actor))
            except Exception as error:
                logger.debug("engine replica %d could not be killed: %r", self._number, error)

    async def _with_adapter(self, method: str, policy_version: int, adapter_dir: Path | None) -> Any:
        """A call that needs the version's files: from the shared folder, or sent if the replica's machine does not have them."""
        adapter = None if adapter_dir is None else await asyncio.to_thread(describe, adapter_dir)
        try:
            return await self._call(method, policy_version, adapter, None)
        except AdapterAbsentError:
            assert adapter is not None
            return await self._call(method, policy_version, adapter, await self._store.put(adapter))

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Its result, or our own error; ReplicaLostError if the actor ends, or is given up, before it answers."""
        from ray.exceptions import RayError, RayTaskError

        self._require()
        call = asyncio.ensure_future(self._ask(method, *arguments))
        try:
            # Of an actor whose cluster is gone, some calls fail and some never return.
            await asyncio.wait({call, self._why}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise self._lost()
            return call.result()
        except RayTaskError as error:
            # The actor raised it. Ours say what they mean; others are the engine's.
            if isinstance(error.cause, OnlineSAOError):
                raise error.cause from None
            raise EngineError(f"The engine failed: {error.cause!r}") from error
        except RayError as error:
            self._lose(_reason(error))
            raise self._lost() from error
        finally:
            call.cancel()

    def _ask(self, method: str, *arguments: Any) -> Awaitable[Any]:
        """The call on its way. Raises ReplicaLostError where Ray does not take it."""
        try:
            answer: Awaitable[Any] = getattr(self._actor, method).remote(*arguments)
        except Exception as error:
            self._lose(_reason(error))
            raise self._lost() from error
        return answer

    async def _fetch(self) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    fetched: Fetched = await self._call("fetch")
                for key, item in fetched.items:
                    if key in self._requests:
                        self._requests[key].put_nowait(item)
                problem = fetched.problem or self._session_problem()
                if problem is not None:
                    self._lose(problem)
                    return
        except ReplicaLostError:
            return
        except TimeoutError:
            self._lose(f"it was silent for {SILENCE_SECONDS:.0f} s")
        except Exception as error:
            logger.exception("fetching from engine replica %d failed", self._number)
            self._lose(repr(error))

    def _lose(self, why: str) -> None:
        if self._why.done():
            return
        self._why.set_result(why)
        for arrived in self._requests.values():
            arrived.put_nowait(self._lost())

    def _lost(self) -> ReplicaLostError:
        return ReplicaLostError(f"Engine replica {self._number} has ended: {self._why.result()}.")

    def _require(self) -> None:
        if self._session.generation != self._generation:
            self._lose(LEFT)
        if self._why.done():
            raise self._lost()

    def _session_problem(self) -> str | None:
        return self._session.problem if self._session.generation == self._generation else LEFT

    async def _watch_start(self) -> None:
        """Until it is up nothing is fetched: a cluster that is lost meanwhile is seen here. Says again and again that it takes long."""
        settings = self._settings
        said = time.monotonic()
        while (problem := self._session_problem()) is None:
            await asyncio.sleep(WATCH_SECONDS)
            if time.monotonic() - said >= PLACEMENT_SECONDS:
                said = time.monotonic()
                logger.warning(
                    "engine replica %d is not up yet: its model is being loaded, or it waits for a node with %g CPUs and %g GPUs free",
                    self._number,
                    settings.replica_cpus,
                    settings.replica_gpus,
                )
        self._lose(problem)


def _reason(error: Exception) -> str:
    from ray.exceptions import ActorDiedError

    return "its process or its machine has ended" if isinstance(error, ActorDiedError) else f"it cannot be reached ({type(error).__name__})"
