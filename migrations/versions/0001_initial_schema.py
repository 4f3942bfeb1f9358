"""The first schema: interactions, scores, trajectories, updates, policy versions, and the rows a fresh service stands on.

Revision 0001, the first.
"""

import time

import sqlalchemy as sa
from alembic import op


revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "interactions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("completion_id", sa.String(length=64), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("episode_id", sa.String(length=256), nullable=True),
        sa.Column("user", sa.String(length=256), nullable=True),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column("request_metadata", sa.JSON(), nullable=False),
        sa.Column("messages", sa.JSON(), nullable=True),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("prompt_ids", sa.JSON(), nullable=True),
        sa.Column("token_ids", sa.JSON(), nullable=True),
        sa.Column("behavior_logprobs", sa.JSON(), nullable=True),
        sa.Column("version_spans", sa.JSON(), nullable=True),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.String(length=16), nullable=True),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("first_token_at", sa.Float(), nullable=True),
        sa.Column("completed_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_interactions"),
        sa.UniqueConstraint("completion_id", "choice", name="uq_interactions_completion_id_choice"),
    )
    op.create_index("ix_interactions_created_at", "interactions", ["created_at"])
    op.create_index("ix_interactions_policy_version", "interactions", ["policy_version"])
    op.create_index("ix_interactions_status", "interactions", ["status"])
    op.create_index("ix_interactions_user", "interactions", ["user"])

    op.create_table(
        "learner",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage_epoch", sa.Integer(), nullable=False),
        sa.Column("head_version", sa.Integer(), nullable=False),
        sa.Column("head_update", sa.Integer(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.Column("phase", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("heartbeat_at", sa.Float(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_learner"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "policy_versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("lineage_epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("update_number", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("served_digest", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("activated_at", sa.Float(), nullable=True),
        sa.Column("retired_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("version", name="pk_policy_versions"),
    )
    op.create_index("ix_policy_versions_state", "policy_versions", ["state"])

    op.create_table(
        "probes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("prompt_ids", sa.JSON(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("behavior_logprobs", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("mean_abs_difference", sa.Float(), nullable=True),
        sa.Column("checked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_probes"),
    )
    op.create_index("ix_probes_version", "probes", ["policy_version"])

    op.create_table(
        "swaps",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        sa.Column("pause_seconds", sa.Float(), nullable=False),
        sa.Column("total_seconds", sa.Float(), nullable=False),
        sa.Column("requests_in_flight", sa.Integer(), nullable=False),
        sa.Column("recomputed_tokens", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_swaps"),
    )
    op.create_table(
        "updates",
        sa.Column("update_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lineage_epoch", sa.Integer(), nullable=False),
        sa.Column("claim_id", sa.String(length=64), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("parent_version", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("ratio_histogram", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("update_number", name="pk_updates"),
        sa.UniqueConstraint("claim_id", name="uq_updates_claim_id"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("interaction_id", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=256), nullable=True),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("superseded_by", sa.String(length=64), nullable=True),
        sa.Column("refused_reason", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["interaction_id"], ["interactions.id"], name="fk_feedback_interaction_id_interactions"),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
        sa.UniqueConstraint("idempotency_key", name="uq_feedback_idempotency_key"),
    )
    op.create_index("ix_feedback_created_at", "feedback", ["created_at"])
    op.create_index("ix_feedback_interaction_metric", "feedback", ["interaction_id", "metric"])

    op.create_table(
        "trajectories",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("interaction_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("oldest_policy_version", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("deadline_at", sa.Float(), nullable=False),
        sa.Column("ready_at", sa.Float(), nullable=True),
        sa.Column("claim_id", sa.String(length=64), nullable=True),
        sa.Column("claim_expires_at", sa.Float(), nullable=True),
        sa.Column("update_number", sa.Integer(), nullable=True),
        sa.Column("policy_lag", sa.Integer(), nullable=True),
        sa.Column("masked_fraction", sa.Float(), nullable=True),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["interaction_id"], ["interactions.id"], name="fk_trajectories_interaction_id_interactions"),
        sa.ForeignKeyConstraint(["update_number"], ["updates.update_number"], name="fk_trajectories_update_number_updates"),
        sa.PrimaryKeyConstraint("id", name="pk_trajectories"),
        sa.UniqueConstraint("interaction_id", name="uq_trajectories_interaction_id"),
    )
    op.create_index("ix_trajectories_claim_id", "trajectories", ["claim_id"])
    op.create_index("ix_trajectories_state_deadline", "trajectories", ["state", "deadline_at"])
    op.create_index("ix_trajectories_state_ready_at", "trajectories", ["state", "ready_at"])
    op.create_index("ix_trajectories_update", "trajectories", ["update_number"])

    # Version 0 is the base model: it serves from the first start and every lineage begins at it.
    now = time.time()
    versions = sa.table(
        "policy_versions",
        *(sa.column(name) for name in ("version", "parent", "lineage_epoch", "state", "update_number", "path")),
        sa.column("served_digest", sa.JSON),
        sa.column("created_at"),
        sa.column("activated_at"),
    )
    op.bulk_insert(
        versions,
        [
            dict(
                version=0,
                parent=None,
                lineage_epoch=0,
                state="active",
                update_number=0,
                path=None,
                served_digest=[],
                created_at=now,
                activated_at=now,
            )
        ],
    )
    learner = sa.table("learner", *(sa.column(name) for name in ("id", "lineage_epoch", "head_version", "head_update", "paused", "phase")))
    op.bulk_insert(learner, [dict(id=1, lineage_epoch=0, head_version=0, head_update=0, paused=False, phase="stopped")])


def downgrade() -> None:
    op.drop_table("trajectories")
    op.drop_table("feedback")
    op.drop_table("updates")
    op.drop_table("swaps")
    op.drop_table("probes")
    op.drop_table("policy_versions")
    op.drop_table("leases")
    op.drop_table("learner")
    op.drop_table("interactions")
