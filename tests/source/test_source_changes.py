"""A daemon's reads when the source's tables change while it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.errors import SourceError
from monitor.series.partials import Partials, to_partials
from monitor.series.readings import Answer
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.types import Monitor, Slice
from tests.source.test_source import assert_same
from tests.support.logs import (
    BUCKET,
    BUCKETS,
    END,
    START,
    Log,
    Style,
    column,
    events,
    judgments,
    moment,
    monitor,
    write,
)
from tests.support.postgres import carry_out

MOMENT = Style("timestamptz", "native", None, moment)
TEXT = Style("text", "%Y-%m-%dT%H:%M:%SZ", None, lambda micros: moment(micros).strftime("%Y-%m-%dT%H:%M:%SZ"))
RECIPES = {"events": events(MOMENT), "column": column(), "judgments": judgments()}
Reads = Pull | PushDown
WAYS = {"pull": Pull, "pushdown": PushDown}


def log() -> Log:
    """Four requests a bucket with events, judgments and a slice of 0 and 1."""
    made = Log()
    for n in range(4 * BUCKETS):
        name, at = str(n), START + n * BUCKET // 4
        made.show(name, [1, 2, 3, 4], at, device=("1", "0")[n % 2], query="q", grade=[0, 1, 2, 1])
        made.happen(name, 2, at + 5)
        made.happen(name, 3, at + 7, "purchase")
        made.happen(name, 9, at + 9)
    for item in (1, 3, 4):
        made.judge("q", item, item % 3)
    return made


def to(table: str, name: str, kind: str, using: str = "") -> str:
    """The statement that changes a column's type."""
    return f'ALTER TABLE {table} ALTER "{name}" TYPE {kind} {"USING " + using if using else ""}'


def watched(recipe: Any, style: Style = MOMENT) -> Monitor:
    """A monitor with one slice."""
    return monitor(recipe, style, ("ndcg@3", "mrr"), slices=(Slice("device", "device"),))


def reader(way: str, made: Monitor, url: str) -> Reads:
    """The reader of a monitor in that way."""
    return WAYS[way](made, Database("s", parse_url(url), 60))


def added_up(made: Monitor, answer: Answer) -> Partials:
    """The partials of an answer."""
    return to_partials(answer, made.bucket, dict.fromkeys(m.kernel for m in made.measures), made.slices, {})


def assert_reads_as_one_that_starts_now(way: str, made: Monitor, url: str, running: Reads) -> None:
    """Assert that a reader from before a change reads what a new reader does."""
    other, told = reader(way, made, url), ""
    try:
        expected = added_up(made, other.read(START, END))
    except SourceError as error:
        told = str(error)
    if told:
        with pytest.raises(SourceError) as found:
            running.read(START, END)
        assert str(found.value) == told
        return
    assert_same(added_up(made, running.read(START, END)), expected, "after the change")
    if isinstance(running, PushDown) and isinstance(other, PushDown):
        assert running.yields == other.yields


HALVES = to("rankings", "position", "numeric(9, 3)"), "UPDATE rankings SET position = 2.5 WHERE position = 2"
TRUTH = (to("rankings", "device", "boolean", "device = '1'"),)
CHANGES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = {
    "whole positions get halves": ((), HALVES, ("events", "column", "judgments")),
    "times lose their zone": ((), (to("rankings", "at", "timestamp"),), ("events", "column")),
    "a boolean becomes a number": (TRUTH, (to("rankings", "device", "integer", "position"),), ("events", "column")),
    "a boolean becomes text": (TRUTH, (to("rankings", "device", "text", "'tv'"),), ("events", "column")),
    "a number becomes a boolean": ((), TRUTH, ("events", "column")),
    "true grades become numbers": (
        (to("rankings", "grade", "boolean", "grade > 0"), to("judgments", "grade", "boolean", "grade > 0")),
        (to("rankings", "grade", "integer", "position"), to("judgments", "grade", "integer", "item")),
        ("column", "judgments"),
    ),
    "numbers of items become text": (
        (),
        (to("rankings", "item", "text"), to("events", "item", "text")),
        ("events", "judgments"),
    ),
    "items of the events alone become text": ((), (to("events", "item", "text"),), ("events",)),
    "the value of an event becomes text": ((), (to("events", "value", "text"),), ("events",)),
}
CASES = [
    (what, recipe, way)
    for what, (_, _, recipes) in CHANGES.items()
    for recipe in recipes
    for way in (("pull",) if recipe == "judgments" else WAYS)
]


