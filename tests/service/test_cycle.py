"""Data on its way from the source to the store: whatever happens, the store ends up the same."""

import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.demo.shop import Shop, Story, create_schema
from monitor.errors import SourceError, Stopped
from monitor.measures.measure import parse
from monitor.series.finality import final_age, read_ages
from monitor.series.partials import TOTAL
from monitor.service.cycle import BatchSize, CycleResult, FinalizedUpTo, RequestSource, run_backfill, run_cycle
from monitor.service.new_series import new_series
from monitor.service.snapshot import take_snapshot
from monitor.source.choice import open_reader
from monitor.source.engine import Database
from monitor.source.pull import Freshness, Pull
from monitor.store import Store
from monitor.types import (
    OVERALL,
    Column,
    Drift,
    EventRule,
    Events,
    Judgments,
    Monitor,
    Position,
    Rankings,
    Recipe,
    Relation,
    Slice,
    TimeColumn,
)
from tests.support.dump import differences, dump
from tests.support.monitors import DAY, new_store, pull, shop, shop_database
from tests.support.postgres import PostgresServer, carry_out

HOUR = 3600
BEGIN = datetime(2026, 2, 2, tzinfo=UTC)
START = int(BEGIN.timestamp())
DAYS = 3
END = START + DAYS * DAY
SETTLED = END + 4 * HOUR
"""By then the attribution window of every bucket has closed."""

SMALL = Shop(story=Story(start=BEGIN, history_days=DAYS, degraded_days=1), peak=12)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days of a shop and the start of the next hour, which shows that the last one is over."""
    path = tmp_path_factory.mktemp("filled") / "shop.db"
    shop_database(path, SMALL, BEGIN, BEGIN + timedelta(days=DAYS, hours=1))
    return path


@pytest.fixture
def shop_url(filled: Path, tmp_path: Path) -> str:
    """A copy of the shop's database, to read or to damage."""
    shutil.copy(filled, tmp_path / "shop.db")
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def stores(tmp_path: Path) -> Iterator["Stores"]:
    made = Stores(tmp_path)
    yield made
    for store in made.opened:
        store.close()


@dataclass
class Stores:
    """Any number of empty stores."""

    folder: Path
    opened: list[Store] = field(default_factory=list)

    def new(self) -> Store:
        self.opened.append(new_store(f"sqlite:///{self.folder}/store-{len(self.opened)}.db"))
        return self.opened[-1]


@dataclass
class Driver:
    """Cycles of one monitor at chosen times, with the bookkeeping of a runner."""

    monitor: Monitor
    source: RequestSource
    store: Store
    batch_size: BatchSize = field(default_factory=BatchSize)

    def steps(self, now: float) -> Iterator[CycleResult]:
        with self.store.hold(self.monitor.name) as lease:
            for outcome in run_cycle(self.monitor, now, self.source, self.store, lease, self.batch_size):
                yield outcome
            arrived = outcome.arrived
            self.store.record(self.monitor.name, newest_source_at=arrived.request, newest_label_at=arrived.label)

    def at(self, now: float) -> CycleResult:
        *_, outcome = self.steps(now)
        return outcome

    def backfill(self, now: float, span: tuple[int, int], **how: bool) -> CycleResult:
        with self.store.hold(self.monitor.name) as lease:
            *_, outcome = run_backfill(self.monitor, now, span, self.source, self.store, lease, self.batch_size, **how)
        return outcome

    def read_times(self) -> dict[int, float]:
        return {s: state.read_at for s, state in self.store.states(self.monitor.traffic, 0).items()}


def driver(monitor: Monitor, url: str, store: Store, most_rows: int = 1_000_000) -> Driver:
    source = Pull(monitor, Database(monitor.source, parse_url(url), 60), most_rows)
    return Driver(monitor, source, store)


def undisturbed(monitor: Monitor, url: str, store: Store, now: float = SETTLED) -> dict[str, Any]:
    """The store after one undisturbed cycle at `now`."""
    driver(monitor, url, store).at(now)
    return dump(store)


def within(dumped: dict[str, Any], since: float = START, until: float = SETTLED) -> dict[str, Any]:
    """The part of a dump with the buckets in [since, until)."""
    return {
        table: {k: v for k, v in rows.items() if table == "slices" or since <= k[5] <= until - HOUR}
        for table, rows in dumped.items()
    }


# ---- again and again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "now"),
    [
        ("in the middle of the data, labels still arriving in", START + 30 * HOUR + 1800),
        ("just when a bucket has ended", START + 30 * HOUR),
        ("when every label has had its time", SETTLED),
        ("long after the source fell silent", END + 5 * DAY),
        ("before the source has anything", START - DAY),
    ],
)
def test_running_a_cycle_twice_changes_nothing(sentence: str, now: int, shop_url: str, stores: Stores) -> None:
    once = driver(shop(), shop_url, stores.new())
    once.at(now)
    before, times = dump(once.store), once.read_times()
    again = once.at(now)
    assert (again.due, again.stored) == (0, 0), sentence
    assert dump(once.store) == before, sentence
    assert once.read_times() == times, sentence


def test_a_cycle_stopped_after_any_batch_and_rerun_gives_the_same_store(shop_url: str, stores: Stores) -> None:
    expected = undisturbed(shop(), shop_url, stores.new())
    cut = driver(shop(), shop_url, stores.new())
    cut.batch_size = BatchSize(most=12)
    left, rounds = 1, 0
    while left:
        outcomes = cut.steps(SETTLED)
        next(outcomes)
        outcome = next(outcomes)
        outcomes.close()
        assert 0 < outcome.stored <= cut.batch_size.most
        left, rounds = outcome.left, rounds + 1
    assert rounds > 2
    assert differences(expected, dump(cut.store)) == []


