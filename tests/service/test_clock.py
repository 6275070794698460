"""A wrong clock: stored data and the source's own clock are evidence against it."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from monitor.errors import ClockError, Stopped
from monitor.evaluation import run
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.series.finality import BucketState, due_buckets
from monitor.service.cycle import BatchSize, run_cycle
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import Drift, TimeColumn
from tests.evaluation.test_judging import BASE, Bench, bench
from tests.support.monitors import DAY, shop
from tests.support.tallies import HOUR

__all__ = ["bench"]

YEAR_2000 = 946_684_800


def told(bench: Bench) -> tuple[list[str], list[str], int | None]:
    until = bench.store.alerts.state("search").until
    return [s.incident.state for s in bench.incidents], [kind for _, kind in bench.notices], until


@pytest.mark.parametrize("clock", [YEAR_2000, BASE - 365 * DAY, BASE - 40 * DAY, BASE + 20 * HOUR])
def test_a_clock_far_behind_withdraws_nothing_and_judging_resumes(bench: Bench, clock: int) -> None:
    bench.put(*[0.8] * 30)
    bench.judge()
    bench.live(0.4, 0.4)
    before, right = told(bench), bench.hour
    assert before[:2] == (["firing"], ["firing"])
    bench.hour = (clock - BASE) // HOUR
    bench.judge()
    assert told(bench) == before
    bench.hour = right
    bench.live(0.8, 0.8)
    assert told(bench)[:2] == (["resolved"], ["firing", "resolved"])


def test_a_clock_hours_behind_still_judges_up_to_its_own_time(bench: Bench) -> None:
    bench.put(*[0.8] * 4, 0.4, 0.4, read_at=BASE + 6 * HOUR)
    bench.put(*[0.4] * 12, 0.8, 0.8, read_at=BASE + 20 * HOUR)
    bench.hour = 6
    bench.judge()
    assert told(bench) == (["firing"], ["firing"], BASE + 6 * HOUR)
    bench.hour = 20
    bench.judge()
    assert told(bench) == (["resolved"], ["firing", "resolved"], BASE + 20 * HOUR)


@pytest.mark.parametrize("clock", [YEAR_2000, BASE - 365 * DAY, BASE - 40 * DAY])
def test_a_cycle_refuses_to_read_with_a_clock_far_behind(bench: Bench, clock: int, no_source: Pull) -> None:
    bench.put(*[0.8] * 30)
    bench.judge()
    with bench.store.hold("search") as lease, pytest.raises(ClockError, match="this machine's clock is wrong"):
        next(run_cycle(bench.monitor, clock, no_source, bench.store, lease, BatchSize()))


@pytest.fixture
def no_source() -> Pull:
    return Pull(shop(), Database("shop", sa.make_url("sqlite:////nowhere/shop.db"), 5))


def test_requests_dated_by_a_clock_far_ahead_are_not_evidence(bench: Bench) -> None:
    bench.put(*[0.8] * 30)
    bench.judge()
    bench.put(0.8, at=30 + 365 * 24)
    assert bench.store.retention.behind(BASE + 30 * HOUR, "search") is None
    assert bench.store.retention.behind(BASE + 20 * HOUR, "search") is None


def test_the_current_bucket_is_not_evidence_of_a_clock_behind(bench: Bench) -> None:
    """Stored by a clock that ran ahead, it once kept correct clocks from judging until it ended, for up to a day."""
    bench.put(*[0.8] * 30)
    bench.judge()
    assert bench.store.retention.behind(BASE + 29 * HOUR + 1800, "search") is None
    assert bench.store.retention.behind(BASE + 28 * HOUR + 1800, "search") == BASE + 30 * HOUR


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_start_in_2000_leaves_no_gap_if_no_request_is_stored(is_begun: bool) -> None:
    states = {YEAR_2000: BucketState(YEAR_2000 + 1e6, True, "awaited")}
    due = due_buckets(shop(), states, BASE, float(BASE), is_begun=is_begun)
    assert (len(due) > 200_000) == is_begun
    assert max(due) < BASE


# ---- the source's clock ------------------------------------------------------------------------------------------


@pytest.fixture
def pull(postgres_url: str) -> Pull:
    """A log on a server; by the server's clock its newest request is a minute old."""
    engine, now = sa.create_engine(postgres_url), datetime.now(UTC)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE rankings (request_id text, item_id text, position int, "
                                   "served_at timestamptz, device text, country text)"))  # fmt: skip
        connection.execute(sa.text("CREATE TABLE events (request_id text, item_id text, type text, "
                                   "occurred_at timestamptz)"))  # fmt: skip
        rows = [{"r": f"r{n}", "at": datetime.fromtimestamp(now.timestamp() - 60 * n, UTC)} for n in range(1, 100)]
        connection.execute(sa.text("INSERT INTO rankings VALUES (:r, 'i', 1, :at, 'tv', 'de')"), rows)
    engine.dispose()
    found = shop()
    rankings, events = found.rankings, found.recipe
    monitor = replace(
        found,
        rankings=replace(rankings, time=TimeColumn(rankings.time.column)),
        recipe=replace(events, time=TimeColumn("occurred_at")),  # type: ignore[type-var]
        stale_after=HOUR,
    )
    return Pull(monitor, Database("shop", sa.make_url(postgres_url), 30))


