"""One monitor's job: what a run does, what it counts, and what happens when something fails."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.errors import LeaseLost, SourceError, Stopped, StoreError
from monitor.evaluation.notices import Recipients
from monitor.page.state import states_of
from monitor.service.cycle import BatchSize
from monitor.service.history import VerdictHistory, extend_series
from monitor.service.periodic import LONGEST_RETRY
from monitor.service.runner import REASONS, Runner
from monitor.service.snapshot import Board
from monitor.service.telemetry import Telemetry
from monitor.source.pushdown import PushDown
from monitor.store import Store
from monitor.types import Monitor
from tests.service.test_cycle import DAYS, END, HOUR, SETTLED, filled, purge, shop_url
from tests.support.monitors import new_store, pull, shop
from tests.support.postgres import PostgresServer

__all__ = ["filled", "shop_url"]


class Faulty:
    """A source that fails on demand and otherwise works."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.fault: Exception | None = None
        self.before_reading: Callable[[], None] = lambda: None

    def freshness(self, since: float, now: float) -> Any:
        if self.fault is not None:
            raise self.fault
        return self.source.freshness(since, now)

    def held(self) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = self.source.held()
        return found

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        found: list[int] = self.source.row_counts(spans)
        return found

    def read(self, since: int, until: int) -> Any:
        self.before_reading()
        return self.source.read(since, until)


@dataclass
class Hand:
    """A clock that is set by hand."""

    time: float = SETTLED
    speed: float = 1.0

    def now(self) -> float:
        return self.time


@dataclass
class Bench:
    """A runner with everything it uses."""

    monitor: Monitor
    source: Faulty
    store: Store
    board: Board = field(default_factory=Board)
    telemetry: Telemetry = field(default_factory=Telemetry)
    clock: Hand = field(default_factory=Hand)
    stopping: threading.Event = field(default_factory=threading.Event)
    waits: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runner = Runner(
            self.monitor, self.source, self.store, self.board, self.telemetry, self.clock, self.stopping, self
        )

    def recipients(self) -> Recipients:
        return Recipients()

    def wake(self) -> None:
        raise AssertionError("there is nothing to send")

    def run(self) -> Exception | None:
        return self.runner.run(lambda _, seconds: self.waits.append(seconds)).error

    def count(self, name: str, *labels: str) -> float:
        return self.telemetry.counts().get((f"rankmon_{name}", ("shop", *labels)), 0)

    @property
    def shown(self) -> Any:
        return self.board.snapshots["shop"]


@pytest.fixture
def bench(shop_url: str, store: Store) -> Bench:
    monitor = shop(["ndcg@10", "ndcg(empty=zero)@10"])
    return Bench(monitor, Faulty(pull(monitor, shop_url)), store)


# ---- a run that goes well ------------------------------------------------------------------------------------------


def test_rows_aggregated_by_push_down_are_counted_as_read(shop_url: str, store: Store) -> None:
    pulled = shop(["ndcg@10"])
    summing = PushDown(replace(pulled, engine="pushdown"), pull(pulled, shop_url).database, is_bound=True)
    bench = Bench(pulled, Faulty(summing), store)
    assert bench.run() is None
    engine = sa.create_engine(shop_url)
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT count(*) FROM rankings")).scalar_one()
    engine.dispose()
    assert bench.count("source_rows") >= 0.9 * rows > 500


def test_a_run_stores_due_buckets_and_shows_them(bench: Bench) -> None:
    assert bench.run() is None
    assert bench.count("evaluations") == 1
    assert bench.count("buckets_stored") == len(bench.store.states(bench.monitor.traffic, 0)) > DAYS * 24
    assert bench.count("source_rows") > 500
    assert bench.shown.progress.last_success_at == SETTLED
    assert bench.shown.progress.newest_source_at is not None
    assert bench.shown.series[0].final[0].value is not None
    assert {stage for _, stage in bench.telemetry.stages()} == {"read", "cycle", "judge", "snapshot", "history"}


def test_every_counter_exists_from_the_start(bench: Bench) -> None:
    counts = bench.telemetry.counts()
    assert {reason for name, (_, *rest) in counts if name.endswith("failures") for reason in rest} == set(REASONS)
    assert counts["rankmon_skipped_runs", ("shop", "other_writer")] == 0
    assert set(counts.values()) == {0}


