"""What a recipe is: all numbers of one algorithm in one preset, and its two pieces, how tokens are weighed and how credit is given.

Owns the records those pieces are given and the meaning of every number. The learner follows a recipe and never asks which one it holds: what one
recipe does otherwise than another is a piece, a number or a flag here. Knows no algorithm.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from online_sao.algorithm.advantages import sample_mean, step_index
from online_sao.algorithm.anchoring import BaseDistance
from online_sao.algorithm.calibration import PastReturns, recent_mean, reward_drop
from online_sao.algorithm.importance import TokenWeights

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
    steps: Tensor | None = None
    """[T] long: which step (action, turn) an action token belongs to, from 0. None: each contiguous run of the mask is one."""
    group_id: int | None = None
    """Trajectories of one batch with the same number answer the same prompt. None: a group of its own."""

    @property
    def step_index(self) -> Tensor:
        return step_index(self.loss_mask) if self.steps is None else self.steps


@dataclass(frozen=True, slots=True)
class WeighInputs:
    """What a token treatment may look at: N action tokens of whole trajectories, all tensors [N], logprobs at each token's own temperature."""

    current_logprobs: Tensor
    """Of the policy that is being trained, as it stands."""
    behavior_logprobs: Tensor
    """Of what really sampled the token."""
    proximal_logprobs: Tensor
    """Of the policy as this update began. The same as current unless the update takes several steps (``Recipe.policy_minibatches``)."""
    advantages: Tensor
    """A clip looks at their sign."""
    trajectory_index: Tensor
    """Long: whose token it is; a rejection looks at a whole trajectory."""


