"""What each kind of database is told by whoever reads it: who that is, and how long a statement may run.

A server's administrator sees `rankmon` as the program, and the monitor in a comment before each statement; on
PostgreSQL the monitor stands in the application's name too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL

from monitor.database_url import postgresql_arguments

PROGRAM = "rankmon"

CONNECT_TIMEOUT = 5
"""Seconds to wait for a server's first answer: a process that is to end may have to wait for as long."""

GRACE = 30
"""Seconds that an answer may take beyond what a statement may: by then a server says itself that it took too long."""

LONGEST_NAME = 63
"""Bytes of an application's name on PostgreSQL."""

SILENCE = 60
"""Seconds after which a server that has vanished is noticed."""

_CLICKHOUSE = {
    **{"join_use_nulls": "1", "aggregate_functions_null_for_empty": "1"},  # as everywhere else in SQL
    "readonly": "2",  # nothing is written, while settings may be changed
}
_TO_JOIN = ", SESSION ".join(
    f"{name} = {value}"
    for name, value in {
        "join_cache_level": 4,
        "join_buffer_size": 8 * 1024**2,
        "join_buffer_space_limit": 32 * 1024**2,
    }.items()
)
"""Has MariaDB join by hashes where no index serves: it would go through all of one side for each few rows of the other,
so that a log without an index on its request ids takes many times as long. Sizes in bytes."""
_NO_ROWID_FILTER = "SESSION optimizer_switch = 'rowid_filter=off'"
"""A hash join with a rowid filter finds no match (MDEV-24767)."""
_HAS_ROWID_FILTER = (10, 4, 3)
"""Version of MariaDB that brought it; older ones refuse the switch."""
_IN_PROCESS = ("sqlite", "duckdb")  # where nobody else looks on

CLOCKS = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)",
    "mysql": "UNIX_TIMESTAMP()",
    "mariadb": "UNIX_TIMESTAMP()",
    "clickhousedb": "toFloat64(now64(3))",
}
"""The server's clock in seconds since 1970, by dialect."""

Options = dict[str, Any]


def address(url: URL, limit: float) -> URL:
    """The URL with what a driver takes from there only, but for what it says itself. `limit` in seconds."""
    kind, wanted = url.get_backend_name(), dict[str, str]()
    if kind == "clickhousedb":
        wanted = _CLICKHOUSE | {"max_execution_time": str(limit), "log_comment": PROGRAM}
        if url.query.get("interface") != "chdb":
            wanted |= {"client_name": PROGRAM, "send_receive_timeout": str(math.ceil(limit) + GRACE)}
    if kind == "bigquery":
        wanted = {"labels": f"program:{PROGRAM}"}
    if driver_of(url) == "pyodbc" and kind == "mssql" and "odbc_connect" not in url.query:
        wanted = {"APP": PROGRAM}
    return url.update_query_dict({name: value for name, value in wanted.items() if name not in url.query})


def arguments(url: URL, limit: float) -> Options:
    """Arguments of the driver that the URL does not give itself. `limit` in seconds."""
    kind, driver, whole = url.get_backend_name(), driver_of(url), math.ceil(limit)
    make = _BY_DRIVER.get((kind, driver)) or _BY_DRIVER.get((kind, ""))
    options = make(whole) if make else {}
    if kind == "postgresql":
        options = postgresql_arguments(url, PROGRAM, CONNECT_TIMEOUT, SILENCE)
    if kind == "duckdb" and url.database not in (None, "", ":memory:"):
        options = {"read_only": True}
    return {name: value for name, value in options.items() if name not in url.query}


def own_limits(url: URL, limit: float) -> dict[str, float]:
    """Name -> seconds, of the limits on waiting that the URL sets itself and that are below `limit`, in seconds."""
    given = {name: str(url.query.get(name, "")) for name in ("connect_timeout", "read_timeout")}
    return {name: float(text) for name, text in given.items() if text.isdecimal() and float(text) < limit}


def driver_of(url: URL) -> str:
    """The driver that a URL names, or means where its kind of database has several; else empty."""
    driver = url.drivername.partition("+")[2]
    return url.get_driver_name() if not driver and url.get_backend_name() in _WITH_SEVERAL else driver


_WITH_SEVERAL = ("postgresql", "mysql", "mariadb", "mssql", "oracle")


def _of_pymysql(_: int) -> Options:
    # The limit on reading is for the first answers only; see `allow_answers`.
    return {"program_name": PROGRAM, "connect_timeout": CONNECT_TIMEOUT, "read_timeout": CONNECT_TIMEOUT}


