"""What recipes are compared by: the figures of every phase of a seed's result. Pure; each definition was written down before any run that compares.

Smoothing: the mean of the latest 24 scores of a phase (three batches of `live`); it never reaches back beyond the shift. All scores are the true
judgements, of the branch with real scores, whatever was sent.

Recovery: the first place after a shift at which the smoothed score is at 80 % of the level before the shift, the mean of the last window of the
phase before. A policy that had learned little has a low level to come back to; so recovery is also measured by one level for all recipes of a seed,
the one that ``running-mean`` had (``shared_recovery``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from online_sao.benchmarks.tiny_policy.curves import smoothed
from online_sao.simulation.preferences import opposite

SMOOTHED = 24
"""Scores that are smoothed over."""
RECOVERED = 0.8
"""Part of the level before a shift that counts as recovered."""
LIVE, REFERENCE = "sao", "running-mean"

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recovery:
    """From the first question after a shift to the score that completed the recovery, by number of interactions and by the service's clock. None: not
    recovered within the phase, or (seconds) no time is known."""

    interactions: int | None
    seconds: float | None
    phase_interactions: int
    phase_seconds: float | None

    @property
    def counted_interactions(self) -> int:
        """Not recovered counts as the phase's length: at least so many."""
        return self.phase_interactions if self.interactions is None else self.interactions

    @property
    def counted_seconds(self) -> float | None:
        return self.phase_seconds if self.interactions is None else self.seconds


@dataclass(frozen=True, slots=True)
class PhaseMeasures:
    """Figures of one phase. An update belongs to the phase of the newest interaction it used.

    ``recovery`` by the recipe's own level, ``shared_recovery`` by running-mean's; None where no shift began the phase or no level is known.
    ``exclusive``: no text that pleased a user in the phase before pleases that user now. ``area``: under the score curve, divided by the phase's
    ``answers``, that is their mean score. ``final_level``: mean score of the last window; ``distinct_2`` of its answers. ``kl_base``: highest of the
    accepted updates, nats a token. ``update_seconds``: median of the updates, start to end. ``explained_variance``: of the last update, over its
    latest 256 trajectories; None without a critic."""

    number: int
    name: str
    exclusive: bool
    answers: int
    recovery: Recovery | None
    shared_recovery: Recovery | None
    area: float | None
    final_level: float | None
    distinct_2: float | None
    kl_base: float | None
    update_seconds: float | None
    explained_variance: float | None


def recipe_of(result: Result) -> str:
    """As in ``--recipes``: the name, with /paper behind it where that is the preset."""
    name, preset = result["settings"].get("learning.recipe", LIVE), result["settings"].get("learning.preset", "live")
    return str(name if preset == "live" else f"{name}/{preset}")


def population_of(result: Result) -> str:
    return str(result["runs"]["real"]["options"]["population"])


def real_runs(result: Result) -> list[Result]:
    """The runs with true scores, in order: before the last shift and after it, where they are two."""
    return [result["runs"][name] for name in ("before", "real") if name in result["runs"]]


