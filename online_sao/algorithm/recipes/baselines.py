"""Rivals with no value model and no group: the baseline is one number, made of what trajectories earned. Owns their credit and their numbers."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from online_sao.algorithm.advantages import batch_centred
from online_sao.algorithm.calibration import PastReturns, recent_mean
from online_sao.algorithm.importance import TokenWeights, sequence_rejection
from online_sao.algorithm.recipes.definition import CreditInputs, Recipe, WeighInputs
from online_sao.algorithm.recipes.sao import SAO_LIVE, SAO_PAPER, action_returns, critic_advantages

NO_CRITIC: dict[str, Any] = {"uses_values": False, "value_updates": 0, "value_warmup_updates": 0}
"""What a recipe replaces that asks no value model."""


def running_mean_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """``critic_advantages`` against one constant: the mean first-token return of the latest ``baseline_window`` trajectories before this batch
    (of this batch, where there are none). The rival of arXiv 2607.07508, §4.5."""
    past = outcomes(recipe, trajectories, history[-recipe.baseline_window :])
    finite = [value for value in past if math.isfinite(value)]
    return _against(recipe, trajectories, statistics.fmean(finite) if finite else 0.0)


def ema_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """``critic_advantages`` against one constant, the exponential mean of first-token returns before this batch (of it, where there are none):

        b = Σ_k d^k G_k / Σ_k d^k,   d = ema_decay, k = 0 for the latest trajectory

    that is b ← d · b + (1 − d) · G with the bias of its start divided out."""
    past = outcomes(recipe, trajectories, history)
    return _against(recipe, trajectories, recent_mean(past, math.log(0.5) / math.log(recipe.ema_decay)) or 0.0)


def batch_mean_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """What the trajectory earned less the mean of the batch, its own among them, on every action token (FlashREINFORCE)."""
    return outcome_advantages(trajectories, batch_centred(outcomes(recipe, trajectories, ())))


def sequence_weights(recipe: Recipe, inputs: WeighInputs) -> TokenWeights:
    """The plain ratio, or nothing for a whole trajectory that has drifted too far."""
    return sequence_rejection(inputs.current_logprobs, inputs.behavior_logprobs, inputs.trajectory_index, recipe.sequence_kl_limit)


def outcomes(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns]) -> list[float]:
    """What each trajectory of ``history`` earned (its first-token return), oldest first; of the batch, where there is no history."""
    return [float(returns[0]) for returns in ([past for past, _ in history] or [action_returns(recipe, trajectory) for trajectory in trajectories])]


def outcome_advantages(trajectories: Sequence[CreditInputs], numbers: Sequence[float]) -> tuple[Tensor, ...]:
    """One advantage a trajectory, the same on all of its action tokens."""
    return tuple(number * trajectory.loss_mask.to(trajectory.rewards.dtype) for number, trajectory in zip(numbers, trajectories, strict=True))


def _against(recipe: Recipe, trajectories: Sequence[CreditInputs], baseline: float) -> tuple[Tensor, ...]:
    return critic_advantages(recipe, [dataclasses.replace(item, values=torch.full_like(item.values, baseline)) for item in trajectories])


_BATCH_MEAN: dict[str, Any] = {"name": "batch-mean", "weigh": sequence_weights, "credit": batch_mean_advantages, "sample_mean": True, **NO_CRITIC}
"""FlashREINFORCE: token importance weights, a sequence trust region of 3e-3 (``sequence_kl_limit``), one update a batch, the mean over samples."""

RECIPES = (
    *(dataclasses.replace(sao, name="running-mean", credit=running_mean_advantages, **NO_CRITIC) for sao in (SAO_LIVE, SAO_PAPER)),
    dataclasses.replace(SAO_LIVE, name="ema", credit=ema_advantages, **NO_CRITIC),
    *(dataclasses.replace(sao, **_BATCH_MEAN) for sao in (SAO_LIVE, SAO_PAPER)),
)
