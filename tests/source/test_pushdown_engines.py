"""Push-down against the pull on real MariaDB, DuckDB over Parquet, and ClickHouse."""

from __future__ import annotations

import importlib.util
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS
from monitor.source.choice import choose, explain_choice
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown, why_not
from monitor.types import EventRule, Monitor, Relation
from tests.source.test_pushdown import (
    UUIDS,
    Mild,
    assert_digits_are_numbers,
    assert_however_it_is_read,
    assert_last_of_two_has_the_event,
    assert_lists_are_read_as_rows,
    assert_odd_lists_are_refused,
    both,
    digits,
    measures,
    odd_lists,
    recipe_of,
    recurring,
    refused,
)
from tests.source.test_source import assert_same
from tests.support.ending import raised_at_the_end
from tests.support.engines import Kind, clickhouse, duckdb_over_parquet, mariadb
from tests.support.examples import times
from tests.support.lists import LISTS, of_lists
from tests.support.logs import BUCKET, END, MICROS, START, Dirt, Log, Soiled, Style, column, events, moment, monitor
from tests.support.mariadb import MariaServer
from tests.support.requirements import missing
from tests.support.statements import execute

ENGINES = ("mariadb", "duckdb", "clickhouse")


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kind:
    """Each of the database systems, with a database of its own."""
    if request.param == "mariadb":
        server: MariaServer = request.getfixturevalue("maria")
        return mariadb(server.create_database())
    module = {"duckdb": "duckdb_engine", "clickhouse": "chdb"}[request.param]
    if importlib.util.find_spec(module) is None:
        missing(f"{module} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    return duckdb_over_parquet(folder) if request.param == "duckdb" else clickhouse(folder / "data")


def case(engine: Kind, kind: str, seed: int) -> tuple[Monitor, str]:
    """A log in the database, usually mild, and a monitor that reads it."""
    chance = random.Random(f"{kind} {seed}")
    name, style = chance.choice(list(engine.styles.items()))
    first, maker = chance.choice((0, 1)), chance.choice((Mild, Mild, Soiled))
    position = chance.choice(("whole", "whole", "number", "decimal"))
    grade = chance.choice(("number", "decimal", *(["truth"] if kind != "events" else [])))
    engine.write(maker(seed, first, Dirt(), boolean=grade == "truth").make(), style, position, grade)
    made = monitor(recipe_of(kind, style, chance), style, measures(chance), first)
    return made, f"{kind} {seed}: {name}, base {first}, {position}, {grade}, {maker.__name__}, {made.measures}"


@pytest.mark.parametrize("kind", ["events", "column"])
def test_push_down_equals_the_pull_on_any_log(engine: Kind, kind: str) -> None:
    database, summed = Database("s", parse_url(engine.url), 60), 0
    for seed in range(times(3)):
        made, what = case(engine, kind, seed)
        assert why_not(made, database.dialect) == ""
        one, other, buckets = both(made, database, START, END)
        assert_same(one, other, what)
        summed += buckets
        database.close()  # otherwise its file could not be rewritten
    assert summed >= 4


def test_lists_in_a_column_are_read_like_rows(engine: Kind) -> None:
    database = Database("s", parse_url(engine.url), 60)
    lists, summed = LISTS[database.dialect], 0
    for seed in range(times(2)):
        execute(engine.writer, *lists.of_log(seed))
        summed += assert_lists_are_read_as_rows(database, lists, str(seed))
        database.close()
    assert summed > 4


def test_values_that_are_not_lists_of_ids_are_refused(engine: Kind) -> None:
    database = Database("s", parse_url(engine.url), 60)
    lists = LISTS[database.dialect]
    more = ["junk"] if "JSON" not in lists.json else []  # a JSON column accepts only JSON
    execute(engine.writer, *odd_lists(lists, more))
    assert_odd_lists_are_refused(database, lists, more)
    database.close()


def test_a_json_number_and_its_digits_are_one_id(engine: Kind) -> None:
    database = Database("s", parse_url(engine.url), 60)
    lists = LISTS[database.dialect]
    execute(engine.writer, *digits(lists))
    assert_digits_are_numbers(database, lists)
    database.close()


@pytest.mark.parametrize("written", [str, int])
def test_json_ids_may_use_all_64_unsigned_bits(engine: Kind, written: type[str | int]) -> None:
    """MariaDB refuses them."""
    database = Database("s", parse_url(engine.url), 60)
    lists, ids = LISTS[database.dialect], [written(number) for number in (2**64 - 2, 2**64 - 1)]
    kind = {"duckdb": "UBIGINT", "clickhousedb": "UInt64", "mysql": "BIGINT UNSIGNED"}[database.dialect]
    execute(engine.writer, *lists.of_ids(ids, kind))
    if database.dialect == "mysql":
        one, other, _ = both(of_lists("in_json_0"), database, START, END)
        assert refused(one) == refused(other) == {"null_item": 2}
    else:
        assert_last_of_two_has_the_event(database, lists, kind)
    database.close()


def test_json_ids_match_labels_of_any_id_type(engine: Kind) -> None:
    database = Database("s", parse_url(engine.url), 60)
    lists = LISTS[database.dialect]
    latin, folded = "VARCHAR(40) CHARACTER SET latin1", "VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    kinds = {"mysql": (latin, folded), "duckdb": ("UUID", "VARCHAR"), "clickhousedb": ("UUID", "Nullable(UUID)")}
    for kind in kinds[database.dialect]:
        execute(engine.writer, *lists.of_ids(UUIDS, kind))
        assert_last_of_two_has_the_event(database, lists, kind)
        database.close()


def test_long_json_ids_that_differ_at_the_end_stay_distinct(engine: Kind) -> None:
    database = Database("s", parse_url(engine.url), 60)
    lists = LISTS[database.dialect]
    kind = {"mysql": "VARCHAR(2000)"}.get(database.dialect, lists.text)
    execute(engine.writer, *lists.of_ids([f"{'x' * 1500}{end}" for end in "ab"], kind))
    assert_last_of_two_has_the_event(database, lists, kind)
    database.close()


def test_reused_ids_give_the_same_sums_in_reads_of_any_length(engine: Kind) -> None:
    database, refused = Database("s", parse_url(engine.url), 60), 0
    for seed in range(times(3)):
        log, (name, style) = recurring(seed), random.Random(seed).choice(list(engine.styles.items()))
        engine.write(log, style, "whole", "number")
        made = monitor(events(style) if seed % 2 else column(), style, ("ndcg", "ctr@2"))
        refused += assert_however_it_is_read(made, database, log, f"{seed}: {name}")
        database.close()  # otherwise its file could not be rewritten

    assert refused > 2


def test_unmatched_joins_work_on_columns_that_are_never_null(engine: Kind) -> None:
    log, style = Log(), engine.styles["epoch ms"]
    log.show("r1", [1, 2], START, device="tv", country="x")
    log.show("r2", [3], START + 700, device="pc", country="x")
    log.happen("r1", 2, START + 5)
    log.happen("nobody", 2, START + 5)
    strict = {name: kind.removeprefix("Nullable(").removesuffix(")") for name, kind in engine.types.items()}
    strict_styles = {"epoch ms": style._replace(sql=style.sql.removeprefix("Nullable(").removesuffix(")"))}
    for rows in (log.rankings, log.events):
        for row in rows:
            row |= {name: "q" if name == "query" else 0 for name, value in row.items() if value is None}
    replace(engine, types=strict, styles=strict_styles).write(log, strict_styles["epoch ms"], "whole", "number")
    database = Database("s", parse_url(engine.url), 60)
    one, other, buckets = both(monitor(events(style), style, ("ndcg@3", "mrr")), database, START, END)
    assert_same(one, other, "never null")
    assert buckets == 4
    assert one.traffic[START, "", ""].tolist() == [1, 1, 2, 1, 1, 1, 0, 1]
    database.close()


def test_ids_that_cannot_be_compared_are_refused_even_in_empty_tables(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path}/unlike.duckdb"
    writer = sa.create_engine(url)
    with writer.begin() as writing:
        shown = (
            'request VARCHAR, item BIGINT, position BIGINT, "at" BIGINT, query VARCHAR, device VARCHAR, country VARCHAR'
        )
        writing.exec_driver_sql(f"CREATE TABLE rankings ({shown})")
        writing.exec_driver_sql(
            'CREATE TABLE events (request VARCHAR, item VARCHAR, "at" BIGINT, type VARCHAR, value DOUBLE)'
        )
    writer.dispose()  # otherwise the file stays locked
    style = Style("BIGINT", "epoch_ms", None, lambda micros: micros // 1000)
    database = Database("s", parse_url(url), 60)
    with pytest.raises(SourceError, match="Cannot compare values of type BIGINT and VARCHAR"):
        PushDown(monitor(events(style), style, ("ndcg@3",)), database, is_bound=True).read(START, END)
    database.close()


@pytest.mark.parametrize(
    ("collation", "default"), [("NOCASE", ""), ("NFC", ""), ("de", ""), ("", "?default_collation=NOCASE")]
)
def test_slices_equal_under_a_duckdb_collation_stay_separate(tmp_path: Path, collation: str, default: str) -> None:
    url, log, spellings = f"duckdb:///{tmp_path}/collated.duckdb", Log(), ("tv", "TV", "\u00e9", "e\u0301")
    for n in range(60):
        log.show(f"r{n}", ["a", "A", "b"], START + 40 * n, device=spellings[n % 4], country="x")
        log.happen(f"r{n}", "b", START + 40 * n + 5)
    log.show("r60", ["a", "b"], START + 30, device=list(spellings[:2]), country="x")
    writer, kind = sa.create_engine(url), f"VARCHAR{f' COLLATE {collation}' * bool(collation)}"
    with writer.begin() as writing:
        writing.exec_driver_sql(
            f'CREATE TABLE rankings (request VARCHAR, item {kind}, position BIGINT, "at" BIGINT, query VARCHAR, '
            f"device {kind}, country VARCHAR)"
        )
        writing.exec_driver_sql('CREATE TABLE events (request VARCHAR, item VARCHAR, "at" BIGINT, type VARCHAR)')
        for table, columns, written in (
            ("rankings", ("request", "item", "position", "at", "query", "device", "country"), log.rankings),
            ("events", ("request", "item", "at", "type"), log.events),
        ):
            writing.execute(
                sa.table(table, *(sa.column(sa.quoted_name(c, True)) for c in columns)).insert(),
                [{c: r[c] for c in columns} for r in written],
            )
    writer.dispose()
    style = Style("BIGINT", "epoch_us", None, lambda micros: micros)
    made = monitor(events(style, value=None, rules=(EventRule(1, "click"),)), style, ("ndcg@3", "ctr@3"))
    database = Database("s", parse_url(f"{url}{default}"), 60)
    one, other, buckets = both(made, database, START, END)
    database.close()
    assert_same(one, other, collation)
    assert buckets > 0
    assert {value for _, dimension, value in one.traffic if dimension == "device"} == {*spellings, "(mixed)"}
    shown = sum(cell[FIELDS.index("denominator")] for key, cell in one.measures["ctr@3"].items() if key[1] == "")
    assert shown == 60 * 3 + 2


def test_clickhouse_times_in_two_zones_compare_as_instants(tmp_path: Path) -> None:
    if importlib.util.find_spec("chdb") is None:
        missing("chdb is not installed")
    engine = clickhouse(tmp_path / "data")
    style, summed = engine.styles["datetime UTC"], 0
    for seed in range(3):
        engine.write(Mild(seed, 1, Dirt()).make(), style, "whole", "number")
        writer = sa.create_engine(engine.url)
        with writer.begin() as writing:
            writing.exec_driver_sql("ALTER TABLE events MODIFY COLUMN at Nullable(DateTime64(6, 'America/New_York'))")
        writer.dispose()
        named = replace(events(style), time=replace(style.column(), timezone=None))
        made, database = monitor(named, style, ("ndcg@3", "mrr")), Database("s", parse_url(engine.url), 60)
        assert choose(made, database.dialect).way == "pushdown"
        one, other, buckets = both(made, database, START, END)
        assert_same(one, other, f"seed {seed}")
        summed += buckets
        database.close()
    assert summed >= 3
    same = replace(monitor(named, style), recipe=replace(named, time=replace(style.column(), timezone="Europe/Berlin")))
    assert "written in different ways" in why_not(same, "clickhousedb")  # local time, not an instant


@pytest.mark.parametrize(
    ("kind", "column", "told"),
    [
        ("VARCHAR[]", "item", "column 'item' has arrays or other compound values, not one id per row; map a list"),
        ("STRUCT(id BIGINT)", "item", "column 'item' has arrays"),
        ("VARCHAR", "position", "column 'position' is text, and positions are numbers; take CAST"),
    ],
)
def test_columns_of_the_wrong_type_are_named_with_a_remedy_on_duckdb(
    tmp_path: Path, kind: str, column: str, told: str
) -> None:
    url = f"duckdb:///{tmp_path}/kinds.duckdb"
    writer = sa.create_engine(url)
    kinds = {"item": "VARCHAR", "position": "BIGINT"} | {column: kind}
    with writer.begin() as writing:
        shown = f'request VARCHAR, item {kinds["item"]}, position {kinds["position"]}, "at" BIGINT'
        writing.exec_driver_sql(f"CREATE TABLE rankings ({shown}, query VARCHAR, device VARCHAR, country VARCHAR)")
        writing.exec_driver_sql(
            'CREATE TABLE events (request VARCHAR, item VARCHAR, "at" BIGINT, type VARCHAR, value DOUBLE)'
        )
    writer.dispose()
    style = Style("BIGINT", "epoch_ms", None, lambda micros: micros // 1000)
    database, made = Database("s", parse_url(url), 60), monitor(events(style), style, ("ndcg@3",))
    for way in (Pull(made, database), PushDown(made, database, is_bound=True)):
        with pytest.raises(SourceError) as caught:
            way.read(START, END)
        assert told in str(caught.value)
    database.close()


def test_the_explained_statement_runs_by_hand(engine: Kind) -> None:
    made = replace(case(engine, "column", 1)[0], engine="pushdown")
    database = Database("s", parse_url(engine.url), 60)
    _, (statement,) = explain_choice(made, database, START, END)
    with database.reading() as reader:
        columns = reader._connection.exec_driver_sql(statement.replace("%", "%%")).keys()
    assert "m0_requests" in columns
    assert isinstance(PushDown(made, database).freshness(START, END).newest, float)
    database.close()


def failing(url: str, timeout: int = 60) -> SourceError:
    """The error that a read of clicks fails with."""
    style = mariadb(url).styles["epoch ms"]
    database = Database("s", parse_url(url), timeout)
    with pytest.raises(SourceError) as caught:
        PushDown(monitor(events(style), style), database, is_bound=True).read(START, START + BUCKET)
    database.close()
    return caught.value


def test_mariadb_errors_name_the_reason_and_remedy(maria: MariaServer) -> None:
    url = maria.create_database()
    error = failing(url)
    assert (error.reason, "compare the table" in str(error)) == ("missing", True), error
    engine, log = mariadb(url), Log()
    log.show("r1", [1, 2], START)
    engine.write(log, engine.styles["epoch ms"], "whole", "number")
    name = url.rpartition("/")[2]
    maria.execute("CREATE OR REPLACE USER watcher", f"GRANT SELECT ON {name}.rankings TO watcher")
    watched = url.replace("root@", "watcher@")
    error = failing(watched)
    assert (error.reason, "grant SELECT" in str(error)) == ("permission", True)
    assert failing(url.replace("root@", "nobody:wrong@")).reason == "connect"
    assert failing(url.replace(str(maria.port), "1")).reason == "connect"
    slow = f"SELECT * FROM {name}.shown WHERE SLEEP(1) = 0"
    maria.execute(f"RENAME TABLE {name}.rankings TO {name}.shown", f"CREATE VIEW {name}.rankings AS {slow}")
    error = failing(url, timeout=1)
    assert (error.reason, "statement_timeout" in str(error)) == ("timeout", True)


def test_a_login_as_mariadbs_anonymous_user_is_explained(maria: MariaServer) -> None:
    """Its entry matches this machine more closely, so a GRANT to the configured user would change nothing."""
    url = maria.create_database()
    name = url.rpartition("/")[2]
    anonymous = ("''@'127.0.0.1'", "''@'localhost'")
    maria.execute("CREATE OR REPLACE USER searcher", f"GRANT SELECT ON {name}.* TO searcher")
    maria.execute(*(f"CREATE OR REPLACE USER {each}" for each in anonymous))
    try:
        error = failing(url.replace("root@", "searcher@"))
    finally:
        maria.execute(*(f"DROP USER {each}" for each in anonymous))
    assert error.reason == "connect"
    assert "create the user for this machine (CREATE USER" in str(error)
    assert "grant SELECT" not in str(error)


def test_nothing_can_be_written_to_mariadb(maria: MariaServer) -> None:
    database = Database("s", parse_url(maria.create_database()), 60)
    with pytest.raises(SourceError, match=r"(?i)read.only"), database.reading() as reader:
        reader._connection.exec_driver_sql("CREATE TABLE t (a INT)")


def test_stopping_does_not_wait_for_mariadb(maria: MariaServer) -> None:
    ending = threading.Event()
    url = maria.create_database()
    database = Database("s", parse_url(url), 60, ending.is_set)
    onlooker = sa.create_engine(url, isolation_level="AUTOCOMMIT")

    def sleeps() -> bool:
        state = "SELECT 1 FROM information_schema.processlist WHERE db = database() AND state = 'User sleep'"
        with onlooker.connect() as connection:
            return connection.exec_driver_sql(state).first() is not None

    def read() -> None:
        with database.reading() as reader:
            reader.one(sa.select(sa.func.sleep(50)))
            reader.columns(sa.select(sa.literal(1)))

    assert raised_at_the_end(read, database, ending, sleeps, within=20) == ["Stopped"]
    assert not sleeps()
    onlooker.dispose()
    database.close()


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("oracle+oracledb://user@host", "rankmon[oracle]"),
        ("mssql+pyodbc://user@host/db", "rankmon[mssql]"),
        ("nonsense://host/db", "install the SQLAlchemy driver for nonsense"),
    ],
)
def test_a_missing_driver_is_named_with_the_package_to_install(url: str, remedy: str) -> None:
    database = Database("s", parse_url(url), 60)
    with pytest.raises(SourceError) as caught, database.reading():
        pass
    assert caught.value.reason == "driver"
    assert remedy in str(caught.value)


def test_rows_are_counted_for_any_spans_of_whole_buckets(engine: Kind) -> None:
    for style in engine.styles.values():
        log = Log()
        for number in range(40):
            log.show(f"r{number}", [1, 2, 3], START + BUCKET // 5 * number)
        engine.write(log, style, "whole", "number")
        database = Database("s", parse_url(engine.url), 60)
        buckets = [(at, at + BUCKET) for at in range(START - BUCKET, END + 26 * BUCKET, BUCKET)]
        spans = [(START, END), *buckets, (END, END + 2 * BUCKET)]
        counts = Pull(monitor(column(), style), database).row_counts(spans)
        assert counts == [sum(s * MICROS <= row["at"] < u * MICROS for row in log.rankings) for s, u in spans]
        database.close()


def test_an_empty_source_has_no_newest_request(engine: Kind) -> None:
    style = engine.styles["epoch ms"]
    engine.write(Log(), style, "whole", "number")
    database = Database("s", parse_url(engine.url), 60)
    source = PushDown(monitor(column(), style), database, is_bound=True)
    assert source.freshness(START, END).newest is None
    one, other, _ = both(source.monitor, database, START, END)
    assert_same(one, other, "empty")
    database.close()


ZONES = ("DateTime", "DateTime64(3, 'UTC')", "DateTime64(6, 'Europe/Berlin')", "DateTime('Asia/Kolkata')")


@pytest.mark.parametrize("engine", ["clickhouse"], indirect=True)
def test_nan_is_one_slice_on_clickhouse(engine: Kind) -> None:
    log, style = Log(), engine.styles["epoch ms"]
    for number, score in enumerate(["nan", "nan", "0.5", None]):
        log.show(f"r{number}", [1, 2], START, device=score, country="x")
    engine.write(log, style, "whole", "number")
    database = Database("s", parse_url(engine.url), 60)
    score = "SELECT * REPLACE (toFloat64OrNull(device) AS device) FROM rankings"
    made = monitor(events(style), style, ("ndcg@3", "mrr"))
    made = replace(made, rankings=replace(made.rankings, relation=Relation(select=score)))
    one, other, _ = both(made, database, START, END)
    assert_same(one, other, "NaN")
    assert {v: t[0] for (start, d, v), t in one.traffic.items() if (start, d) == (START, "device")} == {
        "nan": 2, "0.5": 1, "(none)": 1
    }  # fmt: skip
    database.close()


@pytest.mark.parametrize("kind", ZONES)
@pytest.mark.parametrize("engine", ["clickhouse"], indirect=True)
def test_clickhouse_times_in_any_zone_are_read_as_instants(engine: Kind, kind: str) -> None:
    style, log = Style(f"Nullable({kind})", "native", None, moment), Log()
    for hour in range(6):
        log.show(f"r{hour}", [1, 2, 3], START + hour * BUCKET + 60, device="tv", country="x")
        log.happen(f"r{hour}", 2, START + hour * BUCKET + 90)
    engine.write(log, style, "whole", "number")
    database = Database("s", parse_url(engine.url), 60)
    made = monitor(events(style), style, ("ndcg@3", "mrr"))
    one, other, _ = both(made, database, START, END)
    assert_same(one, other, kind)
    served = [int(one.traffic[START + hour * BUCKET, "", ""][0]) for hour in range(4)]
    assert served == [1, 1, 1, 1]
    assert [int(one.traffic[START + hour * BUCKET, "", ""][1]) for hour in range(4)] == [1, 1, 1, 1], "with a label"
    fresh = PushDown(made, database).freshness(START, START + 2 * BUCKET)
    assert (fresh.newest, fresh.future_rows) == (START + 2 * BUCKET, 9), (
        "the next row is a minute ahead, as clocks may be"
    )
    database.close()


TEXTS = (
    "VARCHAR(50) COLLATE utf8mb4_general_ci",
    "VARCHAR(50) COLLATE utf8mb4_unicode_520_nopad_ci",
    "VARCHAR(50) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "VARCHAR(50) CHARACTER SET utf32",
    "TEXT CHARACTER SET utf8mb4",
    "VARBINARY(50)",
)


@pytest.mark.parametrize("text", TEXTS)
def test_slices_equal_under_a_mariadb_collation_stay_separate(maria: MariaServer, text: str) -> None:
    url = maria.create_database()
    engine, log, style = mariadb(url), Log(), mariadb(url).styles["epoch ms"]
    spellings = ("UNI", "ünï", "uni", "Mobile", "mobile", "mobile ", None)
    for n in range(60):
        log.show(f"r{n}", [1, 2, 3], START + 40 * n, device=spellings[n % 7], country="x" if n % 3 else "X")
        log.happen(f"r{n}", 2, START + 40 * n + 5)
    log.show("r60", [1, 2], START + 30, device=["UNI", "uni"], country=["x", None])
    engine.write(log, style, "whole", "number")
    for name in ("device", "country"):
        maria.execute(f"ALTER TABLE {url.rpartition('/')[2]}.rankings MODIFY {name} {text}")
    database = Database("s", parse_url(url), 60)
    one, other, buckets = both(monitor(events(style), style, ("ndcg@3",)), database, START, END)
    database.close()
    assert_same(one, other, text)
    assert buckets == 4
    found = {value for _, dimension, value in one.traffic if dimension == "device"}
    assert found == {"(none)" if s is None else s for s in spellings} | {"(mixed)"}
    assert {value for _, dimension, value in one.traffic if dimension == "land"} == {"x", "X"}


@pytest.mark.parametrize(("bits", "names"), [(1, "False True"), (8, r"False True \xc8"), (9, "")])
def test_bit_slices_stay_separate_on_mariadb(maria: MariaServer, bits: int, names: str) -> None:
    url = maria.create_database()
    engine, log, style = mariadb(url), Log(), mariadb(url).styles["epoch ms"]
    values = [0, 1] if bits == 1 else [0, 1, 200]
    for n in range(30):
        log.show(f"r{n}", [1, 2, 3], START + 40 * n, device=values[n % len(values)], country="x")
        log.happen(f"r{n}", 2, START + 40 * n + 5)
    engine.write(log, style, "whole", "number")
    maria.execute(f"ALTER TABLE {url.rpartition('/')[2]}.rankings MODIFY device BIT({bits})")
    database = Database("s", parse_url(url), 60)
    one, other, _ = both(monitor(events(style), style, ("ndcg@3",)), database, START, END)
    database.close()
    assert_same(one, other, f"BIT({bits})")
    found = {value for _, dimension, value in one.traffic if dimension == "device"}
    assert found == (set(names.split()) or {"(empty)", "\\x00\x01", r"\x00\xc8"})


def test_a_bit_column_is_a_boolean_grade_on_mariadb(maria: MariaServer) -> None:
    url = maria.create_database()
    engine, log, style = mariadb(url), Log(), mariadb(url).styles["epoch ms"]
    log.show("r1", [1, 2, 3], START, grade=[False, True, None])
    replace(engine, types=engine.types | {"truth": "BIT(1)"}).write(log, style, "whole", "truth")
    database = Database("s", parse_url(url), 60)
    one, other, _ = both(monitor(column(), style, ("ndcg@3",)), database, START, END)
    assert_same(one, other, "BIT(1)")
    assert not one.refused
    assert one.measures["ndcg@3"][START, "", ""][:3].tolist()[0] == 1
    database.close()


def test_numbers_in_text_columns_are_left_to_the_pull(maria: MariaServer) -> None:
    kind = mariadb(maria.create_database())
    log, style = Log(), kind.styles["epoch ms"]
    log.show("r1", [1, 2], START, device="tv", country="x", grade=["2 stars", "2"])
    log.happen("r1", 1, START + 5, "dwell", "45 ms")
    replace(kind, types=kind.types | {"number": "VARCHAR(20)"}).write(log, style, "whole", "number")
    database = Database("s", parse_url(kind.url), 60)
    for recipe, name in ((events(style), "value"), (column(), "grade")):
        made = monitor(recipe, style, ("cg",))
        with pytest.raises(SourceError, match=f"column '{name}' is not a number"):
            PushDown(made, database, is_bound=True).read(START, END)
        assert PushDown(made, database).read(START, END) is not None
    database.close()


@pytest.mark.parametrize("results", [None, "results"])
@pytest.mark.parametrize("engine", ["clickhouse"], indirect=True)
def test_an_empty_clickhouse_array_is_a_no_results_request_if_results_is_mapped(
    engine: Kind, results: str | None
) -> None:
    style = engine.styles["epoch ms"]
    engine.write(Log(), style, "whole", "number")
    columns = "request String, at Int64, hits Array(Int64)"
    writer = sa.create_engine(engine.url)
    with writer.begin() as writing:
        writing.exec_driver_sql(f"CREATE OR REPLACE TABLE lists ({columns}) ENGINE = MergeTree ORDER BY at")
        lists = ", ".join(f"('r{i}', {(START + i) * 1000}, {[7, 8][: i % 3]})" for i in range(30))
        writing.exec_driver_sql(f"INSERT INTO lists VALUES {lists}")
    writer.dispose()
    joined = "FROM lists LEFT ARRAY JOIN hits AS item, arrayEnumerate(hits) AS position"
    constants = "'q' AS query, 'tv' AS device, 'x' AS country"
    select = f"SELECT request, item, position, at, length(hits) AS results, {constants} {joined}"
    made = monitor(events(style), style, ("no_results", "ctr@2"))
    made = replace(made, rankings=replace(made.rankings, relation=Relation(select=select), results=results))
    database = Database("s", parse_url(engine.url), 60)
    one, other, _ = both(made, database, START, END)
    assert_same(one, other, "empty arrays")
    assert one.traffic[START, "", ""][TRAFFIC_FIELDS.index("no_results")] == (10 if results else 0)
    refused = {reason: rows for (cell, reason), rows in one.refused.items() if cell == (START, "", "")}
    assert refused == ({} if results else {"bad_position": 10})
    database.close()
