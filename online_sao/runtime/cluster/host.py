"""What runs in a replica's process: one engine, and the way of its tokens out. Owns the outbox in which deltas wait to be fetched together, and the
adapter files of nodes that share no folder with the service. The class becomes a Ray actor in replicas.py; nothing here needs Ray.

A call between processes costs milliseconds, so tokens are not sent one by one: whoever asks gets everything of all requests since the last time. The
first token of a request, its end and its failure are handed out at once; the rest waits BATCH_SECONDS for more.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psutil

from online_sao.config import EngineSettings, PolicySettings
from online_sao.errors import EngineError, OnlineSAOError, PolicyStoreError, ReplicaLostError
from online_sao.inference.engine import EngineRequest, InferenceEngine, SwapReport, TokenDelta
from online_sao.models.fingerprint import ServedDigest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

BATCH_SECONDS = 0.1
"""Longest that a token waits for others before it is sent. Sent one by one, at 58 ms a token, the tokens of a single answer on two busy cores came
7 % slower."""
KEPT_VERSIONS = 8
"""Of the versions that were sent here: the one before may be put back in place, and clients may ask for older ones."""
POLL_SECONDS = 1.0
"""Longest that a fetch waits for anything to be sent: an empty answer is a sign of life."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a replica builds its engine from. ``policy``'s ``model`` and ``cache_dir`` are meant on the replica's own machine."""

    engine: EngineSettings
    policy: PolicySettings


@dataclass(frozen=True, slots=True)
class Adapter:
    """A published version's files: ``folder`` where the service sees them, ``checksums`` by relative name."""

    folder: Path
    checksums: Mapping[str, str]


class AdapterAbsentError(OnlineSAOError):
    """The folder is not on this machine, or holds something else: the files must be sent."""


@dataclass(frozen=True, slots=True)
class Started:
    """What does not change of the replica and its engine."""

    place: str
    max_top_logprobs: int
    logprob_tolerance: float
    serves_pinned: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """``items``: (key of the request, its next delta or what it failed with), in order. ``problem``: why this engine can serve no longer."""

    items: tuple[tuple[int, TokenDelta | OnlineSAOError], ...]
    problem: str | None


