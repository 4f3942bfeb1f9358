"""A critic of prompts that knows: the baseline is what the policy, as it stands, would get for this prompt on average. No recipe, since live traffic
answers every prompt once: it shows what the best of all critics that look at the prompt alone could be worth. Owns how that average is found."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from online_sao.algorithm.calibration import PastReturns
from online_sao.algorithm.recipes import CreditInputs, Recipe
from online_sao.algorithm.recipes.sao import critic_advantages
from online_sao.benchmarks.adaptation_lab.students import Lesson, RecipeStudent
from online_sao.benchmarks.adaptation_lab.world import World
from online_sao.benchmarks.tiny_policy.task import Instance
from online_sao.types import Trajectory

NAME = "oracle"
BASELINE = "running-mean"
"""The recipe whose constant baseline it replaces; all else is that recipe's."""
ANSWERS_EACH = 16
"""Of every prompt, beside the one that is learned from."""


class OracleStudent(RecipeStudent):
    """What it asks the policy beside the stream's own answers is never learned from."""

    def __init__(self, world: World, recipe: Recipe, *, lora_rank: int, lag: int, seed: int) -> None:
        super().__init__(world, dataclasses.replace(recipe, credit=self._credit), lora_rank=lora_rank, lag=lag, seed=seed)
        self._world = world
        self._generator = torch.Generator().manual_seed(seed)
        self._expected: list[float] = []

    def learn(self, trajectories: Sequence[Trajectory], instances: Sequence[Instance]) -> Lesson:
        asked = [instance for instance in instances for _ in range(ANSWERS_EACH)]
        parts = (asked[start : start + self._world.at_once] for start in range(0, len(asked), self._world.at_once))
        rewards = [found.reward for part in parts for found in self._world.rollout(part, self.adapters, max(self.adapters), self._generator)]
        self._expected = [statistics.fmean(rewards[start : start + ANSWERS_EACH]) for start in range(0, len(rewards), ANSWERS_EACH)]
        return super().learn(trajectories, instances)

    def _credit(self, recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
        known = [
            dataclasses.replace(item, values=torch.full_like(item.values, expected))
            for item, expected in zip(trajectories, self._expected, strict=True)
        ]
        return critic_advantages(recipe, known)
