"""Credit for a batch: from its trajectories and their values to advantages where the policy is trained. Owns how a batch becomes CreditInputs;
knows no algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from online_sao.algorithm.advantages import step_index
from online_sao.algorithm.calibration import PastReturns
from online_sao.algorithm.recipes import CreditInputs, Recipe
from online_sao.experience.batching import TrainBatch
from online_sao.learner.layout import by_microbatch, by_trajectory, chain_mask
from online_sao.types import Trajectory


def batch_advantages(recipe: Recipe, batch: TrainBatch, values: Sequence[Tensor], history: Sequence[PastReturns]) -> list[Tensor]:
    """[N_m] of every microbatch. ``values``: [l_i] of each trajectory's action tokens; [c_i] of its chain where the recipe has observation_values."""
    rewards = by_trajectory(batch, [microbatch.rewards for microbatch in batch.microbatches])
    inputs = [_inputs(recipe, *each) for each in zip(batch.trajectories, rewards, values, strict=True)]
    advantages = recipe.advantages(inputs, history)
    return by_microbatch(batch, [found[given.loss_mask] for found, given in zip(advantages, inputs, strict=True)])


def _inputs(recipe: Recipe, trajectory: Trajectory, rewards: Tensor, values: Tensor) -> CreditInputs:
    if recipe.observation_values:
        mask = chain_mask(trajectory)
        return CreditInputs(torch.zeros(len(mask), dtype=rewards.dtype).masked_scatter(mask, rewards), values, mask, None, trajectory.group_id)
    mask = torch.tensor(trajectory.loss_mask)
    return CreditInputs(rewards, values, torch.ones_like(rewards, dtype=torch.bool), step_index(mask)[mask], trajectory.group_id)
