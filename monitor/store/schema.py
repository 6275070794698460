"""rankmon's tables. The scripts in `migrations/` lead to exactly these; a test compares the two.

Bucket starts are whole seconds since 1970 in UTC, other instants float seconds.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from monitor.series.partials import FIELDS, TRAFFIC_FIELDS

metadata = sa.MetaData()


def _table(name: str, *items: Any, **options: Any) -> sa.Table:
    flat = [part for item in items for part in (item if isinstance(item, list) else [item])]
    return sa.Table(name, metadata, *flat, **options)


def _each(kind: Any, names: str, **options: Any) -> list[sa.Column[Any]]:
    """Columns of one kind; NULL is allowed if a name ends with `?`."""
    return [sa.Column(name.rstrip("?"), kind, **{"nullable": name.endswith("?"), **options}) for name in names.split()]


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True)


def _key(kind: Any, names: str) -> list[sa.Column[Any]]:
    return _each(kind, names, primary_key=True, autoincrement=False)


def _part_of(column: str, cascades: bool = False, **options: Any) -> sa.Column[int]:
    table = {"series_id": "series.id", "slice_id": "slices.id", "bucket_id": "buckets.id"}[column]
    key = sa.ForeignKey(table, ondelete="CASCADE" if cascades else None)
    return sa.Column(column, sa.Integer, key, **{"nullable": False, **options})


series = _table(
    "series",
    _id(),
    _each(sa.Text, "monitor kernel"),
    _each(sa.String(10), "definition"),
    _each(sa.Integer, "bucket_seconds"),
    _each(sa.Text, "defined_as"),
    sa.UniqueConstraint("monitor", "kernel", "definition", name="uq_series_identity"),
)

slices = _table(
    "slices",
    _id(),
    _each(sa.Text, "monitor dimension value"),
    sa.UniqueConstraint("monitor", "dimension", "value", name="uq_slices_identity"),
)

slice_gaps = _table(
    "slice_gaps",
    _part_of("slice_id", primary_key=True, autoincrement=False),
    _key(sa.BigInteger, "since"),
    _each(sa.BigInteger, "until?"),
)
"""When an admitted value had no place, [since, until): see `series.slices`."""

buckets = _table(
    "buckets",
    _id(),
    _part_of("series_id"),
    _each(sa.Integer, "seconds"),
    _each(sa.BigInteger, "bucket_start"),
    _each(sa.Double, "read_at"),
    _each(sa.Boolean, "final"),
    _each(sa.String(16), "mark?"),
    _each(sa.BigInteger, "rows?"),
    _each(sa.String(16), "fingerprint?"),
    sa.UniqueConstraint("series_id", "bucket_start", "seconds", name="uq_buckets_span"),
    # Every cycle looks for the few open or marked buckets, however long the history is.
    sa.Index("ix_buckets_open", "series_id", "bucket_start"),
    sa.Index("ix_buckets_marked", "series_id", "bucket_start"),
)
"""One read bucket; `seconds` is its length if it was rolled up from final buckets, which are gone, else 0.

`read_at`: when its last read began. `mark`: see `finality.Mark`; a refused bucket has no rows elsewhere. `rows`: the
source's rankings rows, by their own time, when a recent bucket was read as final. `fingerprint`: of the judgments used.
"""


@sa.event.listens_for(buckets, "before_create")
def _limit_to_few(table: sa.Table, connection: sa.Connection, **_: Any) -> None:
    # Not above: an option of an engine loads its dialect, and every command would wait for that of PostgreSQL.
    engine = connection.dialect.name
    where = {
        "ix_buckets_open": {"sqlite": "final = 0"}.get(engine, "NOT final"),
        "ix_buckets_marked": "mark IS NOT NULL",
    }
    for index in table.indexes:
        index.dialect_options[engine]["where"] = sa.text(where[str(index.name)])


def _per_slice(name: str, *columns: sa.Column[Any]) -> sa.Table:
    """A table of rows per bucket and slice. Those of one bucket lie together on disk and are deleted with it."""
    keys = (
        _part_of("bucket_id", cascades=True, primary_key=True, autoincrement=False),
        _part_of("slice_id", primary_key=True, autoincrement=False),
    )
    return _table(name, *keys, *columns, sqlite_with_rowid=False)


partials = _per_slice("partials", *_each(sa.Double, " ".join(FIELDS)))
traffic = _per_slice("traffic", *_each(sa.BigInteger, " ".join(TRAFFIC_FIELDS)))
refusals = _per_slice("refusals", *_key(sa.String(32), "reason"), *_each(sa.BigInteger, "rows"))

current_series = _table("current_series", _part_of("series_id", primary_key=True, autoincrement=False))
"""The configured series, as last seen by the process that writes the monitor."""

leases = _table(
    "leases",
    _key(sa.Text, "monitor"),
    _each(sa.Text, "holder"),
    _each(sa.BigInteger, "token"),
    _each(sa.Double, "expires_at"),
)

monitors = _table(
    "monitors",
    _key(sa.Text, "monitor"),
    _each(sa.Double, "newest_source_at? last_attempt_at? last_success_at?"),
    _each(sa.Text, "last_error", server_default=sa.text("''")),
    _each(sa.Double, "refresh? newest_label_at?"),
    _each(sa.Text, "judged_by?"),
    _each(sa.String(10), "judged_as?"),
    _each(sa.BigInteger, "judged_run?"),
    _each(sa.Double, "audited_at?"),
    _each(sa.Text, "origin?"),
)
"""State of a monitor's runs; `refresh` is the time between them, real seconds. `judged_by` held the lease with number
`judged_run` at the last evaluation; `judged_as` is the `Monitor.judged_as` it used. `audited_at`: when the last
self-audit began. `origin`: the monitor's first name, if it was renamed."""

