"""The user's database: read-only connections, a limit on every statement, errors that name the fix."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from monitor.errors import RankmonError, SourceError, Stopped, TooMany, without
from monitor.messages.words import on_one_line
from monitor.source.dialects import base, dialect_of, driver_help
from monitor.source.dialects.faults import OF_SCHEMAS, SILENT, by_own_limits, is_of_the_way, lateness, looked_for
from monitor.source.prepared import Ready
from monitor.source.watch import ASKED_FOR, Watch, give_back, turn, watched

FETCH = 50_000
"""Rows per fetch from a server."""

FETCH_FILE = 500
"""Rows per fetch from a SQLite file, where fetches are cheap: fewer tuples than start Python's garbage collector."""

UNDECODABLE = "Could not decode to UTF-8"
"""SQLite's driver says exactly this for text that is not UTF-8."""

Statement = sa.Select[Any] | sa.CompoundSelect[Any]

_BITS = {b"\x00": False, b"\x01": True}  # a single bit as a boolean

MOST_AT_ONCE = 4
"""Default for concurrent statements per source."""


def of_bits(value: object) -> object:
    """A BIT value: one bit as a boolean; MySQL's driver returns bytes."""
    return _BITS.get(value, value) if isinstance(value, bytes) else value


class Undecodable(str):
    """Text that is not valid UTF-8, with the bad bytes written as `\\xff`."""


def _any_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Undecodable(data, "utf-8", "backslashreplace")


