"""Rows that PostgreSQL visits for a bounded read of a long history, by EXPLAIN ANALYZE of what is really sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.database_url import parse_url
from monitor.series.readings import Aggregates
from monitor.source import plans as plans_module
from monitor.source.choice import explain_choice
from monitor.source.engine import Database
from monitor.source.plans import gone_through
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.types import ITEM, PLACE, Events, Judgments, Monitor, Position, Relation, TimeColumn
from tests.support.logs import BUCKET, START, Log, column, events, judgments, monitor, styles, write
from tests.support.statements import execute

DAYS, REQUESTS, ITEMS = 100, 1_000, 3
"""Days of the history, which ends at START; requests a day; items a request."""
DAY = 86_400
ROWS = DAYS * REQUESTS * ITEMS
SINCE, UNTIL = START - 40 * DAY, START - 40 * DAY + 6 * BUCKET  # an hour in the middle: about 42 requests
READ = 1_000
"""Rows of a table that a read of an hour may visit, including its margins and those for unmatched events."""

WAYS = {"pull": Pull, "pushdown": PushDown}

Plan = dict[str, Any]


@pytest.fixture(params=["plain", "partitioned"])
def history(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """A log of many days, in tables with an index on the time, or in tables with a partition for each ten days."""
    is_partitioned = request.param == "partitioned"
    columns = "request text, item bigint, {} at timestamptz, device text, country text, query text, value float"
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        for table, more in (("rankings", "position int, grade float,"), ("events", "type text,")):
            by_time = "PARTITION BY RANGE (at)" if is_partitioned else ""
            connection.exec_driver_sql(f"CREATE TABLE {table} ({columns.format(more)}) {by_time}")
            for first in range(0, DAYS, 10) if is_partitioned else ():
                since, until = (f"to_timestamp({START - (DAYS - day) * DAY})" for day in (first, first + 10))
                connection.exec_driver_sql(
                    f"CREATE TABLE {table}_{first} PARTITION OF {table} FOR VALUES FROM ({since}) TO ({until})"
                )
            connection.exec_driver_sql(f"CREATE INDEX ON {table} (at)")
        step = DAY // REQUESTS
        at = f"to_timestamp({START - DAYS * DAY} + n * {step})"
        every = f"FROM generate_series(0, {DAYS * REQUESTS - 1}) AS n, generate_series(1, {ITEMS}) AS i"
        rankings = "INSERT INTO rankings (request, item, position, grade, at, device, country)"
        connection.exec_driver_sql(f"{rankings} SELECT 'r' || n, i, i, i - 1, {at}, 'tv', 'x' {every}")
        clicks = f"SELECT 'r' || n, i, 'click', {at} + interval '20 seconds' {every} WHERE i = 2"
        connection.exec_driver_sql(f"INSERT INTO events (request, item, type, at) {clicks}")
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()
    return postgres_url


@contextmanager
def plans() -> Iterator[list[Plan]]:
    """Collects the plan of each query sent, with its values. Each query runs twice for this."""
    found: list[Plan] = []

    def explain(connection: Any, cursor: Any, statement: str, values: Any, context: Any, many: bool) -> None:
        if statement.lstrip().startswith(("SELECT", "WITH")):
            with connection.connection.driver_connection.cursor() as other:
                ((explained,),) = other.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).fetchall()
            found.append(explained[0]["Plan"])

    sa.event.listen(sa.Engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", explain)


def scans(plan: Plan) -> Iterator[Plan]:
    """The nodes that read a table or a partition of it."""
    if "Relation Name" in plan:
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part)


def visited(scan: Plan) -> float:
    """Rows that a scan visited, kept or not."""
    rows = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0) + scan.get("Rows Removed by Index Recheck", 0)
    return float(rows * scan["Actual Loops"])


def read(url: str, made: Monitor, way: str) -> tuple[Any, list[Plan]]:
    """The answer for one hour, and the scans it took, except those of the catalog."""
    database = Database("s", parse_url(url), 60)
    source = WAYS[way](made, database)
    with plans() as found:
        answer = source.read(SINCE, UNTIL)
    database.close()
    return answer, [s for plan in found for s in scans(plan) if not s["Relation Name"].startswith("pg_")]


def monitors(url: str) -> Iterator[Monitor]:
    """Monitors by clicks, with and without unmatched ones and with blocks longer than the read; and one by a column."""
    style = styles(url)["timestamptz"]
    for attribution in (BUCKET, 4 * 3600):
        for counted in (True, False):
            yield monitor(events(style, attribution=attribution, count_unmatched=counted), style)
    yield monitor(column(), style)


@pytest.mark.parametrize("way", WAYS)
def test_a_read_visits_only_the_requested_part_of_a_long_history(history: str, way: str) -> None:
    for made in monitors(history):
        answer, found = read(history, made, way)
        assert isinstance(answer, Aggregates) == (way == "pushdown")
        tables = {scan["Relation Name"].partition("_")[0] for scan in found if visited(scan)}
        assert tables == {"rankings", *(["events"] if isinstance(made.recipe, Events) else [])}
        # An attribution of hours reads as many hours of events.
        most = READ if made.recipe.attribution <= BUCKET else 10 * READ
        assert [s for s in found if visited(s) > most] == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("history", ["partitioned"], indirect=True)
def test_partitions_of_other_times_are_not_touched(history: str, way: str) -> None:
    here = (DAYS - 40) // 10 * 10
    for made in monitors(history):
        _, found = read(history, made, way)  # asking for the columns' types is LIMIT 0, which visits nothing
        near = {f"{table}_{day}" for table in ("rankings", "events") for day in (here - 10, here)}
        assert {scan["Relation Name"] for scan in found if scan["Actual Loops"]} <= near


@pytest.mark.parametrize("history", ["plain"], indirect=True)
def test_without_the_index_a_read_visits_the_whole_history(history: str) -> None:
    engine = sa.create_engine(history)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX rankings_at_idx")
    engine.dispose()
    _, found = read(history, next(monitors(history)), "pushdown")
    assert max(visited(scan) for scan in found) >= ROWS / 3  # by one of several processes


# ---- selects of any shape ------------------------------------------------------------------------------------------

REST = "h.request, h.at, h.device, h.country, h.query"
SHAPES = {
    "array": f"SELECT {REST}, i.item, i.position FROM heads AS h LEFT JOIN LATERAL unnest(h.items) WITH ORDINALITY "
    "AS i(item, position) ON true",
    "json": f"SELECT {REST}, CAST(i.item AS bigint) AS item, i.position FROM heads AS h LEFT JOIN LATERAL "
    "jsonb_array_elements_text(to_jsonb(h.items)) WITH ORDINALITY AS i(item, position) ON true",
    "two tables": f"SELECT {REST}, p.item, p.position FROM heads AS h LEFT JOIN parts AS p USING (request)",
    "numbered": f"SELECT {REST}, h.item, row_number() OVER (PARTITION BY request, at ORDER BY position) AS position "
    "FROM rankings AS h",
    "one table": f"SELECT {REST}, h.item, h.position FROM rankings AS h",
}
"""Ways to write lists that need nested loops, a sort, or neither."""


@pytest.fixture
def written(history: str) -> str:
    """The history, with its lists also as arrays and in two tables, with indexes and statistics."""
    made = "SELECT request, min(at) AS at, 'tv' AS device, 'x' AS country, NULL AS query, array_agg(item ORDER BY item)"
    execute(
        history,
        f"CREATE TABLE heads AS {made} AS items FROM rankings GROUP BY request ORDER BY 2",
        "ALTER TABLE heads ADD hits text",
        "UPDATE heads SET hits = to_json(items)",
        "CREATE TABLE parts AS SELECT request, item, position FROM rankings ORDER BY at",
        "CREATE INDEX ON heads (at)",
        *(f"CREATE INDEX ON {table} (request)" for table in ("heads", "parts", "rankings")),
        "ANALYZE",
    )
    return history


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("history", ["plain"], indirect=True)
def test_a_select_of_any_shape_visits_only_the_requested_rows(written: str, way: str) -> None:
    style = styles(written)["timestamptz"]
    for shape, select in SHAPES.items():
        for counted in (True, False):
            made = monitor(events(style, count_unmatched=counted), style, ("ndcg@3", "ctr@2"))
            made = replace(made, rankings=replace(made.rankings, relation=Relation(select=select)))
            answer, found = read(written, made, way)
            assert isinstance(answer, Aggregates) == (way == "pushdown")
            assert [(shape, s["Relation Name"]) for s in found if visited(s) > READ] == []
            assert told(written, replace(made, engine=way)) == [], shape


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("items", ["items", "hits"])
@pytest.mark.parametrize("history", ["plain"], indirect=True)
def test_lists_in_a_column_are_visited_only_as_requested(written: str, items: str, way: str) -> None:
    style = styles(written)["timestamptz"]
    for where in (Relation(("heads",)), Relation(select="SELECT * FROM heads WHERE device = 'tv';")):
        for counted in (True, False):
            made = monitor(events(style, count_unmatched=counted), style, ("ndcg@3", "ctr@2"))
            lists = replace(made.rankings, relation=where, item=ITEM, position=Position(PLACE), items=items)
            answer, found = read(written, replace(made, rankings=lists), way)
            assert isinstance(answer, Aggregates) == (way == "pushdown")
            assert [s["Relation Name"] for s in found if visited(s) > READ] == []
            assert told(written, replace(made, rankings=lists, engine=way)) == []


@pytest.mark.parametrize("history", ["plain"], indirect=True)
def test_freshness_of_lists_in_a_column_visits_one_row(written: str) -> None:
    style = styles(written)["timestamptz"]
    made = monitor(events(style), style)
    lists = replace(made.rankings, relation=Relation(("heads",)), item=ITEM, position=Position(PLACE), items="hits")
    database = Database("s", parse_url(written), 60)
    with plans() as found:
        assert Pull(replace(made, rankings=lists), database).freshness(START - DAYS * DAY, START).newest is not None
    database.close()
    of_lists = [s for plan in found for s in scans(plan) if s["Relation Name"] == "heads"]
    assert max(map(visited, of_lists)) == 1


@pytest.mark.parametrize("is_thorough", [True, False])
def test_joins_of_tables_without_statistics_are_not_quadratic(postgres_url: str, is_thorough: bool) -> None:
    requests, style = 20_000, styles(postgres_url)["timestamptz"]
    at = f"to_timestamp({SINCE} + n * {DAY / requests})"
    execute(
        postgres_url,
        "CREATE TABLE rankings (request text, item bigint, position int, at timestamptz, device text, country text, "
        "query text) WITH (autovacuum_enabled = off)",
        "CREATE TABLE events (request text, item bigint, type text, value float, at timestamptz) "
        "WITH (autovacuum_enabled = off)",
        *(f"CREATE INDEX ON {table} (at)" for table in ("rankings", "events")),
        f"INSERT INTO rankings SELECT 'r' || n, i, i, {at}, 'tv', 'x' FROM generate_series(1, {requests}) AS n, "
        "generate_series(1, 3) AS i",
        "INSERT INTO events SELECT request, item, 'click', 1, at + interval '9 seconds' FROM rankings WHERE item = 2",
    )
    for counted in (True, False):
        made = monitor(events(style, count_unmatched=counted), style, ("ndcg@3", "ctr@2"))
        database = Database("s", parse_url(postgres_url), 60)
        source = PushDown(made, database, is_bound=True)
        if is_thorough:
            source._be_thorough("the test asks for it")
        with plans() as found:
            source.read(SINCE, SINCE + DAY)
        database.close()
        assert sum(map(paired, found)) < requests


def paired(plan: Plan) -> float:
    """Rows that nested loops compared with each other."""
    below = plan.get("Plans", ())
    here = visited(below[1]) if plan["Node Type"] == "Nested Loop" else 0
    return float(here + plan.get("Rows Removed by Join Filter", 0) + sum(map(paired, below)))


CONVERTED = "SELECT *, at AT TIME ZONE 'Europe/Berlin' AS local FROM {} WHERE request NOT LIKE '%:x'"


def told(url: str, made: Monitor) -> list[str]:
    """The remarks on tables that a read scans in full."""
    database = Database("s", parse_url(url), 60)
    choice, statements = explain_choice(made, database, SINCE, UNTIL)
    found = gone_through(made, database, statements, (SINCE, UNTIL), choice.way == "pushdown")
    database.close()
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_select_that_defeats_indexes_and_partitions_is_reported(history: str, way: str) -> None:
    for made in monitors(history):
        assert told(history, replace(made, engine=way)) == []
    style, local = styles(history)["timestamptz"], TimeColumn("local", timezone="Europe/Berlin")
    made = monitor(events(style), style, engine=way)
    recipe = made.recipe
    assert isinstance(recipe, Events)
    made = replace(
        made,
        rankings=replace(made.rankings, relation=Relation((), CONVERTED.format("rankings")), time=local),
        recipe=replace(recipe, relation=Relation((), CONVERTED.format("events")), time=local),
    )
    said = told(history, made)
    assert sorted(text.partition(" (")[0] for text in said) == ["all of events", "all of rankings"]
    assert "because no index or partition limits its time; index the time column, or the expression" in said[0]
    engine = sa.create_engine(history)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX ON rankings ((at AT TIME ZONE 'Europe/Berlin'))")
    engine.dispose()
    assert [text.partition(" (")[0] for text in told(history, made)] == ["all of events"]


# ---- which tables, and how much of them ----------------------------------------------------------------------------

RANKINGS = "request text, item bigint, position int, grade float, at timestamptz, device text, country text, query text"
PLAIN = 10_000
"""Rows that make a table larger than a megabyte."""


def filled(table: str, day: int = 0) -> str:
    """A statement that inserts more than a megabyte of rankings, `day` days after the day that is read."""
    at = f"to_timestamp({SINCE + day * DAY} + n * {DAY // 2 // PLAIN})"
    rows = f"SELECT 'r' || n, 1, 1, 1, {at}, 'tv', repeat('x', 100), 'q' || n FROM generate_series(1, {PLAIN}) AS n"
    return f"INSERT INTO {table} (request, item, position, grade, at, device, country, query) {rows}"


def by_column(url: str, *table: str, select: str = "") -> Monitor:
    """A monitor by the column `grade` of a table, or of a SELECT."""
    made = monitor(column(), styles(url)["timestamptz"])
    return replace(made, rankings=replace(made.rankings, relation=Relation(table, select)))


def of_what(url: str, made: Monitor) -> list[str]:
    """The tables reported as scanned in full, which must be the same for each way of reading."""
    ways = ["pull"] if isinstance(made.recipe, Judgments) else WAYS
    one, other = (sorted(told(url, replace(made, engine=way))) for way in (min(ways), max(ways)))
    assert one == other
    return [text.removeprefix("all of ").partition(" (")[0] for text in one]


def test_full_scans_of_tables_without_a_time_are_not_reported(postgres_url: str) -> None:
    execute(
        postgres_url,
        f"CREATE TABLE rankings ({RANKINGS})",
        filled("rankings"),
        "CREATE TABLE judgments AS SELECT query, item, grade, repeat('x', 100) AS who FROM rankings",
        "CREATE TABLE devices AS SELECT 'd' || n AS device, repeat('x', 200) AS country FROM generate_series(1,9999) n",
        "CREATE INDEX ON rankings (at)",
        "ANALYZE",
    )
    joined = "SELECT r.request, r.item, r.position, r.grade, r.at, r.device, r.query, d.country FROM rankings AS r "
    joined += "LEFT JOIN devices AS d USING (device)"
    counted = f"SELECT *, row_number() OVER (PARTITION BY request, at ORDER BY item) AS place FROM ({joined}) AS j"
    made = [
        monitor(judgments(), styles(postgres_url)["timestamptz"]),
        by_column(postgres_url, select=joined),
        by_column(postgres_url, select=counted),
    ]
    assert [of_what(postgres_url, each) for each in made] == [[], [], []]
    execute(postgres_url, "DROP INDEX rankings_at_idx")
    assert [of_what(postgres_url, each) for each in made] == [["rankings"], ["rankings"], ["rankings"]]


@pytest.mark.parametrize(
    "select",
    [
        "SELECT *, row_number() OVER (PARTITION BY request ORDER BY item) AS place FROM rankings",
        "WITH shown AS MATERIALIZED (SELECT * FROM rankings) SELECT * FROM shown",
    ],
)
def test_a_select_that_blocks_the_time_condition_is_reported(postgres_url: str, select: str) -> None:
    table = f"CREATE TABLE rankings ({RANKINGS})"
    execute(postgres_url, table, filled("rankings"), "CREATE INDEX ON rankings (at)", "ANALYZE")
    assert of_what(postgres_url, by_column(postgres_url, "rankings")) == []
    made = by_column(postgres_url, select=select)
    assert of_what(postgres_url, made) == ["rankings"]
    for way in WAYS:
        (text,) = told(postgres_url, replace(made, engine=way))
        assert "because the `select:` computes something of other rows before its time is compared" in text


def test_an_index_that_the_planner_does_not_use_is_not_called_missing(postgres_url: str) -> None:
    table = f"CREATE TABLE rankings ({RANKINGS})"
    execute(postgres_url, table, filled("rankings"), "CREATE INDEX ON rankings (at)", "ANALYZE")
    execute(
        postgres_url,
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET random_page_cost = 1e6', current_database()); END $$",
    )
    made = by_column(postgres_url, "rankings")
    assert of_what(postgres_url, made) == ["rankings"]
    (text,) = told(postgres_url, made)
    assert "although an index or partition limits its time: PostgreSQL expects the scan to be faster" in text


@pytest.mark.parametrize("schema", ["public", "archive"])
def test_inherited_tables_are_reported_only_if_all_are_scanned(postgres_url: str, schema: str) -> None:
    execute(postgres_url, "CREATE SCHEMA IF NOT EXISTS archive", f"CREATE TABLE logs ({RANKINGS})")
    made = by_column(postgres_url, "logs")
    for day in range(3):
        since, until = (f"to_timestamp({SINCE - DAY // 2 + d * DAY})" for d in (day, day + 1))
        bound = f"CONSTRAINT bound CHECK (at >= {since} AND at < {until})"
        child = f"{schema}.logs_{day}"
        execute(postgres_url, f"CREATE TABLE {child} ({bound}) INHERITS (logs)", filled(child, day))
    execute(postgres_url, f"ALTER TABLE {schema}.logs_1 DROP CONSTRAINT bound", "ANALYZE")
    assert of_what(postgres_url, made) == [], "two of three are read"
    execute(postgres_url, f"ALTER TABLE {schema}.logs_2 DROP CONSTRAINT bound", "CREATE INDEX ON logs (at)")
    assert of_what(postgres_url, made) == ["logs"], "the parent is empty, and its index covers nothing else"
    (size,) = execute(postgres_url, "SELECT sum(pg_relation_size(inhrelid))::bigint FROM pg_inherits")
    assert f"all of logs ({size / 2**20:,.0f} MB) is" in told(postgres_url, made)[0]
    assert [of_what(postgres_url, by_column(postgres_url, schema, "logs_0"))] == [
        ["logs_0" if schema == "public" else "archive.logs_0"]
    ], "a child is read by itself"
    execute(postgres_url, f"CREATE INDEX ON {schema}.logs_1 (at)")
    assert of_what(postgres_url, made) == []


CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{s: {{url: "{url}"}}}}
monitors:
  - name: search
    source: s
    rankings: {{table: rankings, request: request, item: item, position: position, time: at}}
    relevance: {{column: {{grade: grade, max_grade: 3}}}}
    measures: [ndcg@3]
"""


