"""The InferenceEngine contract over vLLM's AsyncLLM. Owns the way of a request and of a swap through it.

Which version a token comes from: vLLM labels what its core sends with the weight version it had then, and keeps for each request where the label
changed. A swap parks the core at a token boundary, so no output is of both. Prefix caching is kept apart by a salt that every swap renews: keys and
values of other weights are never found again. Knows nothing of chat, storage or how versions come about.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError, ContextLengthError, EngineError, PolicyStoreError
from online_sao.inference.engine import EngineLoad, EngineRequest, ReplicaStatus, SwapReport, TokenDelta
from online_sao.inference.requests import MAX_TOP_LOGPROBS, RequestLimits, seed_key
from online_sao.inference.slots import Slots
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.architecture import adapted_without_numbers
from online_sao.inference.vllm.core import Core
from online_sao.inference.vllm.outputs import NoDistributionError, Spans, to_deltas
from online_sao.models.adapter import check_fits, read_adapter

logger = logging.getLogger(__name__)

MIN_TEMPERATURE = 1e-2
"""Lowest temperature above 0: vLLM raises lower ones to it."""


class VLLMEngine:
    """Use from one event loop. Between a dead core and the next ``start`` it is not ``healthy`` and every request gets EngineError."""

    def __init__(self, settings: EngineSettings, model_path: Path) -> None:
        """Raises ConfigurationError if the model cannot hold engine.max_context_tokens, or the cache cannot."""
        if settings.kv_cache_tokens < settings.max_context_tokens:
            raise ConfigurationError(
                f"engine.kv_cache_tokens ({settings.kv_cache_tokens}) must hold one completion of engine.max_context_tokens "
                f"({settings.max_context_tokens})."
            )
        self._settings = settings
        self._model_path = model_path
        config = AutoConfig.from_pretrained(model_path, local_files_only=True).get_text_config()
        self._limits = RequestLimits.of(config, settings, MIN_TEMPERATURE)
        self._version = 0
        self._swaps = 0
        self._core: Core | None = None
        self._ids = itertools.count()
        self._slots = Slots(settings.max_concurrent, settings.kv_cache_tokens // launch.BLOCK_TOKENS)
        self._changing = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def healthy(self) -> bool:
        """Whether requests can be served now."""
        return self._core is not None and self._core.problem is None

    @property
    def recovering(self) -> bool:
        return False

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        return ()

    @property
    def max_top_logprobs(self) -> int:
        return MAX_TOP_LOGPROBS

    def load(self) -> EngineLoad:
        return EngineLoad(running=self._slots.running, waiting=self._slots.waiting)

    async def served_digest(self) -> tuple[float, ...]:
        return await self._require_core().digest()

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Raises ConfigurationError if vLLM is not installed, PolicyStoreError if the adapter is unusable, EngineError if vLLM does not start."""
        async with self._changing:
            if self._core is not None:
                raise EngineError("The engine is already started.")
            await self._check_adapter(adapter_dir)
            try:
                core = Core(await asyncio.to_thread(launch.start, self._settings, self._model_path))
            except ImportError as error:
                raise ConfigurationError(f"engine.kind is 'vllm', but vLLM cannot be imported ({error}). See docs/operations.md.") from error
            except Exception as error:
                raise EngineError(f"vLLM did not start: {error}") from error
            try:
                await core.put_in_place(str(policy_version), adapter_dir)
            except BaseException:
                await core.stop("The engine did not start.")
                raise
            self._version = policy_version
            self._core = core

    async def stop(self) -> None:
        """Ends within seconds; requests in flight get EngineError. No process is left."""
        async with self._changing:
            core, self._core = self._core, None
            if core is not None:
                await core.stop("The engine was stopped.")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """See the contract. Also raises ContextLengthError and InvalidRequestError for what cannot be sampled from."""
        self._require_core()
        max_tokens = self._limits.check(request)
        async with self._slots.hold(math.ceil((len(request.prompt_ids) + max_tokens) / launch.BLOCK_TOKENS)):
            core = self._require_core()
            async with self._inside(core, request, self._sampling(request, max_tokens)) as (collector, spans):
                finished = False
                while not finished:
                    output = await core.next_output(collector)
                    finished = output.finished
                    try:
                        deltas = list(to_deltas(output, spans, request.top_logprobs))
                    except NoDistributionError:
                        core.poisoned = True
                        raise
                    for delta in deltas:
                        yield delta

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        """Raises PolicyStoreError (unusable adapter) or EngineError (the core is dead, or died of it); else, on failure, the old weights serve."""
        # A task of its own: a caller that is cancelled must not leave the core parked.
        return await asyncio.shield(asyncio.create_task(self._swap_alone(policy_version, adapter_dir)))

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        """See the contract. vLLM computes the text in pieces of engine.max_batch_tokens, beside everyone's decoding."""
        swaps = self._swaps
        longest = self._require_core().llm.model_config.max_model_len - 1
        self._limits.check_text(token_ids)
        if len(token_ids) > longest:
            raise ContextLengthError(f"The text has {len(token_ids)} tokens; vLLM scores {longest} at most.")
        if len(token_ids) < 2:
            return []
        request = EngineRequest("score", tuple(token_ids), 1, 1.0, 1.0, ())
        async with self._slots.hold(math.ceil(len(token_ids) / launch.BLOCK_TOKENS)):
            core = self._require_core()
            async with self._inside(core, request, launch.sampling_params(max_tokens=1, temperature=1.0, prompt_logprobs=0)) as (collector, _):
                output = await core.next_output(collector)
        if self._swaps != swaps:
            raise EngineError("The text was not scored: the version was replaced meanwhile.")
        return [output.prompt_logprobs[place][token].logprob for place, token in enumerate(token_ids) if place]

    async def _check_adapter(self, adapter_dir: Path | None) -> None:
        """Everything that can be wrong with an adapter is found before anyone has to wait for it."""
        if adapter_dir is not None:
            check_fits(adapted_without_numbers(self._model_path), await asyncio.to_thread(read_adapter, adapter_dir))

    def _sampling(self, request: EngineRequest, max_tokens: int) -> Any:
        key = seed_key(request)
        return launch.sampling_params(
            max_tokens=max_tokens,
            temperature=float(request.temperature),
            top_p=1.0 if request.temperature == 0 else float(request.top_p),
            stop_token_ids=list(request.eos_token_ids),
            seed=None if key is None else int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]),
            logprobs=min(request.top_logprobs, self._limits.vocabulary),
        )

    def _inside(self, core: Core, request: EngineRequest, sampling: Any) -> AbstractAsyncContextManager[tuple[Any, Spans]]:
        # Ids of our own: a new request must not meet the end of an earlier one that had the same id.
        prompt = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": str(self._swaps)}
        return core.request(f"{next(self._ids)}:{request.request_id}", prompt, sampling)

    async def _swap_alone(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        async with self._changing:
            core = self._require_core()
            started = time.perf_counter()
            await self._check_adapter(adapter_dir)
            in_flight = self._slots.running
            recompute = self._settings.kv_policy == "recompute" or core.poisoned
            paused = time.perf_counter()
            await core.pause(clear_cache=recompute)
            try:
                recomputed = core.computed_tokens() if recompute else 0
                if core.poisoned:
                    await core.cleanse()
                await self._replace(core, policy_version, adapter_dir)
            finally:
                if core.problem is None:
                    await core.resume()
            pause_seconds = time.perf_counter() - paused
            digest = await core.digest()
            return SwapReport(policy_version, pause_seconds, time.perf_counter() - started, in_flight, recomputed, digest)

    async def _replace(self, core: Core, policy_version: int, adapter_dir: Path | None) -> None:
        """Inside a pause: the weights of a version in place, or the old ones left."""
        before = core.adapter_dir
        try:
            await core.put_in_place(str(policy_version), adapter_dir)
        except Exception as error:
            if core.problem is None:
                logger.warning("the weights of version %d could not be put in place; those of version %d are", policy_version, self._version)
                await core.put_in_place(str(self._version), before)
            raise error if isinstance(error, EngineError) else PolicyStoreError(f"The weights could not be put in place: {error}") from error
        finally:
            self._swaps += 1
        self._version = policy_version

    def _require_core(self) -> Core:
        if self._core is None:
            raise EngineError("The engine is not started.")
        if self._core.problem is not None:
            raise EngineError(self._core.problem)
        return self._core
