"""Recipes beside each other: Markdown tables over the seeds, pair by pair against running-mean, and the verdicts. Pure; what the figures mean is
said in adaptation_measures.py, what decides in adaptation_claims.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from online_sao.benchmarks.adaptation_claims import difference, pairs, ratio, run_area, verdicts
from online_sao.benchmarks.adaptation_measures import (
    RECOVERED,
    REFERENCE,
    SMOOTHED,
    Measured,
    PhaseMeasures,
    Recovery,
    Result,
    measured,
    population_of,
    real_runs,
)
from online_sao.benchmarks.intervals import median_text
from online_sao.benchmarks.report_files import heading, row

OF_ONE_RUN = ("url", "population", "seed", "first_phase", "last_phase", "neutral_from_phase", "control", "api_key")
"""Options of a simulation that may differ between the results compared; all others are the same in every run of a population."""
Figures = tuple[tuple[str, Callable[[PhaseMeasures], float | None], str], ...]
"""Heading, figure of a phase, form."""
FIGURES: Figures = (
    ("area", lambda phase: phase.area, "{:.2f}"),
    ("final level", lambda phase: phase.final_level, "{:.2f}"),
    ("distinct-2", lambda phase: phase.distinct_2, "{:.2f}"),
    ("KL to base", lambda phase: phase.kl_base, "{:.2f}"),
    ("update, s", lambda phase: phase.update_seconds, "{:.1f}"),
    ("explained variance", lambda phase: phase.explained_variance, "{:.2f}"),
)
RECOVERIES: tuple[tuple[str, Callable[[PhaseMeasures], Recovery | None]], ...] = (
    ("own level", lambda phase: phase.recovery),
    (f"{REFERENCE}'s level", lambda phase: phase.shared_recovery),
)


def comparison(results: Sequence[Result]) -> str:
    """Of results of several recipes or populations. Where they were not run alike, says so and compares nothing."""
    lines = [_header(results), ""]
    populations = sorted({population_of(result) for result in results}, reverse=True)
    unlike = [population for population in populations if len(_conditions(results, population)) > 1]
    if unlike:
        return "\n".join([*lines, f"**Nothing is compared:** the {' and '.join(unlike)} runs differ in schedule, options or settings.", ""])
    found = measured(results)
    lines += [*_verdict_table(found), "", *_words()]
    for population in populations:
        lines += ["", f"## {population.capitalize()} population", "", *_population(found[population])]
    return "\n".join(lines) + "\n"


def _header(results: Sequence[Result]) -> str:
    seeds = ", ".join(map(str, sorted({result["seed"] for result in results})))
    schedules = ", ".join(f"`{schedule}`" for schedule in sorted({result["schedule"] for result in results}))
    settings = {f"`{name}={value}`" for result in results for name, value in _shared_settings(result).items()}
    return f"Schedule {schedules}, seeds {seeds}, server settings of all {', '.join(sorted(settings)) or 'as they come'}."


def _shared_settings(result: Result) -> dict[str, str]:
    own = ("learning.seed", "learning.recipe", "learning.preset")
    return {name: value for name, value in result["settings"].items() if name not in own}


def _conditions(results: Sequence[Result], population: str) -> set[str]:
    """How the runs of a population were made, but for what is to differ: one element, if they can be compared."""
    return {
        repr((sorted(_shared_settings(result).items()), sorted((k, v) for k, v in run["options"].items() if k not in OF_ONE_RUN)))
        for result in results
        if population_of(result) == population
        for run in real_runs(result)
    }


def _words() -> list[str]:
    return [
        "Medians over the seeds with 95 % bootstrap intervals. To recover: interactions (and seconds) from a shift to the first place at which the "
        f"mean of the latest {SMOOTHED} scores is at {RECOVERED:.0%} of the level before the shift. The level is the recipe's own, or the one that "
        f"`{REFERENCE}` had with that seed. Where a phase ended before, its length counts, as the least it can have been; how many did stands behind "
        "the figure. Area: under the score curve, by the number of answers. Final level and distinct-2: of the last window. KL to base: the highest "
        "of an update, nats a token. Explained variance: at the end of the phase, over the latest 256 trajectories."
    ]


def _verdict_table(found: Measured) -> list[str]:
    lines = ["| Goal of `live` | Verdict | Evidence | Rule |", "|---|---|---|---|"]
    return lines + [f"| {v.part} | **{v.decision}** | {v.evidence} | {v.rule} |" for v in verdicts(found)]


def _population(recipes: Mapping[str, Mapping[int, list[PhaseMeasures]]]) -> list[str]:
    first = next(iter(next(iter(recipes.values())).values()))
    lines = []
    for place, phase in enumerate(first):
        kind = " (excludes what was wanted before)" if phase.exclusive else ""
        lines += [f"### Phase {phase.number}: {phase.name}{kind}", "", *_phase_table(recipes, place), ""]
    if len(recipes) > 1 and REFERENCE in recipes:
        lines += [f"### By seed, against `{REFERENCE}`", "", *_pair_table(recipes, first)]
    return lines


def _phase_table(recipes: Mapping[str, Mapping[int, list[PhaseMeasures]]], place: int) -> list[str]:
    shift = place > 0
    headings = ["recipe", "seeds", *(f"to recover, {name}" for name, _ in RECOVERIES if shift), *(["to recover, own level, s"] if shift else [])]
    lines = heading([*headings, *(title for title, _, _ in FIGURES)])
    for recipe, by_seed in recipes.items():
        phases = [phases[place] for phases in by_seed.values()]
        cells = [recipe, str(len(phases))]
        if shift:
            cells += [_interactions([recovery(phase) for phase in phases]) for _, recovery in RECOVERIES]
            cells.append(median_text([phase.recovery.counted_seconds if phase.recovery else None for phase in phases], "{:.0f}"))
        cells += [median_text([figure(phase) for phase in phases], form) for _, figure, form in FIGURES]
        lines.append(row(cells))
    return lines


def _interactions(recoveries: Sequence[Recovery | None]) -> str:
    known = [recovery for recovery in recoveries if recovery is not None]
    missing = sum(recovery.interactions is None for recovery in known)
    return median_text([recovery.counted_interactions for recovery in known], "{:.0f}") + (f", {missing} not recovered" if missing else "")


def _pair_table(recipes: Mapping[str, Mapping[int, list[PhaseMeasures]]], phases: Sequence[PhaseMeasures]) -> list[str]:
    lines = heading(
        ["recipe", "phase", "pairs", *(f"interactions to recover, {name}: ratio" for name, _ in RECOVERIES), "seconds: ratio", "area", "final level"]
    )
    for recipe in recipes:
        both = pairs(recipes, recipe, REFERENCE)
        if recipe == REFERENCE or not both:
            continue
        for place, phase in enumerate(phases):
            at = [(one[place], other[place]) for one, other in both]
            ratios = [median_text([ratio(of(one), of(other)) for one, other in at], "{:.2f}") for _, of in RECOVERIES]
            seconds = median_text([_seconds_ratio(one.recovery, other.recovery) for one, other in at], "{:.2f}")
            area = median_text([difference(one.area, other.area) for one, other in at], "{:+.3f}")
            final = median_text([difference(one.final_level, other.final_level) for one, other in at], "{:+.3f}")
            lines.append(row([recipe, f"{phase.number} {phase.name}", str(len(at)), *ratios, seconds, area, final]))
        whole = median_text([difference(run_area(one), run_area(other)) for one, other in both], "{:+.3f}")
        lines.append(row([recipe, "all", str(len(both)), "", "", "", whole, ""]))
    return lines


def _seconds_ratio(one: Recovery | None, other: Recovery | None) -> float | None:
    if one is None or other is None or one.counted_seconds is None or not other.counted_seconds:
        return None
    return one.counted_seconds / other.counted_seconds
