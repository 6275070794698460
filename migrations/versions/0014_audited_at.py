"""When a monitor's last self-audit began.

Revision ID: 0014
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("monitors", sa.Column("audited_at", sa.Double))


def downgrade() -> None:
    with op.batch_alter_table("monitors") as batch:
        batch.drop_column("audited_at")
