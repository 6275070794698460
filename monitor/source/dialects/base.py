"""What most databases share: drivers, session, errors, types and SQL. One object per database overrides it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.sql.elements import ColumnElement

from monitor.errors import SourceError
from monitor.source.dialects.faults import Fault, find_fault
from monitor.source.dialects.subquery import Quoting
from monitor.source.prepared import Instant, Mark
from monitor.source.times import PER_SECOND, bound, slack
from monitor.types import TimeColumn
from monitor.units import HOUR

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]
Options = dict[str, Any]
IdKind = Literal["text", "number", "unsigned", "uuid"]
"""What ids are in SQL; numbers are whole, of 64 bits."""
Numbers = Mapping[Any, tuple[str, int]]
"""A driver's number type code -> (name, significant bits)."""

PROGRAM = "rankmon"
"""Program name shown to server administrators; a comment before each statement names the monitor."""

CONNECT_TIMEOUT = 5
"""Seconds to wait for a server's first answer; shutdown may have to wait as long."""

GRACE = 30
"""Seconds an answer may take beyond the statement limit, so that the server can report its own timeout first."""

SILENCE = 60
"""Seconds until a vanished server is noticed."""

KEPT_FOR = HOUR
"""Seconds a connection is kept at most."""

SLOW_SORT = "this database sums by sorting, which takes longer than reading the rows"

_NAME = r'(?:"(?:[^"]|"")+"|[\w$]+)'
_DOUBLE_BITS = 53
_HIGHEST = 1.7976931348623157e308
_NOT_A_NUMBER = ("text", "varchar", "char", "string", "str", "blob", "db_type_varchar", "db_type_char")
_NUMBER = re.compile(
    r"\b(u?(tiny|small|medium|big|huge)?int(eger)?|float|double|real|decimal|numeric)\d*\b", re.IGNORECASE
)
_UNSIGNED = re.compile(r"\b(uint64|ubigint)\b", re.IGNORECASE)
_BOOLEANS = ("16", "bool", "boolean", "db_type_boolean")  # 16 is boolean in PostgreSQL and, by chance, BIT in MySQL


def written(text: str) -> Expression:
    """SQL inserted into a statement verbatim."""
    return sa.literal_column(text)


def whole(number: int) -> Expression:
    """A whole number inserted into a statement: with parameters, GROUP BY would not know a term again."""
    return written(str(number))


ZERO, ONE = whole(0), whole(1)


