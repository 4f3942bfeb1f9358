"""Curves of a run: smoothing, and numbers that were not finite. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Mean of the latest ``window`` values at each place from the first that has so many (of all, where there are fewer altogether)."""
    window = min(window, len(values))
    return [statistics.fmean(values[end - window : end]) for end in range(window, len(values) + 1)]


def kept(value: float) -> float | None:
    """As it is written to a file: five digits; None where it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def numbers(series: Sequence[float | None]) -> list[float]:
    """As it is read: NaN where there was no finite number."""
    return [math.nan if value is None else value for value in series]


def finite_mean(values: Sequence[float]) -> float | None:
    """Of the finite ones; None where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else None
