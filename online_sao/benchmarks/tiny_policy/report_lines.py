"""What the head of a lab's report says of its runs: how they were made, where and when, and which updates were taken back. Pure; knows no lab."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]


def conditions(results: Sequence[Result], not_shared: Collection[str]) -> str:
    """How many runs, of which seeds, and the options that all have; ``not_shared``: those that may differ."""
    options = [{name: value for name, value in result["options"].items() if name not in not_shared} for result in results]
    shared = ", ".join(f"`{name}={value}`" for name, value in options[0].items())
    shared += f"; a model of {results[0]['warm_start']['parameters']:,} parameters"
    if any(other != options[0] for other in options):
        shared = "settings differ from run to run: do not merge these figures"
    return f"{len(results)} runs, seeds {', '.join(map(str, sorted({result['seed'] for result in results})))}; {shared}."


def machine(results: Sequence[Result]) -> str:
    place = results[-1]["environment"]
    return f"{place['cpus']} CPUs, {place['platform']}, torch {place['torch']}, {results[0]['date'][:10]} to {results[-1]['date'][:10]}."


def taken_back(results: Sequence[Result], where: Callable[[Result], str]) -> list[str]:
    """A paragraph, or nothing where every update stood. ``where``: the run in words."""
    broken = [f"{run['recipe']} ({where(run)}, seed {run['seed']}): {len(run['problems'])}" for run in results if run["problems"]]
    return ["", f"Updates taken back because loss or gradients were not finite: {'; '.join(broken)}."] if broken else []
