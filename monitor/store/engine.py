"""Connections to rankmon's own database, SQLite (WAL) or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from monitor.errors import StoreError

NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "extract(epoch from clock_timestamp())::double precision",
}
"""The database's own clock, in seconds since 1970, by dialect."""


class Connected:
    """Something that reads and writes the store."""

    def __init__(self, engine: sa.Engine, url: URL) -> None:
        self.engine = engine
        self.url = url

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self.engine.dialect.name

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end. Raises StoreError."""
        with explained(self.url), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection for single queries. Raises StoreError."""
        with explained(self.url), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")


def create(url: URL) -> sa.Engine:
    """An engine for the store. Raises StoreError if its folder is missing."""
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    arguments = {"connect_timeout": 10, "application_name": "rankmon-store"}
    return sa.create_engine(url, pool_pre_ping=True, pool_recycle=3600, connect_args=arguments)


def _sqlite_engine(url: URL) -> sa.Engine:
    folder = Path(url.database or "").parent
    if not folder.is_dir():
        raise StoreError(f"store: there is no folder {folder.absolute()}; make it, or change store.url")
    engine = sa.create_engine(url, connect_args={"timeout": 30})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin below, and at once as writers
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        if connection.get_isolation_level() != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Database errors as StoreError, without the password."""
    try:
        yield
    except (DBAPIError, SQLAlchemyError, ModuleNotFoundError) as error:
        cause = getattr(error, "orig", None) or error
        said = " ".join(str(cause).split())
        if url.password:
            said = said.replace(str(url.password), "***")
        raise StoreError(f"store {url.render_as_string(hide_password=True)}: {said}") from error


def insert_new(dialect: str, table: sa.Table) -> Any:
    """An INSERT that leaves a row that is there alone."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).on_conflict_do_nothing()
