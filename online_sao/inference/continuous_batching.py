"""The only module that touches the insides of transformers' continuous batching (pinned to 5.19): builds its manager, samples, re-queues.

Owns what the public interface lacks: greedy decoding, a seed and the likeliest tokens per request, a numerical fault that stays with its request,
results handed to one event loop in order, a daemon thread, and the recomputation of KV caches. Knows nothing of versions or adapters.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig, LogitsProcessorList, PreTrainedModel, TemperatureLogitsWarper, TopPLogitsWarper
from transformers.generation.continuous_batching import ContinuousBatchingManager, RequestStatus
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)
from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.continuous_batching.model_runner import ModelRunner

from online_sao.config import EngineSettings
from online_sao.inference.engine import TopLogprobs
from online_sao.inference.slots import BACKGROUND_PLACES

PAGE_TOKENS = 16
"""Tokens in one page of the KV cache."""
STOP_SECONDS = 8.0
"""Longest wait for the forward pass in progress when the loop is told to stop."""

Receive = Callable[[list[tuple[Any, TopLogprobs | None]]], None]
"""Takes outputs as they come, each with the likeliest tokens at the place of its last token, if the request asked for them."""

# It has a handler of its own and says nothing that the engine does not say better.
logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)


class _Temperature(ContinuousBatchingTemperatureLogitsWarper):  # type: ignore[misc]
    """Scales logits by each request's temperature; 0 leaves them as they are and marks the row as greedy."""

    # The other two are read by the runner, from the request itself: being declared here is what lets a request carry them.
    supported_kwargs: ClassVar[dict[str, type]] = {"temperature": float, "random_key": str, "top_logprobs": int}
    greedy: Tensor

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        temperatures = tensor_arg[: scores.size(0)].view(dtype=torch.float32)
        self.greedy = temperatures == 0
        return scores / torch.where(self.greedy, 1.0, temperatures).unsqueeze(-1)


class _TopP(ContinuousBatchingTopPLogitsWarper):  # type: ignore[misc]
    """Sorting the vocabulary costs as much as a small layer: only the rows that ask for it pay."""

    def __call__(self, scores: Tensor, tensor_arg: Tensor) -> Tensor:
        arguments = tensor_arg[: scores.size(0)]
        rows = arguments.view(dtype=torch.float32) < 1
        if rows.any():
            scores[rows] = super().__call__(scores[rows], arguments[rows])
        return scores


class _Runner(ModelRunner):  # type: ignore[misc]
    temperature: _Temperature
    likeliest: dict[str, TopLogprobs]
    """By request: the likeliest tokens at the place of the token just sampled. Taken out as that token is handed over."""

    def _sample(self, scores: Tensor, output_ids: Tensor) -> None:
        """Sample from processed logits [1, N, V]; argmax in greedy rows. Writes token ids and their logprobs under that same distribution.

        A row without a finite distribution gets logprob NaN, by which the engine knows it: raising here would end the loop for everybody.
        """
        logprobs = torch.log_softmax(scores[0], dim=-1)
        probabilities = logprobs.exp()
        broken = ~torch.isfinite(probabilities.sum(dim=-1))
        probabilities[broken] = 1.0
        tokens = invert(probabilities, self._draws(len(probabilities)))
        greedy = self.temperature.greedy
        if greedy.any():
            tokens[greedy] = logprobs[greedy].argmax(dim=-1)
        chosen = logprobs.gather(1, tokens.unsqueeze(-1)).squeeze(-1).masked_fill(broken, torch.nan)
        self._note_likeliest(logprobs)
        count = tokens.size(0)
        output_ids[0, :count].copy_(tokens)
        output_ids[1, :count].copy_(chosen.view(dtype=torch.int32))

    def _rows(self) -> Iterator[tuple[int, Any]]:
        """(row of the logits, request state) of every request that gets a token in this step: in the batch's order, as the processors count them."""
        return enumerate(future.state for future in self.inputs_and_outputs.requests_in_batch if future.has_new_token)

    def _draws(self, count: int) -> Tensor:
        """A number from [0, 1) for every row. That of a request with a random key comes from the key and the token's place: nothing is kept between
        steps, so that neither the other requests nor a recomputation of the cache can shift it."""
        draws = torch.rand(count, dtype=torch.float64)
        for row, state in self._rows():
            key = state.logit_processor_kwargs.get("random_key")
            if key is not None:
                draws[row] = uniform(key, len(state.logprobs))
        return draws

    def _note_likeliest(self, logprobs: Tensor) -> None:
        for row, state in self._rows():
            count = state.logit_processor_kwargs.get("top_logprobs", 0)
            if count:
                values, ids = logprobs[row].topk(count)
                # What top-p has removed was no alternative.
                self.likeliest[state.request_id] = tuple((i, v) for i, v in zip(ids.tolist(), values.tolist(), strict=True) if v > -torch.inf)


