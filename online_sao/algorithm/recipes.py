"""Named recipes: which pieces make an update, and with which numbers. Owns every default of the algorithm; the learner only follows a recipe.

A recipe is data and two functions. Another algorithm is another pair of functions (how tokens are weighed, how credit is given) with the same
signatures, registered in ``_RECIPES``: the learner calls ``recipe.token_weights(…)`` and ``recipe.advantages(…)`` and never asks which one it holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from online_sao.algorithm.advantages import length_adaptive_lambda, monte_carlo_returns, skip_observation_gae
from online_sao.algorithm.calibration import PastReturns, calibration_slope, recent_mean, reward_drop
from online_sao.algorithm.importance import TokenWeights, dis

Preset = Literal["live", "paper"]


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """What an advantage estimator may look at, for one trajectory of T tokens (or of its action tokens alone, with a mask of True)."""

    rewards: Tensor
    """[T] float."""
    values: Tensor
    """[T] float: V(a_t), from after or before the K value updates (``Recipe.fresh_values``)."""
    loss_mask: Tensor
    """[T] bool: True on action tokens."""


class TokenWeigher(Protocol):
    """Weighs N action tokens of whole trajectories. ``advantages`` and ``trajectory_index`` [N] are there for treatments that need them
    (a clip depends on the advantage's sign, a sequence rejection on the token's trajectory)."""

    def __call__(
        self, recipe: Recipe, current_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, trajectory_index: Tensor, /
    ) -> TokenWeights: ...


class AdvantageEstimator(Protocol):
    """Gives credit to a whole batch at once (some baselines compare trajectories), in sight of what earlier ones earned (``history``, oldest
    first). Returns one advantages[T] per trajectory, 0 off its mask."""

    def __call__(self, recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns], /) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All numbers of one algorithm in one preset, and its two pieces. Raises ValueError if a number cannot work."""

    name: str
    preset: Preset
    weigh: TokenWeigher = dataclasses.field(repr=False)
    """How action tokens are weighed. Call it through ``token_weights``."""
    credit: AdvantageEstimator = dataclasses.field(repr=False)
    """How credit is given. Call it through ``advantages``."""
    epsilon_low: float
    """DIS: a token is trained where its ratio is above 1 − epsilon_low …"""
    epsilon_high: float
    """… and below 1 + epsilon_high, both strictly."""
    policy_learning_rate: float
    value_learning_rate: float
    batch_size: int
    """Trajectories in one update."""
    value_updates: int
    """K: full-batch value updates before each policy update."""
    value_warmup_updates: int
    """Value-only updates before the policy first moves. They consume no trajectory."""
    anchor_coefficient: float
    """β of the mean KL(current ‖ base). 0: no anchor."""
    max_policy_lag: int
    """Updates between the sampling of a trajectory's oldest token and its use, above which it expires."""
    gamma: float = 1.0
    """Discount per action token."""
    lambda_alpha: float = 1.5
    """α of λ_policy = max(0, 1 − 1/(α·l))."""
    uses_values: bool = True
    """Whether credit looks at values. False: no value model is trained or asked, and every value is 0."""
    fresh_values: bool = True
    """Credit looks at values from after the K value updates (the paper). False: from before them. On a small batch the updates teach the critic this
    batch's own returns, which then cancel part of its advantages; and only the earlier values are what calibration has judged."""
    baseline_window: int = 128
    """Trajectories in the running mean of returns. Used by running-mean credit alone."""
    calibration_half_life: float = 64.0
    """Trajectories after which an outcome weighs half in the critic's slope. Used by calibrated credit alone."""
    baseline_half_life: float = 16.0
    """Trajectories after which an outcome weighs half in the level of the baseline, and in what the reward is "lately". Calibrated credit, anchor."""
    anchor_gain: float = 0.0
    """How much stronger the anchor gets for every unit of reward that was lost lately (``anchor_strength``). 0: always the same."""
    anchor_reach: float = 0.5
    """KL to the base, in nats a token, from which that gain acts in full. Nearer to the base it fades with the square of the KL."""
    gradient_clip: float = 1.0
    """Largest gradient norm that is applied, policy and value each."""
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_policy_uses: int = 1
    """Policy updates one trajectory may take part in."""

    def __post_init__(self) -> None:
        positive = (
            "epsilon_low",
            "epsilon_high",
            "policy_learning_rate",
            "value_learning_rate",
            "batch_size",
            "lambda_alpha",
            "gradient_clip",
            "calibration_half_life",
            "baseline_half_life",
            "baseline_window",
            "anchor_reach",
        )
        not_negative = ("value_updates", "value_warmup_updates", "anchor_coefficient", "anchor_gain", "max_policy_lag", "weight_decay")
        for field_name in positive:
            if not getattr(self, field_name) > 0:
                raise ValueError(f"{field_name} must be above 0, not {getattr(self, field_name)}")
        for field_name in not_negative:
            if not getattr(self, field_name) >= 0:
                raise ValueError(f"{field_name} must not be negative, not {getattr(self, field_name)}")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], not {self.gamma}")
        if self.max_policy_uses < 1:
            raise ValueError(f"max_policy_uses must be at least 1, not {self.max_policy_uses}")

    def token_weights(self, current_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, trajectory_index: Tensor) -> TokenWeights:
        """Weights of N action tokens, all four inputs [N]. Whole trajectories only, so that a treatment may look across one."""
        return self.weigh(self, current_logprobs, behavior_logprobs, advantages, trajectory_index)

    def advantages(self, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
        """advantages[T] of every trajectory of the batch, in the same order, detached, 0 off the mask. ``history``: earlier trajectories, oldest
        first, none of this batch."""
        return self.credit(self, trajectories, history)

    def anchor_strength(self, returns: Sequence[float], kl_base: float) -> float:
        """β of this update: anchor_coefficient · (1 + anchor_gain · reward_drop · min(1, kl_base / anchor_reach)²).

        ``returns``: of the latest trajectories, this batch's among them, oldest first. ``kl_base``: mean KL(policy ‖ base) when it was last
        measured, in nats a token.

        The anchor lets the policy leave the base for what reward pays. When what was learned is no longer wanted, its payment is gone, and often
        all variety with it: every answer scores the same low, no advantage points anywhere. Back near the base the new preference can be met
        again; so the pull grows with the loss, and fades as the slow mean forgets. It must fade with the way back too: a policy that has arrived
        would be held there, since nothing it could learn would outweigh the pull.
        """
        drop = reward_drop(returns, self.baseline_half_life, self.calibration_half_life)
        return self.anchor_coefficient * (1.0 + self.anchor_gain * drop * min(1.0, max(0.0, kl_base) / self.anchor_reach) ** 2)


def dis_weights(recipe: Recipe, current_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, trajectory_index: Tensor) -> TokenWeights:
    """DIS with the recipe's band: token by token, whatever the advantage or the trajectory."""
    return dis(current_logprobs, behavior_logprobs, recipe.epsilon_low, recipe.epsilon_high)


def critic_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """Skip-observation GAE against the value model, λ adapted to each trajectory's own length. Not normalised: a spread can vanish."""
    return tuple(
        skip_observation_gae(
            trajectory.rewards,
            trajectory.values,
            trajectory.loss_mask,
            recipe.gamma,
            length_adaptive_lambda(int(trajectory.loss_mask.sum()), recipe.lambda_alpha),
        )
        for trajectory in trajectories
    )


def calibrated_critic_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """``critic_advantages`` with V' = level + β · V in the place of V: the critic is used as far as it explained recent returns (β,
    ``calibration_slope``), and the level is the mean of what is left, G − β · V, over the batch's *other* trajectories and the latest earlier ones:
    it follows a shift of preference within a batch, and depends on no action of its own trajectory."""
    slope = calibration_slope(history, recipe.calibration_half_life)
    past = [_mean_residual(returns, values, slope) for returns, values in history]
    own = [_mean_residual(_returns(recipe, trajectory), trajectory.values[trajectory.loss_mask], slope) for trajectory in trajectories]
    calibrated = []
    for index, trajectory in enumerate(trajectories):
        level = recent_mean(past, recipe.baseline_half_life, own[:index] + own[index + 1 :])
        calibrated.append(dataclasses.replace(trajectory, values=(level or 0.0) + slope * trajectory.values))
    return critic_advantages(recipe, calibrated)


def _mean_residual(returns: Tensor, values: Tensor, slope: float) -> float:
    return float((returns - slope * values).mean())


def running_mean_advantages(recipe: Recipe, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
    """``critic_advantages`` against one constant: the mean first-token return of the latest ``baseline_window`` trajectories before this batch
    (of this batch, where there are none)."""
    past = [returns for returns, _ in history[-recipe.baseline_window :]] or [_returns(recipe, trajectory) for trajectory in trajectories]
    first = torch.stack([returns[0] for returns in past])
    finite = first[torch.isfinite(first)]
    mean = float(finite.mean()) if len(finite) else 0.0
    return critic_advantages(
        recipe, [dataclasses.replace(trajectory, values=torch.full_like(trajectory.values, mean)) for trajectory in trajectories]
    )


def _returns(recipe: Recipe, trajectory: CreditInputs) -> Tensor:
    return monte_carlo_returns(trajectory.rewards, trajectory.loss_mask, recipe.gamma)[trajectory.loss_mask]


_SAO_PAPER = Recipe(
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
_SAO_LIVE = dataclasses.replace(
    _SAO_PAPER,
    preset="live",
    credit=calibrated_critic_advantages,
    fresh_values=False,
    policy_learning_rate=1.5e-3,
    value_learning_rate=1e-3,
    batch_size=8,
    value_warmup_updates=2,
    anchor_coefficient=0.1,
    anchor_gain=30.0,
)
_RUNNING_MEAN_LIVE = dataclasses.replace(
    _SAO_LIVE, name="running-mean", credit=running_mean_advantages, uses_values=False, value_updates=0, value_warmup_updates=0
)
_RECIPES: dict[tuple[str, str], Recipe] = {(recipe.name, recipe.preset): recipe for recipe in (_SAO_PAPER, _SAO_LIVE, _RUNNING_MEAN_LIVE)}


def number_names() -> dict[str, bool]:
    """The numbers of a recipe that may be replaced one by one → whether each is a whole number."""
    return {field.name: field.type == "int" for field in dataclasses.fields(Recipe) if field.type in ("int", "float", "bool")}


def recipe(name: str = "sao", preset: str = "live", **overrides: Any) -> Recipe:
    """The recipe ``name`` in the numbers of ``preset``. ``overrides`` replace single fields of Recipe; None means the preset's own.

    Raises ValueError for an unknown recipe or preset or a number that cannot work, TypeError for an unknown field.
    """
    if (name, preset) not in _RECIPES:
        known = ", ".join(f"{known_name}/{known_preset}" for known_name, known_preset in sorted(_RECIPES))
        raise ValueError(f"no recipe {name}/{preset}; known: {known}")
    return dataclasses.replace(_RECIPES[name, preset], **{field_name: value for field_name, value in overrides.items() if value is not None})
