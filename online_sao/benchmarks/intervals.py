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
