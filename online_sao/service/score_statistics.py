"""What scores say with certainty: the interval around a mean, and how late scores come. Pure arithmetic; knows nothing of where scores come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds from the end of an answer to its score, over the newest ``scores`` whose answer had ended."""

    scores: int
    median: float
    ninth_decile: float


def mean_interval(mean: float, variance: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a mean of ``count`` values with that sample variance: mean ± t·√(variance/count), Student's t with count − 1 degrees of
    freedom. ``count`` must be 2 or more. Scores that all agree give an interval without width, however few they are: show ``count`` beside it."""
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / count)
    return mean - half, mean + half


def delay_of(delays: Sequence[float | None]) -> Delay | None:
    """None where no answer had ended."""
    known = sorted(delay for delay in delays if delay is not None)
    if not known:
        return None
    return Delay(len(known), _quantile(known, 0.5), _quantile(known, 0.9))


def _quantile(ordered: Sequence[float], fraction: float) -> float:
    """Linear between the two nearest."""
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])
