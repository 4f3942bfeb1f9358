"""One run: a recipe learns a task for some hundred updates from rollouts that are ``lag`` updates old. Owns the loop's order, and what is kept of it.

The real learner, trajectories and batches; the policy that samples is the one that was published ``lag`` updates ago (the base, while there are not
that many). In a part of the updates a swap to the next version falls between two tokens of the rollouts. Questions and random numbers depend on task,
seed and update alone, so that every recipe and lag is asked the same. Equal options give equal results, timings aside.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

from online_sao.algorithm.recipes import Preset, Recipe, recipe
from online_sao.benchmarks.stability.tasks import TASKS
from online_sao.benchmarks.tiny_policy import warm_start
from online_sao.benchmarks.tiny_policy.curves import kept
from online_sao.benchmarks.tiny_policy.lab import recipe_numbers
from online_sao.benchmarks.tiny_policy.sampling import Sampler, Swap, success_rate
from online_sao.benchmarks.tiny_policy.task import Task
from online_sao.benchmarks.tiny_policy.versions import Versions
from online_sao.benchmarks.tiny_policy.warm_start import WarmStart
from online_sao.experience.batching import pack
from online_sao.learner.learner import Learner
from online_sao.learner.report import UpdateReport
from online_sao.types import Trajectory

TIMINGS = {"policy/seconds": "policy", "value/seconds": "value"}
"""Metrics that are no result → where they are added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """``mixed``: how often a swap falls into the rollouts of an update, where the policy is behind at all. ``held_out``: questions that the first and
    the last policy are asked, never trained on."""

    task: str
    recipe: str
    lag: int
    seed: int
    updates: int = 300
    preset: Preset = "paper"
    policy_learning_rate: float = 1e-3
    value_learning_rate: float = 1e-3
    batch_size: int = 32
    group_size: int = 4
    mixed: float = 0.5
    lora_rank: int = 16
    microbatch_tokens: int = 384
    held_out: int = 512
    warm_start: WarmStart = field(default_factory=WarmStart)

    def __post_init__(self) -> None:
        for name in ("updates", "batch_size", "group_size", "lora_rank", "microbatch_tokens", "held_out"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.batch_size % self.group_size:
            raise ValueError(f"a batch of {self.batch_size} cannot be divided into groups of {self.group_size}")
        longest = self.build_recipe().max_policy_lag
        if not 0 <= self.lag <= longest:
            raise ValueError(f"a lag of {self.lag} is outside 0 to {longest}: older trajectories expire (max_policy_lag)")

    @property
    def title(self) -> str:
        return f"{self.task}, {self.recipe}, lag {self.lag}, seed {self.seed}"

    def build_recipe(self) -> Recipe:
        """The same learning rates and batch for every recipe, and no anchor; all else as the recipe defines it. Raises ValueError if unknown."""
        return recipe(
            self.recipe,
            self.preset,
            policy_learning_rate=self.policy_learning_rate,
            value_learning_rate=self.value_learning_rate,
            batch_size=self.batch_size,
            anchor_coefficient=0.0,
            anchor_gain=0.0,
        )

    def numbers(self) -> dict[str, Any]:
        return recipe_numbers(self.build_recipe())


def run(options: RunOptions, base: Path, progress: Callable[[int, float], None]) -> dict[str, Any]:
    """``base``: the folder of the warm start. ``progress(update, success_rate)`` is called after every update.

    Returns ``series`` (metric → one number an update, None where it is not finite), ``held_out`` (success rate ``before`` and ``after``),
    ``problems`` (update → why it was taken back) and ``seconds``.
    """
    began = time.perf_counter()
    task, chosen = TASKS[options.task], options.build_recipe()
    learner = Learner(
        warm_start.load(task, base, options.warm_start),
        base.name,
        chosen,
        lora_rank=options.lora_rank,
        lora_alpha=2 * options.lora_rank,
        seed=options.seed,
    )
    rollouts = _Rollouts(task, Sampler(warm_start.load(task, base, options.warm_start)), options)
    before = rollouts.held_out(0)
    series: dict[str, list[float | None]] = {}
    problems: dict[int, str] = {}
    seconds = dict.fromkeys(("sampling", "update", *TIMINGS.values()), 0.0)
    for update in range(1, options.updates + 1):
        started = time.perf_counter()
        trajectories = rollouts.sample(update)
        sampled = time.perf_counter()
        state = learner.snapshot()
        report = learner.update(pack(trajectories, options.microbatch_tokens))
        if report.problem is not None:
            problems[update] = report.problem
            learner.restore(state)
        seconds["sampling"] += sampled - started
        seconds["update"] += time.perf_counter() - sampled
        for metric, place in TIMINGS.items():
            seconds[place] += report.metrics[metric]
        rollouts.versions.publish(update, learner)
        for metric, value in _kept(report, trajectories, update).items():
            series.setdefault(metric, []).append(kept(value))
        progress(update, success_rate(trajectories))
    after = rollouts.held_out(options.updates)
    seconds["total"] = time.perf_counter() - began
    return {"series": series, "held_out": {"before": before, "after": after}, "problems": problems, "seconds": seconds}


def _kept(report: UpdateReport, trajectories: Sequence[Trajectory], update: int) -> dict[str, float]:
    """The report's metrics but for timings, and what only the caller knows."""
    lags = [update - 1 - trajectory.oldest_policy_version for trajectory in trajectories]
    mixed = [len({v for v, m in zip(t.policy_versions, t.loss_mask, strict=True) if m}) > 1 for t in trajectories]
    return {
        **{name: value for name, value in report.metrics.items() if name not in TIMINGS},
        "data/success_rate": success_rate(trajectories),
        "data/policy_lag_mean": sum(lags) / len(lags),
        "data/policy_lag_max": max(lags),
        "data/mixed_fraction": sum(mixed) / len(mixed),
        "data/turns_mean": sum(_turns(t) for t in trajectories) / len(trajectories),
    }


def _turns(trajectory: Trajectory) -> int:
    mask = trajectory.loss_mask
    return sum(now and not before for before, now in itertools.pairwise(mask))


class _Rollouts:
    """The questions of every update, and who answers them."""

    def __init__(self, task: Task, sampler: Sampler, options: RunOptions) -> None:
        self._task = task
        self._sampler = sampler
        self._options = options
        self.versions = Versions(options.lag)

    def sample(self, update: int) -> list[Trajectory]:
        """What this update trains on: groups of the same question, from the version of ``lag`` updates ago."""
        options = self._options
        random = Random(f"{options.task} {options.seed} {update}")
        generator = torch.Generator().manual_seed(random.getrandbits(48))
        questions = [self._task.instance(random) for _ in range(options.batch_size // options.group_size)]
        instances = [question for question in questions for _ in range(options.group_size)]
        group_ids = [group for group in range(len(questions)) for _ in range(options.group_size)]
        version = self.versions.answering(update)
        wanted, swap_at = random.random() < options.mixed, random.randint(1, self._task.usual_tokens - 1)
        swap = Swap(swap_at, version + 1) if wanted and version + 1 in self.versions.adapters else None
        return self._sampler.rollout(self._task, instances, self.versions.adapters, version, generator, swap=swap, group_ids=group_ids)

    def held_out(self, version: int) -> float:
        """Success rate of a version, on the same questions and random numbers every time."""
        random = Random(f"held out {self._options.task} {self._options.seed}")
        questions = [self._task.instance(random) for _ in range(self._options.held_out)]
        generator = torch.Generator().manual_seed(self._options.seed)
        return success_rate(self._sampler.rollout(self._task, questions, self.versions.adapters, version, generator))