@pytest.mark.parametrize("off", [DAY + HOUR, 40 * DAY, 365 * DAY, -2 * DAY, -40 * DAY, -365 * DAY])
def test_a_clock_far_from_the_sources_clock_stops_the_cycle(pull: Pull, store: Store, off: int) -> None:
    with store.hold("shop") as lease:
        cycle = run_cycle(pull.monitor, time.time() + off, pull, store, lease, BatchSize(), is_real=True)
        with pytest.raises(ClockError, match="the source's clock says"):
            next(cycle)
    assert store.newest_bucket(pull.monitor.traffic) is None


@pytest.mark.parametrize("off", [0, -HOUR, 600])
def test_a_nearly_right_clock_is_accepted(pull: Pull, store: Store, off: int) -> None:
    with store.hold("shop") as lease:
        assert [*run_cycle(pull.monitor, time.time() + off, pull, store, lease, BatchSize(), is_real=True)]


def test_a_replay_ignores_the_sources_clock(pull: Pull, store: Store) -> None:
    with store.hold("shop") as lease:
        assert [*run_cycle(pull.monitor, time.time() + 2 * DAY, pull, store, lease, BatchSize())]


# ---- a long past -------------------------------------------------------------------------------------------------


def test_a_long_past_is_judged_in_parts_with_the_same_result(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.live(0.8, 0.8)
    bench.put(*[0.8] * 30, 0.4, 0.4, 0.4, 0.8, 0.8, *[0.8] * 30, 0.4, 0.4)
    monkeypatch.setattr(run, "MAX_WINDOWS", 7)
    bench.judge()
    assert [s.incident.state for s in bench.incidents] == ["resolved", "firing"]
    assert [kind for _, kind in bench.notices] == ["firing"]
    assert bench.store.alerts.state("search").until == BASE + bench.hour * HOUR


def test_a_gap_of_26_years_writes_no_verdicts_for_its_hours(bench: Bench) -> None:
    bench.monitor = replace(bench.monitor, drift=Drift(bench.monitor.measures[0]))
    bench.put(*[0.8] * 30)
    bench.judge()
    bench.put(*[0.8] * 30, at=26 * 365 * 24)
    bench.judge()
    assert bench.store.alerts.state("search").until == BASE + bench.hour * HOUR
    with bench.store.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM verdicts")).scalar() == 60


def test_judging_a_long_past_stops_with_the_process(bench: Bench) -> None:
    bench.put(*[0.8] * 2000)
    asked = iter([False, False, True])

    with bench.store.hold("search") as lease, pytest.raises(Stopped):
        judge_monitor(
            bench.monitor, bench.hour * HOUR + BASE, bench.store, lease, Recipients(), is_over=lambda: next(asked)
        )
    assert bench.store.alerts.state("search").until is None


def test_judging_stops_at_its_deadline_and_resumes_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:

    bench.live(0.8, 0.8)
    bench.put(*[0.8] * 30)
    monkeypatch.setattr(run, "MAX_WINDOWS", 7)
    now = BASE + bench.hour * HOUR
    for reached in (9, 16):
        with bench.store.hold("search") as lease:
            judge_monitor(bench.monitor, now, bench.store, lease, Recipients(), leaves_off=lambda: True)
        assert bench.store.alerts.state("search").until == BASE + reached * HOUR
