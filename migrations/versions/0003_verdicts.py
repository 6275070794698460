"""Verdicts: what they have come to, one for each step, baselines that were begun anew, and diagnoses of incidents.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("incidents", sa.Column("matter", sa.String(16), nullable=False, server_default="quality"))
    _create_verdicts()
    op.create_table(
        "baselines",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("set_at", sa.Double, nullable=False),
    )
    op.create_table(
        "diagnoses",
        sa.Column("incident", sa.String(10), primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("ix_diagnoses_monitor", "diagnoses", ["monitor"])


def _create_verdicts() -> None:
    op.create_table(
        "drift_states",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("identity", sa.String(10), nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
    )
    op.create_table(
        "verdicts",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(24), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("observed", sa.Double),
        sa.Column("expected", sa.Double),
        sa.Column("document", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for table in ("diagnoses", "baselines", "verdicts", "drift_states"):
        op.drop_table(table)
    with op.batch_alter_table("incidents") as batch:
        batch.drop_column("matter")
