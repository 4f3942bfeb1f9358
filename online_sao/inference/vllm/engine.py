"""The InferenceEngine contract over vLLM's AsyncLLM. Owns the way of a request and of a swap through it.

Which version a token comes from: one that publishing.py let the request in with; or, where weights are written over, vLLM labels what its core sends
with the weight version it had then, and keeps for each request where the label changed. A swap parks the core at a token boundary, so no output is of
both. Knows nothing of chat, storage or how versions come about.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from online_sao.background import Background
from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError, ContextLengthError, EngineError, PolicyStoreError
from online_sao.inference.engine import FP32_LOGPROB_TOLERANCE, EngineLoad, EngineRequest, SingleEngine, SwapReport, TokenDelta
from online_sao.inference.requests import MAX_TOP_LOGPROBS, RequestLimits, seed_key
from online_sao.inference.slots import Slots
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.architecture import adapted_without_numbers
from online_sao.inference.vllm.core import STOP_SECONDS, Core, Entry
from online_sao.inference.vllm.outputs import NoDistributionError, OneVersion, Spans, to_deltas
from online_sao.inference.vllm.publishing import AdapterPublishing, MergedPublishing, Publishing
from online_sao.models.adapter import check_fits, read_adapter
from online_sao.models.fingerprint import ServedDigest

MIN_TEMPERATURE = 1e-2
"""Lowest temperature above 0: vLLM raises lower ones to it."""

HALF_LOGPROB_TOLERANCE = 0.2
"""bfloat16 and float16, for the mean of a probe (32 tokens). Measured in bfloat16: 0.04 with the bundled model; with random weights, which are the
worst, 0.02 to 0.10 in 640 samples, where another version's give 0.7 to 2."""


