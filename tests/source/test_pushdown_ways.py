"""Choosing pull or push-down, falling back when push-down fails, and storing the same numbers either way."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mssql, mysql, oracle, postgresql, sqlite

from monitor.cli import run
from monitor.cli.commands.check_config import key_of
from monitor.database_url import parse_url
from monitor.errors import SourceError, TooMany
from monitor.measures.summable import grades, obstacle
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, to_partials
from monitor.series.readings import Aggregates, Reading
from monitor.service.cycle import BatchSize, read_partials, run_backfill
from monitor.source.choice import choose, explain_choice, open_source
from monitor.source.dialects import dialect_of, known_dialects
from monitor.source.dialects.base import Dialect
from monitor.source.dialects.postgresql import PostgreSQL
from monitor.source.engine import Database, Reader
from monitor.source.parallel import ParallelReader
from monitor.source.prepared import Ready
from monitor.source.pull import Freshness, Pull
from monitor.source.pushdown import TRIAL, PushDown, why_not
from monitor.source.queries import Queries
from monitor.source.summing import CONTRARY, Summing
from monitor.types import Column, EventRule, Events, Monitor, Position, Rankings, Relation, Slice, TimeColumn
from tests.source.test_pushdown import both
from tests.source.test_source import assert_same
from tests.support.ending import raised_at_the_end
from tests.support.logs import (
    BUCKET,
    BUCKETS,
    CLICKS,
    END,
    MICROS,
    START,
    Log,
    Style,
    column,
    events,
    judgments,
    moment,
    monitor,
    styles,
    write,
)
from tests.support.monitors import new_store
from tests.support.postgres import PostgresServer
from tests.support.tallies import rows

MOMENT = Style("timestamptz", "native", None, moment)
EPOCH = Style("bigint", "epoch_ms", None, lambda micros: micros // 1000)
LATE = END + 10 * 86400


def small(recipe: Any = None, **changes: Any) -> Monitor:
    """A monitor with click labels and one slice."""
    settings: dict[str, Any] = {"slices": (Slice("device", "device"),), "measures": ("ndcg@3", "mrr")}
    return monitor(events(EPOCH) if recipe is None else recipe, EPOCH, **(settings | changes))


def fill(url: str, odd: int = 0, style: Style = EPOCH) -> None:
    """A clean log of three requests a bucket; in the first `odd` buckets, one list has a clicked item twice."""
    log = Log()
    for b in range(BUCKETS):
        for n in range(3):
            at = START + b * BUCKET + 10 * n
            items = [1, 2, 2] if n == 0 and b < odd else [1, 2, 3]
            log.show(f"r{b}-{n}", items, at, device=("tv", "pc", None)[n], country="x", query="q", grade=[0, 1, 2])
            log.happen(f"r{b}-{n}", 2, at + 5)
            log.happen(f"r{b}-{n}", 9, at + 7)
    write(url, log, style, grade="double precision")


def source(url: str, monitored: Monitor) -> Pull | PushDown:
    """The reader that the monitor gets."""
    return open_source(monitored, Database("s", parse_url(url), 60))


# ---- the choice --------------------------------------------------------------------------------------------------


def test_auto_pushes_down_only_to_databases_tested_against_the_pull() -> None:
    native = TimeColumn("at")
    made = small(replace(events(EPOCH), time=native))
    made = replace(made, rankings=replace(made.rankings, time=native))
    chosen = {d: choose(made, d).way for d in ("postgresql", "duckdb", "mysql", "mariadb", "clickhousedb", "trino")}
    assert chosen == dict.fromkeys(chosen, "pushdown") | dict.fromkeys(("trino", "mysql", "mariadb"), "pull")
    assert "not tested on it" in choose(made, "trino").reason
    assert choose(replace(made, engine="pushdown"), "trino").way == "pushdown"
    assert "does not know" in choose(made, "firebird").reason


def test_auto_pulls_where_sums_need_sorting_and_engine_overrides_it() -> None:
    assert "sums by sorting" in choose(small(), "mariadb").reason
    assert choose(small(), "sqlite").way == "pull"
    assert choose(small(engine="pushdown"), "sqlite").way == "pushdown"
    assert choose(small(engine="pull"), "postgresql").way == "pull"


@pytest.mark.parametrize(
    ("recipe", "measure", "reason"),
    [
        (judgments(), "ndcg@3", "fingerprint"),
        (events(EPOCH, combine="sum"), "ndcg@3", "combine: sum"),
        (events(EPOCH, rules=(EventRule(None, "dwell"),)), "ndcg@3", "own value"),
        (column(), "map@3", "map@3: average precision"),
        (column(), "err(max_grade=3)@3", "err multiplies"),
        (column(), "ndcg(gain={0:1,1:2})@3", "items of grade 0 have a gain"),
        (column(max_grade=100), "ndcg@3", "13 grades"),
        (events(EPOCH), "ndcg(gain={1:1,2:2})@3", "not every measure accepts every grade"),
        (column(), "ndcg@3", ""),
        (events(EPOCH), "ndcg(gain=exp2)@3", ""),
    ],
)
def test_obstacle_names_what_sql_cannot_sum(recipe: Any, measure: str, reason: str) -> None:
    found = obstacle(small(recipe, measures=(measure,)))
    assert reason in found
    assert bool(reason) == bool(found)


@pytest.mark.parametrize(
    ("recipe", "measures", "expected"),
    [
        (column(max_grade=3), ("ndcg",), (1, 2, 3)),
        (column(), ("ndcg",), (1, 2, 3, 4, 5)),
        (column(), ("ndcg(gain={0:0,1:1,4:3})", "mrr"), (1, 4)),
        (events(EPOCH), ("ndcg",), (1, 2, 3)),
        (events(EPOCH, rules=(EventRule(0, "view"), EventRule(0.5, "click"))), ("ndcg",), (0.5,)),
    ],
)
def test_push_down_counts_each_grade_that_has_a_gain(
    recipe: Any, measures: tuple[str, ...], expected: tuple[float, ...]
) -> None:
    assert grades(small(recipe, measures=measures)) == expected


@pytest.mark.parametrize(
    ("rankings", "labels", "dialect", "reason"),
    [
        (TimeColumn("at"), TimeColumn("at"), "postgresql", ""),
        (TimeColumn("at", "epoch_s"), TimeColumn("at", "epoch_ms"), "postgresql", ""),
        (TimeColumn("at"), TimeColumn("at", "epoch_ms"), "postgresql", "in different ways"),
        (TimeColumn("at"), TimeColumn("at", timezone="UTC"), "postgresql", "in different ways"),
        (TimeColumn("at", "%Y-%m-%d %H:%M:%S", "UTC"), None, "postgresql", "is text written as"),
        (TimeColumn("at", "%Y-%m-%d %H:%M:%S", "UTC"), None, "sqlite", ""),
        (TimeColumn("at", "%d.%m.%Y %H:%M:%S", "UTC"), None, "sqlite", "is text written as"),
        (TimeColumn("at", "%Y-%m-%d %H:%M:%S", "Europe/Berlin"), None, "sqlite", "is text written as"),
        (TimeColumn("at"), None, "sqlite", "is text to SQLite"),
    ],
)
def test_push_down_names_time_formats_the_database_cannot_compute_with(
    rankings: TimeColumn, labels: TimeColumn | None, dialect: str, reason: str
) -> None:
    made = small(column() if labels is None else replace(events(EPOCH), time=labels))
    found = why_not(replace(made, rankings=replace(made.rankings, time=rankings)), dialect)
    assert reason in found
    assert bool(reason) == bool(found)


def test_the_engine_setting_does_not_change_the_definition_id() -> None:
    ways = [small(engine=engine) for engine in ("auto", "pull", "pushdown")]
    assert len({tuple(d.id for d in made.definitions) for made in ways}) == 1


# ---- the store -----------------------------------------------------------------------------------------------------


def test_pull_and_push_down_store_the_same_rows(database_url: str, tmp_path: Path) -> None:
    fill(database_url, odd=1)
    found = []
    for engine in ("pull", "pushdown"):
        made = small(engine=engine)
        store = new_store(f"sqlite:///{tmp_path / engine}.db", 30)
        with store.hold(made.name) as lease:
            *_, done = run_backfill(made, LATE, (START, END), source(database_url, made), store, lease, BatchSize())
        assert done.stored == BUCKETS
        found.append(rows(store, "progress", "monitors"))
        store.close()
    assert found[0] == found[1]
    assert any(found[0].values())


class Vast:
    """A source whose database sums eight million rows for each read."""

    def freshness(self, since: float, now: float) -> Freshness:
        return Freshness(now, 0)

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        return [0] * len(spans)

    def read(self, since: int, until: int) -> Aggregates:
        nothing = np.zeros((0, len(FIELDS)))
        return Aggregates(
            *(since, until),
            bucket=np.zeros(0, np.int64),
            slices={"device": []},
            traffic=np.zeros((0, len(TRAFFIC_FIELDS))),
            measures={m.kernel: nothing for m in small().measures},
            refused={},
            summed=8_000_000,
        )


def test_batch_size_follows_the_rows_the_database_summed(tmp_path: Path) -> None:
    made, batch_size = small(), BatchSize(rows=200_000, buckets=4)
    store = new_store(f"sqlite:///{tmp_path / 'store.db'}", 30)
    with store.hold(made.name) as lease:
        *_, done = run_backfill(made, LATE, (START, END), Vast(), store, lease, batch_size)
    assert (done.stored, done.rows, batch_size.buckets) == (BUCKETS, 0, 2)
    store.close()


# ---- plans ---------------------------------------------------------------------------------------------------------


def test_a_short_range_of_a_long_history_is_read_by_index(postgres_url: str) -> None:
    log = Log()
    log.show("r0", [1], START)
    write(postgres_url, log, EPOCH, index=True)
    with sa.create_engine(postgres_url).begin() as connection:
        rows = f"{START * 1000} - n * 60000::bigint FROM generate_series(1, 100000) n"
        for table, column, value in (("rankings", "position", "1"), ("events", "type", "'click'")):
            wanted = f"SELECT 'r' || n, 1, {value}, {rows}"
            connection.exec_driver_sql(f'INSERT INTO {table} (request, item, {column}, "at") {wanted}')
        connection.exec_driver_sql("ANALYZE")
    made = small(events(EPOCH, attribution=BUCKET))
    with source(postgres_url, made).database.reading() as reader:  # type: ignore[union-attr]
        reader.prepare_to_sum()
        database = Database("s", parse_url(postgres_url), 60)
        for statement in explain_choice(made, database, START - BUCKET, START)[1]:
            plan = reader._connection.exec_driver_sql(f"EXPLAIN {statement}".replace("%", "%%")).scalars().all()
            scans = [line for line in plan if " on rankings " in line or " on events " in line]
            assert scans
            assert [line for line in scans if "Seq Scan" in line] == []


# ---- odd buckets ---------------------------------------------------------------------------------------------------


def test_only_buckets_with_oddities_are_read_row_by_row(database_url: str) -> None:
    fill(database_url, odd=2)
    answer = source(database_url, small(engine="pushdown")).read(START, END)
    assert isinstance(answer, Aggregates)
    assert [(r.since, r.until) for r in answer.read] == [(START, START + 2 * BUCKET)]
    assert set(answer.bucket.tolist()) == {START + 2 * BUCKET, START + 3 * BUCKET}
    assert answer.rows < sum(r.rows for r in answer.read)


def statements_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that collects the summing statements sent from now on."""
    sent: list[str] = []
    whole = Reader.rows_of

    def noted(self: Reader, query: Any, most: int) -> Any:
        sent.append(query.text if isinstance(query, Ready) else str(query.compile(dialect=self.dialect)))
        return whole(self, query, most)

    monkeypatch.setattr(Reader, "rows_of", noted)
    return sent


