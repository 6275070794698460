"""APScheduler, wired so that it wakes cycles up and no more: no run piles up, none is lost without being counted."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from monitor.telemetry import Telemetry

log = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between heartbeats of the scheduler's own thread."""

STALE = 60.0
"""Without a heartbeat for so many seconds the scheduler counts as dead."""


class AlignedTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires at `offset` seconds after every multiple of `period` since 1970.

    However late it is asked, it names one time only, in the future: a clock that jumps ahead makes no backlog, and
    nothing drifts.
    """

    def __init__(self, period: float, offset: float) -> None:
        self.period = period
        self.offset = offset % period

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """The first time after `now`, and after `previous`."""
        after = max(now.timestamp(), previous.timestamp() if previous is not None else 0.0)
        turn = (after - self.offset) // self.period + 1
        return datetime.fromtimestamp(turn * self.period + self.offset, UTC)


def offset_of(name: str, period: float) -> float:
    """A fixed place within the period for each name, so that monitors do not all start at once.

    >>> 0 <= offset_of("search", 300) < 300
    True
    """
    return zlib.crc32(name.encode()) / 2**32 * period


class Scheduler:
    """Runs one job a monitor, each at most once at a time."""

    def __init__(self, workers: int, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._beat = time.monotonic()
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(workers), "heartbeat": ThreadPoolExecutor(1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._skipped, EVENT_JOB_MAX_INSTANCES)
        self._scheduler.add_listener(self._broke, EVENT_JOB_ERROR)

    def start(self) -> None:
        """Begin to fire. What was added before starts its first run at once, spread over a second."""
        self._scheduler.add_job(
            self._heartbeat, AlignedTrigger(HEARTBEAT, 0), id="heartbeat:", executor="heartbeat", name="heartbeat"
        )
        self._scheduler.start()

    def stop(self) -> None:
        """Fire no more, and wait for what is running."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def put(self, name: str, period: float, run: Callable[[], None]) -> None:
        """Run `run` every `period` real seconds, for the first time right away. Replaces the job of that name."""
        self._telemetry.count("rankmon_skipped_runs", name, "still_running", by=0)
        self._scheduler.add_job(
            run,
            AlignedTrigger(period, offset_of(name, period)),
            id=f"monitor:{name}",
            name=name,
            replace_existing=True,
            next_run_time=datetime.now(UTC) + timedelta(seconds=offset_of(name, 1.0)),
        )

    def remove(self, name: str) -> None:
        """Run it no more."""
        if self._scheduler.get_job(f"monitor:{name}") is not None:
            self._scheduler.remove_job(f"monitor:{name}")

    def retry_in(self, name: str, seconds: float) -> None:
        """Bring the next run forward, or push it back, to so many seconds from now; then it goes on as before."""
        if self._scheduler.get_job(f"monitor:{name}") is not None:
            self._scheduler.modify_job(f"monitor:{name}", next_run_time=datetime.now(UTC) + timedelta(seconds=seconds))

    def next_run_at(self, name: str) -> float | None:
        """When it runs next, in seconds since 1970 of the real clock."""
        job = self._scheduler.get_job(f"monitor:{name}")
        at = getattr(job, "next_run_time", None)
        return at.timestamp() if at is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether the scheduler's thread still fires. If that thread dies `running` stays true, but the heart stops."""
        return self._scheduler.running and time.monotonic() - self._beat < STALE

    def _heartbeat(self) -> None:
        self._beat = time.monotonic()

    def _skipped(self, event: JobEvent) -> None:
        kind, _, name = event.job_id.partition(":")
        if kind == "monitor":
            self._telemetry.count("rankmon_skipped_runs", name, "still_running")
            log.warning("monitor %s: a run was skipped, the one before is still going on", name)

    def _broke(self, event: JobEvent) -> None:
        log.error("job %s broke", event.job_id, exc_info=event.exception)
