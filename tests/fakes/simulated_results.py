"""Results of simulated runs as the simulation writes them, with scores the test chooses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from online_sao.benchmarks.adaptation_report import summarise
from online_sao.simulation.client import Answer, CallLog, Failure
from online_sao.simulation.measuring import Sample
from online_sao.simulation.plan import Plan
from online_sao.simulation.results import Measured, PhaseMeasured, result_of
from online_sao.simulation.run import SimulationOptions
from online_sao.simulation.users import JudgedAnswer

SCHEDULE = "first-person:40,plain-words:40,ornate-words:40"


def simulated_result(options: SimulationOptions, means: list[tuple[float, float]], *, frozen: float = 0.1, kl: float = 0.1, failures: int = 0) -> Any:
    """A run whose phases' scores go from the first to the second of ``means``; the frozen control has mean ``frozen`` on thumbs."""
    chance = random.Random(options.seed)
    plan = options.plan()
    phases = plan.phases[options.first_phase - 1 : options.last_phase]
    control = {phase.number: _frozen(plan, phase, frozen, options.window) for phase in plan.phases} if options.control else {}
    measured = Measured(controls=control, held_out_at_start=_frozen(plan, phases[0], frozen, 10), seconds=60.0)
    for phase, (start, end) in zip(phases, means, strict=True):
        answers = []
        for place, index in enumerate(phase.indices()):
            score = float(chance.random() < start + (end - start) * place / 20)
            answer = Answer(f"c-{index}", f"word{index} text{index % 7} here", place, False, None, 1.0)
            receipt = {"id": f"fb-{index}", "status": "live", "update": place // 8 + 1}
            answers.append(JudgedAnswer(index, phase.number, "user-0", "user", "Say.", answer, score, score, receipt))
        measured.phases.append(PhaseMeasured(phase, options.neutral(phase), answers, _frozen(plan, phase, end, 10)))
        measured.updates += [
            {
                "number": (phase.first + place) // 8 + 1,
                "accepted": True,
                "reason": None,
                "metrics": {"policy/kl_base": kl * (phase.first + place) / 120},
                "started_at": 0.0,
                "finished_at": 1.0,
            }
            for place in range(0, 40, 8)
        ]
    log = CallLog(100, [Failure("POST", "/v1/feedback", 500, "broken")] * failures)
    return result_of(options, plan, measured, log, {version: version // 8 for version in range(41)})


def _frozen(plan: Plan, phase: Any, mean: float, count: int) -> Sample:
    """Texts of which a fraction ``mean`` pleases ``phase`` fully."""
    pleasing = {"first-person": "I know I do.", "plain-words": "a bit of it is so", "ornate-words": "extraordinarily magnificent"}[phase.name]
    texts = tuple(pleasing if place < round(mean * count) else "You think words." for place in range(count))
    return Sample((plan.ask(0),) * count, texts, (0,) * count)


def seed_result(seed: int, **settings: str) -> dict[str, Any]:
    """One seed of the adaptation benchmark: learns every phase to 0.8, and with neutral scores drifts to 0.3."""
    options = SimulationOptions(schedule=SCHEDULE, seed=seed, window=20)
    last = {"first_phase": 3, "control": False}
    runs = {
        "before": simulated_result(replace(options, last_phase=2), [(0.1, 0.8), (0.1, 0.8)]),
        "real": simulated_result(replace(options, **last), [(0.1, 0.8)]),
        "anchor-only": simulated_result(replace(options, **last, neutral_from_phase=3), [(0.1, 0.3)], kl=0.05),
    }
    return {
        "benchmark": "adaptation",
        "seed": seed,
        "schedule": SCHEDULE,
        "settings": {"learning.seed": str(seed), **settings},
        "seconds": 600.0,
        "summary": summarise(runs),
        "runs": runs,
    }
