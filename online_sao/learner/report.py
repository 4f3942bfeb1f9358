"""What one update says of itself: the record and how its numbers are drawn from the pass. Owns metric names; changes no weight.

Names carry the prefixes policy/, value/ and data/. Every value is a finite number (an average over nothing is 0), unless the report names a
problem. What only the caller knows (policy lag, waiting times) the caller adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from online_sao.algorithm import diagnostics
from online_sao.algorithm.importance import TokenWeights, effective_sample_fraction
from online_sao.experience.batching import TrainBatch


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """``masked_fraction[i]``: the part of the action tokens of ``TrainBatch.trajectories[i]`` that was not trained.

    ``problem`` says why a step was not applied (its loss or gradients were not finite). The weights may have moved in an earlier step of the same
    update all the same: restore the snapshot.
    """

    metrics: dict[str, float]
    masked_fraction: tuple[float, ...]
    ratio_histogram: dict[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyPiece:
    """What the policy's passes over one microbatch gave: losses and KL in pieces of the vocabulary's size limit, the rest token by token."""

    losses: list[float]
    kl_base: list[float]
    entropy: list[Tensor]
    weights: TokenWeights
    log_ratio: Tensor

    def scaled(self, fraction: float) -> PolicyPiece:
        """Losses and KL as parts of the whole batch, of whose action tokens the step they belong to had this fraction."""
        return replace(self, losses=[loss * fraction for loss in self.losses], kl_base=[kl * fraction for kl in self.kl_base])


@dataclass(slots=True)
class PolicyPass:
    """Per-token results of the policy's forward passes over a whole batch, in the order of its microbatches, and what became of the step. Of several
    steps: applied if one was, the largest gradient norm, a problem if one had it."""

    log_ratio: list[Tensor] = field(default_factory=list)
    weights: list[TokenWeights] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    loss: float = 0.0
    kl_base: float = 0.0
    anchor_coefficient: float = 0.0
    learning_rate: float = 0.0
    grad_norm: float = 0.0
    step_applied: bool = False
    problem: str | None = None
    seconds: float = 0.0

    def add(self, piece: PolicyPiece) -> None:
        for loss, kl_base in zip(piece.losses, piece.kl_base, strict=True):
            self.loss += loss
            self.kl_base += kl_base
        self.entropy += piece.entropy
        self.weights.append(piece.weights)
        self.log_ratio.append(piece.log_ratio)

    def ratio_histogram(self) -> dict[str, Any]:
        return dict(diagnostics.ratio_histogram(torch.cat(self.log_ratio)))


@dataclass(slots=True)
class ValuePass:
    """The value updates of one batch. ``loss`` is that of the first of them, so it is the error the critic had before it saw the batch."""

    values_before: list[Tensor] = field(default_factory=list)
    loss: float = 0.0
    grad_norm: float = 0.0
    updates: int = 0
    problem: str | None = None
    seconds: float = 0.0


def policy_metrics(result: PolicyPass, advantages: Sequence[Tensor]) -> dict[str, float]:
    log_ratio = torch.cat(result.log_ratio)
    kept = torch.cat([weights.kept for weights in result.weights])
    low = torch.cat([weights.masked_low for weights in result.weights])
    high = torch.cat([weights.masked_high for weights in result.weights])
    broken = torch.cat([weights.non_finite for weights in result.weights])
    pushes = torch.cat(list(advantages))
    good = pushes > 0
    gap = diagnostics.log_ratio_gap(log_ratio, kept)
    named = {
        "masked_fraction": (~kept).float().mean(),
        "masked_fraction_low": low.float().mean(),
        "masked_fraction_high": high.float().mean(),
        "masked_fraction_good": (low & good).sum() / good.sum().clamp(min=1),
        "non_finite_tokens": broken.sum(),
        "abs_log_ratio_masked": gap.masked,
        "abs_log_ratio_unmasked": gap.unmasked,
        "ess_fraction": effective_sample_fraction(log_ratio, torch.ones_like(kept)),
        "kl_behavior_current_k1": diagnostics.kl_k1(log_ratio),
        "kl_behavior_current_k3": diagnostics.kl_k3(log_ratio),
        "kl_base": result.kl_base,
        "anchor_coefficient": result.anchor_coefficient,
        "learning_rate": result.learning_rate,
        "entropy": torch.cat(result.entropy).mean(),
        "advantage_abs_mean": pushes.abs().mean(),
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "step_applied": result.step_applied,
        "seconds": result.seconds,
    }
    return _prefixed("policy", named)


def value_metrics(result: ValuePass, explained_variance: Tensor, window: int, calibration_slope: float) -> dict[str, float]:
    named = {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "explained_variance": explained_variance,
        "explained_variance_trajectories": window,
        "calibration_slope": calibration_slope,
        "mean": torch.cat(result.values_before).mean(),
        "updates": result.updates,
        "seconds": result.seconds,
    }
    return _prefixed("value", named)


def data_metrics(batch: TrainBatch) -> dict[str, float]:
    rewards = [trajectory.reward for trajectory in batch.trajectories if math.isfinite(trajectory.reward)]
    count = len(batch.trajectories)
    named = {
        "trajectories": count,
        "non_finite_rewards": count - len(rewards),
        "action_tokens": batch.num_action_tokens,
        "tokens": sum(len(trajectory.token_ids) for trajectory in batch.trajectories),
        "reward_mean": math.fsum(rewards) / len(rewards) if rewards else 0.0,
        "response_length_mean": batch.num_action_tokens / count,
        "truncation_rate": sum(trajectory.truncated for trajectory in batch.trajectories) / count,
    }
    return _prefixed("data", named)


def masked_fractions(batch: TrainBatch, weights: Sequence[TokenWeights]) -> tuple[float, ...]:
    """The fraction of each trajectory's action tokens that was not trained, in the order of ``batch.trajectories``."""
    dropped = [0] * len(batch.trajectories)
    for microbatch, decided in zip(batch.microbatches, weights, strict=True):
        for index in microbatch.trajectory_index[~decided.kept].tolist():
            dropped[index] += 1
    return tuple(count / trajectory.num_action_tokens for count, trajectory in zip(dropped, batch.trajectories, strict=True))


def _prefixed(prefix: str, named: dict[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in named.items()}
