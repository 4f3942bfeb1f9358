"""How far a value model has earned trust: the affine map from its values to the returns that really followed. Owns that fit; knows no advantages.

A critic that explains nothing is worse than a constant baseline: its errors are added to every advantage. One that explains something is worth
exactly its regression coefficient, the classical optimum for a control variate: V' = μ_G + β (V − μ_V) with β = Cov(G, V) / Var(V) has the least
variance of G − V' among all affine maps. So the critic's use is gated by what it explained lately, smoothly: β = 0 is a running mean of returns,
β = 1 (with equal means) the critic as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGE = 1e-2
"""Added to Var(V), in squared units of reward (whose whole range is 2): values that hardly differ cannot be blown up to explain returns."""

PastReturns = tuple[Tensor, Tensor]
"""(returns[l], values[l] from before the update that learned from them) of one earlier trajectory's action tokens."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """V' = return_mean + slope · (V − value_mean)."""

    slope: float
    value_mean: float
    return_mean: float

    def __call__(self, values: Tensor) -> Tensor:
        return self.return_mean + self.slope * (values - self.value_mean)


def calibrate(history: Sequence[PastReturns], half_life: float) -> Calibration | None:
    """The calibration of the trajectories in ``history`` (oldest first), each weighing half of one ``half_life`` trajectories younger.

        β = Cov(G, V) / (Var(V) + RIDGE), kept in [0, 1]

    Tokens of a trajectory share its weight. Non-finite tokens are left out. None where nothing is left: nothing is known yet.

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
        return None
    g, v, w = torch.cat(returns), torch.cat(values), torch.cat(weights)
    w = w / w.sum()
    mean_g, mean_v = (w * g).sum(), (w * v).sum()
    covariance = (w * (g - mean_g) * (v - mean_v)).sum()
    variance = (w * (v - mean_v) ** 2).sum()
    slope = (covariance / (variance + RIDGE)).clamp(0.0, 1.0)
    return Calibration(float(slope), float(mean_v), float(mean_g))
