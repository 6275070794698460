"""When jobs fire, and what is said when they do not."""

import itertools
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from monitor.scheduler import AlignedTrigger, Scheduler, offset_of
from monitor.telemetry import Telemetry

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sentence", "previous", "now", "expected"),
    [
        ("the first time is the next slot", None, NOON, NOON + timedelta(seconds=7)),
        ("after a run comes the slot after it", NOON + timedelta(seconds=7), NOON + timedelta(seconds=7), 307),
        ("a late question skips what is past", NOON - timedelta(days=365), NOON, 7),
        ("a clock set back waits for the slot after the last run", NOON + timedelta(seconds=307), NOON, 607),
    ],
)
def test_the_trigger_names_one_time_in_the_future(
    sentence: str, previous: datetime | None, now: datetime, expected: datetime | int
) -> None:
    wanted = expected if isinstance(expected, datetime) else NOON + timedelta(seconds=expected)
    assert AlignedTrigger(300, 7).get_next_fire_time(previous, now) == wanted, sentence


def test_monitors_are_spread_over_the_period_by_their_names() -> None:
    offsets = sorted(offset_of(f"monitor-{i}", 300) for i in range(100))
    assert all(0 <= o < 300 for o in offsets)
    assert max(b - a for a, b in itertools.pairwise(offsets)) < 30
    assert offset_of("search", 300) == offset_of("search", 300)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(workers=2, telemetry=Telemetry())


def wait_for(condition: threading.Event) -> None:
    assert condition.wait(10)


def test_a_job_runs_right_away_and_then_again_and_again(scheduler: Scheduler) -> None:
    runs, enough = [], threading.Event()

    def run() -> None:
        runs.append(time.monotonic())
        if len(runs) == 3:
            enough.set()

    scheduler.put("m", 0.5, run)
    scheduler.start()
    wait_for(enough)
    scheduler.stop()
    assert runs[2] - runs[1] == pytest.approx(0.5, abs=0.3)


def test_a_run_that_would_overlap_is_skipped_and_counted() -> None:
    telemetry = Telemetry()
    scheduler, release, started = Scheduler(2, telemetry), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(10)

    scheduler.put("slow", 0.2, hang)
    assert telemetry.counts()["rankmon_skipped_runs", ("slow", "still_running")] == 0
    scheduler.start()
    wait_for(started)
    time.sleep(0.7)
    release.set()
    scheduler.stop()
    assert telemetry.counts()["rankmon_skipped_runs", ("slow", "still_running")] >= 1


def test_a_broken_job_and_a_hanging_one_leave_the_others_alone(scheduler: Scheduler) -> None:
    release, fine = threading.Event(), threading.Event()

    def breaks() -> None:
        raise ValueError("broken on purpose")

    scheduler.put("breaks", 0.2, breaks)
    scheduler.put("hangs", 0.2, lambda: release.wait(10) and None)
    scheduler.put("fine", 0.2, fine.set)
    scheduler.start()
    wait_for(fine)
    fine.clear()
    wait_for(fine)
    assert scheduler.is_alive
    release.set()
    scheduler.stop()


def test_hung_jobs_on_every_worker_do_not_stop_the_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.scheduler.HEARTBEAT", 0.1)
    monkeypatch.setattr("monitor.scheduler.STALE", 0.6)
    scheduler, release = Scheduler(1, Telemetry()), threading.Event()
    scheduler.put("hangs", 60, lambda: release.wait(10) and None)
    scheduler.start()
    time.sleep(1.2)
    assert scheduler.is_alive
    release.set()
    scheduler.stop()
    assert not scheduler.is_alive


def test_a_retry_comes_earlier_and_then_the_old_rhythm_goes_on(scheduler: Scheduler) -> None:
    scheduler.put("m", 3600, lambda: None)
    scheduler.start()
    time.sleep(1.5)
    regular = scheduler.next_run_at("m")
    scheduler.retry_in("m", 0.2)
    assert (scheduler.next_run_at("m") or 0) < time.time() + 1
    time.sleep(1)
    assert scheduler.next_run_at("m") == regular
    scheduler.remove("m")
    assert scheduler.next_run_at("m") is None
    scheduler.stop()
