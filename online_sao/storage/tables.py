"""The database schema. Owns column names and types; the migrations in migrations/ create exactly this. Knows nothing of what the rows mean to
the cycle.

Times are Unix seconds (float). Token ids and logprobs are JSON arrays. States are the values of the enums in online_sao.types.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, Float, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012
    # Every constraint has a name that is the same on SQLite and PostgreSQL: a later migration can only change what it can name.
    metadata = MetaData(
        naming_convention={
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class InteractionRow(Base):
    """One sampled choice. Committed as ``generating`` before the first byte is answered, completed before the last."""

    __tablename__ = "interactions"
    __table_args__ = (
        UniqueConstraint("completion_id", "choice"),
        Index("ix_interactions_created_at_status", "created_at", "status"),
        Index("ix_interactions_status", "status"),
        Index("ix_interactions_user", "user"),
        Index("ix_interactions_policy_version", "policy_version"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    completion_id: Mapped[str] = mapped_column(String(64))
    choice: Mapped[int] = mapped_column(Integer)
    request_id: Mapped[str] = mapped_column(String(128))
    episode_id: Mapped[str | None] = mapped_column(String(256))
    user: Mapped[str | None] = mapped_column(String(256))
    model: Mapped[str] = mapped_column(String(128))
    status: Mapped[str] = mapped_column(String(16))
    stored: Mapped[bool] = mapped_column(Boolean)
    """False for ``store: false``: messages, tokens and texts stay empty."""
    request_metadata: Mapped[dict[str, Any]] = mapped_column(JSON)
    messages: Mapped[list[Any] | None] = mapped_column(JSON)
    sampling: Mapped[dict[str, Any]] = mapped_column(JSON)
    """What was really sampled with: fields of SamplingParams, plus ``requested`` where exploration settings replaced any."""
    prompt_ids: Mapped[list[Any] | None] = mapped_column(JSON)
    token_ids: Mapped[list[Any] | None] = mapped_column(JSON)
    behavior_logprobs: Mapped[list[Any] | None] = mapped_column(JSON)
    version_spans: Mapped[list[Any] | None] = mapped_column(JSON)
    """[[start, end, policy_version], …] over token_ids."""
    text: Mapped[str | None] = mapped_column(Text)
    finish_reason: Mapped[str | None] = mapped_column(String(16))
    policy_version: Mapped[int] = mapped_column(Integer)
    """The version serving when the request was admitted; the newest one that produced a token, once completed."""
    prompt_tokens: Mapped[int] = mapped_column(Integer)
    completion_tokens: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float)
    first_token_at: Mapped[float | None] = mapped_column(Float)
    completed_at: Mapped[float | None] = mapped_column(Float)
    erased_at: Mapped[float | None] = mapped_column(Float)
    """When its texts and tokens were removed on request or by retention. Then ``stored`` is False too."""
    served_by: Mapped[str | None] = mapped_column(String(128))
    """The serving process that generates or generated it, as it names itself in leases."""


class FeedbackRow(Base):
    """One accepted score. Never edited: a later score for the same target and metric is a new row; the newest that ``counts`` is the current one."""

    __tablename__ = "feedback"
    __table_args__ = (
        Index("ix_feedback_interaction_metric", "interaction_id", "metric"),
        Index("ix_feedback_created_at", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    interaction_id: Mapped[int] = mapped_column(ForeignKey("interactions.id"))
    metric: Mapped[str] = mapped_column(String(64))
    value: Mapped[float] = mapped_column(Float)
    comment: Mapped[str | None] = mapped_column(Text)
    idempotency_key: Mapped[str | None] = mapped_column(String(256), unique=True)
    body_digest: Mapped[str] = mapped_column(String(64))
    """sha256 of the canonical request body: the same idempotency key with another body is a conflict."""
    superseded_by: Mapped[str | None] = mapped_column(String(64))
    """Id of the newer score for the same target and metric that took this one's place."""
    refused_reason: Mapped[str | None] = mapped_column(String(64))
    """Why this score could not count when it arrived (already_used, store_false, …). Null: it counts."""
    created_at: Mapped[float] = mapped_column(Float)


