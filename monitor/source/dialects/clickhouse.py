"""ClickHouse, as a server or in-process (chdb), set to treat NULL in joins and sums as standard SQL does."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

import monitor.source.dialects.base as base
from monitor.source.dialects.base import Condition, Dialect, Expression, IdKind, written
from monitor.source.dialects.subquery import Quoting
from monitor.source.prepared import Instant, Mark
from monitor.source.times import bound
from monitor.types import ITEM, PLACE, TimeColumn

_SETTINGS = {
    **{"join_use_nulls": "1", "aggregate_functions_null_for_empty": "1"},  # as in standard SQL
    "readonly": "2",  # no writes, but settings may change
}
_ID = "multiIf(JSONType(x) = 'String', JSONExtract(x, 'Nullable(String)'), JSONType(x) IN ('Int64', 'UInt64'), x, NULL)"
"""The id that the JSON x is; NULL if it is anything else."""
_IDS = {"text": "{}", "number": "toInt64OrNull({})", "unsigned": "toUInt64OrNull({})", "uuid": "toUUIDOrNull({})"}
_TEXT = re.compile(r"((Nullable|LowCardinality)\()*String")
_OF_IDS = re.compile(r"Array\((?!Array|Tuple|Map|Nested|JSON)")
_NAMED = re.compile(r"DB::Exception.*\(([A-Z][A-Z_0-9]+)\)", re.DOTALL)
"""ClickHouse ends its message with the error's name."""


class ClickHouse(Dialect):
    """Times are instants in any display zone, which the driver keeps; NaN does not equal itself."""

    names = ("clickhouse", "clickhousedb")
    members = {
        (True, True): "toInt64OrNull(JSON_VALUE(t.{column}, '$.{path}'))",
        (True, False): "JSON_VALUE(t.{column}, '$.{path}')",
        **{(False, is_whole): "t.{column}.{path}" for is_whole in (True, False)},
    }
    extra = "clickhouse"
    schemes = {"clickhousedb": "clickhousedb"}
    modules = ("clickhouse_connect", "clickhousedb")
    mistaken_for = {"clickhouse": "clickhousedb"}
    is_proven = True
    casts_constants = nan_is_itself = False
    later_by = "INTERVAL {} SECOND"
    clock = "toFloat64(now64(3))"
    escapes_names = True
    tables_query = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = coalesce(:schema, currentDatabase())"
    )
    quoting = Quoting(ticks=True, arrays=True, dashes=True)

    def url_options(self, url: URL, limit: float) -> dict[str, str]:
        """URL options; the driver takes settings from the URL."""
        wanted = _SETTINGS | {"max_execution_time": str(limit), "log_comment": base.PROGRAM, "tz_mode": "aware"}
        if url.query.get("interface") == "chdb":
            return wanted
        patience = base.whole_seconds(limit) + base.GRACE
        return wanted | {"client_name": base.PROGRAM, "send_receive_timeout": str(patience)}

    def error_name(self, error: BaseException) -> str:
        named = _NAMED.search(str(error))
        return named[1] if named else ""

    def double(self, value: Expression) -> Expression:
        """toFloat64, which also takes a Nullable."""
        return sa.func.toFloat64(value, type_=sa.Double)

    def place(self, position: Expression, is_whole: bool) -> tuple[Expression, Condition | None]:
        """A position as a float: decimals do not compare with numbers too large for them."""
        number = sa.func.toFloat64(position)
        return number, sa.func.floor(number) == number

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        """As in `Dialect`; an empty text is an empty list, too."""
        name, value = str(code), f"t.{column}"
        if code is None or _TEXT.match(name):
            value = f"assumeNotNull({value})"
            found = f"arrayMap(x -> {_IDS[kind].format(_ID)}, JSONExtractArrayRaw({value}))"
            ids = f"multiIf(JSONType({value}) = 'Array', {found}, {value} IN ('', 'null'), [], [NULL])"
        elif _OF_IDS.match(name):
            ids = f"arrayMap(x -> toNullable(x), {value})"
        else:
            return ""
        return (
            f"SELECT t.*, {ITEM}, {PLACE} FROM {table} AS t ARRAY JOIN if(empty({ids}), [NULL], {ids}) AS {ITEM}, "
            f"if(empty({ids}), [NULL], arrayMap(x -> toNullable(x), arrayEnumerate({ids}))) AS {PLACE}"
        )

    def unix_seconds(self, time: Expression) -> Expression | None:
        return sa.func.toUnixTimestamp(time)

    def instant(self, column: TimeColumn, instant: float) -> Expression:
        """An instant as a typed parameter: ClickHouse reads a bare time as text in the column's zone."""
        if column.format != "native":
            return super().instant(column, instant)

        def plain(seconds: float) -> object:
            value = bound(column, seconds)
            return value.replace(tzinfo=None) if isinstance(value, datetime) else value

        if isinstance(instant, Mark):
            value = instant.parameter((column, "UTC"), plain)
        else:
            value = Instant("instant", plain(instant), unique=True)
        found: Expression = sa.func.toDateTime64(value, written("6"), written("'UTC'"), type_=sa.DateTime)
        return found
