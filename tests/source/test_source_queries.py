"""The SQL that is sent: it takes any identifier and any user SELECT, and an indexed time bounds every read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.series.readings import Reading
from monitor.source.dialects.duckdb import DuckDB
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.source.queries import relation
from monitor.types import Events, Monitor, Position, Rankings, Relation, Slice, TimeColumn
from tests.support.lists import LISTS, of_lists
from tests.support.logs import BUCKET, END, START, Log, Style, column, events, judgments, monitor, styles, write
from tests.support.statements import execute

STYLE = "epoch s"


def read(url: str, monitored: Monitor) -> Reading:
    database = Database("s", parse_url(url), 60)
    try:
        pull = Pull(monitored, database)
        assert pull.freshness(START, END).newest is not None
        return pull.read(START, END)
    finally:
        database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with two requests, one of them with a click."""
    in_file = request.param == "sqlite"
    database_url: str = f"sqlite:///{tmp_path / 'log.db'}" if in_file else request.getfixturevalue("shared_url")
    log = Log()
    log.show("r1", [1, 2], START + 5, device="a:b", grade=[0, 1])
    log.show("r2", [1, 2], START + 7, device="100%", grade=[2, 0])
    log.happen("r1", 2, START + 9)
    write(database_url, log, styles(database_url)[STYLE])
    return database_url


# ---- identifiers -------------------------------------------------------------------------------------------------

STRANGE = (
    "order",
    "Group",
    "two words",
    "two  words",
    'a "quoted" name',
    "it's",
    "100%",
    "a:b",
    "a.b",
    "ünï",
    "select",
)


@pytest.mark.parametrize("name", STRANGE)
def test_tables_and_columns_may_have_any_name(filled: str, name: str) -> None:
    style = styles(filled)[STYLE]
    quoted = '"' + name.replace('"', '""') + '"'
    mapping = {"request": "r", "item": "i", "position": "p", "at": "t", "device": "d"}
    renamed = {
        old: '"' + f"{short} {name}".replace('"', '""') + '"' if old != "at" else quoted
        for old, short in mapping.items()
    }
    execute(
        filled,
        *(f'ALTER TABLE rankings RENAME COLUMN "{old}" TO {new}' for old, new in renamed.items()),
        f"ALTER TABLE rankings RENAME TO {quoted}",
        f"ALTER TABLE events RENAME COLUMN item TO {quoted}",
    )
    rankings = Rankings(Relation((name,)), f"r {name}", f"i {name}", Position(f"p {name}"), TimeColumn(name, "epoch_s"))
    recipe = replace(events(style), item=name)
    reading = read(filled, monitor(recipe, style, rankings=rankings, slices=(Slice("d", f"d {name}"),)))
    assert sorted(reading.slices["d"], key=str) == ["100%", "a:b"]
    assert sorted(reading.events.tolist()) == [0, 1]


def test_a_table_may_be_named_with_its_schema(filled: str) -> None:
    monitored = monitor(column(), styles(filled)[STYLE])
    for schema, is_there in (("main" if filled.startswith("sqlite") else "public", True), ("elsewhere", False)):
        named = replace(monitored, rankings=replace(monitored.rankings, relation=Relation((schema, "rankings"))))
        if is_there:
            assert len(read(filled, named).served) == 2
            continue
        with pytest.raises(SourceError) as caught:
            read(filled, named)
        assert caught.value.reason == "missing"


