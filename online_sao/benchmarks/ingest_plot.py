"""The plot of the ingest benchmark. Imports matplotlib (the ``plots`` extra); computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from online_sao.benchmarks.ingest_report import GOAL_P99, GOAL_RATE, GOAL_READING
from online_sao.benchmarks.plotting import ANCHOR, GRID, INK, MUTED, REAL, STYLE, save

COLOURS = {"sqlite": REAL, "postgresql": ANCHOR}


def write_plot(results: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Left: a score's p99 over the scores a second, a point for each burst; right: the largest of each reading. Goals are dashed."""
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.4), constrained_layout=True)
        height = 0.8 / len(results)
        for place, result in enumerate(results):
            kind, readings = result["database"], result["readings"]
            points = [(burst["rate"], 1000 * burst["p99"]) for burst in result["bursts"]]
            left.scatter(*zip(*points, strict=True), color=COLOURS[kind], label=kind)
            for point, burst in zip(points, result["bursts"], strict=True):
                left.annotate(burst["name"], point, xytext=(5, 4), textcoords="offset points", color=MUTED, fontsize=8)
            rows = [row + place * height for row in range(len(readings))]
            right.barh(rows, [1000 * times["maximum"] for times in readings.values()], height=height, color=COLOURS[kind], label=kind)
        left.axhline(1000 * GOAL_P99, color=INK, linestyle="--", linewidth=1)
        left.axvline(GOAL_RATE, color=INK, linestyle="--", linewidth=1)
        left.set(title="A score's p99 (ms)", xlabel="scores a second", yscale="log")
        right.axvline(1000 * GOAL_READING, color=INK, linestyle="--", linewidth=1)
        right.set(title="Dashboard's readings, largest (ms)", xscale="log")
        right.set_yticks([row + 0.4 - height / 2 for row in range(len(results[0]["readings"]))], list(results[0]["readings"]))
        right.invert_yaxis()
        for panel in (left, right):
            panel.grid(color=GRID)
            panel.set_axisbelow(True)
            panel.legend(frameon=False, labelcolor=MUTED)
        return save(figure, path)
