"""Connections to rankmon's own database, SQLite (WAL) or PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

import monitor.store.files as files
from monitor.database_url import how_to_install, postgresql_arguments
from monitor.errors import StoreError, StoreLocked, without
from monitor.messages.words import on_one_line
from monitor.store.waiting import limit_waits

NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
}
"""The database's clock in seconds since 1970, by dialect."""


PROGRAM = "rankmon-store"
"""Application name of the store's connections on the server."""

_LOCK_SECONDS = 30
_READS: dict[str, dict[str, Any]] = {"sqlite": {"rankmon_reads": True}, "postgresql": {"isolation_level": "AUTOCOMMIT"}}
_SILENCE = 30
"""Seconds after which a vanished server is noticed."""

_STANDBY = "this server is a standby or read-only; set store.url to the primary"

_SHARED = threading.local()
"""The connection a thread reads over within `Connected.at_once`."""

FETCH_ROWS = 500
"""Rows turned into columns at a time."""


class Connected:
    """Base of classes that read and write the store."""

    def __init__(self, engine: sa.Engine, url: URL) -> None:
        self.engine = engine
        self.url = url
        self._reader = engine.execution_options(**_READS[engine.dialect.name])

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end. Raises StoreError."""
        with as_store_errors(self.url), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for queries that never waits for a writer; the same one within `at_once`. Raises StoreError."""
        shared: sa.Connection | None = getattr(_SHARED, "connection", None)
        with as_store_errors(self.url):
            if shared is not None and shared.engine.pool is self.engine.pool:
                yield shared
            else:
                with self._reader.connect() as connection:
                    yield connection

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """This thread's reads share one connection within the block, on SQLite one transaction.

        Opening one costs several times as much as reading a row. Writes made meanwhile may not be seen.
        """
        with self.reading() as connection:
            former, _SHARED.connection = getattr(_SHARED, "connection", None), connection
            try:
                yield
            finally:
                _SHARED.connection = former

    def check_writable(self) -> None:
        """Raises StoreError if this user may only read the store's file, or the server is a standby."""
        if self.dialect == "postgresql":
            fault = _STANDBY if self.scalar(sa.text("SELECT current_setting('transaction_read_only') = 'on'")) else ""
        else:
            path = self.url.database
            fault = files.fault_of(Path(path)) if path and path != ":memory:" else ""
        if fault:
            raise StoreError(f"store: {fault}")

    def rows(self, query: sa.Executable, parameters: Mapping[str, Any] | None = None, **more: Any) -> Sequence[Any]:
        """All rows of a result. Raises StoreError."""
        with self.reading() as connection:
            return connection.execute(query, {**(parameters or {}), **more}).all()

    def scalar(self, query: sa.Executable, parameters: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """The first value of a result; None without one. Raises StoreError."""
        with self.reading() as connection:
            return connection.scalar(query, {**(parameters or {}), **more})

    def integer(self, query: sa.Executable, parameters: Mapping[str, Any] | None = None, **more: Any) -> int | None:
        """The first value of a result as an integer; None without one. Raises StoreError."""
        found = self.scalar(query, parameters, **more)
        return None if found is None else int(found)

    def change(self, statement: sa.Executable, parameters: Mapping[str, Any] | None = None) -> int:
        """Run one statement in its own transaction; returns the number of changed rows. Raises StoreError."""
        with self.writing() as connection:
            return connection.execute(statement, parameters or {}).rowcount

    @contextmanager
    def documents(self) -> Iterator[None]:
        """Reports bad JSON in stored rows as StoreError."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            told = on_one_line(f"{type(error).__name__}: {error}")
            raise StoreError(
                f"store {self.url.render_as_string(hide_password=True)}: a stored document is not in rankmon's format "
                f"({told}); restore a copy of the store, or use a new one and run rankmon backfill for the past"
            ) from error

    def columns(self, query: sa.Select[Any], parameters: dict[str, Any] | None = None) -> list[list[Any]]:
        """The result's columns, twice as fast as rows; empty for an empty result. Raises StoreError.

        Converts a few rows at a time: all at once is slower, because of the garbage collector.
        """
        with self.reading() as connection:
            cursor: Any = connection.execute(query, parameters).cursor
            try:
                found: list[list[Any]] = []
                while rows := cursor.fetchmany(FETCH_ROWS):
                    found = found or [[] for _ in rows[0]]
                    for column, more in zip(found, zip(*rows, strict=True), strict=True):
                        column.extend(more)
                return found
            except self.engine.dialect.loaded_dbapi.Error as error:
                raise SQLAlchemyError(str(error)) from error


def create(url: URL, lease: float = 30) -> sa.Engine:
    """An engine for the store. Raises StoreError if its folder is missing or the database is of another kind.

    `lease`: seconds; a process frozen in a transaction loses it, and its locks, after half of that.
    """
    kind = url.get_backend_name()
    if kind not in NOW:
        raise StoreError(f"store: rankmon keeps its tables in SQLite or PostgreSQL, not in {kind}; change store.url")
    with as_store_errors(url):
        return _sqlite_engine(url) if kind == "sqlite" else _postgresql_engine(url, lease)


def _postgresql_engine(url: URL, lease: float) -> sa.Engine:
    arguments = postgresql_arguments(url, PROGRAM, 10, _SILENCE)
    engine = sa.create_engine(url, pool_pre_ping=True, pool_recycle=3600, connect_args=arguments)
    if url.get_driver_name() == "psycopg":
        limit_waits(engine, 1.5 * lease)  # the server itself ends what waits for a lock a lease long
    limits = {"idle_in_transaction_session_timeout": lease / 2, "lock_timeout": lease}
    settings = (f"set_config('{name}', '{max(1, int(1000 * limit))}', true)" for name, limit in limits.items())
    ask = f"SELECT {', '.join(settings)}"  # for this transaction only: a pooler may share the connection

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if connection.get_isolation_level() != "AUTOCOMMIT":
            connection.exec_driver_sql(ask)

    return engine


class _Hinting(SQLiteCompiler):
    """Writes index hints: SQLite does not know how few rows an index has."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        return text


def _sqlite_engine(url: URL) -> sa.Engine:
    folder = Path(url.database or "").parent
    if not _is_folder(folder):
        raise StoreError(f"store: there is no folder {folder.absolute()}; create it, or change store.url")
    if files.is_folder(Path(url.database or "")):
        raise StoreError(f"store: {files.fault_of(Path(url.database or ''))}")
    engine = sa.create_engine(url, connect_args={"timeout": _LOCK_SECONDS})
    engine.dialect.statement_compiler = _Hinting
    if url.database and url.database != ":memory:":
        _watch(engine, url.database)
        sa.event.listen(engine, "do_connect", lambda *_: files.keep_private(Path(str(url.database))))
        _read_what_is_left_alone(engine, Path(url.database))

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver starts no transactions; `_begin` does
        if not files.is_left_alone(Path(url.database or "")):
            _use_write_ahead_log(connection)
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A transaction that reads first and writes later cannot wait for another writer: it would fail at once.
        reads = connection.get_execution_options().get("rankmon_reads")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _watch(engine: sa.Engine, path: str) -> None:
    """Detect that the store's file was moved or replaced: open connections would keep using the old one."""
    first_seen: list[tuple[int, int]] = []

    @sa.event.listens_for(engine, "do_connect")
    @sa.event.listens_for(engine, "checkout")
    def _compare(*_: object) -> None:
        if first_seen and _identity(path) != first_seen[0]:
            where = Path(path).absolute()
            raise StoreError(
                f"store: {where} was moved or replaced while rankmon was running; put it back, or restart rankmon"
            )

    @sa.event.listens_for(engine, "connect")
    def _remember(*_: object) -> None:
        found = _identity(path)
        if found is not None and not first_seen:
            first_seen.append(found)


def _read_what_is_left_alone(engine: sa.Engine, path: Path) -> None:
    """Let users with read access alone open a store that no process writes."""

    @sa.event.listens_for(engine, "do_connect")
    def _open(*_: object) -> Any:
        return files.open_left_alone(path, _LOCK_SECONDS) if files.is_left_alone(path) else None


def _identity(path: str) -> tuple[int, int] | None:
    """(device, inode) of the file; None if it is missing or out of reach."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _use_write_ahead_log(connection: Any) -> None:
    """Lets readers and a writer work without waiting for each other; the file remembers it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # While another process switches a new file, this one fails at once, whatever its timeout.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except PermissionError:
        return True  # the driver will report the missing permission


@contextmanager
def as_store_errors(url: URL) -> Iterator[None]:
    """Reports database errors as StoreError, without the password."""
    try:
        yield
    except (SQLAlchemyError, ModuleNotFoundError, UnicodeError) as error:
        said = on_one_line(str(getattr(error, "orig", None) or error))
        said = without(said, [str(url.password or "")])
        if remedy := _remedy(error, said, url):
            said += f"; {remedy}"
        told = f"store {url.render_as_string(hide_password=True)}: {said}"
        if _is_locked(error, said):
            raise StoreLocked(told, may_pass=True) from error
        raise StoreError(told, may_pass=remedy in _OF_OUTAGES) from error


@contextmanager
def blaming_damage(url: URL) -> Iterator[None]:
    """Reports a fault over values that rankmon cannot have written as StoreError if the file is damaged."""
    try:
        yield
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError) as error:
        is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
        unread = f"a document is no longer valid JSON: {error}" if isinstance(error, JSONDecodeError) else ""
        if is_file and (found := unread or files.damage_of(Path(str(url.database)))):
            raise StoreError(f"store {url.render_as_string()}: {on_one_line(found)}; {_DAMAGED}") from error
        raise


