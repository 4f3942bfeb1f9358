"""Trajectories to packed batches. Owns the layout of one training pass; knows nothing of models, advantages or losses.

Packing, not padding: trajectories stand one after the other in one row, and position ids that restart at 0 keep them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_sao.types import Trajectory


@dataclass(frozen=True, slots=True)
class PackedMicrobatch:
    """Whole trajectories in one row of T tokens, N of them action tokens. Action tokens of one trajectory are contiguous in [N], in order."""

    input_ids: Tensor
    """[T] long."""
    position_ids: Tensor
    """[T] long: restarts at 0 with each trajectory."""
    action_positions: Tensor
    """[N] long: where in T each action token a_t stands. Its logits and its value are those of position ``action_positions − 1``."""
    action_ids: Tensor
    """[N] long: the action tokens, input_ids[action_positions]."""
    trajectory_index: Tensor
    """[N] long: index into TrainBatch.trajectories."""
    behavior_logprobs: Tensor
    """[N] float32."""
    temperatures: Tensor
    """[N] float32."""
    rewards: Tensor
    """[N] float32."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one update trains on. ``trajectories`` keeps the order given to ``pack``; the microbatches hold each of them exactly once."""

    microbatches: tuple[PackedMicrobatch, ...]
    trajectories: tuple[Trajectory, ...]
    num_action_tokens: int
    """N of all microbatches together: the divisor of every loss."""


def pack(trajectories: Sequence[Trajectory], max_tokens: int) -> TrainBatch:
    """Pack whole trajectories into as few microbatches of at most ``max_tokens`` tokens as first-fit by falling length finds.

    A trajectory longer than ``max_tokens`` is never split: it gets a microbatch of its own. The result depends on the input alone.

    Raises ValueError if there is no trajectory, ``max_tokens`` < 1, or a trajectory has fields of unequal length, no action token, or one at
    position 0.
    """
    if not trajectories:
        raise ValueError("a batch needs at least one trajectory")
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
    for trajectory in trajectories:
        _check(trajectory)
    bins: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(trajectories)), key=lambda i: (-len(trajectories[i].token_ids), i)):
        length = len(trajectories[index].token_ids)
        chosen = next((i for i, room in enumerate(free) if room >= length), None)
        if chosen is None:
            bins.append([])
            free.append(max_tokens)
            chosen = len(bins) - 1
        bins[chosen].append(index)
        free[chosen] -= length
    return TrainBatch(
        microbatches=tuple(_concatenate(trajectories, indices) for indices in bins),
        trajectories=tuple(trajectories),
        num_action_tokens=sum(trajectory.num_action_tokens for trajectory in trajectories),
    )


def _concatenate(trajectories: Sequence[Trajectory], indices: Sequence[int]) -> PackedMicrobatch:
    chosen = [trajectories[index] for index in indices]
    loss_mask = torch.tensor([flag for trajectory in chosen for flag in trajectory.loss_mask])
    input_ids = torch.tensor([token for trajectory in chosen for token in trajectory.token_ids], dtype=torch.long)
    owner = torch.tensor([index for index in indices for _ in trajectories[index].token_ids], dtype=torch.long)

    def on_actions(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32)[loss_mask]

    return PackedMicrobatch(
        input_ids=input_ids,
        position_ids=torch.cat([torch.arange(len(trajectory.token_ids)) for trajectory in chosen]),
        action_positions=loss_mask.nonzero().squeeze(-1),
        action_ids=input_ids[loss_mask],
        trajectory_index=owner[loss_mask],
        behavior_logprobs=on_actions([value for trajectory in chosen for value in trajectory.behavior_logprobs]),
        temperatures=on_actions([value for trajectory in chosen for value in trajectory.temperatures]),
        rewards=on_actions([value for trajectory in chosen for value in trajectory.rewards]),
    )


def _check(trajectory: Trajectory) -> None:
    length = len(trajectory.token_ids)
    fields = (trajectory.loss_mask, trajectory.behavior_logprobs, trajectory.rewards, trajectory.temperatures)
    if any(len(field) != length for field in fields):
        raise ValueError(f"trajectory {trajectory.trajectory_id}: its fields differ in length")
    if not any(trajectory.loss_mask):
        raise ValueError(f"trajectory {trajectory.trajectory_id} has no action token")
    if trajectory.loss_mask[0]:
        raise ValueError(f"trajectory {trajectory.trajectory_id}: token 0 cannot be an action token, nothing predicts it")
