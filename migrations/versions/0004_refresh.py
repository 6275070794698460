"""How long after a run of a monitor the next one is to be: who misses several is run by nobody any more.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("monitors", sa.Column("refresh", sa.Double))


def downgrade() -> None:
    with op.batch_alter_table("monitors") as batch:
        batch.drop_column("refresh")
