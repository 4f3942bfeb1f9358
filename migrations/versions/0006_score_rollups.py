"""Sums of scores by version and hour, and an index that counts completed answers without reading them.

Revision ID: 0006
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "score_rollups",
        sa.Column("policy_version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("scores", sa.Integer(), nullable=False),
        sa.Column("total", sa.Float(), nullable=False),
        sa.Column("total_squares", sa.Float(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("policy_version", "hour", name="pk_score_rollups"),
    )
    op.create_table(
        "rollup_marks",
        sa.Column("metric", sa.String(length=64), nullable=False),
        sa.Column("settled_at", sa.Float(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("metric", name="pk_rollup_marks"),
    )
    op.create_index("ix_interactions_created_at_status", "interactions", ["created_at", "status"])
    op.drop_index("ix_interactions_created_at", "interactions")


def downgrade() -> None:
    op.create_index("ix_interactions_created_at", "interactions", ["created_at"])
    op.drop_index("ix_interactions_created_at_status", "interactions")
    op.drop_table("rollup_marks")
    op.drop_table("score_rollups")