class Database:
    """One source, thread-safe; connects on first use.

    Read-only on PostgreSQL, SQLite, MariaDB, MySQL and DuckDB files; elsewhere the user's rights decide. The server
    limits statements if it can, and we do a little later, so nothing blocks a reader forever.
    """

    def __init__(
        self,
        name: str,
        url: URL,
        statement_timeout: float,
        stop: Callable[[], bool] = lambda: False,
        max_concurrent: int = MOST_AT_ONCE,
        selects: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """`stop` is polled between fetches; `statement_timeout` is in seconds.

        `max_concurrent`: concurrent transactions, with at most one running statement each. `selects`: gives the only
        SELECTs of the user that will be sent, for each new connection; None if unknown.
        """
        self.name = name
        self.url = url
        self.statement_timeout = statement_timeout
        self.max_concurrent = max_concurrent
        self._stop = stop
        self._selects = selects
        self._turns = threading.Semaphore(max_concurrent)
        self._engine: sa.Engine | None = None
        self._creating = threading.Lock()
        self._open: set[Watch] = set()
        self._mine = threading.local()

    @property
    def dialect(self) -> str:
        """SQLAlchemy's dialect name."""
        return self.url.get_backend_name()

    @property
    def sql(self) -> base.Dialect:
        return dialect_of(self.dialect)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()

    def interrupt(self) -> None:
        """Cancels running statements, from any thread; their readers get Stopped if `stop` says so, else an error."""
        until = time.monotonic() + ASKED_FOR
        for wait in [watch.end() for watch in list(self._open)]:
            wait(max(0.0, until - time.monotonic()))

    def _end(self, driver: Any) -> None:
        if hasattr(driver, "cancel_safe"):
            driver.cancel_safe(timeout=ASKED_FOR)
        elif hasattr(driver, "cancel"):
            driver.cancel()
        elif hasattr(driver, "interrupt"):
            driver.interrupt()
        elif hasattr(driver, "thread_id"):
            with closing(self._aside()) as connection:
                connection.cursor().execute(f"KILL QUERY {int(driver.thread_id())}")

    def _aside(self) -> Any:
        """An unpooled driver connection with short timeouts."""
        dialect = self._connected().dialect
        positional, named = dialect.create_connect_args(self.url)
        return dialect.connect(*positional, **{**named, **self.sql.arguments(self.url, 0)})

    @property
    def _account(self) -> str:
        """The account the server chose for the user name; empty if unknown."""
        if not self.sql.account_query:
            return ""
        try:
            with closing(self._aside()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(self.sql.account_query)
                return str(cursor.fetchone()[0])
        except Exception:  # each driver has its own
            return ""

    @contextmanager
    def reading(self, who: str = "") -> Iterator[Reader]:
        """A read-only transaction; one snapshot if the database supports it.

        Waits while `max_concurrent` others are open. Do not nest: it can deadlock.

        Args:
            who: the reading monitor, shown on the server.

        Raises:
            SourceError: unreachable, not permitted, too slow, or the query does not fit the tables.
            Stopped: `stop` said so.
        """
        with (
            turn(self._turns, self._stop),
            Watch(self.sql.patience(self.statement_timeout), self._end) as watch,
            self._explained(watch),
        ):
            self._mine.watch = watch
            self._open.add(watch)
            try:
                with self._connection(watch) as connection:
                    with watch.step():
                        reader = self._begin(connection, watch, who)
                    yield reader
            finally:
                self._open.discard(watch)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block, a file that takes long to open stays open; nobody else can write it meanwhile."""
        with ExitStack() as file:
            if self.sql.opens_slowly:
                with suppress(Exception):  # the next read says why
                    file.enter_context(closing(self._aside()))
            yield

    @contextmanager
    def _connection(self, watch: Watch) -> Iterator[sa.Connection]:
        with watch.step():
            connection = self._connected().connect()
        try:
            yield connection
        finally:
            give_back(connection, watch)

    def _connected(self) -> sa.Engine:
        with self._creating:
            if self._engine is None:
                try:
                    engine = self.sql.create_engine(self.url, self.statement_timeout, self.max_concurrent)
                except (NoSuchModuleError, ImportError) as error:
                    raise SourceError(f"source {self.name}: {driver_help(self.url, error)}", "driver") from error
                if not self.sql.is_in_process:
                    _sign(engine)
                self._engine = watched(engine, self._opened, lambda: self._mine.watch)
            return self._engine

    def _opened(self, driver: Any) -> None:
        self.sql.opened(driver, self.url, None if self._selects is None else self._selects())

    def _begin(self, connection: sa.Connection, watch: Watch, who: str) -> Reader:
        driver: Any = connection.connection.driver_connection
        connection = connection.execution_options(rankmon_reader=who)
        begun = self.sql.begin(connection, driver, self.url, self.statement_timeout, who)
        reader = Reader(begun, self._stop, watch)
        self.sql.end_when(driver, lambda: self._stop() or time.monotonic() - reader.began > self.statement_timeout)
        return reader

    @contextmanager
    def _explained(self, watch: Watch) -> Iterator[None]:
        try:
            yield
        except SourceError as error:
            if str(error).startswith(f"source {self.name}: "):
                raise
            raise SourceError(f"source {self.name}: {error}", error.reason, error.lasting) from error
        except RankmonError:
            raise
        except Exception as error:
            is_told = isinstance(error, SQLAlchemyError | sqlite3.Error | UnicodeError)
            if not is_told and not watch.is_late and not is_of_the_way(error):
                raise
            if self._stop():
                raise Stopped(f"source {self.name}: reading was stopped") from error
            raise self._explain(error, "query" if is_told else "connect", watch) from error

    def _explain(self, error: Exception, otherwise: str, watch: Watch) -> SourceError:
        """An error's meaning; `otherwise` is the reason if it is unknown."""
        if watch.is_late:
            reason, said = lateness(watch.limit, not self.sql.has_statement_limit)
            return SourceError(f"source {self.name}: {said}", reason)
        cause = getattr(error, "orig", None) or error
        fault = self.sql.fault_of(cause)
        is_missing = fault is not None and fault.reason == "missing"
        raw = str(cause)
        said = self.redact(on_one_line(self.sql.reworded(raw, is_missing)))
        if fault is None:
            return SourceError(f"source {self.name}: {said}", otherwise)
        if fault is SILENT:
            fault = by_own_limits(self._own_limits, watch.is_on)
        statement, remedy = str(getattr(error, "statement", None) or ""), fault.remedy
        is_refused = fault.reason == "permission"
        if is_refused and (grant := self.sql.grant_for(said, self.url.username, statement, self._account)):
            remedy = f"grant SELECT to it: {grant}"  # a denied user has logged in
        elif not self.sql.has_users:
            remedy = remedy.removesuffix(OF_SCHEMAS)
        place = looked_for(raw, statement) if is_missing else ""
        told = "; ".join(filter(None, (f"source {self.name}: {said}", place, remedy)))
        return SourceError(told, fault.reason, fault.lasting)

    @property
    def _own_limits(self) -> dict[str, float]:
        """Name -> seconds, for timeouts set in the URL and shorter than ours."""
        given = {name: str(self.url.query.get(name, "")) for name in ("connect_timeout", "read_timeout")}
        return {n: float(t) for n, t in given.items() if t.isdecimal() and float(t) < self.statement_timeout}

    def redact(self, text: str) -> str:
        """`text` without this source's passwords."""
        options = [
            str(v) for k, v in self.url.query.items() if any(w in k.lower() for w in ("pass", "token", "secret"))
        ]
        return without(text, [str(self.url.password or ""), *options])


@dataclass(frozen=True)
class ColumnTypes:
    """The driver's type codes, by column name.

    Attributes:
        version: changes with the tables if columns have no types.
        is_behind: whether existing rows may be invisible to the transaction.
    """

    rankings: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0
    is_behind: bool = field(default=False, compare=False)

    def changed(self, before: ColumnTypes) -> list[str]:
        """Columns whose type differs from before."""
        sides = ("rankings", self.rankings, before.rankings), ("labels", self.labels, before.labels)
        return [f"{side}.{name}" for side, now, then in sides for name in now if now[name] != then.get(name)]


class Reader:
    """Runs queries in one transaction and counts rows.

    Attributes:
        rows: fetched so far.
        began: start of the running statement, monotonic seconds.
        has_undecodable: whether texts may be `Undecodable`.
    """

    has_undecodable = False

    def __init__(self, connection: sa.Connection, stop: Callable[[], bool], watch: Watch) -> None:
        self._connection = connection
        self._stop = stop
        self._watch = watch
        self.rows = 0
        self.began = time.monotonic()

    @property
    def dialect(self) -> sa.Dialect:
        """SQLAlchemy's dialect of the connection."""
        return self._connection.dialect

    @property
    def sql(self) -> base.Dialect:
        return dialect_of(self.dialect.name)

    @property
    def info(self) -> dict[Any, Any]:
        """A cache that lives as long as the driver connection."""
        found: dict[Any, Any] = self._connection.info
        return found

    def clock(self) -> float | None:
        """Server clock, seconds since 1970; None if it is this machine's, or unknown."""
        asked = self.sql.clock
        return float(self.one(sa.select(sa.literal_column(asked))) or 0.0) or None if asked else None

    def rows_of(self, query: Statement | Ready, most: int) -> list[dict[str, Any]]:
        """The result as one dict per row.

        Not streamed: PostgreSQL does not parallelize cursor reads.

        Raises:
            TooMany: there are more than `most` rows.
        """
        with self._watch.step():
            result = self._execute(query, compiled_cache=None).mappings()  # such statements are long and sent once
            found = [dict(row) for row in result.fetchmany(most + 1)]
            result.close()
        self.rows += len(found)
        if len(found) > most:
            raise TooMany(f"more than {most} rows")
        return found

    def prepare_to_sum(self) -> None:
        """Sets the database up for statements that sum, for the rest of the transaction."""
        if self.sql.prepares_to_sum:
            with self._watch.step():
                self._connection.execute(sa.select(*self.sql.prepares_to_sum))

    def described(self, query: sa.Select[Any]) -> tuple[list[Any], sa.Row[Any]]:
        """(the driver's type code of each column, the single row of the result)."""
        with self._watch.step():
            result = self._execute(query)
            cursor: Any = result.cursor
            return [d[1] for d in cursor.description], result.one()

    def columns(self, query: Statement | sa.TextClause, most: int | None = None) -> list[list[Any]]:
        """The result's columns, as lists.

        Text that is not UTF-8, possible only on SQLite, becomes `Undecodable`.

        Raises:
            TooMany: there are more than `most` rows; reading stopped there.
            Stopped: the process is shutting down.
        """
        before = self.rows
        try:
            return self._columns(query, most)
        except (SQLAlchemyError, sqlite3.OperationalError) as error:
            if UNDECODABLE not in str(error):
                raise  # the connection may be lost, and touching the driver's would hide why
            driver: Any = self._connection.connection.driver_connection
            if driver.text_factory is _any_text:
                raise
            driver.text_factory = _any_text  # only now, since it slows each text by half
            self.has_undecodable = True
        self.rows = before
        return self._columns(query, most)

    def _columns(self, query: Statement | sa.TextClause, most: int | None) -> list[list[Any]]:
        with self._watch.step():
            result, fetch = self._stream(query)
        gathered: list[list[Any]] = [[] for _ in list(result.keys())]
        cursor: Any = None if self.sql.bit is None else result.cursor
        bits = [i for i, column in enumerate(getattr(cursor, "description", None) or ()) if column[1] == self.sql.bit]
        try:
            while rows := self._fetched(fetch):
                self.rows += len(rows)
                for column, part in zip(gathered, zip(*rows, strict=True), strict=True):
                    column.extend(part)
                if self._stop():
                    raise Stopped("reading was stopped")
                if most is not None and len(gathered[0]) > most:
                    raise TooMany(f"more than {most} rows")
        finally:
            with self._watch.step():
                result.close()
        for i in bits:
            gathered[i] = list(map(of_bits, gathered[i]))
        return gathered

    def _fetched(self, fetch: Callable[[int], Sequence[Any]]) -> Sequence[Any]:
        with self._watch.step():
            return fetch(FETCH)

    def _execute(self, query: Statement | sa.TextClause | Ready, **options: Any) -> sa.CursorResult[Any]:
        self.began = time.monotonic()
        if isinstance(query, Ready):
            return self._connection.exec_driver_sql(query.text, query.parameters)
        return self._connection.execute(query, execution_options=options)

    def _stream(self, query: Statement | sa.TextClause) -> tuple[sa.CursorResult[Any], Callable[[int], Sequence[Any]]]:
        """(result, fetch function), without holding the whole result in memory."""
        if not self.sql.is_streamed:
            result = self._execute(query)
            cursor: Any = result.cursor
            return result, lambda most: cursor.fetchmany(min(most, FETCH_FILE))  # avoids a Row object per row
        # SQLAlchemy prefetches a row when streaming, so do not read the cursor directly.
        result = self._execute(query, stream_results=True, max_row_buffer=FETCH)
        return result, result.fetchmany

    def tables(self, without: Collection[str]) -> list[tuple[str, ...]]:
        """Names of all tables and views, those of the default schema first and without it; `without` some schemas."""
        with self._watch.step():
            return self.sql.tables_of(self._connection, without)

    def parts(self) -> Collection[tuple[str, ...]]:
        """Names, as of `tables`, of those whose rows another one that can be read has as its own."""
        with self._watch.step():
            return self.sql.parts_of(self._connection)

    def names(self, relation: sa.FromClause | sa.TextClause) -> list[str]:
        """All column names of a relation; reads no row."""
        with self._watch.step():
            result = self._execute(sa.select(sa.literal_column("*")).select_from(relation).where(sa.false()))
            names = list(map(str, list(result.keys())))
            result.close()
            return names

    def one(self, query: Statement | sa.TextClause) -> Any:
        """The single value of the result."""
        with self._watch.step():
            return self._execute(query).scalar()

    def types(self, query: sa.Select[Any]) -> list[Any]:
        """The driver's type code of each column, or the type's name if it has no number; reads no row."""
        with self._watch.step():
            result = self._execute(query.limit(0))
            cursor: Any = result.cursor
            codes = [d[1] for d in cursor.description]
            result.close()
            known = self.sql.type_names
            return [known.get(code, code) if code is None or isinstance(code, int) else _name(code) for code in codes]


def _sign(engine: sa.Engine) -> None:
    """Prefixes statements sent to servers with a comment naming program and monitor."""

    @sa.event.listens_for(engine, "before_cursor_execute", retval=True)
    def _comment(connection: sa.Connection, _: object, statement: str, parameters: Any, *__: object) -> tuple[str, Any]:
        who = base.plain_name(connection.get_execution_options().get("rankmon_reader", ""))
        return f"/* {' '.join(filter(None, (base.PROGRAM, who)))} */ {statement}", parameters


def _name(code: Any) -> str:
    """A type's name: pyodbc gives Python types, oracledb named objects, others text."""
    return str(getattr(code, "__name__", None) or getattr(code, "name", None) or code)
