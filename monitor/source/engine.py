"""The user's database: connected to read-only, with a limit on every statement, and errors that name the remedy."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from monitor.database_url import how_to_install
from monitor.errors import SourceError, Stopped, TooMany
from monitor.source.faults import fault_of

FETCH = 50_000
"""Rows fetched at once from a server."""

FETCH_FILE = 2_000
"""The same from a SQLite file, where it costs nothing to come again; so few stay in the processor's cache."""

Statement = sa.Select[Any] | sa.CompoundSelect[Any]

_EXTRAS = {
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "duckdb": "duckdb",
    "duckdb_engine": "duckdb",
    "clickhouse_connect": "clickhouse",
    "trino": "trino",
    "clickhousedb": "clickhouse",
    "pyodbc": "mssql",
    "oracledb": "oracle",
}
"""What is missing -> the extra that brings it."""

_PACKAGES = {
    "bigquery": "sqlalchemy-bigquery",
    "snowflake": "snowflake-sqlalchemy",
    "databricks": "databricks-sqlalchemy",
    "redshift": "sqlalchemy-redshift",
    "hive": "pyhive",
}
"""The same -> the package to install, where an extra would hold other packages back."""

_CLICKHOUSE = {"join_use_nulls": "1", "aggregate_functions_null_for_empty": "1"}  # as everywhere else in SQL
_LIBPQ = ("psycopg", "psycopg2")
_KEEPALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}  # a vanished server is noticed
_STEPS = 100_000  # of SQLite's machine between two looks at the clock
_CACHE = 65_536  # KiB that SQLite holds, and sorts in before it takes to a file

WORK_MEMORY = 128
"""Megabytes that PostgreSQL may take for each step of a statement that sums up; one request takes about 200 bytes."""

CONNECT_TIMEOUT = 5
"""Seconds to wait for a server's first answer: a process that is to end may have to wait for as long."""

CANCEL_TIMEOUT = 2
"""Seconds for which a server is asked to end a statement."""


