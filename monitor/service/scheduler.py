"""APScheduler, used only to start runs: none overlap, and skipped ones are counted."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from monitor.service.telemetry import Telemetry

log = logging.getLogger(__name__)

HEARTBEAT = 5.0
"""Seconds between heartbeats of the scheduler's thread."""

HEART = "heartbeat"
"""Pool for the heartbeat alone."""

STALE = 60.0
"""Seconds without a heartbeat after which the scheduler counts as dead."""

WARN_AGAIN = 600.0
"""Least seconds between two warnings of skipped runs of a job."""

HARDLY_ENDED = 300.0
"""Seconds after a run out of turn (at most half a period) within which a turn is skipped.

Runs may thus be a period plus this apart; the shipped alert rules allow 900 s.
"""

ROUNDING = 1e-3
"""Seconds by which a time may miss its turn: datetimes have microseconds."""

LONGEST_WAIT = 600.0
"""Seconds beyond which nothing is planned, or twice the period if longer."""

SET_BACK = 1.0
"""Seconds that the clock must be set back before planned runs are moved."""


class AlignedTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires at `offset` seconds after every multiple of `period` since 1970.

    It only names one future time: a clock jump causes neither a backlog nor silence, and nothing drifts. After a run
    out of turn (the first, or a retry) a turn within `HARDLY_ENDED` is skipped.
    """

    def __init__(self, period: float, offset: float) -> None:
        self.period = period
        self.offset = offset % period

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """The first time after `now`, and after `previous` unless that is more than a period ahead."""
        after = now.timestamp()
        if previous is not None and after < previous.timestamp() <= after + self.period:
            after = previous.timestamp()
        turn = (after - self.offset) // self.period + 1
        wait = turn * self.period + self.offset - after
        ran = previous is not None and previous.timestamp() <= after and self._is_out_of_turn(previous.timestamp())
        turn += ran and wait < min(self.period / 2, HARDLY_ENDED)
        return datetime.fromtimestamp(turn * self.period + self.offset, UTC)

    def _is_out_of_turn(self, instant: float) -> bool:
        past = (instant - self.offset) % self.period
        return min(past, self.period - past) > ROUNDING


def offset_of(name: str, period: float) -> float:
    """A fixed offset within the period per name, so that monitors do not start together.

    >>> 0 <= offset_of("search", 300) < 300
    True
    """
    return zlib.crc32(name.encode()) / 2**32 * period


class JobScheduler:
    """Runs one job per monitor, never overlapping, in the workers of its pool."""

    def __init__(self, workers: int, telemetry: Telemetry) -> None:
        """`workers`: concurrent jobs per pool."""
        self._workers = workers
        self._telemetry = telemetry
        self._beat = time.monotonic()
        self._warned: set[str] = set()
        self._warned_at: dict[str, float] = {}
        self._ended = threading.Event()
        self._pools = {HEART: ThreadPoolExecutor(1)}
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors=self._pools,
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._skipped, EVENT_JOB_MAX_INSTANCES)
        self._scheduler.add_listener(self._ran, EVENT_JOB_EXECUTED)
        self._scheduler.add_listener(self._broke, EVENT_JOB_ERROR)
        _quieten()

    def start(self) -> None:
        """Start firing. Jobs added before run at once, spread over a second."""
        self._scheduler.add_job(
            self._heartbeat, AlignedTrigger(HEARTBEAT, 0), id="heartbeat:", executor=HEART, name="heartbeat"
        )
        self._heartbeat()
        self._scheduler.start()
        threading.Thread(target=self._watch_the_clock, name="clock", daemon=True).start()

    def stop(self) -> None:
        """Stop firing, and wait for running jobs."""
        self._ended.set()
        if self._scheduler.running:
            # Waiting inside would hold a lock that a job needs to ask for a retry.
            self._scheduler.shutdown(wait=False)
            for pool in self._pools.values():
                pool.shutdown(wait=True)

    def put(self, name: str, period: float, run: Callable[[], None], pool: str = "") -> None:
        """Run `run` at once and every `period` real seconds. Replaces the job of that name.

        `pool`: such as the source's name, so that a stuck database delays no other pool.
        """
        self._telemetry.count("rankmon_skipped_runs", name, "still_running", by=0)
        executor = f"source:{pool}"
        if executor not in self._pools:
            self._pools[executor] = ThreadPoolExecutor(self._workers)
            self._scheduler.add_executor(self._pools[executor], executor)
        self._scheduler.add_job(
            run,
            AlignedTrigger(period, offset_of(name, period)),
            id=_id(name),
            name=name,
            executor=executor,
            replace_existing=True,
            next_run_time=datetime.now(UTC) + timedelta(seconds=offset_of(name, 1.0)),
        )

    def remove(self, name: str) -> None:
        with suppress(JobLookupError):
            self._scheduler.remove_job(_id(name))

    def retry_in(self, name: str, seconds: float) -> None:
        """Move the next run to `seconds` from now; the usual times follow."""
        with suppress(JobLookupError):
            self._scheduler.modify_job(_id(name), next_run_time=datetime.now(UTC) + timedelta(seconds=seconds))

    def next_run_at(self, name: str) -> float | None:
        """The next run, real seconds since 1970."""
        at = getattr(self._scheduler.get_job(_id(name)), "next_run_time", None)
        return at.timestamp() if at is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether the scheduler's thread still fires; `running` stays true if that thread dies."""
        return self._scheduler.running and time.monotonic() - self._beat < STALE

    def _heartbeat(self) -> None:
        self._beat = time.monotonic()

    def _watch_the_clock(self) -> None:
        """Moves planned runs when the clock is set back; they would otherwise wait until it has caught up."""
        ahead = time.time() - time.monotonic()
        while not self._ended.wait(HEARTBEAT):
            before, ahead = ahead, time.time() - time.monotonic()
            if ahead < before - SET_BACK:
                log.warning("clock set back by %.0f s; planned runs are moved along", before - ahead)
                for job in self._scheduler.get_jobs():
                    with suppress(JobLookupError):
                        self._scheduler.modify_job(
                            job.id, next_run_time=job.next_run_time - timedelta(seconds=before - ahead)
                        )
            self._bring_near()

    def _bring_near(self) -> None:
        """Runs now what is planned too far ahead: the clock jumped forward and back between two checks."""
        now = datetime.now(UTC)
        for job in self._scheduler.get_jobs():
            if job.next_run_time - now > timedelta(seconds=max(2 * job.trigger.period, LONGEST_WAIT)):
                with suppress(JobLookupError):
                    self._scheduler.modify_job(job.id, next_run_time=now)

    def _skipped(self, event: JobEvent) -> None:
        name = _name(event)
        if not name:
            return
        self._telemetry.count("rankmon_skipped_runs", name, "still_running")
        # Warn once per run and not too often, or a stuck monitor would fill the log.
        now = time.monotonic()
        if name not in self._warned and now - self._warned_at.get(name, -WARN_AGAIN) >= WARN_AGAIN:
            self._warned.add(name)
            self._warned_at[name] = now
            log.warning("monitor %s: a run was skipped: the previous one is still active", name)

    def _ran(self, event: JobEvent) -> None:
        self._warned.discard(_name(event))

    def _broke(self, event: JobEvent) -> None:
        self._ran(event)
        log.error("job %s failed: a bug in rankmon; please report it", event.job_id, exc_info=event.exception)


def _id(name: str) -> str:
    return f"monitor:{name}"


def _name(event: JobEvent) -> str:
    kind, _, name = event.job_id.partition(":")
    return str(name) if kind == "monitor" else ""


def _quieten() -> None:
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
    logging.getLogger("apscheduler.executors").setLevel(logging.CRITICAL)