@pytest.mark.parametrize(("what", "recipe", "way"), CASES)
def test_a_changed_column_type_takes_effect_in_the_next_read_on_postgresql(
    shared_url: str, what: str, recipe: str, way: str
) -> None:
    before, after, _ = CHANGES[what]
    write(shared_url, log(), MOMENT)
    carry_out(shared_url, *before)
    made = watched(RECIPES[recipe])
    running = reader(way, made, shared_url)
    running.read(START, END)
    carry_out(shared_url, *after)
    assert_reads_as_one_that_starts_now(way, made, shared_url, running)


@pytest.mark.parametrize(("recipe", "way"), [("column", "pull"), ("column", "pushdown"), ("judgments", "pull")])
def test_a_changed_column_type_takes_effect_in_the_next_read_on_duckdb(tmp_path: Path, recipe: str, way: str) -> None:
    pytest.importorskip("duckdb_engine")
    url = f"duckdb:///{tmp_path / 'log.duckdb'}"
    shown = "'q' query, n % 2 = 0 device, true grade, TIMESTAMPTZ '2026-01-01 12:00:00Z' AS \"at\""
    requests = f'SELECT n::text request, i item, i::integer "position", {shown} FROM range(9) a(n), range(1, 5) b(i)'
    carry_out(
        url,
        f"CREATE TABLE rankings AS {requests}",
        "CREATE TABLE judgments AS SELECT 'q' query, i item, i > 2 grade FROM range(1, 5) b(i)",
    )
    made = watched(RECIPES[recipe])
    running = reader(way, made, url)
    running.read(START, END)
    carry_out(
        url,
        to("rankings", "grade", "integer", "item"),
        to("judgments", "grade", "integer", "item"),
        to("rankings", "device", "integer", "7"),
        *HALVES,
    )
    assert_reads_as_one_that_starts_now(way, made, url, running)


@pytest.mark.parametrize(
    "made_anew",
    [
        "CREATE VIEW events AS SELECT * FROM past",
        "CREATE TABLE events AS SELECT *, 7 AS rowid FROM past",
    ],
)
def test_events_are_each_counted_after_sqlite_loses_their_row_ids(tmp_path: Path, made_anew: str) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    write(url, log(), TEXT)
    made = watched(events(TEXT), TEXT)
    running = reader("pull", made, url)
    numbered = added_up(made, running.read(START, END))
    carry_out(url, "ALTER TABLE events RENAME TO past", made_anew)
    assert_same(added_up(made, running.read(START, END)), numbered, "after the change")
    assert_same(added_up(made, reader("pull", made, url).read(START, END)), numbered, "by a new reader")


@pytest.mark.parametrize("way", WAYS)
def test_a_repaired_source_is_read_as_before(shared_url: str, way: str, caplog: pytest.LogCaptureFixture) -> None:
    write(shared_url, log(), MOMENT)
    made = watched(RECIPES["events"])
    running = reader(way, made, shared_url)
    before = added_up(made, running.read(START, END))
    for harm, remedy, told in (
        ('RENAME COLUMN "device" TO "gadget"', 'RENAME COLUMN "gadget" TO "device"', "looked for in the rankings"),
        ('ALTER "at" TYPE timestamp', 'ALTER "at" TYPE timestamptz', "it has no zone"),
    ):
        carry_out(shared_url, "SET TimeZone = 'UTC'", f"ALTER TABLE rankings {harm}")
        with pytest.raises(SourceError, match=told):
            running.read(START, END)
        carry_out(shared_url, "SET TimeZone = 'UTC'", f"ALTER TABLE rankings {remedy}")
        assert_same(added_up(made, running.read(START, END)), before, "repaired")
    with caplog.at_level("INFO"):
        carry_out(shared_url, to("rankings", "position", "bigint"))
        running.read(START, END)
        running.read(START, END)
    assert caplog.text.count("monitor m: type changed: rankings.position") == 1


