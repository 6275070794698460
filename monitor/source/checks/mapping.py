"""Finds every misfit of a mapping, each by its own query: a database reports only the first, in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from monitor.errors import SourceError
from monitor.source.checks.remarks import Key, Remark, columns_of, instead, relations_of
from monitor.source.dialects.faults import OF_SCHEMAS
from monitor.source.engine import Database
from monitor.source.queries import SAMPLE, Queries
from monitor.source.times import check
from monitor.types import Events, Monitor, Relation, TimeColumn

TOLD = ("missing", "data", "query")
"""SourceError reasons that can mean a wrong mapping."""


@dataclass(frozen=True)
class _Side:
    name: str
    alias: str
    key: Key
    relation: Relation
    time: TimeColumn | None

    @property
    def place(self) -> str:
        table = ".".join(self.relation.table)
        return f"the {self.name}, {table}" if table else f"the {self.name}' SELECT"


def check_mapping(monitor: Monitor, database: Database) -> list[Remark]:
    """All misfits, each with its key; empty if the source fails for another reason.

    Raises:
        SourceError: the source does not answer.
    """
    with database.reading(monitor.name) as reader:
        queries = Queries(monitor, reader.dialect)
        reader.one(sa.select(sa.literal_column("1")))
    times = monitor.rankings.time, monitor.recipe.time if isinstance(monitor.recipe, Events) else None
    sides = zip(("rankings", "labels"), "re", relations_of(monitor), times, strict=False)
    found = [_of_side(queries, database, _Side(name, alias, *of, time)) for name, alias, of, time in sides]
    return [remark for remarks in found for remark in remarks]


def _of_side(queries: Queries, database: Database, side: _Side) -> Iterator[Remark]:
    of_it = queries.logged if side.alias == "r" else queries.labels
    try:
        with database.reading(queries.monitor.name) as reader:
            there = reader.names(of_it)
    except SourceError as error:
        if error.reason in TOLD:
            yield _no_relation(database, side, error)
        return
    wanted = [(key, name) for alias, key, name in columns_of(queries.monitor) if alias == side.alias and name]
    absent = [(key, name) for key, name in wanted if name not in there and not _has(database, of_it, name)]
    for key, name in absent:
        text = f"there is no column {name!r} in {side.place}; {instead(name, there)}"
        yield Remark(key, text + database.sql.absent_column_hint(side.relation.select))
    if side.time is not None and side.time.column not in [name for _, name in absent]:
        yield from _of_time(database, of_it, side.time, (*side.key, "time"))


def _no_relation(database: Database, side: _Side, error: SourceError) -> Remark:
    """Covers a missing table, a SELECT that fails, and a broken view."""
    said, name = str(error).removeprefix(f"source {database.name}: "), ".".join(side.relation.table)
    if error.reason != "missing" or not name or side.relation.table[-1] not in said:
        return Remark((*side.key, "table" if name else "select"), said)
    of_schemas = OF_SCHEMAS if database.sql.has_users else ""
    offered = instead(side.relation.table[-1], _tables(database, side.relation))
    return Remark((*side.key, "table"), f"there is no table {name!r}{offered and '; '}{offered}{of_schemas}")


def _tables(database: Database, relation: Relation) -> list[str]:
    """Available tables and views; empty if the database cannot list them cheaply."""
    text = database.sql.tables_query
    if not text:
        return []
    schema = relation.table[-2] if len(relation.table) > 1 else None
    told = sa.text(text)
    with_schema = told.bindparams(sa.bindparam("schema", schema, sa.String())) if ":schema" in text else told
    try:
        with database.reading() as reader:
            return sorted(str(name) for name in reader.columns(with_schema)[0])
    except SourceError:
        return []


def _has(database: Database, relation: sa.FromClause, name: str) -> bool:
    """Whether an unlisted column exists: in other capitals, or added by the system."""
    try:
        with database.reading() as reader:
            reader.types(sa.select(relation.c[name]).where(sa.false()))
    except SourceError:
        return False
    return True


def _of_time(database: Database, relation: sa.FromClause, time: TimeColumn, key: Key) -> Iterator[Remark]:
    """Remarks if sampled times are not written as declared."""
    column = relation.c[time.column]
    try:
        with database.reading() as reader:
            values = reader.columns(sa.select(column).where(column.isnot(None)).limit(SAMPLE))[0]
    except SourceError:
        return  # the driver cannot read the values; its own error says so
    try:
        check(time, values)
    except SourceError as error:
        yield Remark(key, str(error))
