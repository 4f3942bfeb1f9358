"""A simulated run on the terminal: progress bars with a moving average, and a summary in words. Knows nothing of how the numbers came about."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

MOVING_AVERAGE = 20
"""Scores in the moving average shown beside the bar."""


class RichDisplay:
    """One bar per stage. On a pipe or in a file, rich prints each bar once, when it is finished."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[average]:>8}"),
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
        self._progress.stop_task(self._task)  # one that is left before its total would count the rest of the run as its own time
        self._task = self._progress.add_task(name, total=total, average="", note="")

    def step(self, score: float | None, note: str = "") -> None:
        if score is not None:
            self._recent.append(score)
        average = f"avg {sum(self._recent) / len(self._recent):.2f}" if self._recent else ""
        self._progress.update(self._task, advance=1, average=average, note=note)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def phases_table(result: dict[str, Any], title: str | None = None) -> Table:
    """One line a phase: its last window against the frozen control, held-out prompts before and after, distinct-2 as a fraction of the control's."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("phase", "last", "frozen", "diff.", "held out", "distinct-2"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for phase in result["phases"]:
        held_out = phase["held_out"]
        difference = phase["difference"]
        colour = "" if difference is None else "bold green" if difference > 0 else "bold red"
        table.add_row(
            f"{phase['number']} {phase['name']}" + (" (neutral scores)" if phase["neutral"] else ""),
            _number(phase["last_window_mean"]),
            _number(phase["control_mean"]),
            Text(_signed(difference), style=colour),
            f"{_number(held_out['before'])} → {_number(held_out['after'])}" if held_out else "–",
            _number(phase["distinct_2_ratio"]),
        )
    return table


def print_summary(console: Console, result: dict[str, Any]) -> None:
    """The result in a few lines: each phase against its control, receipts, and every kind of failed call."""
    console.print(phases_table(result))
    for phase in result["phases"]:
        console.print(f"  {phase['number']} {phase['name']}: {phase['description']}", style="dim", highlight=False)
        console.print(f"    in windows of {result['options']['window']}: {' '.join(_number(w['mean']) for w in phase['windows'])}", highlight=False)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("receipts", ", ".join(f"{count} {status}" for status, count in sorted(result["receipts"].items())) or "none")
    table.add_row("KL to base", f"{_number(result['kl_base_max'])} nats a token at most, over {len(result['updates'])} updates")
    table.add_row("time", f"{result['seconds']:.0f} s, of which users were held back {result['held_back_seconds']:.0f} s")
    http = result["http"]
    colour = "red" if http["non_2xx"] else "green"
    table.add_row("HTTP", f"{http['calls']} calls, [{colour}]{http['non_2xx']} not 2xx[/{colour}]")
    console.print(table)
    for failure in http["failures"][:5]:
        console.print(
            f"  {failure['method']} {failure['path']} → {failure['status']}: {failure['body'][:200]}", style="red", markup=False, highlight=False
        )
