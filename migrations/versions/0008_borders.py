"""Where judging anew begins: what verdicts had come to where finer buckets are gone.

Downgrading forgets it; verdicts that are found anew then begin without what went before.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drift_borders",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("identity", sa.String(10), nullable=False),
        sa.Column("series", sa.Text, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("conditions", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("drift_borders")
