"""Sources that are wrong, away or in another format than declared: error messages and counts of refused rows."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError, Stopped, TooMany
from monitor.measures.measure import parse
from monitor.series.partials import to_partials
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.times import bound, to_micros
from monitor.types import Column, EventRule, Events, Judgments, Monitor, Position, Rankings, Relation, Slice, TimeColumn

HOUR = 3600
START = datetime(2026, 3, 2, 12, tzinfo=UTC)
SINCE = int(START.timestamp())
ISO = TimeColumn("at", "%Y-%m-%dT%H:%M:%SZ")


def watched(**changes: Any) -> Monitor:
    settings: dict[str, Any] = {
        "name": "m",
        "source": "s",
        "rankings": Rankings(Relation(("log",)), "request", "item", Position("position"), ISO),
        "recipe": Column("grade"),
        "measures": (parse("ndcg@10"),),
    }
    return Monitor(**(settings | changes))


def make(url: str, *statements: str) -> str:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            # For psycopg, a percent sign starts a parameter.
            connection.exec_driver_sql(statement if url.startswith("sqlite") else statement.replace("%", "%%"))
    engine.dispose()
    return url


def rows(*values: str, table: str = "log") -> str:
    return f"INSERT INTO {table} VALUES " + ", ".join(f"({v})" for v in values)


LOG = "CREATE TABLE log (request TEXT, item TEXT, position INTEGER, at TEXT, grade REAL)"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'source.db'}"


def pull(url: str, monitor: Monitor, **options: Any) -> Pull:
    return Pull(monitor, Database("s", parse_url(url), options.pop("timeout", 30)), **options)


def error(call: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        call()
    return caught.value


def overall(url: str, monitor: Monitor) -> tuple[list[float], dict[str, int]]:
    """(partials of the measure, refused rows) of the hour from START."""
    reading = pull(url, monitor).read(SINCE, SINCE + HOUR)
    done = to_partials(reading, HOUR, monitor.measures, monitor.slices, {})
    refused = {reason: n for ((_, dimension, _), reason), n in done.refused.items() if not dimension}
    return done.measures[str(monitor.measures[0])][SINCE, "", ""].tolist(), refused


# ---- away, missing, forbidden --------------------------------------------------------------------------------------


def test_a_missing_sqlite_file_is_reported_and_not_created(tmp_path: Path) -> None:
    path = tmp_path / "absent.db"
    found = error(lambda: pull(f"sqlite:///{path}", watched()).read(SINCE, SINCE + HOUR))
    assert (found.reason, str(found)) == ("connect", f"source s: there is no file {path}")
    assert not path.exists()


def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("this is a text file, and a rather long one, so that it is no database header either " * 20)
    assert "file is not a database" in str(error(lambda: pull(f"sqlite:///{path}", watched()).read(SINCE, SINCE + 1)))


@pytest.mark.parametrize(("table", "column"), [("log2", "grade"), ("log", "mark")])
def test_a_missing_table_or_column_is_reported_with_the_remedy(database_url: str, table: str, column: str) -> None:
    make(database_url, LOG.replace("REAL", "DOUBLE PRECISION"))
    monitor = watched(rankings=replace(watched().rankings, relation=Relation((table,))), recipe=Column(column))
    found = error(lambda: pull(database_url, monitor).read(SINCE, SINCE + HOUR))
    assert found.reason == "missing"
    assert (table if table != "log" else column) in str(found)
    assert "compare the table and columns in the configuration with the database" in str(found)


def test_a_permission_error_advises_to_grant_select(postgres_url: str) -> None:
    make(
        postgres_url,
        LOG.replace("REAL", "DOUBLE PRECISION"),
        "DROP ROLE IF EXISTS nobody_reads",
        "CREATE ROLE nobody_reads LOGIN PASSWORD 'geheim-123'",
    )
    url = sa.make_url(postgres_url).set(username="nobody_reads", password="geheim-123")
    found = error(lambda: Pull(watched(), Database("s", url, 30)).read(SINCE, SINCE + HOUR))
    assert found.reason == "permission"
    assert "grant SELECT" in str(found)
    assert "geheim-123" not in str(found)
    make(postgres_url, "DROP ROLE nobody_reads")


def test_an_unreachable_server_is_reported_without_the_password() -> None:
    found = error(lambda: pull("postgresql://reader:geheim-123@127.0.0.1:1/shop", watched()).read(SINCE, SINCE + 1))
    assert found.reason == "connect"
    assert "geheim-123" not in str(found)
    assert "is the database up, and is the URL right?" in str(found)


def test_an_unknown_database_kind_names_the_driver() -> None:
    found = error(lambda: pull("oracle+nosuch://host/db", watched()).read(SINCE, SINCE + 1))
    assert (found.reason, "install the SQLAlchemy driver for oracle" in str(found)) == ("driver", True)


@pytest.mark.parametrize("text", ["", "no url", "shop.db", "postgresql//x"])
def test_an_invalid_database_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a database URL; write e\.g\."):
        parse_url(text)


def test_a_slow_statement_times_out_on_postgresql(postgres_url: str) -> None:
    make(postgres_url, LOG.replace("REAL", "DOUBLE PRECISION"))
    row = "'r' AS request, 'a' AS item, 1 AS position, '2026-03-02T12:00:00Z' AS at, 1.0 AS grade"
    slow = Relation((), f"SELECT {row} FROM generate_series(1, 9) WHERE pg_sleep(5) IS NOT NULL")
    monitor = watched(rankings=replace(watched().rankings, relation=slow))
    found = error(lambda: pull(postgres_url, monitor, timeout=0.5).read(SINCE, SINCE + HOUR))
    assert (found.reason, "raise statement_timeout" in str(found)) == ("timeout", True)


def test_a_slow_statement_times_out_on_sqlite(sqlite_url: str) -> None:
    make(sqlite_url, LOG)
    endless = """
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
        SELECT 'r' || i AS request, 'x' AS item, 1 AS position, '2026-03-02T12:00:00Z' AS at, 1 AS grade FROM n
    """
    monitor = watched(rankings=replace(watched().rankings, relation=Relation((), endless)))
    found = error(lambda: pull(sqlite_url, monitor, timeout=0.5).read(SINCE, SINCE + HOUR))
    assert found.reason == "timeout"


def test_a_source_is_read_only(database_url: str) -> None:
    make(database_url, "CREATE TABLE t (a INTEGER)")
    database = Database("s", parse_url(database_url), 30)
    with pytest.raises(SourceError), database.reading() as reader:
        reader._connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    database.close()


def test_reading_ends_when_the_process_stops(sqlite_url: str) -> None:
    make(sqlite_url, LOG, rows("'r', 'x', 1, '2026-03-02T12:00:00Z', 1"))
    database = Database("s", parse_url(sqlite_url), 30, stop=lambda: True)
    with pytest.raises(Stopped):
        Pull(watched(), database).read(SINCE, SINCE + HOUR)


def test_reading_more_rows_than_fit_is_refused(sqlite_url: str) -> None:
    lists = [f"'r{i}', 'x', 1, '2026-03-02T12:00:{i:02d}Z', 1" for i in range(30)]
    make(sqlite_url, LOG, rows(*lists))
    with pytest.raises(TooMany, match="more than 10 rows"):
        pull(sqlite_url, watched(), most_rows=10).read(SINCE, SINCE + HOUR)


# ---- names and a user's SELECT -------------------------------------------------------------------------------------


def test_table_and_column_names_are_quoted(database_url: str) -> None:
    make(
        database_url,
        'CREATE TABLE "or""der; drop" ("Group" TEXT, "select" TEXT, "po sition" INTEGER, at TEXT, "a:b%c" INTEGER)',
        """INSERT INTO "or""der; drop" VALUES ('r', 'x', 1, '2026-03-02T12:00:00Z', 1)""",
    )
    rankings = Rankings(Relation(('or"der; drop',)), "Group", "select", Position("po sition"), ISO)
    assert overall(database_url, watched(rankings=rankings, recipe=Column("a:b%c")))[0][0] == 1


def test_a_select_can_contain_colons_percent_signs_comments_and_a_semicolon(database_url: str) -> None:
    make(database_url, LOG.replace("REAL", "DOUBLE PRECISION"), rows("'r:1', 'x%', 1, '2026-03-02T12:00:00Z', 1"))
    select = """
        WITH picked AS (SELECT * FROM log WHERE request LIKE 'r:%' AND item <> ':x' /* 12:30 */)
        SELECT request, item, position, at, grade FROM picked -- the end: yes
        ;
    """
    monitor = watched(rankings=replace(watched().rankings, relation=Relation((), select)))
    assert overall(database_url, monitor)[0][0] == 1


# ---- dirty rows ----------------------------------------------------------------------------------------------------

AT = "'2026-03-02T12:00:00Z'"


@pytest.mark.parametrize(
    ("sentence", "values", "requests", "value", "refused"),
    [
        ("one click at the top", [f"'r','a',1,{AT},1", f"'r','b',2,{AT},0"], 1, 1.0, {}),
        ("nothing relevant is empty", [f"'r','a',1,{AT},0"], 1, None, {}),
        ("without any grade it is not a sample", [f"'r','a',1,{AT},NULL"], 0, None, {}),
        ("a NULL item keeps its place", [f"'r',NULL,1,{AT},1", f"'r','b',2,{AT},1"], 1, 0.6309297, {"null_item": 1}),
        ("a NULL position", [f"'r','a',NULL,{AT},1", f"'r','b',1,{AT},1"], 1, 1.0, {"null_position": 1}),
        ("a position before the first", [f"'r','a',0,{AT},1", f"'r','b',1,{AT},1"], 1, 1.0, {"bad_position": 1}),
        ("a NULL request", [f"NULL,'a',1,{AT},1", f"'r','b',1,{AT},1"], 1, 1.0, {"null_request": 1}),
        ("a negative grade", [f"'r','a',1,{AT},-2", f"'r','b',2,{AT},1"], 1, 0.6309297, {"negative_grade": 1}),
        ("a fractional grade", [f"'r','a',1,{AT},0.5", f"'r','b',2,{AT},1"], 1, 0.8597186, {}),
        ("an item at two places", [f"'r','a',1,{AT},1", f"'r','a',2,{AT},1"], 1, 0.6309297, {"duplicate_item": 1}),
        ("a row twice", [f"'r','a',1,{AT},1", f"'r','a',1,{AT},1"], 1, 1.0, {"duplicate_row": 1}),
        ("a place twice", [f"'r','a',1,{AT},1", f"'r','b',1,{AT},3"], 1, 1.0, {"duplicate_position": 1}),
        ("a grade that is text", [f"'r','a',1,{AT},'good'", f"'r','b',1,{AT},1"], 1, 1.0, {"bad_grade": 1}),
        ("a missing place stays empty", [f"'r','a',3,{AT},1"], 1, 0.5, {}),
    ],
)
def test_dirty_rows_are_counted_by_reason_and_left_out(
    sqlite_url: str, sentence: str, values: list[str], requests: int, value: float | None, refused: dict[str, int]
) -> None:
    make(sqlite_url, LOG, rows(*values))
    sums, found = overall(sqlite_url, watched())
    assert (sums[0], found) == (requests, refused), sentence
    assert sums[2] == pytest.approx(value or 0.0, abs=1e-6), sentence
    assert sums[1] == (requests if value is None else 0), sentence


def test_an_empty_table_gives_zeros_and_no_error(database_url: str) -> None:
    make(database_url, LOG.replace("REAL", "DOUBLE PRECISION"))
    assert overall(database_url, watched()) == ([0.0] * 9, {})
    fresh = pull(database_url, watched()).freshness(SINCE, SINCE + HOUR)
    assert (fresh.newest, fresh.future_rows) == (None, 0)


def test_rows_from_the_future_do_not_count_as_fresh(sqlite_url: str) -> None:
    make(sqlite_url, LOG, rows(f"'r','a',1,{AT},1", "'s','a',1,'2031-01-01T00:00:00Z',1"))
    fresh = pull(sqlite_url, watched()).freshness(SINCE - HOUR, SINCE + HOUR)
    assert (fresh.newest, fresh.future_rows) == (SINCE, 1)


def test_slice_values_beyond_the_cap_become_other(sqlite_url: str) -> None:
    table = "CREATE TABLE log (request TEXT, item TEXT, position INTEGER, at TEXT, grade REAL, device TEXT)"
    many = [f"'r{i}','a',1,{AT},1,'device {i % 50}'" for i in range(200)]
    make(sqlite_url, table, rows(*many, f"'x','a',1,{AT},1,NULL", f"'y','a',1,{AT},1,'{'long' * 100}'"))
    monitor = watched(slices=(Slice("device", "device", max_values=3),))
    done = to_partials(pull(sqlite_url, monitor).read(SINCE, SINCE + HOUR), HOUR, monitor.measures, monitor.slices, {})
    counted = {value: int(sums[0]) for (_, dimension, value), sums in done.traffic.items() if dimension}
    assert counted == {"device 0": 4, "device 1": 4, "device 10": 4, "(none)": 1, "other": 189}


def test_a_request_whose_rows_differ_in_a_slice_is_mixed(sqlite_url: str) -> None:
    table = "CREATE TABLE log (request TEXT, item TEXT, position INTEGER, at TEXT, grade REAL, device TEXT)"
    make(sqlite_url, table, rows(f"'r','a',1,{AT},1,'tv'", f"'r','b',2,{AT},1,'phone'", f"'s','a',1,{AT},1,NULL"))
    monitor = watched(slices=(Slice("device", "device"),))
    done = to_partials(pull(sqlite_url, monitor).read(SINCE, SINCE + HOUR), HOUR, monitor.measures, monitor.slices, {})
    assert {v for _, d, v in done.traffic if d} == {"(mixed)", "(none)"}
    assert done.refused[(SINCE, "", ""), "mixed_slice"] == 1


def test_a_request_across_two_buckets_belongs_to_its_earliest_row(database_url: str) -> None:
    make(
        database_url,
        LOG.replace("REAL", "DOUBLE PRECISION"),
        rows("'r','a',1,'2026-03-02T12:59:50Z',0", "'r','b',2,'2026-03-02T13:00:10Z',1"),
    )
    source = pull(database_url, watched())
    assert [source.read(SINCE + h * HOUR, SINCE + (h + 1) * HOUR).rankings.size for h in (0, 1)] == [1, 0]
    assert overall(database_url, watched())[0][2] == pytest.approx(1 / np.log2(3))


def test_early_late_and_unmatched_events_are_counted_apart(database_url: str) -> None:
    make(
        database_url,
        LOG.replace("REAL", "DOUBLE PRECISION"),
        "CREATE TABLE events (request TEXT, item TEXT, at TEXT)",
        rows(f"'r','a',1,{AT},NULL", f"'r','b',2,{AT},NULL"),
        rows(
            "'r','a','2026-03-02T11:59:50Z'",
            "'r','b','2026-03-02T12:09:59Z'",
            "'r','a','2026-03-02T12:10:00Z'",
            "'nobody','a','2026-03-02T12:05:00Z'",
            table="events",
        ),
    )
    recipe = Events(Relation(("events",)), "request", "item", ISO, (EventRule(1),), attribution=600)
    sums, refused = overall(database_url, watched(recipe=recipe))
    assert sums[2] == pytest.approx(1 / np.log2(3))
    assert refused == {"early_event": 1, "late_event": 1}
    reading = pull(database_url, watched(recipe=recipe)).read(SINCE, SINCE + HOUR)
    assert len(reading.unmatched) == 1


def test_unjudged_queries_give_no_sample_and_a_global_ideal_includes_unshown_items(
    database_url: str,
) -> None:
    make(
        database_url,
        "CREATE TABLE log (request TEXT, item TEXT, position INTEGER, at TEXT, q TEXT)",
        "CREATE TABLE judged (q TEXT, item TEXT, grade INTEGER)",
        rows(f"'r','a',1,{AT},'shoes'", f"'s','a',1,{AT},'hats'", f"'t','a',1,{AT},NULL"),
        rows("'shoes','a',1", "'shoes','b',3", "'shoes','a',0", "'shoes',NULL,1", "'shoes','c',NULL", table="judged"),
    )
    rankings = replace(watched().rankings, query="q")
    recipe = Judgments(Relation(("judged",)), "q", "item", "grade")
    monitor = watched(rankings=rankings, recipe=recipe, measures=(parse("ndcg(ideal=global)@10"),))
    sums, _ = overall(database_url, monitor)
    assert sums[0] == 1
    assert sums[2] == pytest.approx(1 / (3 + 1 / np.log2(3)))


# ---- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (TimeColumn("at", "epoch_s"), SINCE),
        (TimeColumn("at", "epoch_s"), float(SINCE)),
        (TimeColumn("at", "epoch_ms"), SINCE * 1000),
        (TimeColumn("at", "epoch_us"), SINCE * 1_000_000),
        (TimeColumn("at", "%Y-%m-%d %H:%M:%S", "UTC"), "2026-03-02 12:00:00"),
        (TimeColumn("at", "%Y-%m-%dT%H:%M:%SZ"), "2026-03-02T12:00:00Z"),
        (TimeColumn("at", "%Y-%m-%d %H:%M:%S", "Europe/Berlin"), "2026-03-02 13:00:00"),
        (TimeColumn("at", "native"), START),
        (TimeColumn("at", "native", "Asia/Tokyo"), datetime(2026, 3, 2, 21)),  # noqa: DTZ001
    ],
)
def test_every_time_format_is_read_and_bounded_the_same(column: TimeColumn, value: object) -> None:
    micros, bad, ambiguous = to_micros(column, [value, None])
    assert micros[0] == SINCE * 1_000_000
    assert bad.tolist() == [False, True]
    assert not ambiguous.any()
    assert bound(column, SINCE - 1) < value  # type: ignore[operator]
    assert bound(column, SINCE) <= value  # type: ignore[operator]
    assert bound(column, SINCE + 1) > value  # type: ignore[operator]


@pytest.mark.parametrize(
    ("column", "value", "remedy"),
    [
        (TimeColumn("at"), "2026-03-02 12:00:00", "declare e.g. format: '%Y-%m-%d %H:%M:%S'"),
        (TimeColumn("at"), 1_772_452_800, "declare format: epoch_s"),
        (TimeColumn("at"), datetime(2026, 3, 2, 12), "declare e.g. timezone: UTC"),  # noqa: DTZ001
        (TimeColumn("at", "native", "UTC"), START, "remove timezone: UTC"),
        (TimeColumn("at", "epoch_s"), "2026-03-02", "name a column that has the time of day too"),
        (TimeColumn("at", "%Y-%m-%dT%H:%M:%SZ"), START, "remove its format"),
    ],
)
def test_a_time_of_an_undeclared_kind_is_an_error_with_the_remedy(
    column: TimeColumn, value: object, remedy: str
) -> None:
    found = error(lambda: to_micros(column, [value]))
    assert found.reason == "data"
    assert remedy in str(found)


def test_ambiguous_and_nonexistent_local_times_are_flagged() -> None:
    column = TimeColumn("at", "%Y-%m-%d %H:%M:%S", "Europe/Berlin")
    texts = ["2026-10-25 01:30:00", "2026-10-25 02:30:00", "2026-10-25 03:30:00", "2026-03-29 02:30:00"]
    read = to_micros(column, texts)
    assert read.doubtful.tolist() == [False, True, False, True]
    assert not read.unreadable.any()


def test_text_that_is_not_a_time_is_refused() -> None:
    assert to_micros(ISO, ["2026-03-02T12:00:00Z", "yesterday", ""])[1].tolist() == [False, True, True]


def test_times_with_fractions_of_a_second_fall_into_the_right_bucket(sqlite_url: str) -> None:
    make(
        sqlite_url,
        LOG,
        rows(
            "'a','x',1,'2026-03-02T11:59:59.999Z',1",
            "'b','x',1,'2026-03-02T12:00:00.001Z',1",
            "'c','x',1,'2026-03-02T12:59:59.999Z',1",
        ),
    )
    assert pull(sqlite_url, watched()).read(SINCE, SINCE + HOUR).rankings.size == 2


def test_native_times_with_and_without_a_zone_are_read_from_postgresql(postgres_url: str) -> None:
    table = "CREATE TABLE {} (request TEXT, item TEXT, position INTEGER, at {}, grade BOOLEAN)"
    make(
        postgres_url,
        "SET TIME ZONE 'America/New_York'",
        table.format("aware", "TIMESTAMPTZ"),
        table.format("naive", "TIMESTAMP"),
        "INSERT INTO aware VALUES ('r','a',1,'2026-03-02 13:30:00+01','t'), ('r','b',2,'2026-03-02 13:30:00+01','f')",
        "INSERT INTO naive VALUES ('r','a',1,'2026-03-02 13:30:00','t')",
    )
    for name, column in (("aware", TimeColumn("at")), ("naive", TimeColumn("at", "native", "Europe/Berlin"))):
        rankings = replace(watched().rankings, relation=Relation(("public", name)), time=column)
        reading = pull(postgres_url, watched(rankings=rankings)).read(SINCE, SINCE + HOUR)
        assert reading.served.tolist() == [(SINCE + 1800) * 1_000_000], name
        assert reading.rankings.grade.tolist() == [1.0], name


def test_reads_use_the_index_on_the_time_column(postgres_url: str) -> None:
    make(
        postgres_url,
        LOG.replace("REAL", "DOUBLE PRECISION").replace("at TEXT", "at TIMESTAMPTZ"),
        "INSERT INTO log SELECT 'r' || i, 'x', 1, '2026-03-01'::timestamptz + i * interval '1 second', 1 "
        "FROM generate_series(1, 200000) i",
        "CREATE INDEX log_at ON log (at)",
        "ANALYZE log",
    )
    monitor = watched(rankings=replace(watched().rankings, time=TimeColumn("at")))
    source = pull(postgres_url, monitor)
    with source.reading() as (reader, queries):
        for query in (queries.requests(SINCE, SINCE + HOUR), queries.graded_rows(SINCE, SINCE + HOUR, sparse=True)):
            text = str(query.compile(dialect=reader.dialect, compile_kwargs={"literal_binds": True}))
            plan = reader._connection.exec_driver_sql("EXPLAIN " + text.replace("%", "%%")).scalars().all()
            assert any("log_at" in line for line in plan), plan
    source.database.close()


def test_a_broken_connection_is_replaced_on_the_next_read(postgres: Any, postgres_url: str) -> None:
    make(postgres_url, LOG.replace("REAL", "DOUBLE PRECISION"), rows(f"'r','a',1,{AT},1"))
    source = pull(postgres_url, watched())
    assert source.read(SINCE, SINCE + HOUR).rankings.size == 1
    postgres.kill()
    assert error(lambda: source.read(SINCE, SINCE + HOUR)).reason == "connect"
    postgres.start()
    assert source.read(SINCE, SINCE + HOUR).rankings.size == 1
    source.database.close()


def test_rows_ahead_of_a_clock_set_back_count_as_future(sqlite_url: str) -> None:
    make(sqlite_url, LOG, rows(f"'r','a',1,{AT},1"))
    source = pull(sqlite_url, watched())
    before = source.freshness(SINCE - HOUR, SINCE + HOUR)
    after = source.freshness(SINCE - HOUR, (START - timedelta(minutes=30)).timestamp())
    assert before.newest == SINCE
    assert (after.newest, after.future_rows) == (None, 1)
