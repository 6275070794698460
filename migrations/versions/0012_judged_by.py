"""Which process judged a monitor last, by which rules, and in which run.

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("monitors", sa.Column("judged_by", sa.Text))
    op.add_column("monitors", sa.Column("judged_as", sa.String(10)))
    op.add_column("monitors", sa.Column("judged_run", sa.BigInteger))


def downgrade() -> None:
    with op.batch_alter_table("monitors") as batch:
        for name in ("judged_by", "judged_as", "judged_run"):
            batch.drop_column(name)
