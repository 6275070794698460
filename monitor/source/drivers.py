"""What to do about a driver that is not there: which extra or package brings it, or which URL was meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import NamedTuple

from sqlalchemy.engine import URL
from sqlalchemy.exc import NoSuchModuleError

from monitor.database_url import how_to_install

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
    "hive": "spark",
    "pyhive": "spark",
    "thrift": "spark",
    "thrift_sasl": "spark",
    "bigquery": "bigquery",
    "snowflake": "snowflake",
    "redshift": "redshift",
    "redshift_connector": "redshift",
}
"""What is missing -> the extra that brings it."""

_PACKAGES = {
    "databricks": "databricks-sqlalchemy",
}
"""The same -> the package to install, where an extra would hold other packages back."""


_ALONE = ("duckdb", "clickhousedb", "trino", "hive", "bigquery", "snowflake", "databricks")
"""Kinds of databases of which rankmon knows one driver alone, which a URL need not name."""


class _Brought(NamedTuple):
    """What one of our extras brings for a kind of database: the extra, and how a URL begins that uses it."""

    extra: str
    scheme: str


_BROUGHT = {
    "postgresql": _Brought("postgresql", "postgresql+psycopg"),
    "mysql": _Brought("mysql", "mysql+pymysql"),
    "mariadb": _Brought("mysql", "mariadb+pymysql"),
    "mssql": _Brought("mssql", "mssql+pyodbc"),
    "oracle": _Brought("oracle", "oracle+oracledb"),
    "redshift": _Brought("redshift", "redshift+redshift_connector"),
}

_MEANT = {
    "postgres": "postgresql",
    "clickhouse": "clickhousedb",
    "sqlserver": "mssql+pyodbc",
    "parquet": "duckdb",
    "spark": "hive",
}
"""What people write -> what SQLAlchemy calls it."""


def driver_help(url: URL, error: Exception) -> str:
    """What is wrong with a driver, given the error of loading it, and the remedy."""
    kind = url.get_backend_name()
    if not isinstance(error, ModuleNotFoundError | NoSuchModuleError):
        said = " ".join(str(error).split())
        return f"the driver for {kind} cannot be loaded: {said}; install what it lacks, or all of it: {_install(kind)}"
    missing = str(getattr(error, "name", None) or error).rpartition("sqlalchemy.dialects:")[2]
    if isinstance(error, NoSuchModuleError) and missing != kind and kind in _ALONE:
        return f"there is no driver {missing}; let the URL begin with {kind}:// and run {_install(kind)}"
    return f"the driver {missing} is not installed; {_remedy(kind, missing)}"


def _remedy(kind: str, missing: str) -> str:
    if extra := _EXTRAS.get(missing.partition(".")[0]):
        return how_to_install(extra)
    if package := _PACKAGES.get(missing.partition(".")[0]):
        return f"pip install {package}"
    if meant := _MEANT.get(kind):
        return f"let the URL begin with {meant}://"
    if brought := _BROUGHT.get(kind):
        ours = f"let the URL begin with {brought.scheme}:// and run {how_to_install(brought.extra)}"
        return f"install the SQLAlchemy driver for {kind} that it names, or {ours}"
    return _install(kind)


def _install(kind: str) -> str:
    if package := _PACKAGES.get(kind):
        return f"pip install {package}"
    extra = _BROUGHT[kind].extra if kind in _BROUGHT else _EXTRAS.get(kind)
    return how_to_install(extra) if extra else _of_unknown(kind)


def _of_unknown(kind: str) -> str:
    """What to do about a kind of database that rankmon does not know: it may be a slip, or speak no SQL."""
    known = sorted({"sqlite", *_ALONE, *_BROUGHT})
    meant = get_close_matches(kind, known, 1)
    asked = f"did you mean {meant[0]}://? Else " if meant else ""
    return f"{asked}install the SQLAlchemy driver for {kind}, if it speaks SQL; rankmon itself knows {', '.join(known)}"