@pytest.mark.parametrize("way", WAYS)
def test_checking_types_costs_the_pull_one_statement_and_push_down_none(shared_url: str, way: str) -> None:
    write(shared_url, log(), MOMENT)
    running, sent = reader(way, watched(RECIPES["events"]), shared_url), list[str]()
    running.read(START, END)
    engine = running.database._connected()
    sa.event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    running.read(START, END)
    assert len(sent) == {"pull": 4, "pushdown": 3}[way], sent


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "replaced",
    [
        ("TRUNCATE events", "INSERT INTO events SELECT * FROM kept"),
        ("TRUNCATE rankings", "INSERT INTO rankings SELECT * FROM kept_rankings"),
        (to("events", "value", "numeric(9, 3)"),),
        ("ALTER TABLE events RENAME TO past", "CREATE TABLE events AS SELECT * FROM kept"),
    ],
)
def test_a_table_refilled_while_a_read_waits_is_not_taken_for_empty(
    shared_url: str, way: str, replaced: Sequence[str]
) -> None:
    carry_out(shared_url, *(f"DROP TABLE IF EXISTS {name}" for name in ("past", "kept", "kept_rankings")))
    write(shared_url, log(), MOMENT)
    carry_out(
        shared_url,
        "CREATE TABLE kept AS SELECT * FROM events",
        "CREATE TABLE kept_rankings AS SELECT * FROM rankings",
    )
    made = watched(RECIPES["events"])
    running = reader(way, made, shared_url)
    before = added_up(made, running.read(START, END))
    engine = sa.create_engine(shared_url)
    with ThreadPoolExecutor(1) as other, engine.connect() as owner:
        for statement in replaced:
            owner.exec_driver_sql(statement)
        waiting = other.submit(running.read, START, END)
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE "
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watcher:
            while not watcher.exec_driver_sql(f"{waits} datname = current_database())").scalar():
                assert not waiting.done(), "it has not waited"
                time.sleep(0.01)
        owner.commit()
        assert_same(added_up(made, waiting.result(20)), before, "after the owner is done")
    engine.dispose()


def test_a_read_whose_tables_keep_being_replaced_reports_it(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(shared_url, log(), MOMENT)
    running = reader("pull", watched(RECIPES["events"]), shared_url)
    monkeypatch.setattr("monitor.source.dialects.postgresql._REPLACED", sa.true())
    with pytest.raises(SourceError, match=r"source s: tables were replaced each time.*refill them less often") as found:
        running.read(START, END)
    assert found.value.reason == "timeout"


def test_a_postgresql_lookalike_without_the_catalog_is_still_read(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(shared_url, log(), MOMENT)
    made = watched(RECIPES["events"])
    expected = added_up(made, reader("pull", made, shared_url).read(START, END))
    monkeypatch.setattr("monitor.source.dialects.postgresql._REPLACED", sa.literal_column("of_no_such_function()"))
    monkeypatch.setattr("monitor.source.dialects.postgresql._TELLS_REPLACED", sa.select(sa.false(), sa.true()))
    assert_same(added_up(made, reader("pull", made, shared_url).read(START, END)), expected, "without the catalog")


@pytest.mark.parametrize("way", WAYS)
def test_columns_that_no_longer_fit_are_reported_on_duckdb(tmp_path: Path, way: str) -> None:
    pytest.importorskip("duckdb_engine")
    url = f"duckdb:///{tmp_path / 'log.duckdb'}"
    shown = "1 item, 1 \"position\", true grade, 'tv' device, 'q' query, TIMESTAMPTZ '2026-01-01 12:00:00Z' AS \"at\""
    carry_out(url, f"CREATE TABLE rankings AS SELECT 'r' request, {shown}")
    running = reader(way, watched(column()), url)
    running.read(START, END)
    for harm, reason, told in (
        (to("rankings", "position", "text"), "data", "column 'position' is text, and positions are numbers"),
        ('ALTER TABLE rankings DROP "position"', "missing", "looked for in the rankings, rankings; compare the table"),
    ):
        carry_out(url, harm)
        with pytest.raises(SourceError, match=told) as found:
            running.read(START, END)
        assert found.value.reason == reason