def invert(probabilities: Tensor, draws: Tensor) -> Tensor:
    """The token of each row [N, V] at which its distribution function (in float64; rows need not sum to 1) first exceeds ``draws`` [N]: never one of
    probability 0. One random number a row; ``torch.multinomial`` draws one for every token of the vocabulary, 8 % of a step of 16."""
    cumulative = probabilities.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # A draw just below 1 can round up to the total, which nothing exceeds.
    reached = torch.minimum(draws.to(total).unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, reached, right=True).squeeze(-1)


def uniform(key: str, position: int) -> float:
    """A number from [0, 1), uniform over keys and positions: 52 bits of a hash."""
    digest = hashlib.blake2b(f"{position}:{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 12) * 2.0**-52


class _LoopRouter(OutputRouter):  # type: ignore[misc]
    """Hands every output to one function on one event loop, in the order of generation. Outputs nobody waits for do not pile up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive) -> None:
        super().__init__()
        self._loop = loop
        self._receive = receive
        self.likeliest: dict[str, TopLogprobs] = {}

    def deliver(self, output: Any) -> None:
        self.deliver_batch([output])

    def deliver_batch(self, outputs: list[Any]) -> None:
        taken = [(output, self.likeliest.pop(output.request_id, None)) for output in outputs]
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._receive, taken)


def build_manager(model: PreTrainedModel, settings: EngineSettings, loop: asyncio.AbstractEventLoop, receive: Receive) -> ContinuousBatchingManager:
    """A manager with its cache allocated, sized by the settings alone (left to itself it takes most of the memory). Not started yet.

    ``receive`` is called on ``loop``. Requests take ``temperature`` (0: greedy) and ``top_p`` as floats, and may take ``random_key`` (text that
    decides all their random draws) and ``top_logprobs`` (a count).
    """
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=settings.kv_cache_tokens // PAGE_TOKENS,
        max_batch_tokens=settings.max_batch_tokens,
        max_requests_per_batch=settings.max_concurrent + BACKGROUND_PLACES,
        max_blocks_per_request=0,
        allow_block_sharing=False,  # a shared prefix would carry keys and values of older weights over a swap
        use_async_batching=False,
        safety_margin=0.0,  # the engine admits only what fits
        return_logprobs=True,
        auto_switch_to_flash=False,
    )
    manager = model.init_continuous_batching(generation_config=GenerationConfig(do_sample=True, eos_token_id=-1), continuous_batching_config=config)
    manager.output_router = router = _LoopRouter(loop, receive)
    # Built by hand: the manager makes per-request processors only for what its generation config already changes.
    temperature = _Temperature(TemperatureLogitsWarper(1.0))
    processors = manager.logit_processor
    processors.logits_processor = LogitsProcessorList([temperature, _TopP(TopPLogitsWarper(1.0))])
    processors.tensors_required = 2
    processors.do_processing = True
    processors._retrieve_processors_kwargs()
    processor = manager._create_batch_processor()
    runner = _Runner(
        logit_processor=processors,
        cb_config=processor.cb_config,
        inputs_and_outputs=processor.inputs_and_outputs,
        cache=processor.cache,
        do_sample=True,
        return_logprobs=True,
    )
    runner.temperature = temperature
    runner.likeliest = router.likeliest
    processor.model_runner = runner
    manager.batch_processor = processor
    return manager


def start_thread(manager: ContinuousBatchingManager, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
    """Run the generation loop in a daemon thread (the manager's own would keep the process alive). ``ended`` is called on ``loop`` at its end."""

    def run() -> None:
        try:
            manager._run_generation_loop()
        finally:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended)

    manager.background_thread_status.clear()
    manager._generation_thread = threading.Thread(target=run, name="generation", daemon=True)
    manager._generation_thread.start()


def stop_thread(manager: ContinuousBatchingManager) -> None:
    """End the loop after the forward pass in progress; requests inside are failed. Returns within STOP_SECONDS."""
    manager._wake_up_loop.set()
    manager.stop(block=True, timeout=STOP_SECONDS, hard_stop=True)


def is_alive(manager: ContinuousBatchingManager) -> bool:
    return bool(manager.is_running()) and manager.background_thread_status.can_accept_new_requests() is None


def requests_inside(manager: ContinuousBatchingManager) -> int:
    """Completions the loop holds, inside a pause."""
    scheduler = manager.batch_processor.scheduler
    return len(scheduler.active_requests) + len(scheduler.waiting_requests)


def recompute_caches(manager: ContinuousBatchingManager) -> int:
    """Inside a pause: throw away all keys and values, and queue every running completion to be prefilled again (prompt and tokens so far).

    Its logprobs stay. Returns the number of tokens to be computed again.
    """
    scheduler, cache = manager.batch_processor.scheduler, manager.batch_processor.cache
    tokens = 0
    for state in list(scheduler.active_requests.values()):
        tokens += state.current_len()
        again = state.create_equivalent_initial_request()
        cache.free_blocks(state.request_id, no_cache=True)
        scheduler.finish_request(state.request_id)
        state._status = RequestStatus.FINISHED  # not by the setter, which stamps an end that is none
        scheduler.add_waiting_request(again)
    cache.evict_cached_blocks()
    return tokens
