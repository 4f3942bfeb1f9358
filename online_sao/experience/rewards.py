"""Scores to rewards. Owns the one map between what a user says and what the algorithm maximises; knows nothing of tokens or storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from online_sao.errors import InvalidScoreError
from online_sao.types import Feedback


def score_to_reward(value: float | bool, score_min: float, score_max: float) -> float:
    """The affine map that takes score_min to −1 and score_max to +1. True and False are the two ends, whatever the range.

    Raises InvalidScoreError if ``value`` is not finite or lies outside [score_min, score_max]; ValueError if the range is empty.
    """
    if not score_min < score_max:
        raise ValueError(f"score_min ({score_min}) must be below score_max ({score_max})")
    if isinstance(value, bool):
        return 1.0 if value else -1.0
    if not math.isfinite(value) or not score_min <= value <= score_max:
        raise InvalidScoreError(f"a score must be a finite number from {score_min} to {score_max}, or true or false, not {value}", param="value")
    return 2.0 * (value - score_min) / (score_max - score_min) - 1.0


def combine(feedback: Iterable[Feedback], weights: Mapping[str, float], score_min: float, score_max: float) -> float | None:
    """reward = Σ weight(metric) · score_to_reward(value), over the current score of each metric. Metrics not in ``weights`` weigh 0.

    Returns None where no score carries weight: there is no reward then, which is not the same as a reward of 0.

    Raises ValueError if a metric occurs twice (only its current score counts), and as ``score_to_reward``.
    """
    reward: float | None = None
    seen: set[str] = set()
    for item in feedback:
        if item.metric in seen:
            raise ValueError(f"metric {item.metric!r} occurs twice; pass its current score only")
        seen.add(item.metric)
        weight = weights.get(item.metric, 0.0)
        if weight == 0.0:
            continue
        reward = (reward or 0.0) + weight * score_to_reward(item.value, score_min, score_max)
    return reward
