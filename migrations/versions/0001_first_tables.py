"""The first tables: series, slices, partials, traffic, refusals, leases, and the view for SQL readers.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PARTIALS = (
    "requests",
    "empty",
    "total",
    "squares",
    "numerator",
    "denominator",
    "numerator_squares",
    "denominator_squares",
    "products",
)
TRAFFIC = ("requests", "labelled", "impressions", "judged", "events", "unmatched")

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
    partials.final
FROM partials
JOIN series ON series.id = partials.series_id
JOIN slices ON slices.id = partials.slice_id
"""

VIEW_TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%SZ', partials.bucket_start, 'unixepoch')",
    "postgresql": "to_timestamp(partials.bucket_start)",
}


def _per_bucket(name: str, kind: type[sa.types.TypeEngine], columns: tuple[str, ...]) -> None:
    op.create_table(
        name,
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
        *(sa.Column(c, kind, nullable=False) for c in columns),
        sa.Column("read_at", sa.Double, nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sqlite_with_rowid=False,
    )


def upgrade() -> None:
    _create_names()
    _per_bucket("partials", sa.Double, PARTIALS)
    _per_bucket("traffic", sa.BigInteger, TRAFFIC)
    _create_beside_traffic()
    _create_bookkeeping()
    op.execute(VIEW.format(time=VIEW_TIME[op.get_bind().dialect.name]))


def _create_names() -> None:
    op.create_table(
        "series",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("definition", sa.String(10), nullable=False),
        sa.Column("bucket_seconds", sa.Integer, nullable=False),
        sa.Column("defined_as", sa.Text, nullable=False),
        sa.UniqueConstraint("monitor", "kernel", "definition", name="uq_series_identity"),
    )
    op.create_table(
        "slices",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("dimension", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.UniqueConstraint("monitor", "dimension", "value", name="uq_slices_identity"),
    )


def _create_beside_traffic() -> None:
    op.create_table(
        "refusals",
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
        sa.Column("reason", sa.String(32), primary_key=True),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "judgments_used",
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
    )


def _create_bookkeeping() -> None:
    op.create_table(
        "leases",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
    )
    op.create_table(
        "monitors",
        sa.Column("monitor", sa.Text, primary_key=True),
        sa.Column("newest_source_at", sa.Double),
        sa.Column("last_attempt_at", sa.Double),
        sa.Column("last_success_at", sa.Double),
        sa.Column("last_error", sa.Text, nullable=False, server_default=sa.text("''")),
    )
    op.create_table(
        "restatements",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("monitor", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("restated_at", sa.Double, nullable=False),
        sa.Column("forced", sa.Boolean, nullable=False),
        sa.Column("buckets", sa.Integer, nullable=False),
    )


def downgrade() -> None:
    op.execute("DROP VIEW rankmon_buckets")
    for table in ("restatements", "monitors", "leases", "judgments_used", "refusals", "traffic", "partials"):
        op.drop_table(table)
    op.drop_table("slices")
    op.drop_table("series")
