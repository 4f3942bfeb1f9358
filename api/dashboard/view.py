"""What the page shows at one moment, as records. Owns their shape only; how they are filled is in source.py, how they are drawn in panels.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """One current score. ``at`` in Unix seconds; ``policy_version``: the newest that wrote the scored answer."""

    at: float
    value: float
    policy_version: int


@dataclass(frozen=True, slots=True)
class LearnerView:
    """``heartbeat_age`` in seconds; None: it has never run."""

    phase: str
    detail: str | None
    paused: bool
    pause_reason: str | None
    heartbeat_age: float | None
    head_version: int
    head_update: int


@dataclass(frozen=True, slots=True)
class UpdateView:
    """The newest update, accepted or not. ``age`` and ``seconds`` (its duration) in seconds."""

    number: int
    accepted: bool
    reason: str | None
    policy_version: int | None
    metrics: Mapping[str, float]
    age: float
    seconds: float


@dataclass(frozen=True, slots=True)
class VersionView:
    version: int
    parent: int | None
    state: str
    update: int
    reason: str | None
    age: float
    activated_at: float | None


@dataclass(frozen=True, slots=True)
class SwapView:
    policy_version: int
    pause_seconds: float
    total_seconds: float
    requests_in_flight: int
    recomputed_tokens: int
    age: float


@dataclass(frozen=True, slots=True)
class View:
    """Everything, read together. Lists are newest first, ``scores`` oldest first; ``total_scores`` counts the ones not shown too."""

    taken_at: float
    ready: bool
    serving_version: int | None
    running: int
    waiting: int
    trajectories: Mapping[str, int]
    learner: LearnerView
    update: UpdateView | None
    versions: tuple[VersionView, ...]
    swaps: tuple[SwapView, ...]
    scores: tuple[ScorePoint, ...]
    total_scores: int
