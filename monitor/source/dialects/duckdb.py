"""DuckDB: a file opened read-only, or Parquet and CSV files; its messages are shortened."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.sql.elements import ColumnElement

from monitor.source.dialects.base import Condition, Dialect, Expression, IdKind, Options
from monitor.source.dialects.faults import Fault
from monitor.source.dialects.subquery import Quoting
from monitor.types import ITEM, PLACE

_VIEWS = "SELECT sql FROM duckdb_views() WHERE NOT internal"
_COLLATED = (
    "SELECT current_setting('default_collation') <> '' OR EXISTS (SELECT 1 FROM (SELECT sql FROM duckdb_tables() "
    "UNION ALL SELECT sql FROM duckdb_views() WHERE NOT internal) WHERE contains(lower(sql), 'collate'))"
)
_NUMBER = "TRY_CAST(regexp_extract({}, '^-?[0-9]+$') AS %s)"  # cast alone, 1.5 would become 2
_IDS = {"text": "{}", "number": _NUMBER % "BIGINT", "unsigned": _NUMBER % "UBIGINT", "uuid": "TRY_CAST({} AS UUID)"}
_QUOTED = re.compile(r"""'((?:[^']|'')*)'|"((?:[^"]|"")*)\"""")
_ANY = re.compile(r"[*?\[{]")
_POINTED = re.compile(r"\s*(LINE \d+: )(.*)\n( *)(\^+)[ ]*")
_OURS = re.compile(r'(?:Table|Values list) "[re]" does not have a column named')
_ALIAS = re.compile(r'(?<![\w."\'/])"?[re]"?\.(?=[\w"])')
_GUESS = re.compile(r'\s*Did you mean "(?:pg_|sqlite_|duckdb_|information_schema\.)[^"]*"\?')


