"""Alert rules at work: conditions, incidents with their transitions, silences, retrain requests, and the outbox.

And an index of the buckets that are open, marks of buckets, and which series are the present ones, also in the view.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VIEW = """
CREATE VIEW rankmon_buckets AS
SELECT
    series.monitor,
    series.kernel AS measure,
    series.definition,
    slices.dimension,
    slices.value,
    {time} AS "time",
    partials.bucket_start,
    series.bucket_seconds,
    partials.requests,
    partials.empty,
    partials.total,
    partials.squares,
    partials.numerator,
    partials.denominator,
    CASE WHEN partials.requests > partials.empty
        THEN partials.total / (partials.requests - partials.empty) END AS mean_skip,
    CASE WHEN partials.requests > 0 THEN partials.total / partials.requests END AS mean_zero,
    CASE WHEN partials.denominator > 0 THEN partials.numerator / partials.denominator END AS pooled,
    partials.final{is_current}
FROM partials
JOIN series ON series.id = partials.series_id
JOIN slices ON slices.id = partials.slice_id
{join}"""

IS_CURRENT = {
    "is_current": ",\n    current_series.series_id IS NOT NULL AS is_current",
    "join": "LEFT JOIN current_series ON current_series.series_id = series.id\n",
}

VIEW_TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%SZ', partials.bucket_start, 'unixepoch')",
    "postgresql": "to_timestamp(partials.bucket_start)",
}


def upgrade() -> None:
    for table in ("partials", "traffic"):
        op.create_index(
            f"ix_{table}_open",
            table,
            ["series_id", "bucket_start"],
            sqlite_where=sa.text("final = 0"),
            postgresql_where=sa.text("NOT final"),
        )
    _create_marks()
    _replace_view(**IS_CURRENT)
    _create_states()
    _create_incidents()
    _create_notices()


def _create_marks() -> None:
    op.create_table(
        "bucket_marks",
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("mark", sa.String(16), nullable=False),
        sa.Column("noted_at", sa.Double, nullable=False),
    )
    op.create_table(
        "current_series",
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True, autoincrement=False),
    )


def _replace_view(is_current: str, join: str) -> None:
    op.execute("DROP VIEW rankmon_buckets")
    op.execute(VIEW.format(time=VIEW_TIME[op.get_bind().dialect.name], is_current=is_current, join=join))


def _create_states() -> None:
    op.create_table(
        "conditions",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("rule", sa.Text, primary_key=True),
        sa.Column("dimension", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("identity", sa.String(10), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("since", sa.BigInteger),
        sa.Column("streak", sa.Integer, nullable=False),
        sa.Column("known", sa.BigInteger),
    )
    op.create_table(
        "judged",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("anew", sa.Boolean, nullable=False),
    )


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(10), primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("retrain", sa.Boolean, nullable=False),
        sa.Column("began_at", sa.BigInteger, nullable=False),
        sa.Column("opened_at", sa.BigInteger, nullable=False),
        sa.Column("closed_at", sa.BigInteger),
        sa.Column("told", sa.Boolean, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("acknowledged_at", sa.Double),
        sa.Column("acknowledged_by", sa.Text),
        sa.Column("note", sa.Text),
    )
    op.create_index("ix_incidents_monitor", "incidents", ["monitor"])
    op.create_index("ix_incidents_state", "incidents", ["state"])
    op.create_table(
        "transitions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("incident", sa.String(10)),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("dimension", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("was", sa.String(16), nullable=False),
        sa.Column("became", sa.String(16), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("recorded_at", sa.Double, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
    )
    op.create_index("ix_transitions_incident", "transitions", ["incident"])
    op.create_index("ix_transitions_monitor_at", "transitions", ["monitor", "at"])


def _create_notices() -> None:
    op.create_table(
        "silences",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_index("ix_silences_monitor", "silences", ["monitor"])
    op.create_table(
        "retrains",
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("incident", sa.String(10), nullable=False),
        sa.Column("asked_at", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_retrains_monitor", "retrains", ["monitor"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("incident", sa.String(10), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("key", sa.String(40), nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Double, nullable=False),
        sa.Column("last_error", sa.Text, nullable=False),
        sa.Column("sent_at", sa.Double),
        sa.Column("dropped_at", sa.Double),
        sa.UniqueConstraint("key", "target", name="uq_outbox_key"),
    )
    op.create_index("ix_outbox_incident", "outbox", ["incident"])
    op.create_index("ix_outbox_waiting", "outbox", ["sent_at", "dropped_at", "next_at"])


def downgrade() -> None:
    _replace_view("", "")
    for table in ("bucket_marks", "current_series"):
        op.drop_table(table)
    for table in ("outbox", "retrains", "silences", "transitions", "incidents", "judged", "conditions"):
        op.drop_table(table)
    for table in ("partials", "traffic"):
        op.drop_index(f"ix_{table}_open", table)
