"""What PostgreSQL would go through for one read, by EXPLAIN: whether an index or a partition bounds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from monitor.errors import SourceError
from monitor.source.engine import Database, Reader

LEAST = 2**20
"""Bytes of a table from which on it matters that all of it is read."""

_BOUNDS = ("Index Cond", "Recheck Cond", "TID Cond")

_FAMILY = """
SELECT coalesce(pg_partition_root(c.oid), i.inhparent, c.oid)::bigint AS family, pg_relation_size(c.oid) AS size,
       CASE WHEN pg_partition_root(c.oid) IS NOT NULL
            THEN (SELECT count(*) FROM pg_partition_tree(pg_partition_root(c.oid)) WHERE isleaf)
            WHEN i.inhparent IS NOT NULL THEN (SELECT count(*) FROM pg_inherits AS s WHERE s.inhparent = i.inhparent)
            ELSE 1 END AS parts,
       coalesce(pg_partition_root(c.oid), i.inhparent, c.oid)::regclass::text AS name
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE n.nspname = :schema AND c.relname = :name
"""
"""A table, or the one it is a part of: its number, bytes, how many parts that one has, and its name."""


def gone_through(database: Database, statements: Sequence[str], by_sums: bool) -> list[str]:
    """That all of a large table is read for each bucket, in words with the remedy.

    Nothing is said of other databases, nor of those that speak as PostgreSQL does and have no such EXPLAIN or catalog.

    The planner is kept from reading whole tables where anything else serves, so that what is told is no choice of its
    own: neither an index nor a partition can be used for the times that are asked for.

    Args:
        statements: in full, as they are sent for one bucket.
        by_sums: they are those of push-down, for which other ways of joining are taken.

    Raises:
        SourceError: the source did not answer.
    """
    if database.dialect != "postgresql":
        return []
    try:
        found = _unbounded(database, statements, by_sums)
    except SourceError as error:
        if error.reason not in ("query", "missing", "data"):
            raise
        return []
    return [
        f"all of {shown} ({size / 2**20:,.0f} MB) is gone through for each read, for no index and no partition bounds "
        "its time; index the time column, or the expression that a `select:` makes of it, or store it as it is read"
        for shown, size, parts, seen in found
        if size >= LEAST and len(seen) >= parts
    ]


def _unbounded(database: Database, statements: Sequence[str], by_sums: bool) -> list[tuple[str, int, int, set[str]]]:
    """(name, bytes of the parts that are read as a whole, parts in all, those parts) of each table."""
    found: dict[int, tuple[str, int, int, set[str]]] = {}
    with database.reading() as reader:
        if by_sums:
            reader.prepare_to_sum()
        reader.one(sa.text("SELECT set_config('enable_seqscan', 'off', true)"))
        for schema, name in sorted({table for text in statements for table in _whole(_plan(reader, text))}):
            for family, size, parts, shown in zip(*reader.columns(_family(schema, name)), strict=True):
                _, before, _, seen = found.get(family, (shown, 0, parts, set()))
                found[family] = shown, before + size, parts, {*seen, f"{schema}.{name}"}
    return list(found.values())


def _family(schema: str, name: str) -> sa.TextClause:
    return sa.text(_FAMILY.replace("::", r"\:\:")).bindparams(schema=schema, name=name)


def _plan(reader: Reader, text: str) -> dict[str, Any]:
    ((found),) = reader.one(sa.text("EXPLAIN (VERBOSE, FORMAT JSON) " + text.replace(":", r"\:")))
    plan: dict[str, Any] = found["Plan"]
    return plan


def _whole(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(schema, name) of what a plan reads without a bound."""
    if "Relation Name" in node and not any(bound in node for bound in _BOUNDS):
        yield node["Schema"], node["Relation Name"]
    for below in node.get("Plans", ()):
        yield from _whole(below)