class Dialect:
    """A database's specifics. This base serves unknown databases and cannot sum.

    Subclasses override what differs; `register` adds one under its `names`. Type codes are the driver's own.
    """

    names: tuple[str, ...] = ()
    """SQLAlchemy's names for it; the first is the family's."""

    # ---- drivers

    extra = ""
    """The rankmon extra that installs its driver."""
    package = ""
    """The package to install if an extra would hold back other packages."""
    schemes: Mapping[str, str] = {}
    """Name -> URL prefix for the extra's driver; the name itself if it has only one driver."""
    modules: tuple[str, ...] = ()
    """Python modules and SQLAlchemy plugins that the extra or package installs."""
    mistaken_for: Mapping[str, str] = {}
    """Wrong URL prefix -> the intended one."""
    has_several_drivers = False

    # ---- push-down

    can_sum = True
    is_proven = False
    """Whether its sums were run and verified against the pull."""
    slow = ""
    """Why the pull is faster; empty if it is not."""
    by_hash = False
    """Whether it looks up pairs by hash; else by its indexes."""
    selects_first = False
    """Whether rows of a time range must be selected behind a fence, for the planner to find them by their time."""
    keeps_parts = False
    """Whether it evaluates a WITH query once, however often it is used."""
    by_one_processor = False
    nan_is_itself = True
    casts_constants = True
    """Whether a constant needs a cast to be binary floating point rather than decimal."""
    converts_in_pairs = True
    """Whether it compares columns of different types in pairs as it does singly."""
    groups_by_name = False
    """Whether it groups by a term only under the term's name in the result."""
    may_lack_logarithm = False
    prepares_to_sum: Sequence[Expression] = ()
    """Selected once per transaction before statements that sum."""

    # ---- objects in a column

    members: Mapping[tuple[bool, bool], str] = {}
    """The value at {path} (with points; {comma}: with commas) inside an object in {column} of the table t.

    By whether it is JSON in a text, and whether its values are whole numbers.
    """

    # ---- session

    is_in_process = False
    opens_slowly = False
    """Whether opening the file takes longer than a short statement, so that it is worth holding it open."""
    is_streamed = True
    clock = ""
    """SQL: the server's clock in seconds since 1970; empty if it is this machine's, or unknown."""
    has_statement_limit = True
    explains_bounds = False
    """Whether EXPLAIN shows which index or partition bounds a read; see `plans`."""
    escapes_names = False
    """Whether its names have escapes that its SQLAlchemy package does not all write."""

    # ---- errors

    has_users = True
    faults: Sequence[Fault] = ()
    """Its own errors, matched before the common ones."""
    grants: Sequence[tuple[re.Pattern[str], str]] = ()
    """Pattern of a refusal -> the GRANT an owner must run, with slots for object and user."""
    name_quote = '"'
    account_query = ""
    """SQL: the account a user was mapped to, if a name can have several."""
    tables_query = ""
    """Lists tables cheaply, in `:schema` or the default one; empty if a catalogue may be large or cost money."""

    # ---- types

    has_times = True
    """Whether there is a time type; SQLite has only text."""
    has_rowid = False
    schema_version = ""
    """SQL: a number that changes with the tables, for columns without types."""
    integers: Collection[Any] = ()
    small_integers: Collection[Any] = ()
    """Types of up to 32 bits."""
    whole_numbers: Numbers = {}
    float_numbers: Numbers = {}
    strict_texts: Collection[Any] = ()
    """Text types that do not compare with numbers."""
    loose_texts: Collection[Any] = ()
    """Text types that compare with numbers as floats."""
    collated_texts: Collection[Any] = ()
    """Text types whose collation may treat different texts as equal."""
    arrays: Collection[str] = ()
    bit: Any = None
    """Type code of BIT, whose values arrive as bytes."""
    type_names: Mapping[Any, str] = {}
    time_types: Mapping[str, tuple[bool, bool]] = {}
    """Type -> (whether it is a time, whether it names its zone); other types are sampled."""

    quoting = Quoting()
    """How a user's SELECT is tokenized; the default is the strictest."""

    # ---- connecting --------------------------------------------------------------------------------------------

    def create_engine(self, url: URL, limit: float, most: int) -> sa.Engine:
        """An engine with at most `most` connections and `limit` seconds per statement."""
        made = self.address(url, limit)
        return sa.create_engine(made, connect_args=self.arguments(made, limit), **self.pooling(made, most))

    def pooling(self, url: URL, most: int) -> Options:
        """Pool settings: how connections are kept between reads."""
        kind: Any = url.get_dialect()
        if issubclass(kind.get_pool_class(url), sa.QueuePool):
            return {"pool_recycle": KEPT_FOR, "pool_size": most, "max_overflow": 0}
        return {"pool_recycle": KEPT_FOR}

    def address(self, url: URL, limit: float) -> URL:
        """The URL plus options a driver takes only from there; options already set are kept."""
        wanted = self.url_options(url, limit)
        return url.update_query_dict({name: value for name, value in wanted.items() if name not in url.query})

    def arguments(self, url: URL, limit: float) -> Options:
        """Driver arguments that the URL does not set itself."""
        wanted = self.driver_options(url, limit)
        return {name: value for name, value in wanted.items() if name not in url.query}

    def url_options(self, url: URL, limit: float) -> dict[str, str]:
        """URL options: program name, and seconds per statement."""
        return {}

    def driver_options(self, url: URL, limit: float) -> Options:
        """Driver arguments: program name, and seconds per statement."""
        return {}

    def driver_of(self, url: URL) -> str:
        """The driver a URL names, or implies if there are several; else empty."""
        driver = url.drivername.partition("+")[2]
        return url.get_driver_name() if not driver and self.has_several_drivers else driver

    def opened(self, driver: Any, url: URL, selects: Sequence[str] | None) -> None:
        """Called with each new driver connection; `selects` as of `Database`."""

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """The connection in a transaction, read-only if the database can, with `limit` seconds per statement.

        `driver` is the driver's own connection, `who` the reading monitor or empty.
        """
        return connection

    def end_when(self, driver: Any, is_due: Callable[[], bool]) -> None:
        """Makes a driver without statement limits poll whether to end the statement."""

    def patience(self, limit: float) -> float:
        """Seconds a step may take on our side if a statement may take `limit`."""
        return limit + GRACE

    def tables_of(self, connection: sa.Connection, without: Collection[str]) -> list[tuple[str, ...]]:
        """Names of all tables and views, those of the default schema first and without it; `without` some schemas."""
        look = sa.inspect(connection)
        own = look.default_schema_name
        others = [s for s in look.get_schema_names() if s != own and not s.startswith("pg_") and s not in without]
        found = [(name,) for name in (*look.get_table_names(), *look.get_view_names())]
        more = [(s, n) for s in others for n in (*look.get_table_names(s), *look.get_view_names(s))]
        return [*found, *more]

    def parts_of(self, connection: sa.Connection) -> Collection[tuple[str, ...]]:
        """Names, as of `tables_of`, of the tables whose rows a readable table has as its own, such as partitions."""
        return ()

    def column_types(self, reader: Any, relations: Sequence[sa.FromClause], to_sum: bool) -> tuple[list[Any], bool]:
        """(type codes of all columns, whether some rows may be invisible), by a false condition: no scan, no charge.

        `to_sum`: also prepare for statements that sum, if that is free.
        """
        empty = [sa.select(*relation.c).where(sa.false()) for relation in relations]
        return [code for query in empty for code in reader.types(query)], False

    # ---- errors ------------------------------------------------------------------------------------------------

    def fault_of(self, error: BaseException) -> Fault | None:
        """The kind of a driver's error; None if unknown."""
        return find_fault(error, self.faults, self.error_name(error))

    def error_name(self, error: BaseException) -> str:
        """The database's name for an error without SQLSTATE; empty if it has none."""
        return ""

    def reworded(self, said: str, is_missing: bool) -> str:
        """A message without parts useless to people. `is_missing`: it names something missing."""
        return said

    def grant_for(self, said: str, user: str | None, statement: str = "", account: str = "") -> str:
        """The GRANT that fixes a refusal; empty if the message does not say what was refused.

        Args:
            statement: the refused one, as the driver got it; it has the schema that PostgreSQL leaves out.
            account: result of `account_query`, else what the refusal says.
        """
        for pattern, to_run in self.grants:
            if user and (match := pattern.search(said)):
                what = self.named_in_full(match[1], statement.replace("%%", "%"))
                return to_run.format(what, self.grantee(account or said, user))
        return ""

    def named_in_full(self, table: str, statement: str) -> str:
        """A table's name with its schema from a statement; bare if there is none, or several."""
        if "." in table or "`" in table:
            return table
        name = re.escape(table)
        found = re.findall(rf'\b(?:FROM|JOIN)\s+((?:{_NAME}\.)+(?:"{name}"|{name}\b))', statement, re.IGNORECASE)
        return found[0] if len(set(found)) == 1 else self.quoted(table)

    def quoted(self, name: str) -> str:
        """A name quoted for a statement, if it needs quotes."""
        mark = self.name_quote
        return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def grantee(self, account: str, user: str) -> str:
        """A user as GRANT names it."""
        return self.quoted(user)

    def why_not_compared(self, said: str, names: tuple[str, str], columns: tuple[str, str]) -> str:
        """Why two columns (`names`: qualified) do not compare, from the error; empty if it is about something else."""
        return ""

    def absent_column_hint(self, select: str) -> str:
        """Another reason why a `select:` may lack a column."""
        return ""

    # ---- types -------------------------------------------------------------------------------------------------

    def is_boolean(self, code: Any) -> bool:
        """Whether a type is boolean."""
        return str(code).lower() in _BOOLEANS

    def is_number(self, code: Any) -> bool:
        """Whether a type is numeric, as far as one can tell."""
        return str(code).lower() not in _NOT_A_NUMBER

    def has_order(self, code: Any) -> bool:
        """Whether the type has a least value."""
        return True

    def is_varied(self, code: Any) -> bool:
        """Whether equal values of a type may be written differently, so that they are compared as text."""
        return False

    def must_try_to_compare(self, one: Any, other: Any) -> bool:
        """Whether only a trial shows if columns of these types compare."""
        return False

    def lax_texts(self, reader: Any, codes: Collection[Any]) -> Collection[Any]:
        """Those of the types in which differently written texts may be equal."""
        return self.collated_texts

    def is_enum(self, reader: Any, column: Expression) -> bool:
        """Whether a column is an enum that compares only with its own values."""
        return False

    def check_time(self, column: str, code: Any) -> None:
        """Raises SourceError if the type cannot hold times, or a driver alters them."""
        name, bits = self.float_numbers.get(code, ("", _DOUBLE_BITS))
        if bits < _DOUBLE_BITS:
            raise SourceError(
                f"time column {column!r} is {name}, which rounds the seconds of today to 128; log it as whole numbers",
                "data",
                lasting=True,
            )

    def check_slice(self, reader: Any, column: Expression, name: str, code: Any, is_bound: bool) -> None:
        """Raises SourceError if a slice column has no least value, or equal values that are written differently.

        `is_bound`: push-down was requested, so errors name the fix.
        """

    def spellings(self, text: str, code: Any) -> Iterator[Any]:
        """A text id in each form the column's type may need; includes a number if the database does not convert."""
        yield text

    # ---- lists in a column -------------------------------------------------------------------------------------

    def id_kind(self, code: Any) -> IdKind:
        """How a column of that type writes ids."""
        name = re.sub("'[^']*'", "", str(code))  # without the labels of an enum
        if "uuid" in name.lower():
            return "uuid"
        return "unsigned" if _UNSIGNED.search(name) else "number" if _NUMBER.search(name) else "text"

    @property
    def unrolls(self) -> bool:
        """Whether it can read `items`."""
        return bool(self.unrolled("t", "items", None, "text"))

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        """A SELECT of `table` with a row per element of the lists in its column: all columns, ITEM, and PLACE from 1.

        An id in JSON is a text, or a whole number that the database reads exactly; texts of digits are numbers where
        labels are. NULL and an empty list leave one row, without both. An element other than an id, and a value other
        than a list, leave one without an item. Empty if the database has no such SELECT, or the column holds no lists.

        Args:
            table, column: as in a statement.
            code: type of the column; arrays keep theirs, all else is JSON.
            kind: of the ids in JSON.
        """
        return ""

    # ---- numbers -----------------------------------------------------------------------------------------------

    binary: sa.types.TypeEngine[float] = sa.Double()

    def number(self, value: float) -> Expression:
        """A binary floating-point constant, exact to the last bit."""
        plain: Expression = sa.literal_column(f"{value:.16e}", sa.Double)
        return sa.cast(plain, self.binary) if self.casts_constants else plain

    def double(self, value: Expression) -> Expression:
        """A number cast to binary floating point, where `/` and SUM match ours to the last bits."""
        return sa.cast(value, self.binary)

    def total(self, value: Expression) -> Expression:
        """The sum of a column in binary floating point."""
        return self.double(sa.func.sum(value))

    def ln(self, value: Expression) -> Expression:
        """The natural logarithm."""
        called: Expression = sa.func.ln(value, type_=sa.Double)
        return called

    def is_finite(self, value: Expression) -> Condition:
        """Whether a number is neither infinite nor NaN; NaN sorts last where it exists."""
        return value.between(self.number(-_HIGHEST), self.number(_HIGHEST))

    def is_stored_number(self, value: Expression) -> list[Condition]:
        """Conditions: the value is a number, not text; only the pull can read it. Empty if types tell."""
        return []

    def as_read(self, value: Expression, code: Any) -> Expression:
        """A number as the driver returns it."""
        return value

    def counted(self, value: Expression, condition: Condition) -> ColumnElement[int]:
        """Count of the value over rows that meet the condition."""
        return sa.func.count(sa.case((condition, value)))

    def place(self, position: Expression, is_whole: bool) -> tuple[Expression, Condition | None]:
        """(position as a number, whether it is whole; None if the column type guarantees it)."""
        return position, None if is_whole else sa.func.floor(position) == position

    def rank(self, position: Expression, is_whole: bool) -> Expression:
        """A position from which a rank can be computed."""
        return position if is_whole else self.double(position)

    def exactly(self, value: Expression, code: Any) -> Expression:
        """An expression that distinguishes values which a collation or type treats as equal."""
        return sa.cast(value, sa.LargeBinary())

    def group_exactly(self, value: Expression) -> Expression:
        """Text to group by exactly as written, if a collation can be named."""
        return value

    def fenced(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """The query behind an optimizer fence: it is not merged, nor its columns evaluated repeatedly."""
        return query

    def joined(
        self,
        query: sa.Select[Any],
        first: tuple[sa.FromClause, Expression],
        *more: tuple[sa.FromClause, Expression, Condition],
        is_outer: bool,
    ) -> sa.Select[Any]:
        """The query, from rows joined to more rows; never in time that grows with the product of both.

        Args:
            first: rows, and a column of theirs that is never NULL.
            more: rows, a column that is not NULL in those that match, and how they match rows before: equal columns.
            is_outer: keep rows of `first` that match nothing.
        """
        rows = first[0]
        for other, _, same in more:
            rows = rows.join(other, same, isouter=is_outer)
        return query.select_from(rows)

    # ---- one of several ----------------------------------------------------------------------------------------

    def ladder(self, value: Expression, edges: Sequence[Expression], steps: Sequence[Expression]) -> Expression:
        """`steps[i]` for the first i with value < `edges[i]`, else the last step.

        Built as a tree to keep comparisons few. There is one more step than rising edges; NULL gets the last step.
        """
        if not edges:
            return steps[0]
        middle = len(edges) // 2
        low = self.ladder(value, edges[:middle], steps[: middle + 1])
        high = self.ladder(value, edges[middle + 1 :], steps[middle + 1 :])
        return sa.case((value < edges[middle], low), else_=high)

    def table(self, value: Expression, first: int, steps: Sequence[float], after: float) -> Expression:
        """`steps[i]` for the whole number `first` + i; the first step below that, `after` above."""
        edges = [written(str(first + i)) for i in range(1, len(steps) + 1)]
        return self.ladder(value, edges, [*map(self.number, steps), self.number(after)])

    # ---- time --------------------------------------------------------------------------------------------------

    later_by = "INTERVAL '{} seconds'"
    time_literals = ("TIMESTAMP ", "TIMESTAMP ")
    """Prefixes of a time literal in SQL shown to people: with a zone, without one."""

    def instant(self, column: TimeColumn, instant: float) -> Expression:
        """An instant (seconds) as the column writes it, bound. BigQuery needs to know which times name their zone."""
        value = bound(column, instant)
        is_aware = isinstance(value, datetime) and value.tzinfo is not None
        kind: sa.types.TypeEngine[Any] | None = sa.TIMESTAMP(timezone=True) if is_aware else None
        if isinstance(instant, Mark):
            # For numbers SQLAlchemy picks the type this value needs; the next value may need a wider one.
            kind = sa.BigInteger() if isinstance(value, int) else kind
            return instant.parameter(column, lambda seconds: bound(column, seconds), kind)
        return Instant("instant", value, kind, unique=True)

    def between(self, time: Expression, column: TimeColumn, since: float, until: float) -> Condition:
        """Whether a time lies in [since, until) seconds; an hour wider around clock changes."""
        first = self.instant(column, since - slack(column, since))
        return sa.and_(time >= first, time < self.instant(column, until + slack(column, until)))

    def seconds(self, time: Expression, column: TimeColumn) -> Expression | None:
        """Whole seconds since 1970, rounded down; None if no short term computes them."""
        if column.format in PER_SECOND and self.has_times:
            return sa.func.floor(self.double(time) / self.number(PER_SECOND[column.format]), type_=sa.Double)
        is_utc = column.format == "native" and column.timezone in (None, "UTC")
        return self.unix_seconds(time) if is_utc else None

    def unix_seconds(self, time: Expression) -> Expression | None:
        """Whole seconds since 1970 of a native UTC time; None if no short term computes them."""
        return None

    def can_reckon(self, column: TimeColumn) -> bool:
        """Whether `seconds` can compute them."""
        return self.seconds(sa.null(), column) is not None

    def block(self, seconds: Expression, width: int, first: int = 0) -> Expression:
        """Index of the `width`-second block that holds an instant; the block of `first` is 0."""
        number: Expression = sa.func.floor(self.double(seconds) / self.number(width), type_=sa.Double)
        if not isinstance(first, Mark):
            return number - self.number(first // width)
        before = first.parameter(("block", width), lambda instant: instant // width, sa.BigInteger())
        return number - self.double(before)

    def stretch(self, time: Expression, column: TimeColumn, edges: Sequence[int], width: int) -> Expression:
        """Index from 0 of the stretch between `edges` (seconds) that holds a time.

        `width`: block size; all `edges` but the first and last lie on block boundaries.
        """
        seconds = self.seconds(time, column)
        if seconds is not None and len(edges) > 2:
            return self.block(seconds, width, edges[0])
        inner = [self.instant(column, edge) for edge in edges[1:-1]]
        return self.ladder(time, inner, [written(str(i)) for i in range(len(edges) - 1)])

    def later(self, time: Expression, column: TimeColumn, seconds: int) -> Expression:
        """A time `seconds` later, as the same column writes it."""
        if column.format in PER_SECOND:
            return time + written(str(seconds * PER_SECOND[column.format]))
        return self.time_later(time, column, seconds)

    def time_later(self, time: Expression, column: TimeColumn, seconds: int) -> Expression:
        """`later` for a native time."""
        return time.op("+", precedence=7)(written(self.later_by.format(seconds)))

    def converted(self, time: Expression, column: TimeColumn, other: TimeColumn) -> Expression:
        """A time of one column as `other` writes it; see `obstacle`."""
        if column.format not in PER_SECOND or column.format == other.format:
            return time
        units, per = PER_SECOND[other.format], PER_SECOND[column.format]
        if units > per:
            # A 64-bit constant: seconds often have 32 bits, too few for the product.
            return time * sa.cast(written(str(units // per)), sa.BigInteger)
        return self.double(time) / self.number(per // units)

    def is_plain(self, time: Expression, column: TimeColumn) -> Condition | None:
        """Whether a time is written so that arithmetic works; None if all are."""
        return None

    def obstacle(self, column: TimeColumn, other: TimeColumn | None = None) -> str:
        """Why arithmetic on a column's times, or comparison with those of another, fails; empty if it works."""
        if other is not None and not _alike(column, other):
            return f"times of {column.column!r} and {other.column!r} are written in different ways"
        return "" if column.format in PER_SECOND else self.text_obstacle(column)

    def text_obstacle(self, column: TimeColumn) -> str:
        """Why arithmetic fails on times that are not numbers."""
        return "" if column.format == "native" else f"{column.column!r} is text written as {column.format!r}"


def _alike(one: TimeColumn, other: TimeColumn) -> bool:
    both_count = one.format in PER_SECOND and other.format in PER_SECOND
    return both_count or (one.format, one.timezone) == (other.format, other.timezone)


def milliseconds(limit: float) -> int:
    """A limit in milliseconds, at least 1: 0 would mean no limit."""
    return max(1, int(limit * 1000))


def whole_seconds(limit: float) -> int:
    """A limit in whole seconds, rounded up."""
    return math.ceil(limit)


def as_number(text: str) -> Iterator[int]:
    """The whole number an id stands for, if any."""
    if re.fullmatch("0|-?[1-9][0-9]{0,17}", text):
        yield int(text)


def plain_name(name: str) -> str:
    """A name without characters special to SQL or drivers."""
    return re.sub(r"[^\w.-]", "_", name)
