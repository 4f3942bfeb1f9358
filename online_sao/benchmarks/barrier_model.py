"""Workers that sample and a learner that updates, in simulated time: what waiting for others costs. Owns the three schedules, the record of a run
(simulated or real) and the figures drawn from it; pure, knows nothing of engines.

A loop of its own on a heap, not a simulation library: on a shared machine all rollouts that run go at one pace, which changes whenever one of them
or an update begins or ends. Kept as one clock of work done, that is a single number; were each rollout a process with its own timer, as in SimPy,
every timer would have to be set anew. (At a constant pace SimPy gives the same figures, in the same time.)
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import numpy as np

Item = TypeVar("Item")
GROUP = 8
"""Rollouts of one prompt that are compared with each other, where rollouts come in groups."""


class Schedule(StrEnum):
    SYNCHRONOUS = "synchronous"
    """One batch is sampled, all wait for its slowest rollout, then for the update."""
    GROUPS = "asynchronous groups"
    """Nobody waits to sample; a rollout can be used once its whole group has ended."""
    SINGLE = "single rollouts"
    """Nobody waits to sample; a rollout can be used as soon as it has ended."""


@dataclass(slots=True)
class Rollout:
    """``started`` and ``ended`` in seconds; ``version``: updates made before it began. Infinite: it has not ended."""

    length: float
    started: float
    version: int
    ended: float = math.inf


@dataclass(frozen=True, slots=True)
class Update:
    """``started``: when its rollouts were taken; ``number`` updates had been made by then."""

    number: int
    started: float
    ended: float
    rollouts: Sequence[Rollout]


@dataclass(slots=True)
class Trace:
    """All that was begun, in order, by so many ``workers``."""

    workers: int
    rollouts: list[Rollout] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


class Pace(Protocol):
    """How fast things go, in seconds."""

    def generation(self, running: int, updating: bool) -> float:
        """For one unit of length of each of ``running`` rollouts."""

    def update(self, length: float, generating: bool) -> float:
        """For an update on rollouts of this ``length`` together."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Workers and learner on machines of their own: neither slows the other."""

    unit_seconds: float
    update_seconds: float

    def generation(self, _running: int, _updating: bool) -> float:
        return self.unit_seconds

    def update(self, _length: float, _generating: bool) -> float:
        return self.update_seconds