restatements = _table(
    "restatements",
    _id(),
    _each(sa.Text, "monitor"),
    _each(sa.BigInteger, "since until"),
    _each(sa.Double, "restated_at"),
    _each(sa.Boolean, "forced"),
    _each(sa.Integer, "buckets"),
)

conditions = _table(
    "conditions",
    _key(sa.Text, "monitor rule dimension value"),
    _each(sa.String(10), "identity"),
    _each(sa.String(16), "state"),
    _each(sa.BigInteger, "since?"),
    _each(sa.Integer, "streak"),
    _each(sa.BigInteger, "known?"),
)
"""State of each alert rule on each slice; `identity` is of the rule and its series."""

judged = _table("judged", _key(sa.Text, "monitor"), _each(sa.BigInteger, "until"), _each(sa.Boolean, "restated"))
"""End of the last window evaluated by a monitor's rules; `restated` if older buckets were stored since."""

incidents = _table(
    "incidents",
    _key(sa.String(10), "id"),
    _each(sa.Text, "monitor", index=True),
    _each(sa.String(16), "state", index=True),
    _each(sa.String(16), "severity"),
    _each(sa.Boolean, "retrain"),
    _each(sa.BigInteger, "began_at opened_at closed_at?"),
    _each(sa.Boolean, "told"),
    _each(sa.Text, "summary"),
    _each(sa.Double, "acknowledged_at?"),
    _each(sa.Text, "acknowledged_by? note?"),
    _each(sa.Text, "label? labelled_by? label_note?"),
    _each(sa.String(16), "matter", server_default="quality"),
    _each(sa.Text, "origin?"),
)

transitions = _table(
    "transitions",
    _id(),
    _each(sa.Text, "monitor"),
    _each(sa.String(10), "incident?", index=True),
    _each(sa.Text, "rule dimension value"),
    _each(sa.String(16), "was became"),
    _each(sa.BigInteger, "at"),
    _each(sa.Double, "recorded_at"),
    _each(sa.Text, "reason evidence"),
    sa.Index("ix_transitions_monitor_at", "monitor", "at"),
)

drift_states = _table(
    "drift_states",
    _key(sa.Text, "monitor"),
    _each(sa.String(10), "identity"),
    _each(sa.BigInteger, "until"),
    _each(sa.Text, "state"),
)
"""State of a monitor's verdicts at `until`; `identity` is of what is judged, and how."""

drift_borders = _table(
    "drift_borders",
    _key(sa.Text, "monitor"),
    _each(sa.String(10), "identity"),
    _each(sa.Text, "series"),
    _each(sa.BigInteger, "until"),
    _each(sa.Text, "state conditions"),
)
"""State of verdicts at the end of what was rolled up or deleted; earlier ones cannot be recomputed. `series` are the
judged definitions, `conditions` those of the verdicts, as JSON."""

verdicts = _table(
    "verdicts",
    _key(sa.Text, "monitor"),
    _key(sa.BigInteger, "at"),
    _each(sa.String(24), "kind"),
    _each(sa.BigInteger, "requests"),
    _each(sa.Double, "observed? expected?"),
    _each(sa.Text, "document"),
    _each(sa.Double, "mix_effect?"),
)
"""One verdict per judged step, by the end of the step; `document` is the full verdict as JSON.

`mix_effect`: relative change of the mean caused by the mix; NULL where the verdict reports none.
"""

