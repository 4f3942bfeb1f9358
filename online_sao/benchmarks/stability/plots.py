"""Plots of the runs: success, and what the updates say of themselves, by update. Needs the ``plots`` extra; runs nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from online_sao.benchmarks.plotting import GRID, INK, MUTED, STYLE, save
from online_sao.benchmarks.stability.claims import cells
from online_sao.benchmarks.stability.summary import numbers, smoothed

DIAGNOSTICS = (
    ("masked fraction", "policy/masked_fraction", "linear"),
    ("ESS", "policy/ess_fraction", "linear"),
    ("KL behavior‖current", "policy/kl_behavior_current_k3", "log"),
    ("entropy (nats)", "policy/entropy", "linear"),
    ("gradient norm", "policy/grad_norm", "log"),
    ("explained variance", "value/explained_variance", "linear"),
)
LOWEST_EXPLAINED_VARIANCE = -1.0


def write_plots(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """For each task success-TASK.png and diagnostics-TASK.png: a column a lag, a colour a recipe, the median over seeds and their range."""
    written = []
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        for task in sorted({result["task"] for result in results}):
            of_task = [result for result in results if result["task"] == task]
            written.append(save(_figure(of_task, (("success rate", "data/success_rate", "linear"),)), out / f"success-{task}.png"))
            written.append(save(_figure(of_task, DIAGNOSTICS), out / f"diagnostics-{task}.png"))
    return written


def _figure(results: Sequence[Mapping[str, Any]], rows: Sequence[tuple[str, str, str]]) -> Figure:
    by_lag = [(lag, by_recipe) for _, lag, by_recipe in cells(results)]
    recipes = sorted({result["recipe"] for result in results})
    colours = dict(zip(recipes, plt.get_cmap("tab20").colors * (1 + len(recipes) // 20), strict=False))  # type: ignore[attr-defined]
    height = 3.4 if len(rows) == 1 else 2.2
    figure, grid = plt.subplots(
        len(rows), len(by_lag), figsize=(3.6 * len(by_lag) + 1, height * len(rows)), squeeze=False, sharex=True, sharey="row", layout="constrained"
    )
    for place, (label, metric, scale) in enumerate(rows):
        for axes, (lag, by_recipe) in zip(grid[place], by_lag, strict=True):
            for recipe, runs in by_recipe.items():
                _curve(axes, [smoothed(numbers(run["series"][metric])) for run in runs], len(runs[0]["series"][metric]), colours[recipe])
            axes.set_yscale(scale)
            axes.grid(axis="y", color=GRID, lw=0.8)
            if place == 0:
                axes.set_title(f"lag {lag}")
            if metric == "data/success_rate":
                axes.set_ylim(-0.02, 1.02)
                axes.axhline(statistics.median(r["held_out"]["before"] for r in results), color=MUTED, linestyle=(0, (4, 3)), lw=1)
            if metric == "value/explained_variance":
                axes.set_ylim(LOWEST_EXPLAINED_VARIANCE, 1.02)
        grid[place][0].set_ylabel(label)
    for axes in grid[-1]:
        axes.set_xlabel("update")
    handles = [plt.Line2D([], [], color=colours[recipe], lw=2, label=recipe) for recipe in recipes]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(recipes)), frameon=False, labelcolor=INK)
    return figure


def _curve(axes: Axes, curves: Sequence[Sequence[float]], updates: int, colour: object) -> None:
    """The median of ``curves`` and their range, placed so that they end with the last update."""
    length = min(map(len, curves))
    at_update = list(zip(*(curve[-length:] for curve in curves), strict=True))
    places = range(updates - length + 1, updates + 1)
    axes.plot(places, [statistics.median(values) for values in at_update], color=colour, lw=1.5)  # type: ignore[arg-type]
    if len(curves) > 1:
        axes.fill_between(places, [min(v) for v in at_update], [max(v) for v in at_update], color=colour, alpha=0.15, lw=0)  # type: ignore[arg-type]