class Database:
    """One source. Safe to share between threads; connections are opened when first needed.

    On PostgreSQL, SQLite, MariaDB and MySQL nothing can be written, and no statement outlives its limit, nor does one
    on ClickHouse. A file of DuckDB is opened read-only. What else is wanted is up to the rights of the database's user.
    """

    def __init__(self, name: str, url: URL, statement_timeout: float, stop: Callable[[], bool] = lambda: False) -> None:
        """`stop` is asked between fetches; `statement_timeout` is in seconds."""
        self.name = name
        self.url = url
        self.statement_timeout = statement_timeout
        self._stop = stop
        self._engine: sa.Engine | None = None
        self._creating = threading.Lock()
        self._open: set[Any] = set()

    @property
    def dialect(self) -> str:
        """Name of the database's SQL dialect."""
        return self.url.get_backend_name()

    def close(self) -> None:
        """Give the pooled connections back."""
        if self._engine is not None:
            self._engine.dispose()

    def interrupt(self) -> None:
        """End the statements under way, from any thread; their readers get Stopped if `stop` says so, else an error."""
        for driver in list(self._open):
            with suppress(Exception):  # it may just have ended by itself
                self._end(driver)

    def _end(self, driver: Any) -> None:
        """End what a driver's connection is doing, if its driver can."""
        if hasattr(driver, "cancel_safe"):
            driver.cancel_safe(timeout=CANCEL_TIMEOUT)
        elif hasattr(driver, "cancel"):
            driver.cancel()
        elif hasattr(driver, "interrupt"):
            driver.interrupt()
        elif hasattr(driver, "thread_id"):
            with self._connected().connect() as connection:
                connection.exec_driver_sql(f"KILL QUERY {int(driver.thread_id())}")

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """A read-only transaction: all its queries see one state of the data where the database can do that.

        Raises:
            SourceError: out of reach, not permitted, too slow, or the query does not fit the tables.
            Stopped: `stop` said so.
        """
        with self._explained(), self._connected().connect() as connection:
            driver: Any = connection.connection.driver_connection
            self._open.add(driver)
            try:
                yield self._begin(connection, driver)
            finally:  # the transaction ends with the connection's return to the pool
                self._open.discard(driver)

    def _connected(self) -> sa.Engine:
        with self._creating:
            if self._engine is None:
                try:
                    self._engine = self._create()
                except (NoSuchModuleError, ImportError) as error:
                    raise SourceError(self._driver_help(error), "driver") from error
            return self._engine

    def _create(self) -> sa.Engine:
        if self.dialect == "sqlite":
            # A new connection each time: a file that was replaced or removed since is seen at once.
            return sa.create_engine("sqlite://", creator=self._open_file, poolclass=sa.NullPool)
        options, url = self._options(), self.url
        if self.dialect == "clickhousedb":
            wanted = _CLICKHOUSE | {"max_execution_time": str(self.statement_timeout)}
            url = url.update_query_dict({name: value for name, value in wanted.items() if name not in url.query})
        return sa.create_engine(url, pool_pre_ping=True, pool_recycle=3600, connect_args=options)

    def _options(self) -> dict[str, Any]:
        """Arguments of the driver that the URL does not give itself."""
        options: dict[str, Any] = {}
        if self.url.get_driver_name() in _LIBPQ:
            options = {"application_name": "rankmon", "connect_timeout": CONNECT_TIMEOUT} | _KEEPALIVE
        if self.url.get_driver_name() == "psycopg":
            # A statement prepared for all times of day has a plan for none, and poolers may lose it.
            options["prepare_threshold"] = None
        if self.url.get_driver_name() == "pymysql":
            options = {"program_name": "rankmon", "connect_timeout": CONNECT_TIMEOUT}
        if self.dialect == "duckdb" and self.url.database not in (None, "", ":memory:"):
            options = {"read_only": True}
        return {name: value for name, value in options.items() if name not in self.url.query}

    def _open_file(self) -> sqlite3.Connection:
        """SQLite would create a missing file and call it empty; so it is opened as what must be there, read-only."""
        path = self.url.database
        if not path or path == ":memory:" or path.startswith("file:"):
            raise SourceError(f"source {self.name}: give a SQLite file as sqlite:////absolute/path.db", "connect")
        full = Path(path).absolute()
        if full.is_dir():
            raise SourceError(f"source {self.name}: {full} is a folder; name the file in it", "connect")
        if not full.is_file():
            raise SourceError(f"source {self.name}: there is no file {full}", "connect")
        if not os.access(full, os.R_OK):
            raise SourceError(f"source {self.name}: no permission to read {full}", "permission")
        # No isolation level: sqlite3 begins no transaction for a SELECT by itself.
        connection = sqlite3.connect(
            f"file:{quote(str(full))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA cache_size = -{_CACHE}")
        return connection

    def _begin(self, connection: sa.Connection, driver: Any) -> Reader:
        if self.dialect == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(self.statement_timeout * 1000)}")
            connection.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
        if self.dialect in ("mysql", "mariadb"):
            self._begin_on_mysql(connection)
        reader = Reader(connection, self._stop)
        if self.dialect == "sqlite":
            driver.set_progress_handler(
                lambda: self._stop() or time.monotonic() - reader.began > self.statement_timeout, _STEPS
            )
            connection.exec_driver_sql("BEGIN")
        return reader

    def _begin_on_mysql(self, connection: sa.Connection) -> None:
        limit = f"max_execution_time = {int(self.statement_timeout * 1000)}"
        if getattr(connection.dialect, "is_mariadb", False):
            limit = f"max_statement_time = {self.statement_timeout}"
        connection.exec_driver_sql(f"SET SESSION {limit}, SESSION time_zone = '+00:00'")
        connection.exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
        connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SourceError as error:
            if str(error).startswith(f"source {self.name}: "):
                raise
            raise SourceError(f"source {self.name}: {error}", error.reason) from error
        except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
            if self._stop():
                raise Stopped(f"source {self.name}: reading was stopped") from error
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> SourceError:
        cause = getattr(error, "orig", None) or error
        fault = fault_of(cause)
        said = self.redact(" ".join(str(cause).split()))
        if fault is None:
            return SourceError(f"source {self.name}: {said}", "query")
        return SourceError(f"source {self.name}: {said}; {fault.remedy}", fault.reason)

    def _driver_help(self, error: Exception) -> str:
        missing = str(getattr(error, "name", None) or error).rpartition("sqlalchemy.dialects:")[2]
        extra = _EXTRAS.get(missing.partition(".")[0])
        remedy = how_to_install(extra) if extra else f"install the SQLAlchemy driver for {self.dialect}"
        if missing in _PACKAGES:
            remedy = f"pip install {_PACKAGES[missing]}"
        return f"source {self.name}: the driver {missing} is not installed; {remedy}"

    def redact(self, text: str) -> str:
        """`text` without this source's passwords."""
        options = [
            str(v) for k, v in self.url.query.items() if any(w in k.lower() for w in ("pass", "token", "secret"))
        ]
        for secret in sorted(filter(None, [self.url.password, *options]), key=len, reverse=True):
            text = text.replace(str(secret), "***")
        return text