class VLLMEngine(SingleEngine):
    """Use from one event loop. Between a dead core and the next ``start`` it is not ``healthy`` and every request gets EngineError."""

    def __init__(self, settings: EngineSettings, model_path: Path, lora_rank: int) -> None:
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
        self._lora_rank = lora_rank if publishes_adapters(settings) else None
        self._core: Core | None = None
        self._publishing: Publishing | None = None
        self._ids = itertools.count()
        self._slots = Slots(settings.max_concurrent, settings.kv_cache_tokens // launch.BLOCK_TOKENS)
        self._changing = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        return 0 if self._publishing is None else self._publishing.version

    @property
    def healthy(self) -> bool:
        """Whether requests can be served now."""
        return self._core is not None and self._core.problem is None

    @property
    def max_top_logprobs(self) -> int:
        return MAX_TOP_LOGPROBS

    @property
    def logprob_tolerance(self) -> float:
        return FP32_LOGPROB_TOLERANCE if self._core is None or self._core.exact else HALF_LOGPROB_TOLERANCE

    @property
    def serves_pinned(self) -> bool:
        return self._lora_rank is not None

    def load(self) -> EngineLoad:
        return EngineLoad(running=self._slots.running, waiting=self._slots.waiting)

    async def served_digest(self) -> ServedDigest:
        return await self._require()[1].digest()

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Raises ConfigurationError if vLLM is not installed, PolicyStoreError if the adapter is unusable, EngineError if vLLM does not start."""
        async with self._changing:
            if self._core is not None:
                raise EngineError("The engine is already started.")
            await self._check_adapter(adapter_dir)
            try:
                core = Core(await self._launch())
            except ConfigurationError:
                raise
            except ImportError as error:
                raise ConfigurationError(f"engine.kind is 'vllm', but vLLM cannot be imported ({error}). See docs/operations.md.") from error
            except Exception as error:
                raise EngineError(f"vLLM did not start: {error}") from error
            publishing = MergedPublishing(core) if self._lora_rank is None else AdapterPublishing(core, self._settings.adapter_slots)
            try:
                await publishing.start(policy_version, adapter_dir)
            except BaseException:
                await core.stop("The engine did not start.")
                raise
            self._core, self._publishing = core, publishing

    async def stop(self) -> None:
        """Ends within seconds; requests in flight get EngineError. No process is left."""
        if self._publishing is not None:
            self._publishing.release()
        async with self._changing:
            core, self._core = self._core, None
            if core is not None:
                await core.stop("The engine was stopped.")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """See the contract. Also raises ContextLengthError and InvalidRequestError for what cannot be sampled from."""
        self._require()
        max_tokens = self._limits.check(request)
        async with self._slots.hold(math.ceil((len(request.prompt_ids) + max_tokens) / launch.BLOCK_TOKENS), background=request.background):
            core, publishing = self._require()
            sampling = self._sampling(request, max_tokens)
            async with publishing.enter(request.pinned) as entry, self._inside(core, request, sampling, entry) as (collector, spans):
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
        core, publishing = self._require()
        swaps = publishing.swaps
        longest = core.llm.model_config.max_model_len - 1
        self._limits.check_text(token_ids)
        if len(token_ids) > longest:
            raise ContextLengthError(f"The text has {len(token_ids)} tokens; vLLM scores {longest} at most.")
        if len(token_ids) < 2:
            return []
        request = EngineRequest("score", tuple(token_ids), 1, 1.0, 1.0, ())
        async with self._slots.hold(math.ceil(len(token_ids) / launch.BLOCK_TOKENS), background=True):
            core, publishing = self._require()
            sampling = launch.sampling_params(max_tokens=1, temperature=1.0, prompt_logprobs=0)
            async with publishing.enter(None) as entry, self._inside(core, request, sampling, entry) as (collector, _):
                output = await core.next_output(collector)
        if publishing.swaps != swaps:
            raise EngineError("The text was not scored: the version was replaced meanwhile.")
        return [output.prompt_logprobs[place][token].logprob for place, token in enumerate(token_ids) if place]

    async def _launch(self) -> launch.Started:
        """In a thread that keeps no process from ending. A core whose caller was cancelled is ended as soon as it is up."""
        thread, found = Background("vllm start"), list[launch.Started]()

        def end() -> None:
            for started in found:
                launch.stop(started, STOP_SECONDS)

        try:
            await thread.run(lambda: found.append(launch.start(self._settings, self._model_path, self._lora_rank)))
        except asyncio.CancelledError:
            thread.then(end)
            raise
        finally:
            thread.end()
        return found[0]

    async def _check_adapter(self, adapter_dir: Path | None) -> None:
        """Everything that can be wrong with an adapter is found before anyone has to wait for it."""
        if adapter_dir is None:
            return
        adapter = await asyncio.to_thread(read_adapter, adapter_dir)
        check_fits(adapted_without_numbers(self._model_path), adapter)
        rank = max(a.shape[0] for a, _ in adapter.matrices.values())
        if self._lora_rank is not None and rank > self._lora_rank:
            raise PolicyStoreError(f"The adapter in {adapter_dir} has rank {rank}; policy.lora_rank is {self._lora_rank}.")

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

    def _inside(self, core: Core, request: EngineRequest, sampling: Any, entry: Entry) -> AbstractAsyncContextManager[tuple[Any, Spans | OneVersion]]:
        # Ids of our own: a new request must not meet the end of an earlier one that had the same id.
        return core.request(f"{next(self._ids)}:{request.request_id}", {"prompt_token_ids": list(request.prompt_ids)}, sampling, entry)

    async def _swap_alone(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        async with self._changing:
            _, publishing = self._require()
            started = time.perf_counter()
            await self._check_adapter(adapter_dir)
            in_flight = self._slots.running
            swapped = await publishing.swap(policy_version, adapter_dir, recompute=self._settings.kv_policy == "recompute")
            reading = time.perf_counter()
            digest = await publishing.digest()
            ended = time.perf_counter()
            # The worker decodes for nobody while it reads its weights.
            paused = swapped.pause_seconds + ended - reading
            return SwapReport(policy_version, paused, ended - started, in_flight, swapped.recomputed_tokens, digest)

    def _require(self) -> tuple[Core, Publishing]:
        if self._core is None or self._publishing is None:
            raise EngineError("The engine is not started.")
        if self._core.problem is not None:
            raise EngineError(self._core.problem)
        return self._core, self._publishing


def publishes_adapters(settings: EngineSettings) -> bool:
    return settings.publish == "adapter" or (settings.publish == "auto" and torch.cuda.is_available())
