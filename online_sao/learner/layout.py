"""Two views of the tokens of a batch: by microbatch, as the forward passes see them, and by trajectory, as credit is given.

Owns the way between them; knows nothing of what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from online_sao.experience.batching import PackedMicrobatch, TrainBatch
from online_sao.types import Trajectory


def by_trajectory(batch: TrainBatch, per_microbatch: Sequence[Tensor]) -> list[Tensor]:
    """[N_m] of every microbatch → [l_i] of every trajectory, in the order of ``batch.trajectories``."""
    found: dict[int, Tensor] = {}
    for microbatch, values in zip(batch.microbatches, per_microbatch, strict=True):
        indices, counts = _runs(microbatch)
        found.update(zip(indices, torch.split(values, counts), strict=True))
    return [found[index] for index in range(len(batch.trajectories))]


def by_microbatch(batch: TrainBatch, per_trajectory: Sequence[Tensor]) -> list[Tensor]:
    """The way back: [l_i] of every trajectory → [N_m] of every microbatch."""
    return [torch.cat([per_trajectory[index] for index in _runs(microbatch)[0]]) for microbatch in batch.microbatches]


def chain_mask(trajectory: Trajectory) -> Tensor:
    """[c] bool: the loss mask of its chain, that is of every token from its first action token to its last, observations in between among them."""
    actions = torch.tensor(trajectory.loss_mask).nonzero().squeeze(-1).tolist()
    return torch.tensor(trajectory.loss_mask[actions[0] : actions[-1] + 1])


def chain_positions(batch: TrainBatch, microbatch: PackedMicrobatch) -> tuple[list[int], list[Tensor]]:
    """The trajectories of a microbatch in packed order, and for each [c] where in the row the states stand that produce the tokens of its chain."""
    indices, counts = _runs(microbatch)
    positions = []
    for index, states in zip(indices, torch.split(microbatch.state_positions, counts), strict=True):
        length = len(chain_mask(batch.trajectories[index]))
        # The first may stand in the prefix that trajectories share; from there on all stand in the trajectory's own part, one after the other.
        own = torch.arange(int(states[-1]) - length + 1, int(states[-1]) + 1, device=states.device)
        positions.append(torch.cat([states[:1], own[1:]]))
    return indices, positions


def _runs(microbatch: PackedMicrobatch) -> tuple[list[int], list[int]]:
    """The trajectories of a microbatch in packed order, and how many action tokens each has there."""
    indices, counts = torch.unique_consecutive(microbatch.trajectory_index, return_counts=True)
    return indices.tolist(), counts.tolist()
