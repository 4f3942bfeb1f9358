"""How the benchmarks' plots look. Imports matplotlib (the ``plots`` extra), for a file and no screen."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
REAL, ANCHOR, FROZEN = "#2563eb", "#d97706", "#6b7280"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
}


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path
