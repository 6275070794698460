"""Asks PostgreSQL by EXPLAIN whether an index or partition bounds a read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.errors import SourceError
from monitor.source.choice import Choice, explained, in_full
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
SELECT n.nspname, c.relname, pg_relation_size(a.part), a.above::regclass::text
FROM above AS a JOIN pg_class AS c ON c.oid = a.part JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY a.part, a.height
"""
"""SQL: schema, name, bytes of given tables, and each ancestor's name, starting with the table itself."""


class _Part(NamedTuple):
    """A table, its bytes, and the names of itself and its ancestors, nearest first."""

    table: Table
    size: int
    names: list[str]


def explained_now(monitor: Monitor, database: Database, now: float) -> tuple[Choice, list[str], list[str]]:
    """`explained` for the last whole bucket before `now`, and the messages of `gone_through`. Raises SourceError."""
    until = int(now) // monitor.bucket * monitor.bucket
    choice, statements = explained(monitor, database, until - monitor.bucket, until)
    return choice, statements, gone_through(monitor, database, statements, choice.way == "pushdown")


def gone_through(monitor: Monitor, database: Database, statements: Sequence[str], by_sums: bool) -> list[str]:
    """Messages with the fix for large timed tables that each bucket scans in full.

    Silent on other databases, on compatible ones without such an EXPLAIN or catalog, and on tables without times, such
    as judgments and lookups of a `select:`.

    Sequential scans are disabled, so a reported one means that no index or partition can serve the time range.

    Args:
        statements: complete, as sent for one bucket.
        by_sums: they are push-down's, which is planned with other join settings.

    Raises:
        SourceError: the source did not answer.
    """
    if not database.sql.explains_bounds:
        return []
    try:
        found = _unbounded(monitor, database, statements, by_sums)
    except SourceError as error:
        if error.reason not in ("query", "missing", "data"):
            raise
        return []
    return [
        f"all of {shown} ({size / 2**20:,.0f} MB) is scanned on each read, because no index or partition limits "
        "its time; index the time column, or the expression a `select:` uses for it, or store it as read"
        for shown, size in found
        if size >= LEAST
    ]


def _unbounded(monitor: Monitor, database: Database, statements: Sequence[str], by_sums: bool) -> list[tuple[str, int]]:
    """(name, bytes) of each timed table of which every part is scanned in full."""
    with database.reading() as reader:
        if by_sums:
            reader.prepare_to_sum()
        reader.one(sa.text("SELECT set_config('enable_seqscan', 'off', true)"))
        timed = {table for text in _probes(monitor, reader.dialect) for table in _with_times(_plan(reader, text))}
        whole = {table for text in statements for table in _whole(_plan(reader, text))}
        if not timed & whole:
            return []
        families = _families(reader, timed)
    return [
        (next(name for name in parts[0].names if all(name in part.names for part in parts)), sum(p.size for p in parts))
        for parts in families
        if all(part.table in whole for part in parts)
    ]


def _families(reader: Reader, tables: set[Table]) -> list[list[_Part]]:
    """Tables grouped by common ancestor, without empty parents whose parts are present."""
    query = sa.text(_ANCESTORS.replace("::", r"\:\:")).bindparams(
        sa.bindparam("tables", sorted(tables), expanding=True)
    )
    parts: dict[Table, _Part] = {}
    for schema, name, size, above in zip(*reader.columns(query), strict=True):
        parts.setdefault((schema, name), _Part((schema, name), size, [])).names.append(above)
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


def _with_times(plan: Plan) -> set[Table]:
    """Tables that supply a probe's times: filtered at the scan, or any below a node that computes first."""
    common = {node["Subplan Name"]: node for node in _nodes(plan) if "Subplan Name" in node}
    found = set[Table]()
    for node in _nodes(plan):
        if any(_PROBE in value for value in node.values() if isinstance(value, str)):
            beneath = common.get(f"CTE {node.get('CTE Name')}", node)
            found |= {_table(scan) for scan in _scans(beneath)}
    return found


def _whole(plan: Plan) -> set[Table]:
    return {_table(scan) for scan in _scans(plan) if not any(bound in scan for bound in _BOUNDS)}