def test_schemas_and_databases_may_have_any_name(postgres_url: str) -> None:
    log, style = Log(), styles(postgres_url)[STYLE]
    log.show("r1", [1], START)
    write(postgres_url, log, style)
    execute(postgres_url, 'CREATE SCHEMA "my ""own"" schema"', 'ALTER TABLE rankings SET SCHEMA "my ""own"" schema"')
    monitored = monitor(column(), style)
    place = ('my "own" schema', "rankings")
    named = replace(monitored, rankings=replace(monitored.rankings, relation=Relation(place)))
    assert len(read(postgres_url, named).served) == 1
    database = postgres_url.rpartition("/")[2]
    named = replace(monitored, rankings=replace(monitored.rankings, relation=Relation((database, *place))))
    assert len(read(postgres_url, named).served) == 1


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        (postgresql.dialect(), '"a"."b c"."d" AS r'),
        (sqlite.dialect(), '"a"."b c"."d" AS r'),
        (mysql.dialect(), "`a`.`b c`.`d` AS r"),
    ],
)
def test_each_part_of_a_name_is_quoted_separately(dialect: sa.Dialect, text: str) -> None:
    made = relation(Relation(("a", "b c", "d")), "r", ["x"], dialect)
    assert text in str(sa.select(made).compile(dialect=dialect))


# ---- the user's SELECT -------------------------------------------------------------------------------------------

SELECTS = {
    "plain": "SELECT * FROM rankings",
    "semicolon": "SELECT * FROM rankings;",
    "semicolons and blanks": "SELECT * FROM rankings ; ;\n ",
    "comment at the end": "SELECT * FROM rankings -- all of them",
    "semicolon, then comments": "SELECT * FROM rankings; -- done;\n /* really; */ -- yes",
    "comments within": "/* ours */ SELECT -- columns\n * FROM rankings",
    "common table": "WITH x AS (SELECT * FROM rankings), y AS (SELECT * FROM x) SELECT * FROM y",
    "colons": "SELECT * FROM rankings WHERE device <> ':device' AND device <> '\\:x' AND device <> '12:30:00'",
    "per cent": "SELECT * FROM rankings WHERE device <> '%s' AND device NOT LIKE '%%' || 'zz%' AND 7 % 2 = 1",
    "a parameter of drivers": "SELECT * FROM rankings WHERE device <> '%(device)s' AND device <> '?'",
    "semicolon in text": "SELECT * FROM rankings WHERE device <> ';'",
    "comment in text": "SELECT * FROM rankings WHERE device <> '--'",
    "many columns": "SELECT request, 1 AS more, item, position, device, grade, at, country, query FROM rankings",
    "union": "SELECT * FROM rankings WHERE device = 'a:b' UNION ALL SELECT * FROM rankings WHERE device = '100%'",
    "ordered": "SELECT * FROM rankings ORDER BY position DESC LIMIT 100",
}


@pytest.mark.parametrize("select", SELECTS.values(), ids=SELECTS)
def test_any_user_select_can_be_read(filled: str, select: str) -> None:
    style = styles(filled)[STYLE]
    monitored = monitor(events(style), style)
    own = replace(monitored, rankings=replace(monitored.rankings, relation=Relation(select=select)))
    reading = read(filled, own)
    assert sorted(reading.slices["device"], key=str) == ["100%", "a:b"]
    assert sorted(reading.events.tolist()) == [0, 1]


def test_colons_in_casts_and_array_slices_are_left_alone(shared_url: str) -> None:
    log, style = Log(), styles(shared_url)[STYLE]
    log.show("r1", [1], START)
    write(shared_url, log, style)
    select = """
        SELECT request::text, item::int8, position, (ARRAY['a', 'b:c', 'd'])[2:3]::text AS device, at, query, grade,
               '{"a": {"b": 1}}'::jsonb #>> '{a,b}' AS country
        FROM rankings WHERE '12:30:00'::time < '12:31'::time
    """
    monitored = monitor(column(), style)
    reading = read(
        shared_url, replace(monitored, rankings=replace(monitored.rankings, relation=Relation(select=select)))
    )
    assert (reading.slices["device"], reading.slices["land"]) == (["{b:c,d}"], ["1"])


