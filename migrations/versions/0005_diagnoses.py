"""Diagnoses of each condition of an incident, and why one could not be taken.

What was taken before is of the condition that opened the incident, whose name stands in the document.

Revision ID: 0005
Revises: 0004
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INSERT = (
    "INSERT INTO diagnoses (incident, rule, dimension, value, monitor, taken_at, document, error) "
    "SELECT incident, '', '', '', monitor, taken_at, document, '' FROM diagnoses_before"
)
NAME = "UPDATE diagnoses SET rule = :rule, dimension = :dimension, value = :slice WHERE incident = :incident"
FIRST = (
    "INSERT INTO diagnoses (incident, monitor, taken_at, document) "
    "SELECT incident, monitor, taken_at, document FROM diagnoses_before AS one WHERE document <> '' AND NOT EXISTS ("
    "SELECT 1 FROM diagnoses_before AS other WHERE other.incident = one.incident AND other.document <> '' AND "
    "(other.dimension, other.taken_at, other.rule, other.value) < (one.dimension, one.taken_at, one.rule, one.value))"
)


def upgrade() -> None:
    _put_aside()
    op.create_table(
        "diagnoses",
        sa.Column("incident", sa.String(10), primary_key=True),
        sa.Column("rule", sa.Text, primary_key=True),
        sa.Column("dimension", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
    )
    op.execute(INSERT)
    _name()
    _done()


def downgrade() -> None:
    _put_aside()
    op.create_table(
        "diagnoses",
        sa.Column("incident", sa.String(10), primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.execute(FIRST)
    _done()


def _put_aside() -> None:
    # A table that is renamed keeps the names of its key and index on PostgreSQL; one that is made anew has its own.
    op.execute("CREATE TABLE diagnoses_before AS SELECT * FROM diagnoses")
    op.drop_table("diagnoses")


def _done() -> None:
    op.create_index("ix_diagnoses_monitor", "diagnoses", ["monitor"])
    op.drop_table("diagnoses_before")


def _name() -> None:
    """Of which condition each is."""
    connection = op.get_bind()
    for incident in connection.execute(sa.text("SELECT incident FROM diagnoses")).scalars().all():
        text = sa.text("SELECT document FROM diagnoses WHERE incident = :incident")
        fell = json.loads(connection.execute(text, {"incident": incident}).scalar_one()).get("fell")
        if fell is not None:
            names = {name: fell[name] for name in ("rule", "dimension", "slice")}
            connection.execute(sa.text(NAME), {"incident": incident, **names})
