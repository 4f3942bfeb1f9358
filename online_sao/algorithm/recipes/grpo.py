"""GRPO (arXiv 2402.03300): no value model; what a trajectory earned is compared with the others of its group. Owns group credit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from online_sao.algorithm.advantages import group_normalised
from online_sao.algorithm.calibration import PastReturns
from online_sao.algorithm.recipes.baselines import NO_CRITIC, outcome_advantages, outcomes
from online_sao.algorithm.recipes.definition import CreditInputs, Recipe
from online_sao.algorithm.recipes.ppo import CLIP_HIGHER, ppo_weights
from online_sao.algorithm.recipes.sao import SAO_LIVE, SAO_PAPER


def group_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """The trajectory's outcome, normalised within its group, on every action token. Alone in its group, or without one: 0, it teaches nothing."""
    groups = [trajectory.group_id for trajectory in trajectories]
    return outcome_advantages(trajectories, group_normalised(outcomes(recipe, trajectories, ()), groups))


_GROUPS: dict[str, Any] = {"credit": group_advantages, "compares_groups": True, **NO_CRITIC}

RECIPES = (
    *(dataclasses.replace(sao, name="grpo", weigh=ppo_weights, **_GROUPS, **CLIP_HIGHER) for sao in (SAO_LIVE, SAO_PAPER)),
    *(dataclasses.replace(sao, name="grpo-dis", **_GROUPS) for sao in (SAO_LIVE, SAO_PAPER)),
)
