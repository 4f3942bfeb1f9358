"""From runs to a report: tables of every setting with both controls, the recipes beside each other, the goals. Pure but for writing files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from online_sao.benchmarks.adaptation_lab.options import SETTINGS
from online_sao.benchmarks.adaptation_lab.summary import RECOVERY, WINDOW
from online_sao.benchmarks.adaptation_lab.verdicts import (
    REFERENCE,
    area_difference,
    evidence,
    figure,
    pairwise,
    recovery_ratio,
    settings,
    update_ratio,
    verdicts,
)
from online_sao.benchmarks.intervals import median_interval

NOT_SHARED = ("recipe", "seed", "warm_start", *SETTINGS)
"""Options that differ from run to run, or are shown by what came of them."""
ByRecipe = Mapping[str, Sequence[Mapping[str, Any]]]
CRITIC = (
    ("explained variance", "explained_variance", "{:.2f}"),
    ("slope", "calibration_slope", "{:.2f}"),
    ("KL to base, most", "kl_base", "{:.2f}"),
    ("masked", "masked_fraction", "{:.1%}"),
    ("s an update", "update_seconds", "{:.3f}"),
    ("s a run", "seconds", "{:.0f}"),
)
"""Heading, key in the summary, form."""


def write_report(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write report.md, and the plots where matplotlib is installed (the ``plots`` extra), into ``out``. Returns what was written."""
    written = [out / "report.md"]
    written[0].write_text(markdown(results), encoding="utf-8")
    try:
        from online_sao.benchmarks.adaptation_lab.plots import write_plots
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return written  # the tables stand without them
    return written + write_plots(results, out)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Tables and verdicts of at least one run."""
    lines = [*_header(results), ""]
    for setting, by_recipe in settings(results):
        lines += [f"## {setting}", "", *_levels(by_recipe), "", *_recoveries(by_recipe), "", *_beside(by_recipe), ""]
    lines += ["## Goals", "", "| Setting | Goal | Verdict | Evidence | Rule |", "|---|---|---|---|---|"]
    lines += [f"| {v.setting} | {v.goal} | **{v.decision}** | {v.evidence} | {v.rule} |" for v in verdicts(results)]
    return "\n".join(lines) + "\n"


def _header(results: Sequence[Mapping[str, Any]]) -> list[str]:
    options = [{name: value for name, value in result["options"].items() if name not in NOT_SHARED} for result in results]
    shared = ", ".join(f"`{name}={value}`" for name, value in options[0].items())
    shared += f"; a model of {results[0]['warm_start']['parameters']:,} parameters"
    if any(other != options[0] for other in options):
        shared = "settings differ from run to run: do not merge these figures"
    machine = results[-1]["environment"]
    lines = [
        f"{len(results)} runs, seeds {', '.join(map(str, sorted({result['seed'] for result in results})))}; {shared}.",
        "",
        f"Scores are quality × style, from 0 to 1. Last: the mean of a phase's last {WINDOW} interactions; area: the mean of all. Frozen: the warm "
        "start on the same prompts and wishes. Anchor-only: the last phase with neutral scores. Medians over seeds, with 95 % bootstrap intervals "
        "where there are several.",
        "",
        RECOVERY,
        "",
        f"{machine['cpus']} CPUs, {machine['platform']}, torch {machine['torch']}, {results[0]['date'][:10]} to {results[-1]['date'][:10]}.",
    ]
    broken = [f"{run['recipe']} ({run['population']}, seed {run['seed']}): {len(run['problems'])}" for run in results if run["problems"]]
    if broken:
        lines += ["", f"Updates taken back because loss or gradients were not finite: {'; '.join(broken)}."]
    return lines


def _levels(by_recipe: ByRecipe) -> list[str]:
    """A row a recipe, the frozen control first."""
    first = next(iter(by_recipe.values()))[0]["summary"]["phases"]
    headings = [f"{number} {phase['name']}: {what}" for number, phase in enumerate(first, start=1) for what in ("last", "area")]
    lines = _head("recipe", "seeds", *headings, "whole area", "last minus frozen", "anchor-only", "last minus anchor-only")
    frozen = list({run["seed"]: run for runs in by_recipe.values() for run in runs}.values())
    numbers = range(len(first))
    cells = [_of([run["summary"]["phases"][number][key] for run in frozen]) for number in numbers for key in ("frozen_final", "frozen_area")]
    lines.append(_row("frozen", str(len(frozen)), *cells, _of([run["summary"]["frozen_area"] for run in frozen]), "–", "–", "–"))
    for recipe, runs in by_recipe.items():
        cells = [_of([run["summary"]["phases"][number][key] for run in runs]) for number in numbers for key in ("final", "area")]
        controls = [
            _of([run["summary"][key] for run in runs], form)
            for key, form in (("minus_frozen", "{:+.2f}"), ("anchor_only", "{:.2f}"), ("minus_anchor_only", "{:+.2f}"))
        ]
        lines.append(_row(recipe, str(len(runs)), *cells, _of([run["summary"]["area"] for run in runs]), *controls))
    return lines


def _recoveries(by_recipe: ByRecipe) -> list[str]:
    """Interactions and seconds to recover after each shift, and what the critic was worth and cost."""
    names = [phase["name"] for phase in next(iter(by_recipe.values()))[0]["summary"]["phases"]][1:]
    headings = [f"to {name}: {what}" for name in names for what in ("interactions", "seconds")]
    lines = _head("recipe", *headings, "not recovered", *(heading for heading, _, _ in CRITIC))
    for recipe, runs in by_recipe.items():
        cells = []
        for number in range(1, len(names) + 1):
            phases = [run["summary"]["phases"][number] for run in runs]
            median = median_interval([phase["recovery"] or phase["interactions"] for phase in phases]).median
            more = ">" if 2 * sum(phase["recovery"] is None for phase in phases) > len(phases) else ""
            cells += [f"{more}{median:g}", f"{more}{median_interval([phase['recovery_seconds'] for phase in phases]).median:.1f}"]
        lost = sum(run["summary"]["unrecovered"] for run in runs)
        figures = [_of([run["summary"][key] for run in runs], form) for _, key, form in CRITIC]
        lines.append(_row(recipe, *cells, f"{lost} of {len(runs) * len(names)}", *figures))
    return [*lines, "", "The controls recover nothing: frozen stays where it is, anchor-only ends as the table above says."]


def _beside(by_recipe: ByRecipe) -> list[str]:
    """Every other recipe against running-mean, seed by seed."""
    lines = _head(f"against `{REFERENCE}`, seed by seed", "interactions to recover to its level, ratio", "area, difference", "s an update, ratio")
    for recipe in by_recipe:
        if recipe != REFERENCE and REFERENCE in by_recipe:
            ratios = pairwise(by_recipe, recipe, REFERENCE, recovery_ratio)
            areas = pairwise(by_recipe, recipe, REFERENCE, area_difference)
            costs = pairwise(by_recipe, recipe, REFERENCE, update_ratio)
            lines.append(_row(recipe, evidence(ratios, "{:.2f}"), evidence(areas, "{:+.3f}"), evidence(costs, "{:.2f}")))
    return lines if len(lines) > 2 else []


def _head(*headings: str) -> list[str]:
    return [_row(*headings), "|---" * len(headings) + "|"]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _of(values: Sequence[float | None], form: str = "{:.2f}") -> str:
    known = [value for value in values if value is not None]
    return figure(median_interval(known), form) if known else "–"
