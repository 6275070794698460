"""One object per database: its drivers, session, errors, types and SQL. Here is what most of them share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.sql.elements import ColumnElement

from monitor.source.dialects.faults import Fault, find_fault
from monitor.source.dialects.subquery import Quoting
from monitor.source.prepared import Instant, Mark
from monitor.source.times import bound, slack
from monitor.types import TimeColumn

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]
Options = dict[str, Any]
Numbers = Mapping[Any, tuple[str, int]]
"""A driver's type code of numbers -> (name, bits that it tells apart)."""

PROGRAM = "rankmon"
"""What a server's administrator sees as the program; the monitor stands in a comment before each statement."""

CONNECT_TIMEOUT = 5
"""Seconds to wait for a server's first answer: a process that is to end may have to wait for as long."""

GRACE = 30
"""Seconds that an answer may take beyond what a statement may: by then a server says itself that it took too long."""

SILENCE = 60
"""Seconds after which a server that has vanished is noticed."""

KEPT_FOR = 3600
"""Seconds for which a connection is kept at most."""

SLOW_SORT = "this database sums by sorting, which takes longer than reading the rows"

_EPOCHS = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}
_NAME = r'(?:"(?:[^"]|"")+"|[\w$]+)'
_HIGHEST = 1.7976931348623157e308
_NOT_A_NUMBER = ("text", "varchar", "char", "string", "str", "blob", "db_type_varchar", "db_type_char")
_BOOLEANS = ("16", "bool", "boolean", "db_type_boolean")  # 16 is PostgreSQL's, and by chance MySQL's BIT


def written(text: str) -> Expression:
    """SQL that stands in a statement as it is written."""
    return sa.literal_column(text)


