"""One running vLLM core as the engine deals with it: calls that cannot hang, weights put in place, requests told when it ends. Owns what is known of
the core: whether it lives, whose weights it has, which requests are inside. Knows nothing of when a version changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from online_sao.errors import EngineError
from online_sao.inference.vllm import launch
from online_sao.inference.vllm.outputs import OneVersion, Spans
from online_sao.models.fingerprint import ServedDigest

T = TypeVar("T")

STEP_SECONDS = 60.0
"""Longest wait for one call. A call to a core that has died never returns."""
STOP_SECONDS = 1.0
"""What the core is given to end by itself before it is killed."""
ENDED = "vLLM's engine core has ended."


@dataclass(frozen=True, slots=True)
class Entry:
    """With which weights a request goes in. ``cache_salt``: only requests of the same one find each other's prefixes. ``lora``: vLLM's LoRARequest.
    ``spans``: None where the weights may change under it."""

    cache_salt: str | None = None
    lora: Any | None = None
    spans: OneVersion | None = None


class Core:
    """What launch.start gave, on the base model still. Use from one event loop."""

    def __init__(self, started: launch.Started) -> None:
        self.llm = started.llm
        self._started = started
        self.adapter_dir: Path | None = None
        """That of the weights in place; None: the base model's."""
        self.poisoned = False
        """The cache holds keys and values that are no numbers, which vLLM's attention multiplies by 0 for whoever gets their place next: 0 · NaN is
        NaN."""
        self._half_done = False
        self._collectors: dict[str, Any] = {}
        self._broken: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it computes in fp32."""
        return bool(self.llm.model_config.dtype == torch.float32)

    @property
    def problem(self) -> str | None:
        """Why it can serve no longer; None: it can."""
        return ENDED if self.llm.errored else self._broken

    async def pause(self, *, clear_cache: bool) -> None:
        """At a token boundary; requests stay. ``clear_cache``: and compute all their keys and values again when it goes on."""
        await self.call(self.llm.pause_generation(mode="keep", clear_cache=clear_cache))

    async def resume(self) -> None:
        await self.call(self.llm.resume_generation())

    async def put_in_place(self, label: str, adapter_dir: Path | None) -> None:
        """The weights of an adapter (None: the base's) in place of what is there, and what is sampled from now on labelled. Only while paused, or
        with no request inside."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        if adapter_dir is None and self.adapter_dir is None and not self._half_done:
            await self.call(self.llm.update_weight_version(label))
            return
        self._half_done = True
        await self.call(self.llm.start_weight_update())
        update = {"adapter_dir": None if adapter_dir is None else str(adapter_dir)}
        await self.call(self.llm.update_weights(WeightTransferUpdateRequest(update_info=update)))
        await self.call(self.llm.finish_weight_update(weight_version=label))
        self.adapter_dir, self._half_done = adapter_dir, False

    async def digest(self, lora: Any | None = None) -> ServedDigest:
        """models.fingerprint of what serves, with an adapter beside it or without, by the worker, which does nothing else meanwhile."""
        ((values, tolerance),) = await self.call(
            self.llm.collective_rpc("served_fingerprint", args=(lora.lora_int_id if lora is not None else None,))
        )
        return ServedDigest(tuple(values), tolerance)

    async def cleanse(self) -> None:
        """Zeros for all keys and values. Only paused with ``clear_cache``."""
        await self.call(self.llm.collective_rpc("zero_cache"))
        self.poisoned = False

    def computed_tokens(self) -> int:
        """Tokens whose keys and values the requests inside have: all but the last sampled one, of those past their prompt."""
        states = self.llm.output_processor.request_states.values()
        return sum(state.prompt_len + sampled - 1 for state in states if (sampled := state.detokenizer.num_output_tokens()))

    async def call(self, call: Awaitable[T]) -> T:
        """If it does not answer, or has died, the core is given up: nobody knows what it holds. Raises EngineError then."""
        task = asyncio.ensure_future(call)
        deadline = time.monotonic() + STEP_SECONDS
        while not task.done() and not self.llm.errored and time.monotonic() < deadline:
            await asyncio.wait({task}, timeout=0.2)
        if task.done() and not self.llm.errored:
            return task.result()
        task.cancel()
        self._broken = ENDED if self.llm.errored else f"vLLM's engine core did not answer for {STEP_SECONDS:.0f} s."
        self.fail_all(self._broken)
        raise EngineError(self._broken)

    @asynccontextmanager
    async def request(self, key: str, prompt: dict[str, Any], sampling: Any, entry: Entry) -> AsyncIterator[tuple[Any, Spans | OneVersion]]:
        """A request inside, as (its collector of outputs, its spans); aborted on leaving unless it has ended."""
        if entry.cache_salt is not None:
            prompt = {**prompt, "cache_salt": entry.cache_salt}
        try:
            collector = await self.llm.add_request(key, prompt, sampling, lora_request=entry.lora)
        except Exception as error:
            raise EngineError(f"vLLM did not take the request: {error}") from error
        self._collectors[collector.request_id] = collector
        states = self.llm.output_processor.request_states
        try:
            yield collector, entry.spans or Spans(states.get(collector.request_id))
        finally:
            del self._collectors[collector.request_id]
            if collector.request_id in states and self.problem is None:
                # A task of its own: who leaves by being cancelled may be cancelled again.
                await asyncio.shield(asyncio.create_task(self.llm.abort(collector.request_id, internal=True)))

    async def next_output(self, collector: Any) -> Any:
        try:
            return collector.get_nowait() or await collector.get()
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(self.problem or f"vLLM failed this request: {error}") from error

    async def stop(self, message: str) -> None:
        """Ends within seconds, with every process of it; those inside are told."""
        self.fail_all(message)
        await asyncio.to_thread(launch.stop, self._started, STOP_SECONDS)

    def fail_all(self, message: str) -> None:
        for collector in self._collectors.values():
            collector.put(EngineError(message))
