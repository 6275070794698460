"""When jobs fire, and what is logged when they do not."""

import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from monitor.service.scheduler import AlignedTrigger, JobScheduler, offset_of
from monitor.service.telemetry import Telemetry

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sentence", "previous", "now", "expected"),
    [
        ("the first time is the next slot", None, NOON, NOON + timedelta(seconds=7)),
        ("after a run comes the slot after it", NOON + timedelta(seconds=7), NOON + timedelta(seconds=7), 307),
        ("a late question skips what is past", NOON - timedelta(days=365, seconds=-7), NOON, 7),
        ("a turn soon after a run out of turn is left out", NOON - timedelta(seconds=143), NOON, 307),
        ("also if that run is late", NOON - timedelta(seconds=250), NOON - timedelta(seconds=100), 307),
        ("a turn long after a run out of turn is not", NOON - timedelta(seconds=144), NOON - timedelta(seconds=144), 7),
        ("a clock set back a little does not repeat a slot", NOON + timedelta(seconds=7), NOON, 307),
        ("a clock set back by more than a period goes by its new time", NOON + timedelta(days=365), NOON, 7),
    ],
)
def test_the_trigger_returns_the_next_aligned_time(
    sentence: str, previous: datetime | None, now: datetime, expected: datetime | int
) -> None:
    wanted = expected if isinstance(expected, datetime) else NOON + timedelta(seconds=expected)
    assert AlignedTrigger(300, 7).get_next_fire_time(previous, now) == wanted, sentence


@pytest.mark.parametrize(
    ("sentence", "started", "expected"),
    [
        ("a run is no reason to leave out a turn hours later", timedelta(hours=-11, minutes=-55), timedelta(0)),
        ("nor one that comes when it must have ended", timedelta(seconds=-300), timedelta(0)),
        ("but one that comes at once", timedelta(seconds=-299), timedelta(days=1)),
    ],
)
def test_a_long_period_skips_only_a_turn_right_after_a_run(
    sentence: str, started: timedelta, expected: timedelta
) -> None:
    turn = datetime(2026, 3, 29, 10, tzinfo=UTC)
    found = AlignedTrigger(86_400, 36_000).get_next_fire_time(turn + started, turn + started)
    assert found == turn + expected, sentence


