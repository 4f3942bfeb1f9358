"""From the seeds' results to figures: the summary of one seed, and the Markdown tables over all. Pure but for writing files; runs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from online_sao.benchmarks.adaptation_comparison import comparison
from online_sao.benchmarks.adaptation_measures import cells
from online_sao.benchmarks.report_files import write_report_files

GOAL_DIFFERENCE = 0.25
"""In the median over seeds, the last window of each phase shall beat the frozen control by this much."""
GOAL_DISTINCT_2 = 0.7


def summarise(runs: Mapping[str, Any]) -> dict[str, Any]:
    """What one seed comes to. ``runs``: results of simulation.run.simulate: "real", and where there was a flip "before" and "anchor-only"."""
    first = runs.get("before", runs["real"])
    phases = [*(runs["before"]["phases"] if "before" in runs else ()), *runs["real"]["phases"]]
    anchor_only = runs["anchor-only"]["phases"][-1] if "anchor-only" in runs else None
    return {
        "phases": [_phase(phase, first, anchor_only if phase is phases[-1] else None) for phase in phases],
        "kl_base_max": max((run["kl_base_max"] for run in runs.values() if run["kl_base_max"] is not None), default=None),
        "updates": sum(len(runs[name]["updates"]) for name in ("before", "real") if name in runs),
        "non_2xx": sum(run["http"]["non_2xx"] for run in runs.values()),
        "calls": sum(run["http"]["calls"] for run in runs.values()),
        "seconds": {name: run["seconds"] for name, run in runs.items()},
    }


def _phase(phase: Mapping[str, Any], first: Mapping[str, Any], anchor_only: Mapping[str, Any] | None) -> dict[str, Any]:
    key = str(phase["number"])
    control, frozen_held_out = first["controls"].get(key), (first["held_out_frozen"] or {}).get(key)
    held_out = phase["held_out"] or {}
    frozen = control["mean"] if control else None
    return {
        "number": phase["number"],
        "name": phase["name"],
        "last_window_mean": phase["last_window_mean"],
        "frozen": frozen,
        "minus_frozen": _minus(phase["last_window_mean"], frozen),
        "anchor_only": anchor_only["last_window_mean"] if anchor_only else None,
        "minus_anchor_only": _minus(phase["last_window_mean"], anchor_only["last_window_mean"]) if anchor_only else None,
        "held_out_frozen": frozen_held_out,
        "held_out_before": held_out.get("before"),
        "held_out_after": held_out.get("after"),
        "held_out_minus_frozen": _minus(held_out.get("after"), frozen_held_out),
        "held_out_minus_anchor_only": _minus(held_out.get("after"), anchor_only["held_out"]["after"])
        if anchor_only and anchor_only["held_out"]
        else None,
        "distinct_2_ratio": phase["distinct_2"] / control["distinct_2"]
        if control and control["distinct_2"] and phase["distinct_2"] is not None
        else None,
    }


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def write_report(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """Write report.md, and the plots where matplotlib is installed (the ``plots`` extra), into ``out``. Returns what was written. Several recipes or
    populations are compared, and each then gets the tables that one alone has."""
    by_cell = cells(results)
    alone = next(iter(by_cell.values())) if len(by_cell) == 1 else None
    parts = [f"## {recipe}, {population} population\n\n{markdown(runs)}" for (population, recipe), runs in by_cell.items()]

    def plots() -> list[Path]:
        from online_sao.benchmarks.adaptation_plots import write_plots, write_recipes_plot

        return write_plots(alone, out) if alone else [write_recipes_plot(by_cell, out / "recipes.png")]

    return write_report_files(markdown(alone) if alone else "\n".join([comparison(results), *parts]), out, plots)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Tables over all seeds: median (lowest to highest) of each phase, then the goals, then each seed."""
    seeds = ", ".join(str(result["seed"]) for result in results)
    settings = {name: value for name, value in results[0]["settings"].items() if name != "learning.seed"}
    if any({**result["settings"], "learning.seed": ""} != {**results[0]["settings"], "learning.seed": ""} for result in results):
        settings = {"settings": "differ from seed to seed: do not merge these figures"}
    lines = [
        f"Schedule `{results[0]['schedule']}`, seeds {seeds}, server settings {_settings(settings)}. Median (lowest to highest) over the seeds.",
        "",
        *_phase_table(results, ON_PROMPTS),
        "",
        *_phase_table(results, ON_HELD_OUT),
        "",
        *_goals(results),
        "",
        *_seed_table(results),
    ]
    return "\n".join(lines) + "\n"


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in settings.items()) or "as they come"