class EngineHost:
    """``start`` once, before anything else."""

    def __init__(self, spec: HostSpec) -> None:
        self._spec = spec
        self._engine: InferenceEngine | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._outbox: list[tuple[int, TokenDelta | OnlineSAOError]] = []
        self._anything = asyncio.Event()
        self._urgent = asyncio.Event()
        self._folder: Path | None = None
        """What was sent here is below it."""
        self._received: dict[int, Path] = {}
        self._placed: dict[int, Path | None] = {}

    async def start(self, policy_version: int, adapter: Adapter | None, files: Mapping[str, bytes] | None) -> Started:
        await asyncio.to_thread(_clear_up)
        folder = await self._folder_of(policy_version, adapter, files)
        if self._engine is None:
            self._engine = await asyncio.to_thread(self._build)
        engine = self._engine
        await engine.start(policy_version, folder)
        place = f"process {os.getpid()} on {socket.gethostname()}"
        return Started(place, engine.max_top_logprobs, engine.logprob_tolerance, engine.serves_pinned)

    async def swap(self, policy_version: int, adapter: Adapter | None, files: Mapping[str, bytes] | None) -> SwapReport:
        return await self._started().swap(policy_version, await self._folder_of(policy_version, adapter, files))

    async def place(self, policy_version: int, adapter: Adapter | None, files: Mapping[str, bytes] | None) -> Path | None:
        """Where the files of a version that a request asks for are on this machine. Looked at once."""
        if policy_version not in self._placed:
            self._placed[policy_version] = await self._folder_of(policy_version, adapter, files)
        return self._placed[policy_version]

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        return await self._started().score_text(token_ids)

    async def served_digest(self) -> ServedDigest:
        return await self._started().served_digest()

    async def begin(self, key: int, request: EngineRequest) -> None:
        """Sample it; what comes of it is fetched under ``key``."""
        self._tasks[key] = asyncio.create_task(self._sample(key, request))

    async def abort(self, key: int) -> None:
        """Free its place. Nothing more of it is sent."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    async def fetch(self) -> Fetched:
        """Everything that waits, as soon as it is due; after POLL_SECONDS in any case. One caller at a time."""
        await _set_within(self._anything, POLL_SECONDS)
        if self._outbox:
            await _set_within(self._urgent, BATCH_SECONDS)
        items, self._outbox = tuple(self._outbox), []
        self._anything.clear()
        self._urgent.clear()
        return Fetched(items, None if self._started().healthy else "its engine has failed")

    async def _sample(self, key: int, request: EngineRequest) -> None:
        first = True
        try:
            async with aclosing(cast("AsyncGenerator[TokenDelta, None]", self._started().generate(request))) as deltas:
                async for delta in deltas:
                    self._send(key, delta, urgent=first or delta.finish_reason is not None)
                    first = False
        except OnlineSAOError as error:
            dead = isinstance(error, EngineError) and not self._started().healthy
            self._send(key, ReplicaLostError(error.message) if dead else error, urgent=True)
        except Exception as error:
            self._send(key, EngineError(f"The engine failed this request: {error!r}"), urgent=True)
        finally:
            self._tasks.pop(key, None)

    def _send(self, key: int, item: TokenDelta | OnlineSAOError, *, urgent: bool) -> None:
        self._outbox.append((key, item))
        self._anything.set()
        if urgent:
            self._urgent.set()

    def _build(self) -> InferenceEngine:
        spec = self._spec
        # Both are read once, when torch is imported. Ray gives its workers one thread.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["OMP_NUM_THREADS"] = str(spec.engine.threads or os.cpu_count() or 1)
        from online_sao.inference.engines import build_engine
        from online_sao.models import catalog

        return build_engine(spec.engine, catalog.obtain(spec.policy.model, spec.policy.cache_dir), spec.policy.lora_rank)

    async def _folder_of(self, policy_version: int, adapter: Adapter | None, files: Mapping[str, bytes] | None) -> Path | None:
        """Where an adapter's files are on this machine, the right ones: in the shared folder, or written here from ``files``."""
        if adapter is None:
            return None
        if files is None:
            for folder in (adapter.folder, self._received.get(policy_version)):
                if folder is not None and await asyncio.to_thread(_holds, folder, adapter.checksums):
                    return folder
            raise AdapterAbsentError(f"{adapter.folder} is not on this machine.")
        return await asyncio.to_thread(self._receive, policy_version, adapter, files)

    def _receive(self, policy_version: int, adapter: Adapter, files: Mapping[str, bytes]) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-"))
        folder = Path(tempfile.mkdtemp(prefix=f"v{policy_version:06d}-", dir=self._folder))
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        if not _holds(folder, adapter.checksums):
            shutil.rmtree(folder, ignore_errors=True)
            raise PolicyStoreError(f"Version {policy_version} arrived damaged: its files do not match their checksums.")
        old = self._received.pop(policy_version, None)
        self._received[policy_version] = folder
        surplus = [old] if old is not None else []
        while len(self._received) > KEPT_VERSIONS:
            version = next(iter(self._received))
            self._placed.pop(version, None)
            surplus.append(self._received.pop(version))
        for gone in surplus:
            shutil.rmtree(gone, ignore_errors=True)
        return folder

    def _started(self) -> InferenceEngine:
        if self._engine is None:
            raise EngineError("The engine is not started.")
        return self._engine


def _prefix() -> str:
    # Machines, and containers, that share a temporary folder have process ids of their own.
    return f"online-sao-{socket.gethostname()}-"


def _clear_up() -> None:
    """Remove what was sent to processes of this machine that have ended: they are killed, and remove nothing."""
    prefix = _prefix()
    for folder in Path(tempfile.gettempdir()).iterdir():
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if folder.name.startswith(prefix) and pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _holds(folder: Path, expected: Mapping[str, str]) -> bool:
    from online_sao.publishing.policy_store import checksums

    try:
        return folder.is_dir() and checksums(folder) == expected
    except OSError:
        return False


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
