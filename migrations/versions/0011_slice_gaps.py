"""When a value of a slice had no place, so that one that is not needed can be given back.

Downgrading forgets it: every value that was ever admitted has its place again.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "slice_gaps",
        sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True, autoincrement=False),
        sa.Column("since", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("until", sa.BigInteger),
    )


def downgrade() -> None:
    op.drop_table("slice_gaps")
