"""rankmon's own tables. The scripts in `migrations/` lead to just this; a test compares the two.

Instants are whole seconds since 1970 in UTC where they are bucket starts, and float seconds elsewhere.
"""

from __future__ import annotations

import sqlalchemy as sa

from monitor.series.partials import FIELDS, TRAFFIC_FIELDS

metadata = sa.MetaData()

series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("definition", sa.String(10), nullable=False),
    sa.Column("bucket_seconds", sa.Integer, nullable=False),
    sa.Column("defined_as", sa.Text, nullable=False),
    sa.UniqueConstraint("monitor", "kernel", "definition", name="uq_series_identity"),
)

slices = sa.Table(
    "slices",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False),
    sa.Column("dimension", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.UniqueConstraint("monitor", "dimension", "value", name="uq_slices_identity"),
)

slice_gaps = sa.Table(
    "slice_gaps",
    metadata,
    sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True, autoincrement=False),
    sa.Column("since", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("until", sa.BigInteger),
)
"""When a value that was admitted had no place, [since, until): see `core.places`."""


def _per_bucket(name: str, *columns: sa.Column[int] | sa.Column[float]) -> sa.Table:
    """A table of one row per series, bucket and slice. Rows of one series and time lie together on disk."""
    return sa.Table(
        name,
        metadata,
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
        *columns,
        sa.Column("read_at", sa.Double, nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        # The few buckets that are open are looked for in every cycle, however long the history is.
        sa.Index(
            f"ix_{name}_open",
            "series_id",
            "bucket_start",
            sqlite_where=sa.text("final = 0"),
            postgresql_where=sa.text("NOT final"),
        ),
        sqlite_with_rowid=False,
    )


_NO_RESULTS = "no_results"
"""Of the traffic, counted from 0015 on; in older buckets it is 0."""


def _of_traffic() -> list[sa.Column[int]]:
    return [sa.Column(f, sa.BigInteger, nullable=False) for f in TRAFFIC_FIELDS if f != _NO_RESULTS]


def _no_results() -> sa.Column[int]:
    return sa.Column(_NO_RESULTS, sa.BigInteger, nullable=False, server_default="0")


partials = _per_bucket("partials", *(sa.Column(f, sa.Double, nullable=False) for f in FIELDS))
traffic = _per_bucket("traffic", *_of_traffic())
traffic.append_column(_no_results())

refusals = sa.Table(
    "refusals",
    metadata,
    sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
    sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
    sa.Column("reason", sa.String(32), primary_key=True),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

judgments_used = sa.Table(
    "judgments_used",
    metadata,
    sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
    sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
)

row_counts = sa.Table(
    "row_counts",
    metadata,
    sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
    sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Rows of the rankings, by their own time, that the source held of a recent bucket when it was read as final."""

bucket_marks = sa.Table(
    "bucket_marks",
    metadata,
    sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
    sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("mark", sa.String(16), nullable=False),
    sa.Column("noted_at", sa.Double, nullable=False),
)
"""What else is to be known of a few buckets: see `watermark.Mark`. A refused one has no rows elsewhere."""


def _per_coarse_bucket(name: str, *columns: sa.Column[int] | sa.Column[float]) -> sa.Table:
    """What several final buckets of one series and slice came to, from `bucket_start` on for `seconds`."""
    return sa.Table(
        name,
        metadata,
        sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True),
        sa.Column("bucket_start", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("slice_id", sa.Integer, sa.ForeignKey("slices.id"), primary_key=True),
        *columns,
        sa.Column("seconds", sa.Integer, nullable=False),
        sqlite_with_rowid=False,
    )


coarse_partials = _per_coarse_bucket("coarse_partials", *(sa.Column(f, sa.Double, nullable=False) for f in FIELDS))
coarse_traffic = _per_coarse_bucket("coarse_traffic", *_of_traffic())
"""Buckets that were rolled up: every bucket in such a span was read and final, and is no more in the fine tables."""
coarse_traffic.append_column(_no_results())

current_series = sa.Table(
    "current_series",
    metadata,
    sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), primary_key=True, autoincrement=False),
)
"""The series of what is configured now, as the process that writes a monitor last saw it."""

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),
)

monitors = sa.Table(
    "monitors",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("newest_source_at", sa.Double),
    sa.Column("last_attempt_at", sa.Double),
    sa.Column("last_success_at", sa.Double),
    sa.Column("last_error", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("refresh", sa.Double),
    sa.Column("newest_label_at", sa.Double),
    sa.Column("judged_by", sa.Text),
    sa.Column("judged_as", sa.String(10)),
    sa.Column("judged_run", sa.BigInteger),
    sa.Column("audited_at", sa.Double),
)
"""What is known of a monitor's runs; `refresh` is the time between them, real seconds. `judged_by` held the lease,
of the number `judged_run`, when it was judged last; `judged_as` is `Monitor.judged_as` of what it was judged by.
`audited_at`: when its last self-audit began."""

restatements = sa.Table(
    "restatements",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("restated_at", sa.Double, nullable=False),
    sa.Column("forced", sa.Boolean, nullable=False),
    sa.Column("buckets", sa.Integer, nullable=False),
)

conditions = sa.Table(
    "conditions",
    metadata,
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
"""Where each alert rule stands on each slice; `identity` is of the rule and the series that it judges."""

judged = sa.Table(
    "judged",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("anew", sa.Boolean, nullable=False),
)
"""Until where the rules of a monitor were applied; `anew` if older buckets were stored since."""

incidents = sa.Table(
    "incidents",
    metadata,
    sa.Column("id", sa.String(10), primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False, index=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
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
    sa.Column("matter", sa.String(16), nullable=False, server_default="quality"),
)

transitions = sa.Table(
    "transitions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False),
    sa.Column("incident", sa.String(10), index=True),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("dimension", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("was", sa.String(16), nullable=False),
    sa.Column("became", sa.String(16), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("recorded_at", sa.Double, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("evidence", sa.Text, nullable=False),
    sa.Index("ix_transitions_monitor_at", "monitor", "at"),
)

drift_states = sa.Table(
    "drift_states",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("identity", sa.String(10), nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
)
"""What the verdicts on a monitor have come to, up to `until`; `identity` is of what is judged, and how."""

drift_borders = sa.Table(
    "drift_borders",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("identity", sa.String(10), nullable=False),
    sa.Column("series", sa.Text, nullable=False),
    sa.Column("until", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("conditions", sa.Text, nullable=False),
)
"""The same at the end of what was rolled up or forgotten, before which no verdict can be found anew; `series` are the
definitions that were judged, `conditions` what the verdicts had come to, as JSON."""

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(24), nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("observed", sa.Double),
    sa.Column("expected", sa.Double),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("mix_effect", sa.Double),
)
"""One verdict for each step that was judged, by the end of the step; `document` is the whole of it, as JSON.

`mix_effect`: by how much the mix moved the mean, relative; NULL where the verdict does not say that it did."""

baselines = sa.Table(
    "baselines",
    metadata,
    sa.Column("monitor", sa.Text, primary_key=True),
    sa.Column("since", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("set_at", sa.Double, nullable=False),
    sa.Column("judged_until", sa.BigInteger),
)
"""The moments at which somebody had the baseline begin anew, and how far the verdicts were when it was said."""

diagnoses = sa.Table(
    "diagnoses",
    metadata,
    sa.Column("incident", sa.String(10), primary_key=True),
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("dimension", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False, index=True),
    sa.Column("taken_at", sa.Double, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("error", sa.Text, nullable=False),
)
"""What a condition of an incident came from, as JSON, taken when it began to fire: its requests may be purged from the
source later. Where that failed, why: then there is no document."""

silences = sa.Table(
    "silences",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False, index=True),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
)

retrains = sa.Table(
    "retrains",
    metadata,
    sa.Column("key", sa.String(16), primary_key=True),
    sa.Column("monitor", sa.Text, nullable=False, index=True),
    sa.Column("incident", sa.String(10), nullable=False),
    sa.Column("asked_at", sa.BigInteger, nullable=False),
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("incident", sa.String(10), nullable=False, index=True),
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
    sa.Index("ix_outbox_waiting", "sent_at", "dropped_at", "next_at"),
)
"""Notifications, written together with what they tell of; `target` is one receiver of a channel."""

_VIEW_PART = """
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
"""One row per bucket and slice, coarser ones among them, for people and for Grafana's SQL data sources. Values of
different definitions must not be mixed: those of the present one have `is_current`. Sum `total`, `requests` and
`empty` over buckets before dividing to get a longer window; the means of buckets must not be averaged."""

VIEW_TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%SZ', partials.bucket_start, 'unixepoch')",
    "postgresql": "to_timestamp(partials.bucket_start)",
}


VIEW_TRUE = {"sqlite": "1", "postgresql": "true"}


def buckets_view(dialect: str) -> str:
    """The statement that makes the view `rankmon_buckets` in a dialect of the store."""
    time = VIEW_TIME[dialect]
    fine = _VIEW_PART.format(time=time, seconds="series.bucket_seconds", final="partials.final", table="partials")
    more = {"seconds": "partials.seconds", "final": VIEW_TRUE[dialect], "table": "coarse_partials"}
    return f"CREATE VIEW rankmon_buckets AS{fine}UNION ALL{_VIEW_PART.format(time=time, **more)}"