class TrajectoryRow(Base):
    """The training side of one interaction, made when its completion is completed."""

    __tablename__ = "trajectories"
    __table_args__ = (
        Index("ix_trajectories_state_ready_at", "state", "ready_at"),
        Index("ix_trajectories_state_deadline", "state", "deadline_at"),
        Index("ix_trajectories_claim_id", "claim_id"),
        Index("ix_trajectories_update", "update_number"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    interaction_id: Mapped[int] = mapped_column(ForeignKey("interactions.id"), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(Text)
    oldest_policy_version: Mapped[int] = mapped_column(Integer)
    reward: Mapped[float | None] = mapped_column(Float)
    created_at: Mapped[float] = mapped_column(Float)
    deadline_at: Mapped[float] = mapped_column(Float)
    ready_at: Mapped[float | None] = mapped_column(Float)
    claim_id: Mapped[str | None] = mapped_column(String(64))
    claim_expires_at: Mapped[float | None] = mapped_column(Float)
    update_number: Mapped[int | None] = mapped_column(ForeignKey("updates.update_number"))
    policy_lag: Mapped[int | None] = mapped_column(Integer)
    masked_fraction: Mapped[float | None] = mapped_column(Float)
    policy_uses: Mapped[int] = mapped_column(Integer, server_default="0")
    """Policy updates this trajectory was part of. Never above the recipe's ``max_policy_uses``."""
    updated_at: Mapped[float] = mapped_column(Float)


class UpdateRow(Base):
    """One SAO update that reached its commit point (or was rejected by a gate: then it has no policy version)."""

    __tablename__ = "updates"

    update_number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    lineage_epoch: Mapped[int] = mapped_column(Integer)
    claim_id: Mapped[str] = mapped_column(String(64), unique=True)
    policy_version: Mapped[int | None] = mapped_column(Integer)
    parent_version: Mapped[int] = mapped_column(Integer)
    accepted: Mapped[bool] = mapped_column(Boolean)
    reason: Mapped[str | None] = mapped_column(Text)
    metrics: Mapped[dict[str, Any]] = mapped_column(JSON)
    """Flat metric name → number, names of docs/design.md §4."""
    ratio_histogram: Mapped[dict[str, Any]] = mapped_column(JSON)
    started_at: Mapped[float] = mapped_column(Float)
    finished_at: Mapped[float] = mapped_column(Float)


class PolicyVersionRow(Base):
    __tablename__ = "policy_versions"
    __table_args__ = (Index("ix_policy_versions_state", "state"),)

    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    parent: Mapped[int | None] = mapped_column(Integer)
    lineage_epoch: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(Text)
    update_number: Mapped[int] = mapped_column(Integer)
    path: Mapped[str | None] = mapped_column(Text)
    served_digest: Mapped[list[Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)
    activated_at: Mapped[float | None] = mapped_column(Float)
    retired_at: Mapped[float | None] = mapped_column(Float)
    files_removed_at: Mapped[float | None] = mapped_column(Float)
    """When retention removed its files: it can be read about, and no longer served."""


class RollbackRow(Base):
    """One rollback (or roll forward), named by the lineage epoch it began. The newest with neither ``served_at`` nor ``problem`` is what the
    serving side has still to do."""

    __tablename__ = "rollbacks"

    lineage_epoch: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    from_version: Mapped[int] = mapped_column(Integer)
    """What the learner stood on before."""
    to_version: Mapped[int] = mapped_column(Integer)
    resume: Mapped[bool] = mapped_column(Boolean)
    """Whether the learner was told to go on at once."""
    reason: Mapped[str | None] = mapped_column(Text)
    """The operator's words."""
    expired_trajectories: Mapped[int] = mapped_column(Integer)
    """Trajectories that were waiting with tokens of abandoned versions."""
    created_at: Mapped[float] = mapped_column(Float)
    served_at: Mapped[float | None] = mapped_column(Float)
    """When the engine had really loaded ``to_version``."""
    problem: Mapped[str | None] = mapped_column(Text)
    """Why the engine does not serve ``to_version``: the version before goes on serving."""


class SwapRow(Base):
    """One activation as it happened in the engine."""

    __tablename__ = "swaps"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    policy_version: Mapped[int] = mapped_column(Integer)
    pause_seconds: Mapped[float] = mapped_column(Float)
    total_seconds: Mapped[float] = mapped_column(Float)
    requests_in_flight: Mapped[int] = mapped_column(Integer)
    recomputed_tokens: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float)


class ProbeRow(Base):
    """One probe completion: sampled by the serving side at T=1 after a swap, checked by the learner against its own forward pass."""

    __tablename__ = "probes"
    __table_args__ = (Index("ix_probes_version", "policy_version"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    policy_version: Mapped[int] = mapped_column(Integer)
    prompt: Mapped[str] = mapped_column(Text)
    prompt_ids: Mapped[list[Any]] = mapped_column(JSON)
    token_ids: Mapped[list[Any]] = mapped_column(JSON)
    behavior_logprobs: Mapped[list[Any]] = mapped_column(JSON)
    text: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float)
    mean_abs_difference: Mapped[float | None] = mapped_column(Float)
    """Mean |engine − learner| logprob over the tokens; null until checked."""
    tolerance: Mapped[float] = mapped_column(Float)
    """Largest such mean that the engine's number format explains."""
    checked_at: Mapped[float | None] = mapped_column(Float)


class EvaluationRow(Base):
    """What one version says to fixed prompts and how well it still predicts a fixed text: "still able" beside "better liked"."""

    __tablename__ = "evaluations"

    policy_version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    perplexity: Mapped[float | None] = mapped_column(Float)
    """exp(mean negative log-likelihood a token) of the fixed text. Null where the engine cannot score text."""
    perplexity_tokens: Mapped[int | None] = mapped_column(Integer)
    samples: Mapped[list[Any]] = mapped_column(JSON)
    """[{"prompt": …, "text": …, "distinct_2": …, "tokens": …}, …], sampled at T=1."""
    created_at: Mapped[float] = mapped_column(Float)


class AlarmRow(Base):
    """One alarm, from when it was raised until its condition was found gone. At most one of a kind is open at a time."""

    __tablename__ = "alarms"
    __table_args__ = (Index("ix_alarms_cleared_at", "cleared_at"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    kind: Mapped[str] = mapped_column(String(32))
    severity: Mapped[str] = mapped_column(String(16))
    """warning or critical."""
    message: Mapped[str] = mapped_column(Text)
    """What was seen, with the numbers."""
    advice: Mapped[str] = mapped_column(Text)
    """What to do next."""
    policy_version: Mapped[int | None] = mapped_column(Integer)
    value: Mapped[float | None] = mapped_column(Float)
    threshold: Mapped[float | None] = mapped_column(Float)
    action: Mapped[str | None] = mapped_column(Text)
    """What the service did by itself (an automatic rollback), if anything."""
    raised_at: Mapped[float] = mapped_column(Float)
    cleared_at: Mapped[float | None] = mapped_column(Float)


class ScoreRollupRow(Base):
    """Sums over the scores of one version's answers asked for in one hour (Unix seconds // 3600), up to the mark. ``completed``: of the scored
    answers, those that were completed. See repositories/score_rollups.py."""

    __tablename__ = "score_rollups"

    policy_version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    hour: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    scores: Mapped[int] = mapped_column(Integer)
    total: Mapped[float] = mapped_column(Float)
    total_squares: Mapped[float] = mapped_column(Float)
    completed: Mapped[int] = mapped_column(Integer)


class RollupMarkRow(Base):
    """Up to when the sums of a metric hold, and how many rows of feedback there were before that."""

    __tablename__ = "rollup_marks"

    metric: Mapped[str] = mapped_column(String(64), primary_key=True)
    settled_at: Mapped[float] = mapped_column(Float)
    rows: Mapped[int] = mapped_column(Integer)


class LearnerRow(Base):
    """The learner's one row (id 1): what it stands on and what it is doing."""

    __tablename__ = "learner"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    lineage_epoch: Mapped[int] = mapped_column(Integer)
    head_version: Mapped[int] = mapped_column(Integer)
    """The version the next update starts from."""
    head_update: Mapped[int] = mapped_column(Integer)
    paused: Mapped[bool] = mapped_column(Boolean)
    pause_reason: Mapped[str | None] = mapped_column(Text)
    phase: Mapped[str] = mapped_column(String(32))
    """starting, pretraining, waiting, updating, publishing, paused, alarm, stopped."""
    detail: Mapped[str | None] = mapped_column(Text)
    heartbeat_at: Mapped[float | None] = mapped_column(Float)
    pid: Mapped[int | None] = mapped_column(Integer)


class ServingInstanceRow(Base):
    """One serving process, by its own word. Gone when it ended, or was found dead."""

    __tablename__ = "serving_instances"

    owner: Mapped[str] = mapped_column(String(128), primary_key=True)
    """As in leases: host:pid:uuid."""
    leading: Mapped[bool] = mapped_column(Boolean)
    policy_version: Mapped[int | None] = mapped_column(Integer)
    """What its engine samples from. Null: it is still loading."""
    problem: Mapped[str | None] = mapped_column(Text)
    """Why it does not serve the active version, or nothing at all."""
    spool_records: Mapped[int] = mapped_column(Integer)
    """Records of chats that it has still to write to the database."""
    started_at: Mapped[float] = mapped_column(Float)
    heartbeat_at: Mapped[float] = mapped_column(Float)


class LeaseRow(Base):
    """Who may act as ``name`` (serving, learner) until ``expires_at``."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(128))
    expires_at: Mapped[float] = mapped_column(Float)
