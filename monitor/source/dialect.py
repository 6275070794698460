"""How a database is spoken to where SQL dialects differ: numbers, clocks, and one value of several by its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from sqlalchemy.dialects.oracle import BINARY_DOUBLE
from sqlalchemy.sql.elements import ColumnElement

from monitor.source.prepared import Mark
from monitor.source.queries import at
from monitor.source.times import slack
from monitor.types import TimeColumn

Expression = ColumnElement[Any]
Condition = ColumnElement[bool]

_EPOCHS = {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}
_ISO = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")
_FAMILIES = {"mariadb": "mysql", "clickhousedb": "clickhouse", "awsathena": "trino"}
_SPARK = ("hive", "databricks")
_HIGHEST = 1.7976931348623157e308


def written(text: str) -> Expression:
    """SQL that stands in a statement as it is written."""
    return sa.literal_column(text)


def _interval(text: str) -> Callable[[Expression, int], Expression]:
    return lambda time, seconds: time.op("+", precedence=7)(written(text.format(seconds)))


def _dateadd(time: Expression, seconds: int) -> Expression:
    found: Expression = sa.func.dateadd(written("SECOND"), written(str(seconds)), time)
    return found


class _Habits(NamedTuple):
    """What is special about a family of dialects.

    Attributes:
        is_proven: whether the statements were run on it and held against the pull.
        later: adds seconds to a time of its own type.
        casts: whether a constant must be cast to be a binary number, and not a decimal one.
        ln: name of the natural logarithm.
        by_hash: whether it looks pairs up in a table of its own making; else it goes by its indexes.
        keeps_parts: whether it works out once what is named in WITH, however many times that is used.
        by_one_processor: whether one processor does most of the work of one statement.
        slow: why the pull is the faster way; empty if it is not.
        nan_is_itself: whether NaN is equal to NaN.
    """

    is_proven: bool
    later: Callable[[Expression, int], Expression]
    casts: bool = True
    ln: str = "ln"
    by_hash: bool = False
    keeps_parts: bool = False
    by_one_processor: bool = False
    slow: str = ""
    nan_is_itself: bool = True


_SORTS = "it sorts where others hash, so that to sum up takes longer than to send the rows"

HABITS: dict[str, _Habits] = {
    "sqlite": _Habits(True, _interval("{}"), casts=False, by_one_processor=True, slow=_SORTS),
    "postgresql": _Habits(
        True, _interval("INTERVAL '{} seconds'"), by_hash=True, keeps_parts=True, by_one_processor=True
    ),
    "duckdb": _Habits(True, _interval("INTERVAL '{} seconds'"), casts=False, by_hash=True, keeps_parts=True),
    "mysql": _Habits(True, _interval("INTERVAL {} SECOND"), casts=False, by_one_processor=True, slow=_SORTS),
    "clickhouse": _Habits(True, _interval("INTERVAL {} SECOND"), casts=False, nan_is_itself=False),
    "redshift": _Habits(False, _interval("INTERVAL '{} seconds'")),
    "databricks": _Habits(False, _interval("INTERVAL '{}' SECOND"), casts=False),
    "hive": _Habits(True, _interval("INTERVAL '{}' SECOND"), casts=False),  # Spark, by its Thrift server
    "trino": _Habits(False, _interval("INTERVAL '{}' SECOND"), nan_is_itself=False),
    "bigquery": _Habits(False, _interval("INTERVAL {} SECOND"), nan_is_itself=False),
    "snowflake": _Habits(False, _dateadd),
    "mssql": _Habits(False, _dateadd, ln="log"),
    "oracle": _Habits(False, _interval("NUMTODSINTERVAL({}, 'SECOND')")),
}
"""Family of dialects -> what is special. What is not in here cannot sum up by itself."""


def family_of(dialect: str) -> str:
    """The family that a dialect's name belongs to."""
    return _FAMILIES.get(dialect, dialect)


