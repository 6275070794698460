"""Chooses how to read a monitor: row by row (pull), or by sums computed in the database (push-down)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.visitors import replacement_traverse

from monitor.errors import SourceError
from monitor.measures.summable import grades
from monitor.source.dialects import dialect_of
from monitor.source.engine import Database, Statement
from monitor.source.parallel import ParallelReader
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown, why_not
from monitor.source.recurring import ReusedIds
from monitor.types import Column, Monitor


class Choice(NamedTuple):
    """The way of reading, and the reason."""

    way: Literal["pull", "pushdown"]
    reason: str


def choose(monitor: Monitor, dialect: str) -> Choice:
    """How to read a monitor from a database of that dialect.

    `engine: auto` picks push-down if the dialect can sum, was verified against the pull, and is faster that way.
    """
    obstacle = why_not(monitor, dialect)
    if monitor.engine == "pull":
        return Choice("pull", "engine: pull")
    if monitor.engine == "pushdown":
        return Choice("pushdown", "engine: pushdown")
    if obstacle:
        return Choice("pull", obstacle)
    sql = dialect_of(dialect)
    if not sql.is_proven:
        return Choice("pull", f"push-down compiles for {dialect} but is not tested on it; `engine: pushdown` overrides")
    if sql.slow:
        return Choice("pull", f"{sql.slow}; `engine: pushdown` overrides")
    return Choice("pushdown", f"{dialect} sums in the database, and only the sums travel{_but_for(monitor)}")


def _but_for(monitor: Monitor) -> str:
    """What prevents push-down, judged by the source of the grades."""
    if not isinstance(monitor.recipe, Column):
        return ""
    counted = ", ".join(f"{grade:g}" for grade in (0.0, *grades(monitor)))
    return f"; buckets with grades other than {counted} are read row by row; if most are such, all are for a day"


def open_both(monitor: Monitor, database: Database) -> tuple[Pull, PushDown | None]:
    """(pull, push-down if chosen or verified against the pull on that dialect), for comparison."""
    is_trusted = choose(monitor, database.dialect).way == "pushdown" or (
        not why_not(monitor, database.dialect) and database.sql.is_proven
    )
    return Pull(monitor, database), PushDown(monitor, database, is_bound=True) if is_trusted else None


def open_source(monitor: Monitor, database: Database) -> Pull | PushDown:
    """The reader of a monitor."""
    if choose(monitor, database.dialect).way == "pull":
        return Pull(monitor, database)
    return PushDown(monitor, database, is_bound=monitor.engine == "pushdown")


def open_reader(monitor: Monitor, database: Database) -> Pull | ParallelReader:
    """`open_source` for repeated long reads; logs a warning about reused ids."""
    source = open_source(monitor, database)
    pull = source.pull if isinstance(source, PushDown) else source
    pull.reused = ReusedIds(monitor)
    return ParallelReader(source) if isinstance(source, PushDown) else source


def explain_choice(monitor: Monitor, database: Database, since: int, until: int) -> tuple[Choice, list[str]]:
    """(the way taken once column types are known, the SQL that a read of [since, until) sends).

    Raises:
        SourceError: the source did not answer, holds other types than configured, or cannot do what is asked of it.
    """
    choice, source = choose(monitor, database.dialect), open_source(monitor, database)
    try:
        found = source.statements(since, until)
    except SourceError as error:
        if isinstance(source, Pull) or source.is_bound or error.reason not in ("query", "data"):
            raise
        choice, found = Choice("pull", str(error)), source.pull.statements(since, until)
    return choice, [in_full(statement, dialect) for statement, dialect in found]


def in_full(statement: Statement, dialect: sa.Dialect) -> str:
    """A statement with its values inlined, for people to read and try."""

    def replace(element: Any, **_: Any) -> Any:
        return sa.literal_column(_value(element.value, dialect)) if isinstance(element, BindParameter) else None

    filled: Any = replacement_traverse(statement, {}, replace)
    text = str(filled.compile(dialect=dialect))
    return text.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else text


def _value(value: Any, dialect: sa.Dialect) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, datetime):
        with_zone, without = dialect_of(dialect.name).time_literals
        return f"{with_zone if value.tzinfo else without}'{value.isoformat(' ')}'"
    escaped = str(value).replace("'", "''")
    return f"'{escaped}'"
