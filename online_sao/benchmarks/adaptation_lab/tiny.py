"""The tiny transformer's world: six words in a style, as answers.py has them. Owns which model that is; what is asked and judged is in stream.py and
answers.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from online_sao.algorithm.recipes import Recipe
from online_sao.benchmarks.adaptation_lab.answers import ANSWERS, Judgement, judge
from online_sao.benchmarks.adaptation_lab.stream import Phase, Stream
from online_sao.benchmarks.adaptation_lab.world import answer_of
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.sampling import Sampler
from online_sao.benchmarks.tiny_policy.task import Instance
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart
from online_sao.learner.learner import Learner
from online_sao.models.adapter import Adapter
from online_sao.types import Trajectory


class TinyWorld:
    """``base``: the folder of the warm start that ``numbers`` made."""

    at_once = 256

    def __init__(self, stream: Stream, base: Path, numbers: WarmStart) -> None:
        self._stream = stream
        self._base = base
        self._numbers = numbers
        self._sampler = Sampler(warm_start.load(ANSWERS, base, numbers))

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self._stream.phases

    def instance(self, interaction: int) -> Instance:
        return self._stream.instance(interaction)

    def rollout(
        self, instances: Sequence[Instance], adapters: Mapping[int, Adapter | None], version: int, generator: torch.Generator
    ) -> list[Trajectory]:
        return self._sampler.rollout(ANSWERS, instances, adapters, version, generator)

    def judge(self, instance: Instance, trajectory: Trajectory) -> Judgement:
        return judge(instance, answer_of(trajectory))

    def learner(self, recipe: Recipe, *, lora_rank: int, seed: int) -> Learner:
        model = warm_start.load(ANSWERS, self._base, self._numbers)
        return Learner(model, self._base.name, recipe, lora_rank=lora_rank, lora_alpha=2 * lora_rank, seed=seed)
