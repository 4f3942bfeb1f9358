"""Two views of the action tokens of a batch: by microbatch, as the forward passes see them, and by trajectory, as credit is given.

Owns the way between them; knows nothing of what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from online_sao.experience.batching import PackedMicrobatch, TrainBatch


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


def _runs(microbatch: PackedMicrobatch) -> tuple[list[int], list[int]]:
    """The trajectories of a microbatch in packed order, and how many action tokens each has there."""
    indices, counts = torch.unique_consecutive(microbatch.trajectory_index, return_counts=True)
    return indices.tolist(), counts.tolist()
