"""The user's database: connected to read-only, with a limit on every statement, and errors that name the remedy."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from monitor.database_url import without
from monitor.errors import RankmonError, SourceError, Stopped, TooMany
from monitor.messages.words import on_one_line
from monitor.source import session
from monitor.source.drivers import driver_help
from monitor.source.duckdb_words import plainly
from monitor.source.faults import (
    OF_SCHEMAS,
    SILENT,
    by_own_limits,
    fault_of,
    grant_for,
    is_of_the_way,
    lateness,
    looked_for,
)
from monitor.source.pooling import give_back, pooling, watched
from monitor.source.prepared import Ready
from monitor.source.session import CONNECT_TIMEOUT as CONNECT_TIMEOUT
from monitor.source.turns import Turns
from monitor.source.watch import ASKED_FOR, Watch

FETCH = 50_000
"""Rows fetched at once from a server."""

FETCH_FILE = 2_000
"""The same from a SQLite file, where it costs nothing to come again; so few stay in the processor's cache."""

UNDECODABLE = "Could not decode to UTF-8"
"""What SQLite's driver says of text that is none, and of nothing else."""

Statement = sa.Select[Any] | sa.CompoundSelect[Any]

BIT = 16
"""MySQL's number of the type."""

_SNOWFLAKE: dict[Any, str] = {2: "TEXT", 13: "BOOLEAN"}
"""Snowflake's numbers of types of which it matters what they are."""

_BITS = {b"\x00": False, b"\x01": True}  # what a single one means
_STEPS = 100_000  # of SQLite's machine between two looks at the clock
_CACHE = 65_536  # KiB that SQLite holds, and sorts in before it takes to a file

WORK_MEMORY = 128
"""Megabytes that PostgreSQL may take for each step of a statement that sums up; one request takes about 200 bytes."""

_TO_SUM = [
    sa.func.set_config(sa.literal_column(f"'{name}'"), sa.literal_column(f"'{value}'"), sa.true())
    for name, value in {
        **{"jit": "off", "work_mem": f"{WORK_MEMORY}MB"},
        **{f"enable_{way}": "off" for way in ("nestloop", "mergejoin", "sort")},
    }.items()
]

_REPLACED: sa.ColumnElement[bool] = sa.literal_column(
    "EXISTS (SELECT FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation WHERE l.locktype = 'relation' AND "
    "l.pid = pg_backend_pid() AND coalesce(c.relfilenode <> 0 AND c.relfilenode <> pg_relation_filenode(c.oid), "
    "c.oid IS NULL))"
)
"""Whether a table that PostgreSQL holds for a transaction was emptied, rewritten or made after the transaction's view
of the data was taken: of what such a table holds it then sees nothing, though it was never without rows for others."""

_TELLS_REPLACED = sa.select(
    sa.text("EXISTS (SELECT FROM pg_class WHERE relname = 'pg_locks')"),
    sa.text("EXISTS (SELECT FROM pg_proc WHERE proname = 'pg_relation_filenode')"),
)
"""Whether that can be asked: servers that speak as PostgreSQL does lack the one or the other."""

MOST_AT_ONCE = 4
"""Statements that a source works on at the same time, where nobody says otherwise."""


def of_bits(value: object) -> object:
    """What a value of BIT means, which MySQL's driver hands over as bytes: a single one is a boolean."""
    return _BITS.get(value, value) if isinstance(value, bytes) else value


class Undecodable(str):
    """Text that is not valid UTF-8, with what is wrong in it written as `\\xff`."""


def _any_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Undecodable(data, "utf-8", "backslashreplace")


