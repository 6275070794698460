"""Reads the contents of a database for `rankmon init`: its tables, and samples of their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
import pandas as pd
import sqlalchemy as sa

from monitor.errors import InputError, SourceError
from monitor.source.dialects.base import IdKind
from monitor.source.engine import Database, Reader
from monitor.source.queries import unrolled, untyped
from monitor.types import Relation

T = TypeVar("T")

ROWS = 5_000
"""Rows in a sample: some 500 requests with ten items."""

SYSTEM_SCHEMAS = ("information_schema", "INFORMATION_SCHEMA", "mysql", "performance_schema", "sys", "system")

READERS = {".parquet": "read_parquet", ".csv": "read_csv", ".gz": "read_csv"}
"""DuckDB's function for files of a kind, by the end of their name."""


@dataclass(frozen=True)
class Table:
    """A table, view or SELECT of the source, with a sample of its rows as the driver returns them.

    Attributes:
        names: of all its columns.
        sample: (rows, columns), dtype object; None stands for NULL.
        origin: what a SELECT made by `flat_lists` or `flattened` reads.
        members: name -> expression of each column that `flattened` added.
        items: the column with the lists that `flat_lists` unrolled; else empty.
    """

    relation: Relation
    names: tuple[str, ...]
    sample: pd.DataFrame = field(compare=False, repr=False, default_factory=pd.DataFrame)
    origin: Relation | None = None
    members: Mapping[str, str] = field(compare=False, default_factory=dict)
    items: str = ""

    @property
    def title(self) -> str:
        """Its name for people, with the column of its lists if they were unrolled."""
        named = self.origin if self.items and self.origin is not None else self.relation
        return f"{'.'.join(named.table) or named.select}{self.items and f' ({self.items})'}"

    @cached_property
    def clause(self) -> sa.FromClause:
        """Its columns, untyped, to select from."""
        columns: list[sa.ColumnClause[Any]] = [sa.column(name) for name in self.names]
        if self.relation.select:
            return sa.text(self.relation.select).columns(*columns).subquery("t")
        *schema, name = self.relation.table
        return sa.table(name, *columns, schema=".".join(schema) or None)

    def reading(self, used: Collection[str]) -> Relation:
        """The relation as mapped: with only those of its `members` that are `used`, or a row per list."""
        if self.origin is None:
            return self.relation
        return _with_members(self.origin, {name: e for name, e in self.members.items() if name in used})


def tables(
    database: Database,
    files: Sequence[str] = (),
    only: Collection[str] = (),
    leave_out: Callable[[str], object] = lambda why: None,
) -> list[Table]:
    """The database's tables and views with samples, and `files` that DuckDB reads; empty tables are left out.

    Args:
        only: names of the tables to look at; by default all but the parts of others, such as partitions.
        leave_out: called for each reason why tables cannot be read, with their names, if they are not in `only`.

    Raises:
        InputError: a file is of an unknown kind, or there is no table of a name.
        SourceError: the database does not answer, or a file or table that was named cannot be read.
    """
    relations = [Relation(select=_reads(database, file)) for file in files]
    with database.reading() as reader:
        found, parts = reader.tables(SYSTEM_SCHEMAS), reader.parts()
    known = {".".join(name): Relation(table=name) for name in found}
    whole = [name for name, relation in known.items() if relation.table not in parts]
    if missing := [name for name in only if name not in known]:
        raise InputError(f"there is no table {missing[0]}; known are {', '.join(whole)}")
    relations += [known[name] for name in only or whole]
    sampled, unread = [], dict[str, dict[str, str]]()
    for relation in relations:
        try:
            table = sampled_from(database, relation)
        except SourceError as error:
            if relation.select or only or error.reason == "connect":
                raise
            unread.setdefault(error.reason, {})[".".join(relation.table)] = str(error)
            continue
        if len(table.sample):
            sampled.append(table)
    for why in unread.values():
        leave_out(_in_short(why))
    return sampled


def _in_short(why: Mapping[str, str]) -> str:
    """Why a table cannot be read; of several, their number, and why the first cannot."""
    first = min(why)
    many = f"{len(why):,} tables, such as " if len(why) > 1 else ""
    return f"{many}{first}: {why[first]}"


def _reads(database: Database, file: str) -> str:
    reader = READERS.get(Path(file).suffix)
    if reader is None:
        raise InputError(f"{file}: is not a file of a known kind; known are {', '.join(READERS)}")
    if database.dialect != "duckdb":
        raise InputError(f"{file}: only DuckDB reads files; use the URL duckdb:///:memory:")
    path = str(Path(file).absolute()).replace("'", "''")
    return f"SELECT * FROM {reader}('{path}')"


def sampled_from(database: Database, relation: Relation) -> Table:
    """The table with its first rows. Raises SourceError."""
    with database.reading() as reader:
        bare = Table(relation, ())
        names = tuple(reader.names(sa.text(f"({relation.select}) AS t") if relation.select else bare.clause))
        table = replace(bare, names=names)
        return replace(table, sample=_frame(reader, table, sa.select(*table.clause.c).limit(ROWS)))