def test_labels_may_come_from_a_select_too(filled: str) -> None:
    style = styles(filled)[STYLE]
    recipe = replace(events(style), relation=Relation(select="SELECT * FROM events -- all; of them"))
    assert sorted(read(filled, monitor(recipe, style)).events.tolist()) == [0, 1]
    graded = replace(judgments(), relation=Relation(select="SELECT 'q' AS query, 1 AS item, 2 AS grade;"))
    assert read(filled, monitor(graded, style)).judged.tolist() == [0, 0]


# ---- bounded by time ---------------------------------------------------------------------------------------------

RECIPES = ("events", "judgments", "column")


def busy(url: str, style: Style) -> None:
    """Ten days of requests in tables that are indexed only by time, with statistics."""
    log = Log()
    for n in range(1500):
        at = START - 5 * 86_400 + n * 600
        log.show(f"r{n}", [n % 7, n % 5 + 10, n % 3 + 20], at, query=f"q{n % 50}", grade=[0, 1, None])
        log.happen(f"r{n}", n % 7, at + 30)
        log.judge(f"q{n % 50}", n % 7, n % 3)
    write(url, log, style, index=True)
    execute(url, *([] if url.startswith("sqlite") else ["ANALYZE"]))


@contextmanager
def watched() -> Iterator[list[tuple[str, Any]]]:
    """Collects (statement, parameters) of each execution."""
    seen: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        seen.append((statement, parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def statements(url: str, style: Style, kind: str) -> list[tuple[str, Any]]:
    """All statements that are sent for one bucket."""
    recipe = {"events": events(style), "judgments": judgments(), "column": column()}[kind]
    measures = ("ndcg@3", "dcg(gain={0:1,1:2,2:3,3:4})@3") if kind == "events" else ("ndcg@3",)
    database = Database("s", parse_url(url), 60)
    with watched() as seen:
        pull = Pull(monitor(recipe, style, measures), database)
        pull.freshness(START, START + 3600)
        assert len(pull.read(START, START + BUCKET).served) == 1
    database.close()
    return [(s, p) for s, p in seen if s.startswith("SELECT") and "LIMIT" not in s.partition("FROM")[0]]


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The nodes of a plan that read a table."""
    if "Relation Name" in node:
        yield node
    for child in node.get("Plans", ()):
        yield from scans(child)


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("name", ["timestamptz", "timestamp local", "epoch ms", "text Z", "text local"])
def test_every_statement_uses_the_time_index_on_postgresql(shared_url: str, name: str, kind: str) -> None:
    style = styles(shared_url)[name]
    busy(shared_url, style)
    asked = statements(shared_url, style, kind)
    assert len(asked) >= {"events": 9, "judgments": 9, "column": 6}[kind]
    engine = sa.create_engine(shared_url)
    with engine.connect() as connection:
        for statement, parameters in asked:
            plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar()
            for scan in scans((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]):
                if scan["Relation Name"] != "judgments" and "LIMIT 0" not in statement and not _is_probe(statement):
                    condition = f"{scan.get('Index Cond', '')}{scan.get('Recheck Cond', '')}" or str(
                        [c.get("Index Cond") for c in scan.get("Plans", ())]
                    )
                    assert re.search(r"\bat >= .*\bat < |at >= [^<]*$", condition), (statement, scan)
    engine.dispose()


def _is_probe(statement: str) -> bool:
    """Whether a statement reads no rows of the log: it asks for types or the catalogue, or says who we are."""
    return (
        "set_config" in statement
        or "pg_locks" in statement
        or "FROM pg_collation" in statement
        or "FROM pg_type" in statement
        or "clock_timestamp()" in statement
        or "sqlite_master" in statement
        or "schema_version" in statement
        or re.search(r"LIMIT \S+( OFFSET \S+)?\s*$", statement) is not None
    )


@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("name", ["epoch s", "text Z", "text local"])
def test_every_statement_uses_the_time_index_on_sqlite(tmp_path: Path, name: str, kind: str) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    style = styles(url)[name]
    busy(url, style)
    asked = [(s, p) for s, p in statements(url, style, kind) if not _is_probe(s)]
    assert len(asked) >= {"events": 5, "judgments": 6, "column": 4}[kind]
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        for statement, parameters in asked:
            steps = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            for table in re.findall(r'FROM "?(rankings|events)', statement):
                assert any(f"INDEX {table}_at (at>" in step for step in steps), (statement, steps)
            timed = "r|e" if kind == "events" else "r"  # judgments have no time
            assert not [s for s in steps if re.fullmatch(rf"SCAN ({timed})\b.*", s)], (statement, steps)
    engine.dispose()


def test_every_statement_is_bounded_in_time(filled: str) -> None:
    style = styles(filled)["epoch ms"]
    busy(filled, style)
    for kind in RECIPES:
        for statement, _ in statements(filled, style, kind):
            if not _is_probe(statement):
                names = ["r", *(["e"] if "events" in statement else [])]
                for name in names:
                    assert re.search(rf'\b{name}\."at" >=', statement), statement


def test_statements_are_not_prepared_on_the_server(shared_url: str) -> None:
    style = styles(shared_url)["timestamptz"]
    busy(shared_url, style)
    pull = Pull(monitor(events(style), style), Database("s", parse_url(shared_url), 60))
    for _ in range(8):
        pull.freshness(START, END)
    with pull.database.reading() as reader:
        prepared = sa.select(sa.func.count()).select_from(sa.table("pg_prepared_statements"))
        assert reader.one(prepared) == 0
    pull.database.close()


def test_a_rule_without_a_type_counts_events_of_any_type(filled: str) -> None:
    style = styles(filled)[STYLE]
    recipe: Events = events(style)
    execute(filled, "UPDATE events SET type = 'wave'")
    assert sum(read(filled, monitor(recipe, style)).events) == 0
    anything = replace(recipe, rules=(replace(recipe.rules[0], type=None), recipe.rules[1]))
    assert sum(read(filled, monitor(anything, style)).events) == 1


@pytest.mark.parametrize("way", [Pull, PushDown])
def test_lists_in_a_column_are_read_by_the_time_index_on_sqlite(tmp_path: Path, way: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    execute(url, *LISTS["sqlite"].of_log(3), "CREATE INDEX lists_at ON lists (served)", "ANALYZE")
    database = Database("s", parse_url(url), 60)
    with watched() as sent:
        way(of_lists("in_json_0"), database).read(START, START + BUCKET)
    database.close()
    of_them = [(statement, values) for statement, values in sent if "lists" in statement and not _is_probe(statement)]
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        for statement, values in of_them:
            steps = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)]
            searched = [step for step in steps if re.match(r"(SCAN|SEARCH) t\b", step)]
            assert searched, steps
            assert all("INDEX lists_at (served>" in step for step in searched), steps
    engine.dispose()
    assert of_them


@pytest.mark.parametrize(
    ("column", "code"), [("in_array", "BIGINT[]"), ("in_json_0", "VARCHAR"), ("in_json_1", "JSON")]
)
def test_duckdb_unnests_only_lists_within_the_time_range(column: str, code: str) -> None:
    engine = sa.create_engine("duckdb:///:memory:")
    with engine.connect() as connection:
        for statement in LISTS["duckdb"].of_log(3):
            connection.exec_driver_sql(statement)
        select = DuckDB().unrolled("lists", column, code, "number")
        found = f"SELECT rankmon_item FROM ({select}) WHERE served >= {(START + BUCKET) * 1000}"
        ((_, plan),) = connection.exec_driver_sql(f"EXPLAIN {found}")
        assert re.search(r"UNNEST.*Filters:[^a-z]*served", plan, re.DOTALL | re.IGNORECASE), plan
        assert "join" not in plan.lower(), "a lateral join unnests all of the table first"
    engine.dispose()
