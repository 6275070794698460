"""A `select:` cannot leave the parentheses it is put into, in any database's syntax and on real databases."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.source.dialects import dialect_of
from monitor.source.dialects.subquery import Quoting
from monitor.source.engine import Database
from monitor.source.queries import relation
from monitor.types import Relation
from tests.support.engines import clickhouse
from tests.support.mariadb import MariaServer
from tests.support.postgres import give_to_nobody

DIALECTS = (
    "postgresql",
    "mysql",
    "sqlite",
    "duckdb",
    "clickhousedb",
    "hive",
    "bigquery",
    "snowflake",
    "mssql",
    "oracle",
)
OTHER = "unheard_of"

LEAVES = {
    "another statement": "SELECT 1 AS a) AS r; COMMIT; COPY (SELECT 1) TO PROGRAM 'id'; SELECT * FROM (SELECT 1 AS a",
    "the same statement": "SELECT 1 AS a) AS r INTO OUTFILE 'x' -- ",
    "behind a comment": "SELECT 1 AS a -- )\n) AS r -- (",
    "behind a comment of many lines": "SELECT 1 AS a /* ( */ ) AS r",
    "a semicolon": "SELECT 1 AS a; DELETE FROM t",
    "a semicolon within": "SELECT (1; DELETE FROM t; SELECT 1) AS a",
    "an open quote": "SELECT 'a",
    "an open comment": "SELECT 1 /* a",
    "an open parenthesis": "SELECT (1",
    "no query": "DELETE FROM t WHERE a IN (SELECT 1)",
    "a carriage return": "SELECT 1 -- \r) AS r; DROP TABLE t; -- (",
    "a line separator": "SELECT 1 -- \u2028) AS r; DROP TABLE t; -- (",
    "nothing": "SELECT 1\0) AS r",
}
DOUBTS = {
    "a backslash before a quote": r"SELECT '\' AS a, ') AS r; DROP TABLE t; --'",
    "a comment that MySQL runs": "SELECT 1 AS a /*! ) AS r INTO OUTFILE 'x' */",
    "a comment that MariaDB runs": "SELECT 1 AS a /*M! ) AS r INTO OUTFILE 'x' */",
    "comments within comments": "SELECT 1 AS a /* /* */ ) AS r; DROP TABLE t -- */",
    "dollar quotes": "SELECT $a$ ' $a$ AS a, ' $a$) AS r; DROP TABLE t; --'",
    "dollar quotes of another script": "SELECT $\U0001f600$ ' $\U0001f600$ AS a, ') AS r; DROP TABLE t; --'",
    "Oracle's quotes": "SELECT q'[']' AS a, ') AS r; DROP TABLE t; --'",
    "printed quotes": "SELECT ‘'’ AS a, ') AS r; DROP TABLE t; --'",
    "a comment that goes on": "SELECT 1 -- \\\n( \n) AS r",
}
OF_SOME = {
    "two dashes without a blank": ("mysql", "SELECT 1 AS a --) AS r INTO OUTFILE 'x'\n"),
    "a hash": ("mysql", "SELECT 1 AS a # (\n) AS r"),
    "a hash in ClickHouse": ("clickhousedb", "SELECT 1 AS a # ' \n) AS r -- '"),
    "a backtick as an operator": ("postgresql", "SELECT 1 ` ) AS r; DROP TABLE t; -- `"),
    "brackets as quotes": ("sqlite", "SELECT 1 AS [a'] FROM t) AS r; DROP TABLE t; --']"),
    "brackets in brackets": ("sqlite", "SELECT [a -- ] '\n] ) AS r; --'"),
    "brackets around a comment": ("postgresql", "SELECT a[1 -- ] '\n] ) AS r; COMMIT; --'"),
    "a parameter that ends at a parenthesis": ("sqlite", "SELECT $parameter(') AS r; DROP TABLE t; --')"),
    "three quotes": ("bigquery", "SELECT '''a' AS a) AS r; DROP TABLE t; --'''"),
    "two slashes": ("snowflake", "SELECT 1 AS a // (\n) AS r"),
}


@pytest.mark.parametrize("dialect", [*DIALECTS, OTHER])
@pytest.mark.parametrize("text", [*LEAVES.values(), *DOUBTS.values()], ids=[*LEAVES, *DOUBTS])
def test_a_select_that_could_leave_its_parentheses_is_refused_everywhere(text: str, dialect: str) -> None:
    with pytest.raises(ValueError):
        dialect_of(dialect).quoting.enclosed(text)


@pytest.mark.parametrize(("dialect", "text"), OF_SOME.values(), ids=OF_SOME)
def test_a_select_that_leaves_them_in_one_dialect_is_refused_there_and_in_unknown_ones(dialect: str, text: str) -> None:
    for one in (dialect, *(() if "parameter" in text else (OTHER,))):
        with pytest.raises(ValueError):
            dialect_of(one).quoting.enclosed(text)


FINE = {
    "postgresql": "SELECT a[1], (ARRAY['a', 'b:c'])[2:3]::text, x #>> '{a,b}', E'\\\\d', x ~ '\\d+' FROM t --all",
    "mysql": "SELECT `it's (`, \"a;b\", 'it''s', 5 - -3 -- all\n FROM t /* (one) */;  -- done;\n",
    "duckdb": "FROM (SELECT a // 2 AS a, {'x': [1, 2]}.x[1], [y + 1 for y in [1]] FROM read_parquet('/d/*.parquet'))",
    "clickhousedb": "WITH 1 AS n SELECT ['a', ')'][1], `x`, arrayMap(i -> (i, 'a'), [1, 2]) FROM t SETTINGS s = 1",
    "sqlite": "SELECT [two words], [a-b], \"a\"\"b\", x'00', strftime('%s', at), a -> '$.b' FROM t",
    "mssql": "SELECT [two words], N'ü' FROM #recent -- all",
    "hive": "SELECT `a.b`, named_struct('x', 1).x, '\\\\d+' FROM t LATERAL VIEW explode(items) e AS item",
    "oracle": "SELECT a#, sys$x, v$session.a FROM t",
    "bigquery": "SELECT `p-1.d.t`.a, ARRAY<STRUCT<a INT64>>[(1)], r'\\d+' FROM `p-1.d.events_*`, UNNEST(items) AS i",
    "snowflake": "SELECT t.$1, f.value:item::string FROM t, LATERAL FLATTEN(input => t.items) f",
}


@pytest.mark.parametrize("dialect", FINE)
def test_queries_in_each_databases_own_syntax_are_accepted(dialect: str) -> None:
    assert dialect_of(dialect).quoting.enclosed(FINE[dialect]) == FINE[dialect].partition(";  --")[0]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that servers can write to, whoever they run as."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        give_to_nobody(Path(folder))
        yield Path(folder)


# ---- on real databases ---------------------------------------------------------------------------------------------


def look(url: str, select: str, named: Sequence[str] | None = None) -> None:
    """Send a `select:` as `check-config --connect` does first, then read it. The source knows all those `named`."""
    database = Database("s", parse_url(url), 60, selects=None if named is None else lambda: named)
    try:
        with database.reading() as reader:
            found = relation(Relation(select=select), "r", ["a"], reader.dialect)
            reader.names(found)
            reader.columns(sa.select(found.c.a))
    finally:
        database.close()


def holds(url: str, select: str, evidence: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is refused and leaves no evidence. It is a real way out: without the guard, it leaves some."""
    with pytest.raises(SourceError, match="`select:` is not one query"):
        look(url, select)
    assert not evidence.exists()
    with monkeypatch.context() as unguarded:
        unguarded.setattr(Quoting, "enclosed", lambda _, text: text)
        try:
            look(url, select)
        except SourceError as error:
            print(error)  # the rest of the statement may fail
    assert evidence.exists()


