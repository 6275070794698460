"""How many requests of a bucket had no results.

Revision ID: 0015
Revises: 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TABLES = ("traffic", "coarse_traffic")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("no_results", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    for table in TABLES:
        with op.batch_alter_table(table) as batch:
            batch.drop_column("no_results")
