"""How far each probe may lie from the learner's own forward pass: the engine's number format says it. Those there are come from fp32.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("probes") as table:
        table.add_column(sa.Column("tolerance", sa.Float(), nullable=False, server_default="0.001"))
    with op.batch_alter_table("probes") as table:
        table.alter_column("tolerance", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("probes") as table:
        table.drop_column("tolerance")