baselines = _table(
    "baselines",
    _key(sa.Text, "monitor"),
    _key(sa.BigInteger, "since"),
    _each(sa.Text, "author note"),
    _each(sa.Double, "set_at"),
    _each(sa.BigInteger, "judged_until?"),
)
"""Baseline resets, and how far the verdicts were when each was made."""

announcements = _table(
    "announcements",
    _key(sa.Text, "monitor"),
    _key(sa.BigInteger, "since"),
    _each(sa.BigInteger, "until"),
    _each(sa.Text, "author note"),
    _each(sa.Boolean, "is_new_level"),
    _each(sa.Double, "set_at"),
)
"""What people announced: times that verdicts neither judge nor learn from."""

examinations = _table(
    "examinations",
    _key(sa.Text, "monitor"),
    _key(sa.BigInteger, "at"),
    _each(sa.Double, "lower? upper?"),
    _each(sa.Boolean, "is_sound"),
    _each(sa.Text, "document"),
)
"""One check a day of where people look, by the end of its last day; `document` has both fits as JSON.

`lower`, `upper`: 95 % interval of the relative change of the corrected measure; NULL where people look where
they did, or did lately.
`is_sound`: clicks are fewer, and none of them were lost.
"""

diagnoses = _table(
    "diagnoses",
    _key(sa.String(10), "incident"),
    _key(sa.Text, "rule dimension value"),
    _each(sa.Text, "monitor", index=True),
    _each(sa.Double, "taken_at"),
    _each(sa.Text, "document error"),
)
"""Where the fall of a condition came from, as JSON, captured when it started firing: the source may purge its requests
later. If that failed, the reason, and no document."""

silences = _table(
    "silences",
    _id(),
    _each(sa.Text, "monitor", index=True),
    _each(sa.Double, "since until"),
    _each(sa.Text, "author note"),
)

retrains = _table(
    "retrains",
    _key(sa.String(16), "key"),
    _each(sa.Text, "monitor", index=True),
    _each(sa.String(10), "incident"),
    _each(sa.BigInteger, "asked_at"),
)

outbox = _table(
    "outbox",
    _id(),
    _each(sa.Text, "target"),
    _each(sa.String(10), "incident", index=True),
    _each(sa.String(16), "kind"),
    _each(sa.String(40), "key"),
    _each(sa.Text, "document"),
    _each(sa.Double, "created_at"),
    _each(sa.Integer, "attempts"),
    _each(sa.Double, "next_at"),
    _each(sa.Text, "last_error"),
    _each(sa.Double, "begun_at? sent_at? dropped_at?"),
    _each(sa.Text, "receipt?"),
    sa.UniqueConstraint("key", "target", name="uq_outbox_key"),
    sa.Index("ix_outbox_waiting", "sent_at", "dropped_at", "next_at"),
)
"""Notifications, written with what they report; `target` is one receiver of a channel."""

_VIEW = """
SELECT
    series.monitor,
    series.kernel AS measure,
    series.definition,
    slices.dimension,
    slices.value,
    {time} AS "time",
    buckets.bucket_start,
    CASE WHEN buckets.seconds > 0 THEN buckets.seconds ELSE series.bucket_seconds END AS bucket_seconds,
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
    buckets.final,
    current_series.series_id IS NOT NULL AS is_current
FROM partials
JOIN buckets ON buckets.id = partials.bucket_id
JOIN series ON series.id = buckets.series_id
JOIN slices ON slices.id = partials.slice_id
LEFT JOIN current_series ON current_series.series_id = series.id
"""
"""One row per bucket and slice, coarser ones included, for people and Grafana's SQL data sources. Do not mix values of
different definitions: `is_current` marks the current ones. For a longer window, sum `total`, `requests` and `empty`
over buckets before dividing; never average the means of buckets."""

_VIEW_TIME = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%SZ', buckets.bucket_start, 'unixepoch')",
    "postgresql": "to_timestamp(buckets.bucket_start)",
}


def buckets_view(dialect: str) -> str:
    """The statement that creates the view `rankmon_buckets` in a dialect of the store."""
    return f"CREATE VIEW rankmon_buckets AS{_VIEW.format(time=_VIEW_TIME[dialect])}"