class Database:
    """One source. Safe to share between threads; connections are opened when first needed.

    On PostgreSQL, SQLite, MariaDB and MySQL nothing can be written; a file of DuckDB is opened read-only. What else is
    wanted is up to the rights of the database's user. Statements have a limit on the server's side, where there is
    one, and a little later a limit on ours, so that no server and nothing on the way to it holds up a reader for ever.
    """

    def __init__(
        self,
        name: str,
        url: URL,
        statement_timeout: float,
        stop: Callable[[], bool] = lambda: False,
        max_concurrent: int = MOST_AT_ONCE,
    ) -> None:
        """`stop` is asked between fetches; `statement_timeout` is in seconds.

        `max_concurrent`: transactions at the same time, each of which has one statement under way at most.
        """
        self.name = name
        self.url = url
        self.statement_timeout = statement_timeout
        self.max_concurrent = max_concurrent
        self._stop = stop
        self._turns = Turns(max_concurrent, stop)
        self._engine: sa.Engine | None = None
        self._creating = threading.Lock()
        self._open: set[Watch] = set()
        self._mine = threading.local()

    @property
    def dialect(self) -> str:
        """Name of the database's SQL dialect."""
        return self.url.get_backend_name()

    def close(self) -> None:
        """Give the pooled connections back."""
        if self._engine is not None:
            self._engine.dispose()

    def interrupt(self) -> None:
        """End the statements under way, from any thread; their readers get Stopped if `stop` says so, else an error.

        Who waits for a turn gets Stopped if `stop` says so, else goes on waiting.
        """
        self._turns.look()
        until = time.monotonic() + ASKED_FOR
        for wait in [watch.end() for watch in list(self._open)]:
            wait(max(0.0, until - time.monotonic()))

    def _end(self, driver: Any) -> None:
        """End what a driver's connection is doing, if its driver can."""
        if hasattr(driver, "cancel_safe"):
            driver.cancel_safe(timeout=ASKED_FOR)
        elif hasattr(driver, "cancel"):
            driver.cancel()
        elif hasattr(driver, "interrupt"):
            driver.interrupt()
        elif hasattr(driver, "thread_id"):
            self._kill(int(driver.thread_id()))

    def _kill(self, number: int) -> None:
        """End the statement of a connection by another one."""
        with closing(self._aside()) as connection:
            connection.cursor().execute(f"KILL QUERY {number}")

    def _aside(self) -> Any:
        """A driver's connection that is not of the pool and has little patience."""
        dialect = self._connected().dialect
        positional, named = dialect.create_connect_args(self.url)
        return dialect.connect(*positional, **{**named, **session.arguments(self.url, 0)})

    @property
    def _account(self) -> str:
        """Which of the accounts of its user's name MariaDB or MySQL took it for; empty if there is no telling."""
        if self.dialect not in ("mysql", "mariadb"):
            return ""
        try:
            with closing(self._aside()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute("SELECT CURRENT_USER()")
                return str(cursor.fetchone()[0])
        except Exception:  # each driver has its own
            return ""

    @contextmanager
    def reading(self, who: str = "") -> Iterator[Reader]:
        """A read-only transaction: all its queries see one state of the data where the database can do that.

        It waits until fewer than `max_concurrent` others are open. Whoever is in one must not open another.

        Args:
            who: the monitor that reads, for whoever looks at what the server does.

        Raises:
            SourceError: out of reach, not permitted, too slow, or the query does not fit the tables.
            Stopped: `stop` said so.
        """
        with self._turns.one(), Watch(self._patience, self._end) as watch, self._explained(watch):
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
    def _connection(self, watch: Watch) -> Iterator[sa.Connection]:
        """A connection; with its return to the pool ends the transaction."""
        with watch.step():
            connection = self._connected().connect()
        try:
            yield connection
        finally:
            give_back(connection, watch)

    @property
    def _patience(self) -> float:
        """Seconds that a step may take on our side. SQLite looks at the clock by itself, and so does our Spark."""
        if self.dialect == "sqlite":
            return math.inf
        if self.dialect == "duckdb":  # which has no limit of its own
            return self.statement_timeout
        return self.statement_timeout + session.GRACE * (2 if self.dialect == "hive" else 1)

    def _connected(self) -> sa.Engine:
        with self._creating:
            if self._engine is None:
                try:
                    self._engine = self._create()
                except (NoSuchModuleError, ImportError) as error:
                    raise SourceError(f"source {self.name}: {driver_help(self.url, error)}", "driver") from error
            return self._engine

    def _create(self) -> sa.Engine:
        if self.dialect == "sqlite":
            # A new connection each time: a file that was replaced or removed since is seen at once.
            engine = sa.create_engine("sqlite://", creator=self._open_file, poolclass=sa.NullPool)
            return watched(engine, self.url, lambda: self._mine.watch)
        url, limit = session.address(self.url, self.statement_timeout), self.statement_timeout
        if self.dialect == "hive":
            from monitor.source import spark

            engine = spark.create(url, limit)
        else:
            engine = sa.create_engine(
                url, connect_args=session.arguments(url, limit), **pooling(url, self.max_concurrent)
            )
        session.sign(engine)
        return watched(engine, self.url, lambda: self._mine.watch)

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

    def _begin(self, connection: sa.Connection, watch: Watch, who: str) -> Reader:
        driver: Any = connection.connection.driver_connection
        connection = session.begin(connection, driver, self.url, self.statement_timeout, who)
        reader = Reader(connection, self._stop, watch)
        if self.dialect == "sqlite":
            driver.set_progress_handler(
                lambda: self._stop() or time.monotonic() - reader.began > self.statement_timeout, _STEPS
            )
            connection.exec_driver_sql("BEGIN")
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
        except (SQLAlchemyError, sqlite3.Error, UnicodeError) as error:
            if self._stop():
                raise Stopped(f"source {self.name}: reading was stopped") from error
            raise self._explain(error, "query", watch) from error
        except Exception as error:
            if not watch.is_late and not is_of_the_way(error):
                raise
            if self._stop():
                raise Stopped(f"source {self.name}: reading was stopped") from error
            raise self._explain(error, "connect", watch) from error

    def _explain(self, error: Exception, otherwise: str, watch: Watch) -> SourceError:
        """What an error means; the reason `otherwise` where nothing is known of it."""
        if watch.is_late:
            reason, said = lateness(watch.limit, self.dialect == "duckdb")
            return SourceError(f"source {self.name}: {said}", reason)
        cause = getattr(error, "orig", None) or error
        fault = fault_of(cause)
        is_missing = fault is not None and fault.reason == "missing"
        raw = str(cause)
        said = self.redact(on_one_line(plainly(raw, is_missing) if self.dialect == "duckdb" else raw))
        if fault is None:
            return SourceError(f"source {self.name}: {said}", otherwise)
        if fault is SILENT:
            fault = by_own_limits(session.own_limits(self.url, self.statement_timeout), watch.is_on)
        statement, remedy = str(getattr(error, "statement", None) or ""), fault.remedy
        is_refused = fault.reason == "permission"
        if is_refused and (grant := grant_for(said, self.url.username, statement, self._account)):
            remedy = f"grant SELECT to it: {grant}"  # whoever is denied that has logged in
        elif self.dialect in ("duckdb", "sqlite"):
            remedy = remedy.removesuffix(OF_SCHEMAS)
        place = looked_for(raw, statement) if is_missing else ""
        told = "; ".join(filter(None, (f"source {self.name}: {said}", place, remedy)))
        return SourceError(told, fault.reason, fault.lasting)

    def redact(self, text: str) -> str:
        """`text` without this source's passwords."""
        options = [
            str(v) for k, v in self.url.query.items() if any(w in k.lower() for w in ("pass", "token", "secret"))
        ]
        return without(text, [str(self.url.password or ""), *options])


class Reader:
    """Runs queries inside one transaction and counts the rows.

    Attributes:
        rows: fetched so far.
        began: when the statement under way began, by the monotonic clock.
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
        """Of the connected database."""
        return self._connection.dialect

    def clock(self) -> float | None:
        """Seconds since 1970 by the server's clock; None where there is no other than this machine's, or no telling."""
        asked = session.CLOCKS.get(self.dialect.name)
        return None if asked is None else float(self.one(sa.select(sa.literal_column(asked))) or 0.0) or None

    def rows_of(self, query: Statement | Ready, most: int) -> list[dict[str, Any]]:
        """The answer as one dict a row.

        It is not streamed, for PostgreSQL works with one processor alone for whoever fetches bit by bit.

        Raises:
            TooMany: there are more than `most` rows.
        """
        self.began = time.monotonic()
        with self._watch.step():
            result = self._sent(query).mappings()
            found = [dict(row) for row in result.fetchmany(most + 1)]
            result.close()
        self.rows += len(found)
        if len(found) > most:
            raise TooMany(f"more than {most} rows")
        return found

    def _sent(self, query: Statement | Ready) -> sa.CursorResult[Any]:
        if isinstance(query, Ready):
            return self._connection.exec_driver_sql(query.text, query.parameters)
        uncached = {"compiled_cache": None}  # these statements are long, and each is sent once
        return self._connection.execute(query, execution_options=uncached)

    def prepare_to_sum(self) -> None:
        """Set PostgreSQL up for statements that sum up, for the rest of the transaction.

        It would take to its disk early. And it cannot tell how many groups there will be, takes them for few, and
        would go through all of one side of a join for each row of the other. These statements are long, so that to
        compile them for each time that they are sent takes longer than what it saves.
        """
        if self.dialect.name == "postgresql":
            with self._watch.step():  # all at once, for each statement is a way there and back
                self._connection.execute(sa.select(*_TO_SUM))

    def kinds(self, relations: Sequence[sa.FromClause], to_sum: bool = False) -> tuple[list[dict[str, Any]], bool]:
        """(column -> the driver's type code, of each relation; whether rows of theirs may not be seen); none is read.

        PostgreSQL tells all that in one answer, is prepared to sum up on the way if wanted, and lets nobody change
        these tables until the transaction ends. If who changed one had to be waited for, it may seem to be empty.
        """
        is_behind = False
        if self.dialect.name == "postgresql":
            codes, is_behind = self._kinds_on_postgresql(relations, to_sum)
        else:
            # By such a condition no database goes through the table, nor asks money for it.
            empty = [sa.select(*relation.c).where(sa.false()) for relation in relations]
            codes = [code for query in empty for code in self.types(query)]
        left = iter(codes)
        return [{column.name: next(left) for column in relation.c} for relation in relations], is_behind

    def _kinds_on_postgresql(self, relations: Sequence[sa.FromClause], to_sum: bool) -> tuple[list[int], bool]:
        known = self._connection.info  # of the driver's connection, which is used again and again
        with self._watch.step():
            if "rankmon_tells_replaced" not in known:
                known["rankmon_tells_replaced"] = all(self._execute(_TELLS_REPLACED).one())
        replaced = _REPLACED if known["rankmon_tells_replaced"] else sa.false()
        row: sa.FromClause = sa.select(replaced.label("replaced")).subquery("one")
        empty = [sa.select(*relation.c).where(sa.false()).subquery() for relation in relations]
        columns = [row.c.replaced, *(column for relation in empty for column in relation.c)]
        for relation in empty:
            row = row.outerjoin(relation, sa.true())
        with self._watch.step():
            result = self._execute(sa.select(*columns, *(_TO_SUM if to_sum else ())).select_from(row))
            cursor: Any = result.cursor
            codes = [d[1] for d in cursor.description]
            return codes[1 : len(columns)], result.one()[0]

    def columns(self, query: Statement | sa.TextClause, most: int | None = None) -> list[list[Any]]:
        """The columns of the answer, as lists.

        Text that is not UTF-8, which SQLite alone hands over, comes as `Undecodable`.

        Raises:
            TooMany: there are more than `most` rows; reading ended there.
            Stopped: the process is to end.
        """
        before = self.rows
        try:
            return self._columns(query, most)
        except (SQLAlchemyError, sqlite3.OperationalError) as error:
            if UNDECODABLE not in str(error):
                raise  # the connection may be lost, and asking for the driver's would hide by what
            driver: Any = self._connection.connection.driver_connection
            if driver.text_factory is _any_text:
                raise
            driver.text_factory = _any_text  # only now, for it takes half as long again for each text
            self.has_undecodable = True
        self.rows = before
        return self._columns(query, most)

    def _columns(self, query: Statement | sa.TextClause, most: int | None) -> list[list[Any]]:
        with self._watch.step():
            result, fetch = self._stream(query)
        gathered: list[list[Any]] = [[] for _ in list(result.keys())]
        bits = self._bits(result)
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

    def _bits(self, result: sa.CursorResult[Any]) -> list[int]:
        """Numbers of the columns of BIT, which MySQL's driver hands over as bytes."""
        cursor: Any = result.cursor
        if self.dialect.name not in ("mysql", "mariadb") or cursor is None:
            return []
        return [i for i, column in enumerate(cursor.description or ()) if column[1] == BIT]

    def _fetched(self, fetch: Callable[[int], Sequence[Any]]) -> Sequence[Any]:
        with self._watch.step():
            return fetch(FETCH)

    def _execute(self, query: Statement | sa.TextClause, **options: Any) -> sa.CursorResult[Any]:
        self.began = time.monotonic()
        return self._connection.execute(query, execution_options=options)

    def _stream(self, query: Statement | sa.TextClause) -> tuple[sa.CursorResult[Any], Callable[[int], Sequence[Any]]]:
        """(the result, how to fetch some rows of it) without the whole answer in memory."""
        if self.dialect.name == "sqlite":
            result = self._execute(query)
            cursor: Any = result.cursor
            return result, lambda most: cursor.fetchmany(min(most, FETCH_FILE))  # spares a Row object for each row
        # SQLAlchemy has fetched a first row ahead when it streams, so the cursor must not be read behind its back.
        result = self._execute(query, stream_results=True, max_row_buffer=FETCH)
        return result, result.fetchmany

    def names(self, relation: sa.FromClause) -> list[str]:
        """Names of all columns that a relation has; no row is read."""
        with self._watch.step():
            result = self._execute(sa.select(sa.literal_column("*")).select_from(relation).where(sa.false()))
            names = list(map(str, list(result.keys())))
            result.close()
            return names

    def one(self, query: Statement | sa.TextClause) -> Any:
        """The single value of the answer."""
        with self._watch.step():
            return self._execute(query).scalar()

    def types(self, query: sa.Select[Any]) -> list[Any]:
        """The driver's type code of each column, without reading a row; the type's name where it is no number."""
        return self._codes(query.limit(0))

    def _codes(self, query: sa.Select[Any]) -> list[Any]:
        with self._watch.step():
            result = self._execute(query)
            cursor: Any = result.cursor
            codes = [d[1] for d in cursor.description]
            result.close()
            known = _SNOWFLAKE if self.dialect.name == "snowflake" else {}
            return [known.get(code, code) if code is None or isinstance(code, int) else _name(code) for code in codes]


def _name(code: Any) -> str:
    """The name of a type: pyodbc gives Python's own, oracledb has objects with names, others have texts."""
    return str(getattr(code, "__name__", None) or getattr(code, "name", None) or code)
