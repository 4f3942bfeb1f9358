"""Rollouts of a task: a batch of episodes in lockstep, with weights that may be swapped between two tokens. Owns what was sampled, with which logprob
and from which version; knows nothing of recipes or learning.

Every row of the batch stands at the same position: the next token is the next one of an observation, or is sampled. A swap replaces the
weights and keeps keys and values already computed, as the service's engines do: the logprobs are those of the distribution really sampled from.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from online_sao.benchmarks.tiny_policy.task import END, PAD, Instance, Task
from online_sao.experience.trajectories import build_trajectory
from online_sao.models.adapter import Adapter, MergedWeights
from online_sao.types import Completion, FinishReason, Interaction, SamplingParams, Trajectory, VersionSpan


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token, and the version it was sampled from."""

    token: int
    logprob: float
    version: int


@dataclass(slots=True)
class _Row:
    """One episode under way. ``seen``: what the next turn is prompted with; ``pending``: tokens of an observation that have yet to be read."""

    task: Task
    instance: Instance
    seen: list[int]
    pending: deque[int] = field(default_factory=deque)
    turn: list[Sampled] = field(default_factory=list)
    interactions: list[Interaction] = field(default_factory=list)
    turns: list[tuple[int, ...]] = field(default_factory=list)
    reward: float | None = None

    def advance(self, sampled: Sampled) -> int:
        """The token that stands at the next position: ``sampled`` is taken only where no other is due."""
        if self.reward is not None:
            return PAD
        if self.pending:
            self.seen.append(self.pending.popleft())
            return self.seen[-1]
        self.turn.append(sampled)
        if sampled.token == END or len(self.turn) == self.task.max_turn_tokens:
            self._end_turn("stop" if sampled.token == END else "length")
        return sampled.token

    def _end_turn(self, reason: FinishReason) -> None:
        completion = completion_of(self.turn, reason)
        sampling = SamplingParams(max_tokens=self.task.max_turn_tokens)
        self.interactions.append(Interaction(f"turn-{len(self.turns)}", 0, tuple(self.seen), completion, sampling))
        self.turns.append(completion.token_ids)
        self.seen += completion.token_ids
        self.turn = []
        follows = self.task.react(self.instance, self.turns)
        if isinstance(follows, tuple):
            self.pending.extend(follows)
        else:
            self.reward = follows

    def trajectory(self, trajectory_id: int, group_id: int | None) -> Trajectory:
        assert self.reward is not None
        built = build_trajectory(trajectory_id, self.interactions, [*[0.0] * (len(self.interactions) - 1), self.reward])
        return replace(built, group_id=group_id)


def completion_of(turn: Sequence[Sampled], reason: FinishReason) -> Completion:
    """One turn, without its text."""
    spans, start = [], 0
    for version, run in itertools.groupby(turn, key=lambda sampled: sampled.version):
        end = start + len(list(run))
        spans.append(VersionSpan(start, end, version))
        start = end
    return Completion(tuple(s.token for s in turn), tuple(s.logprob for s in turn), tuple(spans), "", reason)


@dataclass(frozen=True, slots=True)
class Swap:
    """From its ``sampled_tokens``-th sampled position on, the batch is sampled from ``version``."""

    sampled_tokens: int
    version: int


class Sampler:
    """Serves one policy model under one adapter after another, at temperature 1. ``model`` is a copy of its own."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model.eval().requires_grad_(False)
        self._weights = MergedWeights(self._model)

    @torch.no_grad()
    def rollout(
        self,
        task: Task,
        instances: Sequence[Instance],
        adapters: Mapping[int, Adapter | None],
        version: int,
        generator: torch.Generator,
        *,
        swap: Swap | None = None,
        group_ids: Sequence[int] | None = None,
    ) -> list[Trajectory]:
        """One episode of each instance, in their order, with ids from 0. ``adapters``: version → its adapter (None: the base). ``group_ids``: of
        each instance."""
        self._weights.apply(adapters[version])
        rows = [_Row(task, instance, list(instance.prompt)) for instance in instances]
        cache = DynamicCache()
        logprobs = self._next_logprobs(torch.tensor([row.seen for row in rows]), cache)
        for sampled_tokens in itertools.count(1):
            tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
            taken = zip(tokens.squeeze(1).tolist(), logprobs.gather(1, tokens).squeeze(1).tolist(), strict=True)
            column = [row.advance(Sampled(token, logprob, version)) for row, (token, logprob) in zip(rows, taken, strict=True)]
            if all(row.reward is not None for row in rows):
                break
            if swap is not None and sampled_tokens == swap.sampled_tokens:
                version = swap.version
                self._weights.apply(adapters[version])
            logprobs = self._next_logprobs(torch.tensor(column).unsqueeze(1), cache)
        groups: Sequence[int | None] = group_ids if group_ids is not None else [None] * len(rows)
        return [row.trajectory(index, group) for index, (row, group) in enumerate(zip(rows, groups, strict=True))]

    def _next_logprobs(self, input_ids: Tensor, cache: DynamicCache) -> Tensor:
        """[B, V] after the last column, the cache moved on."""
        logits = self._model(input_ids=input_ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return torch.log_softmax(logits.float(), dim=-1)


def success_rate(trajectories: Sequence[Trajectory]) -> float:
    """The part of them whose answer was right: rewards are +1 and −1."""
    return sum(trajectory.reward > 0 for trajectory in trajectories) / len(trajectories)