class TokenWeigher(Protocol):
    def __call__(self, recipe: Recipe, inputs: WeighInputs, /) -> TokenWeights: ...


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
    """DIS: a token is trained where its ratio is above 1 − epsilon_low … PPO: a token of negative advantage is trained only there …"""
    epsilon_high: float
    """… and below 1 + epsilon_high, both strictly. … PPO: and one of positive advantage only here."""
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
    policy_minibatches: int = 1
    """Steps the policy takes in one update, each on its share of the microbatches (never more than there are). Above 1 the proximal policy's logprobs
    are computed first, which is one more forward pass."""
    sample_mean: bool = False
    """The policy loss is the mean over trajectories of each one's mean, so that a long one counts no more. False: the mean over tokens."""
    compares_groups: bool = False
    """Credit compares the trajectories of one ``group_id``: one that has none teaches nothing."""
    uses_values: bool = True
    """Whether credit looks at values. False: no value model is trained or asked, and every value is 0."""
    fresh_values: bool = True
    """Credit looks at values from after the K value updates (the paper). False: from before them. On a small batch the updates teach the critic this
    batch's own returns, which then cancel part of its advantages; and only the earlier values are what calibration has judged."""
    value_adapter: Literal["mlp", "all", "none"] = "mlp"
    """What of the value model learns beside its head: its MLPs (attention is frozen, as in the paper), attention too, or nothing: then it is linear
    in the frozen base's states, which the anchor needs anyway, and fitted in closed form (``ridge``). A state made under one is refused under
    another."""
    value_ridge: float = 0.2
    """Ridge of that fit, in trajectories (``ridge.Sums.fit``)."""
    value_half_life: float = 64.0
    """Trajectories after which one weighs half in that fit."""
    observation_values: bool = False
    """Credit is also given values read at the observation tokens between actions, where nothing teaches them anything. One more forward pass."""
    value_pretraining: bool = True
    """A value model that has learned nothing may be pretrained on logged scores before the policy moves."""
    proximal_ratio_low: float = 0.0
    """Decoupled PPO, IcePop: a token is trained where proximal / behavior is at least this …"""
    proximal_ratio_high: float = math.inf
    """… and at most this."""
    sequence_kl_limit: float = 3e-3
    """Largest mean Bernoulli KL(behavior ‖ current), in nats a token, at which a trajectory is trained. Used by sequence rejection alone."""
    baseline_window: int = 128
    """Trajectories in the running mean of returns. Used by running-mean credit alone."""
    ema_decay: float = 0.95
    """What an outcome still weighs one trajectory later, in the exponential mean of returns. Used by ema credit alone."""
    calibration_half_life: float = 64.0
    """Trajectories after which an outcome weighs half in the critic's slope. Used by calibrated credit alone."""
    baseline_half_life: float = 16.0
    """Trajectories after which an outcome weighs half in the level of the baseline, and in what the reward is "lately". Calibrated credit, anchor."""
    anchor_gain: float = 0.0
    """How much stronger the anchor gets for every unit of reward that was lost lately (``anchor_strength``). 0: always the same."""
    anchor_reach: float = 1.0
    """Part of the farthest KL to the base of late from which that gain acts in full. Nearer to the base it fades with the square of the KL."""
    least_step: float = 1.0
    """Part of policy_learning_rate that is left of a step while every answer is a full success (``step_size``). 1: every step is a full one."""
    gradient_clip: float = 1.0
    """Largest gradient norm that is applied, policy and value each."""
    adam_beta1: float = 0.9
    """Of both optimisers: what a step still remembers of the gradient before."""
    adam_beta2: float = 0.95
    weight_decay: float = 0.0
    max_policy_uses: int = 1
    """Policy updates one trajectory may take part in."""

    def __post_init__(self) -> None:
        positive = (
            "epsilon_low",
            "epsilon_high",
            "policy_learning_rate",
            "value_learning_rate",
            "value_ridge",
            "value_half_life",
            "batch_size",
            "lambda_alpha",
            "gradient_clip",
            "calibration_half_life",
            "baseline_half_life",
            "baseline_window",
            "anchor_reach",
            "sequence_kl_limit",
        )
        not_negative = (
            "value_updates",
            "value_warmup_updates",
            "anchor_coefficient",
            "anchor_gain",
            "max_policy_lag",
            "weight_decay",
            "proximal_ratio_low",
        )
        for field_name in positive:
            if not getattr(self, field_name) > 0:
                raise ValueError(f"{field_name} must be above 0, not {getattr(self, field_name)}")
        for field_name in not_negative:
            if not getattr(self, field_name) >= 0:
                raise ValueError(f"{field_name} must not be negative, not {getattr(self, field_name)}")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], not {self.gamma}")
        if self.observation_values and not self.uses_values:
            raise ValueError("observation_values needs uses_values")
        if self.observation_values and self.value_adapter == "none":
            raise ValueError("observation_values needs a value_adapter: what is pooled is read at action tokens alone")
        for field_name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, field_name) < 1:
                raise ValueError(f"{field_name} must be in [0, 1), not {getattr(self, field_name)}")
        if not 0 < self.least_step <= 1:
            raise ValueError(f"least_step must be in (0, 1], not {self.least_step}")
        if not 0 < self.ema_decay < 1:
            raise ValueError(f"ema_decay must be between 0 and 1, not {self.ema_decay}")
        if not self.proximal_ratio_low < self.proximal_ratio_high:
            raise ValueError(f"proximal_ratio_high must be above proximal_ratio_low ({self.proximal_ratio_low}), not {self.proximal_ratio_high}")
        for field_name in ("max_policy_uses", "policy_minibatches"):
            if not getattr(self, field_name) >= 1:
                raise ValueError(f"{field_name} must be at least 1, not {getattr(self, field_name)}")

    @property
    def pretrains_values(self) -> bool:
        return self.uses_values and self.value_pretraining

    def token_weights(self, inputs: WeighInputs) -> TokenWeights:
        """Weights of N action tokens. Whole trajectories only, so that a treatment may look across one."""
        return self.weigh(self, inputs)

    def advantages(self, trajectories: Sequence[CreditInputs], history: Sequence[PastReturns] = ()) -> tuple[Tensor, ...]:
        """advantages[T] of every trajectory of the batch, in the same order, detached, 0 off the mask. ``history``: earlier trajectories, oldest
        first, none of this batch."""
        found = self.credit(self, trajectories, history)
        return sample_mean(found, [trajectory.loss_mask for trajectory in trajectories]) if self.sample_mean else found

    def step_size(self, returns: Sequence[float]) -> float:
        """Learning rate of this update's policy steps: policy_learning_rate · max(least_step, min(1, 1 − mean return lately)).

        ``returns``: of the latest trajectories, this batch's among them, oldest first.

        Adam's steps are as long where nothing is left to gain as where everything is, and are then made of noise: they carry a policy away that has
        arrived. No return is above 1, so 1 − mean is the most that any step could gain.
        """
        gain = 1.0 - (recent_mean(returns, self.baseline_half_life) or 0.0)
        return self.policy_learning_rate * max(self.least_step, min(1.0, gain))

    def anchor_strength(self, returns: Sequence[float], distance: BaseDistance) -> float:
        """β of this update: anchor_coefficient · (1 + anchor_gain · reward_drop · distance.pull(anchor_reach)).

        ``returns``: of the latest trajectories, this batch's among them, oldest first. ``distance``: as the updates before this one have met it.

        The anchor lets the policy leave the base for what reward pays. When what was learned is no longer wanted, its payment is gone, and often
        all variety with it: every answer scores the same low, no advantage points anywhere. Back near the base the new preference can be met
        again; so the pull grows with the loss, and fades as the slow mean forgets. It must fade with the way back too: a policy that has arrived
        would be held there, since nothing it could learn would outweigh the pull.
        """
        drop = reward_drop(returns, self.baseline_half_life, self.calibration_half_life)
        return self.anchor_coefficient * (1.0 + self.anchor_gain * drop * distance.pull(self.anchor_reach))
