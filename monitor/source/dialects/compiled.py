"""Databases whose SQL is compiled and reviewed (tests/golden/sql) but never run: Redshift, Trino, BigQuery, ..."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.oracle import BINARY_DOUBLE
from sqlalchemy.engine import URL

import monitor.source.dialects.base as base
from monitor.errors import SourceError
from monitor.source.dialects.base import Condition, Dialect, Expression, Options, written
from monitor.source.dialects.faults import Fault
from monitor.source.dialects.postgresql import PostgreSQL
from monitor.source.dialects.subquery import Quoting

_STRICT_INTEGERS = ("tinyint", "smallint", "integer", "bigint", "int64")


class Redshift(Dialect):
    """Redshift: close to an old PostgreSQL."""

    names = ("redshift",)
    extra = "redshift"
    schemes = {"redshift": "redshift+redshift_connector"}
    modules = ("redshift", "redshift_connector")
    quoting = Quoting(arrays=True, hashes=True, dashes=True)
    grants = PostgreSQL.grants
    time_literals = ("TIMESTAMPTZ ", "TIMESTAMP ")  # TIMESTAMP drops the zone

    def driver_options(self, url: URL, limit: float) -> Options:
        if self.driver_of(url) != "redshift_connector":
            return {}
        return {"application_name": base.PROGRAM, "timeout": base.whole_seconds(limit) + base.GRACE}

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        connection.exec_driver_sql(f"SET statement_timeout TO {base.milliseconds(limit)}")
        return connection


class Strict(Dialect):
    """Compares no text with a number."""

    nan_is_itself = False
    quoting = Quoting(arrays=True, dashes=True)

    def spellings(self, text: str, code: Any) -> Iterator[Any]:
        if str(code).lower() in _STRICT_INTEGERS:
            yield from base.as_number(text)
        else:
            yield text


class Trino(Strict):
    """Trino and Athena."""

    names = ("trino", "awsathena")
    extra = "trino"
    schemes = {"trino": "trino"}
    modules = ("trino",)
    later_by = "INTERVAL '{}' SECOND"

    def driver_options(self, url: URL, limit: float) -> Options:
        if url.get_backend_name() != "trino":
            return {}
        return {
            "source": base.PROGRAM,
            "session_properties": {"query_max_run_time": f"{base.whole_seconds(limit)}s"},
            "request_timeout": float(base.GRACE),
        }


class BigQuery(Strict):
    """BigQuery: must know which times name their zone."""

    names = ("bigquery",)
    extra = "bigquery"
    schemes = {"bigquery": "bigquery"}
    modules = ("bigquery",)
    later_by = "INTERVAL {} SECOND"
    time_literals = ("TIMESTAMP ", "DATETIME ")  # TIMESTAMP is an instant
    escapes_names = True
    quoting = Quoting(ticks=True, arrays=True, dashes=True, triples=True)
    faults = (
        Fault(
            "connect",
            (),
            ("default credentials were not found",),
            "let GOOGLE_APPLICATION_CREDENTIALS, where rankmon runs, name a service account's key file, or add "
            "?credentials_path=/path/key.json to the URL; by hand, `gcloud auth application-default login` does too",
        ),
    )

    def url_options(self, url: URL, limit: float) -> dict[str, str]:
        return {"labels": f"program:{base.PROGRAM}"}

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        from google.cloud.bigquery import QueryJobConfig

        return connection.execution_options(job_config=QueryJobConfig(job_timeout_ms=base.milliseconds(limit)))


class _AddsByFunction(Dialect):
    def time_later(self, time: Expression, column: Any, seconds: int) -> Expression:
        found: Expression = sa.func.dateadd(written("SECOND"), written(str(seconds)), time)
        return found


class Snowflake(_AddsByFunction):
    """Snowflake: type codes are numbers."""

    names = ("snowflake",)
    extra = "snowflake"
    schemes = {"snowflake": "snowflake"}
    modules = ("snowflake",)
    quoting = Quoting(arrays=True, dashes=True)
    time_literals = ("", "TIMESTAMP ")  # TIMESTAMP drops the zone
    type_names = {2: "TEXT", 13: "BOOLEAN"}  # only those whose kind matters

    def driver_options(self, url: URL, limit: float) -> Options:
        """Arguments that fix time formats: the driver sends times as text, which an account may parse differently."""
        whole = base.whole_seconds(limit)
        return {
            "session_parameters": {
                "QUERY_TAG": base.PROGRAM,
                "STATEMENT_TIMEOUT_IN_SECONDS": whole,
                "TIMESTAMP_INPUT_FORMAT": "AUTO",
            },
            "login_timeout": 6 * base.CONNECT_TIMEOUT,
            "network_timeout": whole + base.GRACE,
        }


class SQLServer(_AddsByFunction):
    """SQL Server: integer sums overflow at 32 bits, and texts compare by collation."""

    names = ("mssql",)
    extra = "mssql"
    schemes = {"mssql": "mssql+pyodbc"}
    modules = ("pyodbc",)
    mistaken_for = {"sqlserver": "mssql+pyodbc"}
    has_several_drivers = True
    quoting = Quoting(hashes=True, dashes=True)
    collated_texts = ("str", 1)
    time_literals = ("", "")  # a plain text compares

    def url_options(self, url: URL, limit: float) -> dict[str, str]:
        """URL options; ODBC takes the program's name from there."""
        is_odbc = self.driver_of(url) == "pyodbc" and "odbc_connect" not in url.query
        return {"APP": base.PROGRAM} if is_odbc else {}

    def driver_options(self, url: URL, limit: float) -> Options:
        """Arguments; pyodbc's `timeout` limits only the login."""
        if self.driver_of(url) == "pymssql":
            whole = base.whole_seconds(limit)
            return {"appname": base.PROGRAM, "login_timeout": base.CONNECT_TIMEOUT, "timeout": whole}
        return {"timeout": base.CONNECT_TIMEOUT} if self.driver_of(url) == "pyodbc" else {}

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        """The connection with its statement limit, which pyodbc sets per connection."""
        if self.driver_of(url) == "pyodbc":
            driver.timeout = base.whole_seconds(limit)
        return connection

    def total(self, value: Expression) -> Expression:
        return sa.func.sum(self.double(value), type_=sa.Double)

    def ln(self, value: Expression) -> Expression:
        called: Expression = sa.func.log(value, type_=sa.Double)
        return called

    def exactly(self, value: Expression, code: Any) -> Expression:
        """The longest binary that still compares and is not a large object."""
        return sa.cast(value, sa.VARBINARY(8_000))


