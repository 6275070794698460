"""`check-config --connect` on wrong tables, columns and times: all are reported together, each with its key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import monitor.cli as cli
from tests.support.mariadb import MariaServer

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources:
  lake: {{url: "{url}"}}
monitors:
  - name: home-recs
    source: lake
    rankings:
      table: search_log
      request: request_id
      item: item_id
      position: position
      time: served_at
    relevance:
      events:
        table: search_events
        request: request_id
        item: item_id
        type: kind
        time: occurred_at
        rules: [{{type: tap, grade: 1}}]
        attribution: 1h
    measures: [ndcg@10]
"""
TABLES = {
    "search_log": ("request_id {text}", "item_id {text}", "position INTEGER", "served_at {time}"),
    "search_events": ("request_id {text}", "item_id {text}", "kind {text}", "occurred_at {time}"),
}
ROWS = {"search_log": "'r1', 'i1', 1", "search_events": "'r1', 'i1', 'tap'"}
MOMENT = "'2026-10-01 12:00:00'"

ENGINES = ("sqlite", "postgresql", "duckdb", pytest.param("mariadb", marks=pytest.mark.engines), "clickhouse")
TYPES = {
    "sqlite": ("TEXT", "TEXT"),
    "postgresql": ("TEXT", "TIMESTAMP"),
    "duckdb": ("TEXT", "TIMESTAMP"),
    "mariadb": ("VARCHAR(40)", "DATETIME"),
    "clickhouse": ("String", "DateTime"),
}
"""Engine -> its types for text and for times, without a zone if it has such a type."""

ZONES = {"sqlite": 'format: "%Y-%m-%d %H:%M:%S", timezone: UTC', "clickhouse": "format: native"}
AS_WRITTEN = "timezone: UTC"

Check = Callable[..., tuple[int, list[str]]]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in ("duckdb", "clickhouse"):
        pytest.importorskip({"duckdb": "duckdb_engine", "clickhouse": "chdb"}[name])
    return name