@dataclass(frozen=True)
class Speech:
    """Speaks the dialect of that name, one of `HABITS` or an alias."""

    dialect: str

    @property
    def family(self) -> str:
        """The family of dialects."""
        return family_of(self.dialect)

    @property
    def habits(self) -> _Habits:
        """What is special about it."""
        return HABITS[self.family]

    # ---- numbers -----------------------------------------------------------------------------------------------

    def number(self, value: float) -> Expression:
        """A binary floating-point constant, to the last bit."""
        plain: Expression = sa.literal_column(f"{value:.16e}", sa.Double)
        return sa.cast(plain, self._binary) if self.habits.casts else plain

    @property
    def _binary(self) -> sa.types.TypeEngine[float]:
        """The type of binary numbers; what Oracle calls DOUBLE PRECISION is a decimal one."""
        return BINARY_DOUBLE() if self.family == "oracle" else sa.Double()

    def double(self, value: Expression) -> Expression:
        """A number in binary floating point: `/` and SUM are exact to the last bits only there."""
        if self.family == "mysql":
            return value * self.number(1)
        if self.family == "clickhouse":
            return sa.func.toFloat64(value, type_=sa.Double)
        return sa.cast(value, self._binary)

    def total(self, value: Expression) -> Expression:
        """The sum of a column in binary floating point; SQL Server has 32 bits alone for a sum of whole numbers."""
        if self.family == "mssql":
            return sa.func.sum(self.double(value), type_=sa.Double)
        return self.double(sa.func.sum(value))

    def ln(self, value: Expression) -> Expression:
        """The natural logarithm."""
        called: Expression = getattr(sa.func, self.habits.ln)(value, type_=sa.Double)
        return called

    def is_finite(self, value: Expression) -> Condition:
        """Whether a number is neither infinite nor NaN, which sorts after all others where there is one."""
        if self.family == "oracle":  # whose decimal numbers end at 1e126, and whose constants are decimal
            return sa.and_(*(value.op("IS NOT", is_comparison=True)(written(kind)) for kind in ("INFINITE", "NAN")))
        return value.between(self.number(-_HIGHEST), self.number(_HIGHEST))

    def fenced(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """The query, such that what is around it is not worked into it, and its columns not worked out many times."""
        if self.family == "postgresql":
            return query.offset(written("0"))
        return query.limit(written("-1")).offset(written("0")) if self.family == "sqlite" else query

    # ---- one of several ----------------------------------------------------------------------------------------

    def ladder(self, value: Expression, edges: Sequence[Expression], steps: Sequence[Expression]) -> Expression:
        """The step on which a value stands: `steps[i]` if it is under `edges[i]` and not under those before.

        As a tree, so that few comparisons are made.

        Args:
            edges: rising.
            steps: one more than edges. NULL stands on the last.
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

    def moment(self, column: TimeColumn, instant: int) -> Expression:
        """An instant (seconds) as a column writes it."""
        found: Expression = at(column, instant, self.dialect)
        return found

    def seconds(self, time: Expression, column: TimeColumn) -> Expression | None:
        """Whole seconds since 1970 of a time, rounded down; None where they cannot be told in one short term."""
        if column.format in _EPOCHS and self.family != "sqlite":
            return sa.func.floor(self.double(time) / self.number(_EPOCHS[column.format]), type_=sa.Double)
        if column.format != "native" or column.timezone not in (None, "UTC"):
            return None
        if self.family == "postgresql":  # where EXTRACT makes slow decimals, and a cast to a whole number would round
            return sa.func.floor(sa.func.date_part(written("'epoch'"), time, type_=sa.Double), type_=sa.Double)
        if self.family == "duckdb":
            return sa.func.floor(self.double(sa.func.epoch_us(time)) / self.number(1_000_000), type_=sa.Double)
        if self.family in _SPARK:  # where the session's zone is UTC
            return sa.func.unix_seconds(sa.cast(time, sa.TIMESTAMP))
        return sa.func.toUnixTimestamp(time) if self.family == "clickhouse" else None

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

        Args:
            width: of blocks on whose edges all `edges` but the first and the last are.
        """
        seconds = self.seconds(time, column)
        if seconds is not None and len(edges) > 2:
            return self.block(seconds, width, edges[0])
        inner = [self.moment(column, edge) for edge in edges[1:-1]]
        return self.ladder(time, inner, [written(str(i)) for i in range(len(edges) - 1)])

    def later(self, time: Expression, column: TimeColumn, seconds: int) -> Expression:
        """A time so many seconds later, as the same column writes it."""
        if column.format in _EPOCHS:
            return time + written(str(seconds * _EPOCHS[column.format]))
        if column.format == "native":
            return self.habits.later(time, seconds)
        return sa.func.strftime(_plain(column), time, f"{seconds:+d} seconds", type_=sa.Text)

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
        if column.format in _EPOCHS or column.format == "native":
            return None
        return sa.func.coalesce(sa.func.strftime(_plain(column), time), written("''")) == time

    def obstacle(self, column: TimeColumn, other: TimeColumn | None = None) -> str:
        """Why times of a column cannot be reckoned with, or not beside those of another one; empty if they can."""
        # ClickHouse's times are instants whatever zone they are shown in.
        are_instants = self.family == "clickhouse" and {column.timezone, other and other.timezone} <= {None, "UTC"}
        if other is not None and not _alike(column, other) and not (are_instants and column.format == other.format):
            return f"times of {column.column!r} and {other.column!r} are written in different ways"
        if column.format in _EPOCHS:
            return ""
        if column.format == "native":
            return f"{column.column!r} is text to SQLite" if self.family == "sqlite" else ""
        if self.family == "sqlite" and _plain(column) == column.format:
            return ""
        return f"{column.column!r} is text written as {column.format!r}"


def _alike(one: TimeColumn, other: TimeColumn) -> bool:
    both_count = one.format in _EPOCHS and other.format in _EPOCHS
    return both_count or (one.format, one.timezone) == (other.format, other.timezone)


def _plain(column: TimeColumn) -> str | None:
    """The format, if texts in it are whole seconds in UTC that SQLite can read and write."""
    zone = "Z" if column.timezone is None else ""
    if column.timezone not in (None, "UTC") or column.format not in [iso + zone for iso in _ISO]:
        return None
    return column.format


def changes_clocks(column: TimeColumn, since: int, until: int) -> bool:
    """Whether clocks are changed in the column's zone in [since, until) seconds, or close to it."""
    if column.timezone in (None, "UTC"):
        return False
    zone, step = ZoneInfo(str(column.timezone)), int(timedelta(hours=1).total_seconds())
    return bool(zone) and any(slack(column, at) for at in range(since, until + step, step))
