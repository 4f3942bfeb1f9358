"""What the benchmarks' reports have in common as files: a table's rows, plots that may be missing, results that are whole or not there. Knows no
benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def heading(headings: Sequence[str]) -> list[str]:
    """The first two lines of a Markdown table."""
    return [row(headings), "|---" * len(headings) + "|"]


def write_report_files(text: str, out: Path, plots: Callable[[], Sequence[Path]]) -> list[Path]:
    """report.md in ``out``, and what ``plots`` draws where matplotlib is installed (the ``plots`` extra; ``plots`` imports what needs it). Returns
    what was written."""
    written = [out / "report.md"]
    written[0].write_text(text, encoding="utf-8")
    try:
        return [*written, *plots()]
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return written  # the tables stand without them


def write_result(path: Path, result: Mapping[str, Any], *, indent: int | None = None) -> None:
    """As JSON; whole, or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(result, indent=indent, separators=(",", ":") if indent is None else None) + "\n")
    unfinished.rename(path)
