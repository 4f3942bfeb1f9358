"""SAO (arXiv 2607.07508), as published and as measured for small live traffic: DIS, and a value model for the baseline.

Owns both columns of numbers, which every rival takes over but for the pieces it replaces, and credit against a critic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from online_sao.algorithm.advantages import length_adaptive_lambda, monte_carlo_returns, skip_observation_gae
from online_sao.algorithm.calibration import PastReturns, calibration_slope, recent_mean
from online_sao.algorithm.importance import TokenWeights, dis
from online_sao.algorithm.recipes.definition import CreditInputs, Recipe, WeighInputs


class CriticEstimate(Protocol):
    """advantages[T] of one trajectory against its values."""

    def __call__(self, recipe: Recipe, trajectory: CreditInputs, /) -> Tensor: ...


def dis_weights(recipe: Recipe, inputs: WeighInputs) -> TokenWeights:
    """DIS with the recipe's band: token by token, whatever the advantage or the trajectory."""
    return dis(inputs.current_logprobs, inputs.behavior_logprobs, recipe.epsilon_low, recipe.epsilon_high)


def skip_observation(recipe: Recipe, trajectory: CreditInputs) -> Tensor:
    """Skip-observation GAE, λ adapted to the trajectory's own action tokens."""
    lam = length_adaptive_lambda(int(trajectory.loss_mask.sum()), recipe.lambda_alpha)
    return skip_observation_gae(trajectory.rewards, trajectory.values, trajectory.loss_mask, recipe.gamma, lam)


def critic_advantages(
    recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = (), *, estimate: CriticEstimate = skip_observation
) -> tuple[Tensor, ...]:
    """Advantages against the value model as it stands, by ``estimate``. Not normalised: a spread can vanish."""
    return tuple(estimate(recipe, trajectory) for trajectory in trajectories)


def calibrated_critic_advantages(
    recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = (), *, estimate: CriticEstimate = skip_observation
) -> tuple[Tensor, ...]:
    """``critic_advantages`` with V' = level + β · V in the place of V: the critic is used as far as it explained recent returns (β,
    ``calibration_slope``), and the level is the mean of what is left, G − β · V, over the batch's *other* trajectories and the latest earlier ones:
    it follows a shift of preference within a batch, and depends on no action of its own trajectory."""
    slope = calibration_slope(history, recipe.calibration_half_life)
    past = [_mean_residual(returns, values, slope) for returns, values in history]
    own = [_mean_residual(action_returns(recipe, trajectory), trajectory.values[trajectory.loss_mask], slope) for trajectory in trajectories]
    calibrated = []
    for index, trajectory in enumerate(trajectories):
        level = recent_mean(past, recipe.baseline_half_life, own[:index] + own[index + 1 :])
        calibrated.append(dataclasses.replace(trajectory, values=(level or 0.0) + slope * trajectory.values))
    return critic_advantages(recipe, calibrated, estimate=estimate)


def action_returns(recipe: Recipe, trajectory: CreditInputs) -> Tensor:
    """The λ = 1 returns [l] of its action tokens; the first of them is what the whole trajectory earned."""
    return monte_carlo_returns(trajectory.rewards, trajectory.loss_mask, recipe.gamma)[trajectory.loss_mask]


def _mean_residual(returns: Tensor, values: Tensor, slope: float) -> float:
    return float((returns - slope * values).mean())


SAO_PAPER = Recipe(
    name="sao",
    preset="paper",
    weigh=dis_weights,
    credit=critic_advantages,
    epsilon_low=0.3,
    epsilon_high=5.0,
    policy_learning_rate=1e-6,
    value_learning_rate=5e-6,
    batch_size=128,
    value_updates=2,
    value_warmup_updates=10,
    anchor_coefficient=0.0,
    max_policy_lag=32,
)
SAO_LIVE = dataclasses.replace(
    SAO_PAPER,
    preset="live",
    credit=calibrated_critic_advantages,
    fresh_values=False,
    policy_learning_rate=1.5e-3,
    value_learning_rate=1e-3,
    batch_size=8,
    value_warmup_updates=2,
    anchor_coefficient=0.1,
    anchor_gain=30.0,
    least_step=0.2,
)
RECIPES = (SAO_LIVE, SAO_PAPER)