def flat_lists(database: Database, table: Table, column: str, as_text: bool = False) -> Table:
    """The table with one row per element of the lists in `column`, with ITEM and PLACE. Raises SourceError.

    Args:
        as_text: whole numbers in JSON as text; else as numbers. An array keeps its type.
    """
    lists = filter(None, map(as_list, table.sample[column]))
    found = [value for values in lists if are_ids(values) for value in values]
    kind: IdKind = "number" if are_whole(found) and not as_text else "text"
    with database.reading() as reader:
        (code,), dialect = reader.types(sa.select(table.clause.c[column])), reader.dialect
    most = max(ROWS * len(table.sample) // max(len(found), 1), 1)
    # Before they are unrolled, as a plan may cut lists into pieces.
    some = Relation(select=f"SELECT * FROM {quoted(table.relation)} LIMIT {most}")
    sampled = sampled_from(database, unrolled(some, column, dialect, code, kind))
    every = unrolled(table.relation, column, dialect, code, kind)
    origin = table.relation if table.origin is None else table.origin
    return replace(sampled, relation=every, origin=origin, members=table.members, items=column)


def flattened(database: Database, table: Table, as_text: bool = False) -> Table:
    """The table with a column for each value inside its objects (JSON or structures); itself if there are none.

    Such a column is named by its path: `event_attributes_object_object_id`. Raises SourceError.

    Args:
        as_text: whole numbers in JSON as text; else as numbers.
    """
    members = {}
    for column in table.names:
        objects = [found for found in map(as_object, table.sample[column]) if found is not None]
        forms, is_text = database.sql.members, _is_text(table.sample[column])
        for path in dict.fromkeys(path for found in objects for path in _paths(found)):
            is_whole = not as_text and are_whole([value for found in objects for value in _inside(found, path)])
            if form := forms.get((is_text, is_whole)):
                expression = form.format(column=column, path=".".join(path), comma=",".join(path))
                members["_".join((column, *path))] = expression
    if not members:
        return table
    found = sampled_from(database, _with_members(table.relation, members))
    return replace(found, origin=table.relation, members=members)


def _with_members(origin: Relation, members: Mapping[str, str]) -> Relation:
    if not members:
        return origin
    more = ", ".join(f"{expression} AS {name}" for name, expression in members.items())
    return Relation(select=f"SELECT t.*, {more} FROM {quoted(origin)} AS t")


def as_list(value: Any) -> list[Any] | None:
    """The list that a value is, or that it is in JSON; None if it is none."""
    if isinstance(value, list | tuple | np.ndarray):
        return list(value)
    return _parsed(value, "[", list)


def as_object(value: Any) -> dict[str, Any] | None:
    """The object that a value is, or that it is in JSON; None if it is none."""
    return value if isinstance(value, dict) else _parsed(value, "{", dict)


def _parsed(value: Any, begins: str, kind: type[T]) -> T | None:
    if not isinstance(value, str) or not value.lstrip().startswith(begins):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, kind) else None


def _is_text(column: pd.Series[Any]) -> bool:
    return any(isinstance(value, str) for value in column)


def _paths(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from ((name, *path) for path in _paths(value))
        elif not isinstance(value, list):
            yield (name,)


def _inside(found: Any, path: Sequence[str]) -> Iterator[Any]:
    """The value at a path, if there is one."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if found is not None:
        yield found


def are_ids(values: Collection[Any]) -> bool:
    """Whether all values are texts, whole numbers or UUIDs."""
    return all(isinstance(v, str | int | UUID) and not isinstance(v, bool) for v in values)


def are_whole(values: Collection[Any]) -> bool:
    """Whether there are values, and all are whole numbers of 64 bits."""
    return bool(values) and all(type(v) is int and -(2**63) <= v < 2**63 for v in values)


def quoted(relation: Relation) -> str:
    """The relation as written in a FROM."""
    return f"({relation.select})" if relation.select else ".".join(relation.table)


def rows_with(database: Database, table: Table, column: str, values: Collection[Any]) -> pd.DataFrame:
    """Up to ROWS rows of a table whose `column` has one of `values`; none if that takes too long or fits no type.

    Raises:
        SourceError: the table cannot be read, as by a damaged file.
    """
    try:
        found = _rows_with(database, table, column, values)
    except SourceError:
        found, own = None, table.sample[column].dropna().tolist()[:1]
        _rows_with(database, table, column, own)  # fits the type, so it fails only if the table cannot be read
    return pd.DataFrame(columns=list(table.names), dtype=object) if found is None else found


def _rows_with(database: Database, table: Table, column: str, values: Collection[Any]) -> pd.DataFrame | None:
    """The rows; None if that takes too long."""
    clause = table.clause
    found = sa.select(*clause.c).where(clause.c[column].in_([untyped(v) for v in values])).limit(ROWS)
    try:
        with database.reading() as reader:
            return _frame(reader, table, found)
    except SourceError as error:
        if error.reason not in ("timeout", "resources"):
            raise
        return None


def bounds(database: Database, table: Table, column: str) -> tuple[Any, Any]:
    """(least, greatest) value of a column. Raises SourceError."""
    value = table.clause.c[column]
    with database.reading() as reader:
        (least,), (greatest,) = reader.columns(sa.select(sa.func.min(value), sa.func.max(value)))
    return least, greatest


def _frame(reader: Reader, table: Table, query: sa.Select[Any]) -> pd.DataFrame:
    columns = dict(zip(table.names, reader.columns(query), strict=True))
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
