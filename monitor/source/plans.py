"""What PostgreSQL would go through for one read, by EXPLAIN: whether an index or a partition bounds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.errors import SourceError
from monitor.source.choice import in_full
from monitor.source.engine import Database, Reader
from monitor.source.queries import Queries
from monitor.types import Events, Monitor

LEAST = 2**20
"""Bytes of a table from which on it matters that all of it is read."""

Plan = dict[str, Any]
Table = tuple[str, str]
"""(schema, name)."""

_BOUNDS = ("Index Cond", "Recheck Cond", "TID Cond")

_PROBE = "rankmon: whose time is this?"
"""What a time is compared with to see where the plan looks at it."""

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
"""Of some tables: schema, name, bytes, and the name of each table that it is a part of, itself first."""


class _Part(NamedTuple):
    """A table that may be a part of another one.

    Attributes:
        size: bytes.
        names: its own, and those of the tables that it is a part of, the nearest first.
    """

    table: Table
    size: int
    names: list[str]


def gone_through(monitor: Monitor, database: Database, statements: Sequence[str], by_sums: bool) -> list[str]:
    """That all of a large table with times is read for each bucket, in words with the remedy.

    Nothing is said of other databases, nor of those that speak as PostgreSQL does and have no such EXPLAIN or catalog;
    nor of tables that have no part in the times, such as those of judgments and those that a `select:` looks up.

    The planner is kept from reading whole tables where anything else serves, so that the report is no choice of its
    own: neither an index nor a partition can be used for the times that are asked for.

    Args:
        statements: in full, as they are sent for one bucket.
        by_sums: they are those of push-down, for which other ways of joining are taken.

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
        f"all of {shown} ({size / 2**20:,.0f} MB) is gone through for each read, for no index and no partition bounds "
        "its time; index the time column, or the expression that a `select:` makes of it, or store it as it is read"
        for shown, size in found
        if size >= LEAST
    ]


def _unbounded(monitor: Monitor, database: Database, statements: Sequence[str], by_sums: bool) -> list[tuple[str, int]]:
    """(name, bytes) of each table with times of which every part is read as a whole."""
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
    """The tables, together with those that are parts of the same one, by partitions or by inheritance.

    One that holds nothing itself and has parts here is left out.
    """
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
    """A statement for each relation that has times, which compares them with what no index and no partition knows."""
    queries, recipe = Queries(monitor, (None,), dialect), monitor.recipe
    times = [queries.time, *([queries.labels.c[recipe.time.column]] if isinstance(recipe, Events) else [])]
    for time in times:
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
    """The nodes that read a table."""
    return (node for node in _nodes(plan) if "Relation Name" in node)


def _table(scan: Plan) -> Table:
    return scan["Schema"], scan["Relation Name"]


def _with_times(plan: Plan) -> set[Table]:
    """The tables from whose rows a probe's times are made.

    PostgreSQL looks at them where it reads the table if it can. Where it must work out more before, as for a window
    function, any of the tables beneath may have them.
    """
    common = {node["Subplan Name"]: node for node in _nodes(plan) if "Subplan Name" in node}
    found = set[Table]()
    for node in _nodes(plan):
        if any(_PROBE in value for value in node.values() if isinstance(value, str)):
            beneath = common.get(f"CTE {node.get('CTE Name')}", node)
            found |= {_table(scan) for scan in _scans(beneath)}
    return found


def _whole(plan: Plan) -> set[Table]:
    """The tables that a plan reads without a bound."""
    return {_table(scan) for scan in _scans(plan) if not any(bound in scan for bound in _BOUNDS)}
