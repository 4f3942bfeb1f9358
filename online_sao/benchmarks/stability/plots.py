"""Plots of the runs: success, and what the updates say of themselves, by update. Needs the ``plots`` extra; runs nothing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from online_sao.benchmarks.plotting import GRID, INK, MUTED, STYLE, save
from online_sao.benchmarks.stability.claims import cells
from online_sao.benchmarks.stability.summary import WINDOW
from online_sao.benchmarks.tiny_policy.curves import numbers, smoothed


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: a row of plots, between limits of its own. ``log_above``: from there on the scale is logarithmic, and linear below, where 0 is."""

    label: str
    metric: str
    log_above: float | None = None
    lowest: float | None = None
    highest: float | None = None


SUCCESS = Row("success rate", "data/success_rate", lowest=-0.02, highest=1.02)
DIAGNOSTICS = (
    Row("masked fraction", "policy/masked_fraction", lowest=0),
    Row("ESS", "policy/ess_fraction", highest=1.02),
    Row("KL behavior‖current", "policy/kl_behavior_current_k3", log_above=1e-5, lowest=0),
    Row("entropy (nats)", "policy/entropy", lowest=0),
    Row("gradient norm", "policy/grad_norm", log_above=1e-2, lowest=0),
    Row("critic's gradient norm", "value/grad_norm", log_above=1e-2, lowest=0),
    Row("explained variance", "value/explained_variance", lowest=-1, highest=1.02),
)


def write_plots(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """For each task success-TASK.png and diagnostics-TASK.png: a column a lag, a colour a recipe, the median over seeds and their range."""
    written = []
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        for task in sorted({result["task"] for result in results}):
            of_task = [result for result in results if result["task"] == task]
            written.append(save(_figure(of_task, (SUCCESS,)), out / f"success-{task}.png"))
            written.append(save(_figure(of_task, DIAGNOSTICS), out / f"diagnostics-{task}.png"))
    return written


def _figure(results: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Figure:
    by_lag = [(lag, by_recipe) for _, lag, by_recipe in cells(results)]
    recipes = sorted({result["recipe"] for result in results})
    palette = plt.get_cmap("tab10" if len(recipes) <= 10 else "tab20").colors  # type: ignore[attr-defined]
    colours = dict(zip(recipes, itertools.cycle(palette), strict=False))
    size = (3.6 * len(by_lag) + 1, (3.4 if len(rows) == 1 else 2.2) * len(rows))
    figure, grid = plt.subplots(len(rows), len(by_lag), figsize=size, squeeze=False, sharex=True, sharey="row", layout="constrained")
    for row, line in zip(rows, grid, strict=True):
        line[0].set_ylabel(row.label)
        for axes, (lag, by_recipe) in zip(line, by_lag, strict=True):
            if row.log_above is not None:
                axes.set_yscale("symlog", linthresh=row.log_above)
            for recipe, runs in by_recipe.items():
                _curve(axes, runs, row.metric, colours[recipe])
            axes.set_ylim(row.lowest, row.highest)
            axes.grid(axis="y", color=GRID, lw=0.8)
            if row is rows[0]:
                axes.set_title(f"lag {lag}")
            if row is SUCCESS:
                axes.axhline(statistics.median(r["held_out"]["before"] for r in results), color=MUTED, linestyle=(0, (4, 3)), lw=1)
    for axes in grid[-1]:
        axes.set_xlabel("update")
    handles = [Line2D([], [], color=colours[recipe], lw=2, label=recipe) for recipe in recipes]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(recipes)), frameon=False, labelcolor=INK)
    return figure


def _curve(axes: Axes, runs: Sequence[Mapping[str, Any]], metric: str, colour: Any) -> None:
    """The median over the runs and their range, smoothed. Nothing of a critic where there was none."""
    if metric.startswith("value/") and not any(any(run["series"]["value/updates"]) for run in runs):
        return
    curves = [smoothed(numbers(run["series"][metric]), WINDOW) for run in runs]
    length, updates = min(map(len, curves)), len(runs[0]["series"][metric])
    at_update = list(zip(*(curve[-length:] for curve in curves), strict=True))
    places = range(updates - length + 1, updates + 1)
    axes.plot(places, [statistics.median(values) for values in at_update], color=colour, lw=1.5)
    if len(curves) > 1:
        axes.fill_between(places, [min(v) for v in at_update], [max(v) for v in at_update], color=colour, alpha=0.15, lw=0)