def cells(results: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results by population and recipe, by seed in each. `sao` comes first, what it is measured against next, then the others."""

    def order(cell: tuple[str, str]) -> tuple[bool, bool, bool, str]:
        population, recipe = cell
        return population != "uniform", recipe != LIVE, recipe != REFERENCE, recipe

    found: dict[tuple[str, str], list[Result]] = {}
    for result in sorted(results, key=lambda result: int(result["seed"])):
        found.setdefault((population_of(result), recipe_of(result)), []).append(result)
    return {cell: found[cell] for cell in sorted(found, key=order)}


Measured = dict[str, dict[str, dict[int, list[PhaseMeasures]]]]
"""Population → recipe → seed → phases."""


def measured(results: Sequence[Result]) -> Measured:
    grouped = cells(results)
    found: Measured = {}
    for (population, recipe), runs in grouped.items():
        references = {result["seed"]: result for result in grouped.get((population, REFERENCE), ())}
        found.setdefault(population, {})[recipe] = {run["seed"]: measure(run, references.get(run["seed"])) for run in runs}
    return found


def measure(result: Result, reference: Result | None = None) -> list[PhaseMeasures]:
    """Every phase of ``result``; ``reference``: of the same seed and schedule, whose levels before the shifts are shared."""
    phases = _phases(result)
    levels = [phase["last_window_mean"] for phase in phases]
    shared = [phase["last_window_mean"] for phase in _phases(reference)] if reference is not None else [None] * len(phases)
    interactions = [interaction for run in real_runs(result) for interaction in run["interactions"]]
    updates = _updates_by_phase(result, interactions)
    measures = []
    for place, phase in enumerate(phases):
        answers = [interaction for interaction in interactions if interaction["phase"] == phase["number"]]
        before = phases[place - 1]["name"] if place else ""
        measures.append(
            PhaseMeasures(
                number=phase["number"],
                name=phase["name"],
                exclusive=excludes(before, phase["name"]),
                answers=len(answers),
                recovery=recovery(phase, answers, levels[place - 1]) if place else None,
                shared_recovery=recovery(phase, answers, shared[place - 1]) if place else None,
                area=statistics.fmean(answer["score"] for answer in answers) if answers else None,
                final_level=phase["last_window_mean"],
                distinct_2=phase["distinct_2"],
                **_of_updates(updates.get(phase["number"], [])),
            )
        )
    return measures


def _phases(result: Result) -> list[Mapping[str, Any]]:
    return [phase for run in real_runs(result) for phase in run["phases"]]


def excludes(before: str, after: str) -> bool:
    """Whether of two phases, as they are named, the later wants of every user what no text can give that pleased that user before."""
    wanted, wants = before.split("/"), after.split("/")
    return len(wanted) == len(wants) and all(opposite(one) == other for one, other in zip(wanted, wants, strict=True))


def recovery(phase: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], level: float | None) -> Recovery | None:
    """Of a phase's ``answers`` in their order to the level before it. None where that is None, or nothing was answered."""
    if level is None or not answers:
        return None
    place = recovered_at([answer["score"] for answer in answers], RECOVERED * level)
    return Recovery(
        interactions=None if place is None else answers[place]["index"] - phase["first"] + 1,
        seconds=None if place is None else _seconds(answers, place),
        phase_interactions=phase["last"] - phase["first"] + 1,
        phase_seconds=_seconds(answers, len(answers) - 1),
    )


def recovered_at(scores: Sequence[float], bar: float, window: int = SMOOTHED) -> int | None:
    """Place of the first score at which the mean of the latest ``window`` is at ``bar``; None if it never is. Fewer scores are one window."""
    means = smoothed(scores, window)
    skipped = len(scores) - len(means)
    return next((skipped + place for place, mean in enumerate(means) if mean >= bar - 1e-9), None)  # a mean may round below an equal bar


def _seconds(answers: Sequence[Mapping[str, Any]], place: int) -> float | None:
    """From when the first of ``answers`` was asked for to the newest score among them up to ``place``; those without a receipt left out."""
    times = [(answer["receipt"]["created"], answer["total_seconds"]) for answer in answers[: place + 1] if "created" in (answer["receipt"] or {})]
    return max(taken for taken, _ in times) - min(taken - waited for taken, waited in times) if times else None


def _updates_by_phase(result: Result, interactions: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    phase_of: dict[int, int] = {}
    for interaction in interactions:
        number = (interaction["receipt"] or {}).get("update")
        if number is not None:
            phase_of[number] = max(phase_of.get(number, 0), interaction["phase"])
    found: dict[int, list[Mapping[str, Any]]] = {}
    for run in real_runs(result):
        for update in run["updates"]:
            if update["number"] in phase_of:
                found.setdefault(phase_of[update["number"]], []).append(update)
    return found


def _of_updates(updates: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    kls = [update["metrics"].get("policy/kl_base") for update in updates if update["accepted"]]
    times = [update["finished_at"] - update["started_at"] for update in updates if update["finished_at"] is not None]
    critic = any(update["metrics"].get("value/updates") for update in updates)
    return {
        "kl_base": max((kl for kl in kls if kl is not None), default=None),
        "update_seconds": statistics.median(times) if times else None,
        "explained_variance": updates[-1]["metrics"].get("value/explained_variance") if critic else None,
    }