class DuckDB(Dialect):
    """DuckDB: fast in-process, without a statement limit."""

    names = ("duckdb",)
    members = {
        (True, True): "CAST(json_extract_string(t.{column}, '$.{path}') AS BIGINT)",
        (True, False): "json_extract_string(t.{column}, '$.{path}')",
        **{(False, is_whole): "t.{column}.{path}" for is_whole in (True, False)},
    }
    extra = "duckdb"
    schemes = {"duckdb": "duckdb"}
    modules = ("duckdb", "duckdb_engine")
    mistaken_for = {"parquet": "duckdb"}
    is_proven = by_hash = keeps_parts = True
    casts_constants = converts_in_pairs = False
    is_in_process = opens_slowly = True
    has_statement_limit = has_users = False
    tables_query = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = coalesce(:schema, current_schema()) "
        "AND table_catalog = current_database()"
    )
    every_table_query = (
        "SELECT nullif(table_schema, current_schema()), table_name FROM information_schema.tables "
        "WHERE table_catalog = current_database() ORDER BY ALL NULLS FIRST"
    )
    quoting = Quoting(arrays=True, hashes=True, slashes=True, dashes=True)
    integers = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
    small_integers = ("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER")
    whole_numbers = {
        **{"INTEGER": ("INTEGER", 31), "UINTEGER": ("UINTEGER", 32), "BIGINT": ("BIGINT", 63)},
        **{"UBIGINT": ("UBIGINT", 64), "HUGEINT": ("HUGEINT", 127), "UHUGEINT": ("UHUGEINT", 128)},
    }
    float_numbers = {"FLOAT": ("FLOAT", 24), "DOUBLE": ("DOUBLE", 53)}
    time_literals = ("TIMESTAMPTZ ", "TIMESTAMP ")  # TIMESTAMP drops the zone
    strict_texts = ("VARCHAR",)
    time_types = {"TIMESTAMP WITH TIME ZONE": (True, True), "TIMESTAMP": (True, False)}
    faults = (
        Fault(
            "timeout",
            (),
            ("could not set lock on file",),
            "another program has the DuckDB file open for writing and locks out all others; let it close the file "
            "after writing, have both open it read-only, or let it write Parquet files and rankmon read those",
        ),
        Fault(
            "missing",
            (),
            ("in read-only mode: database does not exist",),
            "no such file: name another in the URL (duckdb:////path/log.duckdb), or create it first",
        ),
        Fault(
            "missing",
            (),
            ("not a valid duckdb database file", "cannot launch in-memory database in read-only mode"),
            "for Parquet or CSV, set the URL to duckdb:///:memory: and name the file in a `select:`, e.g. SELECT * "
            "FROM read_parquet('/path/*.parquet')",
        ),
        Fault(
            "permission",
            (),
            ("file system operations are disabled by config",),
            "only files named in a `select:` or a view of the database are read: name it there, in full or by a "
            "pattern; or add ?enable_external_access=true to the URL",
            lasting=True,
        ),
        Fault(
            "missing",
            (),
            ("no files found that match the pattern",),
            "the SQL of a `select:` or a view names missing files: name them in full, "
            "and check whether they were written",
            lasting=True,
        ),
        Fault(
            "data",
            (),
            ("csv error on line",),
            "fix this line, or give the types or ignore_errors=true to read_csv in a `select:`",
        ),
        Fault(
            "data",
            (),
            ("schema mismatch in glob",),
            "the files have different columns: read them with read_parquet('...', union_by_name=true)",
            lasting=True,
        ),
    )

    def lax_texts(self, reader: Any, codes: Collection[Any]) -> Collection[Any]:
        """All texts if a table or view has a collation: a column's type does not tell."""
        return self.strict_texts if reader.one(sa.text(_COLLATED)) else ()

    def exactly(self, value: Expression, code: Any) -> Expression:
        """The text's bytes; a cast takes ASCII alone."""
        return sa.func.encode(value)

    def tables_of(self, connection: sa.Connection, without: Collection[str]) -> list[tuple[str, ...]]:
        """As in `Dialect`; its SQLAlchemy package lists tables of all schemas as if they were of the default one."""
        found = connection.exec_driver_sql(self.every_table_query)
        return [(schema, name) if schema else (name,) for schema, name in found if schema not in without]

    def pooling(self, url: URL, most: int) -> Options:
        """No pool: an open connection to a file blocks all writers."""
        return {"poolclass": sa.NullPool}

    def driver_options(self, url: URL, limit: float) -> Options:
        return {} if url.database in (None, "", ":memory:") else {"read_only": True}

    def opened(self, driver: Any, url: URL, selects: Sequence[str] | None) -> None:
        """Leaves only the files within reach that queries and views name; files on the web need extensions first."""
        if selects is None or "enable_external_access" in url.query:
            return
        with closing(driver.cursor()) as cursor:
            cursor.execute(_VIEWS)
            files, folders = named_files([*selects, *(sql for (sql,) in cursor.fetchall())])
            cursor.execute("SELECT current_setting('lock_configuration')")
            if cursor.fetchone()[0] or any("://" in name for name in (*files, *folders)):
                return  # another connection to the same file, or extensions have to be loaded
            cursor.execute(f"SET allowed_paths = {_list(files)}; SET allowed_directories = {_list(folders)}")
            cursor.execute("SET enable_external_access = false; SET lock_configuration = true")

    def patience(self, limit: float) -> float:
        """Our limit alone; DuckDB has none."""
        return limit

    def error_name(self, error: BaseException) -> str:
        return type(error).__name__ if "duckdb" in type(error).__module__ else ""

    def reworded(self, said: str, is_missing: bool) -> str:
        r"""The message without the quoted statement, our table aliases and suggestions.

        For errors other than missing names it keeps the part pointed at, the only mention of the column.

        >>> told = DuckDB().reworded
        >>> told('Values list "r" does not have a column named "sku"\n\nLINE 1: r.sku\n        ^^^^^', True)
        'there is no column named "sku"'
        >>> told('Cannot compare\n\nLINE 1: SELECT 1 WHERE r."at" > 5\n                       ^^^^^^^^^^', False)
        'Cannot compare, in: "at" > 5'
        >>> told("Cannot open\n\nLINE 1: SELECT r.a FROM '/d/r.csv'\n                        ^^^^^^^^^^", False)
        "Cannot open, in: '/d/r.csv'"
        """
        text = _POINTED.sub("" if is_missing else _pointed_at, said)
        return _OURS.sub("there is no column named", _GUESS.sub("", text))

    def absent_column_hint(self, select: str) -> str:
        """A hint that files written at different times may differ."""
        if "*." not in select or "union_by_name" in select:
            return ""
        return "; if only some of the files have it, add union_by_name=true to read_parquet(...)"

    def counted(self, value: Expression, condition: Condition) -> ColumnElement[int]:
        """A FILTER clause, cheaper than CASE."""
        return sa.func.count(value).filter(condition)

    def unrolled(self, table: str, column: str, code: Any, kind: IdKind) -> str:
        """As in `Dialect`; unnested in the SELECT list, as bounds on a time do not reach into a lateral join."""
        name, value = str(code), f"t.{column}"
        is_array, item = name.endswith("]"), f"t.{ITEM}"
        if not is_array and code is not None and name not in ("VARCHAR", "JSON"):
            return ""
        lists = (
            value
            if is_array
            else (
                f"CASE WHEN NOT json_valid({value}) THEN ['null'::JSON] WHEN json_type({value}) = 'ARRAY' "
                f"THEN from_json({value}, '[\"JSON\"]') WHEN json_type({value}) <> 'NULL' THEN ['null'::JSON] END"
            )
        )
        if not is_array or name.startswith("JSON["):
            text = f"CASE WHEN json_type({item}) IN ('VARCHAR', 'BIGINT', 'UBIGINT') THEN {item} ->> '$' END"
            item = _IDS[kind].format(text)
        each = f"SELECT t.*, {lists} AS {ITEM} FROM {table} AS t"
        places = f"unnest(CASE WHEN len(t.{ITEM}) > 0 THEN range(1, len(t.{ITEM}) + 1) ELSE [NULL] END) AS {PLACE}"
        unnested = f"unnest(CASE WHEN len(t.{ITEM}) > 0 THEN t.{ITEM} ELSE [NULL] END) AS {ITEM}"
        return (
            f"SELECT t.* REPLACE ({item} AS {ITEM}) FROM "
            f"(SELECT t.* EXCLUDE ({ITEM}), {unnested}, {places} FROM ({each}) AS t) AS t"
        )

    def unix_seconds(self, time: Expression) -> Expression | None:
        """Whole seconds since 1970, from its own microseconds."""
        return sa.func.floor(self.double(sa.func.epoch_us(time)) / self.number(1_000_000), type_=sa.Double)


