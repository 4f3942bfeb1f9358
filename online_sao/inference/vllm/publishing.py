"""How versions get into a running core, in two ways behind one face: merged into its weights, or as adapters beside each other.

Owns which version a request gets, and what a swap does to the core and to those inside. Knows nothing of sampling, limits or how versions come about.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from online_sao.errors import EngineError, OverloadedError, PolicyStoreError, VersionNotLoadedError
from online_sao.inference.engine import PinnedVersion
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.core import Core, Entry
from online_sao.inference.vllm.outputs import OneVersion
from online_sao.models.fingerprint import ServedDigest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a swap cost. ``pause_seconds``: how long the core did nothing else; ``recomputed_tokens``: whose keys and values were thrown away."""

    pause_seconds: float
    recomputed_tokens: int


class Publishing(Protocol):
    """One for each core, which it takes from the base model to ``start``'s version. Everything may raise EngineError when the core has ended."""

    @property
    def version(self) -> int:
        """That of requests which enter now."""

    @property
    def swaps(self) -> int:
        """How often weights that requests inside may be using were written over."""

    async def start(self, version: int, adapter_dir: Path | None) -> None: ...

    async def swap(self, version: int, adapter_dir: Path | None, *, recompute: bool) -> Swapped:
        """Raises PolicyStoreError where the version cannot be put in place; the one before serves on then."""

    async def digest(self) -> ServedDigest:
        """models.fingerprint of what requests that enter now are sampled from."""

    def enter(self, pinned: PinnedVersion | None) -> AbstractAsyncContextManager[Entry]:
        """With which weights a request goes in; they stay for as long as it is inside. Raises VersionNotLoadedError, OverloadedError or
        PolicyStoreError for a pinned version that cannot be had."""

    def release(self) -> None:
        """The core is about to be stopped: nobody waits for anything here any more."""


