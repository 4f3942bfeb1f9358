"""One simulated run, from the frozen control to the last receipt. Owns its order; talks to the service over HTTP only.

The control: before the first score is sent, the prompts of every phase's last window are answered by the version then being served, with ``store``
false, and judged by that phase's rule. The last window of the phase asks the same prompts of what was learned since: the difference of the two
means is the result. Held-out prompts, never scored, are answered before the first phase and after each.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from online_sao.errors import ConfigurationError
from online_sao.simulation.client import CallFailedError, Service
from online_sao.simulation.measuring import Display, Sample, require_one_version, sample
from online_sao.simulation.plan import Phase, Plan, Population
from online_sao.simulation.preferences import Scale
from online_sao.simulation.results import Measured, PhaseMeasured, result_of
from online_sao.simulation.users import BackPressure, Crowd, Habits, JudgedAnswer

OPEN_RECEIPTS = ("received", "queued", "trained")
"""Receipts in these states may still change on their own."""
QUIET_SECONDS = 5.0
"""Between phases: a learner that waits for more scores, and whose receipts stand still for this long, has learned what it will."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """What to run. ``schedule``: preferences and interactions of each phase, as in "first-person:160,plain-words:160". ``first_phase`` to
    ``last_phase``: the part of it to run, on a service that learned the part before. From ``neutral_from_phase`` on, users send the neutral score.
    ``window`` in interactions, ``max_backlog`` in scores; ``settle_seconds``: how long a phase's last receipts are waited for;
    ``held_out_repeats``: answers to each held-out prompt."""

    url: str = "http://127.0.0.1:8000"
    schedule: str = "first-person:160"
    population: Population = "uniform"
    scale: Scale = "graded"
    first_phase: int = 1
    last_phase: int | None = None
    neutral_from_phase: int | None = None
    users: int = 8
    seed: int = 0
    noise: float = 0.0
    missing: float = 0.0
    late: str = "0"
    window: int = 40
    max_backlog: int = 16
    max_tokens: int = 24
    control: bool = True
    held_out_repeats: int = 2
    settle_seconds: float = 180.0
    api_key: str | None = field(default=None, repr=False)

    def plan(self) -> Plan:
        """Raises ConfigurationError where the options do not go together."""
        plan = Plan(self.schedule, population=self.population, scale=self.scale, seed=self.seed)
        last = self.last_phase or len(plan.phases)
        if not 1 <= self.first_phase <= last <= len(plan.phases):
            raise ConfigurationError(
                f"There are phases 1 to {len(plan.phases)}: --from-phase {self.first_phase} --to-phase {last} names none of them."
            )
        return plan

    def neutral(self, phase: Phase) -> bool:
        return self.neutral_from_phase is not None and phase.number >= self.neutral_from_phase


async def simulate(options: SimulationOptions, display: Display) -> dict[str, Any]:
    """Run it; returns the result as plain JSON data. Raises ConfigurationError when there is no server, the control is not frozen, or the learner
    stands still. Failed calls raise nothing: they are in ``http.failures``."""
    plan = options.plan()
    habits = Habits(options.seed, options.noise, options.missing, options.late)
    started_at, started = time.time(), time.monotonic()
    async with Service(options.url, api_key=options.api_key, max_tokens=options.max_tokens) as service:
        try:
            model = await service.model()
            last_update = (await service.status())["last_update"]
        except CallFailedError as error:
            raise ConfigurationError(f"No service answers at {options.url} ({error}). Start one with: online-sao serve") from error
        run = _Run(service, model, plan, options, habits, display)
        measured = await run.all_phases()
        try:
            updates_of = await service.updates_of_versions()
            measured.updates = await service.updates(after=last_update["number"] if last_update else 0)
        except CallFailedError:
            updates_of = {}  # counted as failed; the scores stand without their lags
    measured.model = model
    measured.started_at, measured.seconds = started_at, time.monotonic() - started
    measured.held_back_seconds = run.pressure.waited_seconds
    return result_of(options, plan, measured, service.log, updates_of)


class _Run:
    def __init__(self, service: Service, model: str, plan: Plan, options: SimulationOptions, habits: Habits, display: Display) -> None:
        self._service = service
        self._model = model
        self._plan = plan
        self._options = options
        self._habits = habits
        self._display = display
        self.pressure = BackPressure(service, options.max_backlog)

    async def all_phases(self) -> Measured:
        options = self._options
        phases = self._plan.phases[options.first_phase - 1 : options.last_phase]
        controls: dict[int, Sample] = {}
        held_out = None
        if options.control:
            # Also of the phases that are left to another run: a branch that goes on from here can no longer ask what the start would have said.
            for phase in self._plan.phases[options.first_phase - 1 :]:
                asks = [self._plan.ask(index) for index in phase.indices(options.window)]
                controls[phase.number] = await self._sample(f"control {phase.number}", asks, phase)
            held_out = await self._held_out(phases[0])
            require_one_version(held_out, *controls.values())
        elif options.held_out_repeats:
            held_out = await self._held_out(phases[0])
        measured = Measured(controls=controls, held_out_at_start=held_out)
        for phase in phases:
            answers = await self._interact(phase)
            await self._settle(answers, last=phase is phases[-1])
            after = await self._held_out(phase) if options.held_out_repeats else None
            measured.phases.append(PhaseMeasured(phase, options.neutral(phase), answers, after))
        return measured

    async def _sample(self, name: str, asks: list[Any], phase: Phase) -> Sample:
        self._display.stage(name, len(asks))
        return await sample(self._service, self._model, asks, phase, self._options.users, self._display)

    async def _held_out(self, phase: Phase) -> Sample:
        return await self._sample("held-out prompts", self._plan.held_out(self._options.held_out_repeats), phase)

    async def _interact(self, phase: Phase) -> list[JudgedAnswer]:
        """The phase proper: its answers in order, failed ones left out."""
        neutral = self._options.neutral(phase)
        self._display.stage(f"{phase.number} {phase.name}" + (" (neutral)" if neutral else ""), len(phase.indices()))
        answers: list[JudgedAnswer] = []

        def done(judged: JudgedAnswer | None) -> None:
            if judged is None:
                self._display.step(None)
                return
            answers.append(judged)
            self._display.step(judged.score, f"v{judged.answer.policy_version}")

        crowd = Crowd(self._service, self._model, self._plan, phase, self._habits, self.pressure, neutral=neutral)
        await crowd.run(self._options.users, done)
        return sorted(answers, key=lambda judged: judged.index)

    async def _settle(self, answers: list[JudgedAnswer], *, last: bool) -> None:
        """Read each receipt until it can no longer change on its own, or time is up; between phases also until the learner waits for more."""
        waiting = [judged for judged in answers if judged.receipt is not None]
        self._display.stage("receipts", len(waiting))
        deadline = time.monotonic() + self._options.settle_seconds
        quiet_since = time.monotonic()
        while waiting:
            still = [judged for judged in waiting if await self._still_open(judged)]
            if len(still) < len(waiting):
                waiting, quiet_since = still, time.monotonic()
            if time.monotonic() > deadline or (not last and time.monotonic() - quiet_since > QUIET_SECONDS and await self._learner_waits()):
                break
            if waiting:
                await asyncio.sleep(1.0)

    async def _still_open(self, judged: JudgedAnswer) -> bool:
        """Read the receipt of ``judged`` anew. False where it is final, or could not be read."""
        assert judged.receipt is not None
        try:
            judged.receipt = await self._service.receipt(judged.receipt["id"])
        except CallFailedError:
            return False
        if judged.receipt["status"] in OPEN_RECEIPTS:
            return True
        self._display.step(None, judged.receipt["status"])
        return False

    async def _learner_waits(self) -> bool:
        try:
            status = await self._service.status()
        except CallFailedError:
            return False
        return bool(status["learner"]["phase"] == "waiting")