def named_files(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """(files, folders) that quoted texts in SQL may name, folders also by patterns and by beginnings of names.

    What looks like a file may be a folder of files; where it is neither, DuckDB looks into it before it says so. A text
    that is just a separator names none.

    >>> named_files(["SELECT * FROM read_csv(['a.csv', '/d/*/b.csv', '/e/' || 'f'])", "SELECT '' || '/' || '..'"])
    (['a.csv', 'f'], ['a.csv/', '/d/', '/e/', 'f/'])
    """
    files, folders = list[str](), list[str]()
    names = [(one or other).replace("''", "'") for text in texts for one, other in _QUOTED.findall(text)]
    names = [name for name in names if name.strip("/.")]
    for name in (*names, *(os.path.expanduser(name) for name in names if name.startswith("~/"))):  # noqa: PTH111
        fixed = _ANY.split(name)[0]
        if fixed == name and not name.endswith("/"):
            files.append(name)
            folders.append(f"{name}/")
        else:
            folders.append(fixed[: fixed.rfind("/") + 1] or ".")
    return files, folders


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + "]"


def _pointed_at(found: re.Match[str]) -> str:
    first = len(found[3]) - len(found[1])
    pointed = _ALIAS.sub("", found[2][max(first, 0) : first + len(found[4])]).strip()
    return f", in: {pointed}" if len(pointed) > 1 else ""
