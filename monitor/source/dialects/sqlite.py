"""SQLite: a file opened read-only, without types, users or limits."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.errors import SourceError
from monitor.source.dialects.base import SLOW_SORT, Condition, Dialect, Expression, IdKind, as_number, written
from monitor.source.dialects.faults import Fault
from monitor.source.dialects.subquery import Quoting
from monitor.types import ITEM, PLACE, TimeColumn

_ISO = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")
_STEPS = 100_000  # virtual machine steps between two clock checks
_CACHE = 65_536  # KiB, for pages and for sorting before it spills to a file


class SQLite(Dialect):
    """SQLite compares anything with anything; only the values show a column's type."""

    names = ("sqlite",)
    members = {(True, is_whole): "json_extract(t.{column}, '$.{path}')" for is_whole in (True, False)}
    schemes = {"sqlite": "sqlite"}
    is_proven = True
    slow = SLOW_SORT
    by_one_processor = True
    casts_constants = False
    may_lack_logarithm = True
    later_by = "{}"
    is_in_process = True
    is_streamed = False
    has_users = False
    has_times = False
    has_rowid = True
    schema_version = "PRAGMA schema_version"
    tables_query = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    )
    quoting = Quoting(ticks=True, dashes=True, parameters=True)
    faults = (
        Fault(
            "permission",
            ("SQLITE_READONLY",),
            (),
            "the file is in WAL mode, where SQLite creates files next to it even for reading; let this user write to "
            "its folder or have its owner run PRAGMA journal_mode = DELETE",
        ),
        Fault("connect", ("SQLITE_NOTADB", "SQLITE_CORRUPT"), (), "is this the right file, and is it complete?"),
        Fault(
            "connect",
            ("SQLITE_IOERR", "SQLITE_FULL"),
            (),
            "is the disk healthy, and can temporary files be written (set SQLITE_TMPDIR)?",
        ),
    )

    def create_engine(self, url: URL, limit: float, most: int) -> sa.Engine:
        """An engine without a pool, so a replaced or removed file is noticed at once."""
        return sa.create_engine("sqlite://", creator=partial(open_file, url.database), poolclass=sa.NullPool)

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """The connection in one snapshot of the file."""
        connection.exec_driver_sql("BEGIN")
        return connection

    def end_when(self, driver: Any, is_due: Callable[[], bool]) -> None:
        driver.set_progress_handler(is_due, _STEPS)

    def patience(self, limit: float) -> float:
        """Infinite: SQLite checks the clock itself."""
        return math.inf

    def spellings(self, text: str, code: Any) -> Iterator[Any]:
        """The id as text, as bytes and as a number: untyped columns may hold any of them."""
        yield from (text, text.encode())
        yield from as_number(text)

    def is_number(self, code: Any) -> bool:
        """True: columns have no types."""
        return True

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        """As in `Dialect`; labels have no types, so ids are texts, which SQLite converts to compare with numbers."""
        lists = (
            f"CASE WHEN t.{column} IS NULL THEN '[]' WHEN NOT json_valid(t.{column}) THEN '[null]' ELSE "
            f"CASE json_type(t.{column}) WHEN 'array' THEN t.{column} WHEN 'null' THEN '[]' ELSE '[null]' END END"
        )
        item = "CAST(CASE WHEN i.type IN ('text', 'integer') AND i.type = typeof(i.value) THEN i.value END AS TEXT)"
        if kind == "number":
            item = f"CASE CAST(CAST({item} AS INTEGER) AS TEXT) WHEN {item} THEN CAST({item} AS INTEGER) END"
        return (
            f"SELECT t.*, {item} AS {ITEM}, i.key + 1 AS {PLACE} "
            f"FROM {table} AS t LEFT JOIN json_each({lists}) AS i ON 1"
        )

    def is_stored_number(self, value: Expression) -> list[Condition]:
        stored = sa.func.typeof(value)
        return [stored.in_(map(written, kinds)) for kinds in (("'integer'", "'real'"), ("'text'", "'blob'"))]

    def place(self, position: Expression, is_whole: bool) -> tuple[Expression, Condition | None]:
        """A position from any kind of value; some builds lack floor()."""
        return position + written("0"), sa.cast(position, sa.Integer) == position

    def rank(self, position: Expression, is_whole: bool) -> Expression:
        return position + written("0")

    def group_exactly(self, value: Expression) -> Expression:
        return value.collate("BINARY")

    def fenced(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """The query with LIMIT -1, which stops SQLite from merging it."""
        return query.limit(written("-1")).offset(written("0"))

    def time_later(self, time: Expression, column: TimeColumn, seconds: int) -> Expression:
        """A later time; texts are parsed and rewritten in their format."""
        if column.format == "native":
            return super().time_later(time, column, seconds)
        return sa.func.strftime(_plain(column), time, f"{seconds:+d} seconds", type_=sa.Text)

    def is_plain(self, time: Expression, column: TimeColumn) -> Condition | None:
        """Whether a text survives a round trip through its format."""
        if column.format.startswith("epoch") or column.format == "native":
            return None
        return sa.func.coalesce(sa.func.strftime(_plain(column), time), written("''")) == time

    def text_obstacle(self, column: TimeColumn) -> str:
        if column.format == "native":
            return f"{column.column!r} is text to SQLite"
        return "" if _plain(column) == column.format else super().text_obstacle(column)


def open_file(path: str | None) -> sqlite3.Connection:
    """A connection that never creates a missing file; read-only."""
    if not path or path == ":memory:" or path.startswith("file:"):
        raise SourceError("give a SQLite file as sqlite:////absolute/path.db", "connect")
    full = Path(path).absolute()
    if full.is_dir():
        raise SourceError(f"{full} is a folder; name the file in it", "connect")
    if not full.is_file():
        raise SourceError(f"there is no file {full}", "connect")
    if not os.access(full, os.R_OK):
        raise SourceError(f"no permission to read {full}", "permission")
    # No isolation level: sqlite3 begins no transaction for a SELECT by itself.
    connection = sqlite3.connect(
        f"file:{quote(str(full))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{_CACHE}")
    return connection


def _plain(column: TimeColumn) -> str | None:
    """The format if its texts are whole UTC seconds that SQLite reads and writes."""
    zone = "Z" if column.timezone is None else ""
    if column.timezone not in (None, "UTC") or column.format not in [iso + zone for iso in _ISO]:
        return None
    return column.format
