"""Ridge regression of returns on features with exponential forgetting: a linear critic that is the best fit of what was seen, in closed form.

Owns the weighted sums that are all it remembers, and their solution. Knows nothing of where features come from, nor of models or optimisers.

With ω_i = 2^(−age of trajectory i / half-life), x_it the features and G_it the return of its t-th of l_i action tokens, it minimises

    Σ_i ω_i / l_i Σ_t (G_it − c − w·x_it)²  +  ridge · d · Σ_j (s_j · w_j)²

over w[d] and c, where s_j is the standard deviation of feature j under the same weights, so that features count alike; but for those that vary less
than a hundredth as much as all do on average, which count less. ``ridge`` is in trajectories of evidence. This is recursive least squares with a
forgetting factor (Haykin, Adaptive Filter Theory, ch. 10), kept as sums instead of an inverse: nothing is lost to rounding, and the ridge does not
fade.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_VARIANCE = 1e-4
"""Added to the variance of every feature, as part of the mean of all: one that hardly moves is not blown up."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Over the tokens of all trajectories seen, those of one weighing together what the trajectory weighs. All float64."""

    weight: Tensor
    """[]."""
    features: Tensor
    """[d]: of x."""
    products: Tensor
    """[d, d]: of x xᵀ."""
    returns: Tensor
    """[]: of G."""
    cross: Tensor
    """[d]: of G x."""

    @classmethod
    def nothing(cls, size: int) -> Sums:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        return cls(zeros(), zeros(size), zeros(size, size), zeros(), zeros(size))

    def after(self, features: Sequence[Tensor], returns: Sequence[Tensor], half_life: float) -> Sums:
        """With trajectories that came together, ``features`` [l_i, d] and ``returns`` [l_i] of each; all that was there before has aged by their
        number. Tokens whose return or features are not finite are left out. Raises ValueError unless ``half_life`` is above 0."""
        if not half_life > 0:
            raise ValueError(f"half_life must be above 0, not {half_life}")
        kept = 0.5 ** (len(features) / half_life)
        weight, sums, products, earned, cross = (kept * part for part in (self.weight, self.features, self.products, self.returns, self.cross))
        for x, g in zip(features, returns, strict=True):
            finite = torch.isfinite(g) & torch.isfinite(x).all(dim=1)
            if not finite.any():
                continue
            x, g = x[finite].to(torch.float64), g[finite].to(torch.float64)
            each = 1.0 / len(g)
            weight = weight + 1.0
            sums = sums + each * x.sum(0)
            products = torch.addmm(products, x.T, x, alpha=each)
            earned = earned + each * g.sum()
            cross = cross + each * (x.T @ g)
        return Sums(weight, sums, products, earned, cross)

    def fit(self, ridge: float) -> LinearFit:
        """The minimum. Of nothing seen: 0 everywhere. Raises ValueError unless ``ridge`` is above 0."""
        if not ridge > 0:
            raise ValueError(f"ridge must be above 0, not {ridge}")
        size = len(self.features)
        if not float(self.weight) > 0:
            return LinearFit(torch.zeros(size, dtype=torch.float64), 0.0)
        mean, earned = self.features / self.weight, self.returns / self.weight
        covariance = self.products / self.weight - torch.outer(mean, mean)
        variance = covariance.diagonal().clamp(min=0.0)
        floor = LEAST_VARIANCE * variance.mean()
        if not float(floor) > 0:
            return LinearFit(torch.zeros(size, dtype=torch.float64), float(earned))
        scale = (variance + floor).rsqrt()
        correlation = covariance * scale[:, None] * scale + ridge * size / self.weight * torch.eye(size, dtype=torch.float64)
        weights = scale * torch.linalg.solve(correlation, scale * (self.cross / self.weight - mean * earned))
        return LinearFit(weights, float(earned - weights @ mean))


@dataclass(frozen=True, slots=True)
class LinearFit:
    """V(x) = weights · x + constant."""

    weights: Tensor
    """[d] float64."""
    constant: float

    def __call__(self, features: Tensor) -> Tensor:
        """[N] float32 of [N, d]."""
        return (features.to(torch.float64) @ self.weights + self.constant).float()
