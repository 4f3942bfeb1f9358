"""Engine replicas as Ray actors: what inference/pool.py needs of each. Owns how an actor is placed, called, watched and ended, and how adapter files
get to nodes that share no folder with the service. Never reaches the learner.

One task a replica fetches what all its requests produced (host.py). It is also how a death is noticed: the call that waits in a process that ends
fails at once, and a process that is silent is given up and killed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from online_sao.config import ClusterSettings, Settings
from online_sao.errors import EngineError, OnlineSAOError, PolicyStoreError, ReplicaLostError
from online_sao.inference.engine import EngineRequest, SwapReport, TokenDelta
from online_sao.inference.pool import EnginePool
from online_sao.models.fingerprint import ServedDigest
from online_sao.publishing.policy_store import checksums
from online_sao.runtime.cluster.host import Adapter, AdapterAbsentError, EngineHost, Fetched, HostSpec, Started
from online_sao.runtime.cluster.session import Session

logger = logging.getLogger(__name__)

SILENCE_SECONDS = 30.0
"""A replica that answers nothing for so long, though it owes a sign of life every second, is given up."""
PLACEMENT_SECONDS = 30.0
"""After so long without a place in the cluster, and again and again, it is said."""
NAME_PREFIX = "engine-"
"""Of the actors' names in the namespace: who joins it finds them by that."""


def build_pool(settings: Settings, session: Session) -> EnginePool:
    """The pool that the settings ask for. ``cluster.replicas`` is above 0."""
    cluster, engine = settings.cluster, settings.engine
    if cluster.ray_address is None and engine.threads == 0:
        engine = engine.model_copy(update={"threads": max(1, (os.cpu_count() or 1) // cluster.replicas)})
    policy = settings.policy
    folder = Path(policy.model).expanduser()
    if folder.is_dir():
        # Replicas have another working directory.
        policy = policy.model_copy(update={"model": str(folder.absolute())})
    return EnginePool(RaySource(session, cluster, HostSpec(engine, policy)), cluster.replicas, engine.max_concurrent)


class RaySource:
    """A ReplicaSource: actors in the cluster that the settings name."""

    def __init__(self, session: Session, settings: ClusterSettings, spec: HostSpec) -> None:
        self._session = session
        self._settings = settings
        self._spec = spec
        self._store = _AdapterStore(self._session)

    @property
    def problem(self) -> str | None:
        return self._session.problem

    async def open(self) -> None:
        await self._session.open(self)

    async def create(self, number: int) -> RayReplica:
        if self._session.problem is not None:
            raise EngineError(f"It cannot be started: {self._session.problem}.")
        return RayReplica(await self._session.call(lambda: self._actor(number)), number, self._session, self._store, self._settings)

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

    def __init__(self, actor: Any, number: int, session: Session, store: _AdapterStore, settings: ClusterSettings) -> None:
        self._actor = actor
        self._number = number
        self._session = session
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
        saying = asyncio.create_task(self._say_that_it_waits())
        try:
            started: Started = await self._with_adapter("start", policy_version, adapter_dir)
        finally:
            saying.cancel()
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
        self._actor.begin.remote(key, request)
        try:
            while not ended:
                item = await arrived.get()
                ended = isinstance(item, OnlineSAOError) or item.finish_reason is not None
                if isinstance(item, OnlineSAOError):
                    raise item
                yield item
        finally:
            del self._requests[key]
            if not ended and not self._why.done():
                self._actor.abort.remote(key)

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        report: SwapReport = await self._with_adapter("swap", policy_version, adapter_dir)
        return report

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        return list(await self._call(self._actor.score_text.remote(tuple(token_ids))))

    async def served_digest(self) -> ServedDigest:
        digest: ServedDigest = await self._call(self._actor.served_digest.remote())
        return digest

    async def ended(self) -> str:
        return await asyncio.shield(self._why)

    async def stop(self) -> None:
        import ray

        self._lose("it was stopped")
        if self._fetching is not None:
            self._fetching.cancel()
        if self._session.problem is None:
            try:
                await self._session.call(lambda: ray.kill(self._actor))
            except Exception as error:
                logger.debug("engine replica %d could not be killed: %r", self._number, error)

    async def _with_adapter(self, method: str, policy_version: int, adapter_dir: Path | None) -> Any:
        """A call that needs the version's files: from the shared folder, or sent if the replica's machine does not have them."""
        adapter = None if adapter_dir is None else await asyncio.to_thread(_describe, adapter_dir)
        remote = getattr(self._actor, method).remote
        try:
            return await self._call(remote(policy_version, adapter, None))
        except AdapterAbsentError:
            assert adapter is not None
            return await self._call(remote(policy_version, adapter, await self._store.put(adapter)))

    async def _call(self, call: Awaitable[Any]) -> Any:
        """Its result, or our own error; ReplicaLostError if the actor ends before it answers."""
        from ray.exceptions import RayError, RayTaskError

        self._require()
        try:
            return await call
        except RayTaskError as error:
            # The actor raised it. Ours say what they mean; others are the engine's.
            if isinstance(error.cause, OnlineSAOError):
                raise error.cause from None
            raise EngineError(f"The engine failed: {error.cause!r}") from error
        except RayError as error:
            self._lose(_reason(error))
            raise ReplicaLostError(f"Engine replica {self._number} has ended: {self._why.result()}.") from error

    async def _fetch(self) -> None:
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    fetched: Fetched = await self._call(self._actor.fetch.remote())
                for key, item in fetched.items:
                    if key in self._requests:
                        self._requests[key].put_nowait(item)
                problem = fetched.problem or self._session.problem
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
            arrived.put_nowait(ReplicaLostError(f"Engine replica {self._number} has ended: {why}."))

    def _require(self) -> None:
        if self._why.done():
            raise ReplicaLostError(f"Engine replica {self._number} has ended: {self._why.result()}.")

    async def _say_that_it_waits(self) -> None:
        settings = self._settings
        while True:
            await asyncio.sleep(PLACEMENT_SECONDS)
            logger.warning(
                "engine replica %d is not up yet: its model is being loaded, or it waits for a node with %g CPUs and %g GPUs free",
                self._number,
                settings.replica_cpus,
                settings.replica_gpus,
            )


class _AdapterStore:
    """Adapter files in Ray's object store: once a version, however many replicas fetch them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._put: tuple[Path, asyncio.Task[Any]] | None = None

    async def put(self, adapter: Adapter) -> Any:
        """A reference to {relative name: content}."""
        if self._put is None or self._put[0] != adapter.folder:
            self._put = (adapter.folder, asyncio.create_task(self._session.call(lambda: _put(adapter))))
        return await asyncio.shield(self._put[1])

    def forget(self) -> None:
        self._put = None


def _put(adapter: Adapter) -> Any:
    import ray

    return ray.put({name: (adapter.folder / name).read_bytes() for name in adapter.checksums})


@lru_cache(maxsize=256)
def _describe(folder: Path) -> Adapter:
    """Published folders do not change; one that is damaged later does not match what is remembered here."""
    if not folder.is_dir():
        raise PolicyStoreError(f"{folder} is missing.")
    return Adapter(folder.absolute(), checksums(folder))


def _reason(error: Exception) -> str:
    from ray.exceptions import ActorDiedError

    return "its process or its machine has ended" if isinstance(error, ActorDiedError) else f"it cannot be reached ({type(error).__name__})"