def _spread(values: Sequence[float | None], signed: bool = False) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    form = "{:+.2f}" if signed else "{:.2f}"
    return f"{form.format(statistics.median(known))} ({form.format(min(known))} to {form.format(max(known))})"


def _of_phase(results: Sequence[Mapping[str, Any]], place: int) -> Callable[[str], list[float | None]]:
    return lambda key: [result["summary"]["phases"][place][key] for result in results]


Column = tuple[str, str, bool]
"""Heading, key in the summary, and whether it is a difference and gets its sign."""
ON_PROMPTS: tuple[Column, ...] = (
    ("Last window", "last_window_mean", False),
    ("Frozen control", "frozen", False),
    ("Minus frozen", "minus_frozen", True),
    ("Anchor-only", "anchor_only", False),
    ("Minus anchor-only", "minus_anchor_only", True),
    ("distinct-2 of base", "distinct_2_ratio", False),
)
ON_HELD_OUT: tuple[Column, ...] = (
    ("Held-out prompts: before", "held_out_before", False),
    ("After", "held_out_after", False),
    ("Frozen", "held_out_frozen", False),
    ("After minus frozen", "held_out_minus_frozen", True),
    ("After minus anchor-only", "held_out_minus_anchor_only", True),
)


def _phase_table(results: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> list[str]:
    lines = [f"| Phase | {' | '.join(heading for heading, _, _ in columns)} |", f"|---|{'---|' * len(columns)}"]
    for place, phase in enumerate(results[0]["summary"]["phases"]):
        of = _of_phase(results, place)
        cells = [_spread(of(key), signed) for _, key, signed in columns]
        lines.append(f"| {phase['number']} {phase['name']} | {' | '.join(cells)} |")
    return lines


def _goals(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each goal, and whether these figures meet it."""
    lines = ["| Goal | Measured | Met |", "|---|---|---|"]

    def add(goal: str, measured: str, met: bool) -> None:
        lines.append(f"| {goal} | {measured} | {'yes' if met else '**no**'} |")

    for place, phase in enumerate(results[0]["summary"]["phases"]):
        of = _of_phase(results, place)
        differences = [value for value in of("minus_frozen") if value is not None]
        if differences:
            median, lowest = statistics.median(differences), min(differences)
            add(f"phase {phase['number']}: ≥ {GOAL_DIFFERENCE} over frozen in the median", f"{median:+.3f}", median >= GOAL_DIFFERENCE)
            add(f"phase {phase['number']}: no seed below frozen", f"lowest {lowest:+.3f}", lowest >= 0)
        beyond = [value for value in of("minus_anchor_only") if value is not None]
        if beyond:
            median = statistics.median(beyond)
            add(f"phase {phase['number']}: above anchor-only in the median", f"{median:+.3f}, lowest {min(beyond):+.3f}", median > 0)
        ratios = [value for value in of("distinct_2_ratio") if value is not None]
        if ratios:
            add(
                f"phase {phase['number']}: distinct-2 ≥ {GOAL_DISTINCT_2} of base in every seed",
                f"lowest {min(ratios):.2f}",
                min(ratios) >= GOAL_DISTINCT_2,
            )
    non_2xx = sum(result["summary"]["non_2xx"] for result in results)
    add("no call answered other than 2xx", f"{non_2xx} of {sum(result['summary']['calls'] for result in results)}", non_2xx == 0)
    return lines


def _seed_table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [f"{phase['number']} {phase['name']}" for phase in results[0]["summary"]["phases"]]
    lines = [
        f"| Seed | {' | '.join(f'{name}: minus frozen' for name in names)} | minus anchor-only | KL to base, most | updates | minutes | not 2xx |",
        f"|---|{'---|' * len(names)}---|---|---|---|---|",
    ]
    for result in results:
        summary = result["summary"]
        cells = [
            str(result["seed"]),
            *(_number(phase["minus_frozen"], "+.2f") for phase in summary["phases"]),
            _number(summary["phases"][-1]["minus_anchor_only"], "+.2f"),
            _number(summary["kl_base_max"], ".3f"),
            str(summary["updates"]),
            f"{result['seconds'] / 60:.1f}",
            str(summary["non_2xx"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
