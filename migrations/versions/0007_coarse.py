"""Coarser buckets: what old ones are rolled up into. The view for SQL readers shows them beside the others.

Downgrading forgets them.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
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

PART = """
SELECT
    series.monitor,
    series.kernel AS measure,
    series.definition,
    slices.dimension,
    slices.value,
    {time} AS "time",
    partials.bucket_start,
    {seconds} AS bucket_seconds,
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
    {final} AS final,
    current_series.series_id IS NOT NULL AS is_current
FROM {table} AS partials
JOIN series ON series.id = partials.series_id
JOIN slices ON slices.id = partials.slice_id
LEFT JOIN current_series ON current_series.series_id = series.id
"""

TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%SZ', partials.bucket_start, 'unixepoch')",
    "postgresql": "to_timestamp(partials.bucket_start)",
}
TRUE = {"sqlite": "1", "postgresql": "true"}


def upgrade() -> None:
    _create("coarse_partials", sa.Double, PARTIALS)
    _create("coarse_traffic", sa.BigInteger, TRAFFIC)
    _replace_view(f"{_fine()}UNION ALL{_coarse()}")


def downgrade() -> None:
    _replace_view(_fine())
    for table in ("coarse_traffic", "coarse_partials"):
        op.drop_table(table)


def _replace_view(text: str) -> None:
    """Whoever may read the view may still do so, and what is made of it stays."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"CREATE OR REPLACE VIEW rankmon_buckets AS{text}")
    else:
        op.execute("DROP VIEW rankmon_buckets")
        op.execute(f"CREATE VIEW rankmon_buckets AS{text}")


def _create(name: str, kind: type[sa.types.TypeEngine], columns: tuple[str, ...]) -> None:
    op.create_table(
        name,
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
        *(sa.Column(c, kind, nullable=False) for c in columns),
        sa.Column("seconds", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )


def _fine() -> str:
    time = TIME[op.get_bind().dialect.name]
    return PART.format(time=time, seconds="series.bucket_seconds", final="partials.final", table="partials")


def _coarse() -> str:
    name = op.get_bind().dialect.name
    return PART.format(time=TIME[name], seconds="partials.seconds", final=TRUE[name], table="coarse_partials")
