"""The embedded engine: the InferenceEngine contract over transformers' continuous batching. Owns the served model and its weights.

Which version a token comes from: the generation thread posts its outputs to the event loop in order, and a swap posts the new version while that
thread is parked. So an output handled before the new version is of the old weights, one handled after it of the new, and none is of both.
Knows nothing of chat, storage or how versions come about.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from online_sao.config import EngineSettings
from online_sao.errors import ConfigurationError, EngineError
from online_sao.inference import continuous_batching as batching
from online_sao.inference.engine import FP32_LOGPROB_TOLERANCE, EngineLoad, EngineRequest, SingleEngine, SwapReport, TokenDelta, TopLogprobs
from online_sao.inference.requests import MAX_TOP_LOGPROBS, RequestLimits, seed_key
from online_sao.inference.slots import Slots
from online_sao.inference.text_scoring import TextScorer
from online_sao.models.adapter import Adapter, MergedWeights, check_fits, read_adapter
from online_sao.models.catalog import load_model
from online_sao.models.fingerprint import ServedDigest, fingerprint

logger = logging.getLogger(__name__)

MIN_TEMPERATURE = 1e-3
"""Lowest temperature above 0: below it, tempered fp32 logits are no longer exact enough to learn from."""


@dataclass(slots=True)
class _Live:
    """One completion inside the generation loop."""

    eos_token_ids: frozenset[int]
    deltas: asyncio.Queue[TokenDelta | EngineError] = field(default_factory=asyncio.Queue)
    seen: int = 0
    finished: bool = False

    def finish_reason(self, last_tokens: tuple[int, ...]) -> Literal["stop", "length"]:
        return "stop" if last_tokens and last_tokens[-1] in self.eos_token_ids else "length"


@dataclass(slots=True)
class _Serving:
    """What is loaded between ``start`` and ``stop``."""

    manager: Any
    model: PreTrainedModel
    weights: MergedWeights
    adapter: Adapter | None
    limits: RequestLimits
    weights_lock: threading.Lock = field(default_factory=threading.Lock)


class TransformersEngine(SingleEngine):
    """Use from one event loop. Between a failed loop and the next ``start`` it is not ``healthy`` and every request gets EngineError."""

    def __init__(self, settings: EngineSettings, model_path: Path) -> None:
        if settings.kv_cache_tokens < settings.max_context_tokens + batching.PAGE_TOKENS:
            raise ConfigurationError(
                f"engine.kv_cache_tokens ({settings.kv_cache_tokens}) must hold one completion of engine.max_context_tokens "
                f"({settings.max_context_tokens}) and a page of {batching.PAGE_TOKENS}."
            )
        self._settings = settings
        self._model_path = model_path
        self._version = 0
        self._serving: _Serving | None = None
        self._live: dict[str, _Live] = {}
        self._ids = itertools.count()
        self._slots = Slots(settings.max_concurrent, settings.kv_cache_tokens // batching.PAGE_TOKENS)
        self._changing = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def healthy(self) -> bool:
        """Whether requests can be served now."""
        return self._serving is not None and batching.is_alive(self._serving.manager)

    @property
    def max_top_logprobs(self) -> int:
        return MAX_TOP_LOGPROBS

    @property
    def logprob_tolerance(self) -> float:
        return FP32_LOGPROB_TOLERANCE

    @property
    def serves_pinned(self) -> bool:
        return False

    def load(self) -> EngineLoad:
        return EngineLoad(self._slots.running, self._slots.waiting, self._slots.pages_taken)

    async def served_digest(self) -> ServedDigest:
        """About 0.3 s of computation for the bundled model, in a thread."""
        return await asyncio.to_thread(self._digest, self._require_serving())

    def _digest(self, serving: _Serving) -> ServedDigest:
        with serving.weights_lock:
            return ServedDigest(fingerprint(serving.weights.served))

    async def start(self, policy_version: int, adapter_dir: Path | None) -> None:
        """Raises ConfigurationError if the model cannot hold engine.max_context_tokens, PolicyStoreError if the adapter is unusable."""
        async with self._changing:
            if self._serving is not None:
                raise EngineError("The engine is already started.")
            loop = asyncio.get_running_loop()
            serving = await asyncio.to_thread(self._load, loop, adapter_dir)
            self._version = policy_version
            self._serving = serving
            batching.start_thread(serving.manager, loop, lambda: self._loop_ended(serving))

    async def stop(self) -> None:
        """Ends within seconds; requests in flight get EngineError. The model's memory is released."""
        async with self._changing:
            serving, self._serving = self._serving, None
            if serving is not None:
                await asyncio.to_thread(batching.stop_thread, serving.manager)
                self._fail_all("The engine was stopped.")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """See the contract. Also raises ContextLengthError and InvalidRequestError for what cannot be sampled from: it must not reach the batch."""
        serving = self._require_serving()
        max_tokens = serving.limits.check(request)
        async with self._slots.hold(math.ceil((len(request.prompt_ids) + max_tokens) / batching.PAGE_TOKENS), background=request.background):
            serving = self._require_serving()
            # Ids of our own: a new request must not meet the cancellation of an earlier one that had the same id.
            key = f"{next(self._ids)}:{request.request_id}"
            live = self._live[key] = _Live(frozenset(request.eos_token_ids))
            try:
                self._submit(serving, key, request, max_tokens)
                while not live.finished:
                    delta = await live.deltas.get()
                    if isinstance(delta, EngineError):
                        raise delta
                    live.finished = delta.finish_reason is not None
                    yield delta
            finally:
                del self._live[key]
                if not live.finished:
                    serving.manager.cancel_request(key)

    async def swap(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        """Raises PolicyStoreError (unusable adapter) or EngineError (the loop is dead); the old weights still serve then."""
        # A task of its own: a caller that is cancelled must not leave the thread swapping without the lock.
        return await asyncio.shield(asyncio.create_task(self._swap_alone(policy_version, adapter_dir)))

    async def _swap_alone(self, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        async with self._changing:
            return await asyncio.to_thread(self._swap, asyncio.get_running_loop(), self._require_serving(), policy_version, adapter_dir)

    async def score_text(self, token_ids: Sequence[int]) -> list[float]:
        """See the contract. Each chunk is a pause of its own, at a token boundary; between two, decoding goes on for as long as the last one took."""
        serving, version = self._require_serving(), self._version
        serving.limits.check_text(token_ids)
        scorer = TextScorer(serving.model, token_ids)
        while not scorer.finished:
            started = time.perf_counter()
            # A task of its own, as for a swap: a caller that is cancelled must not leave the thread reading weights without the lock.
            await asyncio.shield(asyncio.create_task(self._score_alone(serving, version, scorer)))
            if self._live:
                await asyncio.sleep(time.perf_counter() - started)
        return scorer.logprobs

    async def _score_alone(self, serving: _Serving, version: int, scorer: TextScorer) -> None:
        async with self._changing:
            if self._require_serving() is not serving or self._version != version:
                raise EngineError(f"The text was not scored: version {version} was replaced meanwhile.")
            await asyncio.to_thread(self._score_chunk, serving, scorer)

    def _score_chunk(self, serving: _Serving, scorer: TextScorer) -> None:
        try:
            with serving.manager.pause():
                scorer.advance()
        except RuntimeError as error:
            raise EngineError(f"The text could not be scored: {error}") from error

    def _load(self, loop: asyncio.AbstractEventLoop, adapter_dir: Path | None) -> _Serving:
        torch.set_num_threads(self._settings.threads or os.cpu_count() or 1)
        model = load_model(self._model_path).requires_grad_(False)
        limits = RequestLimits.of(model.config, self._settings, MIN_TEMPERATURE)
        weights = MergedWeights(model)
        adapter = read_adapter(adapter_dir) if adapter_dir is not None else None
        if adapter is not None:
            weights.apply(adapter)
        manager = batching.build_manager(model, self._settings, loop, self._receive)
        return _Serving(manager, model, weights, adapter, limits)

    def _swap(self, loop: asyncio.AbstractEventLoop, serving: _Serving, policy_version: int, adapter_dir: Path | None) -> SwapReport:
        started = time.perf_counter()
        # Everything that can be wrong with an adapter is found before anyone has to wait for it.
        adapter = read_adapter(adapter_dir) if adapter_dir is not None else None
        if adapter is not None:
            check_fits(serving.weights.pristine, adapter)
        try:
            with serving.manager.pause():
                paused = time.perf_counter()
                in_flight = batching.requests_inside(serving.manager)
                recomputed = self._replace(serving, adapter)
                loop.call_soon_threadsafe(self._serve_version, policy_version)
                pause_seconds = time.perf_counter() - paused
        except RuntimeError as error:
            raise EngineError(f"The weights could not be swapped: {error}") from error
        digest = ServedDigest(fingerprint(serving.weights.served))
        return SwapReport(policy_version, pause_seconds, time.perf_counter() - started, in_flight, recomputed, digest)

    def _replace(self, serving: _Serving, adapter: Adapter | None) -> int:
        """Inside a pause: put an adapter's weights in place, or leave the old ones. Returns the tokens that will be computed again."""
        with serving.weights_lock:
            try:
                serving.weights.apply(adapter)
                recomputed = batching.recompute_caches(serving.manager) if self._settings.kv_policy == "recompute" else 0
            except BaseException:
                serving.weights.apply(serving.adapter)
                raise
            serving.adapter = adapter
            return recomputed

    def _serve_version(self, policy_version: int) -> None:
        self._version = policy_version

    def _require_serving(self) -> _Serving:
        if self._serving is None:
            raise EngineError("The engine is not started.")
        if not batching.is_alive(self._serving.manager):
            raise EngineError("The engine's generation loop has ended.")
        return self._serving

    def _submit(self, serving: _Serving, key: str, request: EngineRequest, max_tokens: int) -> None:
        greedy = request.temperature == 0
        added = serving.manager.add_request(
            list(request.prompt_ids),
            request_id=key,
            max_new_tokens=max_tokens,
            streaming=True,
            eos_token_id=list(request.eos_token_ids),
            temperature=float(request.temperature),
            top_p=1.0 if greedy else float(request.top_p),
            **_options(request, serving.limits.vocabulary),
        )
        if added is None:
            raise EngineError("The engine's generation loop has ended.")

    def _receive(self, outputs: list[tuple[Any, TopLogprobs | None]]) -> None:
        """On the event loop: what one step of the generation loop produced. Outputs are cumulative."""
        for output, likeliest in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            if output.error is not None:
                live.deltas.put_nowait(EngineError(f"The engine failed this request: {output.error}"))
                continue
            tokens, logprobs = tuple(output.generated_tokens[live.seen :]), tuple(output.logprobs[live.seen :])
            live.seen += len(tokens)
            if len(tokens) != len(logprobs) or not all(map(math.isfinite, logprobs)):
                live.deltas.put_nowait(EngineError("The model gave no finite distribution for the next token."))
                continue
            finish_reason = live.finish_reason(tokens) if output.is_finished() else None
            top = () if likeliest is None else (likeliest,)
            live.deltas.put_nowait(TokenDelta(tokens, logprobs, self._version, finish_reason, top))

    def _loop_ended(self, serving: _Serving) -> None:
        if serving is not self._serving:
            return  # ended by ``stop``, which has told everyone
        error = serving.manager.background_thread_status.fatal_error
        if error is not None:
            logger.error("The generation loop died: %r", error)
        self._fail_all(f"The engine's generation loop has ended{f': {error}' if error is not None else ''}.")

    def _fail_all(self, message: str) -> None:
        for live in self._live.values():
            live.deltas.put_nowait(EngineError(message))


def _options(request: EngineRequest, vocabulary: int) -> dict[str, Any]:
    options: dict[str, Any] = {}
    key = seed_key(request)
    if key is not None:
        options["random_key"] = key
    if request.top_logprobs:
        options["top_logprobs"] = min(request.top_logprobs, vocabulary)
    return options
