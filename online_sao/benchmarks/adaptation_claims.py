"""The goal that recipes are compared for, each part with the rule that decides it, fixed before the runs. Pure: measures in, verdicts out.

Goal: "`live`: after a shift, at most half the interactions that running-mean(128) needs and no more than ema or batch-mean need, in the median of the
seeds, and clearly ahead on the mixed population." `live` is the recipe `sao` in the numbers that ship. The shift is the last one, to preferences that
exclude those before it: after others, what was learned before may please as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from online_sao.benchmarks.adaptation_measures import LIVE, REFERENCE, Measured, PhaseMeasures, Recovery
from online_sao.benchmarks.intervals import median_interval, median_text

Decision = Literal["met", "not met", "undecided"]

LEAST_SEEDS = 3
"""Seeds that both recipes ran, below which nothing is decided."""
RIVALS = {REFERENCE: 0.5, "ema": 1.0, "batch-mean": 1.0}
"""What `live` is measured against, and the most interactions it may need as a part of theirs."""
BARS = {"recovery": "its own level before the shift", "shared_recovery": f"the level {REFERENCE} had before the shift"}


@dataclass(frozen=True, slots=True)
class Verdict:
    part: str
    decision: Decision
    evidence: str
    rule: str


def verdicts(found: Measured) -> list[Verdict]:
    """The goal as a whole, then its parts."""
    parts = [_sooner(found.get("uniform", {}), rival, bar) for rival in RIVALS for bar in BARS]
    parts += [_ahead(found.get("mixed", {}), rival) for rival in RIVALS]
    return [_whole(parts), *parts]


def _whole(parts: Sequence[Verdict]) -> Verdict:
    decisions = [part.decision for part in parts]
    decision: Decision = "not met" if "not met" in decisions else "undecided" if "undecided" in decisions else "met"
    counts = ", ".join(f"{decisions.count(each)} {each}" for each in ("met", "not met", "undecided") if each in decisions)
    return Verdict("**the goal**", decision, counts, "Every part is met. Not met: some part is not.")


Pair = tuple[list[PhaseMeasures], list[PhaseMeasures]]


def pairs(recipes: Mapping[str, Mapping[int, list[PhaseMeasures]]], one: str, other: str) -> list[Pair]:
    """Both recipes' phases, for every seed that both ran."""
    first, second = recipes.get(one, {}), recipes.get(other, {})
    return [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]


def ratio(one: Recovery | None, other: Recovery | None) -> float | None:
    """Of the interactions as counted; None where one of them has no shift or level."""
    return None if one is None or other is None else one.counted_interactions / other.counted_interactions


def run_area(phases: Sequence[PhaseMeasures]) -> float | None:
    """Area under the score curve of the whole run by its answers: their mean score."""
    known = [(phase.area, phase.answers) for phase in phases if phase.area is not None]
    return sum(area * answers for area, answers in known) / sum(answers for _, answers in known) if known else None


def difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _sooner(recipes: Mapping[str, Mapping[int, list[PhaseMeasures]]], rival: str, bar: str) -> Verdict:
    most = RIVALS[rival]
    both = [(one[-1], other[-1]) for one, other in pairs(recipes, LIVE, rival) if one[-1].exclusive]
    judged = [(getattr(one, bar), getattr(other, bar)) for one, other in both]
    judged = [(one, other) for one, other in judged if one is not None and other is not None]
    ratios = [one.counted_interactions / other.counted_interactions for one, other in judged]
    decision: Decision = "undecided"
    if len(ratios) >= LEAST_SEEDS:
        decision = "met" if median_interval(ratios).median <= most else "not met"
    evidence = _seeds(ratios, "{:.2f}", "a last shift to preferences that exclude those before it")
    for name, place in ((LIVE, 0), (rival, 1)):
        missing = sum(pair[place].interactions is None for pair in judged)
        evidence += f"; {name} not recovered in {missing}, counted as the phase's length" if missing else ""
    return Verdict(
        f"back to {BARS[bar]} {'in half the interactions of' if most < 1 else 'no later than'} `{rival}`",
        decision,
        evidence,
        f"Uniform population, last shift, {LEAST_SEEDS} seeds or more: the median over the seeds of `{LIVE}`'s interactions to recovery, by "
        f"`{rival}`'s, is at most {most:g}.",
    )


def _ahead(recipes: Mapping[str, Mapping[int, list[PhaseMeasures]]], rival: str) -> Verdict:
    areas = [difference(run_area(one), run_area(other)) for one, other in pairs(recipes, LIVE, rival)]
    differences = [area for area in areas if area is not None]
    decision: Decision = "undecided"
    if len(differences) >= LEAST_SEEDS:
        interval = median_interval(differences)
        if interval.low is not None and interval.low > 0:
            decision = "met"
        elif interval.median <= 0:
            decision = "not met"
    return Verdict(
        f"mixed population: clearly ahead of `{rival}`",
        decision,
        _seeds(differences, "{:+.3f}", "a mixed population"),
        f"{LEAST_SEEDS} seeds or more: the 95 % bootstrap interval of the median over the seeds of the difference in mean score of the whole run is "
        "above 0. Not met: the median is not.",
    )


def _seeds(values: Sequence[float], form: str, lacking: str) -> str:
    return f"{median_text(values, form)}, {len(values)} seeds" if values else f"no seeds of both with {lacking}"
