"""Every run is a file: what an interrupted call goes on with, and what is not taken for a run that it is not. Knows no benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

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


def read_all(out: Path) -> list[dict[str, Any]]:
    """Every run of ``out``, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("runs/*.json"))]
