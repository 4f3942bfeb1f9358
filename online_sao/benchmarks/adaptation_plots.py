"""Plots of the seeds' results. Needs the ``plots`` extra; runs and computes nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from online_sao.benchmarks.adaptation_measures import SMOOTHED, real_runs
from online_sao.benchmarks.plotting import ANCHOR, FROZEN, GRID, INK, REAL, STYLE, save
from online_sao.benchmarks.tiny_policy.curves import smoothed

MOVING_AVERAGE = 30
BANDS = ("#f5f8ff", "#fff8ef", "#f3faf5")


def write_plots(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """adaptation.png (scores over interactions), held-out.png, kl.png in ``out``."""
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        return [
            save(scores_figure([_curves(result) for result in results]), out / "adaptation.png"),
            save(_held_out_figure(results), out / "held-out.png"),
            save(_kl_figure(results), out / "kl.png"),
        ]


def write_comparison(results: Sequence[Mapping[str, Any]], labels: Sequence[str], path: Path) -> None:
    """One plot of several results of ``simulate``: a line each."""
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        curves = [{"label": label, "real": result, "phases": result["phases"]} for result, label in zip(results, labels, strict=True)]
        save(scores_figure(curves), path)


def write_recipes_plot(by_cell: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]], path: Path) -> Path:
    """``by_cell``: the seeds' results by population and recipe. A plot a population: each recipe's smoothed scores, mean over the seeds and their
    range, beside the frozen control."""
    populations = list(dict.fromkeys(population for population, _ in by_cell))
    recipes = list(dict.fromkeys(recipe for _, recipe in by_cell))
    palette = plt.get_cmap("tab10" if len(recipes) <= 10 else "tab20")
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        figure, grid = plt.subplots(len(populations), 1, figsize=(10, 4.4 * len(populations)), squeeze=False, layout="constrained")
        for population, axes in zip(populations, grid[:, 0], strict=True):
            there = {recipe: by_cell[population, recipe] for recipe in recipes if (population, recipe) in by_cell}
            _recipe_curves(axes, there, {recipe: palette(place) for place, recipe in enumerate(recipes)})
            axes.set_ylabel(f"{population}: score (average of {SMOOTHED})")
        lines = {line.get_label(): line for axes in grid[:, 0] for line in axes.get_lines() if not str(line.get_label()).startswith("_")}
        figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=min(5, len(lines)), frameon=False, labelcolor=INK)
        return save(figure, path)


def _recipe_curves(axes: Axes, recipes: Mapping[str, Sequence[Mapping[str, Any]]], colours: Mapping[str, Any]) -> None:
    every = {recipe: [_curves(result) for result in results] for recipe, results in recipes.items()}
    curves = [curve for of_recipe in every.values() for curve in of_recipe]
    phases = curves[0]["phases"]
    _shade(axes, phases)
    for phase in phases:
        label = phase is phases[0]
        for recipe, of_recipe in every.items():
            at: dict[int, list[float]] = {}
            for curve in of_recipe:
                answers = [interaction for interaction in curve["real"]["interactions"] if interaction["phase"] == phase["number"]]
                means = smoothed([answer["score"] for answer in answers], SMOOTHED) if answers else []
                for answer, mean in zip(answers[len(answers) - len(means) :], means, strict=True):
                    at.setdefault(answer["index"], []).append(mean)
            places = sorted(at)
            line = [statistics.fmean(at[place]) for place in places]
            axes.plot(places, line, color=colours[recipe], lw=2, label=recipe if label else None)
            axes.fill_between(places, [min(at[p]) for p in places], [max(at[p]) for p in places], color=colours[recipe], alpha=0.12, lw=0)
        _frozen_line(axes, phase, curves, "frozen control" if label else None)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("interaction")


def _frozen_line(axes: Axes, phase: Mapping[str, Any], curves: Sequence[Mapping[str, Any]], label: str | None) -> None:
    frozen = [value for curve in curves if (value := curve["frozen"].get(phase["number"])) is not None]
    if frozen:
        span = (phase["first"], phase["last"] + 1)
        axes.plot(span, [statistics.median(frozen)] * 2, color=FROZEN, lw=1.6, ls=(0, (4, 3)), label=label)


def _curves(result: Mapping[str, Any]) -> dict[str, Any]:
    """A seed's runs as one line: phases before the flip and after it, and the anchor-only branch beside them."""
    parts = real_runs(result)
    return {
        "label": f"seed {result['seed']}",
        "real": {"interactions": [interaction for part in parts for interaction in part["interactions"]]},
        "anchor-only": result["runs"].get("anchor-only"),
        "phases": [phase for part in parts for phase in part["phases"]],
        "frozen": {phase["number"]: phase["frozen"] for phase in result["summary"]["phases"]},
    }