def test_a_cycle_reports_due_buckets_before_reading(shop_url: str, stores: Stores) -> None:
    first, *rest = driver(shop(), shop_url, stores.new()).steps(SETTLED)
    assert (first.stored, first.rows, first.left) == (0, 0, first.due)
    assert first.due >= DAYS * 24
    assert [o.due for o in rest] == [first.due] * len(rest)
    assert rest[-1].left == 0
    assert rest[-1].rows > 0


def test_an_error_between_batches_keeps_stored_buckets(shop_url: str, stores: Stores) -> None:
    expected = undisturbed(shop(), shop_url, stores.new())
    broken = driver(shop(), shop_url, stores.new())
    healthy, reads = broken.source, []

    class Breaks:
        def freshness(self, since: float, now: float) -> Any:
            return healthy.freshness(since, now)

        def held(self) -> Any:
            return healthy.held()

        def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
            return healthy.row_counts(spans)

        def read(self, since: int, until: int) -> Any:
            reads.append(since)
            if len(reads) == 2:
                raise SourceError("gone", "connect")
            return healthy.read(since, until)

    broken.source = Breaks()
    with pytest.raises(SourceError):
        broken.at(SETTLED)
    assert len(broken.read_times()) == 12
    broken.at(SETTLED)
    assert differences(expected, dump(broken.store)) == []


# ---- how new the source is -----------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A source that records the start of each freshness query; it can hide its labels."""

    source: RequestSource
    since: list[float] = field(default_factory=list)
    hides_labels: bool = False

    def freshness(self, since: float, now: float) -> Freshness:
        self.since.append(since)
        found = self.source.freshness(since, now)
        return Freshness(found.newest, found.future_rows, None if self.hides_labels else found.newest_label)

    def held(self) -> Any:
        return self.source.held()

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        return self.source.row_counts(spans)

    def read(self, since: int, until: int) -> Any:
        return self.source.read(since, until)


WEEK_BEFORE = SETTLED - 7 * DAY


