"""Settings of rewards, of the learner, and of what may be learned."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from online_sao.config.group import Group


class RewardSettings(Group):
    score_min: float = 0.0
    """Lowest score a client may send; mapped to reward −1."""
    score_max: float = 1.0
    """Highest score a client may send; mapped to reward +1."""
    metric_weights: dict[str, float] = Field(default_factory=lambda: {"score": 1.0})
    """Weight of each metric in the reward. Metrics not named weigh 0."""
    score_deadline_seconds: float = Field(24 * 3600.0, gt=0)
    """Seconds a completion waits for its score before it expires (or takes ``default_score``)."""
    default_score: float | None = None
    """Score given at the deadline to completions nobody scored. None: they expire untrained."""

    @model_validator(mode="after")
    def _range(self) -> RewardSettings:
        if not self.score_min < self.score_max:
            raise ValueError(f"reward.score_min ({self.score_min}) must be below reward.score_max ({self.score_max})")
        if self.default_score is not None and not self.score_min <= self.default_score <= self.score_max:
            raise ValueError(f"reward.default_score ({self.default_score}) must be from {self.score_min:g} to {self.score_max:g}")
        return self


RecipeName = Literal[
    "sao",
    "sao-k1",
    "sao-unfrozen-attention",
    "sao-frozen-trunk",
    "sao-no-skip-observation",
    "sao-step-average",
    "sao-last-token",
    "sao-no-value-pretraining",
    "sao-tapered",
    "vapo",
    "grpo",
    "grpo-dis",
    "running-mean",
    "ema",
    "batch-mean",
    "icepop",
    "ppo-decoupled",
]


class LearningSettings(Group):
    """None means: what the preset says (algorithm/recipes/)."""

    enabled: bool = True
    """Whether anything learns. False: scores are kept, and no learner is started or missed."""
    placement: Literal["child", "separate"] = "child"
    """Who keeps the learner running: the server, as its ``child``; or somebody else, by ``online-sao learn`` on the same database and data_dir."""
    recipe: RecipeName = "sao"
    """Which algorithm: ``sao``, or one of the rivals and ablations it can be measured against (docs/algorithm.md has the table)."""
    preset: Literal["live", "paper"] = "live"
    """Which column of numbers: ``live`` (measured for small live traffic) or ``paper`` (arXiv 2607.07508)."""
    threads: int = Field(0, ge=0)
    """Torch threads of the learner. 0: all cores. On a CPU each takes a microbatch of its own, where the batch is large enough."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the learner computes. With ``cuda`` every rank takes a GPU of its own, and gradients meet over NCCL."""
    ranks: int = Field(1, ge=1)
    """Processes that make each update together, each on its share of the batch (docs/operations.md)."""
    sharding: Literal["none", "fsdp"] = "none"
    """``none``: every rank holds the whole base model. ``fsdp``: its blocks are divided among the ranks, for models that do not fit one device."""
    rank_timeout_seconds: float = Field(300.0, gt=0)
    """Longest time a rank waits for another before it gives the learner up, to be started again. A rank whose process died is missed at once."""
    niceness: int = Field(5, ge=0, le=19)
    """Unix niceness of the learner, so that serving goes first where they share cores."""
    batch_size: int | None = Field(None, gt=0)
    """Trajectories in one update."""
    max_batch_age_seconds: float = Field(120.0, gt=0)
    """A smaller batch is taken once its oldest trajectory has waited this many seconds …"""
    min_batch_size: int = Field(4, gt=0)
    """… and it holds at least this many trajectories."""
    microbatch_tokens: int = Field(512, gt=0)
    """Most tokens packed into one forward pass. Longer trajectories get a pass of their own."""
    policy_learning_rate: float | None = Field(None, gt=0)
    """AdamW learning rate of the policy's adapter."""
    value_learning_rate: float | None = Field(None, gt=0)
    """AdamW learning rate of the value model's adapter and head."""
    value_updates: int | None = Field(None, ge=0)
    """K: value updates before each policy update."""
    value_ridge: float | None = Field(None, gt=0)
    """Of a value model fitted in closed form (sao-frozen-trunk): its ridge, in trajectories. Such a one has no learning rate and no number of
    updates."""
    value_half_life: float | None = Field(None, gt=0)
    """Trajectories after which one weighs half in that fit."""
    value_warmup_updates: int | None = Field(None, ge=0)
    """Value-only updates on the first batch, before the policy first moves."""
    value_pretraining_min_scores: int = Field(64, ge=0)
    """A value model that has learned nothing yet is first trained on logged scored interactions, where there are this many. 0: never."""
    value_pretraining_max_scores: int = Field(512, ge=2)
    """Newest scored interactions that value pretraining looks at."""
    epsilon_low: float | None = Field(None, gt=0)
    """Lower width of the DIS band, where a token is trained: 1 − epsilon_low < ratio < 1 + epsilon_high. In the PPO recipes, of the clip."""
    epsilon_high: float | None = Field(None, gt=0)
    """Upper width of the DIS band, or of the clip."""
    anchor_coefficient: float | None = Field(None, ge=0)
    """β of the KL(current ‖ base) anchor. 0: no anchor."""
    anchor_gain: float | None = Field(None, ge=0)
    """How much stronger the anchor gets for every unit of reward (its range is 2) that was lost lately."""
    anchor_reach: float | None = Field(None, gt=0)
    """Part of the farthest KL to the base of late from which anchor_gain acts in full; nearer to the base it fades with the square."""
    lambda_alpha: float | None = Field(None, gt=0)
    """How far credit reaches back, in lengths of the answer: λ = 1 − 1/(lambda_alpha · its action tokens). Large: every token gets all of it."""
    least_step: float | None = Field(None, gt=0, le=1)
    """Part of the policy's learning rate that is left while every answer is a full success. 1: every step is a full one."""
    max_policy_lag: int | None = Field(None, ge=0)
    """Updates between a trajectory's oldest token and its use, above which it expires."""
    lease_seconds: float = Field(600.0, gt=0)
    """A claimed batch returns to the queue when its learner has not renewed the claim for this long."""
    poll_seconds: float = Field(0.5, gt=0)
    """Seconds between two looks at the database while waiting."""
    keep_checkpoints: int = Field(5, ge=2)
    """Newest checkpoints kept on disk."""
    tensorboard: bool = True
    """Write every update's metrics as TensorBoard files under data_dir/tensorboard (a few kilobytes an update)."""
    seed: int = 0
    """Seed of adapter initialisation and of the learner's random state."""

    @model_validator(mode="after")
    def _ranks(self) -> LearningSettings:
        if self.sharding != "none" and self.ranks == 1:
            raise ValueError('learning.sharding = "fsdp" divides the model among learning.ranks processes: set learning.ranks above 1')
        return self

    @property
    def as_child(self) -> bool:
        """Whether the server starts a learner."""
        return self.enabled and self.placement == "child"


class GateSettings(Group):
    """An update outside any of these is discarded and its trajectories are rejected."""

    max_masked_fraction: float = Field(0.9, gt=0, le=1)
    """Largest fraction of action tokens DIS may mask."""
    max_kl_base: float = Field(1.0, gt=0)
    """Largest mean KL(current ‖ base), in nats a token."""
    min_entropy: float = Field(0.05, ge=0)
    """Smallest mean entropy of the policy, in nats a token."""
    max_grad_norm: float = Field(1000.0, gt=0)
    """Largest policy gradient norm before clipping."""


class ExplorationSettings(Group):
    """Lets clients that always send temperature 0 or top_p < 1 take part in learning, openly: the response's ``online_sao`` field and the
    logged interaction name the parameters really used."""

    neutralise_sampling: bool = False
    """Replace top_p by 1 and temperature 0 by ``temperature``."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Temperature used in place of 0."""
