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
    pairwise,
    recovery_ratio,
    settings,
    update_ratio,
    verdicts,
)
from online_sao.benchmarks.intervals import median_interval, median_text
from online_sao.benchmarks.report_files import heading, row, write_report_files
from online_sao.benchmarks.tiny_policy.report_lines import conditions, machine, taken_back

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
LEVEL = "{:.2f}"
"""Form of scores."""


def write_report(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write report.md, and the plots where matplotlib is installed (the ``plots`` extra), into ``out``. Returns what was written."""

    def plots() -> list[Path]:
        from online_sao.benchmarks.adaptation_lab.plots import write_plots

        return write_plots(results, out)

    return write_report_files(markdown(results), out, plots)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Tables and verdicts of at least one run."""
    lines = [*_header(results), ""]
    for setting, by_recipe in settings(results):
        lines += [f"## {setting}", "", *_levels(by_recipe), "", *_recoveries(by_recipe), "", *_beside(by_recipe), ""]
    lines += ["## Goals", "", "| Setting | Goal | Verdict | Evidence | Rule |", "|---|---|---|---|---|"]
    lines += [f"| {v.setting} | {v.goal} | **{v.decision}** | {v.evidence} | {v.rule} |" for v in verdicts(results)]
    return "\n".join(lines) + "\n"


def _header(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        conditions(results, NOT_SHARED),
        "",
        f"Scores are quality × style, from 0 to 1. Last: the mean of a phase's last {WINDOW} interactions; area: the mean of all. Frozen: the base "
        "on the same prompts and wishes. Anchor-only: the last phase with neutral scores. Medians over seeds, with 95 % bootstrap intervals "
        "where there are several.",
        "",
        RECOVERY,
        "",
        machine(results),
    ]
    lines += taken_back(results, lambda run: str(run["population"]))
    return lines


def _levels(by_recipe: ByRecipe) -> list[str]:
    """A row a recipe, the frozen control first."""
    first = next(iter(by_recipe.values()))[0]["summary"]["phases"]
    headings = [f"{number} {phase['name']}: {what}" for number, phase in enumerate(first, start=1) for what in ("last", "area")]
    lines = heading(["recipe", "seeds", *headings, "whole area", "last minus frozen", "anchor-only", "last minus anchor-only"])
    frozen = list({run["seed"]: run for runs in by_recipe.values() for run in runs}.values())
    numbers = range(len(first))
    cells = [
        median_text([run["summary"]["phases"][number][key] for run in frozen], LEVEL) for number in numbers for key in ("frozen_final", "frozen_area")
    ]
    lines.append(row(["frozen", str(len(frozen)), *cells, median_text([run["summary"]["frozen_area"] for run in frozen], LEVEL), "–", "–", "–"]))
    for recipe, runs in by_recipe.items():
        cells = [median_text([run["summary"]["phases"][number][key] for run in runs], LEVEL) for number in numbers for key in ("final", "area")]
        controls = [
            median_text([run["summary"][key] for run in runs], form)
            for key, form in (("minus_frozen", "{:+.2f}"), ("anchor_only", "{:.2f}"), ("minus_anchor_only", "{:+.2f}"))
        ]
        lines.append(row([recipe, str(len(runs)), *cells, median_text([run["summary"]["area"] for run in runs], LEVEL), *controls]))
    return lines


def _recoveries(by_recipe: ByRecipe) -> list[str]:
    """Interactions and seconds to recover after each shift, and what the critic was worth and cost."""
    names = [phase["name"] for phase in next(iter(by_recipe.values()))[0]["summary"]["phases"]][1:]
    headings = [f"to {name}: {what}" for name in names for what in ("interactions", "seconds")]
    lines = heading(["recipe", *headings, "not recovered", *(title for title, _, _ in CRITIC)])
    for recipe, runs in by_recipe.items():
        cells = []
        for number in range(1, len(names) + 1):
            phases = [run["summary"]["phases"][number] for run in runs]
            median = median_interval([phase["recovery"] or phase["interactions"] for phase in phases]).median
            more = ">" if 2 * sum(phase["recovery"] is None for phase in phases) > len(phases) else ""
            cells += [f"{more}{median:g}", f"{more}{median_interval([phase['recovery_seconds'] for phase in phases]).median:.1f}"]
        lost = sum(run["summary"]["unrecovered"] for run in runs)
        figures = [median_text([run["summary"][key] for run in runs], form) for _, key, form in CRITIC]
        lines.append(row([recipe, *cells, f"{lost} of {len(runs) * len(names)}", *figures]))
    return [*lines, "", "The controls recover nothing: frozen stays where it is, anchor-only ends as the table above says."]


def _beside(by_recipe: ByRecipe) -> list[str]:
    """Every other recipe against running-mean, seed by seed."""
    lines = heading([f"against `{REFERENCE}`, seed by seed", "interactions to recover to its level, ratio", "area, difference", "s an update, ratio"])
    for recipe in by_recipe:
        if recipe != REFERENCE and REFERENCE in by_recipe:
            ratios = pairwise(by_recipe, recipe, REFERENCE, recovery_ratio)
            areas = pairwise(by_recipe, recipe, REFERENCE, area_difference)
            costs = pairwise(by_recipe, recipe, REFERENCE, update_ratio)
            lines.append(row([recipe, evidence(ratios, "{:.2f}"), evidence(areas, "{:+.3f}"), evidence(costs, "{:.2f}")]))
    return lines if len(lines) > 2 else []
