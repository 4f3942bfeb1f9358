"""The frozen records that travel between rooms. They own the words of the project; they know nothing of databases, engines or HTTP.

Dimension letters: B trajectory, T token of a trajectory, V vocabulary. All times are Unix seconds (float, UTC).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abandoned", "error"]
"""``stop``: end-of-turn token or stop string; ``length``: token limit; ``abandoned``: the client left; ``error``: the engine failed."""


class TrajectoryState(StrEnum):
    PENDING = "pending"
    READY = "ready"
    CLAIMED = "claimed"
    TRAINED = "trained"
    REJECTED = "rejected"
    EXPIRED = "expired"
    NOT_TRAINABLE = "not_trainable"


UNUSED_STATES = (TrajectoryState.EXPIRED, TrajectoryState.REJECTED, TrajectoryState.NOT_TRAINABLE)
"""Ends in which an answer has not moved the policy."""


class VersionState(StrEnum):
    STAGED = "staged"
    VERIFIED = "verified"
    ACTIVE = "active"
    RETIRED = "retired"
    FAILED = "failed"


class InteractionStatus(StrEnum):
    GENERATING = "generating"
    COMPLETED = "completed"
    ABANDONED = "abandoned"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class ReceiptStatus(StrEnum):
    """What became of a score. Derived from the states above, never stored."""

    RECEIVED = "received"
    QUEUED = "queued"
    TRAINED = "trained"
    LIVE = "live"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    NOT_TRAINABLE = "not_trainable"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What the engine really sampled with. ``temperature`` 0 is greedy. ``stop`` strings are matched on decoded text."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()

    def not_trainable_reason(self) -> str | None:
        """Why a completion sampled this way cannot train the policy, or None if it can (docs/design.md §5, Behavior)."""
        if self.temperature == 0.0:
            return "greedy_sampling"
        if self.top_p < 1.0:
            return "truncated_distribution"
        return None


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Completion tokens [start, end) were sampled from ``policy_version``."""

    start: int
    end: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response. ``behavior_logprobs[t]`` is the engine's own log-probability of ``token_ids[t]`` at sampling, under the
    distribution really sampled from (temperature applied). The end-of-turn token, if sampled, is the last token id."""

    token_ids: tuple[int, ...]
    behavior_logprobs: tuple[float, ...]
    version_spans: tuple[VersionSpan, ...]
    text: str
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Interaction:
    """A logged completion: what was asked, what was sampled, and how."""

    completion_id: str
    choice: int
    prompt_ids: tuple[int, ...]
    completion: Completion
    sampling: SamplingParams
    messages: tuple[dict[str, Any], ...] = ()
    user: str | None = None
    episode_id: str | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """One score, as given. ``metric`` "score" is the default; ``value`` is in the configured score range."""

    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Token-aligned training record of one episode (one or more actions, observations between them).

    All sequences have length T. ``loss_mask[t]`` is True where token t was sampled by the policy (an action token); prompt and
    observation tokens are False and carry behavior_logprob 0, reward 0 and policy_version -1. ``temperatures[t]`` is the one that
    token was sampled at. Token 0 is never an action token: an action's first token is produced at the position before it.
    """

    trajectory_id: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    behavior_logprobs: tuple[float, ...]
    rewards: tuple[float, ...]
    temperatures: tuple[float, ...]
    policy_versions: tuple[int, ...]
    truncated: bool = False
    group_id: int | None = None
    """Trajectories of a batch with the same number answer the same prompt (group-normalised credit compares them). None: a group of its own."""

    @property
    def num_action_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def oldest_policy_version(self) -> int:
        """The version that sampled the oldest action token: the trajectory's lag is counted from it."""
        return min(v for v, m in zip(self.policy_versions, self.loss_mask, strict=True) if m)

    @property
    def reward(self) -> float:
        return sum(self.rewards)


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One published (or staged) version of the policy. ``version`` 0 is the base model and has no files."""

    version: int
    parent: int | None
    lineage_epoch: int
    state: VersionState
    update: int
    path: str | None = None
    served_digest: tuple[float, ...] = field(default=(), repr=False)
    """Expected fingerprint of the served weights; see models.fingerprint."""