class Oracle(Dialect):
    """Oracle: decimals end at 1e126, and DOUBLE PRECISION and constants are decimal."""

    names = ("oracle",)
    extra = "oracle"
    schemes = {"oracle": "oracle+oracledb"}
    modules = ("oracledb",)
    has_several_drivers = True
    later_by = "NUMTODSINTERVAL({}, 'SECOND')"
    quoting = Quoting(arrays=True, hashes=True, dashes=True)
    binary = BINARY_DOUBLE()

    def driver_options(self, url: URL, limit: float) -> Options:
        return {"tcp_connect_timeout": float(base.CONNECT_TIMEOUT)} if self.driver_of(url) == "oracledb" else {}

    def begin(self, connection: sa.Connection, driver: Any, url: URL, limit: float, who: str) -> sa.Connection:
        driver.call_timeout, driver.module, driver.action = base.milliseconds(limit), base.PROGRAM, who[:32]
        connection.exec_driver_sql("ALTER SESSION SET TIME_ZONE = '+00:00'")
        return connection

    def check_time(self, column: str, code: Any) -> None:
        """Also for zoned times: the driver drops the zone and returns local time."""
        super().check_time(column, code)
        if code == "DB_TYPE_TIMESTAMP_TZ":
            raise SourceError(
                f"time column {column!r} is TIMESTAMP WITH TIME ZONE, whose zone Oracle's driver leaves out; take "
                f"SYS_EXTRACT_UTC({column}) in a `select:`, and declare timezone: UTC",
                "data",
                lasting=True,
            )

    def is_finite(self, value: Expression) -> Condition:
        return sa.and_(*(value.op("IS NOT", is_comparison=True)(written(kind)) for kind in ("INFINITE", "NAN")))