@pytest.mark.parametrize("period", [60, 300, 599, 600, 3600, 86_400])
def test_two_runs_are_at_most_little_more_than_a_period_apart(period: int) -> None:
    """The alert rules shipped with rankmon rely on this: they allow for 900 s."""
    trigger = AlignedTrigger(period, 0)
    apart = []
    for started in range(0, period, max(1, period // 600)):
        run = NOON + timedelta(seconds=started)
        apart.append((trigger.get_next_fire_time(run, run) - run).total_seconds())
    assert min(apart) >= min(period / 2, 300)
    assert period < max(apart) < period + min(period / 2, 300)


def test_monitors_are_spread_over_the_period_by_their_names() -> None:
    offsets = sorted(offset_of(f"monitor-{i}", 300) for i in range(100))
    assert all(0 <= o < 300 for o in offsets)
    assert max(b - a for a, b in itertools.pairwise(offsets)) < 30
    assert offset_of("search", 300) == pytest.approx(212.04006), "the same in every process"


@pytest.fixture
def scheduler() -> JobScheduler:
    return JobScheduler(workers=2, telemetry=Telemetry())


def wait_for(condition: threading.Event) -> None:
    assert condition.wait(10)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_job_runs_immediately_and_then_periodically(scheduler: JobScheduler) -> None:
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
    scheduler, release, started = JobScheduler(2, telemetry), threading.Event(), threading.Event()

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


@pytest.mark.parametrize(("least", "expected"), [(0.0, 2), (600.0, 1)])
def test_skipped_runs_of_a_slow_job_are_logged_once_and_not_too_often(
    least: float, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monitor.service.scheduler.WARN_AGAIN", least)
    telemetry, release = Telemetry(), threading.Event()
    scheduler = JobScheduler(2, telemetry)

    def skipped() -> float:
        return telemetry.counts()["rankmon_skipped_runs", ("slow", "still_running")]

    def warnings() -> int:
        return caplog.text.count("monitor slow: a run was skipped")

    scheduler.put("slow", 0.1, lambda: release.wait(10) and None)
    scheduler.start()
    until(lambda: skipped() >= 3)
    assert warnings() == 1
    release.set()
    time.sleep(0.5)
    release.clear()
    before = skipped()
    until(lambda: skipped() >= before + 3)
    release.set()
    scheduler.stop()
    assert warnings() == expected or (not least and warnings() > expected)
    assert {r.name for r in caplog.records} == {"monitor.service.scheduler"}, "APScheduler does not repeat it"


def test_a_retry_request_while_stopping_does_not_hang(scheduler: JobScheduler) -> None:
    started, release = threading.Event(), threading.Event()

    def fails_late() -> None:
        started.set()
        release.wait(10)
        scheduler.retry_in("m", 5)

    scheduler.put("m", 60, fails_late)
    scheduler.start()
    wait_for(started)
    ending = threading.Thread(target=scheduler.stop, daemon=True)
    ending.start()
    time.sleep(0.2)
    assert scheduler.next_run_at("m") is None, "and a page request meanwhile is not blocked"
    release.set()
    ending.join(5)
    assert not ending.is_alive()


def test_jobs_due_while_the_scheduler_stops_log_no_error(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, started, release = JobScheduler(2, Telemetry()), threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        release.wait(10)

    scheduler.put("slow", 60, slow)
    scheduler.put("often", 0.05, lambda: None)
    scheduler.start()
    wait_for(started)
    ending = threading.Thread(target=scheduler.stop, daemon=True)
    ending.start()
    time.sleep(0.5)
    release.set()
    ending.join(5)
    assert caplog.records == []


def test_planned_runs_move_along_when_the_clock_is_set_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = [100.0]
    clock = SimpleNamespace(time=lambda: time.time() + ahead[0], monotonic=time.monotonic)
    monkeypatch.setattr("monitor.service.scheduler.HEARTBEAT", 0.1)
    monkeypatch.setattr("monitor.service.scheduler.time", clock)
    scheduler = JobScheduler(2, Telemetry())
    scheduler.put("m", 3600, lambda: None)
    scheduler.start()
    scheduler.retry_in("m", 90)
    planned = scheduler.next_run_at("m") or 0
    time.sleep(0.3)
    assert scheduler.next_run_at("m") == planned
    ahead[0] -= 60
    until(lambda: (scheduler.next_run_at("m") or 0) < planned - 50)
    assert scheduler.next_run_at("m") == pytest.approx(planned - 60, abs=1)
    assert "clock set back by 60 s" in caplog.text
    scheduler.stop()


def test_a_run_planned_implausibly_far_ahead_starts_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps forth and back between two heartbeats leaves such a plan."""
    monkeypatch.setattr("monitor.service.scheduler.HEARTBEAT", 0.1)
    scheduler, ran = JobScheduler(2, Telemetry()), threading.Semaphore(0)
    scheduler.put("m", 300, ran.release)
    scheduler.start()
    assert ran.acquire(timeout=10)
    scheduler.retry_in("m", 500)
    assert not ran.acquire(timeout=1), "the retry of a failed run waits for its time"
    scheduler.retry_in("m", 40 * 86_400)
    assert ran.acquire(timeout=10)
    scheduler.stop()


def test_broken_and_hanging_jobs_leave_other_jobs_alone(scheduler: JobScheduler) -> None:
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


def test_hung_jobs_on_every_worker_do_not_stop_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.service.scheduler.HEARTBEAT", 0.1)
    monkeypatch.setattr("monitor.service.scheduler.STALE", 0.6)
    scheduler, release = JobScheduler(1, Telemetry()), threading.Event()
    scheduler.put("hangs", 60, lambda: release.wait(10) and None)
    scheduler.start()
    time.sleep(1.2)
    assert scheduler.is_alive
    release.set()
    scheduler.stop()
    assert not scheduler.is_alive


@pytest.mark.parametrize("period", [600, 86_400])
def test_no_turn_comes_within_five_minutes_of_the_first_run(scheduler: JobScheduler, period: int) -> None:
    names = [f"m{n}" for n in range(12)]
    for name in names:
        scheduler.put(name, period, lambda: None)
    scheduler.start()
    begun = time.time()
    until(lambda: all((scheduler.next_run_at(name) or 0) > begun + 5 for name in names))
    planned = [scheduler.next_run_at(name) or 0 for name in names]
    assert min(planned) >= begun + 300
    assert max(planned) <= time.time() + period + 300
    scheduler.stop()


def test_a_retry_runs_early_and_keeps_the_regular_schedule(scheduler: JobScheduler) -> None:
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