def _is_locked(error: Exception, said: str) -> bool:
    return getattr(getattr(error, "orig", None), "sqlstate", None) == "55P03" or "database is locked" in said


def _remedy(error: Exception, said: str, url: URL) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "use UTF-8 text; your terminal may have a different encoding"
    if isinstance(error, ModuleNotFoundError):
        return f"install it with {how_to_install('postgresql')}"
    if url.get_backend_name() == "sqlite":
        if remedy := next((remedy for word, remedy in _REMEDIES_OF_FILES if word in said), ""):
            return remedy
        return files.fault_of(Path(url.database)) if url.database and url.database != ":memory:" else ""
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    return next((remedy for states, word, remedy in _REMEDIES if state in states or (word and word in said)), "")


_TABLES = (
    "let this user use rankmon's tables: GRANT ALL ON ALL TABLES IN SCHEMA public, and ON ALL SEQUENCES, or make it "
    "their owner"
)
_REMEDIES = (
    ((), "not permitted to log in", "let this user log in: ALTER ROLE ... LOGIN"),
    (("53300",), "too many connections", "allow this user more connections, or let others use fewer"),
    ((), "permission denied for database", "let this user connect: GRANT CONNECT ON DATABASE"),
    (("25006",), "", _STANDBY),
    ((), "permission denied for table", _TABLES),
    ((), "permission denied for sequence", _TABLES),
    (("3D000",), 'FATAL: database "', "create this database, with this user as its owner, or change store.url"),
    (
        ("42501",),
        "permission denied",
        "let this user create tables: GRANT CREATE, USAGE ON SCHEMA public, or use a database it owns",
    ),
    (("28P01", "28000"), "authentication failed", "may this user log in, with this password and from this machine?"),
    (("25P03",), "idle-in-transaction", "this process stalled during a write, which is rolled back and repeated"),
    (("55P03",), "", "another process has locked what it needs; see rankmon-store in pg_stat_activity"),
    ((), "has not answered", "is the server or its disk stopped, or has another process locked what it needs?"),
    ((), "unsupported startup parameter", "let pgbouncer ignore it: ignore_startup_parameters"),
    ((), "connection", "is the server up, and is store.url right?"),
)
"""PostgreSQL: SQL states, or else a word of the message, and the remedy."""

_OF_OUTAGES = [
    remedy
    for _, word, remedy in _REMEDIES
    if word in ("connection", "has not answered", "too many connections", "idle-in-transaction")
]


_DAMAGED = "the file is damaged: restore a copy, or move it away and run rankmon backfill for the past"
_REMEDIES_OF_FILES = (
    ("disk is full", "free disk space for the store; what was not stored is read again"),
    ("is locked", "another program holds it for too long; check which one has the file open"),
    ("malformed", _DAMAGED),
    ("decode", _DAMAGED),
    ("not a database", "another program wrote this file; change store.url, or move it away"),
)
"""SQLite: a word of the message, and the remedy."""


def upserted(
    dialect: str,
    table: sa.Table,
    row: Mapping[str, Any],
    news: Iterable[str] = (),
    where: sa.ColumnElement[bool] | None = None,
) -> Any:
    """An INSERT of a row; if its key exists, an update of `news`, or nothing without them."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]

    added = insert(table).values(dict(row))
    if not (changed := {name: added.excluded[name] for name in news}):
        return added.on_conflict_do_nothing()
    return added.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed, where=where)
