"""Results of several runs side by side. Reads result files; knows nothing of how they came about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from online_sao.errors import ConfigurationError
from online_sao.simulation.results import FORMAT

Result = Mapping[str, Any]


def load_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What `online-sao simulate --out` wrote. Raises ConfigurationError naming the file that it did not, or not in this format."""
    results = []
    for path in paths:
        try:
            result = json.loads(path.read_text())
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ConfigurationError(f"{path} is no JSON. Give files that `online-sao simulate --out` wrote.") from error
        if not isinstance(result, dict) or result.get("format") != FORMAT or "phases" not in result:
            raise ConfigurationError(f"{path} is no result of this version's `online-sao simulate --out`. Run it again.")
        results.append(result)
    return results


def labels(paths: Sequence[Path]) -> list[str]:
    """File names without their ending, or whole paths where those are not told apart by their names."""
    names = [path.stem for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def comparison_table(results: Sequence[Result], names: Sequence[str]) -> Table:
    """A column a result; the measures of each phase, then those of the whole run. Where schedules differ, a phase is named in each column."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    for place in range(max(len(result["phases"]) for result in results)):
        phases = [result["phases"][place] if place < len(result["phases"]) else None for result in results]
        table.add_row(f"[bold]phase {place + 1}[/bold]", *(phase["name"] + " (neutral)" * phase["neutral"] if phase else "–" for phase in phases))
        for heading, key, signed in (
            ("last window", "last_window_mean", False),
            ("frozen control", "control_mean", False),
            ("difference", "difference", True),
            ("distinct-2 of base", "distinct_2_ratio", False),
        ):
            table.add_row(f"  {heading}", *(_number(phase[key] if phase else None, signed) for phase in phases))
        table.add_row("  held-out prompts", *(_held_out(phase) for phase in phases), end_section=True)
    table.add_row("KL to base, most", *(_number(result["kl_base_max"]) for result in results))
    table.add_row("updates", *(str(len(result["updates"])) for result in results))
    table.add_row("scores live", *(str(result["receipts"].get("live", 0)) for result in results))
    table.add_row("seconds", *(f"{result['seconds']:.0f}" for result in results))
    table.add_row("calls not 2xx", *(str(result["http"]["non_2xx"]) for result in results))
    return table


def _number(value: float | None, signed: bool = False) -> str:
    return "–" if value is None else f"{value:+.3f}" if signed else f"{value:.3f}"


def _held_out(phase: Result | None) -> str:
    held_out = phase["held_out"] if phase else None
    return f"{_number(held_out['before'])} → {_number(held_out['after'])}" if held_out else "–"