class Reader:
    """Runs queries inside one transaction and counts the rows.

    Attributes:
        rows: fetched so far.
        began: when the statement under way began, by the monotonic clock.
    """

    def __init__(self, connection: sa.Connection, stop: Callable[[], bool]) -> None:
        self._connection = connection
        self._stop = stop
        self.rows = 0
        self.began = time.monotonic()

    @property
    def dialect(self) -> sa.Dialect:
        """Of the connected database."""
        return self._connection.dialect

    def rows_of(self, query: Statement, most: int) -> list[dict[str, Any]]:
        """The answer as one dict a row.

        It is not streamed, for PostgreSQL works with one processor alone for whoever fetches bit by bit.

        Raises:
            TooMany: there are more than `most` rows.
        """
        self.began = time.monotonic()
        uncached = {"compiled_cache": None}  # these statements are long, and each is sent once
        result = self._connection.execute(query, execution_options=uncached).mappings()
        found = [dict(row) for row in result.fetchmany(most + 1)]
        result.close()
        self.rows += len(found)
        if len(found) > most:
            raise TooMany(f"more than {most} rows")
        return found

    def prepare_to_sum(self) -> None:
        """Set PostgreSQL up for statements that sum up, for the rest of the transaction.

        It would take to its disk early. And it cannot tell how many groups there will be, takes them for few, and
        would go through all of one side of a join for each row of the other.
        """
        if self.dialect.name == "postgresql":
            self._connection.exec_driver_sql(f"SET LOCAL work_mem = '{WORK_MEMORY}MB'")
            for way in ("nestloop", "mergejoin", "sort"):
                self._connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")

    def columns(self, query: sa.Select[Any], most: int | None = None) -> list[list[Any]]:
        """The columns of the answer, as lists.

        Raises:
            TooMany: there are more than `most` rows; reading ended there.
            Stopped: the process is to end.
        """
        result, fetch = self._stream(query)
        gathered: list[list[Any]] = [[] for _ in list(result.keys())]
        try:
            while rows := fetch(FETCH):
                self.rows += len(rows)
                for column, part in zip(gathered, zip(*rows, strict=True), strict=True):
                    column.extend(part)
                if self._stop():
                    raise Stopped("reading was stopped")
                if most is not None and len(gathered[0]) > most:
                    raise TooMany(f"more than {most} rows")
        finally:
            result.close()
        return gathered

    def _execute(self, query: sa.Select[Any], **options: Any) -> sa.CursorResult[Any]:
        self.began = time.monotonic()
        return self._connection.execute(query, execution_options=options)

    def _stream(self, query: sa.Select[Any]) -> tuple[sa.CursorResult[Any], Callable[[int], Sequence[Any]]]:
        """(the result, how to fetch some rows of it) without the whole answer in memory."""
        if self.dialect.name == "sqlite":
            result = self._execute(query)
            cursor: Any = result.cursor
            return result, lambda most: cursor.fetchmany(min(most, FETCH_FILE))  # spares a Row object for each row
        # SQLAlchemy has fetched a first row ahead when it streams, so the cursor must not be read behind its back.
        result = self._execute(query, stream_results=True, max_row_buffer=FETCH)
        return result, result.fetchmany

    def one(self, query: sa.Select[Any]) -> Any:
        """The single value of the answer."""
        return self._execute(query).scalar()

    def types(self, query: sa.Select[Any]) -> list[Any]:
        """The driver's type code of each column, without reading a row."""
        result = self._execute(query.limit(0))
        cursor: Any = result.cursor
        codes = [d[1] for d in cursor.description]
        result.close()
        return codes
