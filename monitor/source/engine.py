"""The user's database: connected to read-only, with a limit on every statement, and errors that name the remedy."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from monitor.errors import SourceError, Stopped, TooMany

FETCH = 50_000
"""Rows fetched at once."""

_EXTRAS = {"psycopg": "postgresql", "psycopg2": "postgresql"}


class Database:
    """One source. Safe to share between threads; connections are pooled and opened when first needed."""

    def __init__(self, name: str, url: URL, statement_timeout: float, stop: Callable[[], bool] = lambda: False) -> None:
        """`stop` is asked between fetches; `statement_timeout` is in seconds."""
        self.name = name
        self.url = url
        self.statement_timeout = statement_timeout
        self._stop = stop
        self._engine: sa.Engine | None = None
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
            end = getattr(driver, "cancel", None) or getattr(driver, "interrupt", None)
            if end is not None:
                with suppress(Exception):  # it may just have ended by itself
                    end()

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """A read-only transaction: all its queries see one state of the data where the database can do that.

        Raises:
            SourceError: out of reach, not permitted, too slow, or the query does not fit the tables.
        """
        with self._explained():
            if self._engine is None:
                self._engine = self._create()
            with self._engine.connect() as connection:
                reader = Reader(self._begin(connection), self._stop)
                driver = connection.connection.driver_connection
                self._open.add(driver)
                try:
                    yield reader
                finally:
                    self._open.discard(driver)
                    reader.end()

    def _create(self) -> sa.Engine:
        options: dict[str, Any] = {"pool_pre_ping": True, "pool_recycle": 3600}
        if self.dialect == "sqlite":
            return _sqlite(self.name, self.url, options)
        if self.dialect == "postgresql":
            options["connect_args"] = {"application_name": "rankmon", "connect_timeout": 10}
        return sa.create_engine(self.url, **options)

    def _begin(self, connection: sa.Connection) -> sa.Connection:
        millis = int(self.statement_timeout * 1000)
        if self.dialect == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {millis}")
            connection.exec_driver_sql("SET LOCAL TimeZone = 'UTC'")
        if self.dialect == "sqlite":
            deadline = time.monotonic() + self.statement_timeout
            raw: Any = connection.connection.driver_connection
            raw.set_progress_handler(lambda: time.monotonic() > deadline or self._stop(), 100_000)
            connection.exec_driver_sql("BEGIN")
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise SourceError(self._driver_help(error), "driver") from error
        except (SQLAlchemyError, sqlite3.Error) as error:  # the latter where rows are fetched from its own cursor
            if self._stop():
                raise Stopped(f"source {self.name}: reading was stopped") from error
            raise _explain(self, error) from error

    def _driver_help(self, error: Exception) -> str:
        missing = getattr(error, "name", None) or str(error)
        extra = _EXTRAS.get(str(missing))
        remedy = f"pip install 'rankmon[{extra}]'" if extra else f"install the SQLAlchemy driver for {self.dialect}"
        return f"source {self.name}: the driver {missing} is not installed; {remedy}"

    def redact(self, text: str) -> str:
        """`text` without this source's password."""
        secret = self.url.password
        return text.replace(str(secret), "***") if secret else text


class Reader:
    """Runs queries inside one transaction and counts the rows."""

    def __init__(self, connection: sa.Connection, stop: Callable[[], bool]) -> None:
        self._connection = connection
        self._stop = stop
        self.rows = 0

    @property
    def dialect(self) -> sa.Dialect:
        """Of the connected database."""
        return self._connection.dialect

    def end(self) -> None:
        """Close the transaction; nothing was changed."""
        driver: Any = self._connection.connection.driver_connection
        if self._connection.dialect.name == "sqlite" and driver is not None:
            driver.set_progress_handler(None, 0)
        self._connection.rollback()

    def columns(self, query: sa.Select[Any], most: int | None = None) -> list[list[Any]]:
        """The columns of the answer, as lists.

        Raises:
            TooMany: there are more than `most` rows; reading ended there.
            Stopped: the process is to end.
        """
        result, fetch = self._stream(query)
        gathered: list[list[Any]] = [[] for _ in list(result.keys())]
        while rows := fetch(FETCH):
            self.rows += len(rows)
            for column, part in zip(gathered, zip(*rows, strict=True), strict=True):
                column.extend(part)
            if self._stop():
                raise Stopped("reading was stopped")
            if most is not None and len(gathered[0]) > most:
                result.close()
                raise TooMany(f"more than {most} rows")
        result.close()
        return gathered

    def _stream(self, query: sa.Select[Any]) -> tuple[sa.CursorResult[Any], Callable[[int], Sequence[Any]]]:
        """(the result, how to fetch some rows of it) without the whole answer in memory."""
        if self.dialect.name == "sqlite":
            result = self._connection.execute(query)
            cursor: Any = result.cursor
            return result, cursor.fetchmany  # streams by itself; spares a Row object for each row
        # SQLAlchemy has fetched a first row ahead when it streams, so the cursor must not be read behind its back.
        result = self._connection.execution_options(stream_results=True, max_row_buffer=FETCH).execute(query)
        return result, result.fetchmany

    def one(self, query: sa.Select[Any]) -> Any:
        """The single value of the answer."""
        return self._connection.execute(query).scalar()

    def types(self, query: sa.Select[Any]) -> list[Any]:
        """The driver's type code of each column, without reading a row."""
        cursor: Any = self._connection.execute(query.limit(0)).cursor
        return [d[1] for d in cursor.description]


def _sqlite(name: str, url: URL, options: dict[str, Any]) -> sa.Engine:
    """SQLite would create a missing file and call it empty; so it is opened as what must be there, read-only."""
    path = url.database
    if not path or path == ":memory:" or path.startswith("file:"):
        raise SourceError(f"source {name}: give a SQLite file as sqlite:////absolute/path.db", "connect")
    full = Path(path).absolute()
    if not full.is_file():
        raise SourceError(f"source {name}: there is no file {full}", "connect")
    if not os.access(full, os.R_OK):
        raise SourceError(f"source {name}: no permission to read {full}", "permission")
    read_only = URL.create("sqlite", database=f"file:{full}", query={"mode": "ro", "uri": "true"})
    engine = sa.create_engine(read_only, **options)

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # sqlite3 begins no transaction for a SELECT by itself
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA temp_store = MEMORY")

    return engine


def _explain(database: Database, error: Exception) -> SourceError:
    cause = getattr(error, "orig", None) or error
    state = str(getattr(cause, "sqlstate", None) or "")
    said = database.redact(" ".join(str(cause).split()))
    for reason, states, words, remedy in _CAUSES:
        if state.startswith(tuple(states)) if state else any(w in said.lower() for w in words):
            return SourceError(f"source {database.name}: {said}; {remedy}", reason)
    return SourceError(f"source {database.name}: {said}", "query")


_CAUSES: Sequence[tuple[str, tuple[str, ...], tuple[str, ...], str]] = (
    ("timeout", ("57014",), ("interrupted",), "raise statement_timeout, or index the time column"),
    ("permission", ("42501", "28"), ("permission denied", "access denied", "readonly"), "grant SELECT to this user"),
    (
        "missing",
        ("42P01", "42703", "3F000", "3D000"),
        ("no such table", "no such column", "doesn't exist", "unknown column"),
        "compare the table and columns in the configuration with the database",
    ),
    (
        "connect",
        ("08", "57P", "53300"),
        ("connection", "unable to open", "could not connect", "timeout expired", "resolve host", "closed"),
        "is the database up, and is the URL right?",
    ),
)