CONTRARY_TO_PLAIN = {
    "an item that was logged twice": "INSERT INTO rankings SELECT * FROM rankings WHERE request = 'r2-1' AND item = 2",
    "a row that was served later": 'UPDATE rankings SET "at" = "at" + 1000 WHERE request = \'r2-1\' AND item = 3',
    "a row of another slice": "UPDATE rankings SET device = 'tv' WHERE request = 'r2-1' AND item = 3",
    "a row of no slice": "UPDATE rankings SET device = NULL WHERE request = 'r2-1' AND item = 3",
    "a row without an item": "UPDATE rankings SET item = NULL WHERE request = 'r2-1' AND item = 3",
    "a row without a position": "UPDATE rankings SET position = NULL WHERE request = 'r2-1' AND item = 3",
    "a row before the first place": "UPDATE rankings SET position = 0 WHERE request = 'r2-1' AND item = 3",
}


@pytest.mark.parametrize("change", CONTRARY_TO_PLAIN.values(), ids=CONTRARY_TO_PLAIN)
def test_one_contrary_row_disables_the_fast_path_for_a_day(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    fill(postgres_url)
    made, sent, clock = small(engine="pushdown"), statements_of(monkeypatch), Clock()
    monkeypatch.setattr("monitor.source.pushdown.time", clock)
    reader = source(postgres_url, made)
    clean = reader.read(START, END)
    assert isinstance(clean, Aggregates)
    assert ["last_at" in statement for statement in sent] == [False]

    with sa.create_engine(parse_url(postgres_url)).begin() as writing:
        assert writing.exec_driver_sql(change).rowcount == 1
    sent.clear()
    kernels = dict.fromkeys(m.kernel for m in made.measures)
    with caplog.at_level("INFO"):
        found = read_partials(made, reader, START, END, {})
    assert ["last_at" in statement for statement in sent] == [False, True], "asked again, without assumptions"
    assert caplog.text.count("fast path disabled for 24 h") == 1
    pulled = Pull(made, reader.database).read(START, END)
    assert_same(found, to_partials(pulled, made.bucket, kernels, made.slices, {}), change)

    sent.clear()
    again = reader.read(START, END)
    assert isinstance(again, Aggregates)
    assert ["last_at" in statement for statement in sent] == [True], "the contrary row is remembered"
    others = [at != START + 2 * BUCKET for at in clean.bucket.tolist()]
    assert clean.traffic[others].tolist() == again.traffic[again.bucket != START + 2 * BUCKET].tolist()
    sent.clear()
    clock.now += 86_400
    reader.read(START, END)
    assert ["last_at" in statement for statement in sent] == [False, True], "the fast path is tried again"


def test_the_fast_path_covers_requests_around_the_ends_of_a_read(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    for n, at in enumerate((START - 1, START, START + BUCKET - 1, START + BUCKET)):
        log.show(f"r{n}", [1, 2, 3], at, device="tv")
        log.happen(f"r{n}", 2, at + 5)
    write(postgres_url, log, EPOCH)
    made, sent = small(events(EPOCH, attribution=300), engine="pushdown"), statements_of(monkeypatch)
    reader = source(postgres_url, made)
    found = reader.read(START, START + BUCKET)
    assert isinstance(found, Aggregates)
    assert (found.traffic[:, 0].tolist(), found.unmatched) == ([2.0], {START: 0})
    assert ["last_at" in statement for statement in sent] == [False]

    one_that_straddles = 'UPDATE rankings SET "at" = "at" + 1000 WHERE request = \'r0\' AND item = 3'
    with sa.create_engine(parse_url(postgres_url)).begin() as writing:
        writing.exec_driver_sql(one_that_straddles)
    sent.clear()
    assert reader.read(START, START + BUCKET).traffic[:, 0].tolist() == [2.0]  # type: ignore[union-attr]
    assert ["last_at" in statement for statement in sent] == [False, True]


@pytest.mark.parametrize("reason", ["timeout", "resources"])
def test_a_bucket_too_expensive_for_the_fast_path_is_read_by_counting(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    fill(postgres_url)
    made = small(events(EPOCH, attribution=300))
    reader, whole = source(postgres_url, made), Reader.rows_of

    def too_much(self: Reader, query: Any, most: int) -> Any:
        text = query.text if isinstance(query, Ready) else str(query.compile(dialect=self.dialect))
        if f"{CONTRARY} AS bucket" in text:
            raise SourceError("it took more than it may", reason)
        return whole(self, query, most)

    monkeypatch.setattr(Reader, "rows_of", too_much)
    with pytest.raises(TooMany, match="it took more than it may"):
        reader.read(START, START + 2 * BUCKET)
    assert "fast path disabled" not in caplog.text, "a shorter range may succeed"
    with caplog.at_level("INFO"):
        kernels = [m.kernel for m in made.measures]
        found = read_partials(made, reader, START, START + BUCKET, {})
    assert found.traffic[START, "", ""][0] == 3
    assert {*found.measures} == {str(k) for k in kernels}
    assert "reads are slower: a bucket could not" in caplog.text
    assert isinstance(reader.read(START, END), Aggregates), "by counting"


def test_parallel_reads_log_the_disabled_fast_path_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(postgres_url, odd=BUCKETS)
    reader, together = source(postgres_url, small()), threading.Barrier(2, timeout=20)
    assert isinstance(reader, PushDown)
    whole = Reader.rows_of

    def at_once(self: Reader, query: Any, most: int) -> Any:
        found = whole(self, query, most)
        if any(row["bucket"] == CONTRARY for row in found):
            together.wait()
        return found

    monkeypatch.setattr(Reader, "rows_of", at_once)
    with caplog.at_level("INFO"):
        answer = ParallelReader(reader, cut_from=0, margins=0).read(START, END)
    assert isinstance(answer, tuple)
    assert [len(part.read) for part in answer if isinstance(part, Aggregates)] == [1, 1], "every bucket is odd"
    assert caplog.text.count("fast path disabled") == 1


def test_the_choice_lists_the_grades_counted_in_a_column() -> None:
    reason = choose(replace(small(), recipe=Column("grade")), "postgresql").reason
    assert "; buckets with grades other than 0, 1, 2, 3, 4, 5 are read row by row" in reason
    assert "grades" not in choose(small(), "postgresql").reason


def test_auto_goes_back_to_the_pull_where_most_buckets_are_odd(postgres_url: str) -> None:
    fill(postgres_url, odd=BUCKETS)
    reader = source(postgres_url, small())
    assert isinstance(reader, PushDown)
    for _ in range(-(-TRIAL // BUCKETS)):
        assert isinstance(reader.read(START, END), Aggregates)
    assert "24 of 24 buckets" in reader.yields
    assert not isinstance(reader.read(START, END), Aggregates)


def test_auto_goes_back_to_the_pull_where_the_statement_fails(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(postgres_url)
    monkeypatch.setattr(Summing, "cells", lambda *_: sa.select(sa.literal_column("no_such_function(1)")))
    reader = source(postgres_url, small())
    assert isinstance(reader, PushDown)
    assert len(reader.read(START, END).served) == 3 * BUCKETS  # type: ignore[union-attr]
    assert "no_such_function" in reader.yields
    assert "for 24 h, reading row by row: the database could not sum" in caplog.text
    with pytest.raises(SourceError, match="no_such_function"):
        source(postgres_url, small(engine="pushdown")).read(START, END)


class Clock:
    """A monotonic clock set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(("said", "hours"), [("no_such_function(1)", 24), ("1 / (count(*) - count(*))", 1)])
def test_failed_push_down_is_retried_after_its_pause(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str, hours: int
) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    monkeypatch.setattr("monitor.source.pushdown.time", clock)
    fill(postgres_url)
    reader = source(postgres_url, small())
    with monkeypatch.context() as patch:
        patch.setattr(Summing, "cells", lambda *_: sa.select(sa.literal_column(said)))
        assert not isinstance(reader.read(START, END), Aggregates)
    clock.now = hours * 3600 - 1.0
    assert not isinstance(reader.read(START, END), Aggregates)
    clock.now += 1
    assert isinstance(reader.read(START, END), Aggregates)
    assert f"push-down paused for {hours} h" in caplog.text
    assert caplog.messages[-1] == "monitor m: push-down resumed"


def test_push_down_is_retried_on_odd_buckets_a_day_later(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("monitor.source.pushdown.time", clock)
    fill(postgres_url, odd=BUCKETS)
    reader = source(postgres_url, small())
    for _ in range(-(-TRIAL // BUCKETS)):
        assert isinstance(reader.read(START, END), Aggregates)
    assert not isinstance(reader.read(START, END), Aggregates)
    clock.now = 24 * 3600
    assert isinstance(reader.read(START, END), Aggregates)
    assert reader.yields == "", "it needs as many buckets as the first time to decide"  # type: ignore[union-attr]


@pytest.mark.parametrize("state", ["57014", "57P01", "53200", "40001", "40P01"])
def test_transient_errors_do_not_end_push_down(postgres_url: str, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    fill(postgres_url)
    with sa.create_engine(postgres_url).begin() as connection:
        raised = f"BEGIN RAISE EXCEPTION 'as it happens' USING ERRCODE = '{state}'; END"
        connection.exec_driver_sql(f"CREATE FUNCTION fail() RETURNS int LANGUAGE plpgsql AS $$ {raised} $$")
    reader = source(postgres_url, small())
    with monkeypatch.context() as patch:
        patch.setattr(Summing, "cells", lambda *_: sa.select(sa.literal_column("fail()")))
        error = failure(reader, START + BUCKET)
    assert error.reason in ("timeout", "connect", "resources")
    assert reader.yields == ""  # type: ignore[union-attr]
    assert isinstance(reader.read(START, END), Aggregates)


def test_wrong_data_does_not_end_push_down(postgres_url: str) -> None:
    fill(postgres_url)
    native = small(events(EPOCH._replace(form="epoch_s")))
    reader = source(postgres_url, native)
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql('ALTER TABLE events ALTER "at" TYPE text')
    assert failure(reader).reason == "data"
    assert reader.yields == ""  # type: ignore[union-attr]
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql('ALTER TABLE events ALTER "at" TYPE bigint USING "at"::bigint / 1000')
    assert isinstance(reader.read(START, END), Aggregates)


def test_engine_pushdown_reports_why_it_cannot_serve_a_monitor(postgres_url: str) -> None:
    fill(postgres_url)
    bound = small(measures=("map@3",), engine="pushdown")
    reader = source(postgres_url, bound)
    for way in (reader.read, partial(explain_choice, bound, reader.database)):
        with pytest.raises(SourceError, match="engine: pushdown cannot serve this monitor: map@3: average precision"):
            way(START, END)


@pytest.mark.parametrize("kind", ["uuid", "jsonb"])
def test_columns_without_an_order_are_read_row_by_row(postgres_url: str, kind: str) -> None:
    fill(postgres_url)
    value = "gen_random_uuid()" if kind == "uuid" else "'{}'::jsonb"
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE {kind} USING {value}")
    reader = source(postgres_url, small())
    assert not isinstance(reader.read(START, END), Aggregates)
    assert f"'device' is {kind}" in reader.yields  # type: ignore[union-attr]
    choice, found = explain_choice(small(), reader.database, START, END)
    assert (choice.way, len(found)) == ("pull", 2)
    assert f"'device' is {kind}" in choice.reason


@pytest.mark.parametrize(
    ("kind", "remedy"), [("jsonb", ", or engine: auto"), ("uuid", ", or engine: auto"), ("json", "")]
)
def test_engine_pushdown_offers_a_cast_for_columns_without_an_order(postgres_url: str, kind: str, remedy: str) -> None:
    fill(postgres_url)
    value = "gen_random_uuid()" if kind == "uuid" else f"'{{}}'::{kind}"
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE {kind} USING {value}")
    error = failure(source(postgres_url, small(engine="pushdown")))
    text = f"source s: column 'device' is {kind}, which has no smallest value; use `device::text` in a `select:`"
    assert str(error) == f"{text}{remedy}"
    columns = 'request, item, position, "at", query, device::text AS device, country'
    own = replace(small().rankings, relation=Relation(select=f"SELECT {columns} FROM rankings"))
    assert isinstance(source(postgres_url, small(engine="pushdown", rankings=own)).read(START, END), Aggregates)


def test_regclass_slices_are_left_to_the_pull(postgres_url: str) -> None:
    fill(postgres_url)
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rankings ALTER device TYPE regclass USING 'pg_class'::regclass")
    with pytest.raises(SourceError, match="column 'device' is a name of the catalogue's, which has no smallest value"):
        source(postgres_url, small(engine="pushdown")).read(START, END)
    found = to_partials(source(postgres_url, small()).read(START, END), BUCKET, [], small().slices, {})
    assert {value for _, dimension, value in found.traffic if dimension} == {"pg_class"}


@pytest.mark.parametrize("way", ["pull", "pushdown"])
@pytest.mark.parametrize("value", ["infinity", "0044-03-15 BC"])
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_dates_outside_pythons_range_are_refused_with_a_remedy(
    shared_url: str, kind: str, value: str, way: str
) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE {kind} USING '{value}'")
    error = failure(source(shared_url, small(engine=way)))
    assert error.reason == "data"
    assert str(error).endswith(
        "; a date, such as one to slice by, is infinite or out of range: use it as text in a `select:`, "
        "e.g. `updated_on::text`"
    )


def test_zero_and_negative_zero_are_one_slice(shared_url: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        signed = "CASE device WHEN 'tv' THEN '-0' WHEN 'pc' THEN '0' ELSE 'NaN' END::float8"
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE float8 USING {signed}")
    for way in ("pull", "pushdown"):
        answer = source(shared_url, small(engine=way)).read(START, END)
        tally = to_partials(answer, BUCKET, [], small().slices, {})
        assert {(start, value): int(t[0]) for (start, dimension, value), t in tally.traffic.items() if dimension} == {
            (START + b * BUCKET, value): n for b in range(BUCKETS) for value, n in (("0.0", 2), ("nan", 1))
        }


@pytest.mark.parametrize("kind", ["float8", "numeric"])
@pytest.mark.parametrize("way", ["pull", "pushdown"])
def test_a_request_with_nan_in_every_row_is_not_mixed(shared_url: str, kind: str, way: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE {kind} USING 'NaN'")
        connection.exec_driver_sql("UPDATE rankings SET country = NULL WHERE item = 2")
    monitored = small(engine=way, slices=(Slice("device", "device"), Slice("land", "country")))
    tally = to_partials(source(shared_url, monitored).read(START, END), BUCKET, [], monitored.slices, {})
    assert {v.lower() for _, d, v in tally.traffic if d == "device"} == {"nan"}
    assert not tally.refused


def both_alike(url: str, monitored: Monitor) -> Any:
    """The result of pull and push-down, after checking that they agree."""
    database = Database("s", parse_url(url), 60)
    one, other, buckets = both(monitored, database, START, END)
    database.close()
    assert_same(one, other, "both")
    assert buckets > 0
    return one


def test_rule_minimums_compare_with_reals_as_the_driver_reads_them(shared_url: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE events ALTER value TYPE real USING 0.9")
    for least, number in ((0.9, 3 * BUCKETS), (0.90000001, 0)):
        recipe = events(EPOCH, rules=(EventRule(1, "click", least),))
        found = both_alike(shared_url, small(recipe))
        assert sum(t[TRAFFIC_FIELDS.index("events")] for (_, d, _), t in found.traffic.items() if not d) == number


def test_the_largest_integer_position_has_a_rank(shared_url: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql("UPDATE rankings SET position = 2147483647 WHERE item = 2")
    rankings = replace(small().rankings, position=Position("position", 0))
    both_alike(shared_url, small(rankings=rankings))


def test_bigint_ids_compared_with_floats_are_refused(shared_url: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE events ALTER item TYPE double precision")
    for way in ("pull", "pushdown"):
        with pytest.raises(
            SourceError, match=r"events\.item is double precision, by which large ids are alike"
        ) as caught:
            source(shared_url, small(engine=way)).read(START, END)
        assert "item of rankings and labels cannot be compared: rankings.item is bigint" in str(caught.value)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rankings ALTER item TYPE integer")
    found = both_alike(shared_url, small())
    assert sum(t[TRAFFIC_FIELDS.index("events")] for (_, d, _), t in found.traffic.items() if not d) == 3 * BUCKETS


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("position TYPE text", "column 'position' is text, and positions are numbers; take CAST(position AS integer)"),
        ("item TYPE bigint[] USING ARRAY[item]", "column 'item' has arrays or other compound values, not one"),
        ("at TYPE real", "time column 'at' is real, which rounds the seconds of today to 128; log it as whole numbers"),
    ],
)
def test_columns_of_the_wrong_type_are_named_with_a_remedy(shared_url: str, change: str, told: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER {change}")
    for way in ("pull", "pushdown"):
        with pytest.raises(SourceError) as caught:
            source(shared_url, small(engine=way)).read(START, END)
        assert told in str(caught.value)
        column = told.split("'")[1]
        assert key_of(small(), str(caught.value)) == ("rankings", "time" if column == "at" else column)


def test_both_ways_count_an_event_after_a_clock_change_as_unmatched(shared_url: str) -> None:
    zone = "Europe/Berlin"
    with sa.create_engine(shared_url).begin() as connection:
        for table in ("rankings", "events"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
        connection.exec_driver_sql("CREATE TABLE rankings (request text, item int, position int, at timestamp)")
        connection.exec_driver_sql("CREATE TABLE events (request text, item int, at timestamp, type text)")
        connection.exec_driver_sql("INSERT INTO rankings VALUES ('a', 1, 1, '2025-10-26 02:56:46')")
        connection.exec_driver_sql("INSERT INTO events VALUES ('a', 1, '2025-10-26 03:02:16', 'click')")
    local, since = TimeColumn("at", timezone=zone), int(datetime(2025, 10, 26, 2, tzinfo=UTC).timestamp())
    recipe = replace(events(EPOCH, value=None, rules=(EventRule(1, "click"),), attribution=900), time=local)
    rankings = Rankings(Relation(("rankings",)), "request", "item", Position("position"), local)
    monitored = small(recipe, rankings=rankings, slices=(), bucket=3600, max_request_span=0)
    counted = []
    for way in ("pull", "pushdown"):
        answer = source(shared_url, replace(monitored, engine=way)).read(since, since + 3600)
        found = to_partials(answer, 3600, [], (), {})
        counted.append(sum(t[TRAFFIC_FIELDS.index("unmatched")] for t in found.traffic.values()))
    assert counted == [1, 1]


@pytest.mark.parametrize("unit", ["epoch_ms", "epoch_us"])
def test_seconds_in_32_bits_compare_with_finer_time_units(shared_url: str, unit: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rankings ALTER at TYPE integer USING at / 1000")
        connection.exec_driver_sql("UPDATE events SET at = at * 1000" if unit == "epoch_us" else "SELECT 1")
    rankings = replace(small().rankings, time=TimeColumn("at", "epoch_s"))
    monitored = small(events(EPOCH._replace(form=unit)), rankings=rankings)
    answer = source(shared_url, replace(monitored, engine="pushdown")).read(START, END)
    assert isinstance(answer, Aggregates)
    assert (answer.read, answer.traffic[:, 4].sum()) == ([], 3 * BUCKETS)


@pytest.mark.parametrize("name", ["item", "request"])
@pytest.mark.parametrize(("kind", "value"), [("bigint[]", "{1}"), ("jsonb", "[1]")])
def test_arrays_in_id_columns_are_refused_with_a_remedy(shared_url: str, name: str, kind: str, value: str) -> None:
    fill(shared_url)
    with sa.create_engine(shared_url).begin() as connection:
        for table in ("rankings", "events"):
            connection.exec_driver_sql(f"ALTER TABLE {table} ALTER {name} TYPE {kind} USING '{value}'")
    told = f"column '{name}' has arrays .* not one id per row; map a list of items as `items`"
    with pytest.raises(SourceError, match=told) as caught:
        source(shared_url, small(engine="pull")).read(START, END)
    assert caught.value.reason == "data"


def test_items_may_be_uuids(postgres_url: str) -> None:
    fill(postgres_url)
    change = "TYPE uuid USING lpad(item::text, 32, '0')::uuid"
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER item {change}")
        connection.exec_driver_sql(f"ALTER TABLE events ALTER item {change}")
    answer = source(postgres_url, small()).read(START, END)
    assert isinstance(answer, Aggregates)
    assert (answer.read, answer.traffic[:, 4].sum()) == ([], 3 * BUCKETS)


def test_too_many_cells_call_for_a_shorter_range(postgres_url: str) -> None:
    fill(postgres_url)
    reader = PushDown(small(), Database("s", parse_url(postgres_url), 60), most_rows=11)
    with pytest.raises(TooMany):
        reader.read(START, END)
    assert isinstance(reader.read(START, START + BUCKET), Aggregates)


def test_ranges_around_a_clock_change_are_read_row_by_row(postgres_url: str) -> None:
    local = styles(postgres_url)["timestamp local"]
    fill(postgres_url, style=local)
    rankings = Rankings(small().rankings.relation, "request", "item", Position("position"), local.column(), "query")
    reader = source(postgres_url, small(events(local), rankings=rankings))
    assert isinstance(reader.read(START, END), Aggregates)
    spring = 1_774_746_000  # 2026-03-29 01:00 UTC
    assert not isinstance(reader.read(spring, spring + BUCKET), Aggregates)


# ---- failures ------------------------------------------------------------------------------------------------------


def failure(reader: Pull | PushDown, until: int = END) -> SourceError:
    with pytest.raises(SourceError) as caught:
        reader.read(START, until)
    return caught.value


def test_a_revoked_permission_is_reported_and_reading_recovers(postgres_url: str) -> None:
    fill(postgres_url)
    admin = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS watcher")
        connection.exec_driver_sql("CREATE ROLE watcher LOGIN")
        connection.exec_driver_sql("GRANT SELECT ON rankings, events TO watcher")
        reader = source(postgres_url.replace("postgres@", "watcher@"), small())
        assert isinstance(reader.read(START, END), Aggregates)
        connection.exec_driver_sql("REVOKE SELECT ON events FROM watcher")
        error = failure(reader)
        assert error.reason == "permission"
        assert "grant SELECT" in str(error)
        connection.exec_driver_sql("GRANT SELECT ON events TO watcher")
        assert isinstance(reader.read(START, END), Aggregates)
        reader.database.close()
        connection.exec_driver_sql("DROP OWNED BY watcher")
        connection.exec_driver_sql("DROP ROLE watcher")
    admin.dispose()


def slow_down(url: str) -> None:
    """Make reading each row take a tenth of a second."""
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rankings RENAME TO shown")
        slow = "SELECT * FROM shown WHERE pg_sleep(0.1) IS NOT NULL OFFSET 0"
        connection.exec_driver_sql(f"CREATE VIEW rankings AS {slow}")


def test_the_server_cancels_a_statement_that_takes_too_long(postgres_url: str) -> None:
    fill(postgres_url)
    slow_down(postgres_url)
    reader = PushDown(small(), Database("s", parse_url(postgres_url), 1))
    with pytest.raises(TooMany, match="sum within time"):  # so the next read covers less
        reader.read(START, END)
    error = failure(reader, START + BUCKET)
    assert error.reason == "timeout"
    assert "statement_timeout" in str(error)


def kill_statement(server: PostgresServer, url: str) -> None:
    with sa.create_engine(url).connect() as connection:
        others = "application_name ~ '^rankmon( |$)' AND pid <> pg_backend_pid()"
        connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def restart(server: PostgresServer, url: str) -> None:
    server.stop()
    server.start()


@pytest.mark.parametrize("mishap", [kill_statement, restart])
def test_an_interrupted_backfill_resumes_and_counts_nothing_twice(
    postgres: PostgresServer,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mishap: Callable[[PostgresServer, str], None],
) -> None:
    fill(postgres_url)
    made = small()
    reader = source(postgres_url, made)
    expected = reader.read(START, END)
    store = new_store(f"sqlite:///{tmp_path / 'store.db'}", 30)
    batch_size, whole = BatchSize(buckets=1, most=1), Reader.rows_of

    def cut_off(self: Reader, query: Any, most: int) -> Any:
        mishap(postgres, postgres_url)
        return whole(self, query, most)

    with store.hold(made.name) as lease:
        filling = run_backfill(made, LATE, (START, END), reader, store, lease, batch_size)
        assert [next(filling).stored, next(filling).stored] == [0, 1]
        with monkeypatch.context() as patched:
            patched.setattr(Reader, "rows_of", cut_off)
            with pytest.raises(SourceError) as caught:
                next(filling)
        assert caught.value.reason == "connect"
        assert "is the database up" in str(caught.value)
        *_, done = run_backfill(made, LATE, (START, END), reader, store, lease, batch_size)
    assert done.due == BUCKETS - 1
    assert done.left == 0
    total = store.history(made.definitions[0], START, END).slice(("", "")).sum(axis=0)
    assert isinstance(expected, Aggregates)
    assert total[:5].tolist() == expected.traffic.sum(axis=0)[:5].tolist()
    store.close()


def test_stopping_does_not_wait_for_the_sums(postgres_url: str) -> None:
    fill(postgres_url)
    slow_down(postgres_url)
    ending = threading.Event()
    database = Database("s", parse_url(postgres_url), 60, ending.is_set)
    onlooker = sa.create_engine(postgres_url, isolation_level="AUTOCOMMIT")

    def sums() -> bool:
        mine = "datname = current_database() AND pid <> pg_backend_pid() AND wait_event = 'PgSleep'"
        with onlooker.connect() as connection:
            return connection.exec_driver_sql(f"SELECT 1 FROM pg_stat_activity WHERE {mine}").first() is not None

    def read() -> None:
        PushDown(small(), database, is_bound=True).read(START, END)

    assert raised_at_the_end(read, database, ending, sums, within=5) == ["Stopped"]
    onlooker.dispose()
    database.close()


# ---- dialects ------------------------------------------------------------------------------------------------------

SHIPPED: dict[str, Any] = {"mssql": mssql, "oracle": oracle, "mysql": mysql, "postgresql": postgresql, "sqlite": sqlite}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_statement_compiles_on_every_dialect_that_sqlalchemy_ships(name: str) -> None:
    dialect = SHIPPED[name].dialect()
    for recipe in (events(EPOCH, rules=CLICKS), column()):
        made = small(recipe, measures=("ndcg@10", "ndcg(discount=jarvelin)", "rbp", "ctr@3"))
        queries = Queries(made, dialect)
        text = str(Summing(queries).cells(START, END).compile(dialect=dialect))
        assert text.count("m0_total") >= 2
        assert "OVER (" not in text
        assert "NUMERIC" not in text.upper().replace("NUMERIC(", "")


@pytest.mark.parametrize("dialect", known_dialects(), ids=lambda dialect: dialect.names[0])
def test_every_dialect_can_add_seconds_to_a_time(dialect: Dialect) -> None:
    made = dialect.later(sa.column("t"), TimeColumn("t"), 90)
    assert "90" in str(made.compile(compile_kwargs={"literal_binds": True}))


def test_dialect_aliases_resolve_to_their_family() -> None:
    assert [dialect_of(name).names[0] for name in ("mariadb", "clickhousedb", "postgresql")] == [
        "mysql",
        "clickhouse",
        "postgresql",
    ]


# ---- the command ---------------------------------------------------------------------------------------------------

CONFIG = """
store: {{url: sqlite:///{folder}/store.db}}
sources:
  s: {{url: "{url}"}}
monitors:
  - name: clicks
    source: s
    engine: {engine}
    bucket: 10m
    rankings:
      {{table: rankings, request: request, item: item, position: position, time: {{column: at, format: epoch_ms}}}}
    relevance:
      events:
        {{table: events, request: request, item: item, type: type, time: {{column: at, format: epoch_ms}},
         rules: [{{type: click, grade: 1}}], attribution: 15m}}
    measures: [{measure}]
"""


@pytest.mark.parametrize(
    ("engine", "measure", "way"),
    [("auto", "ndcg@3", "pushdown"), ("pull", "ndcg@3", "pull"), ("auto", "map@3", "pull")],
)
def test_explain_prints_the_way_the_reason_and_runnable_sql(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, measure: str, way: str
) -> None:
    fill(postgres_url)
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path, url=postgres_url, engine=engine, measure=measure))
    assert run(["explain", "-c", str(path)]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first.startswith(f"clicks: {way}: ")
    assert run(["explain", "-c", str(path), "--no-sql", "clicks"]) == 0
    assert capsys.readouterr().out == f"{first}\n"
    with sa.create_engine(postgres_url).connect() as connection:
        for statement in rest.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
    assert ("m0_total" in rest) == (way == "pushdown")


def test_explain_reports_a_source_that_does_not_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rankmon.yaml"
    url = f"sqlite:///{tmp_path}/none.db"
    path.write_text(CONFIG.format(folder=tmp_path, url=url, engine="auto", measure="ndcg@3"))
    assert run(["explain", "-c", str(path)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "rankmon: clicks: source s: there is no file" in said.err
    assert run(["explain", "-c", str(path), "--no-sql"]) == 0
    assert capsys.readouterr().out.startswith("clicks: pull: this database sums by sorting")


def test_the_explained_sql_contains_its_values(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    fill(url)
    choice, found = explain_choice(small(engine="pushdown"), Database("s", parse_url(url), 60), START, END)
    assert f">= {START * MICROS // 1000 - 60_000}" in found[0]
    assert "'click'" in found[0]
    assert choice.way == "pushdown"


# ---- what a database would accept silently ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "kind", "zone", "said"),
    [
        ("rankings", "timestamp", None, "it has no zone, so declare e.g. timezone: UTC"),
        ("events", "timestamp", None, "it has no zone, so declare e.g. timezone: UTC"),
        ("both", "timestamptz", "Europe/Berlin", "it names its zone, so remove timezone: Europe/Berlin"),
        ("events", "date", None, "name a column that includes the time of day"),
    ],
)
def test_push_down_refuses_mistyped_times_as_the_pull_does(
    postgres_url: str, table: str, kind: str, zone: str | None, said: str
) -> None:
    fill(postgres_url, style=MOMENT)
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        for name in {"rankings", "events"} & {table}:
            connection.exec_driver_sql(f'ALTER TABLE {name} ALTER "at" TYPE {kind} USING "at"::{kind}')
    engine.dispose()
    right = small(events(MOMENT), rankings=replace(small().rankings, time=MOMENT.column()))
    assert isinstance(right.recipe, Events)
    time = replace(MOMENT.column(), timezone=zone)
    wrong = right
    if table != "rankings":
        wrong = replace(wrong, recipe=replace(right.recipe, time=time))
    if table != "events":
        wrong = replace(wrong, rankings=replace(right.rankings, time=time))
    for way in (Pull, partial(PushDown, is_bound=True), PushDown):
        database = Database("s", parse_url(postgres_url), 60)
        with pytest.raises(SourceError, match=said) as caught:
            way(wrong, database).read(START, END)
        assert caught.value.reason == "data"
        database.close()


@pytest.mark.parametrize(("rankings", "clicks"), [("q", "x"), ("x", "q"), ("rankmon", "v")])
def test_table_names_may_equal_names_inside_the_statement(database_url: str, rankings: str, clicks: str) -> None:
    fill(database_url)
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings RENAME TO {rankings}")
        connection.exec_driver_sql(f"ALTER TABLE events RENAME TO {clicks}")
    engine.dispose()
    made = small(events(EPOCH))
    assert isinstance(made.recipe, Events)
    made = replace(
        made,
        rankings=replace(made.rankings, relation=Relation((rankings,))),
        recipe=replace(made.recipe, relation=Relation((clicks,))),
    )
    database = Database("s", parse_url(database_url), 60)
    one, other, buckets = both(made, database, START, END)
    assert_same(one, other, rankings)
    assert buckets > 0
    database.close()


def test_equal_numbers_spelled_differently_are_separate_slices_on_postgresql(postgres_url: str) -> None:
    fill(postgres_url)
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rankings ALTER device TYPE numeric USING 1.0")
        connection.exec_driver_sql("UPDATE rankings SET device = '1.00' WHERE request LIKE '%%1'")
    engine.dispose()
    database = Database("s", parse_url(postgres_url), 60)
    one, other, buckets = both(small(events(EPOCH)), database, START, END)
    assert_same(one, other, "numeric")
    assert buckets > 0
    assert {value for _, dimension, value in one.traffic if dimension == "device"} == {"1.0", "1.00"}
    database.close()


def told_apart(url: str, kind: str, spellings: Sequence[str | None]) -> set[str]:
    """The slice values that both ways find when a column of type `kind` holds these spellings."""
    log = Log()
    for n in range(60):
        log.show(f"r{n}", [1, 2, 3], START + 40 * n, device=spellings[n % len(spellings)])
        log.happen(f"r{n}", 2, START + 40 * n + 5)
    log.show("r60", [1, 2], START + 30, device=list(spellings[:2]))
    write(url, log, EPOCH)
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE {kind}")
    database = Database("s", parse_url(url), 60)
    one, other, buckets = both(small(events(EPOCH, attribution=BUCKET)), database, START, END)
    database.close()
    assert_same(one, other, kind)
    assert buckets > 0
    return {value for _, dimension, value in one.traffic if dimension == "device"}


def test_bpchar_slices_keep_their_trailing_blanks_on_postgresql(postgres_url: str) -> None:
    assert told_apart(postgres_url, "bpchar", ("a", "a ", None)) == {"a", "a ", "(none)", "(mixed)"}


def test_numeric_slices_keep_their_spelling_without_exponents_on_postgresql(postgres_url: str) -> None:
    small = ("0.0000000000", "0.0000001000", None)
    for spellings in (("1.0", "1.00", None), small):
        found = told_apart(postgres_url, "numeric USING device::numeric", spellings)
        assert found == {*filter(None, spellings), "(none)", "(mixed)"}


def test_slices_equal_under_a_collation_stay_separate_on_postgresql(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such texts compare by their bytes. This server lacks ICU, which such collations need, so the test fakes one."""
    asked: list[Any] = []
    monkeypatch.setattr(PostgreSQL, "lax_texts", lambda *_: asked.append(1) or (25, 1042, 1043))
    assert told_apart(postgres_url, "text", ("Mobile", "mobile", None)) == {"Mobile", "mobile", "(none)", "(mixed)"}
    assert asked


def test_postgresql_is_asked_for_collations_that_equate_texts(postgres_url: str) -> None:
    fill(postgres_url)
    reader = source(postgres_url, small())
    assert isinstance(reader, PushDown)
    with reader.pull.reading() as (asked, queries):
        assert queries.sql.lax_texts(asked, [25]) == (1042,)
        assert not queries.lax_slices


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("numeric[]", "'{1.0}'"), ("bit(3)", "B'101'"), ("numrange", "'[1.0,2)'")),
        *(("macaddr", "'08:00:2b:01:02:03'"), ("int4multirange", "'{[1,2)}'"), ("tsvector", "'a'")),
    ],
)
def test_slice_types_that_push_down_cannot_distinguish_are_pulled(
    postgres_url: str, kind: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(postgres_url)
    with sa.create_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE rankings ALTER device TYPE {kind} USING {value}")
    with pytest.raises(SourceError, match=f"column 'device' is {re.escape(kind.partition('(')[0])}, wh(ere|ich) "):
        source(postgres_url, small(engine="pushdown")).read(START, END)
    assert isinstance(source(postgres_url, small()).read(START, END), Reading)
    assert "push-down paused for 24 h" in caplog.text


@pytest.mark.parametrize("which", ["events", "rankings", "both"])
def test_both_ways_match_ids_alike_under_sqlite_collations(tmp_path: Path, which: str) -> None:
    url, log, style = f"sqlite:///{tmp_path / 'log.db'}", Log(), EPOCH
    for n in range(40):
        log.show(f"R{n}", [1, 2, 3], START + 50 * n, device="tv")
        log.happen(f"r{n}" if n % 2 else f"R{n}", 2, START + 50 * n + 5)
    write(url, log, style)
    with sa.create_engine(url).begin() as connection:
        for table in ("events", "rankings") if which == "both" else (which,):
            connection.exec_driver_sql(f"ALTER TABLE {table} RENAME COLUMN request TO was")
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN request TEXT COLLATE NOCASE")
            connection.exec_driver_sql(f"UPDATE {table} SET request = was")
    database = Database("s", parse_url(url), 60)
    made = small(events(style, attribution=300))
    kernels = dict.fromkeys(m.kernel for m in made.measures)
    ways = (PushDown(made, database, is_bound=True), Pull(made, database))
    for since, until in ((START, END), (START, START + BUCKET)):
        one, other = (to_partials(w.read(since, until), made.bucket, kernels, made.slices, {}) for w in ways)
        assert_same(one, other, which)
        events_that_count = sum(float(traffic[4]) for cell, traffic in one.traffic.items() if cell[1] == "")
        shown = sum(float(traffic[0]) for cell, traffic in one.traffic.items() if cell[1] == "")
        assert events_that_count == (shown / 2 if which == "rankings" else shown)
    database.close()
