"""Who answers and learns: the recipe's learner behind the one interface that the run knows. Owns which version answers, and how one is published.

Knows nothing of shifts, populations or what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from online_sao.algorithm.recipes import Recipe
from online_sao.benchmarks.adaptation_lab.world import World
from online_sao.benchmarks.tiny_policy.task import Instance
from online_sao.benchmarks.tiny_policy.versions import Versions
from online_sao.experience.batching import pack
from online_sao.models.adapter import Adapter
from online_sao.types import Trajectory

MICROBATCH_TOKENS = 384


class Student(Protocol):
    def answering(self) -> int:
        """The version that gives the next answers; one of ``adapters``."""
        ...

    @property
    def adapters(self) -> Mapping[int, Adapter | None]: ...

    def learn(self, trajectories: Sequence[Trajectory], instances: Sequence[Instance]) -> Lesson:
        """From the latest answers to ``instances``, each once. May do nothing yet."""
        ...

    def snapshot(self) -> Any:
        """All that answers and learning depend on; None where this student cannot be branched."""
        ...

    def restore(self, snapshot: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Lesson:
    """``metrics``: the update's, none where there was none. ``problem``: why it was taken back."""

    metrics: Mapping[str, float]
    problem: str | None = None


class RecipeStudent:
    """The real learner; what answers is ``lag`` updates behind it."""

    def __init__(self, world: World, recipe: Recipe, *, lora_rank: int, lag: int, seed: int) -> None:
        self._learner = world.learner(recipe, lora_rank=lora_rank, seed=seed)
        self._versions = Versions(lag)
        self._update = 1

    def answering(self) -> int:
        return self._versions.answering(self._update)

    @property
    def adapters(self) -> Mapping[int, Adapter | None]:
        return self._versions.adapters

    def learn(self, trajectories: Sequence[Trajectory], instances: Sequence[Instance]) -> Lesson:
        before = self._learner.snapshot()
        report = self._learner.update(pack(trajectories, MICROBATCH_TOKENS))
        if report.problem is not None:
            self._learner.restore(before)
        self._versions.publish(self._update, self._learner)
        self._update += 1
        return Lesson(report.metrics, report.problem)

    def snapshot(self) -> Any:
        return self._learner.snapshot(), dict(self._versions.adapters), self._update

    def restore(self, snapshot: Any) -> None:
        state, adapters, self._update = snapshot
        self._versions.adapters = dict(adapters)  # the snapshot stays usable
        self._learner.restore(state)
