"""The result of a run as plain JSON data: each phase against its controls, every interaction, update and failed call. Knows no HTTP and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from online_sao.simulation.client import CallLog
from online_sao.simulation.measuring import Sample, distinct_2, mean, window_means
from online_sao.simulation.plan import Phase, Plan
from online_sao.simulation.users import JudgedAnswer

if TYPE_CHECKING:
    from online_sao.simulation.run import SimulationOptions

UPDATE_KEYS = ("number", "accepted", "reason", "metrics", "started_at", "finished_at")
FORMAT = 2
"""Of the result file. 1 had one phase, and its measures at the top."""


@dataclass(frozen=True, slots=True)
class PhaseMeasured:
    """``answers`` in order, failed ones left out; ``held_out`` was asked when the phase was over."""

    phase: Phase
    neutral: bool
    answers: list[JudgedAnswer]
    held_out: Sample | None


@dataclass(slots=True)
class Measured:
    """Everything a run has seen. ``controls`` by phase number; times in seconds; ``updates`` in order."""

    controls: dict[int, Sample]
    held_out_at_start: Sample | None
    phases: list[PhaseMeasured] = field(default_factory=list)
    model: str = ""
    started_at: float = 0.0
    seconds: float = 0.0
    held_back_seconds: float = 0.0
    updates: list[dict[str, Any]] = field(default_factory=list)


def result_of(options: SimulationOptions, plan: Plan, measured: Measured, log: CallLog, updates_of: Mapping[int, int]) -> dict[str, Any]:
    """``updates_of``: version → number of the update that made it."""
    receipts = Counter(judged.receipt["status"] for done in measured.phases for judged in done.answers if judged.receipt is not None)
    kls = [update["metrics"].get("policy/kl_base") for update in measured.updates if update["accepted"]]
    return {
        "format": FORMAT,
        "options": {name: value for name, value in asdict(options).items() if name != "api_key"},
        "model": measured.model,
        "started_at": measured.started_at,
        "seconds": measured.seconds,
        "held_back_seconds": measured.held_back_seconds,
        "phases": _phases(options.window, measured),
        "controls": {str(phase.number): measured.controls[phase.number].as_dict(phase) for phase in plan.phases if phase.number in measured.controls},
        "held_out_frozen": (
            {str(phase.number): _mean(measured.held_out_at_start, phase) for phase in plan.phases}
            if measured.held_out_at_start and options.control
            else None
        ),
        "kl_base_max": max((kl for kl in kls if kl is not None), default=None),
        "updates": [{key: update[key] for key in UPDATE_KEYS} for update in measured.updates],
        "receipts": dict(receipts),
        "http": log.as_dict(),
        "interactions": [_record(judged, updates_of) for done in measured.phases for judged in done.answers],
    }


def _phases(window: int, measured: Measured) -> list[dict[str, Any]]:
    phases = []
    before = measured.held_out_at_start
    for done in measured.phases:
        phases.append(_phase(done, window, measured.controls.get(done.phase.number), before))
        before = done.held_out
    return phases


def _phase(done: PhaseMeasured, window: int, control: Sample | None, before: Sample | None) -> dict[str, Any]:
    phase = done.phase
    by_index = {judged.index: judged for judged in done.answers}
    newest = [by_index[index] for index in phase.indices(window) if index in by_index]
    last_mean = mean([judged.score for judged in newest])
    frozen = _mean(control, phase)
    variety = distinct_2([judged.answer.text for judged in newest])
    frozen_variety = distinct_2(control.texts) if control else None
    return {
        "number": phase.number,
        "name": phase.name,
        "description": phase.description,
        "neutral": done.neutral,
        "first": phase.first,
        "last": phase.last,
        "windows": window_means([by_index[i].score if i in by_index else None for i in phase.indices()], window, phase.first),
        "mean": mean([judged.score for judged in done.answers]),
        "last_window_mean": last_mean,
        "control_mean": frozen,
        "difference": None if last_mean is None or frozen is None else last_mean - frozen,
        "by_context": {name: mean([j.score for j in newest if j.context == name]) for name in sorted({j.context for j in newest})},
        "held_out": {"before": _mean(before, phase), "after": _mean(done.held_out, phase)} if done.held_out else None,
        "held_out_texts": list(done.held_out.texts) if done.held_out else None,
        "distinct_2": variety,
        "distinct_2_ratio": variety / frozen_variety if variety is not None and frozen_variety else None,
    }


def _mean(answers: Sample | None, phase: Phase) -> float | None:
    return mean(answers.scores(phase)) if answers is not None else None


def _record(judged: JudgedAnswer, updates_of: Mapping[int, int]) -> dict[str, Any]:
    """One interaction as it goes into the result. ``policy_lag``: updates between the version that answered and the one its update started from."""
    sampled_at = updates_of.get(judged.answer.policy_version)
    used_at = judged.receipt["update"] if judged.receipt is not None else None
    return {
        "index": judged.index,
        "phase": judged.phase,
        "user": judged.user,
        "context": judged.context,
        "prompt": judged.prompt,
        **asdict(judged.answer),
        "score": judged.score,
        "sent": judged.sent,
        "policy_lag": None if used_at is None or sampled_at is None else used_at - 1 - sampled_at,
        "receipt": judged.receipt,
    }
