"""The same three schedules in real time: the embedded engine samples, the real learner updates in a process of its own, every version is swapped in.
Owns engine, learner process and what is measured of their pace; the plan, the figures and what they mean are barrier_model.py's."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from online_sao.algorithm.recipes import recipe
from online_sao.benchmarks.barrier_model import Buffer, Plan, Rollout, Trace, Update
from online_sao.config import EngineSettings, LearningSettings, PolicySettings
from online_sao.experience.batching import pack
from online_sao.inference.engine import EngineRequest
from online_sao.inference.renderer import Renderer
from online_sao.inference.transformers_engine import TransformersEngine
from online_sao.learner.learner import Learner
from online_sao.simulation.prompts import training_prompt
from online_sao.types import Trajectory

LONGEST_PROMPT = 128
_learner: Learner
"""Of the learner process."""


def _open_learner(model_path: Path, threads: int) -> None:
    global _learner
    torch.set_num_threads(threads)
    policy = PolicySettings()
    _learner = Learner.open(model_path, recipe(), lora_rank=policy.lora_rank, lora_alpha=policy.lora_alpha)


def _update(trajectories: Sequence[Trajectory], folder: Path) -> str | None:
    """One update, its policy written into ``folder``. Returns what was wrong with it, if anything."""
    report = _learner.update(pack(trajectories, LearningSettings().microbatch_tokens))
    _learner.export_adapter(folder)
    return report.problem


@dataclass(frozen=True, slots=True)
class Sampled:
    """``first``: seconds to the first token; ``per_token``: from one token to the next, on average (0 for a single one)."""

    trajectory: Trajectory
    first: float
    per_token: float


class Service:
    """An engine and a learner that may work at the same time."""

    def __init__(self, engine: TransformersEngine, renderer: Renderer, learner: ProcessPoolExecutor, scratch: Path, max_tokens: int) -> None:
        self._engine = engine
        self._renderer = renderer
        self._learner = learner
        self._scratch = scratch
        self._max_tokens = max_tokens
        self._numbers = itertools.count()
        self.version = 0

    @property
    def longest(self) -> int:
        """Tokens that a completion of any prompt may have."""
        return self._max_tokens - LONGEST_PROMPT

    async def sample(self, length: int) -> Sampled:
        """A completion of ``length`` tokens, whatever the model would end with; its reward is +1 and −1 by turns."""
        number = next(self._numbers)
        prompt = self._renderer.render([{"role": "user", "content": training_prompt(0, number)}])
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        started = first = time.perf_counter()
        request = EngineRequest(f"rollout-{number}", prompt, length, 1.0, 1.0, ())
        async with aclosing(self._engine.generate(request)) as deltas:
            async for delta in deltas:
                first = first if tokens else time.perf_counter()
                tokens += delta.token_ids
                logprobs += delta.behavior_logprobs
                versions += [delta.policy_version] * len(delta.token_ids)
        before, count = len(prompt), len(tokens)
        trajectory = Trajectory(
            trajectory_id=number,
            token_ids=(*prompt, *tokens),
            loss_mask=(False,) * before + (True,) * count,
            behavior_logprobs=(0.0,) * before + tuple(logprobs),
            rewards=(0.0,) * (before + count - 1) + (1.0 if number % 2 else -1.0,),
            temperatures=(1.0,) * (before + count),
            policy_versions=(-1,) * before + tuple(versions),
        )
        return Sampled(trajectory, first - started, (time.perf_counter() - first) / max(1, count - 1))

    async def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """One update, and the engine serves what came of it. Raises RuntimeError where the update had to leave something out."""
        folder = self._scratch / f"v{self.version + 1}"
        folder.mkdir()
        problem = await asyncio.get_running_loop().run_in_executor(self._learner, _update, trajectories, folder)
        if problem is not None:
            raise RuntimeError(f"update {self.version + 1}: {problem}")
        await self._engine.swap(self.version + 1, folder)
        self.version += 1


@asynccontextmanager
async def service(model_path: Path, scratch: Path, *, workers: int, threads: int) -> AsyncIterator[Service]:
    """Started inside. ``threads``: torch threads of each of the two."""
    settings = EngineSettings(max_concurrent=workers, threads=threads)
    settings = settings.model_copy(update={"kv_cache_tokens": max(settings.kv_cache_tokens, workers * settings.max_context_tokens)})
    engine = TransformersEngine(settings, model_path)
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(1, mp_context=context, initializer=_open_learner, initargs=(model_path, threads)) as learner:
        await engine.start(0, None)
        try:
            yield Service(engine, Renderer.from_model(model_path), learner, scratch, settings.max_context_tokens)
        finally:
            await engine.stop()


async def run(running: Service, plan: Plan, lengths: Iterator[float]) -> Trace:
    """``plan`` in real time; times count from its start, versions from the one served then."""
    return await _Run(running, plan, lengths).run()


class _Run:
    def __init__(self, running: Service, plan: Plan, lengths: Iterator[float]) -> None:
        self._service = running
        self._plan = plan
        self._lengths = lengths
        self._trace = Trace(plan.workers)
        self._buffer: Buffer[tuple[Rollout, Trajectory]] = Buffer(plan.schedule, plan.batch, plan.group)
        self._changed = asyncio.Condition()
        self._used = 0
        self._origin = time.perf_counter()
        self._base = running.version

    async def run(self) -> Trace:
        workers = [asyncio.create_task(self._work()) for _ in range(self._plan.workers)]
        learner = asyncio.create_task(self._learn())
        try:
            # The first to end is the learner, or whoever failed.
            done, _ = await asyncio.wait([learner, *workers], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (learner, *workers):
                task.cancel()
            await asyncio.gather(learner, *workers, return_exceptions=True)
        return self._trace

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    async def _work(self) -> None:
        rollouts = self._trace.rollouts
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._plan.may_begin(len(rollouts), self._used, len(self._trace.updates)))
                number = len(rollouts)
                rollout = Rollout(next(self._lengths), self._now(), len(self._trace.updates))
                rollouts.append(rollout)
            sampled = await self._service.sample(round(rollout.length))
            # What the engine says, not what we believe it serves.
            rollout.version = sampled.trajectory.oldest_policy_version - self._base
            rollout.ended = self._now()
            async with self._changed:
                self._buffer.add(number, (rollout, sampled.trajectory))
                self._changed.notify_all()

    async def _learn(self) -> None:
        updates = self._trace.updates
        while len(updates) < self._plan.updates:
            async with self._changed:
                while (taken := self._buffer.take()) is None:
                    await self._changed.wait()
                self._used += len(taken)
                self._changed.notify_all()
            started = self._now()
            await self._service.learn([trajectory for _, trajectory in taken])
            async with self._changed:
                updates.append(Update(len(updates), started, self._now(), [rollout for rollout, _ in taken]))
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Measured:
    """Paces as measured. ``token_seconds``: (rollouts at once, seconds from one token to the next) with an idle learner; ``slowed``: what a learner
    at work multiplies it by; ``start_tokens``: what the first token costs beyond one, in tokens. ``alone``, ``beside``: (seconds, seconds a token)
    of an update with an idle engine and with a busy one."""

    token_seconds: tuple[tuple[int, float], ...]
    slowed: float
    start_tokens: float
    alone: tuple[float, float]
    beside: tuple[float, float]

    def generation(self, running: int, updating: bool) -> float:
        counts, seconds = zip(*self.token_seconds, strict=True)
        return float(np.interp(running, counts, seconds)) * (self.slowed if updating else 1.0)

    def update(self, length: float, generating: bool) -> float:
        fixed, per_token = self.beside if generating else self.alone
        return fixed + per_token * length


def between(one: Measured, other: Measured) -> Measured:
    """The mean of two measurements of the same service."""
    return Measured(
        token_seconds=tuple((count, (a + b) / 2) for (count, a), (_, b) in zip(one.token_seconds, other.token_seconds, strict=True)),
        slowed=(one.slowed + other.slowed) / 2,
        start_tokens=(one.start_tokens + other.start_tokens) / 2,
        alone=((one.alone[0] + other.alone[0]) / 2, (one.alone[1] + other.alone[1]) / 2),
        beside=((one.beside[0] + other.beside[0]) / 2, (one.beside[1] + other.beside[1]) / 2),
    )


async def measure_pace(running: Service, *, workers: int, batch: int, mean: int, repeats: int = 3) -> Measured:
    """Each part by itself, then both at once; the first of everything is left out, it pays for what is built once."""
    short, long = [[(await running.sample(length)).trajectory for _ in range(batch)] for length in (max(2, mean // 2), 2 * mean)]
    await running.learn(short)
    counts = sorted({1, max(1, workers // 4), max(1, workers // 2), workers})
    alone = {count: await _saturated(running, count, mean, rounds=repeats) for count in counts}
    updates_alone = await _timed_updates(running, short, long, repeats)
    ending = asyncio.Event()
    generation = asyncio.create_task(_saturated(running, workers, mean, ending=ending))
    try:
        updates_beside = await _timed_updates(running, short, long, repeats)
    finally:
        ending.set()
        beside = await generation
    per_token = {count: statistics.median(sampled.per_token for sampled in found) for count, found in alone.items()}
    full = per_token[workers]
    return Measured(
        token_seconds=tuple(per_token.items()),
        slowed=statistics.median(sampled.per_token for sampled in beside) / full,
        start_tokens=statistics.median(sampled.first for sampled in alone[workers]) / full - 1,
        alone=updates_alone,
        beside=updates_beside,
    )


async def _saturated(running: Service, workers: int, length: int, *, rounds: int = 1, ending: asyncio.Event | None = None) -> list[Sampled]:
    """Completions of ``workers`` at once, each ``rounds`` times or until ``ending``; without each one's first."""

    async def work() -> list[Sampled]:
        found = [await running.sample(length)]
        while len(found) < rounds + 1 or (ending is not None and not ending.is_set()):
            found.append(await running.sample(length))
        return found[1:]

    return [sampled for found in await asyncio.gather(*(work() for _ in range(workers))) for sampled in found]


async def _timed_updates(running: Service, short: Sequence[Trajectory], long: Sequence[Trajectory], repeats: int) -> tuple[float, float]:
    """(seconds, seconds a token) of the line through the medians of two sizes."""
    seconds: dict[int, list[float]] = {}
    for trajectories in itertools.chain.from_iterable([short, long] for _ in range(repeats)):
        started = time.perf_counter()
        await running.learn(trajectories)
        seconds.setdefault(sum(trajectory.num_action_tokens for trajectory in trajectories), []).append(time.perf_counter() - started)
    (fewer, quick), (more, slow) = sorted((tokens, statistics.median(times)) for tokens, times in seconds.items())
    per_token = max(0.0, (slow - quick) / (more - fewer))
    return max(0.0, quick - per_token * fewer), per_token