class MergedPublishing:
    """One set of weights, replaced while the core is parked at a token boundary. Prefix caching is kept apart by a salt that every swap renews: keys
    and values of other weights are never found again."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.version = 0
        self.swaps = 0

    async def start(self, version: int, adapter_dir: Path | None) -> None:
        await self._core.put_in_place(str(version), adapter_dir)
        self.version = version

    async def swap(self, version: int, adapter_dir: Path | None, *, recompute: bool) -> Swapped:
        core = self._core
        recompute = recompute or core.poisoned
        paused = time.perf_counter()
        await core.pause(clear_cache=recompute)
        try:
            recomputed = core.computed_tokens() if recompute else 0
            if core.poisoned:
                await core.cleanse()
            await self._replace(version, adapter_dir)
        finally:
            if core.problem is None:
                await core.resume()
        return Swapped(time.perf_counter() - paused, recomputed)

    async def digest(self) -> ServedDigest:
        return await self._core.digest()

    @asynccontextmanager
    async def enter(self, pinned: PinnedVersion | None) -> AsyncIterator[Entry]:
        if pinned is not None and pinned.policy_version != self.version:
            raise VersionNotLoadedError(f"Version {pinned.policy_version} is not loaded; version {self.version} is being served.", param="model")
        yield Entry(cache_salt=str(self.swaps))

    def release(self) -> None:
        pass

    async def _replace(self, version: int, adapter_dir: Path | None) -> None:
        """Inside a pause: the weights of a version in place, or the old ones left."""
        core, before = self._core, self._core.adapter_dir
        try:
            await core.put_in_place(str(version), adapter_dir)
        except Exception as error:
            if core.problem is None:
                logger.warning("the weights of version %d could not be put in place; those of version %d are", version, self.version)
                await core.put_in_place(str(self.version), before)
            raise error if isinstance(error, EngineError) else PolicyStoreError(f"The weights could not be put in place: {error}") from error
        finally:
            self.swaps += 1
        self.version = version


@dataclass(slots=True, eq=False)
class _Loaded:
    """``lora`` None: the base model, which takes no slot. ``users``: requests inside. ``used``: larger than that of whatever was used before."""

    version: int
    lora: Any | None
    users: int = 0
    used: int = 0


class AdapterPublishing:
    """The base model, and as many adapters beside it as there are ``slots``. A request stays on the version it entered with. One that nobody uses
    is unloaded when its slot is wanted. No adapter is ever loaded under the name of another, by which vLLM tells cached prefixes apart."""

    swaps = 0

    def __init__(self, core: Core, slots: int) -> None:
        self._core = core
        self._slots = slots
        self._numbers = itertools.count(1)
        self._current = _Loaded(0, None)
        self._loaded: dict[tuple[int, Path], _Loaded] = {}
        self._loading = asyncio.Lock()
        self._freed = asyncio.Event()
        self._released = False

    @property
    def version(self) -> int:
        return self._current.version

    async def start(self, version: int, adapter_dir: Path | None) -> None:
        await self.swap(version, adapter_dir, recompute=False)

    async def swap(self, version: int, adapter_dir: Path | None, *, recompute: bool) -> Swapped:
        """``recompute`` means nothing here: no request changes its weights. If every slot is in use, waits for the first that is not."""
        began = time.perf_counter()
        if self._core.poisoned:
            await self._core.pause(clear_cache=True)
            try:
                await self._core.cleanse()
            finally:
                if self._core.problem is None:
                    await self._core.resume()
        paused = time.perf_counter() - began
        async with self._loading:
            loaded, seconds = await self._get(version, adapter_dir, wait=True)
            self._current = loaded
        return Swapped(paused + seconds, 0)

    async def digest(self) -> ServedDigest:
        return await self._core.digest(self._current.lora)

    @asynccontextmanager
    async def enter(self, pinned: PinnedVersion | None) -> AsyncIterator[Entry]:
        loaded = await self._pin(pinned) if pinned is not None and pinned.policy_version != self.version else self._take(self._current)
        try:
            yield Entry(lora=loaded.lora, spans=OneVersion(loaded.version))
        finally:
            loaded.users -= 1
            self._freed.set()

    def release(self) -> None:
        self._released = True
        self._freed.set()

    def _take(self, loaded: _Loaded) -> _Loaded:
        loaded.users += 1
        loaded.used = next(self._numbers)
        return loaded

    async def _pin(self, pinned: PinnedVersion) -> _Loaded:
        async with self._loading:
            fresh = pinned.adapter_dir is not None and (pinned.policy_version, pinned.adapter_dir) not in self._loaded
            loaded, _ = await self._get(pinned.policy_version, pinned.adapter_dir, wait=False)
            if fresh and pinned.served_digest and not (await self._core.digest(loaded.lora)).matches(pinned.served_digest):
                await self._unload(loaded)
                raise PolicyStoreError(f"Version {pinned.policy_version} was loaded with other weights than were published.")
            return self._take(loaded)

    async def _get(self, version: int, adapter_dir: Path | None, *, wait: bool) -> tuple[_Loaded, float]:
        """The version loaded, and for how many seconds the core was kept from decoding for it."""
        if adapter_dir is None:
            return _Loaded(version, None), 0.0
        key = (version, adapter_dir)
        if key in self._loaded:
            return self._loaded[key], 0.0
        await self._make_room(wait)
        number = next(self._numbers)
        lora = launch.lora_request(number, version, adapter_dir)
        began = time.perf_counter()
        try:
            await self._core.call(self._core.llm.add_lora(lora))
        except EngineError:
            raise
        except Exception as error:
            raise PolicyStoreError(f"vLLM cannot load the adapter of version {version}: {error}") from error
        self._loaded[key] = _Loaded(version, lora, used=number)
        return self._loaded[key], time.perf_counter() - began

    async def _make_room(self, wait: bool) -> None:
        while len(self._loaded) >= self._slots:
            idle = [loaded for loaded in self._loaded.values() if not loaded.users and loaded is not self._current]
            if idle:
                await self._unload(min(idle, key=lambda loaded: loaded.used))
            elif wait and not self._released:
                self._freed.clear()
                await self._freed.wait()
            elif wait:
                raise EngineError("The engine was stopped.")
            else:
                raise OverloadedError(
                    f"All {self._slots} places for versions are in use by running completions; try again in some seconds.", retry_after=5
                )

    async def _unload(self, loaded: _Loaded) -> None:
        self._loaded = {key: other for key, other in self._loaded.items() if other is not loaded}
        assert loaded.lora is not None
        await self._core.call(self._core.llm.remove_lora(loaded.lora.lora_int_id))