def _averages(run: Mapping[str, Any], phase: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Moving average of the scores within a phase (it does not reach back beyond the shift), by interaction index."""
    of_phase = [interaction for interaction in run["interactions"] if interaction["phase"] == phase["number"]]
    scores = [interaction["score"] for interaction in of_phase]
    averages = [statistics.fmean(scores[max(0, place + 1 - MOVING_AVERAGE) : place + 1]) for place in range(len(scores))]
    skip = min(7, len(scores) // 4)  # an average of a few scores says nothing
    return [interaction["index"] for interaction in of_phase][skip:], averages[skip:]


def _shade(axes: Axes, phases: Sequence[Mapping[str, Any]]) -> None:
    for place, phase in enumerate(phases):
        axes.axvspan(phase["first"], phase["last"] + 1, color=BANDS[place % len(BANDS)], zorder=0, lw=0)
        middle = (phase["first"] + phase["last"] + 1) / 2
        axes.text(middle, 1.02, f"{phase['number']}  {phase['name']}", ha="center", va="bottom", color=INK, transform=axes.get_xaxis_transform())
    axes.set_xlim(phases[0]["first"], phases[-1]["last"] + 1)


def scores_figure(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """One line a curve. With several seeds (those with "frozen"): thin lines, their median thick, controls beside them."""
    figure, axes = plt.subplots(figsize=(10, 4.6))
    phases = curves[0]["phases"]
    _shade(axes, phases)
    seeds = "frozen" in curves[0]
    palette = plt.get_cmap("tab10")
    for place, curve in enumerate(curves):
        for phase in curve["phases"]:
            colour, label = (REAL, None) if seeds else (palette(place), curve["label"] if phase is curve["phases"][0] else None)
            alone = len(curves) == 1 or not seeds
            axes.plot(*_averages(curve["real"], phase), color=colour, lw=2 if alone else 0.9, alpha=1 if alone else 0.35, label=label)
    if seeds:
        _medians_and_controls(axes, curves)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("interaction")
    axes.set_ylabel(f"score (average of {MOVING_AVERAGE})")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=4, labelcolor=INK)
    return figure


def _medians_and_controls(axes: Axes, curves: Sequence[Mapping[str, Any]]) -> None:
    for place, phase in enumerate(curves[0]["phases"]):
        first = place == 0
        axes.plot(
            *_median([_averages(c["real"], phase) for c in curves]), color=REAL, lw=2.4, label="learning (median; thin: seeds)" if first else None
        )
        _frozen_line(axes, phase, curves, "frozen control" if first else None)
    last = curves[0]["phases"][-1]
    anchors = [_averages(curve["anchor-only"], last) for curve in curves if curve["anchor-only"] is not None]
    for anchor in anchors:
        axes.plot(*anchor, color=ANCHOR, lw=0.9, alpha=0.35)
    if anchors:
        axes.plot(*_median(anchors), color=ANCHOR, lw=2.4, label="anchor only (scores neutral)")


def _median(lines: Sequence[tuple[Sequence[int], Sequence[float]]]) -> tuple[list[int], list[float]]:
    """At every index that some line has, the median of those that have it."""
    values: dict[int, list[float]] = {}
    for indices, averages in lines:
        for index, average in zip(indices, averages, strict=True):
            values.setdefault(index, []).append(average)
    indices = sorted(values)
    return indices, [statistics.median(values[index]) for index in indices]


def _held_out_figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """For each phase: what held-out prompts score before and after it, a line a seed, and the frozen version's mark."""
    figure, axes = plt.subplots(figsize=(7, 4))
    phases = results[0]["summary"]["phases"]
    for place in range(len(phases)):
        axes.axvspan(place - 0.5, place + 0.5, color=BANDS[place % len(BANDS)], zorder=0, lw=0)
        for result in results:
            of = result["summary"]["phases"][place]
            if of["held_out_before"] is not None and of["held_out_after"] is not None:
                ends = (of["held_out_before"], of["held_out_after"])
                axes.plot((place - 0.22, place + 0.22), ends, color=REAL, marker="o", ms=5, lw=1.4, alpha=0.75)
        frozen = [r["summary"]["phases"][place]["held_out_frozen"] for r in results]
        known = [value for value in frozen if value is not None]
        if known:
            axes.hlines(statistics.median(known), place - 0.4, place + 0.4, color=FROZEN, linestyle=(0, (4, 3)), lw=1.6)
    axes.plot([], [], color=REAL, marker="o", label="before → after the phase, a line a seed")
    axes.plot([], [], color=FROZEN, ls=(0, (4, 3)), label="frozen")
    axes.set_xticks(range(len(phases)), [f"{phase['number']}  {phase['name']}" for phase in phases])
    axes.set_xlim(-0.5, len(phases) - 0.5)
    axes.set_ylim(-0.02, 1.02)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel("mean score on held-out prompts")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=2, labelcolor=INK)
    return figure


def _kl_figure(results: Sequence[Mapping[str, Any]]) -> Figure:
    """KL(current ‖ base) over updates, a line a seed and branch."""
    figure, axes = plt.subplots(figsize=(7, 3.4))
    for result in results:
        for names, colour in ((("before", "real"), REAL), (("anchor-only",), ANCHOR)):
            updates = {u["number"]: u for name in names if name in result["runs"] for u in result["runs"][name]["updates"] if u["accepted"]}
            points = [
                (number, u["metrics"]["policy/kl_base"]) for number, u in sorted(updates.items()) if u["metrics"].get("policy/kl_base") is not None
            ]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, lw=1.2, alpha=0.7)
    axes.plot([], [], color=REAL, label="learning")
    if any("anchor-only" in result["runs"] for result in results):
        axes.plot([], [], color=ANCHOR, label="anchor only")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("update")
    axes.set_ylabel("KL to base (nats a token)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=2, labelcolor=INK)
    return figure