class Buffer(Generic[Item]):
    """What has ended and what of it may be used. ``number``: rollouts are numbered in the order they began; ``group`` in a row make a group."""

    def __init__(self, schedule: Schedule, batch: int, group: int) -> None:
        if batch % group:
            raise ValueError(f"a batch of {batch} does not consist of whole groups of {group}")
        self._group = group if schedule is Schedule.GROUPS else 1
        self._batch = batch
        self._incomplete: dict[int, list[Item]] = {}
        self._ready: deque[Item] = deque()

    def add(self, number: int, item: Item) -> None:
        members = self._incomplete.setdefault(number // self._group, [])
        members.append(item)
        if len(members) == self._group:
            self._ready.extend(self._incomplete.pop(number // self._group))

    def take(self) -> list[Item] | None:
        """A batch of those that could be used first; None: there are not enough."""
        if len(self._ready) < self._batch:
            return None
        return [self._ready.popleft() for _ in range(self._batch)]


@dataclass(frozen=True, slots=True)
class Plan:
    """``batch``: rollouts of an update. ``ahead``: most rollouts begun and not yet used (a multiple of ``group``, at least a batch); None: no bound,
    for a learner that keeps up."""

    schedule: Schedule
    workers: int
    batch: int
    updates: int
    group: int = GROUP
    ahead: int | None = None

    def __post_init__(self) -> None:
        if self.ahead is not None and (self.ahead < self.batch or self.ahead % self.group):
            raise ValueError(f"ahead is {self.ahead}: it must be a multiple of {self.group} and at least the batch, {self.batch}")

    def may_begin(self, begun: int, used: int, made: int) -> bool:
        """Whether a free worker may begin another rollout, after ``begun`` of them, ``used`` by the learner, and ``made`` updates."""
        if self.schedule is Schedule.SYNCHRONOUS:
            return begun < (made + 1) * self.batch
        return self.ahead is None or begun - used < self.ahead


def simulate(plan: Plan, lengths: Iterator[float], pace: Pace) -> Trace:
    """Run ``plan`` until its last update has ended. ``lengths``: of the rollouts, in the order they begin."""
    return _Simulation(plan, lengths, pace).run()


class _Simulation:
    """``_work`` is the clock of generation: the length that a rollout running from the start would have by now."""

    def __init__(self, plan: Plan, lengths: Iterator[float], pace: Pace) -> None:
        self._plan = plan
        self._lengths = lengths
        self._pace = pace
        self._trace = Trace(plan.workers)
        self._buffer: Buffer[Rollout] = Buffer(plan.schedule, plan.batch, plan.group)
        self._running: list[tuple[float, int]] = []
        self._now = self._work = 0.0
        self._taken: list[Rollout] | None = None
        self._taken_length = 0.0
        self._used = 0
        self._left = 0.0
        self._taken_at = 0.0

    def run(self) -> Trace:
        while len(self._trace.updates) < self._plan.updates:
            self._begin_rollouts()
            self._next_event()
        return self._trace

    def _next_event(self) -> None:
        updating, running = self._taken is not None, len(self._running)
        pace = self._pace.generation(running, updating) if running else math.inf
        until_end = max(0.0, self._running[0][0] - self._work) * pace if running else math.inf
        whole = self._pace.update(self._taken_length, running > 0) if updating else math.inf
        until_updated = self._left * whole if updating else math.inf
        step = min(until_end, until_updated)
        self._now += step
        self._left -= step / whole if updating and whole else 0.0
        if until_end <= until_updated:
            self._end_rollout()
        else:
            self._work += step / pace if running else 0.0
            self._end_update()

    def _end_rollout(self) -> None:
        end, number = heapq.heappop(self._running)
        self._work = max(self._work, end)
        rollout = self._trace.rollouts[number]
        rollout.ended = self._now
        self._buffer.add(number, rollout)
        self._begin_update()

    def _begin_update(self) -> None:
        if self._taken is None and (taken := self._buffer.take()) is not None:
            self._taken, self._taken_at, self._left = taken, self._now, 1.0
            self._taken_length = sum(rollout.length for rollout in taken)
            self._used += len(taken)

    def _end_update(self) -> None:
        assert self._taken is not None
        self._trace.updates.append(Update(len(self._trace.updates), self._taken_at, self._now, self._taken))
        self._taken = None
        self._begin_update()

    def _begin_rollouts(self) -> None:
        rollouts, made = self._trace.rollouts, len(self._trace.updates)
        while len(self._running) < self._plan.workers and self._plan.may_begin(len(rollouts), self._used, made):
            length = next(self._lengths)
            heapq.heappush(self._running, (self._work + length, len(rollouts)))
            rollouts.append(Rollout(length, self._now, made))


def lognormal(generator: np.random.Generator, mean: float, variation: float) -> Iterator[float]:
    """Endless lengths of this mean and coefficient of variation (standard deviation / mean)."""
    variance = math.log1p(variation**2)
    while True:
        yield from generator.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), 4096).tolist()


def figures(trace: Trace, warmup: int) -> dict[str, float]:
    """What a run comes to, without its first ``warmup`` updates.

    ``worker_utilisation``: the part of the workers' time spent sampling. ``lag``: updates made between a rollout's start and its use. ``wait``:
    seconds from its end to its use.
    """
    start, end = (trace.updates[warmup - 1].ended if warmup else 0.0), trace.updates[-1].ended
    measured = trace.updates[warmup:]
    begun = np.array([rollout.started for rollout in trace.rollouts])
    ended = np.array([rollout.ended for rollout in trace.rollouts])
    sampling = np.clip(np.minimum(ended, end) - np.maximum(begun, start), 0.0, None).sum()
    learning = sum(update.ended - max(update.started, start) for update in measured)
    lags = np.array([update.number - rollout.version for update in measured for rollout in update.rollouts])
    waits = np.array([update.started - rollout.ended for update in measured for rollout in update.rollouts])
    return {
        "worker_utilisation": float(sampling / (trace.workers * (end - start))),
        "learner_utilisation": learning / (end - start),
        "updates_per_hour": 3600 * len(measured) / (end - start),
        "lag_mean": float(lags.mean()),
        "lag_p95": float(np.percentile(lags, 95)),
        "wait_mean": float(waits.mean()),
        "wait_p95": float(np.percentile(waits, 95)),
    }


def over_seeds(one: Callable[[int], dict[str, float]], seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """Each figure's mean over ``seeds`` and, from two of them on, its 95 % interval (Student's t)."""
    from scipy.stats import t

    every = [one(seed) for seed in seeds]
    found = {}
    for name in every[0]:
        values = np.array([each[name] for each in every])
        found[name] = {"mean": float(values.mean())}
        if len(values) > 1:
            half = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
            found[name] |= {"low": float(values.mean()) - half, "high": float(values.mean()) + half}
    return found
