"""Every run is a file: what an interrupted call goes on with, what is not taken for a run that it is not, and the report over all of them. Knows no
benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from online_sao.algorithm.recipes import Recipe, number_names


class Titled(Protocol):
    @property
    def title(self) -> str: ...


def recipe_numbers(chosen: Recipe) -> dict[str, Any]:
    return {"name": chosen.name, "preset": chosen.preset, **{name: getattr(chosen, name) for name in number_names()}}


Planned = TypeVar("Planned", bound=Titled)


def still_to_run(
    planned: Sequence[Planned], path: Callable[[Planned], Path], identity: Callable[[Planned], Mapping[str, Any]], console: Console
) -> tuple[list[Planned], bool]:
    """Those that have no file yet; and False where a file is there that is not what was asked for, which is said. ``identity``: keys of a result
    that must be the same, and what they would be."""
    todo, fine = [], True
    for options in planned:
        file = path(options)
        if not file.exists():
            todo.append(options)
            continue
        found, wanted = json.loads(file.read_text()), json.loads(json.dumps(identity(options)))
        if any(found.get(key) != value for key, value in wanted.items()):
            fine = False
            console.print(f"{options.title}: {file} was made with other options or recipe numbers; remove it, or name another --out", style="red")
    if len(todo) < len(planned) and fine:
        console.print(f"[dim]{len(planned) - len(todo)} of {len(planned)} runs are there already[/dim]")
    return todo, fine


def run_all(
    planned: Sequence[Planned],
    path: Callable[[Planned], Path],
    identity: Callable[[Planned], Mapping[str, Any]],
    run_one: Callable[[Planned, Progress], None],
    console: Console,
) -> bool:
    """``run_one`` for what has no file yet, one after the other. False where a file is there that other options made (``still_to_run``)."""
    todo, fine = still_to_run(planned, path, identity, console)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console) as progress:
        whole = progress.add_task("all runs", total=len(todo), note="")
        for options in todo:
            run_one(options, progress)
            progress.advance(whole)
    return fine


def report_all(out: Path, write_report: Callable[[Sequence[Mapping[str, Any]], Path], Sequence[Path]], console: Console) -> bool:
    """The report over every run of ``out``. False where there is none."""
    results = [json.loads(path.read_text()) for path in sorted(out.glob("runs/*.json"))]
    if not results:
        console.print(f"There are no runs in {out}.", style="red")
        return False
    for path in write_report(results, out):
        console.print(f"wrote {path}", soft_wrap=True)
    return True
