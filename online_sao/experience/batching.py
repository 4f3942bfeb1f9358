"""Trajectories to packed batches. Owns the layout of one training pass; knows nothing of models, advantages or losses.

Packing, not padding: trajectories stand one after the other in one row, segment ids keep them apart, and what they all begin with (a system prompt,
the template's opening) stands there once. A token is computed only if something is read from it: the last action token is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from online_sao.types import Trajectory


@dataclass(frozen=True, slots=True)
class PackedMicrobatch:
    """Whole trajectories in one row of T tokens, with N action tokens. Action tokens of one trajectory are contiguous in [N], in order."""

    input_ids: Tensor
    """[T] long."""
    position_ids: Tensor
    """[T] long: each token's place in its own trajectory, from 0."""
    segment_ids: Tensor
    """[T] long: 0 for the prefix that all trajectories of the row begin with, then 1, 2, … for each one's own tokens. A token attends to earlier
    tokens of segment 0 and of its own segment."""
    state_positions: Tensor
    """[N] long: where in T the state stands that produces the action token: its logits and its value are read there, one token before it."""
    action_ids: Tensor
    """[N] long: the action tokens."""
    trajectory_index: Tensor
    """[N] long: index into TrainBatch.trajectories."""
    behavior_logprobs: Tensor
    """[N] float32."""
    temperatures: Tensor
    """[N] float32."""
    rewards: Tensor
    """[N] float32."""

    def to(self, device: torch.device) -> PackedMicrobatch:
        return PackedMicrobatch(**{item.name: getattr(self, item.name).to(device) for item in fields(self)})


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """What one update trains on. ``trajectories`` keeps the order given to ``pack``; the microbatches hold each of them exactly once."""

    microbatches: tuple[PackedMicrobatch, ...]
    trajectories: tuple[Trajectory, ...]
    num_action_tokens: int
    """N of all microbatches together: the divisor of every loss."""


SMALLEST_SHARE = 64
"""Tokens of a microbatch below which a batch is not shared out further: the weights are read for each, and a prefix computed."""


def pack(trajectories: Sequence[Trajectory], max_tokens: int, at_least: int = 1) -> TrainBatch:
    """Pack whole trajectories into as few microbatches of at most ``max_tokens`` tokens as first-fit by falling length finds; but into
    ``at_least`` so many, of about equal size, as long as each has SMALLEST_SHARE tokens.

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
    by_length = sorted(range(len(trajectories)), key=lambda i: (-len(trajectories[i].token_ids), i))
    rows = _first_fit(trajectories, by_length, max_tokens)
    shares = min(at_least, len(trajectories), sum(row.length for row in rows) // SMALLEST_SHARE)
    if len(rows) < shares:
        shared_out = _shared_out(trajectories, by_length, shares)
        rows = shared_out if max(row.length for row in shared_out) <= max(max_tokens, rows[0].length) else rows
    return TrainBatch(
        microbatches=tuple(row.build() for row in rows),
        trajectories=tuple(trajectories),
        num_action_tokens=sum(trajectory.num_action_tokens for trajectory in trajectories),
    )


@dataclass(slots=True)
class _Row:
    """A microbatch in the making: ``prefix`` is the beginning its trajectories share, all of it before anyone's first action token."""

    indices: list[int] = field(default_factory=list)
    members: list[Trajectory] = field(default_factory=list)
    prefix: Sequence[int] = ()

    @property
    def length(self) -> int:
        """Tokens T of the row."""
        return len(self.prefix) + sum(_num_states(member) - len(self.prefix) for member in self.members)

    def length_with(self, trajectory: Trajectory) -> int:
        """Tokens T of the row, were ``trajectory`` added to it."""
        shared = len(self._shared(trajectory))
        return shared + sum(_num_states(member) - shared for member in (*self.members, trajectory))

    def add(self, index: int, trajectory: Trajectory) -> None:
        self.prefix = self._shared(trajectory)
        self.indices.append(index)
        self.members.append(trajectory)

    def _shared(self, trajectory: Trajectory) -> Sequence[int]:
        prompt = trajectory.token_ids[: trajectory.loss_mask.index(True)]
        if not self.members:
            return prompt
        return prompt[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.prefix, prompt, strict=False)))]

    def build(self) -> PackedMicrobatch:
        shared = len(self.prefix) if len(self.members) > 1 else 0
        input_ids = list(self.prefix[:shared])
        position_ids, segment_ids = list(range(shared)), [0] * shared
        state_positions: list[int] = []
        for segment, member in enumerate(self.members, start=1):
            offset = len(input_ids) - shared
            own = range(shared, _num_states(member))
            input_ids += member.token_ids[shared : own.stop]
            position_ids += own
            segment_ids += [segment] * len(own)
            states = (t - 1 for t, is_action in enumerate(member.loss_mask) if is_action)
            state_positions += [state if state < shared else state + offset for state in states]
        loss_mask = torch.tensor([flag for member in self.members for flag in member.loss_mask])

        def on_actions(values: list[Any], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype)[loss_mask]

        return PackedMicrobatch(
            input_ids=torch.tensor(input_ids, dtype=torch.long),
            position_ids=torch.tensor(position_ids, dtype=torch.long),
            segment_ids=torch.tensor(segment_ids, dtype=torch.long),
            state_positions=torch.tensor(state_positions, dtype=torch.long),
            action_ids=on_actions([token for member in self.members for token in member.token_ids], torch.long),
            trajectory_index=on_actions([i for i, member in zip(self.indices, self.members, strict=True) for _ in member.token_ids], torch.long),
            behavior_logprobs=on_actions([value for member in self.members for value in member.behavior_logprobs]),
            temperatures=on_actions([value for member in self.members for value in member.temperatures]),
            rewards=on_actions([value for member in self.members for value in member.rewards]),
        )


def _first_fit(trajectories: Sequence[Trajectory], order: Sequence[int], max_tokens: int) -> list[_Row]:
    rows: list[_Row] = []
    for index in order:
        fitting = (row for row in rows if row.length_with(trajectories[index]) <= max_tokens)
        row = next(fitting, None)
        if row is None:
            row = _Row()
            rows.append(row)
        row.add(index, trajectories[index])
    return rows


def _shared_out(trajectories: Sequence[Trajectory], order: Sequence[int], count: int) -> list[_Row]:
    """Each to the row that is shortest with it."""
    rows = [_Row() for _ in range(count)]
    for index in order:
        min(rows, key=lambda row: row.length_with(trajectories[index])).add(index, trajectories[index])
    return rows


def _num_states(trajectory: Trajectory) -> int:
    """Tokens whose states are read: all before the last action token."""
    return len(trajectory.loss_mask) - 1 - trajectory.loss_mask[::-1].index(True)


def _check(trajectory: Trajectory) -> None:
    length = len(trajectory.token_ids)
    fields = (trajectory.loss_mask, trajectory.behavior_logprobs, trajectory.rewards, trajectory.temperatures)
    if any(len(field) != length for field in fields):
        raise ValueError(f"trajectory {trajectory.trajectory_id}: its fields differ in length")
    if not any(trajectory.loss_mask):
        raise ValueError(f"trajectory {trajectory.trajectory_id} has no action token")
    if trajectory.loss_mask[0]:
        raise ValueError(f"trajectory {trajectory.trajectory_id}: token 0 cannot be an action token, nothing predicts it")
