"""Lists and objects in a column, as `rankmon init` reads them, on each engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import InputError, SourceError
from monitor.source.discovery import Table, flat_lists, flattened, rows_with, sampled_from, tables
from monitor.source.engine import Database
from monitor.types import ITEM, PLACE, Relation
from tests.support.mariadb import MariaServer

ENGINES = ("sqlite", "postgresql", "duckdb", pytest.param("mariadb", marks=pytest.mark.engines), "clickhouse")
TEXT = {"clickhouse": "String", "hive": "STRING", "mariadb": "VARCHAR(200)"}
NATIVE = {
    "postgresql": ("TEXT[]", "JSONB", "ARRAY['a', 'b']", "ARRAY[]::TEXT[]", '\'{"deep": {"id": "x"}}\''),
    "duckdb": ("TEXT[]", "STRUCT(deep STRUCT(id TEXT))", "['a', 'b']", "[]", "{'deep': {'id': 'x'}}"),
    "clickhouse": ("Array(String)", "Tuple(deep Tuple(id String))", "['a', 'b']", "[]", "tuple(tuple('x'))"),
    "hive": (
        *("ARRAY<STRING>", "STRUCT<deep: STRUCT<id: STRING>>", "array('a', 'b')", "array()"),
        "named_struct('deep', named_struct('id', 'x'))",
    ),
}
"""Engine -> types of a list and an object, a list, an empty list, an object."""


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Two searches, the second without results, and an event."""
    engine = request.param
    if engine in ("duckdb", "clickhouse"):
        pytest.importorskip({"duckdb": "duckdb_engine", "clickhouse": "chdb"}[engine])
    url = f"{engine}:///{tmp_path}/log.db"
    if engine == "postgresql":
        url = request.getfixturevalue("postgres_url")
    elif engine == "mariadb":
        server: MariaServer = request.getfixturevalue("maria")
        url = server.create_database()
    elif engine == "clickhouse":
        url = f"clickhousedb://default@localhost/default?interface=chdb&path={tmp_path}/data"
    fill(engine, url)
    found = Database("log", parse_url(url), 30)
    yield found
    found.close()


def fill(engine: str, url: str) -> None:
    text, end = TEXT.get(engine, "TEXT"), " ENGINE = MergeTree ORDER BY tuple()" if engine == "clickhouse" else ""
    made = sa.create_engine(url)
    deep = json.dumps({"deep": {"id": "x"}})
    with made.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE searches (request {text}, items {text}){end}")
        connection.exec_driver_sql("INSERT INTO searches VALUES ('r1', '[\"a\", \"b\"]'), ('r2', '[]')")
        connection.exec_driver_sql(f"CREATE TABLE acts (request {text}, what {text}){end}")
        connection.exec_driver_sql(f"INSERT INTO acts VALUES ('r1', '{deep}')")
        if engine in NATIVE:
            list_type, object_type, some, none, nested = NATIVE[engine]
            connection.exec_driver_sql(
                f"CREATE TABLE native (request {text}, items {list_type}, what {object_type}){end}"
            )
            connection.exec_driver_sql(f"INSERT INTO native VALUES ('r1', {some}, {nested}), ('r2', {none}, {nested})")
    made.dispose()


def table(database: Database, name: str) -> Table:
    (found,) = tables(database, only=(name,))
    return found


def rows(found: Table, *names: str) -> list[tuple[Any, ...]]:
    """In order, NULLs as None and positions as int."""
    values = found.sample[list(names)].itertuples(index=False)
    return sorted((tuple(None if v != v or v is None else v for v in row) for row in values), key=str)


def test_a_list_gives_a_row_per_item_and_one_if_it_is_empty(database: Database) -> None:
    for name in ("searches", *["native"] * (database.dialect in NATIVE)):
        found = flat_lists(database, table(database, name), "items")
        expected = [("r1", "a", 1), ("r1", "b", 2), ("r2", None, None)]
        assert rows(found, "request", ITEM, PLACE) == expected, name


def test_json_numbers_are_numbers_unless_requested_as_text(database: Database) -> None:
    text, end = TEXT.get(database.dialect, "TEXT"), " ENGINE = MergeTree ORDER BY tuple()"
    made = sa.create_engine(database.url)
    with made.begin() as connection:
        ending = end if "clickhouse" in database.dialect else ""
        connection.exec_driver_sql(f"CREATE TABLE numbers (request {text}, items {text}, what {text}){ending}")
        connection.exec_driver_sql("""INSERT INTO numbers VALUES ('r1', '[7, 30000000000]', '{"id": 7}')""")
    made.dispose()
    for as_text in (False, True)[: 1 if database.dialect == "sqlite" else 2]:
        kind = str if as_text else int
        items = flat_lists(database, table(database, "numbers"), "items", as_text).sample[ITEM].tolist()
        assert sorted(items, key=int) == [kind(7), kind(30_000_000_000)]
        assert flattened(database, table(database, "numbers"), as_text).sample["what_id"].tolist() == [kind(7)]


def test_an_object_gives_a_column_per_value(database: Database) -> None:
    for name in ("acts", *["native"] * (database.dialect in NATIVE)):
        found = flattened(database, table(database, name))
        assert set(found.sample["what_deep_id"]) == {"x"}, name
        assert found.reading(("request",)) == found.origin


