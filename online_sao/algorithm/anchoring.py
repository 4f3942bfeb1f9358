"""How far the policy is from the base, now and lately: what the anchor's strength looks at. Pure; knows no loss and no reward.

How many nats a token a preference takes depends on model and task: "far" is told by how far this policy has lately been.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_HALF_LIFE = 256.0
"""Trajectories after which the farthest counts half: a way back takes some tens of them."""
NEAR = 0.05
"""KL in nats a token that is never far: a policy that has only begun to learn is not held back."""


@dataclass(frozen=True, slots=True)
class BaseDistance:
    """Mean KL(policy ‖ base) in nats a token. ``latest``: as the latest update met it; ``farthest``: the largest, fading."""

    latest: float = 0.0
    farthest: float = 0.0

    def after(self, kl_base: float, trajectories: int) -> BaseDistance:
        """After an update of so many trajectories has met the policy at ``kl_base``; one that is not finite leaves both as they are."""
        if not math.isfinite(kl_base):
            return self
        latest = max(0.0, kl_base)  # near the base, rounding can make it negative
        return BaseDistance(latest, max(latest, self.farthest * 0.5 ** (trajectories / MEMORY_HALF_LIFE)))

    def pull(self, reach: float) -> float:
        """min(1, latest / (reach · max(farthest, NEAR)))²: 1 from the part ``reach`` of the farthest on, fading to 0 on the way back to the base."""
        return min(1.0, self.latest / (reach * max(self.farthest, NEAR))) ** 2
