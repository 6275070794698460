"""Old buckets are rolled up and deleted without changing any number, whatever happens in between."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa

from monitor.cli import run
from monitor.cli.commands.series import series_table, stored_span
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.config import load
from monitor.errors import ConfigError, InputError, StoreError
from monitor.measures.measure import parse
from monitor.messages.words import utc
from monitor.series.retention import apart_from, least_age
from monitor.service.cycle import BatchSize, run_backfill
from monitor.service.retention import RETENTION_EVERY, WORK_PER_CYCLE, RetentionWorker, doubt
from monitor.store import CachedStore, Store
from monitor.store.history_cache import reach
from monitor.store.schema import buckets, partials, refusals, traffic
from monitor.types import Monitor, Retention, RollUp
from tests.benchmarks.incremental import Daemon, write_log
from tests.support.drift import Ranking
from tests.support.monitors import new_store
from tests.support.simulated import CONFIG
from tests.support.tallies import HOUR, line, python, rows, tally, watched, write

DAY = 24 * HOUR
DAYS = 12
MONITOR = replace(watched(), windows=(6 * HOUR, DAY, 3 * DAY), retention=Retention(None, RollUp(5 * DAY)))
"""Its ages are shorter than a configuration allows, so that little data suffices."""
NOW = float(DAYS * DAY)
ROLLED = range((DAYS - 5) * DAY)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url)
    yield made
    made.close()


def fill(store: Store, hours: range = range(DAYS * 24), monitor: Monitor = MONITOR, **more: Any) -> None:
    rng = np.random.default_rng(5)
    counts = {n * HOUR: {"mobile": int(rng.poisson(4)), "desktop": int(rng.poisson(2))} for n in hours}
    refused = {(n * HOUR, "bad_grade"): n % 3 + 1 for n in hours if n % 5 == 0}
    with store.hold(monitor.name) as lease:
        write(store, lease, monitor, tally(monitor, counts, 0.7, refused), **more)


def keep(store: Store, monitor: Monitor = MONITOR, now: float = NOW) -> RetentionWorker:
    """Do all the work that is due in one go."""
    keeping = RetentionWorker(monitor, store, clock=lambda: 0.0)
    with store.hold(monitor.name) as lease:
        keeping.advance(lease, now, lambda: False)
    return keeping


def table(store: Store, step: int = DAY, lengths: tuple[int, ...] = MONITOR.windows) -> pd.DataFrame:
    return series_table(store, MONITOR, MONITOR.measures, lengths, (0, DAYS * DAY), step, with_slices=True)


def by_days(found: pd.DataFrame) -> pd.DataFrame:
    """Without the windows that are shorter than a day."""
    return found[found.window != "6h"].reset_index(drop=True)


def count(store: Store, table: sa.Table, coarse: bool = False) -> int:
    query = sa.select(sa.func.count()).select_from(table).join(buckets)
    return store.integer(query.where((buckets.c.seconds > 0) == sa.literal(coarse))) or 0


def starts(store: Store) -> set[int]:
    return set(store.history(MONITOR.traffic, 0, 1 << 40).starts.tolist())


# ---- rolling up ----------------------------------------------------------------------------------------------------


def test_windows_on_the_coarser_grid_keep_their_values(store: Store) -> None:
    fill(store)
    before, cells = table(store), count(store, partials)
    keep(store)
    assert starts(store) == set(range(ROLLED.stop, DAYS * DAY, HOUR))
    assert count(store, partials) < cells / 2
    assert count(store, partials, coarse=True) == 2 * 3 * (DAYS - 5)
    pd.testing.assert_frame_equal(by_days(before), table(store, lengths=(DAY, 3 * DAY)), rtol=1e-12)
    assert stored_span(store, MONITOR) == (0, DAYS * DAY)


def test_only_windows_that_cut_a_coarser_bucket_are_left_out(store: Store) -> None:
    fill(store)
    before = table(store, 6 * HOUR)
    keep(store)
    after = table(store, 6 * HOUR)
    ends = before.end.map(lambda moment: int(moment.timestamp()))
    begins = ends - before.window.map({"6h": 6 * HOUR, "24h": DAY, "3d": 3 * DAY})
    cut = pd.concat([(at < ROLLED.stop) & (at % DAY != 0) for at in (begins, ends)], axis=1).any(axis=1)
    whole = before[~cut].drop(columns=["lower", "upper", "method", "basis"]).reset_index(drop=True)
    found = after.drop(columns=["lower", "upper", "method", "basis"])
    pd.testing.assert_frame_equal(whole, found, rtol=1e-12)
    assert 0 < len(found) < len(before)


def test_retention_is_idempotent(store: Store) -> None:
    fill(store)
    keep(store)
    once = rows(store)
    keep(store)
    assert rows(store) == once


def test_refused_rows_are_still_counted_after_rolling_up(store: Store) -> None:
    fill(store)
    before = store.refused(MONITOR.traffic, 0, ROLLED.stop)
    keep(store)
    assert store.refused(MONITOR.traffic, 0, ROLLED.stop) == before
    assert store.refused(MONITOR.traffic, DAY, 2 * DAY) != {}
    assert count(store, refusals) + count(store, refusals, coarse=True) < DAYS * 24 / 5


@pytest.mark.parametrize("lack", ["missing", "open", "marked"])
def test_an_incomplete_day_is_not_rolled_up(store: Store, lack: str) -> None:
    hours = [n for n in range(DAYS * 24) if lack != "missing" or n != 30]
    fill(store, hours, finals=[n * HOUR for n in hours if lack != "open" or n != 30])  # type: ignore[arg-type]
    if lack == "marked":
        store.change(buckets.update().where(buckets.c.bucket_start == 30 * HOUR).values(mark="awaited"))
    before = table(store)
    keep(store)
    assert {start for start in starts(store) if start < ROLLED.stop} == {
        start for start in range(DAY, 2 * DAY, HOUR) if lack != "missing" or start != 30 * HOUR
    }
    pd.testing.assert_frame_equal(by_days(before), table(store, lengths=(DAY, 3 * DAY)), rtol=1e-12)


def test_a_day_with_an_added_dimension_is_not_rolled_up(store: Store) -> None:
    fill(store, range(30))
    with store.hold(MONITOR.name) as lease:
        later = tally(MONITOR, {n * HOUR: {"mobile": 3} for n in range(30, DAYS * 24)})
        for sums in (later.traffic, *later.measures.values()):
            for start, dimension, value in [key for key in sums if key[1]]:
                sums[start, "country", "nz"] = sums[start, dimension, value]
        later.admitted.append(("country", "nz"))
        write(store, lease, MONITOR, later)
    before = table(store, lengths=(DAY, 3 * DAY))
    keep(store)
    assert {start for start in starts(store) if start < ROLLED.stop} == set(range(DAY, 2 * DAY, HOUR))
    pd.testing.assert_frame_equal(before, table(store, lengths=(DAY, 3 * DAY)), rtol=1e-12)


def test_sums_of_the_view_stay_the_same(store: Store) -> None:
    query = (
        "SELECT dimension, value, sum(total), sum(requests) FROM rankmon_buckets WHERE measure = 'mrr@10' "
        "AND bucket_start < 345600 AND is_current GROUP BY dimension, value ORDER BY dimension, value"
    )
    fill(store)
    found = []
    for step in (lambda _: None, keep):
        step(store)
        with store.reading() as connection:
            found.append([tuple(row) for row in connection.exec_driver_sql(query)])
    for one, other in zip(*found, strict=True):
        assert one[:2] == other[:2]
        assert one[2:] == pytest.approx(other[2:], rel=1e-12)


# ---- deleting ------------------------------------------------------------------------------------------------------

FORGETFUL = replace(MONITOR, retention=Retention(8 * DAY, RollUp(5 * DAY)))


@pytest.mark.parametrize("rolled", [True, False])
def test_data_older_than_retain_is_deleted_day_by_day(store: Store, rolled: bool) -> None:
    fill(store)
    keep(store, replace(MONITOR, retention=Retention(8 * DAY, RollUp(5 * DAY) if rolled else None)), NOW + HOUR)
    for each in (partials, traffic, refusals):
        oldest = store.integer(sa.select(sa.func.min(buckets.c.bucket_start)).join(each))
        assert oldest is None or oldest >= 4 * DAY
    assert (count(store, traffic, coarse=True) > 0) is rolled
    assert stored_span(store, MONITOR) == (4 * DAY, DAYS * DAY)


def test_ages_count_from_stored_requests_if_the_clock_runs_ahead(store: Store) -> None:
    fill(store)
    keep(store, FORGETFUL)
    before = rows(store)
    keep(store, FORGETFUL, NOW + 1000 * DAY)
    assert rows(store) == before


def test_requests_dated_by_a_wrong_clock_age_the_data_only_by_their_days(store: Store) -> None:
    fill(store, hours=range((DAYS - 1) * 24))
    ahead = (DAYS + 1000) * 24
    fill(store, hours=range(ahead, ahead + 5))
    assert store.retention.present(ahead * HOUR + DAY, MONITOR.name) == NOW
    keep(store, FORGETFUL, ahead * HOUR + DAY)
    assert stored_span(store, MONITOR)[0] == (DAYS - 8) * DAY


def test_the_doubt_names_the_newest_requests_and_the_time_they_support(store: Store) -> None:
    fill(store, hours=range((DAYS - 1) * 24))
    ahead = (DAYS + 1000) * 24
    fill(store, hours=range(ahead, ahead + 5))
    assert doubt(store, ahead * HOUR + DAY) == (
        f"this clock says {utc(ahead * HOUR + DAY)}, but requests are stored up to {utc((ahead + 5) * HOUR)} on so few "
        f"days that they count only up to {utc(int(NOW))}; check the clock, or whether days are missing. Until they "
        f"agree, retention counts from {utc(int(NOW))}"
    )


def test_nothing_is_deleted_without_a_week_of_requests(store: Store) -> None:
    fill(store, hours=range(6 * 24))
    before = rows(store)
    keep(store, FORGETFUL, NOW + 1000 * DAY)
    assert rows(store) == before
    assert store.retention.present(NOW) == 0


def test_a_pinned_baseline_is_never_rolled_up_or_deleted(store: Store) -> None:
    pinned = (2 * DAY + HOUR, 3 * DAY)
    rule = Rule("p", parse("ndcg@10"), DAY, Drop(0.1, 0.1, True, Baseline(pinned=pinned)))
    fill(store)
    keep(store, replace(FORGETFUL, alerts=(rule,)))
    assert {start for start in starts(store) if start < 4 * DAY} == set(range(2 * DAY, 3 * DAY, HOUR))


def test_retention_covers_former_definitions_but_not_other_monitors(store: Store) -> None:
    other, former = replace(MONITOR, name="other"), replace(watched(grade="former"), retention=FORGETFUL.retention)
    for monitor in (FORGETFUL, other, former):
        fill(store, monitor=monitor)
    keep(store, FORGETFUL)
    assert store.oldest_bucket(other.traffic) == 0
    assert store.oldest_bucket(former.traffic) == store.oldest_bucket(FORGETFUL.traffic) == ROLLED.stop


def test_without_settings_nothing_is_rolled_up_or_deleted(store: Store) -> None:
    fill(store)
    before = rows(store)
    keeping = keep(store, replace(MONITOR, retention=Retention()))
    assert rows(store) == before
    assert keeping.holding is not None
    assert keeping.holding.oldest == 0
    assert keeping.holding.rows == count(store, partials) + count(store, traffic)


# ---- a little at a time --------------------------------------------------------------------------------------------


def test_long_work_continues_in_later_cycles_and_then_pauses(store: Store) -> None:
    fill(store)
    clock = iter(np.arange(0, 1000, WORK_PER_CYCLE / 1.5).tolist())
    keeping, cycles = RetentionWorker(MONITOR, store, clock=lambda: next(clock)), 0
    while keeping.holding is None:
        with store.hold(MONITOR.name) as lease:
            keeping.advance(lease, NOW, lambda: False)
        cycles += 1
    assert cycles > 2
    assert starts(store) == set(range(ROLLED.stop, DAYS * DAY, HOUR))
    fill(store, range(24))
    with store.hold(MONITOR.name) as lease:
        assert not keeping.advance(lease, NOW, lambda: False)
    assert next(clock) < RETENTION_EVERY


def test_retention_stops_when_asked(store: Store) -> None:
    fill(store)
    before = rows(store)
    with store.hold(MONITOR.name) as lease:
        assert not RetentionWorker(MONITOR, store).advance(lease, NOW, lambda: True)
    assert rows(store) == before


@pytest.mark.parametrize("fail_at", [1, 2, 3, 4, 8])
def test_a_failed_step_leaves_all_or_nothing(store: Store, fail_at: int) -> None:
    """Whichever changing statement fails, the stored data adds up to the same, and retention continues from there."""
    fill(store)
    before, number = table(store, lengths=(DAY,)), 0

    def failing(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal number
        number += bool(re.match(r"(INSERT|DELETE).*(buckets|partials|traffic|refusals)", statement, re.DOTALL))
        if number == fail_at:
            raise sa.exc.OperationalError(statement, None, Exception("the disk is full"))

    sa.event.listen(store.engine, "before_cursor_execute", failing)
    with pytest.raises((StoreError, sa.exc.OperationalError)):
        keep(store)
    sa.event.remove(store.engine, "before_cursor_execute", failing)
    pd.testing.assert_frame_equal(before, table(store, lengths=(DAY,)), rtol=1e-12)
    keep(store)
    pd.testing.assert_frame_equal(before, table(store, lengths=(DAY,)), rtol=1e-12)
    assert starts(store) == set(range(ROLLED.stop, DAYS * DAY, HOUR))


KEEPING = """
import sys
from sqlalchemy.engine import make_url
from monitor.store import Store
from tests.store.test_retention import keep

