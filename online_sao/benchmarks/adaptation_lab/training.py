"""One run: a stream of interactions is answered, judged and learned from, and wishes change twice under way. Owns the order, and what is kept.

Every answer is used once, ``batch_size`` at a time in the order they came, by the real learner; what answers is a published version. Prompts and
random numbers depend on seed and interaction alone, so that every recipe is asked the same. Equal options give equal results, timings aside.

Controls, beside the real run: the base's own answers to the same prompts (frozen), and the last phase once more, from where it began, with the
neutral score (anchor-only), so that nothing but the pull to the base moves the policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from online_sao.benchmarks.adaptation_lab import kto, oracle
from online_sao.benchmarks.adaptation_lab.answers import Judgement
from online_sao.benchmarks.adaptation_lab.options import LabOptions, RunOptions
from online_sao.benchmarks.adaptation_lab.students import RecipeStudent, Student
from online_sao.benchmarks.adaptation_lab.world import World
from online_sao.benchmarks.tiny_policy.curves import kept
from online_sao.benchmarks.tiny_policy.task import Instance
from online_sao.models.adapter import Adapter
from online_sao.types import Trajectory

Progress = Callable[[int, float], None]


@dataclass(slots=True)
class Record:
    """What happened, in order: of every interaction what was found in its answer; of every batch its seconds and the update's metrics."""

    judgements: list[Judgement] = field(default_factory=list)
    sampling_seconds: list[float] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)
    """Publishing among them."""
    training_seconds: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[float | None]] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)

    def scores(self) -> list[float]:
        return [round(judgement.score, 4) for judgement in self.judgements]


def run(options: LabOptions, base: Path, progress: Progress) -> dict[str, Any]:
    """``base``: the folder of the base model. ``progress(interactions, score)`` is called after every batch: how many are done, its mean score.

    Returns ``phases``; ``scores``, ``quality`` and ``style`` of every interaction; ``frozen`` and ``anchor_only`` (of the last phase; None where
    it was not played): scores; ``series`` (metric → one number an update), ``seconds`` of sampling and update batch by batch and
    of training in all, ``problems``.
    """
    began = time.perf_counter()
    world = options.world(base)
    student = _student(options, world, base)
    play = Play(options, world)
    phases = world.phases
    total, last = phases[-1].start + phases[-1].interactions, phases[-1].start
    record = Record()
    play.on(student, range(last), record, progress)
    branch = student.snapshot() if options.branches else None
    play.on(student, range(last, total), record, lambda done, score: progress(last + done, score))
    anchor_only = None
    if branch is not None:
        student.restore(branch)
        neutral = Record()
        play.on(student, range(last, total), neutral, lambda done, score: progress(total + done, score), neutral=True)
        anchor_only = neutral.scores()
    return {
        "phases": [asdict(phase) for phase in phases],
        "scores": record.scores(),
        "quality": [round(judgement.quality, 4) for judgement in record.judgements],
        "style": [round(judgement.style, 4) for judgement in record.judgements],
        "frozen": play.frozen(range(total)),
        "anchor_only": anchor_only,
        "series": record.series,
        "problems": record.problems,
        "seconds": {
            "sampling": [round(seconds, 4) for seconds in record.sampling_seconds],
            "update": [round(seconds, 4) for seconds in record.update_seconds],
            **record.training_seconds,
            "total": time.perf_counter() - began,
        },
    }


def interactions_of(options: LabOptions) -> int:
    """How many a run answers in all, the anchor-only branch among them: what progress counts to."""
    phases = options.phases
    return sum(phase.interactions for phase in phases) + (phases[-1].interactions if options.branches else 0)


def _student(options: LabOptions, world: World, base: Path) -> Student:
    if options.is_kto:
        assert isinstance(options, RunOptions)
        return kto.KTOStudent(
            base,
            options.warm_start,
            every=options.kto_every,
            epochs=options.kto_epochs,
            learning_rate=options.kto_learning_rate,
            batch_size=options.batch_size,
            lora_rank=options.lora_rank,
            seed=options.seed,
        )
    student = oracle.OracleStudent if options.is_oracle else RecipeStudent
    return student(world, options.build_recipe(), lora_rank=options.lora_rank, lag=options.lag, seed=options.seed)


class Play:
    """A world's prompts, put to a student or to the base."""

    def __init__(self, options: LabOptions, world: World) -> None:
        self._world = world
        self._seed = options.seed
        self._batch_size = options.batch_size

    def on(self, student: Student, interactions: range, record: Record, progress: Progress, *, neutral: bool = False) -> None:
        """Batch after batch: answer, judge, learn. ``neutral``: what is learned from is reward 0, whatever was found."""
        for start in range(interactions.start, interactions.stop, self._batch_size):
            began = time.perf_counter()
            numbers = range(start, start + self._batch_size)
            instances = self._instances(numbers)
            trajectories = self._answers(instances, student.adapters, student.answering(), start)
            judgements = self._judged(instances, trajectories)
            sampled = time.perf_counter()
            if neutral:
                trajectories = [replace(trajectory, rewards=(0.0,) * len(trajectory.rewards)) for trajectory in trajectories]
            lesson = student.learn(trajectories, instances)
            record.sampling_seconds.append(sampled - began)
            record.update_seconds.append(time.perf_counter() - sampled)
            record.judgements += judgements
            for metric, value in lesson.metrics.items():
                name, _, last = metric.partition("/")
                if last == "seconds":  # no result, and never the same twice
                    record.training_seconds[name] = record.training_seconds.get(name, 0.0) + value
                else:
                    record.series.setdefault(metric, []).append(kept(value))
            if lesson.problem is not None:
                record.problems[len(record.update_seconds)] = lesson.problem
            progress(start + self._batch_size - interactions.start, sum(found.score for found in judgements) / len(judgements))

    def frozen(self, interactions: range) -> list[float]:
        scores: list[float] = []
        for start in range(interactions.start, interactions.stop, self._world.at_once):
            numbers = range(start, min(start + self._world.at_once, interactions.stop))
            instances = self._instances(numbers)
            scores += [round(found.score, 4) for found in self._judged(instances, self._answers(instances, {0: None}, 0, start))]
        return scores

    def _instances(self, numbers: range) -> list[Instance]:
        return [self._world.instance(number) for number in numbers]

    def _answers(self, instances: Sequence[Instance], adapters: Mapping[int, Adapter | None], version: int, start: int) -> list[Trajectory]:
        """``start``: the number of the first interaction; the random numbers depend on it."""
        generator = torch.Generator().manual_seed(Random(f"answers {self._seed} {start}").getrandbits(48))
        return self._world.rollout(instances, adapters, version, generator)

    def _judged(self, instances: Sequence[Instance], trajectories: Sequence[Trajectory]) -> list[Judgement]:
        return [self._world.judge(instance, found) for instance, found in zip(instances, trajectories, strict=True)]
