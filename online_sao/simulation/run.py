"""One simulated run, from the frozen control to the last receipt. Owns what is measured and how; talks to the service over HTTP only.

The control: before the first score is sent, the prompts of the run's last window are answered by the version then being served, with ``store`` false,
and scored by the same rule. The run's last window asks the same prompts of what was learned since: the difference of the two means is the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from online_sao.errors import ConfigurationError
from online_sao.simulation.client import Answer, CallFailedError, Service
from online_sao.simulation.preferences import Preference, preference
from online_sao.simulation.prompts import HELD_OUT, training_prompt
from online_sao.simulation.users import BackPressure, ScoredAnswer, user_session

OPEN_RECEIPTS = ("received", "queued", "trained")
"""Receipts in these states may still change on their own."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """What to run. ``window`` in interactions, ``max_backlog`` in scores, ``settle_seconds``: how long the last receipts are waited for."""

    url: str = "http://127.0.0.1:8000"
    preference: str = "first-person"
    users: int = 8
    scores: int = 160
    seed: int = 0
    window: int = 40
    max_backlog: int = 16
    max_tokens: int = 24
    control: bool = True
    settle_seconds: float = 180.0
    api_key: str | None = field(default=None, repr=False)


class Display(Protocol):
    """Where a run says how far it is."""

    def stage(self, name: str, total: int) -> None: ...
    def step(self, score: float | None, note: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Answers of one version, unstored and unscored on the service's side; scores in [0, 1]."""

    policy_versions: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return mean(self.scores)

    def as_dict(self) -> dict[str, Any]:
        return {"policy_versions": sorted(set(self.policy_versions)), "mean": self.mean, "scores": list(self.scores)}


