"""How sure a figure of a few measurements is. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap


@dataclass(frozen=True, slots=True)
class Interval:
    """``low`` and ``high`` are None where there was but one value."""

    median: float
    low: float | None = None
    high: float | None = None


def median_interval(values: Sequence[float]) -> Interval:
    """Median of at least one value and its 95 % bootstrap interval (percentile, 10 000 resamples, a fixed seed)."""
    median = statistics.median(values)
    if len(values) < 2:
        return Interval(median)
    found = bootstrap((values,), np.median, n_resamples=10_000, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return Interval(median, float(found.low), float(found.high))


def median_text(values: Sequence[float | None], form: str, *, with_interval: bool = True) -> str:
    """The median of those that are not None, as ``form`` writes a number, with its interval where there are several; a dash for none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    found = median_interval(known)
    if not with_interval or found.low is None or found.high is None:
        return form.format(found.median)
    return f"{form.format(found.median)} ({form.format(found.low)} to {form.format(found.high)})"