def test_each_table_is_found_once_with_its_schema_if_not_the_default(database: Database) -> None:
    names = ["acts", "searches"]
    if database.dialect in ("postgresql", "duckdb"):
        made = sa.create_engine(database.url)
        with made.begin() as connection:
            connection.exec_driver_sql("CREATE SCHEMA shop")
            connection.exec_driver_sql("CREATE TABLE shop.acts AS SELECT * FROM searches")
        made.dispose()
        names.append("shop.acts")
    found = tables(database)
    shown = [one.title for one in found if one.title.partition(".")[0] in ("acts", "searches", "shop")]
    assert sorted(shown) == sorted(names), "other schemas may belong to other tests"
    assert all(set(one.names) >= {"request", "items"} for one in found if one.title == "shop.acts")


def test_partitions_are_not_listed_and_unreadable_tables_are_reported_together(
    postgres_url: str,
) -> None:
    """Covers a partition of a partition, tables that inherit, and the partitions of an unreadable table."""
    made, name = sa.create_engine(postgres_url), "reads_wholes"
    with made.begin() as connection:
        for statement in (
            f"CREATE ROLE {name} LOGIN",
            "CREATE TABLE log (x INT) PARTITION BY RANGE (x)",
            "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (x)",
            "CREATE SCHEMA old",
            "CREATE TABLE old.log_1_1 PARTITION OF log_1 FOR VALUES FROM (0) TO (9)",
            "CREATE TABLE base (x INT)",
            "CREATE TABLE heir () INHERITS (base)",
            "CREATE TABLE child (y INT) INHERITS (base)",
            "CREATE TABLE secret (x INT) PARTITION BY RANGE (x)",
            *(f"CREATE TABLE secret_{n} PARTITION OF secret FOR VALUES FROM ({n}) TO ({n + 1})" for n in range(4)),
            "INSERT INTO log VALUES (1)",
            "INSERT INTO heir VALUES (1)",
            "INSERT INTO child VALUES (1, 2)",
            f"GRANT SELECT ON log, base, child TO {name}",
        ):
            connection.exec_driver_sql(statement)
    reader = sa.make_url(postgres_url).set(username=name, password=None).render_as_string()
    database, left_out = Database("log", parse_url(reader), 30), list[str]()
    try:
        found = tables(database, leave_out=left_out.append)
        assert sorted(one.title for one in found) == ["base", "child", "log"]
        (told,) = left_out
        assert told.startswith("5 tables, such as secret: source log: permission denied for ")
        with pytest.raises(InputError, match=r"known are (?!.*(log_1|heir))"):
            tables(database, only=("nothing",))
        with pytest.raises(SourceError, match="permission denied for schema old"):
            tables(database, only=("old.log_1_1",))
    finally:
        database.close()
        with made.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {name}")
            connection.exec_driver_sql(f"DROP ROLE {name}")
        made.dispose()


def test_a_missing_table_is_refused_with_the_known_ones(database: Database) -> None:
    with pytest.raises(InputError, match=r"there is no table of_nobody; known are .*searches"):
        tables(database, only=("of_nobody",))


def test_a_file_of_an_unknown_kind_is_refused(database: Database) -> None:
    with pytest.raises(InputError, match=r"log\.xlsx: is not a file of a known kind"):
        tables(database, files=("log.xlsx",))


def damaged(tmp_path: Path) -> tuple[str, str, Path]:
    """(URL of a database with one view, the view's SELECT, its Parquet file)."""
    duckdb = pytest.importorskip("duckdb")
    path, base = tmp_path / "log.parquet", tmp_path / "log.duckdb"
    duckdb.sql(f"COPY (SELECT i AS request FROM range(10) AS r(i)) TO '{path}'")
    with duckdb.connect(str(base)) as connection:
        connection.execute(f"CREATE VIEW served AS SELECT * FROM read_parquet('{path}')")
        connection.execute("CREATE TABLE other AS SELECT 1 AS x")
    return f"duckdb:///{base}", f"SELECT * FROM read_parquet('{path}')", path


def test_an_unreadable_table_is_left_out_with_its_file_and_the_reason(tmp_path: Path) -> None:
    url, _, path = damaged(tmp_path)
    path.write_bytes(path.read_bytes()[:50])
    database, left_out = Database("log", parse_url(url), 60), list[str]()
    found = tables(database, leave_out=left_out.append)
    assert [one.title for one in found] == ["other"]
    (why,) = left_out
    assert why.startswith("served: ")
    assert str(path) in why
    assert "a Parquet file is damaged" in why
    with pytest.raises(SourceError, match=r"log\.parquet.*a Parquet file is damaged"):
        tables(database, only=("served",))
    database.close()


def test_a_lookup_reports_a_damaged_file_and_finds_nothing_for_another_type(tmp_path: Path) -> None:
    url, select, path = damaged(tmp_path)
    database = Database("log", parse_url(url), 60)
    served = sampled_from(database, Relation(select=select))
    assert len(rows_with(database, served, "request", [3])) == 1
    assert len(rows_with(database, served, "request", ["no number"])) == 0
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(SourceError, match=r"log\.parquet.*a Parquet file is damaged"):
        rows_with(database, served, "request", [3])
    database.close()


def test_a_sample_of_lists_has_whole_lists(
    tmp_path: Path,
) -> None:
    """DuckDB joins the items by hash, so its first rows are a few each from many lists."""
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "lists.parquet"
    duckdb.sql(
        "COPY (SELECT i AS request, ['sku:' || (hash(i * 20 + k) % 3000) FOR k IN range(20)] AS items "
        f"FROM range(30000) AS r(i)) TO '{path}' (ROW_GROUP_SIZE 2048)"
    )
    database = Database("log", parse_url("duckdb:///:memory:"), 60)
    (lists,) = tables(database, [str(path)])
    found = flat_lists(database, lists, "items").sample
    database.close()
    assert (found.groupby("request").size() == 20).all()
    assert len(found) > 1000
