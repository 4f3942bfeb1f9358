"""A lab of the tiny policy as a command: every run a file, an interrupted call goes on where it was, the report is made of all files. Knows no lab.

Owns what a file says, and what is not taken for the run that was asked for. What differs from lab to lab is in a ``Lab``.
"""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from online_sao.algorithm.recipes import Recipe, number_names
from online_sao.benchmarks.environment import environment
from online_sao.benchmarks.report_files import write_result

console = Console(stderr=True, highlight=False)


class RunOptions(Protocol):
    """A dataclass: what one run is the run of."""

    @property
    def seed(self) -> int: ...
    @property
    def title(self) -> str: ...
    def numbers(self) -> dict[str, Any]: ...


Options = TypeVar("Options", bound=RunOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab(Generic[Options]):
    """``named_by``: the options that a result names beside all others. ``prepare(options, cache, progress)`` gives the folder of the base model, made
    where it is not there yet, and what is said of it (``warm_start.obtain``); ``run(options, base, progress)`` makes a run of ``length(options)``
    steps from it; ``note`` is what is shown of the number that ``progress(step, number)`` tells; ``outcome`` of a result's
    summary."""

    name: str
    named_by: tuple[str, ...]
    prepare: Callable[[Options, Path, Callable[[int, int, float], None]], tuple[Path, dict[str, Any]]]
    file_name: Callable[[Options], str]
    length: Callable[[Options], int]
    run: Callable[[Options, Path, Callable[[int, float], None]], dict[str, Any]]
    note: Callable[[float], str]
    summarise: Callable[[Mapping[str, Any]], dict[str, Any]]
    outcome: Callable[[Mapping[str, Any]], str]
    write_report: Callable[[Sequence[Mapping[str, Any]], Path], Sequence[Path]]

    def main(self, planned: Sequence[Options], arguments: Namespace, words: Sequence[str]) -> int:
        """Run what has no file yet, then write the report over all files. ``arguments``: ``out``, ``threads`` (0: all cores), ``report_only``;
        ``words``: of the command. Returns the exit status: 1 where there is no file, or one is of other options."""
        torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
        command = shlex.join(["online-sao", "bench", self.name, *words])
        fine = arguments.report_only or self._run_all(planned, arguments.out, command)
        results = [json.loads(path.read_text()) for path in sorted(arguments.out.glob("runs/*.json"))]
        if not results:
            console.print(f"There are no runs in {arguments.out}.", style="red")
            return 1
        for path in self.write_report(results, arguments.out):
            console.print(f"wrote {path}", soft_wrap=True)
        return 0 if fine else 1

    def run_file(self, out: Path, options: Options) -> Path:
        return out / "runs" / f"{self.file_name(options)}-seed{options.seed}.json"

    def _run_all(self, planned: Sequence[Options], out: Path, command: str) -> bool:
        """One run after the other. False where a file is there that other options made."""
        todo, fine = self._still_to_run(planned, out)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        with Progress(*columns, console=console) as progress:
            whole = progress.add_task("all runs", total=len(todo), note="")
            for options in todo:
                self._run_one(options, out, command, progress)
                progress.advance(whole)
        return fine

    def _still_to_run(self, planned: Sequence[Options], out: Path) -> tuple[list[Options], bool]:
        """Those that have no file yet; and False where a file is there that is not what was asked for, which is said."""
        todo, fine = [], True
        for options in planned:
            file = self.run_file(out, options)
            if not file.exists():
                todo.append(options)
                continue
            found, wanted = json.loads(file.read_text()), json.loads(json.dumps(_identity(options)))
            if any(found.get(key) != value for key, value in wanted.items()):
                fine = False
                console.print(f"{options.title}: {file} was made with other options or recipe numbers; remove it, or name another --out", style="red")
        if len(todo) < len(planned) and fine:
            console.print(f"[dim]{len(planned) - len(todo)} of {len(planned)} runs are there already[/dim]")
        return todo, fine

    def _run_one(self, options: Options, out: Path, command: str, progress: Progress) -> None:
        bar = progress.add_task(f"{options.title}: base model", total=None, note="")
        base, about = self.prepare(
            options, out / "warm-starts", lambda step, most, right: progress.update(bar, completed=step, total=most, note=f"{right:.0%} right")
        )
        progress.reset(bar, total=self.length(options), description=options.title, note="")
        result: dict[str, Any] = {
            "benchmark": self.name,
            "format": 1,
            **{name: getattr(options, name) for name in self.named_by},
            **_identity(options),
            "warm_start": about,
            "threads": torch.get_num_threads(),
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **self.run(options, base, lambda step, number: progress.update(bar, completed=step, note=self.note(number))),
            "environment": environment(),
        }
        result["summary"] = self.summarise(result)
        write_result(self.run_file(out, options), result)
        progress.remove_task(bar)
        progress.console.print(f"{options.title}: {self.outcome(result['summary'])}; {result['seconds']['total']:.0f} s")


def _identity(options: RunOptions) -> dict[str, Any]:
    """What a run is the run of: with another one of these, a file of the same name is not it."""
    return {"options": asdict(options), "recipe_numbers": options.numbers()}  # type: ignore[call-overload]  # every RunOptions is a dataclass


def recipe_numbers(chosen: Recipe) -> dict[str, Any]:
    return {"name": chosen.name, "preset": chosen.preset, **{name: getattr(chosen, name) for name in number_names()}}
