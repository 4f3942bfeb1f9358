"""The goals that are tested, each with the rule that decides it, fixed before the runs; and recipes beside each other, seed by seed. Pure.

Only runs of equal setting (model, population, names, scale) and seed are compared. ``met`` and ``not met`` each need evidence, all else is
``undecided``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from online_sao.benchmarks.adaptation_lab.options import recipe_name, setting_of
from online_sao.benchmarks.adaptation_lab.summary import recovery
from online_sao.benchmarks.intervals import median_interval, median_text

Decision = Literal["met", "not met", "undecided"]
Result = Mapping[str, Any]

OURS = "sao"
REFERENCE = "running-mean"
RIVALS = (REFERENCE, "ema", "batch-mean")
"""With all that `live` has but its critic, the anchor among it; NAME/paper, which has no anchor, is what others publish."""
AS_PUBLISHED = "/paper"
LEAST_SEEDS = 5
HALF = 0.5
AS_MANY = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    setting: str
    goal: str
    rule: str
    decision: Decision
    evidence: str


def settings(results: Sequence[Result]) -> Iterator[tuple[str, dict[str, list[Result]]]]:
    """Every setting by its words, and the runs there by recipe; both in a fixed order, seeds rising."""
    for setting in sorted({setting_of(result["options"]) for result in results}, reverse=True):
        there = [result for result in results if setting_of(result["options"]) == setting]
        recipes = sorted({result["recipe"] for result in there}, key=lambda name: (recipe_name(name) != OURS, name))
        yield (
            ", ".join(setting),
            {recipe: sorted((r for r in there if r["recipe"] == recipe), key=lambda r: int(r["seed"])) for recipe in recipes},
        )


def pairwise(by_recipe: Mapping[str, Sequence[Result]], one: str, other: str, compare: Callable[[Result, Result], float]) -> list[float]:
    """``compare`` of the runs of the two recipes, for every seed that both have."""
    rivals = {result["seed"]: result for result in by_recipe.get(other, ())}
    return [compare(result, rivals[result["seed"]]) for result in by_recipe.get(one, ()) if result["seed"] in rivals]


def recovery_ratio(one: Result, other: Result) -> float:
    """Interactions to recover, added up over the shifts, both to the level that ``other`` had: who had learned more before is not asked for more
    after. Where neither recovers anywhere this is 1."""
    needed = [0, 0]
    for phase, levels in zip(one["phases"][1:], other["summary"]["phases"][1:], strict=True):
        part = slice(phase["start"], phase["start"] + phase["interactions"])
        for place, run in enumerate((one, other)):
            needed[place] += recovery(run["scores"][part], levels["before"], levels["frozen_before"]) or phase["interactions"]
    return needed[0] / needed[1]


def area_difference(one: Result, other: Result) -> float:
    return float(one["summary"]["area"] - other["summary"]["area"])


def update_ratio(one: Result, other: Result) -> float:
    return float(one["summary"]["update_seconds"] / other["summary"]["update_seconds"])


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """``results``: runs with their ``recipe``, ``seed``, setting and ``summary``."""
    found = []
    for setting, by_recipe in settings(results):
        rivals = [*RIVALS, *(name for rival in RIVALS if (name := rival + AS_PUBLISHED) in by_recipe)]
        for rival in rivals:
            if rival.startswith(REFERENCE):
                found.append(_fewer(setting, by_recipe, rival, HALF, f"after a shift, at most half the interactions that `{rival}` needs"))
            else:
                found.append(_fewer(setting, by_recipe, rival, AS_MANY, f"after a shift, no more interactions than `{rival}` needs"))
        if "uniform" not in setting:
            found += [_ahead(setting, by_recipe, rival) for rival in rivals]
        found += [_over_control(setting, by_recipe, key, name) for key, name in (("minus_frozen", "frozen"), ("minus_anchor_only", "anchor-only"))]
    return found


def _fewer(setting: str, by_recipe: Mapping[str, Sequence[Result]], rival: str, most: float, goal: str) -> Verdict:
    ratios = pairwise(by_recipe, OURS, rival, recovery_ratio)
    decision: Decision = "undecided"
    if len(ratios) >= LEAST_SEEDS:
        decision = "met" if median_interval(ratios).median <= most else "not met"
    rule = (
        f"`{OURS}` / `{rival}`, equal seeds, {LEAST_SEEDS} or more: interactions to recover, both to the level of `{rival}`, added up over the "
        f"shifts; the median is at most {most:g}. A phase without recovery counts as its length."
    )
    return Verdict(setting, f"`{OURS}`: {goal}", rule, decision, evidence(ratios, "{:.2f}"))


def _ahead(setting: str, by_recipe: Mapping[str, Sequence[Result]], rival: str) -> Verdict:
    differences = pairwise(by_recipe, OURS, rival, area_difference)
    return _above_nothing(setting, f"`{OURS}`: clearly ahead of `{rival}`", f"`{OURS}` less `{rival}`: mean score of the run", differences)


def _over_control(setting: str, by_recipe: Mapping[str, Sequence[Result]], key: str, control: str) -> Verdict:
    differences = [result["summary"][key] for result in by_recipe.get(OURS, ()) if result["summary"][key] is not None]
    return _above_nothing(setting, f"`{OURS}`: above {control}", f"the last window less that of the {control} control", differences)


def _above_nothing(setting: str, goal: str, quantity: str, differences: Sequence[float]) -> Verdict:
    decision: Decision = "undecided"
    if len(differences) >= LEAST_SEEDS:
        interval = median_interval(differences)
        assert interval.low is not None
        assert interval.high is not None
        decision = "met" if interval.low > 0 else "not met" if interval.high <= 0 else "undecided"
    rule = f"{quantity}, runs of equal seed, {LEAST_SEEDS} or more: the 95 % bootstrap interval of the median is above 0. Not met: it is not above."
    return Verdict(setting, goal, rule, decision, evidence(differences, "{:+.3f}"))


def evidence(values: Sequence[float], form: str) -> str:
    """Median, interval, how many."""
    if not values:
        return "nothing to compare"
    return f"{median_text(values, form)}, {len(values)} seed{'s' if len(values) > 1 else ''}"
