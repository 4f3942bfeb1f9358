"""What earlier trajectories say of this batch: how far the critic has earned trust, what reward to expect, and whether it has fallen. Owns these
estimates from past returns; knows no advantages and no policy.

``PastReturns`` lists are oldest first. A trajectory weighs half of one ``half_life`` trajectories younger; its tokens share its weight. Tokens
whose return or value is not finite are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

RIDGE = 1e-2
"""Added to Var(V), in squared units of reward (whose whole range is 2): values that hardly differ cannot be blown up to explain returns."""

PastReturns = tuple[Tensor, Tensor]
"""(returns[l], values[l] from before the update that learned from them) of one earlier trajectory's action tokens."""


def calibration_slope(history: Sequence[PastReturns], half_life: float) -> float:
    """β of V' = μ + β (V − mean V): how much of the value model's opinion belongs into a baseline.

        β = Cov(G, V) / (Var(V) + RIDGE), kept in [0, 1]

    the classical optimum of a control variate: of all affine maps of V this one leaves the least variance of G − V'. A critic that explains nothing
    is worse than a constant, since its errors are added to every advantage: it gets 0. So does one without a past.

    Raises ValueError unless ``half_life`` is above 0.
    """
    if not half_life > 0:
        raise ValueError(f"half_life must be above 0, not {half_life}")
    returns, values, weights = [], [], []
    for age, (past_returns, past_values) in enumerate(reversed(history)):
        finite = torch.isfinite(past_returns) & torch.isfinite(past_values)
        count = int(finite.sum())
        if count:
            returns.append(past_returns[finite].to(torch.float64))
            values.append(past_values[finite].to(torch.float64))
            weights.append(torch.full((count,), 0.5 ** (age / half_life) / count, dtype=torch.float64, device=past_returns.device))
    if not weights:
        return 0.0
    g, v, w = torch.cat(returns), torch.cat(values), torch.cat(weights)
    w = w / w.sum()
    mean_g, mean_v = (w * g).sum(), (w * v).sum()
    covariance = (w * (g - mean_g) * (v - mean_v)).sum()
    variance = (w * (v - mean_v) ** 2).sum()
    return float((covariance / (variance + RIDGE)).clamp(0.0, 1.0))


def recent_mean(numbers: Sequence[float], half_life: float, others: Sequence[float] = ()) -> float | None:
    """Mean of ``numbers`` (oldest first) under the half-life, and of ``others``, which are of now and weigh 1 each. None where there are none.

    The mean of everybody else's outcome is a baseline that does not depend on one's own action: it biases no gradient.
    """
    pairs = [(0.5 ** ((age + 1) / half_life), number) for age, number in enumerate(reversed(numbers))]
    pairs += [(1.0, number) for number in others]
    pairs = [(weight, number) for weight, number in pairs if math.isfinite(number)]
    total = math.fsum(weight for weight, _ in pairs)
    return math.fsum(weight * number for weight, number in pairs) / total if total > 0 else None


def reward_drop(returns: Sequence[float], fast_half_life: float, slow_half_life: float) -> float:
    """By how much the reward has fallen lately, beyond one standard error of what "lately" is known to; 0 where it has not.

        max(0, mean_slow − mean_fast − s_fast / √n_fast),   n = (Σw)² / Σw²

    ``returns``: one number a trajectory, oldest first. In units of reward. A drop decays by itself as the slow mean comes down.
    """
    finite = [number for number in returns if math.isfinite(number)]
    if len(finite) < 2:
        return 0.0

    def moments(half_life: float) -> tuple[float, float, float]:
        weights = [0.5 ** (age / half_life) for age in range(len(finite))][::-1]
        total = math.fsum(weights)
        mean = math.fsum(w * x for w, x in zip(weights, finite, strict=True)) / total
        variance = math.fsum(w * (x - mean) ** 2 for w, x in zip(weights, finite, strict=True)) / total
        return mean, variance, total**2 / math.fsum(w * w for w in weights)

    slow, _, _ = moments(slow_half_life)
    fast, variance, count = moments(fast_half_life)
    return max(0.0, slow - fast - math.sqrt(variance / count))
