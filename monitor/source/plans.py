"""Asks PostgreSQL by EXPLAIN whether an index or partition bounds a read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.errors import SourceError
from monitor.source.choice import Choice, explain_choice, in_full
from monitor.source.dialects import dialect_of
from monitor.source.engine import Database, Reader
from monitor.source.queries import Queries
from monitor.types import Monitor

LEAST = 2**20
"""Table size in bytes from which a full scan matters."""

Plan = dict[str, Any]
Table = tuple[str, str]
"""(schema, name)."""

_BOUNDS = ("Index Cond", "Recheck Cond", "TID Cond")

_PROBE = "rankmon: whose time is this?"
"""A value compared with a time, to find where the plan filters on it."""

_ANCESTORS = """
WITH RECURSIVE above AS (
    SELECT c.oid AS part, c.oid AS above, 0 AS height
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN :tables
    UNION ALL
    SELECT a.part, i.inhparent, a.height + 1 FROM above AS a JOIN pg_inherits AS i ON i.inhrelid = a.above
)
SELECT n.nspname, c.relname, pg_relation_size(a.part), c.reltuples, a.above::regclass::text
FROM above AS a JOIN pg_class AS c ON c.oid = a.part JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY a.part, a.height
"""
"""SQL: schema, name, bytes and rows of given tables, and each ancestor's name, starting with the table itself."""


NO_INDEX = (
    "because no index or partition limits its time; index the time column, or the expression a `select:` uses for it, "
    "or store it as read"
)
COMPUTED_FIRST = (
    "because the `select:` computes something of other rows before its time is compared, e.g. by a window function, "
    "DISTINCT or MATERIALIZED, so that no index on the time can help; compute it of rows of one time only, e.g. with "
    "the time in PARTITION BY too, or store the result in a table"
)
INDEX_NOT_USED = (
    "although an index or partition limits its time: PostgreSQL expects the scan to be faster; run ANALYZE on it, and "
    "on fast disks lower random_page_cost"
)
MUCH = 10
"""Times the rows that a read keeps, from which on a scan of a table with an index is worth a message."""


class _Part(NamedTuple):
    """A table, its bytes and rows, and the names of itself and its ancestors, nearest first."""

    table: Table
    size: int
    rows: float
    names: list[str]


def explained_now(monitor: Monitor, database: Database, now: float) -> tuple[Choice, list[str], list[str]]:
    """`explain_choice` for the last whole bucket before `now`, and messages of `gone_through`. Raises SourceError."""
    until = int(now) // monitor.bucket * monitor.bucket
    span = until - monitor.bucket, until
    choice, statements = explain_choice(monitor, database, *span)
    return choice, statements, gone_through(monitor, database, statements, span, choice.way == "pushdown")


def gone_through(
    monitor: Monitor, database: Database, statements: Sequence[str], span: tuple[int, int], by_sums: bool
) -> list[str]:
    """Messages with the fix for large timed tables that each bucket scans in full.

    Silent on other databases, on compatible ones without such an EXPLAIN or catalog, and on tables without times, such
    as judgments and lookups of a `select:`.

    Args:
        statements: complete, as sent for one bucket, [since, until) seconds of `span`.
        by_sums: they are push-down's, which is planned with other settings.

    Raises:
        SourceError: the source did not answer.
    """
    if not database.sql.explains_bounds:
        return []
    try:
        found = _scanned(monitor, database, statements, span, by_sums)
    except SourceError as error:
        if error.reason not in ("query", "missing", "data"):
            raise
        return []
    return [
        f"all of {shown} ({size / 2**20:,.0f} MB) is scanned on each read, {why}"
        for shown, size, why in found
        if size >= LEAST
    ]


