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
    """One set of weights, replaced while the core is parked at a token boundary. The prefix cache is kept apart by a salt that every swap renews: a
    request that enters later never finds keys and values of other weights."""

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
    """``lora`` None: the base model, which takes no slot. ``users``: requests inside. ``used``: larger than that of whatever was used before.
    ``verified``: its digest was read, and is that of the published version."""

    version: int
    lora: Any | None
    users: int = 0
    used: int = 0
    verified: bool = False


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
        self._swap_waits = False
        """For a slot: the next that is free is not a pinned version's."""
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
        if adapter_dir is None:
            self._current = _Loaded(version, None)
            return Swapped(paused, 0)
        try:
            while True:
                async with self._loading:
                    if (version, adapter_dir) in self._loaded or await self._has_room():
                        self._current, seconds = await self._get(version, adapter_dir)
                        return Swapped(paused + seconds, 0)
                    if self._released:
                        raise EngineError("The engine was stopped.")
                    self._swap_waits = True
                    self._freed.clear()
                await self._freed.wait()
        finally:
            self._swap_waits = False

    async def digest(self) -> ServedDigest:
        return await self._core.digest(self._current.lora)

    @asynccontextmanager
    async def enter(self, pinned: PinnedVersion | None) -> AsyncIterator[Entry]:
        loaded = await self._pin(pinned) if pinned is not None and pinned.policy_version != self.version else self._take(self._current)
        try:
            yield Entry(lora=loaded.lora, spans=OneVersion(loaded.version))
        finally:
            self._leave(loaded)

    def release(self) -> None:
        self._released = True
        self._freed.set()

    def _take(self, loaded: _Loaded) -> _Loaded:
        loaded.users += 1
        loaded.used = next(self._numbers)
        return loaded

    def _leave(self, loaded: _Loaded) -> None:
        loaded.users -= 1
        self._freed.set()

    async def _pin(self, pinned: PinnedVersion) -> _Loaded:
        if pinned.adapter_dir is None:
            return self._take(_Loaded(pinned.policy_version, None))
        loaded = self._loaded.get((pinned.policy_version, pinned.adapter_dir))
        if loaded is not None and (loaded.verified or not pinned.served_digest):
            return self._take(loaded)
        # A task of its own: a caller that is cancelled must leave no adapter that is unknown here, and none that is unchecked.
        loading = asyncio.create_task(self._load_pinned(pinned, pinned.adapter_dir))
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            loading.add_done_callback(self._leave_after)
            raise

    def _leave_after(self, loading: asyncio.Task[_Loaded]) -> None:
        if not loading.cancelled() and loading.exception() is None:
            self._leave(loading.result())

    async def _load_pinned(self, pinned: PinnedVersion, adapter_dir: Path) -> _Loaded:
        """The version loaded, checked and taken."""
        async with self._loading:
            if (pinned.policy_version, adapter_dir) not in self._loaded and (self._swap_waits or not await self._has_room()):
                raise OverloadedError(
                    f"All {self._slots} places for versions are in use by running completions; try again in some seconds.", retry_after=5
                )
            loaded, _ = await self._get(pinned.policy_version, adapter_dir)
            if pinned.served_digest and not loaded.verified:
                try:
                    if not (await self._core.digest(loaded.lora)).matches(pinned.served_digest):
                        raise PolicyStoreError(f"Version {pinned.policy_version} was loaded with other weights than were published.")
                except BaseException:
                    if self._is_idle(loaded) and self._core.problem is None:
                        await self._unload(loaded)
                    raise
                loaded.verified = True
            return self._take(loaded)

    async def _get(self, version: int, adapter_dir: Path) -> tuple[_Loaded, float]:
        """The version loaded, and for how many seconds the core was kept from decoding for it. If it is not there yet, there must be room."""
        key = (version, adapter_dir)
        if key in self._loaded:
            return self._loaded[key], 0.0
        number = next(self._numbers)
        lora = launch.lora_request(number, version, adapter_dir)
        began = time.perf_counter()
        try:
            await self._core.call(self._core.llm.add_lora(lora))
        except EngineError:
            raise
        except Exception as error:
            # It may have been read and not fitted into a slot; of one that is not there, vLLM only says so.
            await self._core.call(self._core.llm.remove_lora(number))
            raise PolicyStoreError(f"vLLM cannot load the adapter of version {version}: {error}") from error
        self._loaded[key] = _Loaded(version, lora, used=number)
        return self._loaded[key], time.perf_counter() - began

    async def _has_room(self) -> bool:
        """Whether a slot is free now, that of the version nobody has used for longest if need be."""
        while len(self._loaded) >= self._slots:
            idle = [loaded for loaded in self._loaded.values() if self._is_idle(loaded)]
            if not idle:
                return False
            await self._unload(min(idle, key=lambda loaded: loaded.used))
        return True

    def _is_idle(self, loaded: _Loaded) -> bool:
        return not loaded.users and loaded is not self._current

    async def _unload(self, loaded: _Loaded) -> None:
        self._loaded = {key: other for key, other in self._loaded.items() if other is not loaded}
        assert loaded.lora is not None
        await self._core.call(self._core.llm.remove_lora(loaded.lora.lora_int_id))
