"""By how much the mix of slices moved the mean, where a verdict said so; of those said before, from their documents.

Revision ID: 0010
Revises: 0009
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

verdicts = sa.table(
    "verdicts", sa.column("monitor"), sa.column("at"), sa.column("document"), sa.column("mix_effect", sa.Double)
)


def upgrade() -> None:
    op.add_column("verdicts", sa.Column("mix_effect", sa.Double))
    connection, c = op.get_bind(), verdicts.c
    shifted = sa.select(c.monitor, c.at, c.document).where(c.document.like('%"mix_shifted":true%'))
    told = sa.update(verdicts).where(c.monitor == sa.bindparam("of"), c.at == sa.bindparam("end"))
    rows = [
        {"of": name, "end": at, "effect": json.loads(document)["mix_effect"]}
        for name, at, document in connection.execute(shifted)
    ]
    if rows:
        connection.execute(told.values(mix_effect=sa.bindparam("effect")), rows)


def downgrade() -> None:
    with op.batch_alter_table("verdicts") as batch:
        batch.drop_column("mix_effect")