print("ready", flush=True)
keep(Store(make_url(sys.argv[1]), lease_seconds=1))
print("done", flush=True)
"""


def test_a_kill_at_any_moment_loses_nothing_and_counts_nothing_twice(store: Store, database_url: str) -> None:
    fill(store)
    before, rng = table(store, lengths=(DAY,)), np.random.default_rng(1)
    for delay in rng.uniform(0, 0.08, 2):
        process = python(KEEPING, database_url)
        assert line(process) == "ready"
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=float(delay))
        process.kill()
        process.wait()
        pd.testing.assert_frame_equal(before, table(store, lengths=(DAY,)), rtol=1e-12)
    process = python(KEEPING, database_url)
    assert [line(process), line(process)] == ["ready", "done"]
    process.wait()
    pd.testing.assert_frame_equal(before, table(store, lengths=(DAY,)), rtol=1e-12)
    assert starts(store) == set(range(ROLLED.stop, DAYS * DAY, HOUR))


# ---- reading the past again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("monitor", "said"),
    [
        (MONITOR, "search: 1970-01-01 00:00 UTC to 1970-01-08 00:00 UTC was rolled up into coarser buckets"),
        (FORGETFUL, "search: data older than 1970-01-05 00:00 UTC would be deleted again by retention.retain"),
    ],
    ids=["rolled up", "forgotten"],
)
def test_a_backfill_of_rolled_up_or_deleted_data_is_refused_without_changes(
    store: Store, monitor: Monitor, said: str
) -> None:
    fill(store)
    keep(store, monitor)
    before = rows(store)
    with store.hold(monitor.name) as lease, pytest.raises(InputError) as caught:
        list(run_backfill(monitor, NOW, (0, DAYS * DAY), None, store, lease, BatchSize()))  # type: ignore[arg-type]
    assert str(caught.value).startswith(said)
    assert rows(store) == before


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    drawn = Ranking.of(12, slices=2, peak=20, seed=3).draw(3)
    write_log(tmp_path / "log.db", drawn.rows(10 * 24, 12 * 24))
    made = Daemon.after(10, drawn, 10, tmp_path / "10", tmp_path / "log.db")
    yield made
    made.close()


def test_a_daemon_applies_retention_in_its_cycles_and_shows_what_it_keeps(daemon: Daemon) -> None:
    daemon.monitor_with(retention=Retention(8 * DAY, RollUp(5 * DAY)), lookback=2 * DAY)
    for _ in range(3):
        daemon.clock.at += HOUR
        assert daemon.runner.run().error is None
    holding = daemon.shown.holding
    assert holding is not None
    assert holding.coarse_rows > 0
    assert daemon.clock.at - 9 * DAY <= (holding.oldest or 0) <= daemon.clock.at - 7 * DAY
    assert daemon.store.oldest_bucket(daemon.monitor.traffic) >= daemon.clock.at - 6 * DAY  # type: ignore[operator]


# ---- configuration -------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, more: str) -> str:
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path) + more, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    (problem,) = caught.value.problems
    return str(problem).partition("retention.")[2]


NEEDED = (
    "42d that the page draws, 24h of the longest window, 35d that intervals and alert rules look back on before it, "
    "26h until a bucket is final at the latest"
)


@pytest.mark.parametrize(
    ("retention", "said"),
    [
        ("{retain: 30d}", f"retain: 30d is too short: it must cover {NEEDED}; the minimum is 80d"),
        ("{roll_up: {after: 35d}}", "roll_up.after: 35d is too short: it must cover 42d that the page draws, "),
        (
            "{retain: 80d, roll_up: {after: 80d}}",
            "roll_up.after: 80d and one coarser bucket are more than retain (80d), so nothing would be merged; raise "
            "retain",
        ),
        (
            "{roll_up: {after: 90d, to: 5h}}",
            "roll_up.to: 5h does not divide a day evenly; use e.g. 6h, 24h or 7d",
        ),
        (
            "{roll_up: {after: 90d, to: 30m}}",
            "roll_up.to: 30m is not several whole buckets of 1h; use a multiple of that",
        ),
    ],
)
def test_unworkable_retention_is_refused_with_the_reason(tmp_path: Path, retention: str, said: str) -> None:
    assert refused(tmp_path, f"    retention: {retention}\n").startswith(said)


def test_sufficient_retention_is_accepted_from_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "rankmon.yaml"
    text = CONFIG.format(folder=tmp_path) + "defaults:\n  retention: {retain: 400d, roll_up: {after: 80d, to: 7d}}\n"
    path.write_text(text, encoding="utf-8")
    (monitor,) = load(path, {}).monitors
    assert monitor.retention == Retention(400 * DAY, RollUp(80 * DAY, 7 * DAY))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", Retention(roll_up=RollUp(400 * DAY))),
        ("    retention: {}\n", Retention()),
        ("    retention: {retain: 500d}\n", Retention(500 * DAY)),
        ("    windows: [380d]\n", Retention(roll_up=RollUp(459 * DAY))),
    ],
)
def test_retention_defaults_to_rolling_up_what_no_cycle_needs(tmp_path: Path, said: str, expected: Retention) -> None:
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path) + said, encoding="utf-8")
    (monitor,) = load(path, {}).monitors
    assert monitor.retention == expected


LONG_RULE = Rule("r", parse("ndcg@10"), 7 * DAY, Drop(0.1, 0.1, True, Baseline(trailing=60 * DAY)))


@pytest.mark.parametrize(
    "changes",
    [{}, {"windows": (90 * DAY,)}, {"alerts": (LONG_RULE,)}, {"lookback": 300 * DAY}, {"final_timeout": 9 * DAY}],
    ids=str,
)
def test_the_least_age_covers_everything_that_cycles_read(changes: dict[str, Any]) -> None:
    monitor = replace(watched(), **changes)
    assert least_age(monitor) >= max(reach(monitor), monitor.lookback) + monitor.final_timeout
    assert least_age(monitor) % DAY == 0


@pytest.mark.parametrize(
    ("kept", "found"),
    [([], [(0, 100)]), ([(25, 30)], [(0, 20), (30, 100)]), ([(0, 5), (95, 200)], [(10, 90)]), ([(0, 500)], [])],
)
def test_pinned_times_are_left_out_with_every_bucket_they_touch(kept: Any, found: Any) -> None:
    assert apart_from(kept, 100, 10) == found


# ---- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a command over a store whose old days were rolled up; returns its exit code and output."""
    path = tmp_path / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=tmp_path) + "    drift: {}\n", encoding="utf-8")
    (monitor,) = load(path, {}).monitors
    monitor = replace(monitor, retention=Retention(None, RollUp(5 * DAY)))
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    fill(store, monitor=replace(monitor, slices=()))
    keep(store, monitor)

    def invoke(*arguments: str) -> tuple[int, str]:
        code, said = run([*arguments, "--config", str(path)]), capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    yield invoke
    store.close()


def test_status_reports_how_much_is_stored_and_since_when(command: Callable[..., Any]) -> None:
    _, said = command("status")
    assert re.search(r"stored: \d+ bucket rows, 42 of them rolled up, the oldest from 1970-01-01 00:00 UTC", said)


def test_replay_says_what_it_cannot_evaluate(command: Callable[..., Any]) -> None:
    _, said = command("replay", "--from", "1970-01-02")
    assert "nothing before 1970-01-08 00:00 UTC can be evaluated" in said
    assert "the buckets from 1970-01-01 00:00 UTC to 1970-01-08 00:00 UTC were rolled up" in said


def test_backfill_says_why_it_refuses(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    code, said = command("backfill", "--from", "1970-01-02", "--to", "1970-01-03")
    assert code == 2
    assert "was rolled up into coarser buckets, and single buckets cannot be restored" in said


def test_a_cached_store_agrees_with_the_store_after_retention(store: Store) -> None:
    known = CachedStore(store, MONITOR)
    fill(known)
    known.history(MONITOR.traffic, 0, DAYS * DAY)
    keep(known)
    known.forget()
    assert known.history(MONITOR.traffic, 0, DAYS * DAY).starts.tolist() == sorted(starts(store))
