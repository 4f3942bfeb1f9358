"""Rollbacks as they were asked for and ended, and when an interaction was erased.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollbacks",
        sa.Column("lineage_epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("from_version", sa.Integer(), nullable=False),
        sa.Column("to_version", sa.Integer(), nullable=False),
        sa.Column("resume", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("expired_trajectories", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("served_at", sa.Float(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("lineage_epoch", name="pk_rollbacks"),
    )
    op.add_column("interactions", sa.Column("erased_at", sa.Float(), nullable=True))
    # What was erased before this column existed cannot be told from what was never stored, except where its trajectory says so.
    op.execute(
        "UPDATE interactions SET erased_at = (SELECT t.updated_at FROM trajectories t WHERE t.interaction_id = interactions.id) "
        "WHERE id IN (SELECT interaction_id FROM trajectories WHERE reason = 'erased')"
    )


def downgrade() -> None:
    op.drop_column("interactions", "erased_at")
    op.drop_table("rollbacks")