def test_a_deadline_leaves_work_to_the_next_run_but_each_run_progresses(shop_url: str, store: Store) -> None:
    monitor = shop(deadline=0)
    hurried = Bench(monitor, Faulty(pull(monitor, shop_url)), store)
    hurried.runner._batch_size = BatchSize(most=48)
    left = []
    while not left or left[-1]:
        assert hurried.run() is None
        left.append(hurried.shown.due_buckets)
    assert len(left) > 2
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == len(left), "every run makes progress"
    assert hurried.count("evaluations") == len(left)


# ---- runs that fail ------------------------------------------------------------------------------------------------


def test_an_error_with_undecodable_characters_is_stored_and_shown(bench: Bench) -> None:
    bench.source.fault = SourceError("source shop: there is no file caf\udce9\0", "connect")
    assert isinstance(bench.run(), SourceError)
    assert bench.store.progress("shop").last_error == "source shop: there is no file caf\\udce9"
    assert bench.shown.progress.last_error == "source shop: there is no file caf\\udce9"
    assert len(bench.waits) == 1


def test_failures_are_counted_by_reason_and_retried_with_bounded_backoff(bench: Bench) -> None:
    for reason in ["connect"] * 9 + ["timeout"]:
        bench.source.fault = SourceError("source shop: gone", reason)
        assert isinstance(bench.run(), SourceError)
    assert bench.waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, LONGEST_RETRY]
    assert bench.count("evaluation_failures", "connect") == 9
    assert bench.count("evaluation_failures", "timeout") == 1
    assert bench.count("evaluations") == 0
    assert bench.shown.progress.last_error == "source shop: gone"
    assert bench.shown.progress.last_attempt_at == SETTLED
    assert bench.shown.progress.last_success_at is None


def test_retries_of_a_slow_monitor_back_off_to_its_refresh(shop_url: str, store: Store) -> None:
    monitor = shop(refresh=7200)
    slow = Bench(monitor, Faulty(pull(monitor, shop_url)), store)
    slow.source.fault = SourceError("gone", "connect")
    for _ in range(14):
        slow.run()
    assert max(slow.waits) == 7200


