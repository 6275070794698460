"""How far the verdicts were when somebody had the baseline begin anew; of those said before, that is not known.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("baselines", sa.Column("judged_until", sa.BigInteger))


def downgrade() -> None:
    with op.batch_alter_table("baselines") as batch:
        batch.drop_column("judged_until")