@pytest.fixture
def url(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if engine == "postgresql":
        yield request.getfixturevalue("postgres_url")
    elif engine == "mariadb":
        server: MariaServer = request.getfixturevalue("maria")
        yield server.create_database()
    elif engine == "clickhouse":
        yield f"clickhousedb://default@localhost/default?interface=chdb&path={tmp_path}/data"
    else:
        yield f"{engine}:///{tmp_path}/shop.db"


def fill(engine: str, url: str) -> None:
    text, moment = TYPES[engine]
    end = " ENGINE = MergeTree ORDER BY tuple()" if engine == "clickhouse" else ""
    made = sa.create_engine(url)
    with made.begin() as connection:
        for table, columns in TABLES.items():
            written = ", ".join(columns).format(text=text, time=moment)
            connection.exec_driver_sql(f"CREATE TABLE {table} ({written}){end}")
            connection.exec_driver_sql(f"INSERT INTO {table} VALUES ({ROWS[table]}, {MOMENT})")
    made.dispose()


@pytest.fixture
def check(engine: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Check a sound configuration after changes to its text: (exit code, errors)."""
    fill(engine, url)
    path = tmp_path / "rankmon.yaml"

    def asked(*changes: tuple[str, str]) -> tuple[int, list[str]]:
        how = ZONES.get(engine, AS_WRITTEN)
        text = CONFIG.format(folder=tmp_path, url=url)
        for column in ("served_at", "occurred_at"):
            text = text.replace(f"time: {column}", f"time: {{column: {column}, {how}}}")
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path.write_text(text, encoding="utf-8")
        code = cli.run(["check-config", "--connect", "-c", str(path)])
        err = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
        return code, [line.replace(f"rankmon: {path}:", "") for line in err]

    return asked


def test_a_sound_mapping_passes(check: Check) -> None:
    assert check() == (0, [])


def test_all_missing_columns_are_reported_with_keys_and_existing_columns(check: Check) -> None:
    code, err = check(("item: item_id", "item: itemid"), ("type: kind", "type: sort"))
    assert code == 2
    assert err == [
        "10: monitors[0].rankings.item: home-recs: source lake: there is no column 'itemid' in the rankings, "
        "search_log; did you mean 'item_id'? There are 'request_id', 'item_id', 'position', 'served_at'",
        "18: monitors[0].relevance.events.type: home-recs: source lake: there is no column 'sort' in the labels, "
        "search_events; there are 'request_id', 'item_id', 'kind', 'occurred_at'",
    ]


IN_COLUMNS = "item: item_id\n      position: position"


def test_a_missing_list_column_is_reported(check: Check) -> None:
    assert check((IN_COLUMNS, "items: itemids")) == (
        2,
        [
            "10: monitors[0].rankings.items: home-recs: source lake: there is no column 'itemids' in the rankings, "
            "search_log; did you mean 'item_id'? There are 'request_id', 'item_id', 'position', 'served_at'"
        ],
    )


def test_a_number_column_in_place_of_lists_is_reported(check: Check, engine: str) -> None:
    code, err = check((IN_COLUMNS, "items: position"))
    if engine == "sqlite":  # its columns may hold anything; such rows are refused
        assert (code, err) == (0, [])
        return
    assert (code, err) == (
        2,
        [
            "10: monitors[0].rankings.items: home-recs: source lake: column 'position' holds neither arrays of ids nor "
            "JSON, as `items` needs; name the column with the lists, or map `item` and `position`"
        ],
    )


@pytest.mark.parametrize("engine", ["duckdb", "clickhouse"], indirect=True)
def test_lists_of_lists_are_reported(check: Check, url: str, engine: str) -> None:
    kind, ending = ("INTEGER[][]", "") if engine == "duckdb" else ("Array(Array(Int8))", "ENGINE = Memory")
    text, moment = TYPES[engine]
    made = sa.create_engine(url)
    with made.begin() as connection:
        connection.exec_driver_sql("DROP TABLE search_log")
        connection.exec_driver_sql(
            f"CREATE TABLE search_log (request_id {text}, hits {kind}, served_at {moment}) {ending}"
        )
        connection.exec_driver_sql(f"INSERT INTO search_log VALUES ('r1', [[1]], {MOMENT})")
    made.dispose()
    code, (said,) = check((IN_COLUMNS, "items: hits"))
    assert code == 2
    place = "10: monitors[0].rankings.items: home-recs: source lake: column 'hits' "
    assert said.startswith((f"{place}has lists of lists", f"{place}holds neither arrays of ids nor JSON"))


def test_a_column_missing_from_a_select_is_reported(check: Check) -> None:
    _, err = check(("table: search_log", "select: SELECT * FROM search_log"), ("position: position", "position: rank"))
    assert err == [
        "11: monitors[0].rankings.position: home-recs: source lake: there is no column 'rank' in the rankings' SELECT; "
        "there are 'request_id', 'item_id', 'position', 'served_at'"
    ]


def test_missing_tables_are_reported_with_existing_ones(check: Check, engine: str) -> None:
    code, err = check(("table: search_log", "table: nosuch"), ("table: search_events", "table: search_event"))
    of_schemas = "" if engine in ("sqlite", "duckdb") else "; may this user use their schema?"
    assert code == 2
    assert err == [
        "8: monitors[0].rankings.table: home-recs: source lake: there is no table 'nosuch'; "
        f"there are 'search_events', 'search_log'{of_schemas}",
        "15: monitors[0].relevance.events.table: home-recs: source lake: there is no table 'search_event'; "
        f"did you mean 'search_events'? There are 'search_events', 'search_log'{of_schemas}",
    ]


def test_a_mistake_in_a_select_is_reported_at_its_key(check: Check) -> None:
    code, (said, *more) = check(("table: search_log", "select: SELECT itemid AS item_id FROM search_log"))
    assert (code, more) == (2, [])
    assert said.startswith("8: monitors[0].rankings.select: home-recs: source lake: ")
    assert "itemid" in said
    assert "^" not in said


def test_times_in_the_wrong_format_are_reported_at_their_keys(check: Check, engine: str) -> None:
    how = ZONES.get(engine, AS_WRITTEN)
    code, err = check(
        (f"served_at, {how}", "served_at, format: epoch_ms"), (f"occurred_at, {how}", "occurred_at, format: epoch_s")
    )
    assert code == 2
    assert [line.partition(": home-recs: source lake: ")[0] for line in err] == [
        "12: monitors[0].rankings.time",
        "19: monitors[0].relevance.events.time",
    ]
    for line, column in zip(err, ("served_at", "occurred_at"), strict=True):
        assert f"time column '{column}' holds '2026-10-01 12:00:00" in line
        zone = "; it has no zone, so declare e.g. timezone: UTC" * (engine != "clickhouse")
        assert line.endswith(f"remove its format{zone}") == (engine != "sqlite")


def test_a_missing_or_superfluous_zone_is_reported_at_its_key(check: Check, engine: str) -> None:
    if engine == "sqlite":
        return  # its times are text, whose zone is checked earlier
    if engine == "clickhouse":
        (said,) = check(("format: native", "timezone: UTC"))[1]
        assert said.endswith("it names its zone, so remove timezone: UTC")
        return
    code, (said, *more) = check((f"{{column: served_at, {AS_WRITTEN}}}", "served_at"))
    assert (code, more) == (2, [])
    assert said.startswith(
        "12: monitors[0].rankings.time: home-recs: source lake: time column 'served_at' holds '2026-"
    )
    assert said.endswith("it has no zone, so declare e.g. timezone: UTC")


@pytest.mark.parametrize("engine", ["duckdb"], indirect=True)
@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("item: item_id", "item: itemid", 'Binder Error: there is no column named "itemid"'),
        ("table: search_log", "table: nosuch", "Catalog Error: Table with name nosuch does not exist!"),
        ("table: search_log", "table: searchlog", 'does not exist! Did you mean "search_log"?'),
        (
            f"served_at, {AS_WRITTEN}",
            "served_at, format: epoch_ms",
            'an explicit cast is required, in: "served_at" >= ',
        ),
    ],
)
def test_logged_duckdb_errors_omit_the_statement_our_aliases_and_system_tables(
    check: Check, tmp_path: Path, before: str, after: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check((before, after))
    assert cli.run(["once", "-c", str(tmp_path / "rankmon.yaml")]) != 0
    said = capsys.readouterr().err
    assert told in said
    assert [part for part in ("LINE ", "^", '"r"', "pg_", "use their schema") if part in said] == []