def test_a_run_warns_of_a_source_purged_before_labels_are_complete(
    bench: Bench, shop_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.clock.time = END + HOUR
    assert bench.run() is None
    assert "keeping stored values" not in caplog.text
    purge(shop_url, END)
    bench.clock.time = SETTLED
    assert bench.run() is None
    assert (
        "monitor shop: source has no requests or no labels left for 2 buckets; keeping stored values. "
        "Keep rankings and labels for at least 5h"
    ) in caplog.text
    caplog.clear()
    bench.clock.time += HOUR
    assert bench.run() is None
    assert "keeping stored values" not in caplog.text


def test_a_run_warns_once_of_series_restarted_by_a_change(
    bench: Bench, shop_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.run() is None
    monitor = replace(bench.monitor, recipe=replace(bench.monitor.recipe, attribution=7200))  # type: ignore[type-var]
    changed = Bench(monitor, Faulty(pull(monitor, shop_url)), bench.store)
    for _ in range(2):
        assert changed.run() is None
    assert caplog.text.count("all its series start from nothing with this configuration, because relevance.events") == 1


def test_recovery_after_an_outage_is_logged_and_resets_the_backoff(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "monitor")
    bench.run()
    values = [p.value for s in bench.shown.series for p in s.final]
    bench.source.fault = SourceError("source shop: gone", "connect")
    bench.clock.time += HOUR
    bench.run()
    bench.run()
    assert [p.value for s in bench.shown.series for p in s.final] == values, "the last values stay"
    assert bench.shown.progress.last_success_at == SETTLED, "with their age"
    assert bench.shown.taken_at == SETTLED + HOUR
    bench.source.fault = None
    assert bench.run() is None
    assert "works again after 2 failures" in caplog.text
    assert "failed once, next try in 5 s" in caplog.text
    assert "failed 2 times in a row, next try in 10 s" in caplog.text
    assert bench.shown.progress.last_error == ""
    bench.source.fault = SourceError("again", "connect")
    bench.run()
    assert bench.waits == [5, 10, 5], "the backoff starts over"


def test_buckets_stored_before_a_failure_are_counted_and_shown(bench: Bench) -> None:
    reads: list[None] = []

    def fail_at_the_third() -> None:
        reads.append(None)
        if len(reads) == 3:
            raise SourceError("gone", "connect")

    bench.source.before_reading = fail_at_the_third
    bench.runner._batch_size = BatchSize(most=48)
    assert isinstance(bench.run(), SourceError)
    assert bench.count("buckets_stored") == 60
    assert bench.shown.due_buckets == 168 - 1 - 60
    assert bench.shown.series[0].final


def test_a_bug_in_a_cycle_is_counted_logged_and_survived(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("monitor.service.reading.to_partials", lambda *_: 1 / 0)
        assert isinstance(bench.run(), ZeroDivisionError)
    assert bench.count("evaluation_failures", "bug") == 1
    assert "a bug in rankmon" in caplog.text
    assert "Traceback" in caplog.text
    assert bench.waits == [5]
    assert bench.run() is None


def test_a_bug_in_a_snapshot_is_counted_and_survived(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("monitor.service.snapshot.points", lambda *_, **__: 1 / 0)
        assert bench.run() is None
    assert bench.board.snapshots == {}
    assert bench.count("evaluation_failures", "bug") == 1
    assert "ZeroDivisionError" in caplog.text
    bench.run()
    assert bench.shown.series[0].final


def test_rows_from_the_future_are_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.clock.time = SETTLED - 2 * 86_400
    for _ in range(3):
        bench.run()
        bench.clock.time += 1
    assert caplog.text.count("rows dated in the future") == 1
    assert bench.shown.future_rows > 0


# ---- other writers -------------------------------------------------------------------------------------------------


def test_a_lease_held_by_another_process_is_a_skipped_run(bench: Bench, tmp_path: Path) -> None:
    other = Store(bench.store.url, lease_seconds=5)
    with other.hold("shop"):
        assert isinstance(bench.run(), LeaseLost)
    assert bench.count("skipped_runs", "other_writer") == 1
    assert bench.count("evaluations") == 0
    assert [bench.count("evaluation_failures", reason) for reason in REASONS] == [0] * len(REASONS)
    assert bench.waits == [], "it is not a failure: the usual schedule goes on"
    assert bench.run() is None
    other.close()


def test_a_run_without_new_buckets_reuses_the_shown_series(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    partials = Store.partials

    def counted(store: Store, definition: Any, *rest: Any, **more: Any) -> Any:
        loads.append(definition.kernel)
        return partials(store, definition, *rest, **more)

    monkeypatch.setattr(Store, "partials", counted)
    monkeypatch.setattr("monitor.service.publisher.extend_series", lambda *_: ())
    bench.run()
    assert loads == ["traffic", "ndcg@10"], "two readings of one kernel are loaded once"
    shown = bench.shown
    bench.clock.time += 60
    bench.run()
    assert len(loads) == 2
    assert bench.shown.series is shown.series
    assert bench.shown.taken_at == bench.shown.progress.last_success_at == SETTLED + 60
    bench.clock.time += HOUR
    bench.run()
    assert len(loads) == 4, "a new hour was stored"


def test_histories_grow_with_stored_buckets_and_restart_after_other_writers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    formers = []

    def noted(monitor: Any, store: Store, now: float, former: Any) -> Any:
        formers.append(former)
        return extend_series(monitor, store, now, former)

    monkeypatch.setattr("monitor.service.publisher.extend_series", noted)
    bench.run()
    bench.clock.time += 60
    bench.run()
    assert formers == [()], "nothing was stored by the second run"
    first = bench.shown.histories
    assert first[0].drawn
    bench.clock.time += HOUR
    bench.run()
    assert formers[1:] == [first]
    with Store(bench.store.url, 5).hold("shop"):
        pass
    bench.clock.time += HOUR
    bench.run()
    assert formers[2:] == [()]


def test_the_verdict_history_grows_and_restarts_after_other_writers(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    formers = []

    def noted(monitor: Any, store: Store, now: float, former: Any) -> Any:
        formers.append(former)
        return VerdictHistory(HOUR, HOUR)

    monkeypatch.setattr("monitor.service.publisher.extend_verdicts", noted)
    bench.run()
    bench.clock.time += HOUR
    bench.run()
    assert formers == [None, VerdictHistory(HOUR, HOUR)]
    assert bench.shown.verdict_history == VerdictHistory(HOUR, HOUR)
    with Store(bench.store.url, 5).hold("shop"):
        pass
    bench.clock.time += HOUR
    bench.run()
    assert formers[2:] == [None]


def test_a_bug_in_the_histories_leaves_the_rest_of_the_snapshot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("monitor.service.publisher.extend_series", broken)
    assert bench.run() is None
    assert bench.shown.series[0].final
    assert bench.count("evaluation_failures", "bug") == 1


def test_a_run_shows_what_another_process_stored_meanwhile(bench: Bench, shop_url: str) -> None:
    bench.clock.time = SETTLED - 2 * 86_400
    bench.run()
    other = Bench(bench.monitor, Faulty(pull(bench.monitor, shop_url)), Store(bench.store.url, 5))
    other.run()
    assert bench.shown.series[0].final[0].end < other.shown.series[0].final[0].end
    bench.clock.time = SETTLED + 1
    bench.run()
    assert bench.shown.series == other.shown.series
    other.store.close()


# ---- stores that are away ------------------------------------------------------------------------------------------


def test_a_store_outage_is_a_failure_and_not_a_crash(
    postgres: PostgresServer, postgres_url: str, shop_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = shop()
    away = Bench(monitor, Faulty(pull(monitor, shop_url)), new_store(postgres_url))
    away.run()
    shown = away.shown
    postgres.stop()
    try:
        for _ in range(2):
            assert isinstance(away.run(), StoreError)
        assert (away.shown.series, away.shown.taken_at) == (shown.series, shown.taken_at), "it stays, with its age"
        assert "store postgresql" in away.shown.progress.last_error, "and why there is nothing newer"
        assert states_of(away.shown, away.clock.time)[0].kind == "failing"
        assert away.count("evaluation_failures", "store") == 2
        assert away.waits == [5, 10]
        warned = [r.getMessage()[:60] for r in caplog.records if r.levelno >= logging.WARNING]
        assert [said.split(",")[0] for said in warned] == [
            "monitor shop: failed once",
            "monitor shop: failed 2 times in a row",
        ], "one warning per run, whatever else fails on the store"
    finally:
        postgres.start()
    away.clock.time += HOUR
    assert away.run() is None
    assert away.shown.taken_at == SETTLED + HOUR
    assert away.shown.progress.last_error == ""
    away.store.close()


def test_a_failure_disappears_once_another_process_succeeds(bench: Bench, shop_url: str) -> None:
    bench.run()
    bench.clock.time += HOUR
    bench.source.fault = SourceError("the shop is closed")
    bench.run()
    assert bench.shown.progress.last_error == "the shop is closed"
    other = Bench(bench.monitor, Faulty(pull(bench.monitor, shop_url)), Store(bench.store.url, 5))
    other.clock.time = bench.clock.time + HOUR
    other.run()
    bench.runner.refresh_snapshot(bench.clock.time + HOUR)
    assert bench.shown.progress.last_error == ""
    other.store.close()


def test_a_read_only_store_is_shown_as_failing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run()

    def full(*_: object, **__: object) -> None:
        raise StoreError("store: database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "record", full)
        bench.clock.time += HOUR
        bench.run()
        progress = bench.shown.progress
        assert (progress.last_attempt_at, progress.last_success_at) == (SETTLED + HOUR, SETTLED)
        assert progress.last_error == "store: database or disk is full"
        assert bench.store.progress("shop").last_error == "", "the store could not record it"
    bench.clock.time += HOUR
    bench.run()
    assert bench.shown.progress.last_error == ""


def test_a_store_killed_during_a_run_keeps_its_stored_buckets(
    postgres: PostgresServer, postgres_url: str, shop_url: str
) -> None:
    monitor = shop()
    away = Bench(monitor, Faulty(pull(monitor, shop_url)), new_store(postgres_url))
    reads: list[None] = []

    def stop_at_the_second() -> None:
        reads.append(None)
        if len(reads) == 2:
            postgres.kill()

    away.source.before_reading = stop_at_the_second
    try:
        assert isinstance(away.run(), StoreError)
    finally:
        postgres.start()
    assert len(away.store.states(monitor.traffic, 0)) == 12
    assert away.run() is None
    assert len(away.store.states(monitor.traffic, 0)) >= DAYS * 24
    away.store.close()


# ---- stopping ------------------------------------------------------------------------------------------------------


def test_no_run_starts_while_stopping(bench: Bench) -> None:
    bench.stopping.set()
    assert isinstance(bench.run(), Stopped)
    assert bench.store.progress("shop").last_attempt_at is None
    assert bench.board.snapshots == {}


def test_stopping_ends_a_run_after_its_batch_without_a_failure(bench: Bench) -> None:
    bench.source.before_reading = bench.stopping.set
    bench.run()
    assert bench.count("buckets_stored") == 12
    assert sum(bench.count("evaluation_failures", reason) for reason in REASONS) == 0
    assert bench.waits == []


def test_a_read_stopped_midway_is_not_a_failure(bench: Bench) -> None:
    def stop() -> None:
        bench.stopping.set()
        raise Stopped("reading was stopped")

    bench.source.before_reading = stop
    assert isinstance(bench.run(), Stopped)
    assert sum(bench.count("evaluation_failures", reason) for reason in REASONS) == 0
    assert bench.store.states(bench.monitor.traffic, 0) == {}


def test_a_retired_runner_ends_after_its_batch_and_shows_nothing(bench: Bench) -> None:
    bench.source.before_reading = bench.runner.retire
    bench.run()
    assert bench.board.snapshots == {}
    assert bench.count("buckets_stored") == 12
    bench.runner.refresh_snapshot(SETTLED)
    assert bench.board.snapshots == {}
    assert isinstance(bench.run(), Stopped)


def test_a_forgotten_monitor_counts_nothing_until_it_returns(bench: Bench) -> None:
    bench.source.before_reading = lambda: bench.telemetry.forget("shop")
    bench.run()
    assert bench.telemetry.counts() == {}
    assert bench.telemetry.stages() == {}
    Bench(bench.monitor, bench.source, bench.store, telemetry=bench.telemetry)
    assert bench.count("evaluations") == 0
    assert ("rankmon_evaluations", ("shop",)) in bench.telemetry.counts()


def test_forgetting_a_monitor_keeps_reload_counts_of_the_same_label() -> None:
    telemetry = Telemetry()
    telemetry.count("rankmon_config_reloads", "applied")
    telemetry.forget("applied")
    telemetry.count("rankmon_config_reloads", "applied")
    assert telemetry.counts() == {("rankmon_config_reloads", ("applied",)): 2}


def test_a_missing_time_column_is_counted_as_missing(shop_url: str, store: Store) -> None:
    monitor = shop()
    wrong = replace(monitor, rankings=replace(monitor.rankings, time=replace(monitor.rankings.time, column="served")))
    broken = Bench(wrong, Faulty(pull(wrong, shop_url)), store)
    error = broken.run()
    assert isinstance(error, SourceError)
    assert "no such column" in str(error)
    assert broken.count("evaluation_failures", "missing") == 1


def test_a_missing_select_permission_is_counted_as_permission(
    postgres_url: str, shop_url: str, store: Store, tmp_path: Path
) -> None:
    from tests.service.test_cycle import log_searches, logged_search

    log_searches(postgres_url, hours=1)
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS reader")
        connection.exec_driver_sql("CREATE ROLE reader LOGIN")
    engine.dispose()
    monitor = replace(logged_search(postgres_url), name="shop")
    refused = Bench(monitor, Faulty(pull(monitor, postgres_url.replace("postgres@", "reader@"))), store)
    error = refused.run()
    assert isinstance(error, SourceError)
    assert "grant SELECT" in str(error)
    assert refused.count("evaluation_failures", "permission") == 1
