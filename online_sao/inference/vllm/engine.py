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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from transformers import AutoConfig

from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError, ContextLengthError, EngineError, PolicyStoreError
from online_sao.inference.engine import EngineLoad, EngineRequest, SwapReport, TokenDelta
from online_sao.inference.requests import MAX_TOP_LOGPROBS, RequestLimits, seed_key
from online_sao.inference.slots import Slots
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.architecture import adapted_without_numbers
from online_sao.inference.vllm.outputs import Spans, to_deltas
from online_sao.models.adapter import check_fits, read_adapter

logger = logging.getLogger(__name__)

T = TypeVar("T")

MIN_TEMPERATURE = 1e-2
"""Lowest temperature above 0: vLLM raises lower ones to it."""
STEP_SECONDS = 60.0
"""Longest wait for one step of a swap. A call to a core that has died never returns."""
STOP_SECONDS = 1.0
"""What the core is given to end by itself before it is killed."""


@dataclass(slots=True)
class _Serving:
    """What runs between ``start`` and ``stop``. ``adapter_dir``: that of the weights in place. ``collectors``: the requests inside."""

    llm: Any
    limits: RequestLimits
    adapter_dir: Path | None
    collectors: dict[str, Any] = field(default_factory=dict)
    broken: str | None = None

    @property
    def healthy(self) -> bool:
        return self.broken is None and not self.llm.errored