def test_a_query_cannot_run_a_program_on_postgresql(
    postgres_url: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = open_folder / "out"
    text = f"SELECT 1 AS a) AS r; COMMIT; COPY (SELECT 1) TO PROGRAM 'cat > {out}'; SELECT * FROM (SELECT 1 AS a"
    holds(postgres_url, text, out, monkeypatch)


def test_a_query_cannot_write_a_file_on_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.csv"
    text = f"SELECT 1 AS a) AS r; COPY (SELECT 1 AS a) TO '{out}'; SELECT * FROM (SELECT 1 AS a"
    holds("duckdb:///:memory:", text, out, monkeypatch)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with Parquet files, and others that no query names."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        for name in ("log/a.parquet", "log/b.parquet", "one.parquet", "other.parquet"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            connection.execute(f"COPY (SELECT 1 AS a) TO '{tmp_path / name}'")
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        connection.execute(f"CREATE VIEW log AS SELECT * FROM '{tmp_path}/log/*.parquet'")
    return tmp_path


def test_duckdb_reads_only_files_that_a_select_names(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = [f"SELECT a FROM read_parquet('{files}/log/*.parquet')", f"SELECT a FROM '{files}/one.parquet'"]
    for url in ("duckdb:///:memory:", f"duckdb:///{files}/log.duckdb"):
        for text in (*named, *(["SELECT a FROM log"] if "memory" not in url else [])):
            look(url, text, named if "memory" in url else [named[1]])
        with pytest.raises(SourceError, match="only files named in a `select:` or a view of the database are read"):
            look(url, f"SELECT a FROM '{files}/other.parquet'", named)
    folder = f"SELECT a, '' AS b, '/' AS c FROM '{files}/log'"
    with pytest.raises(SourceError, match="only files named in a `select:`"):
        look("duckdb:///:memory:", f"SELECT a FROM '{files}/other.parquet'", [folder])
    missing = f"SELECT a FROM read_parquet('{files}/missing.parquet')"
    with pytest.raises(SourceError, match="names missing files"):
        look("duckdb:///:memory:", missing, [missing])
    whole = f"SELECT a FROM read_parquet('{files}/log')"
    look("duckdb:///:memory:", whole, [whole])
    monkeypatch.setenv("HOME", str(files))
    for text in ("SELECT a FROM '~/log/*.parquet'", "SELECT a FROM '~/one.parquet'"):
        look("duckdb:///:memory:", text, [text])
    monkeypatch.setattr(Quoting, "enclosed", lambda _, text: text)
    out = files / "out.csv"
    for door in (f"COPY (SELECT 1) TO '{out}'", "SET lock_configuration = false", f"ATTACH '{files}/other.duckdb'"):
        with pytest.raises(SourceError, match=r"disabled by config|has been locked"):
            look("duckdb:///:memory:", f"SELECT 1 AS a) AS r; {door}; SELECT * FROM (SELECT 1 AS a", named)
    assert not out.exists()
    look("duckdb:///:memory:?enable_external_access=true", f"SELECT a FROM '{files}/other.parquet'", named)


def test_a_user_without_a_home_gets_a_missing_files_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have neither a HOME nor a name."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 4242)
    text = "SELECT a FROM '~/log/*.parquet'"
    with pytest.raises(SourceError, match="names missing files: name them in full"):
        look("duckdb:///:memory:", text, [text])


def test_a_query_cannot_write_a_file_on_mariadb(maria: MariaServer, open_folder: Path) -> None:
    out = open_folder / "out"
    to_file = f"INTO OUTFILE '{out}'"
    for text in (
        f"SELECT 1 AS a) AS r {to_file} -- ",
        f"SELECT 1 AS a) AS r; SELECT 1 {to_file}; SELECT * FROM (SELECT 1 AS a",
        f"SELECT 1 AS a /*! ) AS r {to_file} -- */",
        f"SELECT 1 AS a {to_file}",
    ):
        with pytest.raises(SourceError):
            look(maria.url("mysql"), text)
    assert not out.exists()
    maria.execute(f"SELECT 1 {to_file}")
    assert out.exists(), "the server's user could have written it"


def test_a_query_cannot_write_a_file_on_clickhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("chdb")
    out = tmp_path / "out.csv"
    text = f"SELECT 1 AS a) AS r INTO OUTFILE '{out}' FORMAT CSV; SELECT * FROM (SELECT 1 AS a"
    url = clickhouse(tmp_path / "data").url
    holds(url, text, out, monkeypatch)
    with (
        Database("s", parse_url(url), 60).reading() as reader,
        pytest.raises(sa.exc.DatabaseError, match="READONLY"),
    ):
        reader.one(sa.text("CREATE TABLE t (a Int8) ENGINE = Memory"))


def test_sqlite_runs_one_statement_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a)")
    engine.dispose()
    for text in (
        "SELECT a FROM t) AS r; DROP TABLE t; SELECT * FROM (SELECT 1 AS a",
        "WITH x AS (DELETE FROM t) SELECT 1",
    ):
        with pytest.raises(SourceError):
            look(f"sqlite:///{path}", text)
    look(f"sqlite:///{path}", "SELECT a FROM t")


@pytest.mark.parametrize(
    "text",
    [
        "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
        "WITH x AS (INSERT INTO t VALUES (2) RETURNING *) SELECT * FROM x",
        "SELECT 1 AS a INTO made",
        "SELECT nextval('s') AS a",
        "SELECT set_config('transaction_read_only', 'off', true) AS a",
    ],
)
def test_a_query_inside_its_parentheses_cannot_write_on_postgresql(postgres_url: str, text: str) -> None:
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a int); CREATE SEQUENCE s")
    engine.dispose()
    with pytest.raises(SourceError):
        look(postgres_url, text)


@pytest.mark.parametrize("dialect", ["clickhousedb", "bigquery"])
def test_a_name_cannot_leave_its_quotes(dialect: str) -> None:
    made = (
        sa.create_engine(f"{dialect}://").dialect if dialect == "clickhousedb" else sa.dialects.registry.load(dialect)()
    )
    for name in ("`a`, (SELECT 1) AS `b`", "a` b", "a\\"):
        with pytest.raises(SourceError, match="contains a quote or a backslash"):
            relation(Relation(("t",)), "r", [name], made)
