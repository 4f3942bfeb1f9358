"""Plots of the runs: scores by interaction, and what the critic was worth. Needs the ``plots`` extra; runs nothing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from online_sao.benchmarks.adaptation_lab.summary import WINDOW
from online_sao.benchmarks.adaptation_lab.verdicts import settings
from online_sao.benchmarks.plotting import ANCHOR, FROZEN, GRID, INK, MUTED, STYLE, save
from online_sao.benchmarks.tiny_policy.curves import numbers, smoothed

CRITIC = (
    ("explained variance", "value/explained_variance", -1.0),
    ("slope", "value/calibration_slope", -0.02),
    ("KL to base", "policy/kl_base", 0.0),
)
"""Label, metric, lower limit."""


def write_plots(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """For each setting scores-SETTING.png and updates-SETTING.png: a colour a recipe, the median over seeds and their range."""
    written = []
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        for setting, by_recipe in settings(results):
            name = setting.replace(", ", "-")
            colours = dict(zip(by_recipe, itertools.cycle(plt.get_cmap("tab10").colors), strict=False))  # type: ignore[attr-defined]
            written.append(save(_scores(setting, by_recipe, colours), out / f"scores-{name}.png"))
            if any(run["series"] for runs in by_recipe.values() for run in runs):  # an external baseline has none
                written.append(save(_updates(by_recipe, colours), out / f"updates-{name}.png"))
    return written


def _scores(setting: str, by_recipe: Mapping[str, Sequence[Mapping[str, Any]]], colours: Mapping[str, Any]) -> Figure:
    """The mean of the last interactions, within the phase: of the first ones of each there is none."""
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    first = next(iter(by_recipe.values()))[0]
    for phase in first["phases"]:
        start, stop = phase["start"], phase["start"] + phase["interactions"]
        axes.axvline(start, color=MUTED, lw=0.8)
        axes.text(start, 1.03, f" {phase['name']}", color=MUTED, fontsize=8)
        for recipe, runs in by_recipe.items():
            label = recipe if start == 0 else None
            _median(axes, [smoothed(run["scores"][start:stop], WINDOW) for run in runs], stop, colours[recipe], label)
        frozen = [smoothed(run["frozen"][start:stop], WINDOW) for run in next(iter(by_recipe.values()))]
        _median(axes, frozen, stop, FROZEN, "frozen" if start == 0 else None, style="dashed")
    neutral = [run["anchor_only"] for run in next(iter(by_recipe.values())) if run["anchor_only"]]
    if neutral:
        end = first["phases"][-1]["start"] + first["phases"][-1]["interactions"]
        _median(axes, [smoothed(scores, WINDOW) for scores in neutral], end, ANCHOR, f"anchor-only ({next(iter(by_recipe))})", style="dashed")
    axes.set(ylim=(-0.02, 1.1), xlabel="interaction", ylabel=f"score, mean of {WINDOW}")
    axes.set_title(setting, pad=14)
    axes.grid(axis="y", color=GRID, lw=0.8)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, labelcolor=INK)
    return figure


def _updates(by_recipe: Mapping[str, Sequence[Mapping[str, Any]]], colours: Mapping[str, Any]) -> Figure:
    figure, grid = plt.subplots(len(CRITIC), 1, figsize=(10, 2.2 * len(CRITIC)), sharex=True, layout="constrained")
    for axes, (label, metric, lowest) in zip(grid, CRITIC, strict=True):
        for recipe, runs in by_recipe.items():
            if metric.startswith("value/") and not any(any(run["series"].get("value/updates", ())) for run in runs):
                continue
            curves = [numbers(run["series"][metric]) for run in runs if metric in run["series"]]
            if curves:
                _median(axes, curves, len(curves[0]), colours[recipe], recipe if axes is grid[-1] else None)
        axes.set_ylabel(label)
        axes.set_ylim(lowest, 1.02 if metric.startswith("value/") else None)
        axes.grid(axis="y", color=GRID, lw=0.8)
    grid[-1].set_xlabel("update")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, labelcolor=INK)
    return figure


def _median(axes: Axes, curves: Sequence[Sequence[float]], end: int, colour: Any, label: str | None, style: str = "solid") -> None:
    """The median of curves that all end at ``end``, and their range where there are several."""
    length = min(map(len, curves))
    at_place = list(zip(*(curve[-length:] for curve in curves), strict=True))
    places = range(end - length + 1, end + 1)
    axes.plot(places, [statistics.median(values) for values in at_place], color=colour, lw=1.5, label=label, linestyle=style)
    if len(curves) > 1 and style == "solid":
        axes.fill_between(places, [min(values) for values in at_place], [max(values) for values in at_place], color=colour, alpha=0.12, lw=0)
