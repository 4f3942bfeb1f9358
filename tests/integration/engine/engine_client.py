"""A client for engines, and a plain teacher-forced forward pass to test them by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import DynamicCache, TopPLogitsWarper

from online_sao.inference.engine import EngineRequest, InferenceEngine, PinnedVersion
from online_sao.models.adapter import MergedWeights, read_adapter
from online_sao.models.catalog import load_model

PROMPT = (1, 4093, 198, 6004, 905, 2, 198, 1, 520, 9531, 198)


@dataclass
class Sampled:
    """What one request gave."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)


class Client:
    """Sends requests to an engine."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.engines = max(1, len(engine.replicas))
        """How many serve as this one: each has the places that the settings say."""

    async def sample(
        self,
        *,
        prompt: Sequence[int] = PROMPT,
        max_tokens: int = 12,
        temperature: float = 1.0,
        top_p: float = 1.0,
        eos: tuple[int, ...] = (),
        request_id: str = "request",
        seed: int | None = None,
        top_logprobs: int = 0,
        pinned: PinnedVersion | None = None,
        background: bool = False,
        into: Sampled | None = None,
    ) -> Sampled:
        sampled = into if into is not None else Sampled()
        request = EngineRequest(request_id, tuple(prompt), max_tokens, temperature, top_p, eos, seed, top_logprobs, pinned, background)
        async with aclosing(self.engine.generate(request)) as deltas:
            async for delta in deltas:
                assert sampled.finish_reason is None, "a delta after the last one"
                assert len(delta.token_ids) == len(delta.behavior_logprobs)
                sampled.token_ids += delta.token_ids
                sampled.logprobs += delta.behavior_logprobs
                sampled.versions += [delta.policy_version] * len(delta.token_ids)
                sampled.top_logprobs += delta.top_logprobs
                sampled.finish_reason = delta.finish_reason
        return sampled

    def begin(self, **request: object) -> tuple[asyncio.Task[Sampled], Sampled]:
        sampled = Sampled()
        return asyncio.create_task(self.sample(into=sampled, **request)), sampled  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (what is waited for belongs to another thread)
            await asyncio.sleep(0.002)


class Reference:
    """The model itself, without any engine."""

    def __init__(self, path: Path) -> None:
        self.model = load_model(path)
        self.weights = MergedWeights(self.model)

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], token_ids: Sequence[int], adapter_dir: Path | None = None) -> torch.Tensor:
        """[T, V]: row t is what token t was sampled from, in one forward pass under one version."""
        self.weights.apply(read_adapter(adapter_dir) if adapter_dir else None)
        return self.model(torch.tensor([[*prompt, *token_ids]]), use_cache=False).logits[0, len(prompt) - 1 : -1]

    @torch.no_grad()
    def logits_over_swap(self, prompt: Sequence[int], token_ids: Sequence[int], boundary: int, after: Path) -> torch.Tensor:
        """As ``logits``, where the base computed keys and values up to token ``boundary`` - 1 and ``after`` goes on with them."""
        sequence = torch.tensor([[*prompt, *token_ids]])
        split = len(prompt) + boundary - 1
        cache = DynamicCache(config=self.model.config)
        self.weights.apply(None)
        first = self.model(sequence[:, :split], past_key_values=cache, use_cache=True).logits[0]
        self.weights.apply(read_adapter(after))
        second = self.model(sequence[:, split:], past_key_values=cache, use_cache=True).logits[0]
        return torch.cat([first, second])[len(prompt) - 1 : -1]


def logprobs(logits: torch.Tensor, token_ids: Sequence[int], temperature: float = 1.0, top_p: float = 1.0) -> torch.Tensor:
    """[T] under the processed distribution; greedy (0) counts as untempered."""
    tempered = logits / (temperature or 1.0)
    if top_p < 1:
        tempered = TopPLogitsWarper(top_p)(torch.empty(0), tempered)
    return torch.log_softmax(tempered, -1).gather(1, torch.tensor(token_ids)[:, None])[:, 0]


def difference(sampled: Sampled, expected: torch.Tensor, start: int = 0, end: int | None = None) -> float:
    """Largest |engine - reference| over tokens [start, end)."""
    return float((torch.tensor(sampled.logprobs) - expected).abs()[start:end].max())