@pytest.mark.parametrize("history", ["plain", "partitioned"], indirect=True)
def test_explain_and_check_config_report_full_scans(
    history: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path, url=history), encoding="utf-8")
    said = "search: all of rankings ("
    for is_wrapped in (False, True):
        if is_wrapped:
            select = "{select: \"SELECT request, item, position, grade, at + interval '0 h' AS at FROM rankings\""
            path.write_text(path.read_text().replace("{table: rankings", select), encoding="utf-8")
        assert run(["explain", "-c", str(path)]) == 0
        assert (said in capsys.readouterr().out) == is_wrapped
        assert run(["check-config", "--connect", str(path)]) == 0
        warned = capsys.readouterr().err
        assert (f"monitors[0].rankings: {said}" in warned) == is_wrapped, warned


def test_a_server_without_the_needed_catalog_gets_no_report(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(postgres_url, Log(), styles(postgres_url)["timestamptz"])
    monkeypatch.setattr(plans_module, "_ANCESTORS", "SELECT of_no_such_function('a', 'b') WHERE ('a', 'b') IN :tables")
    database, made = Database("s", parse_url(postgres_url), 60), next(monitors(postgres_url))
    assert gone_through(made, database, ["SELECT * FROM rankings"], (SINCE, UNTIL), by_sums=False) == []
    assert gone_through(made, database, ["SELECT FROM WHERE"], (SINCE, UNTIL), by_sums=True) == []
    database.close()


def test_settings_for_summing_end_with_the_transaction(postgres_url: str) -> None:
    database = Database("s", parse_url(postgres_url), 60)
    names = ("jit", "work_mem", "enable_nestloop", "enable_sort")
    settings = sa.select(sa.func.concat_ws(" ", *map(sa.func.current_setting, names)))
    with database.reading() as reader:
        before = reader.one(settings)
        reader.prepare_to_sum()
        assert reader.one(settings) == "off 128MB on on", "no plan is closed to a `select:`"
    with database.reading() as reader:
        assert reader.one(settings) == before != "off 128MB on on"
    database.close()
