"""Serving processes that share the database, and which of them generates an interaction.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "serving_instances",
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("leading", sa.Boolean(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("spool_records", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("heartbeat_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_serving_instances"),
    )
    op.add_column("interactions", sa.Column("served_by", sa.String(length=128), nullable=True))


def downgrade() -> None:
    op.drop_column("interactions", "served_by")
    op.drop_table("serving_instances")
