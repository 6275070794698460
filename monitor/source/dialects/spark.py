"""Spark, over its Thrift server with our own connections (`thrift`), and Databricks."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import URL

import monitor.source.dialects.base as base
from monitor.source.dialects.base import Dialect, Expression, Options
from monitor.source.dialects.subquery import Quoting


class Spark(Dialect):
    """Spark's Thrift server, whose statements are polled."""

    names = ("hive",)
    lists = {
        (is_text, is_whole): "SELECT t.*, i.list_item, i.place + 1 AS list_position FROM {table} AS t "
        f"LATERAL VIEW OUTER posexplode({elements}) i AS place, list_item"
        for is_whole, kind in ((True, "bigint"), (False, "string"))
        for is_text, elements in ((True, f"from_json(t.{{list}}, 'array<{kind}>')"), (False, "t.{list}"))
    }
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