class VLLMEngine:
    """Use from one event loop. Between a dead core and the next ``start`` it is not ``healthy`` and every request gets EngineError."""

    def __init__(self, settings: EngineSettings, model_path: Path) -> None:
        if settings.kv_cache_tokens < settings.max_context_tokens:
            raise ConfigurationError(
                f"engine.kv_cache_tokens ({settings.kv_cache_tokens}) must hold one completion of engine.max_context_tokens "
                f"({settings.max_context_tokens})."
            )
        self._settings = settings
        self._model_path = model_path
        self._version = 0
        self._swaps = 0
        self._serving: _Serving | None = None
        self._ids = itertools.count()
        self._slots = Slots(settings.max_concurrent, settings.kv_cache_tokens // launch.BLOCK_TOKENS)
        self._changing = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def healthy(self) -> bool:
        """Whether requests can be served now."""
        return self._serving is not None and self._serving.healthy

    @property
    def max_top_logprobs(self) -> int:
        return MAX_TOP_LOGPROBS

    def load(self) -> EngineLoad:
        return EngineLoad(running=self._slots.running, waiting=self._slots.waiting)

    async def served_digest(self) -> tuple[float, ...]:
        """From the layers of the worker, which does nothing else meanwhile: a few milliseconds a layer."""
        return await self._digest(self._require_serving())

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Raises ConfigurationError if the model cannot hold engine.max_context_tokens or vLLM is not installed, PolicyStoreError if the adapter is
        unusable, EngineError if vLLM does not start."""
        async with self._changing:
            if self._serving is not None:
                raise EngineError("The engine is already started.")
            limits = self._limits()
            await self._check_adapter(adapter_dir)
            try:
                llm = await asyncio.to_thread(launch.start, self._settings, self._model_path)
            except ImportError as error:
                raise ConfigurationError(f"engine.kind is 'vllm', but vLLM cannot be imported ({error}). See docs/operations.md.") from error
            except Exception as error:
                raise EngineError(f"vLLM did not start: {error}") from error
            serving = _Serving(llm, limits, None)
            try:
                await self._put_in_place(serving, policy_version, adapter_dir)
            except BaseException:
                await asyncio.to_thread(launch.stop, llm, STOP_SECONDS)
                raise
            self._version = policy_version
            self._serving = serving

    async def stop(self) -> None:
        """Ends within seconds; requests in flight get EngineError. No process is left."""
        async with self._changing:
            serving, self._serving = self._serving, None
            if serving is not None:
                _fail_all(serving, "The engine was stopped.")
                await asyncio.to_thread(launch.stop, serving.llm, STOP_SECONDS)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """See the contract. Also raises ContextLengthError and InvalidRequestError for what cannot be sampled from."""
        max_tokens = self._require_serving().limits.check(request)
        async with self._slots.hold(math.ceil((len(request.prompt_ids) + max_tokens) / launch.BLOCK_TOKENS)):
            serving = self._require_serving()
            async with self._inside(serving, request, self._sampling(request, max_tokens)) as (collector, spans):
                finished = False
                while not finished:
                    output = await _next_output(serving, collector)
                    finished = output.finished
                    for delta in to_deltas(output, spans, request.top_logprobs):
                        yield delta

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        """Raises PolicyStoreError (unusable adapter) or EngineError (the core is dead, or died of it); else, on failure, the old weights serve."""
        # A task of its own: a caller that is cancelled must not leave the core parked.
        return await asyncio.shield(asyncio.create_task(self._swap_alone(policy_version, adapter_dir)))

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        """See the contract. vLLM computes the text in the pieces of ``max_batch_tokens``, beside everyone's decoding."""
        serving, swaps = self._require_serving(), self._swaps
        serving.limits.check_text(tuple(token_ids))
        if len(token_ids) < 2:
            return []
        longest = serving.llm.model_config.max_model_len - 1
        if len(token_ids) > longest:
            raise ContextLengthError(f"The text has {len(token_ids)} tokens; vLLM scores {longest} at most.")
        request = EngineRequest("score", tuple(token_ids), 1, 1.0, 1.0, ())
        async with self._slots.hold(math.ceil(len(token_ids) / launch.BLOCK_TOKENS)):
            serving = self._require_serving()
            async with self._inside(serving, request, launch.sampling_params(max_tokens=1, temperature=1.0, prompt_logprobs=0)) as (collector, _):
                output = await _next_output(serving, collector)
        if self._swaps != swaps:
            raise EngineError("The text was not scored: the version was replaced meanwhile.")
        return [output.prompt_logprobs[place][token].logprob for place, token in enumerate(token_ids) if place]

    def _limits(self) -> RequestLimits:
        config = AutoConfig.from_pretrained(self._model_path, local_files_only=True).get_text_config()
        longest = config.max_position_embeddings
        if self._settings.max_context_tokens > longest:
            raise ConfigurationError(
                f"engine.max_context_tokens is {self._settings.max_context_tokens}, but the model holds {longest} tokens at most."
            )
        return RequestLimits(config.vocab_size, self._settings.max_context_tokens, MIN_TEMPERATURE)

    async def _check_adapter(self, adapter_dir: Path | None) -> None:
        """Everything that can be wrong with an adapter is found before anyone has to wait for it."""
        if adapter_dir is not None:
            check_fits(adapted_without_numbers(self._model_path), await asyncio.to_thread(read_adapter, adapter_dir))

    def _sampling(self, request: EngineRequest, max_tokens: int) -> Any:
        key = seed_key(request)
        greedy = request.temperature == 0
        return launch.sampling_params(
            max_tokens=max_tokens,
            temperature=float(request.temperature),
            top_p=1.0 if greedy else float(request.top_p),
            stop_token_ids=list(request.eos_token_ids),
            seed=None if key is None else int.from_bytes(hashlib.sha256(key.encode()).digest()[:7]),
            logprobs=min(request.top_logprobs, self._require_serving().limits.vocabulary),
        )

    @asynccontextmanager
    async def _inside(self, serving: _Serving, request: EngineRequest, sampling: Any) -> AsyncIterator[tuple[Any, Spans]]:
        """A request in vLLM, as (its collector of outputs, its spans); aborted on leaving unless it has ended."""
        # Ids of our own: a new request must not meet the end of an earlier one that had the same id.
        key = f"{next(self._ids)}:{request.request_id}"
        prompt = {"prompt_token_ids": list(request.prompt_ids), "cache_salt": str(self._swaps)}
        try:
            collector = await serving.llm.add_request(key, prompt, sampling)
        except Exception as error:
            raise EngineError(f"vLLM did not take the request: {error}") from error
        serving.collectors[collector.request_id] = collector
        states = serving.llm.output_processor.request_states
        try:
            yield collector, Spans(states.get(collector.request_id))
        finally:
            del serving.collectors[collector.request_id]
            if collector.request_id in states and serving.healthy:
                # A task of its own: who leaves by being cancelled may be cancelled again.
                await asyncio.shield(asyncio.create_task(serving.llm.abort(collector.request_id, internal=True)))

    async def _swap_alone(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        async with self._changing:
            serving = self._require_serving()
            started = time.perf_counter()
            await self._check_adapter(adapter_dir)
            in_flight = self._slots.running
            recompute = self._settings.kv_policy == "recompute"
            paused = time.perf_counter()
            await self._step(serving, serving.llm.pause_generation(mode="keep", clear_cache=recompute))
            try:
                recomputed = _computed_tokens(serving.llm) if recompute else 0
                await self._replace(serving, policy_version, adapter_dir)
            finally:
                if serving.healthy:
                    await self._step(serving, serving.llm.resume_generation())
            pause_seconds = time.perf_counter() - paused
            digest = await self._digest(serving)
            return SwapReport(policy_version, pause_seconds, time.perf_counter() - started, in_flight, recomputed, digest)

    async def _replace(self, serving: _Serving, policy_version: int, adapter_dir: Path | None) -> None:
        """Inside a pause: the weights of a version in place, or the old ones left."""
        before = serving.adapter_dir
        try:
            await self._put_in_place(serving, policy_version, adapter_dir)
        except Exception as error:
            if serving.healthy:
                logger.warning("the weights of version %d could not be put in place; those of version %d are", policy_version, self._version)
                await self._put_in_place(serving, self._version, before)
            raise error if isinstance(error, EngineError) else PolicyStoreError(f"The weights could not be put in place: {error}") from error
        self._version = policy_version

    async def _put_in_place(self, serving: _Serving, policy_version: int, adapter_dir: Path | None) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        llm, label = serving.llm, str(policy_version)
        if adapter_dir is None and serving.adapter_dir is None:
            await self._step(serving, llm.update_weight_version(label))
        else:
            await self._step(serving, llm.start_weight_update())
            update = {"adapter_dir": None if adapter_dir is None else str(adapter_dir)}
            await self._step(serving, llm.update_weights(WeightTransferUpdateRequest(update_info=update)))
            await self._step(serving, llm.finish_weight_update(weight_version=label))
        serving.adapter_dir = adapter_dir
        self._swaps += 1

    async def _digest(self, serving: _Serving) -> tuple[float, ...]:
        found = await self._step(serving, serving.llm.collective_rpc("served_fingerprint"))
        return tuple(found[0])

    async def _step(self, serving: _Serving, call: Awaitable[T]) -> T:
        """One call to the core. If it does not answer, or has died, it is given up: nobody knows what it holds. Raises EngineError."""
        task = asyncio.ensure_future(call)
        deadline = time.monotonic() + STEP_SECONDS
        while not task.done():
            await asyncio.wait({task}, timeout=0.2)
            if serving.llm.errored or time.monotonic() > deadline:
                break
        if task.done() and not serving.llm.errored:
            return task.result()
        task.cancel()
        reason = "vLLM's engine core has ended." if serving.llm.errored else f"vLLM's engine core did not answer for {STEP_SECONDS:.0f} s."
        serving.broken = reason
        _fail_all(serving, reason)
        raise EngineError(reason)

    def _require_serving(self) -> _Serving:
        if self._serving is None:
            raise EngineError("The engine is not started.")
        if not self._serving.healthy:
            raise EngineError(self._serving.broken or "vLLM's engine core has ended.")
        return self._serving


async def _next_output(serving: _Serving, collector: Any) -> Any:
    try:
        return collector.get_nowait() or await collector.get()
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"vLLM's engine core has ended: {error}" if serving.llm.errored else f"vLLM failed this request: {error}") from error


def _computed_tokens(llm: Any) -> int:
    """Tokens whose keys and values the requests inside had, and will compute again: all but the last sampled one, of those past their prompt."""
    states = llm.output_processor.request_states.values()
    return sum(state.prompt_len + sampled - 1 for state in states if (sampled := state.detokenizer.num_output_tokens()))


def _fail_all(serving: _Serving, message: str) -> None:
    for collector in serving.collectors.values():
        collector.put(EngineError(message))
