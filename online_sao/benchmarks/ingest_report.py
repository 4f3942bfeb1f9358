"""From the figures of the ingest benchmark to Markdown and a plot. Pure but for writing files; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from online_sao.benchmarks.report_files import write_report_files

GOAL_RATE = 1000.0
GOAL_P99 = 0.05
GOAL_READING = 0.2
"""Scores a second; seconds of a score; seconds of a dashboard reading."""


def write_report(results: Sequence[Mapping[str, Any]], out: Path) -> list[Path]:
    """report.md and, where matplotlib is installed (the ``plots`` extra), ingest.png. Returns what was written."""

    def plots() -> list[Path]:
        from online_sao.benchmarks.ingest_plot import write_plot

        return [write_plot(results, out / "ingest.png")]

    return write_report_files(markdown(results), out, plots)


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(line for result in results for line in (*_bursts(result), "", *_readings(result), "", *_goals(result), ""))


def _bursts(result: Mapping[str, Any]) -> list[str]:
    place = result["environment"]
    where = f"{place['cpus']} CPUs (load {place['load_at_end']:.1f} at the end)"
    lines = [
        f"**{result['database']}**, {result['interactions']:,} interactions stored, {where}.",
        "",
        "| Sent by, or at | Scores/s | p50 ms | p95 ms | p99 ms | p99.9 ms | Failed | Server CPU | Client CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for burst in result["bursts"]:
        times = " | ".join(f"{1000 * burst[key]:.1f}" for key in ("p50", "p95", "p99", "p99.9"))
        busy = f"{burst['server_cpu']:.0%} | {burst['client_cpu']:.0%}"
        lines.append(f"| {burst['name']} | {burst['rate']:.0f} | {times} | {burst['failed']} of {burst['scores']} | {busy} |")
    return lines


def _readings(result: Mapping[str, Any]) -> list[str]:
    lines = ["| Dashboard reading | First ms | Median ms | Largest ms |", "|---|---|---|---|"]
    for name, times in result["readings"].items():
        lines.append(f"| {name} | {' | '.join(f'{1000 * times[key]:.1f}' for key in ('first', 'median', 'maximum'))} |")
    return lines


def _goals(result: Mapping[str, Any]) -> list[str]:
    """Each goal, and whether these figures meet it. A rate is held if as many are answered as are sent, within one in twenty."""
    fastest = max(result["bursts"], key=lambda burst: burst["rate"])
    prompt = [burst for burst in result["bursts"] if burst["p99"] < GOAL_P99 and not burst["failed"]]
    most = max((burst["rate"] for burst in prompt), default=0.0)
    slowest = max(result["readings"], key=lambda name: result["readings"][name]["maximum"])
    largest = result["readings"][slowest]["maximum"]
    rows = [
        (f"{GOAL_RATE:.0f} scores/s", f"{fastest['rate']:.0f} ({fastest['name']})", fastest["rate"] >= 0.95 * GOAL_RATE),
        (f"p99 under {1000 * GOAL_P99:.0f} ms at {GOAL_RATE:.0f} scores/s", f"up to {most:.0f} scores/s", most >= 0.95 * GOAL_RATE),
        (f"every reading within {1000 * GOAL_READING:.0f} ms", f"{1000 * largest:.0f} ms ({slowest})", largest <= GOAL_READING),
    ]
    lines = ["| Goal | Measured | Met |", "|---|---|---|"]
    return [*lines, *(f"| {goal} | {measured} | {'yes' if met else '**no**'} |" for goal, measured, met in rows)]