@pytest.mark.parametrize("recipe", [Column("position", 50), Judgments(Relation(("judged",)), "query", "item", "grade")])
def test_cycles_without_events_ask_from_the_newest_request_on(recipe: Recipe, shop_url: str, stores: Stores) -> None:
    with sa.create_engine(shop_url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE judged AS SELECT query, item_id AS item, 1 AS grade FROM rankings")
    monitor = replace(shop(drift=Drift(parse("ndcg@10")), lookback=7 * DAY), recipe=recipe)
    monitor = replace(monitor, rankings=replace(monitor.rankings, query="query"))
    driven = driver(monitor, shop_url, stores.new())
    asked = driven.source = Asked(driven.source)
    for minutes in range(3):
        newest = driven.at(SETTLED + 60 * minutes).arrived.request
    assert asked.since == [WEEK_BEFORE, newest, newest]


def test_cycles_search_the_whole_lookback_until_a_first_event_is_seen(shop_url: str, stores: Stores) -> None:
    driven = driver(shop(drift=Drift(parse("ndcg@10")), lookback=7 * DAY), shop_url, stores.new())
    asked = driven.source = Asked(driven.source, hides_labels=True)
    for minutes in range(4):
        arrived = driven.at(SETTLED + 60 * minutes).arrived
        asked.hides_labels = False
    assert arrived.request is not None
    assert arrived.label is not None
    assert asked.since == [WEEK_BEFORE, WEEK_BEFORE + 60, *[min(arrived.request, arrived.label)] * 2]


def test_cycles_without_drift_do_not_look_back_to_the_newest_event(shop_url: str, stores: Stores) -> None:
    driven = driver(shop(lookback=7 * DAY), shop_url, stores.new())
    asked = driven.source = Asked(driven.source)
    newest = driven.at(SETTLED).arrived.request
    driven.store.record("shop", newest_label_at=START + HOUR)
    driven.at(SETTLED + 60)
    assert asked.since == [WEEK_BEFORE, newest]


# ---- late labels ---------------------------------------------------------------------------------------------------


def test_provisional_buckets_are_read_again_until_they_are_final(tmp_path: Path, stores: Stores) -> None:
    url = f"sqlite:///{tmp_path / 'live.db'}"
    engine = sa.create_engine(url)
    create_schema(engine)
    monitor = shop(["dcg@10"], bucket=1800, lookback=DAY)
    live, watched = driver(monitor, url, stores.new()), START + 19 * HOUR
    busy, at, seen = replace(SMALL, peak=60), BEGIN + timedelta(hours=17), []
    while at < BEGIN + timedelta(hours=26):
        busy.advance(engine, at, at + timedelta(minutes=15))
        at += timedelta(minutes=15)
        live.at(at.timestamp())
        seen += look(live, watched)
    engine.dispose()
    totals, finals, times = zip(*seen, strict=True)
    settling = finals.index(True)
    assert list(totals) == sorted(totals)
    assert totals[0] < totals[settling], "purchases came late"
    assert set(totals[settling:]) == {totals[settling]}
    assert times[settling] >= watched + monitor.bucket + final_age(monitor)
    ages = [age for age in read_ages(monitor) if age <= final_age(monitor)]
    assert 3 <= len(set(times)) <= len(ages) + 1
    calm = undisturbed(monitor, url, stores.new(), at.timestamp())
    assert differences(within(calm, watched), within(dump(live.store), watched)) == []


def look(driven: Driver, start: int) -> list[tuple[float, bool, float]]:
    """(sum of the measure, final, when read) of one bucket, if it is stored."""
    definition = driven.monitor.definition(driven.monitor.measures[0])
    history = driven.store.history(definition, start, start + 1)
    if not len(history.starts):
        return []
    return [(float(history.slice(OVERALL)[0, TOTAL]), bool(history.final[0]), driven.read_times()[start])]


def test_a_bucket_is_final_only_after_newer_rows_or_the_timeout(shop_url: str, stores: Stores) -> None:
    silent = driver(replace(shop(), final_timeout=DAY), shop_url, stores.new())
    after = END + HOUR  # the source has nothing from here on
    silent.at(after + 8 * HOUR)
    states = silent.store.states(silent.monitor.traffic, 0)
    assert states[END - HOUR].final
    assert not any(states[after + i * HOUR].final for i in range(7))
    silent.at(after + 3 * DAY)
    states = silent.store.states(silent.monitor.traffic, 0)
    assert states[after].final
    assert not states[after + 2 * DAY].final


# ---- sources that are away -----------------------------------------------------------------------------------------


ITEMS = 10


def logged_search(url: str) -> Monitor:
    """A monitor of the tables that `log_searches` makes in PostgreSQL."""
    return Monitor(
        name="search",
        source="search",
        rankings=Rankings(
            Relation(("rankings",)), "request_id", "item_id", Position("position"), TimeColumn("served_at")
        ),
        recipe=Events(
            Relation(("events",)),
            "request_id",
            "item_id",
            TimeColumn("occurred_at"),
            (EventRule(1, "click"),),
            attribution=HOUR,
            type="type",
        ),
        measures=shop(["ndcg@10", "ctr@3"]).measures,
        slices=(Slice("device", "device"),),
        refresh=1,
    )


def log_searches(url: str, hours: int, per_hour: int = 30) -> None:
    """Writes searches from START on and their clicks, without randomness."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE rankings AS SELECT 'r' || r AS request_id, 'i' || (r * 7 + p * 13) %% 50 AS item_id, "
            "p AS position, to_timestamp(%(start)s + r * %(apart)s) AS served_at, 'd' || r %% 3 AS device, r, p "
            "FROM generate_series(0, %(last)s) AS r, generate_series(1, %(items)s) AS p",
            {"start": START, "apart": HOUR // per_hour, "last": hours * per_hour - 1, "items": ITEMS},
        )
        connection.exec_driver_sql(
            "CREATE TABLE events AS SELECT request_id, item_id, 'click' AS type, "
            "served_at + interval '1 minute' * (1 + (r + p) %% 50) AS occurred_at "
            "FROM rankings WHERE (r * 31 + p * p * 17) %% 11 < 2"
        )
        connection.exec_driver_sql("CREATE INDEX ON rankings (served_at)")
        connection.exec_driver_sql("CREATE INDEX ON events (occurred_at)")
    engine.dispose()


def test_a_temporary_source_outage_loses_no_bucket(postgres: PostgresServer, postgres_url: str, stores: Stores) -> None:
    log_searches(postgres_url, hours=20)
    monitor = logged_search(postgres_url)
    calm, hit = (driver(monitor, postgres_url, stores.new()) for _ in range(2))
    moments = [START + hour * HOUR + 400 for hour in range(6, 24)]
    for now in moments:
        calm.at(now)
    for i, now in enumerate(moments):
        if i == 4:
            postgres.stop()
        if i == 9:
            postgres.start()
        if 4 <= i < 9:
            with pytest.raises(SourceError) as raised:
                hit.at(now)
            assert raised.value.reason == "connect"
        else:
            hit.at(now)
    assert differences(dump(calm.store), dump(hit.store)) == []
    assert calm.store.newest_bucket(monitor.traffic) == START + 22 * HOUR


def partitioned(table: str, time: str, since: int) -> tuple[str, ...]:
    """Statements that put the rows from `since` on into a partition, `newest`."""
    newest = f"PARTITION OF {table} FOR VALUES FROM (to_timestamp({since})) TO (MAXVALUE)"
    return (
        f"ALTER TABLE {table} RENAME TO whole",
        f"CREATE TABLE {table} (LIKE whole) PARTITION BY RANGE ({time})",
        f"CREATE TABLE past PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO (to_timestamp({since}))",
        f"CREATE TABLE newest {newest}",
        f"INSERT INTO {table} SELECT * FROM whole",
    )


CUT = START + 18 * HOUR
ATTACHED = f"ATTACH PARTITION newest FOR VALUES FROM (to_timestamp({CUT})) TO (MAXVALUE)"
COLUMN_GONE = r"column r.item_id does not exist.*looked for in the rankings, rankings; compare the table and columns"


@pytest.mark.parametrize(
    ("before", "change", "back", "told"),
    [
        (partitioned("rankings", "served_at", CUT), "rankings DETACH PARTITION newest", f"rankings {ATTACHED}", ""),
        (partitioned("events", "occurred_at", CUT), "events DETACH PARTITION newest", f"events {ATTACHED}", ""),
        ((), "rankings RENAME item_id TO sku", "rankings RENAME sku TO item_id", COLUMN_GONE),
    ],
    ids=["rankings detached", "events detached", "column renamed"],
)
def test_a_detached_partition_or_renamed_column_loses_no_bucket(
    before: Sequence[str], change: str, back: str, told: str, postgres_url: str, stores: Stores
) -> None:
    log_searches(postgres_url, hours=23)
    carry_out(postgres_url, *before)
    monitor = logged_search(postgres_url)
    calm, hit = (driver(monitor, postgres_url, stores.new()) for _ in range(2))
    moments = [START + hour * HOUR + 400 for hour in (17, 18, 19, 20, 21, 22, 24)]
    for now in moments:
        calm.at(now)
    for now in (*moments[:3], START + 20 * HOUR - 1):
        hit.at(now)
    carry_out(postgres_url, f"ALTER TABLE {change}")
    if told:
        with pytest.raises(SourceError, match=told):
            hit.at(moments[3])
    else:
        assert hit.at(moments[3]).held == 1, "the hour whose attribution window has closed"
    carry_out(postgres_url, f"ALTER TABLE {back}")
    for now in moments[4:]:
        hit.at(now)
    assert differences(dump(calm.store), dump(hit.store)) == []


def test_recreated_tables_with_the_same_ids_change_no_stored_bucket(postgres_url: str, stores: Stores) -> None:
    log_searches(postgres_url, hours=20)
    read = driver(logged_search(postgres_url), postgres_url, stores.new())
    read.at(START + 20 * HOUR)
    carry_out(postgres_url, "DROP TABLE rankings", "DROP TABLE events")
    with pytest.raises(SourceError, match='relation "rankings" does not exist'):
        read.at(START + 20 * HOUR + 400)
    log_searches(postgres_url, hours=20)
    carry_out(postgres_url, "UPDATE rankings SET served_at = served_at + interval '20 hours'")
    carry_out(postgres_url, "UPDATE events SET occurred_at = occurred_at + interval '20 hours'")
    for hour in range(20, 43):
        read.at(START + hour * HOUR + 400)
    stored = read.store.history(read.monitor.traffic, START, START + 40 * HOUR)
    old, new = stored.sums[:19, 0, :5], stored.sums[20:39, 0, :5]
    assert stored.final[:39].all()
    assert np.array_equal(old, new)
    assert (old[:, 0] == 30).all()


def test_a_long_downtime_gap_is_read_completely_in_bounded_steps(shop_url: str, stores: Stores) -> None:
    monitor = replace(shop(), lookback=6 * HOUR, windows=(6 * HOUR,))
    down = driver(monitor, shop_url, stores.new())
    down.at(START + 8 * HOUR)
    down.batch_size = BatchSize(most=12)
    *steps, last = down.steps(SETTLED)
    assert last.left == 0
    assert len(steps) > 1
    stored = sorted(down.read_times())
    assert stored == list(range(stored[0], SETTLED - HOUR, HOUR)), "no gap"
    calm = driver(monitor, shop_url, stores.new())
    for now in range(START + 8 * HOUR, SETTLED + 1, HOUR):
        calm.at(now)
    assert differences(dump(calm.store), dump(down.store)) == []


def test_rows_arriving_after_the_timeout_are_read_and_logged_as_restatements(
    filled: Path, tmp_path: Path, stores: Stores
) -> None:
    url = f"sqlite:///{tmp_path / 'stalled.db'}"
    shutil.copy(filled, tmp_path / "stalled.db")
    monitor, stalled_at, back_at = shop(lookback=2 * DAY), START + DAY, START + DAY + 40 * HOUR
    calm = driver(monitor, url, stores.new())
    calm.at(back_at)
    stalled = driver(monitor, f"sqlite:///{without_rows_from(url, stalled_at, tmp_path)}", stores.new())
    for now in range(stalled_at, back_at, HOUR):
        stalled.at(now)
    too_early = stalled.store.states(monitor.traffic, stalled_at)
    assert sum(state.final for state in too_early.values()) > 10, "the timeout has passed"
    stalled.source = pull(monitor, url)
    assert stalled.at(back_at).kept == 0
    assert differences(within(dump(calm.store), stalled_at), within(dump(stalled.store), stalled_at)) == []
    assert sum(row[3] for row in restatements(stalled.store)) == sum(state.final for state in too_early.values())
    assert stalled.at(back_at + 60).due == 0


def without_rows_from(url: str, since: int, folder: Path) -> Path:
    """A copy of a source whose loader has stalled."""
    copy = folder / "before.db"
    shutil.copy(url.removeprefix("sqlite:///"), copy)
    engine = sa.create_engine(f"sqlite:///{copy}")
    limit = at(since).strftime("%Y-%m-%dT%H:%M:%SZ")
    with engine.begin() as connection:
        for table, column in (("rankings", "served_at"), ("events", "occurred_at")):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} >= ?", (limit,))
    engine.dispose()
    return copy


def of_one_server(url: str, folder: Path) -> Path:
    """A copy of a source in which the rankings of every other request have not arrived yet."""
    copy = folder / "one.db"
    shutil.copy(url.removeprefix("sqlite:///"), copy)
    with sqlite3.connect(copy) as connection:
        connection.execute("DELETE FROM rankings WHERE CAST(substr(request_id, -1) AS INTEGER) % 2")
    return copy


@pytest.mark.parametrize("engine", ["pull", "pushdown"])
def test_late_rankings_of_final_buckets_are_read_and_logged(
    engine: Any, shop_url: str, tmp_path: Path, stores: Stores
) -> None:
    monitor = replace(shop(["ndcg@10", "ctr"], lookback=2 * DAY), engine=engine)
    whole = driver(monitor, shop_url, stores.new())
    whole.at(SETTLED)
    late = driver(monitor, f"sqlite:///{of_one_server(shop_url, tmp_path)}", stores.new())
    assert late.at(SETTLED).late == 0
    assert differences(dump(whole.store), dump(late.store))
    late.source = open_reader(monitor, Database(monitor.source, parse_url(shop_url), 60))
    outcomes = [late.at(SETTLED + 60), late.at(SETTLED + 120), late.at(SETTLED + 180)]
    first, second, third = (o.late for o in outcomes)
    assert (first, second > 10, third) == (24, True, 0), "one run reads at most a day of buckets"
    assert outcomes[-1].due == 0
    assert differences(*(within(dump(one.store), until=END) for one in (whole, late))) == []
    assert sum(row[3] for row in restatements(late.store)) == first + second


def test_deleted_rows_are_not_asked_for_again(shop_url: str, stores: Stores) -> None:
    driven = driver(shop(lookback=2 * DAY), shop_url, stores.new())
    driven.at(SETTLED)
    purge(shop_url, SETTLED - DAY)
    assert [(o.due, o.late) for o in (driven.at(SETTLED + 60), driven.at(SETTLED + 120))] == [(0, 0), (0, 0)]


def test_rows_are_counted_once_per_bucket_and_older_ones_once_a_day() -> None:
    settled, monitor = FinalizedUpTo(), shop(lookback=7 * DAY)
    reach = [settled.count_from(SETTLED + i * 300.0, monitor) for i in range(13)]
    assert reach == [SETTLED - 7 * DAY, *[None] * 11, SETTLED + HOUR - DAY - final_age(monitor)]
    assert settled.count_from(SETTLED + DAY, monitor) == SETTLED + DAY - 7 * DAY


# ---- purged sources, and reading again -----------------------------------------------------------------------------


def purge(url: str, before: int, tables: Sequence[str] = ("rankings", "events")) -> None:
    engine = sa.create_engine(url)
    limit = datetime.fromtimestamp(before, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with engine.begin() as connection:
        for table in tables:
            column = {"rankings": "served_at", "events": "occurred_at"}[table]
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {column} < ?", (limit,))
    engine.dispose()


def restatements(store: Store) -> list[tuple[Any, ...]]:
    with store.reading() as connection:
        query = sa.text("SELECT since, until, forced, buckets FROM restatements ORDER BY id")
        return [tuple(row) for row in connection.execute(query)]


def test_a_purged_source_does_not_shrink_final_buckets_unless_forced(shop_url: str, stores: Stores) -> None:
    read = driver(shop(), shop_url, stores.new())
    read.at(SETTLED)
    before = dump(read.store)
    purge(shop_url, START + DAY)
    assert read.at(SETTLED + HOUR).kept == 0
    kept = read.backfill(SETTLED + HOUR, (START, START + 2 * DAY), again=True)
    assert kept.kept == 24
    assert kept.stored == 24
    assert kept.left == 0
    same = dump(read.store)
    assert differences(before, {t: {k: v for k, v in same[t].items() if k in before[t]} for t in same}) == []
    assert sum(row[3] for row in restatements(read.store)) == 24, "those of the second day were read again"
    assert not any(row[2] for row in restatements(read.store))
    forced = read.backfill(SETTLED + HOUR, (START, START + DAY), again=True, force=True)
    assert (forced.kept, forced.stored) == (0, 24)
    assert read.store.history(read.monitor.traffic, START, START + DAY).sums.sum() == 0
    logged = [row for row in restatements(read.store) if row[2]]
    assert sum(row[3] for row in logged) == 24
    assert (logged[0][0], logged[-1][1]) == (START, START + DAY)


@pytest.mark.parametrize("added", ["mrr@10", "ndcg@20"], ids=["at the same depth", "at another depth"])
def test_a_measure_added_after_a_purge_gets_purged_buckets_only_from_a_whole_source(
    added: str, shop_url: str, filled: Path, stores: Stores
) -> None:
    store = stores.new()
    driver(shop(["ndcg@10"]), shop_url, store).at(SETTLED)
    purge(shop_url, START + DAY)
    both = driver(shop(["ndcg@10", added]), shop_url, store)
    assert both.at(SETTLED + 60).kept == 24
    assert both.at(SETTLED + 60).due == 0, "it is reported once"
    point = take_snapshot(both.monitor, store, SETTLED).series[-1].final[0]
    definition = both.monitor.definition(both.monitor.measures[1])
    assert store.history(definition, START, START + DAY).starts.tolist() == []
    assert (point.end, point.completeness) == (END, 1)
    assert both.backfill(SETTLED + 60, (START, END)).due == 0
    assert both.backfill(SETTLED + 60, (START, END), again=True).kept == 24
    assert both.at(SETTLED + 60).due == 0
    both.source = pull(both.monitor, f"sqlite:///{filled}")
    assert both.backfill(SETTLED + 60, (START, END), again=True).kept == 0
    assert both.at(SETTLED + 60).due == 0
    whole = undisturbed(both.monitor, f"sqlite:///{filled}", stores.new(), SETTLED + 60)
    assert differences(whole, present(dump(store), both)) == []


def test_a_purge_before_labels_are_complete_removes_no_stored_values(shop_url: str, stores: Stores) -> None:
    read = driver(shop(), shop_url, stores.new())
    read.at(END + HOUR)
    states, before = read.store.states(read.monitor.traffic, 0), read.store.history(read.monitor.traffic, START, END)
    opened = [start for start, state in states.items() if not state.final]
    assert before.between(opened[0], END).sums[:, :, 0].any(axis=1).all()
    purge(shop_url, END)
    found = read.at(SETTLED)
    assert (found.held, found.stored, found.left) == (len(opened), found.due - len(opened), 0)
    after = read.store.history(read.monitor.traffic, START, END)
    assert after.final.all()
    assert np.array_equal(after.sums, before.sums)
    assert read.at(SETTLED + 60).due == 0, "it is reported once"
    assert read.backfill(SETTLED + 60, (START, END), again=True, force=True).held == 0
    assert read.store.history(read.monitor.traffic, START, END).sums.sum() == 0


def test_hours_read_during_an_outage_are_read_again_when_rows_arrive(
    shop_url: str, filled: Path, stores: Stores
) -> None:
    away = END - 12 * HOUR
    with sqlite3.connect(parse_url(shop_url).database or "") as connection:
        limit = datetime.fromtimestamp(away, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        connection.execute("DELETE FROM rankings WHERE served_at >= ?", (limit,))
    read = driver(replace(shop(), lateness=5 * DAY), shop_url, stores.new())
    read.at(END + 600)
    assert not read.store.history(read.monitor.traffic, away, END).sums[:, 0, 0].any()
    read.source = pull(read.monitor, f"sqlite:///{filled}")
    assert read.at(END + HOUR).stored >= 12
    assert read.store.history(read.monitor.traffic, away, END).sums[:, 0, 0].all()
    assert read.at(END + HOUR + 10).due == 0


@pytest.mark.parametrize("loaded", [("rankings", "events"), ("rankings",), ("events",)], ids="+".join)
def test_a_table_being_reloaded_empties_no_open_bucket(
    loaded: Sequence[str], shop_url: str, filled: Path, stores: Stores
) -> None:
    read = driver(shop(), shop_url, stores.new())
    read.at(END + HOUR)
    purge(shop_url, END, loaded)
    assert read.at(END + 2 * HOUR).held > 0
    read.source = pull(read.monitor, f"sqlite:///{filled}")
    assert read.at(SETTLED).held == 0
    calm = driver(shop(), f"sqlite:///{filled}", stores.new())
    calm.at(END + HOUR)
    calm.at(SETTLED)
    assert differences(dump(calm.store), dump(read.store)) == []


def test_a_measure_added_after_an_early_purge_stays_empty_and_is_not_retried(shop_url: str, stores: Stores) -> None:
    store = stores.new()
    driver(shop(["ndcg@10"]), shop_url, store).at(END + HOUR)
    purge(shop_url, END)
    both = driver(shop(["ndcg@10", "mrr@10"]), shop_url, store)
    assert both.at(SETTLED).held > 0
    assert both.at(SETTLED + 60).due == 0
    assert not store.history(both.monitor.definition(both.monitor.measures[1]), START, END).sums.any()


def present(dumped: dict[str, Any], driven: Driver) -> dict[str, Any]:
    """The part of a dump with a monitor's current definitions."""
    ids = {d.id for d in driven.monitor.definitions}
    return {t: {k: v for k, v in rows.items() if t == "slices" or k[2] in ids} for t, rows in dumped.items()}


def test_a_backfill_logs_restatements_only_if_it_reads_final_buckets_again(shop_url: str, stores: Stores) -> None:
    read = driver(shop(), shop_url, stores.new())
    assert read.backfill(SETTLED, (START, END)).stored == DAYS * 24
    assert read.backfill(SETTLED, (START, END)).due == 0
    assert read.backfill(SETTLED, (START, END), again=True).stored == DAYS * 24
    assert sum(row[3] for row in restatements(read.store)) == DAYS * 24


def test_an_interrupted_restatement_is_logged_up_to_where_it_stopped(shop_url: str, stores: Stores) -> None:
    read = driver(shop(), shop_url, stores.new())
    read.backfill(SETTLED, (START, END))
    with read.store.hold("shop") as lease:
        steps = run_backfill(
            read.monitor, SETTLED, (START, END), read.source, read.store, lease, BatchSize(), again=True
        )
        next(steps)
        next(steps)
        steps.close()
    assert restatements(read.store) == [(START, START + 12 * HOUR, 0, 12)]


def test_a_backfill_stops_at_buckets_not_due_yet(shop_url: str, stores: Stores) -> None:
    read = driver(shop(), shop_url, stores.new())
    now = START + 10 * HOUR + 100  # the tenth hour's rankings may still be on their way
    assert read.backfill(now, (START, END)).due == 9
    assert read.backfill(START, (START, END)).due == 0


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("measures", [["ndcg@10", "mrr@5"], ["ndcg(gain={0:1,1:2,3:3})@10"]])
def test_reading_a_bucket_in_parts_gives_the_same_store(measures: list[str], shop_url: str, stores: Stores) -> None:
    monitor, span = shop(measures), (START + 18 * HOUR, START + 22 * HOUR)
    calm = driver(monitor, shop_url, stores.new())
    calm.backfill(SETTLED, span)
    tight = driver(monitor, shop_url, stores.new(), most_rows=8 if len(measures) == 2 else 150)
    largest, lengths, read = [], [], tight.source.read

    def watched(since: int, until: int) -> Any:
        reading = read(since, until)
        largest.append(reading.rows)
        lengths.append(until - since)
        return reading

    tight.source.read = watched  # type: ignore[method-assign]
    tight.backfill(SETTLED, span)
    assert max(lengths) < HOUR, "no bucket fits into one read"
    assert max(largest) < 5 * tight.source.most_rows, "each of the few answers of a read is bounded"  # type: ignore[attr-defined]
    assert differences(dump(calm.store), dump(tight.store)) == []


def test_too_many_rows_within_a_second_is_an_error_with_a_remedy(shop_url: str, stores: Stores) -> None:
    impossible = driver(shop(), shop_url, stores.new(), most_rows=0)
    with pytest.raises(
        SourceError, match=r"more than 0 rows within a second .*lower max_request_span, or check"
    ) as raised:
        impossible.backfill(SETTLED, (START + 18 * HOUR, START + 19 * HOUR))
    assert raised.value.reason == "data"


def test_the_batch_size_keeps_reads_near_their_target_rows() -> None:
    batch_size = BatchSize(rows=1000, most=168, buckets=12)
    batch_size.learn(rows=1200, buckets=12)
    assert batch_size.buckets == 10
    batch_size.learn(rows=0, buckets=10)
    assert batch_size.buckets == 160, "it grows no faster than sixteen times"
    batch_size.learn(rows=0, buckets=160)
    assert batch_size.buckets == 168
    batch_size.learn(rows=1_000_000, buckets=1)
    assert batch_size.buckets == 1


@pytest.mark.parametrize("reason", ["timeout", "resources"])
def test_a_read_that_times_out_is_halved_and_stays_small_for_a_day(shop_url: str, stores: Stores, reason: str) -> None:
    calm, slow = (driver(shop(), shop_url, stores.new()) for _ in range(2))
    span, read, lengths = (START, START + 30 * HOUR), slow.source.read, list[int]()
    calm.backfill(SETTLED, span)

    def too_long(since: int, until: int) -> Any:
        lengths.append((until - since) // HOUR)
        if until - since > 2 * HOUR:
            raise SourceError("canceling statement due to statement timeout", reason)
        return read(since, until)

    slow.source.read = too_long  # type: ignore[method-assign]
    slow.backfill(SETTLED, span)
    assert max(lengths[1:]) < lengths[0] == 12
    assert [n for n in lengths if n > 2] == [12, 6, 3], "later reads are no larger"
    assert slow.batch_size.at_most == 1
    slow.batch_size.slow_until = time.monotonic()
    slow.batch_size.learn(rows=1, buckets=1)
    assert slow.batch_size.buckets > 1, "a day later larger reads are tried again"
    assert differences(dump(calm.store), dump(slow.store)) == []


def test_a_single_bucket_that_times_out_is_an_error(shop_url: str, stores: Stores) -> None:
    slow = driver(shop(), shop_url, stores.new())

    def too_long(since: int, until: int) -> Any:
        raise SourceError(f"{(until - since) // HOUR} h: statement timeout", "timeout")

    slow.source.read = too_long  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="1 h: statement timeout"):
        slow.backfill(SETTLED, (START, START + 30 * HOUR))


# ---- clocks --------------------------------------------------------------------------------------------------------


def test_a_clock_set_back_changes_and_loses_no_data(shop_url: str, stores: Stores) -> None:
    expected = undisturbed(shop(), shop_url, stores.new())
    back = driver(shop(), shop_url, stores.new())
    back.at(START + 40 * HOUR)
    before = sums(back.store)
    for earlier in (START + 38 * HOUR, START + 20 * HOUR):
        back.at(earlier)
    assert {key: value for key, value in sums(back.store).items() if key in before} == before
    for now in range(START + 40 * HOUR, SETTLED + 1, 4 * HOUR):
        back.at(now)
    assert differences(within(expected), within(dump(back.store))) == []


def sums(store: Store) -> dict[tuple[object, ...], tuple[object, ...]]:
    """All partials without their final flag, which a clock set back may clear."""
    return {key: values[:-1] for key, values in dump(store)["partials"].items()}


@pytest.mark.parametrize("jump", [3 * HOUR, 12 * HOUR, 30 * HOUR])
def test_a_clock_ahead_for_a_few_cycles_loses_no_label(jump: int, tmp_path: Path, stores: Stores) -> None:
    url = f"sqlite:///{tmp_path / 'live.db'}"
    engine = sa.create_engine(url)
    create_schema(engine)
    live = driver(shop(lookback=DAY), url, stores.new())
    SMALL.advance(engine, at(START), at(START + 16 * HOUR))
    for now in range(START + 17 * HOUR, START + 40 * HOUR, HOUR):
        SMALL.advance(engine, at(now - HOUR), at(now))
        live.at(now + 600 + (jump if START + 20 * HOUR <= now < START + 23 * HOUR else 0))
    engine.dispose()
    since, settled = START + 16 * HOUR, now - 4 * HOUR
    expected = undisturbed(live.monitor, url, stores.new(), now + 600)
    assert differences(within(expected, since, settled), within(dump(live.store), since, settled)) == []


@pytest.mark.parametrize("ahead", [2 * HOUR, 30 * HOUR, 365 * DAY])
def test_a_clock_set_ahead_adds_bounded_buckets_and_loses_none(ahead: int, tmp_path: Path, stores: Stores) -> None:
    url = f"sqlite:///{tmp_path / 'live.db'}"
    engine = sa.create_engine(url)
    create_schema(engine)
    live, wrong = driver(shop(), url, stores.new()), START + 36 * HOUR
    SMALL.advance(engine, at(START), at(START + 29 * HOUR))
    for now in range(START + 30 * HOUR, START + 48 * HOUR, HOUR):
        SMALL.advance(engine, at(now - HOUR), at(now))
        live.at(now + 600)
        if now == wrong:
            assert live.at(now + ahead).due <= 2 * 7 * 24
            too_early = [s for s, state in live.store.states(live.monitor.traffic, now).items() if state.final]
            assert all(s + HOUR + final_age(live.monitor) + DAY <= now + ahead for s in too_early)
        shown = take_snapshot(live.monitor, live.store, now + 600)
        assert all(p.end <= now for s in shown.series for p in (*s.final, *s.provisional))
    engine.dispose()
    settled = now - 4 * HOUR
    expected = undisturbed(live.monitor, url, stores.new(), now + 600)
    assert differences(within(expected, until=settled), within(dump(live.store), until=settled)) == []


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_a_first_start_a_year_ahead_leaves_no_trace_once_the_clock_is_right(shop_url: str, stores: Stores) -> None:
    expected = undisturbed(shop(), shop_url, stores.new())
    wrong = driver(shop(), shop_url, stores.new())
    assert wrong.at(SETTLED + 365 * DAY).due <= 7 * 24
    wrong.at(SETTLED)
    assert differences(within(expected), within(dump(wrong.store))) == []
    assert take_snapshot(wrong.monitor, wrong.store, SETTLED).series[0].final[0].end == END


def test_a_newest_request_from_a_wrong_clock_makes_no_bucket_final(shop_url: str, stores: Stores) -> None:
    read = driver(shop(), shop_url, stores.new())
    read.at(START + 10 * HOUR)
    read.store.record("shop", newest_source_at=float(END + 300 * DAY))
    outcome = read.at(END + 9 * HOUR)
    assert outcome.arrived.request is not None
    assert END <= outcome.arrived.request < END + HOUR
    assert not read.store.states(read.monitor.traffic, 0)[END + 4 * HOUR].final


# ---- definitions ---------------------------------------------------------------------------------------------------


def test_readings_of_one_kernel_share_one_stored_series(shop_url: str, stores: Stores) -> None:
    texts = ["ndcg@10", "ndcg(empty=zero)@10", "ndcg(aggregate=pooled)@10", "mrr@10"]
    monitor, store = shop(texts), stores.new()
    driver(monitor, shop_url, store).at(SETTLED)
    with store.reading() as connection:
        kernels = [k for (k,) in connection.execute(sa.text("SELECT kernel FROM series ORDER BY kernel"))]
    assert kernels == ["mrr@10", "ndcg@10", "traffic"]
    shown = {str(s.measure): s.final[0].value for s in take_snapshot(monitor, store, SETTLED).series}
    assert list(shown) == texts
    assert shown["ndcg@10"] > shown["ndcg(empty=zero)@10"] > 0  # type: ignore[operator]


def test_a_measure_added_later_fills_only_missing_buckets(shop_url: str, stores: Stores) -> None:
    store = stores.new()
    before = driver(shop(["ndcg@10"]), shop_url, store)
    before.at(SETTLED)
    times = before.read_times()
    both = driver(shop(["ndcg@10", "mrr@10"]), shop_url, store)
    outcome = both.at(SETTLED + 60)
    assert outcome.stored == outcome.due > 0
    traffic, ndcg, mrr = (store.states(d, 0) for d in both.monitor.definitions)
    for stored in (traffic, ndcg):
        assert {state.read_at for state in stored.values() if state.final} == set(times.values())
    assert {state.read_at for state in mrr.values()} == {SETTLED + 60}
    assert differences(undisturbed(both.monitor, shop_url, stores.new()), dump(store)) == []
    assert both.at(SETTLED + 120).due == 0


def test_a_changed_definition_starts_a_new_series_and_only_that_is_shown(shop_url: str, stores: Stores) -> None:
    store = stores.new()
    old = driver(shop(), shop_url, store)
    old.at(SETTLED)
    partials = dump(store)["partials"]
    changed = replace(shop(), recipe=replace(shop().recipe, attribution=7200))  # type: ignore[type-var]
    empty = take_snapshot(changed, store, SETTLED)
    assert [s.final for s in empty.series] == [()]
    new = driver(changed, shop_url, store)
    assert new.at(SETTLED).stored >= DAYS * 24
    after = dump(store)["partials"]
    assert {k: after[k] for k in partials} == partials, "the old series is kept as it was"
    shown = take_snapshot(changed, store, SETTLED)
    assert {s.definition for s in shown.series} == {changed.definition(changed.measures[0])}
    assert shown.series[0].final[0].value is not None


def test_a_configuration_change_names_restarted_series_and_the_changed_key(shop_url: str, stores: Stores) -> None:
    store, plain = stores.new(), shop(["ndcg@10", "mrr@10"])
    listed = Relation(select="SELECT request_id, item_id, position, served_at, device FROM rankings")
    was = replace(plain, rankings=replace(plain.rankings, relation=listed), slices=plain.slices[:1])
    assert new_series(was, store) == "", "nothing is stored"
    driver(was, shop_url, store).at(SETTLED)

    def said(**changes: Any) -> str:
        return new_series(replace(was, **changes), store)

    assert said() == ""
    assert said(slices=(), lookback=was.lookback * 2, measures=was.measures[:1]) == ""
    assert said(measures=(*was.measures, parse("map@10"))) == ""
    more = Relation(select=listed.select.replace("device", "device, country"))
    told = said(rankings=replace(was.rankings, relation=more), slices=plain.slices)
    assert told.startswith("all its series start from nothing with this configuration, because rankings.select changed")
    assert "let the `select:` read a view or SELECT *" in told
    told = said(recipe=replace(was.recipe, attribution=7200))  # type: ignore[type-var]
    assert "because relevance.events.attribution changed; `rankmon backfill --from DATE` reads their past" in told
    assert "select" not in told
    assert said(measures=(was.measures[0], parse("mrr@20"))) == (
        "its series of traffic start from nothing with this configuration, because the largest k of measures changed; "
        "`rankmon backfill --from DATE` reads their past"
    )


def test_a_new_definition_ignores_the_freshness_of_the_old_table(shop_url: str, stores: Stores) -> None:
    store = stores.new()
    driver(shop(), shop_url, store).at(SETTLED)
    assert store.progress("shop").newest_source_at is not None
    elsewhere = replace(
        shop(), rankings=replace(shop().rankings, relation=Relation(select="SELECT * FROM rankings WHERE 1 = 0"))
    )
    outcome = driver(elsewhere, shop_url, store).at(SETTLED)
    assert outcome.arrived.request is None
    assert not store.states(elsewhere.traffic, 0)[END - HOUR].final


def test_slices_beyond_the_cap_count_as_other_for_any_batch_size(shop_url: str, stores: Stores) -> None:
    monitor = replace(shop(lookback=DAY), slices=(Slice("query", "query", max_values=3),))
    calm, cut = (driver(monitor, shop_url, stores.new()) for _ in range(2))
    calm.at(SETTLED)
    cut.batch_size = BatchSize(most=1)
    cut.at(SETTLED)
    assert differences(dump(calm.store), dump(cut.store)) == []
    assert len({k[4] for k in dump(cut.store)["traffic"]}) == 5


def test_stopping_while_reading_leaves_nothing_half_written(shop_url: str, stores: Stores) -> None:
    monitor, store, asked = shop(), stores.new(), []

    def stop() -> bool:
        asked.append(None)
        return len(asked) > 4

    source = Pull(monitor, Database("shop", parse_url(shop_url), 60, stop))
    stopped = Driver(monitor, source, store)
    with pytest.raises(Stopped):
        stopped.backfill(SETTLED, (START, END))
    found = dump(store)
    starts = {k[5] for k in found["traffic"]}
    assert starts, "some batches were stored"
    assert {k[5] for k in found["partials"]} == starts
    stopped.source = pull(monitor, shop_url)
    stopped.at(SETTLED)
    assert differences(undisturbed(monitor, shop_url, stores.new()), dump(store)) == []
