"""Alarms, evaluations per policy version, removed version files, and how often a trajectory was used.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alarms",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("advice", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("threshold", sa.Float(), nullable=True),
        sa.Column("action", sa.Text(), nullable=True),
        sa.Column("raised_at", sa.Float(), nullable=False),
        sa.Column("cleared_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_alarms"),
    )
    op.create_index("ix_alarms_cleared_at", "alarms", ["cleared_at"])
    op.create_table(
        "evaluations",
        sa.Column("policy_version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("perplexity", sa.Float(), nullable=True),
        sa.Column("perplexity_tokens", sa.Integer(), nullable=True),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy_version", name="pk_evaluations"),
    )
    op.add_column("policy_versions", sa.Column("files_removed_at", sa.Float(), nullable=True))
    op.add_column("trajectories", sa.Column("policy_uses", sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE trajectories SET policy_uses = 1 WHERE state = 'trained'")


def downgrade() -> None:
    op.drop_column("trajectories", "policy_uses")
    op.drop_column("policy_versions", "files_removed_at")
    op.drop_table("evaluations")
    op.drop_index("ix_alarms_cleared_at", "alarms")
    op.drop_table("alarms")
