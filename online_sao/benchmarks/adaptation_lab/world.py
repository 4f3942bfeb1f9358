"""Where a run takes place: who asks what, what answers, who judges it, and what learns. The interface alone; knows no recipe and no order of
events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from online_sao.algorithm.recipes import Recipe
from online_sao.benchmarks.adaptation_lab.answers import Judgement
from online_sao.benchmarks.adaptation_lab.stream import Phase
from online_sao.benchmarks.tiny_policy.task import Instance
from online_sao.learner.learner import Learner
from online_sao.models.adapter import Adapter
from online_sao.types import Trajectory


class World(Protocol):
    @property
    def at_once(self) -> int:
        """Most answers in one batch, where their number is free."""
        ...

    @property
    def phases(self) -> tuple[Phase, ...]: ...

    def instance(self, interaction: int) -> Instance:
        """What is asked; the same whoever answers."""
        ...

    def rollout(
        self, instances: Sequence[Instance], adapters: Mapping[int, Adapter | None], version: int, generator: torch.Generator
    ) -> list[Trajectory]:
        """One answer to each, at temperature 1, by ``version``, one of ``adapters`` (None: the base); the reward is what the judgement says."""
        ...

    def judge(self, instance: Instance, trajectory: Trajectory) -> Judgement: ...

    def learner(self, recipe: Recipe, *, lora_rank: int, seed: int) -> Learner:
        """On a base model of its own."""
        ...


def answer_of(trajectory: Trajectory) -> tuple[int, ...]:
    """Its action tokens."""
    return tuple(token for token, action in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if action)
