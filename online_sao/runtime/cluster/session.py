"""This process's session with a Ray cluster: joined by its address, or a cluster of its own on this machine. Owns ray.init and its end.

One thread of its own does both, and lives in between: the processes of a local cluster are killed by the kernel when the thread that started them
ends, which is also what ends them when the service is killed. Knows nothing of what runs in the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from online_sao.background import Background
from online_sao.config import ClusterSettings
from online_sao.errors import ConfigurationError, EngineError

T = TypeVar("T")

OBJECT_STORE_BYTES = 80 * 2**20
"""Of a local cluster: next to the smallest that Ray takes. There, replicas read what they need from the disk."""
_PILLARS = ("gcs_server", "raylet")
"""The processes without which a local cluster is none. Ray ends the process that uses it a minute after it has lost the first."""


class Session:
    """``open``, calls, ``close``, by each who uses it; again if need be. It lasts from the first to the last of them. Use from one event loop."""

    def __init__(self, settings: ClusterSettings, ranks: int = 1) -> None:
        """``ranks``: of the learner."""
        self._settings = settings
        self._ranks = ranks
        self._thread: Background | None = None
        self._pillars: list[psutil.Process] = []
        self._users: set[object] = set()
        self._changing = asyncio.Lock()
        self._joined = False
        self._leaving: asyncio.Task[None] | None = None
        self.generation = 0
        """One more each time a cluster is joined: what was placed under another number is gone, or out of reach."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be asked of the cluster until it is closed and opened again."""
        if not self._joined:
            return "there is no session with a Ray cluster"
        for process in self._pillars:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return "a process of the local Ray cluster has ended"
        return None

    async def open(self, user: object) -> None:
        """About ten seconds for a local cluster; one that was lost is left first. Raises ConfigurationError if Ray is not installed or no cluster
        answers."""
        # A task of its own, like each that leaves: Ray is never left half joined or half left, and nothing else is begun before it is whole.
        opening = asyncio.create_task(self._open(user))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._leaving = asyncio.create_task(self._close(user))
            raise

    async def close(self, user: object) -> None:
        """With its last user: ends what the session started, its actors, and a local cluster whole."""
        await asyncio.shield(asyncio.create_task(self._close(user)))

    async def _open(self, user: object) -> None:
        async with self._changing:
            if self.problem is not None:
                await self._leave()
                await self._join()
            self._users.add(user)

    async def _close(self, user: object) -> None:
        async with self._changing:
            self._users.discard(user)
            if not self._users:
                await self._leave()

    async def _join(self) -> None:
        self._thread = Background("ray session")
        try:
            self._pillars = await self.call(self._init)
        except BaseException:
            self._forget()
            raise
        self._joined = True
        self.generation += 1

    async def _leave(self) -> None:
        if self._thread is None:
            return
        try:
            await self.call(_shutdown)
        finally:
            self._forget()

    def _forget(self) -> None:
        if self._thread is not None:
            self._thread.end()
        self._thread, self._pillars, self._joined = None, [], False

    async def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns, in the session's thread: for calls to Ray that block."""
        if self._thread is None:
            raise EngineError("There is no session with a Ray cluster.")
        return await self._thread.run(function)

    def _init(self) -> list[psutil.Process]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # What Ray opens listens on every address, so whoever calls must show the token.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        # A call to an actor that died needs no second telling: what waited for it is told by the call that fetches.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                f"What [cluster] asks for needs Ray, which is not installed ({error}): pip install 'online-sao[ray]'."
            ) from error
        settings = self._settings
        common: dict[str, Any] = {"namespace": settings.namespace, "log_to_driver": settings.place_learner, "logging_level": logging.ERROR}
        if settings.ray_address is not None:
            try:
                ray.init(address=settings.ray_address, **common)
            except Exception as error:
                raise ConfigurationError(
                    f"No Ray cluster could be joined at {settings.ray_address} ({_first_line(error)}). Start one with `ray start --head`, give its "
                    "address as host:port, put its token (~/.ray/auth_token) on every machine, and make this one a node of it "
                    "(`ray start --address=HOST:PORT --num-cpus=0`). See docs/operations/clusters.md."
                ) from error
            return []
        # Ray would run its workers behind everything else on the machine, the learner included.
        os.environ.setdefault("RAY_worker_niceness", "0")
        asked = settings.replicas * settings.replica_cpus + settings.place_learner * self._ranks * settings.learner_cpus
        before = {process.pid for process in psutil.Process().children(recursive=True)}
        # Never that of RAY_ADDRESS: without an address, the cluster is this service's own and ends with it.
        ray.init(
            address="local",
            include_dashboard=False,
            # Processes of a machine with fewer cores take turns; they need not wait for each other to end.
            num_cpus=max(os.cpu_count() or 1, math.ceil(asked)),
            object_store_memory=OBJECT_STORE_BYTES,
            **common,
        )
        found = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
        return [process for process in found if process.name() in _PILLARS]


def _shutdown() -> None:
    import ray

    ray.shutdown()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
