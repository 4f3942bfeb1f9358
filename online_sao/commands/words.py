"""Times, scores and texts as the terminal shows them. Pure text; knows nothing of where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape

MISSING = "–"


def when(at: float | None) -> str:
    """Unix seconds as a date and time in UTC; for columns whose header says so."""
    return MISSING if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def when_utc(at: float | None) -> str:
    return MISSING if at is None else f"{when(at)} UTC"


def score(version: dict[str, Any], score_range: Sequence[float]) -> str:
    """A version's mean score with its 95 % interval, cut where no score can be."""
    if version["mean_score"] is None:
        return MISSING
    interval = version["score_interval"]
    low, high = score_range
    return f"{version['mean_score']:.3f}" + (f" ({max(low, interval[0]):.3f}–{min(high, interval[1]):.3f})" if interval else "")


def number(value: float | None, digits: int = 4) -> str:
    return MISSING if value is None else f"{value:.{digits}g}"


def shown(value: object) -> str:
    return MISSING if value is None else f"{value}"


def plain(text: str) -> str:
    """Text of a model or of a person, not markup of ours."""
    return escape(text.replace("\n", " ⏎ "))
