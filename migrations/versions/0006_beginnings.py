"""Every moment at which a baseline was begun anew, not the last alone; and the newest label that a source has shown.

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

LAST = (
    "INSERT INTO baselines SELECT monitor, since, author, note, set_at FROM baselines_before AS one WHERE NOT EXISTS ("
    "SELECT 1 FROM baselines_before AS other WHERE other.monitor = one.monitor AND other.since > one.since)"
)


def upgrade() -> None:
    op.add_column("monitors", sa.Column("newest_label_at", sa.Double))
    _put_aside()
    _create(sa.Column("since", sa.BigInteger, primary_key=True, autoincrement=False))
    op.execute("INSERT INTO baselines SELECT monitor, since, author, note, set_at FROM baselines_before")
    op.drop_table("baselines_before")


def downgrade() -> None:
    with op.batch_alter_table("monitors") as batch:
        batch.drop_column("newest_label_at")
    _put_aside()
    _create(sa.Column("since", sa.BigInteger, nullable=False))
    op.execute(LAST)
    op.drop_table("baselines_before")


def _put_aside() -> None:
    op.execute("CREATE TABLE baselines_before AS SELECT * FROM baselines")
    op.drop_table("baselines")


def _create(since: sa.Column) -> None:
    op.create_table(
        "baselines",
        sa.Column("monitor", sa.Text, primary_key=True),
        since,
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("set_at", sa.Double, nullable=False),
    )
