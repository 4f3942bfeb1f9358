"""A simulated run on the terminal: progress bars with a moving average, and a summary in words. Knows nothing of how the numbers came about."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

MOVING_AVERAGE = 20
"""Scores in the moving average shown beside the bar."""


class RichDisplay:
    """One bar per stage. On a pipe or in a file, rich prints each bar once, when it is finished."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[average]:>16}"),
            TextColumn("{task.fields[note]:<10}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
        )
        self._recent: deque[float] = deque(maxlen=MOVING_AVERAGE)
        self._task = self._progress.add_task("starting", total=None, average="", note="")
        self._progress.update(self._task, visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def stage(self, name: str, total: int) -> None:
        self._recent.clear()
        self._task = self._progress.add_task(name, total=total, average="", note="")

    def step(self, score: float | None, note: str = "") -> None:
        if score is not None:
            self._recent.append(score)
        average = f"average {sum(self._recent) / len(self._recent):.2f}" if self._recent else ""
        self._progress.update(self._task, advance=1, average=average, note=note)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def print_summary(console: Console, result: dict[str, Any]) -> None:
    """The result in a few lines: means, difference, receipts, and every kind of failed call."""
    options, http = result["options"], result["http"]
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("preference", f"{options['preference']}: {result['preference']}")
    if result["control"] is not None:
        table.add_row("frozen control", f"{_number(result['control']['mean'])}  (version {result['control']['policy_versions'][0]}, same prompts)")
    table.add_row(f"last {min(options['window'], options['scores'])}", _number(result["last_window_mean"]))
    if result["difference"] is not None:
        table.add_row("difference", f"[bold]{result['difference']:+.3f}[/bold]")
    if result["held_out"] is not None:
        table.add_row("held-out prompts", f"{_number(result['held_out']['before']['mean'])} → {_number(result['held_out']['after']['mean'])}")
    table.add_row("windows", "  ".join(_number(window["mean"]) for window in result["windows"]))
    table.add_row("receipts", ", ".join(f"{count} {status}" for status, count in sorted(result["receipts"].items())) or "none")
    table.add_row("time", f"{result['seconds']:.0f} s, of which users were held back {result['held_back_seconds']:.0f} s")
    colour = "red" if http["non_2xx"] else "green"
    table.add_row("HTTP", f"{http['calls']} calls, [{colour}]{http['non_2xx']} not 2xx[/{colour}]")
    console.print(table)
    for failure in http["failures"][:5]:
        console.print(
            f"  {failure['method']} {failure['path']} → {failure['status']}: {failure['body'][:200]}", style="red", markup=False, highlight=False
        )
