"""From the figures of the barrier benchmark to Markdown and a plot. Pure but for writing files; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from online_sao.benchmarks.report_files import write_report_files

FIGURES: tuple[tuple[str, str, str], ...] = (
    ("worker_utilisation", "Workers busy", ".1%"),
    ("learner_utilisation", "Learner busy", ".1%"),
    ("updates_per_hour", "Updates/hour", ".1f"),
    ("lag_mean", "Lag, mean", ".2f"),
    ("lag_p95", "p95", ".1f"),
    ("wait_mean", "Wait, mean (s)", ".1f"),
    ("wait_p95", "p95 (s)", ".1f"),
)
"""Key, heading and form."""


def write_report(cells: Sequence[Mapping[str, Any]], real: Mapping[str, Any] | None, out: Path) -> list[Path]:
    """report.md and, where there are simulated figures and matplotlib is installed (the ``plots`` extra), barrier.png. Returns what was written."""

    def plots() -> list[Path]:
        from online_sao.benchmarks.barrier_plot import write_plot

        return [write_plot(cells, out / "barrier.png")]

    return write_report_files(markdown(cells, real), out, plots if cells else list)


def markdown(cells: Sequence[Mapping[str, Any]], real: Mapping[str, Any] | None) -> str:
    """A table for each coefficient of variation, then predictions beside measurements."""
    lines: list[str] = []
    for variation in sorted({cell["variation"] for cell in cells}):
        lines += _model_table([cell for cell in cells if cell["variation"] == variation], variation)
    if real is not None:
        lines += _real_table(real)
    return "\n".join(lines)


def _model_table(cells: Sequence[Mapping[str, Any]], variation: float) -> list[str]:
    settings = cells[0]["settings"]
    lines = [
        f"Simulated, coefficient of variation {variation:g}: rollouts of {settings['mean_seconds']:g} s on average, updates of "
        f"{settings['update_time'] * settings['mean_seconds']:g} s, one rollout of each worker in a batch; mean ± half of the 95 % interval over "
        f"{len(settings['seeds'])} seeds.",
        "",
        f"| Workers | Schedule | {' | '.join(heading for _, heading, _ in FIGURES)} | Times synchronous |",
        f"|---|---|{'---|' * len(FIGURES)}---|",
    ]
    for cell in cells:
        slowest = cell["schedules"]["synchronous"]["updates_per_hour"]["mean"]
        for schedule, found in cell["schedules"].items():
            shown = [_interval(found[key], form) for key, _, form in FIGURES]
            times = found["updates_per_hour"]["mean"] / slowest
            lines.append(f"| {cell['workers']:,} | {schedule} | {' | '.join(shown)} | {times:.1f} |")
    return [*lines, ""]


def _interval(figure: Mapping[str, float], form: str) -> str:
    shown = format(figure["mean"], form)
    return f"{shown} ± {format((figure['high'] - figure['low']) / 2, form)}" if "low" in figure else shown


def _real_table(real: Mapping[str, Any]) -> list[str]:
    settings, place = real["settings"], real["environment"]
    lines = [
        f"For real: {settings['real_workers']} completions at once of {settings['real_tokens']} tokens on average, {settings['real_batch']} to an "
        f"update, {settings['real_updates']} updates, model {settings['model']}, {place['cpus']} CPUs (load {place['load_at_end']:.1f} at the end). "
        f"After the runs a token took {real['drift']['token']:.2f} times as long as before them, an update {real['drift']['update']:.2f} times. "
        "Predicted → measured.",
        "",
        f"| Variation | Schedule | {' | '.join(heading for _, heading, _ in FIGURES)} |",
        f"|---|---|{'---|' * len(FIGURES)}",
    ]
    for run in real["runs"]:
        shown = [f"{format(run['predicted'][key], form)} → {format(run['measured'][key], form)}" for key, _, form in FIGURES]
        lines.append(f"| {run['variation']:g} | {run['schedule']} | {' | '.join(shown)} |")
    return [*lines, ""]
