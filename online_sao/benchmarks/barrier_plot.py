"""The plot of the barrier benchmark's simulated figures. Imports matplotlib (the ``plots`` extra); computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from online_sao.benchmarks.plotting import ANCHOR, FROZEN, GRID, MUTED, REAL, STYLE, save

COLOURS = {"synchronous": FROZEN, "asynchronous groups": ANCHOR, "single rollouts": REAL}
PANELS = (("worker_utilisation", "Workers busy"), ("updates_per_hour", "Updates an hour"), ("lag_mean", "Lag, mean updates"))


def write_plot(cells: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Over the number of workers, a line for each schedule, a row for each coefficient of variation. Bands: 95 % intervals over seeds."""
    variations = sorted({cell["variation"] for cell in cells})
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        figure, axes = plt.subplots(len(variations), len(PANELS), figsize=(13, 3.6 * len(variations)), squeeze=False, constrained_layout=True)
        for row, variation in zip(axes, variations, strict=True):
            for panel, (key, title) in zip(row, PANELS, strict=True):
                _lines(panel, [cell for cell in cells if cell["variation"] == variation], key)
                panel.set_title(f"{title} (variation {variation:g})")
        axes[0][0].legend(frameon=False, labelcolor=MUTED)
        return save(figure, path)


def _lines(panel: Axes, cells: Sequence[Mapping[str, Any]], key: str) -> None:
    workers = [cell["workers"] for cell in cells]
    for schedule, colour in COLOURS.items():
        found = [cell["schedules"][schedule][key] for cell in cells]
        panel.plot(workers, [each["mean"] for each in found], color=colour, marker="o", markersize=4, label=schedule)
        if "low" in found[0]:
            panel.fill_between(workers, [each["low"] for each in found], [each["high"] for each in found], color=colour, alpha=0.15, linewidth=0)
    panel.set_xscale("log")
    panel.set_xticks(workers, [f"{count:,}" for count in workers])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("workers")
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", color=GRID)
    if key == "worker_utilisation":
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
