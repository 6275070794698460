"""Each database's specifics, one object each; `dialect_of` finds it by SQLAlchemy's name."""

from __future__ import annotations

from difflib import get_close_matches

from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError

from monitor.database_url import how_to_install
from monitor.source.dialects.base import Dialect
from monitor.source.dialects.clickhouse import ClickHouse
from monitor.source.dialects.compiled import BigQuery, Oracle, Redshift, Snowflake, SQLServer, Trino
from monitor.source.dialects.duckdb import DuckDB
from monitor.source.dialects.mysql import MySQL
from monitor.source.dialects.postgresql import PostgreSQL
from monitor.source.dialects.spark import Databricks, Spark
from monitor.source.dialects.sqlite import SQLite

_UNKNOWN = Dialect()
_UNKNOWN.can_sum = False  # it is pulled, with no assumptions
_BY_NAME: dict[str, Dialect] = {}


def register(dialect: Dialect) -> Dialect:
    """Registers a dialect under all its names."""
    _BY_NAME.update(dict.fromkeys(dialect.names, dialect))
    return dialect


_RUN: list[Dialect] = [SQLite(), PostgreSQL(), DuckDB(), MySQL(), ClickHouse(), Spark()]
_COMPILED: list[Dialect] = [Databricks(), Redshift(), Trino(), BigQuery(), Snowflake(), SQLServer(), Oracle()]
for _one in (*_RUN, *_COMPILED):
    register(_one)


def dialect_of(name: str) -> Dialect:
    """The dialect with that SQLAlchemy name; a cautious one if unknown."""
    return _BY_NAME.get(name, _UNKNOWN)


def known_dialects() -> list[Dialect]:
    """All registered dialects, once each."""
    return list(dict.fromkeys(_BY_NAME.values()))


# ---- drivers -------------------------------------------------------------------------------------------------------


def driver_help(url: URL, error: Exception) -> str:
    """What the error of loading a driver means, and the fix."""
    kind = url.get_backend_name()
    if not isinstance(error, ModuleNotFoundError | NoSuchModuleError):
        said = " ".join(str(error).split())
        return f"the driver for {kind} cannot be loaded: {said}; install what it lacks, or all of it: {_install(kind)}"
    missing = str(getattr(error, "name", None) or error).rpartition("sqlalchemy.dialects:")[2]
    if isinstance(error, NoSuchModuleError) and missing != kind and dialect_of(kind).schemes.get(kind) == kind:
        return f"there is no driver {missing}; let the URL begin with {kind}:// and run {_install(kind)}"
    return f"the driver {missing} is not installed; {_remedy(kind, missing.partition('.')[0])}"


def _remedy(kind: str, missing: str) -> str:
    for dialect in known_dialects():
        if missing in dialect.modules:
            return _installs(dialect)
    for dialect in known_dialects():
        if meant := dialect.mistaken_for.get(kind):
            return f"let the URL begin with {meant}://"
    scheme = dialect_of(kind).schemes.get(kind, kind)
    if scheme != kind:
        ours = f"let the URL begin with {scheme}:// and run {_install(kind)}"
        return f"install the SQLAlchemy driver for {kind} that it names, or {ours}"
    return _install(kind)


def _install(kind: str) -> str:
    dialect = dialect_of(kind)
    return _installs(dialect) if dialect.extra or dialect.package else _of_unknown(kind)


def _installs(dialect: Dialect) -> str:
    return f"pip install {dialect.package}" if dialect.package else how_to_install(dialect.extra)


def _of_unknown(kind: str) -> str:
    """The fix for an unknown kind of database: it may be a typo, or not speak SQL."""
    known = sorted({name for dialect in known_dialects() for name in dialect.schemes})
    meant = get_close_matches(kind, known, 1)
    asked = f"did you mean {meant[0]}://? Else " if meant else ""
    return f"{asked}install the SQLAlchemy driver for {kind}, if it speaks SQL; rankmon itself knows {', '.join(known)}"
