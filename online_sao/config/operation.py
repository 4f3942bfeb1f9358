"""Settings of what the service does by itself: what it removes, evaluates and warns of."""

from __future__ import annotations

from pydantic import Field

from online_sao.config.group import Group


class RetentionSettings(Group):
    """What is removed by itself. The base model, the version that serves, what the learner stands on, and whatever is newer than either are kept."""

    keep_versions: int = Field(20, ge=2)
    """Newest policy versions whose files stay in the policy store: how far one can roll back."""
    keep_every: int = Field(10, ge=0)
    """Of the older ones, the files of every version whose number this divides stay too. 0: of none."""
    interactions_days: float | None = Field(None, gt=0)
    """Days after which a logged interaction loses its texts and tokens, as if erased (counts and scores stay). None: never."""


class EvaluationSettings(Group):
    """Fixed prompts and a fixed text, answered and predicted by the served version: whether it is still able, beside whether it is liked."""

    enabled: bool = True
    """Evaluate versions, in the background, while the engine has room."""
    min_interval_seconds: float = Field(60.0, ge=0)
    """Seconds from one evaluation to the next. Where versions come faster, the newest is evaluated and those between are skipped."""


class AlarmSettings(Group):
    """Bounds beyond which an alarm is raised; it clears when its condition is gone."""

    poll_seconds: float = Field(5.0, gt=0)
    """Seconds between two looks at all conditions."""
    score_drop_min_scores: int = Field(16, ge=2)
    """Scores on each side before the newest versions are compared with those before them."""
    score_drop_errors: float = Field(3.0, gt=0)
    """k: the mean score fell if the fall exceeds k standard errors of the difference (Welch) …"""
    score_drop_minimum: float = Field(0.1, ge=0)
    """… and this many points of score."""
    auto_rollback: bool = False
    """Roll back to the version before, by itself, when the score_drop alarm is raised."""
    auto_rollback_resume: bool = False
    """Let the learner go on after an automatic rollback. False: it stays paused until a person resumes it."""
    length_collapse: float = Field(0.33, gt=0, lt=1)
    """Mean answer length as a fraction of the base's, at or below which it has collapsed."""
    length_explosion: float = Field(3.0, gt=1)
    """Mean answer length as a multiple of the base's, at or above which it has exploded."""
    distinct_2_fraction: float = Field(0.7, gt=0, le=1)
    """Smallest distinct-2 on the fixed prompts, as a fraction of the base's."""
    perplexity_factor: float = Field(1.5, gt=1)
    """Largest perplexity of the fixed text, as a multiple of the base's."""
    kl_base: float = Field(0.5, gt=0)
    """Largest KL(current ‖ base) of an update, in nats a token. Below the gate's bound, so that it warns first."""
    learner_silent_seconds: float = Field(60.0, gt=0)
    """Longest time without a sign of life from a learner that should run, in seconds."""
    disk_free_megabytes: float = Field(500.0, gt=0)
    """Least free space on the disk of the data folder, in MB."""