class Dialect:
    """What is special about a database. This one, for any that rankmon does not know, cannot sum up.

    A subclass overrides what differs, and `register` makes it known by its `names`. Type codes are the drivers' own.
    """

    names: tuple[str, ...] = ()
    """SQLAlchemy's names of it; the first is the family's."""

    # ---- drivers

    extra = ""
    """rankmon's extra that brings its driver."""
    package = ""
    """What is to be installed where an extra would hold other packages back."""
    schemes: Mapping[str, str] = {}
    """Name -> how a URL begins that uses the extra's driver; the name itself where it has one driver alone."""
    modules: tuple[str, ...] = ()
    """Python modules and SQLAlchemy plugins that the extra or the package brings."""
    mistaken_for: Mapping[str, str] = {}
    """What people write at the beginning of a URL -> what is meant."""
    has_several_drivers = False

    # ---- push-down

    can_sum = True
    is_proven = False
    """Whether its sums were run and held against the pull."""
    slow = ""
    """Why the pull is the faster way; empty if it is not."""
    by_hash = False
    """Whether it looks pairs up in a table of its own making; else it goes by its indexes."""
    keeps_parts = False
    """Whether it works out once what is named in WITH, however many times that is used."""
    by_one_processor = False
    nan_is_itself = True
    casts_constants = True
    """Whether a constant must be cast to be a binary number, and not a decimal one."""
    converts_in_pairs = True
    """Whether it compares pairs of columns of different types as it does single columns."""
    may_lack_logarithm = False
    instants_have_zones = True
    """Whether times with and without a zone are compared in different ways."""
    prepares_to_sum: Sequence[Expression] = ()
    """Selected once in a transaction before statements that sum up."""

    # ---- session

    is_in_process = False
    is_streamed = True
    clock = ""
    """SQL: the server's clock in seconds since 1970; empty where it is this machine's, or unknown."""
    has_statement_limit = True
    explains_bounds = False
    """Whether its EXPLAIN tells which index or partition bounds a read; see `plans`."""
    escapes_names = False
    """Whether its names know escapes, of which its package for SQLAlchemy does not make all."""

    # ---- errors

    has_users = True
    faults: Sequence[Fault] = ()
    """Its own errors; looked for before those of all databases."""
    grants: Sequence[tuple[re.Pattern[str], str]] = ()
    """What a refusal says -> the statement that an owner must run, of what, to whom."""
    name_quote = '"'
    account_query = ""
    """Which account a user was taken for, where a name may have several."""
    tables_query = ""
    """Lists tables cheaply, by `:schema` or in the default one; empty where a catalogue may be large or cost money."""

    # ---- types

    has_times = True
    """Whether there is a type of times; SQLite has texts."""
    has_rowid = False
    schema_version = ""
    """SQL: a number that changes with the tables, where columns have no types."""
    integers: Collection[Any] = ()
    small_integers: Collection[Any] = ()
    """Those of up to 32 bits."""
    whole_numbers: Numbers = {}
    float_numbers: Numbers = {}
    strict_texts: Collection[Any] = ()
    """Texts that are not compared with numbers."""
    loose_texts: Collection[Any] = ()
    """Texts that are compared with numbers as floats."""
    collated_texts: Collection[Any] = ()
    """Texts by whose collation unlike ones are equal."""
    arrays: Collection[str] = ()
    bit: Any = None
    """The code of BIT, whose values come as bytes."""
    type_names: Mapping[Any, str] = {}
    time_types: Mapping[str, tuple[bool, bool]] = {}
    """Type -> (whether it is a time, whether it names its zone); other types are seen by a sample."""

    quoting = Quoting()
    """How a user's SELECT is read; the default is the strictest way."""

    # ---- connecting --------------------------------------------------------------------------------------------

    def create_engine(self, url: URL, limit: float, most: int) -> sa.Engine:
        """An engine for at most so many connections at a time; `limit` in seconds for each statement."""
        made = self.address(url, limit)
        return sa.create_engine(made, connect_args=self.arguments(made, limit), **self.pooling(made, most))

    def pooling(self, url: URL, most: int) -> Options:
        """How connections are kept between two reads."""
        kind: Any = url.get_dialect()
        if issubclass(kind.get_pool_class(url), sa.QueuePool):
            return {"pool_recycle": KEPT_FOR, "pool_size": most, "max_overflow": 0}
        return {"pool_recycle": KEPT_FOR}

    def address(self, url: URL, limit: float) -> URL:
        """The URL with what a driver takes from there only, but for what it says itself."""
        wanted = self.url_options(url, limit)
        return url.update_query_dict({name: value for name, value in wanted.items() if name not in url.query})

    def arguments(self, url: URL, limit: float) -> Options:
        """Arguments of the driver that the URL does not give itself."""
        wanted = self.driver_options(url, limit)
        return {name: value for name, value in wanted.items() if name not in url.query}

    def url_options(self, url: URL, limit: float) -> dict[str, str]:
        """Options of the URL: who reads, and the limit in seconds for each statement."""
        return {}

    def driver_options(self, url: URL, limit: float) -> Options:
        """Arguments of the driver: who reads, and the limit in seconds for each statement."""
        return {}

    def driver_of(self, url: URL) -> str:
        """The driver that a URL names, or means where there are several; else empty."""
        driver = url.drivername.partition("+")[2]
        return url.get_driver_name() if not driver and self.has_several_drivers else driver

    def opened(self, driver: Any, url: URL) -> None:
        """Called with each new connection of a driver's."""

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """The connection in a transaction that only reads, where there are such, each statement within `limit` seconds.

        Args:
            driver: the driver's own connection.
            who: the monitor that reads; may be empty.
        """
        return connection

    def end_when(self, driver: Any, is_due: Callable[[], bool]) -> None:
        """Have a driver without limits of its own ask whether the statement is to end."""

    def patience(self, limit: float) -> float:
        """Seconds that a step may take on our side where a statement may take `limit`."""
        return limit + GRACE

    def column_types(self, reader: Any, relations: Sequence[sa.FromClause], to_sum: bool) -> tuple[list[Any], bool]:
        """(type codes of all columns of the relations, whether rows of theirs may not be seen); no row is read.

        By such a condition no database goes through a table, nor asks money for it.

        Args:
            to_sum: whether to prepare for statements that sum up on the way, where that is free.
        """
        empty = [sa.select(*relation.c).where(sa.false()) for relation in relations]
        return [code for query in empty for code in reader.types(query)], False

    # ---- errors ------------------------------------------------------------------------------------------------

    def fault_of(self, error: BaseException) -> Fault | None:
        """The kind of a driver's error; None where it is none that is known."""
        return find_fault(error, self.faults, self.error_name(error))

    def error_name(self, error: BaseException) -> str:
        """What the database calls an error that has no SQLSTATE; empty if nothing."""
        return ""

    def reworded(self, said: str, is_missing: bool) -> str:
        """A message without what is of no use to people. `is_missing`: it says what is not there."""
        return said

    def grant_for(self, said: str, user: str | None, statement: str = "", account: str = "") -> str:
        """The statement that mends a refusal, as far as its text says what was refused; empty if it does not.

        Args:
            statement: that was refused, as the driver got it; it has the schema of a table that PostgreSQL leaves out.
            account: what `account_query` tells; what the refusal says where that could not be asked for.
        """
        for pattern, to_run in self.grants:
            if user and (match := pattern.search(said)):
                what = self.named_in_full(match[1], statement.replace("%%", "%"))
                return to_run.format(what, self.grantee(account or said, user))
        return ""

    def named_in_full(self, table: str, statement: str) -> str:
        """A table's name with its schema, as a statement has it; by itself where that has none, or several."""
        if "." in table or "`" in table:
            return table
        name = re.escape(table)
        found = re.findall(rf'\b(?:FROM|JOIN)\s+((?:{_NAME}\.)+(?:"{name}"|{name}\b))', statement, re.IGNORECASE)
        return found[0] if len(set(found)) == 1 else self.quoted(table)

    def quoted(self, name: str) -> str:
        """A name as a statement must have it: quoted, but where it says the same without."""
        mark = self.name_quote
        return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def grantee(self, account: str, user: str) -> str:
        """A user as GRANT names it."""
        return self.quoted(user)

    def why_not_compared(self, said: str, names: tuple[str, str], columns: tuple[str, str]) -> str:
        """Why two columns are not compared, given the error; empty if it says something else.

        Args:
            names: of both, in full.
            columns: their names alone.
        """
        return ""

    def absent_column_hint(self, select: str) -> str:
        """What else may be why a `select:` lacks a column."""
        return ""

    # ---- types -------------------------------------------------------------------------------------------------

    def is_boolean(self, code: Any) -> bool:
        """Whether a type is a boolean."""
        return str(code).lower() in _BOOLEANS

    def is_number(self, code: Any) -> bool:
        """Whether a type is of numbers, as far as one can tell."""
        return str(code).lower() not in _NOT_A_NUMBER

    def has_order(self, code: Any) -> bool:
        """Whether one of a type's values is the least."""
        return True

    def is_varied(self, code: Any) -> bool:
        """Whether equal values of a type may be written in different ways, so that they are told apart as texts."""
        return False

    def must_try_to_compare(self, one: Any, other: Any) -> bool:
        """Whether it takes a try to know that columns of these types are compared."""
        return False

    def lax_texts(self, reader: Any, codes: Collection[Any]) -> Collection[Any]:
        """Of which types texts may be equal that are written in different ways, if columns are of these types."""
        return self.collated_texts

    def is_enum(self, reader: Any, column: Expression) -> bool:
        """Whether a column is an enum that is compared with none but its own values."""
        return False

    def check_time(self, column: str, code: Any) -> None:
        """Raise SourceError if a driver does not hand over the times of a column as they are."""

    def check_slice(self, reader: Any, column: Expression, name: str, code: Any, is_bound: bool) -> None:
        """Raise SourceError if a column to slice by has no least value, or equal ones that are written differently.

        `is_bound`: push-down was asked for, so errors name the remedy.
        """

    def spellings(self, text: str, code: Any) -> Iterator[Any]:
        """An id as text, which databases turn into the type of a column; as a number where they do not."""
        yield text

    # ---- numbers -----------------------------------------------------------------------------------------------

    binary: sa.types.TypeEngine[float] = sa.Double()

    def number(self, value: float) -> Expression:
        """A binary floating-point constant, to the last bit."""
        plain: Expression = sa.literal_column(f"{value:.16e}", sa.Double)
        return sa.cast(plain, self.binary) if self.casts_constants else plain

    def double(self, value: Expression) -> Expression:
        """A number in binary floating point: `/` and SUM are exact to the last bits only there."""
        return sa.cast(value, self.binary)

    def total(self, value: Expression) -> Expression:
        """The sum of a column in binary floating point."""
        return self.double(sa.func.sum(value))

    def ln(self, value: Expression) -> Expression:
        """The natural logarithm."""
        called: Expression = sa.func.ln(value, type_=sa.Double)
        return called

    def is_finite(self, value: Expression) -> Condition:
        """Whether a number is neither infinite nor NaN, which sorts after all others where there is one."""
        return value.between(self.number(-_HIGHEST), self.number(_HIGHEST))

    def is_stored_number(self, value: Expression) -> list[Condition]:
        """Whether a value is a number and not a text, and whether only the pull can read it; empty where types tell."""
        return []

    def as_read(self, value: Expression, code: Any) -> Expression:
        """A number as the driver hands it over."""
        return value

    def counted(self, value: Expression, condition: Condition) -> ColumnElement[int]:
        """How many rows that meet the condition have the value."""
        return sa.func.count(sa.case((condition, value)))

    def place(self, position: Expression, is_whole: bool) -> tuple[Expression, Condition | None]:
        """(a position as a number, whether it is a whole one; None where the column's type says so)."""
        return position, None if is_whole else sa.func.floor(position) == position

    def rank(self, position: Expression, is_whole: bool) -> Expression:
        """A position as something that a rank is reckoned from."""
        return position if is_whole else self.double(position)

    def exactly(self, value: Expression, code: Any) -> Expression:
        """What tells values apart that a collation, or a type, holds to be equal."""
        return sa.cast(value, sa.LargeBinary())

    def group_exactly(self, value: Expression) -> Expression:
        """A text to be grouped by as the rankings write it, where a collation can be named."""
        return value

    def fenced(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """The query, such that what is around it is not worked into it, and its columns not worked out many times."""
        return query

    # ---- one of several ----------------------------------------------------------------------------------------

    def ladder(self, value: Expression, edges: Sequence[Expression], steps: Sequence[Expression]) -> Expression:
        """The step on which a value stands: `steps[i]` if it is under `edges[i]` and not under those before.

        As a tree, so that few comparisons are made. NULL stands on the last of the steps, which are one more than the
        rising edges.
        """
        if not edges:
            return steps[0]
        middle = len(edges) // 2
        low = self.ladder(value, edges[:middle], steps[: middle + 1])
        high = self.ladder(value, edges[middle + 1 :], steps[middle + 1 :])
        return sa.case((value < edges[middle], low), else_=high)

    def table(self, value: Expression, first: int, steps: Sequence[float], after: float) -> Expression:
        """`steps[i]` of the whole number `first` + i, the first step of what is under it, `after` of what is above."""
        edges = [written(str(first + i)) for i in range(1, len(steps) + 1)]
        return self.ladder(value, edges, [*map(self.number, steps), self.number(after)])

    # ---- time --------------------------------------------------------------------------------------------------

    later_by = "INTERVAL '{} seconds'"

    def instant(self, column: TimeColumn, instant: float) -> Expression:
        """An instant (seconds) as a column writes it, bound. BigQuery asks which times name their zone."""
        value = bound(column, instant)
        is_aware = isinstance(value, datetime) and value.tzinfo is not None
        kind: sa.types.TypeEngine[Any] | None = sa.TIMESTAMP(timezone=True) if is_aware else None
        if isinstance(instant, Mark):
            # Of numbers SQLAlchemy takes the type that this one needs; another may need a longer one.
            kind = sa.BigInteger() if isinstance(value, int) else kind
            return instant.parameter(column, lambda seconds: bound(column, seconds), kind)
        return Instant("instant", value, kind, unique=True)

    def between(self, time: Expression, column: TimeColumn, since: float, until: float) -> Condition:
        """Whether an instant lies in [since, until) seconds; wider by an hour where clocks are changed."""
        first = self.instant(column, since - slack(column, since))
        return sa.and_(time >= first, time < self.instant(column, until + slack(column, until)))

    def time_literal(self, value: datetime) -> str:
        """What stands before a time in SQL that people read."""
        return "TIMESTAMP "

    def seconds(self, time: Expression, column: TimeColumn) -> Expression | None:
        """Whole seconds since 1970 of a time, rounded down; None where they cannot be told in one short term."""
        if column.format in _EPOCHS and self.has_times:
            return sa.func.floor(self.double(time) / self.number(_EPOCHS[column.format]), type_=sa.Double)
        is_utc = column.format == "native" and column.timezone in (None, "UTC")
        return self.unix_seconds(time) if is_utc else None

    def unix_seconds(self, time: Expression) -> Expression | None:
        """Whole seconds since 1970 of a time in UTC of its own type; None where there is no short term for it."""
        return None

    def can_reckon(self, column: TimeColumn) -> bool:
        """Whether `seconds` can tell them."""
        return self.seconds(sa.null(), column) is not None

    def block(self, seconds: Expression, width: int, first: int = 0) -> Expression:
        """Which block of `width` seconds holds an instant, counted from the one that holds `first`."""
        number: Expression = sa.func.floor(self.double(seconds) / self.number(width), type_=sa.Double)
        if not isinstance(first, Mark):
            return number - self.number(first // width)
        before = first.parameter(("block", width), lambda instant: instant // width, sa.BigInteger())
        return number - self.double(before)

    def stretch(self, time: Expression, column: TimeColumn, edges: Sequence[int], width: int) -> Expression:
        """Which of the stretches between `edges` (seconds) holds a time of one of them, as a number from 0 on.

        `width`: of blocks on whose edges all `edges` but the first and the last are.
        """
        seconds = self.seconds(time, column)
        if seconds is not None and len(edges) > 2:
            return self.block(seconds, width, edges[0])
        inner = [self.instant(column, edge) for edge in edges[1:-1]]
        return self.ladder(time, inner, [written(str(i)) for i in range(len(edges) - 1)])

    def later(self, time: Expression, column: TimeColumn, seconds: int) -> Expression:
        """A time so many seconds later, as the same column writes it."""
        if column.format in _EPOCHS:
            return time + written(str(seconds * _EPOCHS[column.format]))
        return self.time_later(time, column, seconds)

    def time_later(self, time: Expression, column: TimeColumn, seconds: int) -> Expression:
        """`later`, of a time of its own type."""
        return time.op("+", precedence=7)(written(self.later_by.format(seconds)))

    def converted(self, time: Expression, column: TimeColumn, other: TimeColumn) -> Expression:
        """A time of one column as `other` writes it; see `obstacle`."""
        if column.format not in _EPOCHS or column.format == other.format:
            return time
        units, per = _EPOCHS[other.format], _EPOCHS[column.format]
        if units > per:
            # A constant of 64 bits: seconds often have 32, which would not hold the product.
            return time * sa.cast(written(str(units // per)), sa.BigInteger)
        return self.double(time) / self.number(per // units)

    def is_plain(self, time: Expression, column: TimeColumn) -> Condition | None:
        """Whether a time is written as one can reckon with it; None where all are."""
        return None

    def obstacle(self, column: TimeColumn, other: TimeColumn | None = None) -> str:
        """Why times of a column cannot be reckoned with, or not compared with those of another; empty if they can."""
        zones = {column.timezone, other and other.timezone}
        are_instants = not self.instants_have_zones and zones <= {None, "UTC"} and other is not None
        if other is not None and not _alike(column, other) and not (are_instants and column.format == other.format):
            return f"times of {column.column!r} and {other.column!r} are written in different ways"
        return "" if column.format in _EPOCHS else self.text_obstacle(column)

    def text_obstacle(self, column: TimeColumn) -> str:
        """Why times that are no numbers cannot be reckoned with."""
        return "" if column.format == "native" else f"{column.column!r} is text written as {column.format!r}"


def _alike(one: TimeColumn, other: TimeColumn) -> bool:
    both_count = one.format in _EPOCHS and other.format in _EPOCHS
    return both_count or (one.format, one.timezone) == (other.format, other.timezone)


def milliseconds(limit: float) -> int:
    """Of a limit in seconds; at least one, for 0 would be none."""
    return max(1, int(limit * 1000))


def whole_seconds(limit: float) -> int:
    """Of a limit in seconds, rounded up."""
    return math.ceil(limit)


def as_number(text: str) -> Iterator[int]:
    """The whole number that an id is, if it is one."""
    if re.fullmatch("0|-?[1-9][0-9]{0,17}", text):
        yield int(text)


def plain_name(name: str) -> str:
    """A name that means nothing to SQL or to a driver."""
    return re.sub(r"[^\w.-]", "_", name)