def _scanned(
    monitor: Monitor, database: Database, statements: Sequence[str], span: tuple[int, int], by_sums: bool
) -> list[tuple[str, int, str]]:
    """(name, bytes, why and what to do) of each timed table of which every part is scanned in full."""
    with database.reading() as reader:
        if by_sums:
            reader.prepare_to_sum()
        sent = [scan for text in statements for scan in _whole(_plan(reader, text))]
        kept = {_table(scan): min(s["Plan Rows"] for s in sent if _table(s) == _table(scan)) for scan in sent}
        # What is still scanned then cannot be bounded by any index or partition.
        reader.one(sa.text("SELECT set_config('enable_seqscan', 'off', true)"))
        unbounded = {_table(s) for text in _bounded(monitor, reader.dialect, span) for s in _whole(_plan(reader, text))}
        of_times = [_with_times(_plan(reader, text)) for text in _probes(monitor, reader.dialect)]
        timed = {table for remarks in of_times for table in remarks}
        families = _families(reader, timed) if timed & {*kept, *unbounded} else []
    remarks = []
    for parts in families:
        why = ""
        if all(part.table in unbounded for part in parts):
            is_filtered = any(tables.get(part.table) for tables in of_times for part in parts)
            why = NO_INDEX if is_filtered else COMPUTED_FIRST
        elif all(MUCH * kept.get(part.table, part.rows) < part.rows for part in parts):
            why = INDEX_NOT_USED
        if why:
            name = next(name for name in parts[0].names if all(name in part.names for part in parts))
            remarks.append((name, sum(part.size for part in parts), why))
    return remarks


def _families(reader: Reader, tables: set[Table]) -> list[list[_Part]]:
    """Tables grouped by common ancestor, without empty parents whose parts are present."""
    query = sa.text(_ANCESTORS.replace("::", r"\:\:")).bindparams(
        sa.bindparam("tables", sorted(tables), expanding=True)
    )
    parts: dict[Table, _Part] = {}
    for schema, name, size, rows, above in zip(*reader.columns(query), strict=True):
        parts.setdefault((schema, name), _Part((schema, name), size, rows, [])).names.append(above)
    with_parts = {name for part in parts.values() for name in part.names[1:]}
    found: defaultdict[str, list[_Part]] = defaultdict(list)
    for part in parts.values():
        if part.size or part.names[0] not in with_parts:
            found[part.names[-1]].append(part)
    return list(found.values())


# ---- plans ---------------------------------------------------------------------------------------------------------


def _probes(monitor: Monitor, dialect: sa.Dialect) -> Iterator[str]:
    """One statement per timed relation, with a comparison that no index or partition can serve."""
    for _, time, _ in Queries(monitor, dialect).times:
        yield in_full(sa.select(time).where(sa.cast(time, sa.Text) != _PROBE), dialect)


def _bounded(monitor: Monitor, dialect: sa.Dialect, span: tuple[int, int]) -> Iterator[str]:
    """One statement per timed relation, for its rows of a time range and nothing more."""
    for declared, time, _ in Queries(monitor, dialect).times:
        inside = dialect_of(dialect.name).between(time, declared, *span)
        yield in_full(sa.select(time).where(inside), dialect)


def _plan(reader: Reader, text: str) -> Plan:
    ((found),) = reader.one(sa.text("EXPLAIN (VERBOSE, FORMAT JSON) " + text.replace(":", r"\:")))
    plan: Plan = found["Plan"]
    return plan


def _nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _scans(plan: Plan) -> Iterator[Plan]:
    return (node for node in _nodes(plan) if "Relation Name" in node)


def _table(scan: Plan) -> Table:
    return scan["Schema"], scan["Relation Name"]


def _with_times(plan: Plan) -> dict[Table, bool]:
    """Tables that supply a probe's times -> whether they are filtered at the scan; else a node above computes first."""
    common = {node["Subplan Name"]: node for node in _nodes(plan) if "Subplan Name" in node}
    found = dict[Table, bool]()
    for node in _nodes(plan):
        if any(_PROBE in value for value in node.values() if isinstance(value, str)):
            beneath = common.get(f"CTE {node.get('CTE Name')}", node)
            found |= {_table(scan): scan is node for scan in _scans(beneath)}
    return found


def _whole(plan: Plan) -> list[Plan]:
    return [scan for scan in _scans(plan) if not any(bound in scan for bound in _BOUNDS)]