def mean(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def window_means(scores: Sequence[float | None], window: int) -> list[dict[str, Any]]:
    """Mean score of every full or last partial run of ``window`` interactions, in order; failed ones (None) left out."""
    return [
        {"first": start, "last": min(start + window, len(scores)) - 1, "mean": mean([s for s in scores[start : start + window] if s is not None])}
        for start in range(0, len(scores), window)
    ]


async def sample(service: Service, model: str, prompts: Sequence[str], rule: Preference, users: int, display: Display) -> Sample:
    """Answer each prompt once, at most ``users`` together, without storing. A failed call is counted by the service and left out."""
    slots = asyncio.Semaphore(users)

    async def ask(prompt: str) -> Answer | None:
        async with slots:
            try:
                answer = await service.chat(model, prompt, user="control", stream=False, store=False)
            except CallFailedError:
                display.step(None)
                return None
            display.step(rule.score(answer.text))
            return answer

    answers = [answer for answer in await asyncio.gather(*map(ask, prompts)) if answer is not None]
    return Sample(tuple(a.policy_version for a in answers), tuple(rule.score(a.text) for a in answers))


def require_one_version(control: Sample) -> None:
    """Raises ConfigurationError where the control was answered by several versions: it would not be frozen."""
    versions = sorted(set(control.policy_versions))
    if len(versions) > 1:
        raise ConfigurationError(
            f"The policy changed while the frozen control was sampled (versions {versions[0]} to {versions[-1]}). "
            "Wait until the learner has nothing left to learn from, or pause it, then start again; or run with --no-control."
        )


async def simulate(options: SimulationOptions, display: Display) -> dict[str, Any]:
    """Run it; returns the result as plain JSON data. Raises ConfigurationError when there is no server, the control is not frozen, or the learner
    stands still. Failed calls raise nothing: they are in ``http.failures``."""
    rule = preference(options.preference)
    started_at, started = time.time(), time.monotonic()
    async with Service(options.url, api_key=options.api_key, max_tokens=options.max_tokens) as service:
        try:
            model = await service.model()
            await service.status()
        except CallFailedError as error:
            raise ConfigurationError(f"No service answers at {options.url} ({error}). Start one with: online-sao serve") from error
        control, held_out_before = await _control(service, model, rule, options, display)
        answers, waited_seconds = await _interact(service, model, rule, options, display)
        receipts = await _settle(service, answers, options.settle_seconds, display)
        held_out_after = await _held_out(service, model, rule, options, display) if options.control else None
        try:
            updates_of = await service.updates_of_versions()
        except CallFailedError:
            updates_of = {}  # counted as failed; the scores stand without their lags
    scores = [None if answer is None else answer.score for answer in answers]
    last_window_mean = mean([s for s in scores[-options.window :] if s is not None])
    starting = [*(control.scores if control else ()), *(held_out_before.scores if held_out_before else ())]
    return {
        "options": {name: value for name, value in asdict(options).items() if name != "api_key"},
        "model": model,
        "preference": rule.description,
        "started_at": started_at,
        "seconds": time.monotonic() - started,
        "held_back_seconds": waited_seconds,
        "base_rate": mean(starting),
        "control": control.as_dict() if control else None,
        "last_window_mean": last_window_mean,
        "difference": None if control is None or control.mean is None or last_window_mean is None else last_window_mean - control.mean,
        "held_out": {"before": held_out_before.as_dict(), "after": held_out_after.as_dict()} if held_out_before and held_out_after else None,
        "windows": window_means(scores, options.window),
        "receipts": _count(receipt["status"] for receipt in receipts.values()),
        "http": service.log.as_dict(),
        "interactions": [_record(answer, receipts, updates_of) for answer in answers if answer is not None],
    }


async def _control(
    service: Service, model: str, rule: Preference, options: SimulationOptions, display: Display
) -> tuple[Sample | None, Sample | None]:
    if not options.control:
        return None, None
    indices = range(max(0, options.scores - options.window), options.scores)
    display.stage("frozen control", len(indices))
    control = await sample(service, model, [training_prompt(options.seed, i) for i in indices], rule, options.users, display)
    held_out = await _held_out(service, model, rule, options, display)
    require_one_version(Sample(control.policy_versions + held_out.policy_versions, ()))
    return control, held_out


async def _held_out(service: Service, model: str, rule: Preference, options: SimulationOptions, display: Display) -> Sample:
    display.stage("held-out prompts", len(HELD_OUT))
    return await sample(service, model, HELD_OUT, rule, options.users, display)


async def _interact(
    service: Service, model: str, rule: Preference, options: SimulationOptions, display: Display
) -> tuple[list[ScoredAnswer | None], float]:
    """The run proper: one entry per interaction, in order, None for failed ones; and the seconds users were held back."""
    display.stage("chat and score", options.scores)
    tasks: Iterator[tuple[int, str]] = ((index, training_prompt(options.seed, index)) for index in range(options.scores))
    by_index: dict[int, ScoredAnswer] = {}

    def done(answer: ScoredAnswer | None) -> None:
        if answer is None:
            display.step(None)
            return
        by_index[answer.index] = answer
        display.step(answer.score, f"v{answer.answer.policy_version}")

    pressure = BackPressure(service, options.max_backlog)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(options.users):
                group.create_task(user_session(service, model, f"user-{number}", rule, lambda: next(tasks, None), pressure, done))
    except* ConfigurationError as errors:
        raise errors.exceptions[0] from None
    return [by_index.get(index) for index in range(options.scores)], pressure.waited_seconds


async def _settle(service: Service, answers: Sequence[ScoredAnswer | None], seconds: float, display: Display) -> dict[str, dict[str, Any]]:
    """Final receipts by feedback id: each is read until it can no longer change on its own, or ``seconds`` have passed."""
    receipts = {answer.receipt["id"]: answer.receipt for answer in answers if answer is not None}
    display.stage("receipts", len(receipts))
    deadline = time.monotonic() + seconds
    waiting = list(receipts)
    while waiting:
        for feedback_id in list(waiting):
            try:
                receipts[feedback_id] = await service.receipt(feedback_id)
            except CallFailedError:
                waiting.remove(feedback_id)
                continue
            if receipts[feedback_id]["status"] not in OPEN_RECEIPTS:
                waiting.remove(feedback_id)
                display.step(None, receipts[feedback_id]["status"])
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(1.0)
    return receipts


def _count(names: Iterator[str] | Sequence[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return counts


def _record(answer: ScoredAnswer, receipts: dict[str, dict[str, Any]], updates_of: dict[int, int]) -> dict[str, Any]:
    """One interaction as it goes into the result. ``policy_lag``: updates between the version that answered and the one its update started from."""
    receipt = receipts[answer.receipt["id"]]
    sampled_at = updates_of.get(answer.answer.policy_version)
    used_at = receipt["update"]
    return {
        "index": answer.index,
        "user": answer.user,
        "prompt": answer.prompt,
        **asdict(answer.answer),
        "score": answer.score,
        "policy_lag": None if used_at is None or sampled_at is None else used_at - 1 - sampled_at,
        "receipt": receipt,
    }