def _of_mysqlclient(limit: int) -> Options:
    return {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": limit + GRACE, "write_timeout": limit + GRACE}


_BY_DRIVER: dict[tuple[str, str], Callable[[int], Options]] = {
    ("trino", ""): lambda limit: {
        "source": PROGRAM,
        "session_properties": {"query_max_run_time": f"{limit}s"},
        "request_timeout": float(GRACE),
    },
    ("snowflake", ""): lambda limit: {
        "session_parameters": {
            "QUERY_TAG": PROGRAM,
            "STATEMENT_TIMEOUT_IN_SECONDS": limit,
            "TIMESTAMP_INPUT_FORMAT": "AUTO",  # the driver sends times as text, which an account may read otherwise
        },
        "login_timeout": 6 * CONNECT_TIMEOUT,
        "network_timeout": limit + GRACE,
    },
    ("databricks", ""): lambda limit: {
        "user_agent_entry": PROGRAM,
        "session_configuration": {"STATEMENT_TIMEOUT": str(limit), "TIMEZONE": "UTC"},
        "_socket_timeout": limit + GRACE,
    },
    ("redshift", "redshift_connector"): lambda limit: {"application_name": PROGRAM, "timeout": limit + GRACE},
    ("mssql", "pyodbc"): lambda _: {"timeout": CONNECT_TIMEOUT},  # of logging in
    ("mssql", "pymssql"): lambda limit: {"appname": PROGRAM, "login_timeout": CONNECT_TIMEOUT, "timeout": limit},
    ("oracle", "oracledb"): lambda _: {"tcp_connect_timeout": float(CONNECT_TIMEOUT)},
    ("mysql", "pymysql"): _of_pymysql,
    ("mariadb", "pymysql"): _of_pymysql,
    ("mysql", "mysqldb"): _of_mysqlclient,
    ("mariadb", "mysqldb"): _of_mysqlclient,
}
"""(kind of database, driver or empty for any) -> the driver's arguments, given the limit in whole seconds."""


def allow_answers(driver: Any, url: URL) -> None:
    """Have a connection that is open now wait for its answers for as long as whoever watches over it lets it.

    PyMySQL has one limit on all that it reads. While it connects that must be short, or a server that takes
    connections and says nothing would be waited for as long as for a statement.
    """
    if driver_of(url) == "pymysql" and "read_timeout" not in url.query:
        driver._read_timeout = None


def begin(connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
    """The connection in a transaction that only reads, where there are such, and with the limit on each statement.

    Args:
        driver: the driver's own connection.
        limit: seconds.
        who: the monitor that reads; may be empty.
    """
    kind, connection = connection.dialect.name, connection.execution_options(rankmon_reader=who)
    if kind == "postgresql":
        connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        _begin_on_postgresql(connection, url, limit, who)
    if kind in ("mysql", "mariadb"):
        _begin_on_mysql(connection, limit)
    if kind == "redshift":
        connection.exec_driver_sql(f"SET statement_timeout TO {_milliseconds(limit)}")
    if kind == "oracle":
        driver.call_timeout, driver.module, driver.action = _milliseconds(limit), PROGRAM, who[:32]
        connection.exec_driver_sql("ALTER SESSION SET TIME_ZONE = '+00:00'")
    if kind == "mssql" and driver_of(url) == "pyodbc":
        driver.timeout = math.ceil(limit)
    if kind == "bigquery":
        connection = _limited_on_bigquery(connection, limit)
    return connection


def _limited_on_bigquery(connection: sa.Connection, limit: float) -> sa.Connection:
    from google.cloud.bigquery import QueryJobConfig

    return connection.execution_options(job_config=QueryJobConfig(job_timeout_ms=_milliseconds(limit)))


def _milliseconds(limit: float) -> int:
    """At least one: 0 would be no limit."""
    return max(1, int(limit * 1000))


def _begin_on_postgresql(connection: sa.Connection, url: URL, limit: float, who: str) -> None:
    settings = {"statement_timeout": str(_milliseconds(limit)), "TimeZone": "UTC"}
    if who and "application_name" not in url.query:
        settings["application_name"] = f"{PROGRAM} {_plain(who)}"[:LONGEST_NAME]
    # All at once, for each statement is a way there and back; for this transaction only.
    connection.execute(sa.select(*(sa.func.set_config(name, value, True) for name, value in settings.items())))


def _begin_on_mysql(connection: sa.Connection, limit: float) -> None:
    wanted = f"max_execution_time = {_milliseconds(limit)}"
    if getattr(connection.dialect, "is_mariadb", False):
        wanted = f"max_statement_time = {limit}, SESSION {_TO_JOIN}"
        if (connection.dialect.server_version_info or ()) >= _HAS_ROWID_FILTER:
            wanted += f", {_NO_ROWID_FILTER}"
    connection.exec_driver_sql(f"SET SESSION {wanted}, SESSION time_zone = '+00:00'")
    connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
    connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def sign(engine: sa.Engine) -> None:
    """Put the program and the monitor into a comment before every statement of the engine's that goes to a server."""
    if engine.dialect.name in _IN_PROCESS:
        return

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def _comment(connection: sa.Connection, _: object, statement: str, parameters: Any, *__: object) -> tuple[str, Any]:
        who = _plain(connection.get_execution_options().get("rankmon_reader", ""))
        return f"/* {' '.join(filter(None, (PROGRAM, who)))} */ {statement}", parameters


def _plain(name: str) -> str:
    """A name that means nothing to SQL or to a driver."""
    return re.sub(r"[^\w.-]", "_", name)
