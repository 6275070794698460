"""Spark, over its Thrift server with our own connections (`thrift`), and Databricks."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

import monitor.source.dialects.base as base
from monitor.source.dialects.base import Dialect, Expression, IdKind, Options
from monitor.source.dialects.subquery import Quoting
from monitor.types import ITEM, PLACE


class Spark(Dialect):
    """Spark's Thrift server, whose statements are polled."""

    names = ("hive",)
    members = {
        (True, True): "CAST(get_json_object(t.{column}, '$.{path}') AS BIGINT)",
        (True, False): "get_json_object(t.{column}, '$.{path}')",
        **{(False, is_whole): "t.{column}.{path}" for is_whole in (True, False)},
    }
    extra = "spark"
    schemes = {"hive": "hive"}
    modules: tuple[str, ...] = ("hive", "pyhive", "thrift", "thrift_sasl")
    mistaken_for = {"spark": "hive"}
    is_proven = True
    casts_constants = False
    later_by = "INTERVAL '{}' SECOND"
    quoting = Quoting(ticks=True, arrays=True, dashes=True)

    def create_engine(self, url: URL, limit: float, most: int) -> sa.Engine:
        import monitor.source.dialects.thrift as thrift

        return thrift.create(url, limit)

    def patience(self, limit: float) -> float:
        """Seconds with a wide margin: our connection checks the clock itself."""
        return limit + 2 * base.GRACE

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        name, value, item = str(code).upper(), f"t.{column}", "i.element"
        if code is None or name == "STRING":
            value = (
                f"CASE WHEN trim({value}) = 'null' THEN NULL WHEN {value} IS NOT NULL "
                f"THEN coalesce(from_json({value}, 'array<string>'), array(NULL)) END"
            )
            item = "CASE WHEN substr(i.element, 1, 1) NOT IN ('[', '{') THEN i.element END"
            item = f"try_cast({item} AS BIGINT)" if kind == "number" else item
        elif name != "ARRAY":
            return ""
        return (
            f"SELECT t.*, {item} AS {ITEM}, i.place + 1 AS {PLACE} FROM {table} AS t "
            f"LATERAL VIEW OUTER posexplode({value}) i AS place, element"
        )

    def unix_seconds(self, time: Expression) -> Expression | None:
        """Whole seconds since 1970; the session's zone is UTC."""
        return sa.func.unix_seconds(sa.cast(time, sa.TIMESTAMP))


class Databricks(Spark):
    """Databricks: compiled, never run."""

    names = ("databricks",)
    extra = ""
    package = "databricks-sqlalchemy"
    schemes = {"databricks": "databricks"}
    modules = ("databricks",)
    mistaken_for = {}
    is_proven = False

    def create_engine(self, url: URL, limit: float, most: int) -> sa.Engine:
        return Dialect.create_engine(self, url, limit, most)

    def patience(self, limit: float) -> float:
        """The usual margin, since the server has its own limit."""
        return Dialect.patience(self, limit)

    def driver_options(self, url: URL, limit: float) -> Options:
        whole = base.whole_seconds(limit)
        return {
            "user_agent_entry": base.PROGRAM,
            "session_configuration": {"STATEMENT_TIMEOUT": str(whole), "TIMEZONE": "UTC"},
            "_socket_timeout": whole + base.GRACE,
        }
