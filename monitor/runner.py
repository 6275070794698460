"""One monitor's job: a cycle, its bookkeeping, and what happens when it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from monitor.clock import Clock
from monitor.core.types import Monitor
from monitor.cycle import Outcome, Source, Stride, run_cycle
from monitor.errors import LeaseLost, RankmonError, SourceError, Stopped, StoreError
from monitor.snapshot import Board, take_snapshot
from monitor.store import Store
from monitor.telemetry import Telemetry

log = logging.getLogger(__name__)

FIRST_RETRY = 5.0
LONGEST_RETRY = 300.0


class Runner:
    """Runs cycles of one monitor. Not meant to run twice at once; the scheduler sees to that."""

    def __init__(
        self,
        monitor: Monitor,
        source: Source,
        store: Store,
        board: Board,
        telemetry: Telemetry,
        clock: Clock,
        stopping: threading.Event,
    ) -> None:
        self.monitor = monitor
        self.retired = False
        self._source = source
        self._store = store
        self._board = board
        self._telemetry = telemetry
        self._clock = clock
        self._stopping = stopping
        self._stride = Stride()
        self._failures = 0
        self._outcome = Outcome()
        telemetry.count("rankmon_evaluations", monitor.name, by=0)
        telemetry.count("rankmon_source_rows", monitor.name, by=0)
        telemetry.count("rankmon_buckets_stored", monitor.name, by=0)

    def run(self, retry_in: Callable[[str, float], None]) -> Outcome | None:
        """One cycle, and a new snapshot; what it did, or None if it failed or stepped aside.

        `retry_in(name, seconds)` is asked to run it again sooner or later than usual after a failure.
        """
        name, now = self.monitor.name, self._clock.now()
        outcome = None
        try:
            outcome = self._cycle(now)
        except Stopped:
            log.info("monitor %s: stopped; what was under way is read again next time", name)
        except LeaseLost as error:
            self._telemetry.count("rankmon_skipped_runs", name, "other_writer")
            log.info("%s", error)
        except RankmonError as error:
            self._fail(error, error.reason if isinstance(error, SourceError) else _kind(error), now, retry_in)
        except Exception as error:
            log.exception("monitor %s: a fault in rankmon itself; please report it", name)
            self._fail(error, "bug", now, retry_in)
        self.refresh_snapshot(now)
        return outcome

    def _cycle(self, now: float) -> Outcome:
        name, began = self.monitor.name, time.monotonic()
        with self._store.hold(name) as lease:
            self._store.record(name, last_attempt_at=now)
            with self._telemetry.stage(name, "read"):
                outcome = run_cycle(
                    self.monitor, now, self._source, self._store, lease, self._stride, lambda: self._may_go_on(began)
                )
            self._store.record(name, last_success_at=now, newest_source_at=outcome.newest, last_error="")
        self._succeed(outcome, time.monotonic() - began)
        return outcome

    def _may_go_on(self, began: float) -> bool:
        return not self._stopping.is_set() and time.monotonic() - began < self.monitor.deadline

    def _succeed(self, outcome: Outcome, took: float) -> None:
        name = self.monitor.name
        self._outcome = outcome
        self._telemetry.count("rankmon_evaluations", name)
        self._telemetry.count("rankmon_source_rows", name, by=outcome.rows)
        self._telemetry.count("rankmon_buckets_stored", name, by=outcome.stored)
        if self._failures:
            log.info("monitor %s: works again after %d failures", name, self._failures)
        self._failures = 0
        level = logging.INFO if outcome.stored else logging.DEBUG
        log.log(level, "monitor %s: %d of %d due buckets in %.1f s", name, outcome.stored, outcome.due, took)
        if outcome.kept:
            log.warning("monitor %s: the source holds less now of %d final buckets; kept them", name, len(outcome.kept))
        if outcome.future_rows:
            log.warning("monitor %s: %d rows are dated in the future", name, outcome.future_rows)

    def _fail(self, error: Exception, reason: str, now: float, retry_in: Callable[[str, float], None]) -> None:
        name = self.monitor.name
        self._failures += 1
        self._telemetry.count("rankmon_evaluation_failures", name, reason)
        longest = max(self.monitor.refresh, LONGEST_RETRY)
        wait = min(FIRST_RETRY * 2 ** min(self._failures - 1, 20), longest)
        log.warning("monitor %s: failed %d times in a row, next try in %.0f s: %s", name, self._failures, wait, error)
        retry_in(name, wait)
        try:
            self._store.record(name, last_attempt_at=now, last_error=str(error)[:2000])
        except StoreError:
            log.debug("monitor %s: the failure could not be noted in the store", name)

    def refresh_snapshot(self, now: float) -> None:
        """Publish what is stored. If the store is out of reach the last snapshot stays, with its age."""
        try:
            with self._telemetry.stage(self.monitor.name, "snapshot"):
                left = max(0, self._outcome.due - self._outcome.stored - len(self._outcome.kept))
                taken = take_snapshot(self.monitor, self._store, now, self._outcome.future_rows, left)
        except StoreError as error:
            log.warning("monitor %s: no new snapshot: %s", self.monitor.name, error)
            return
        if not self.retired:
            self._board.publish(taken)


def _kind(error: RankmonError) -> str:
    return "store" if isinstance(error, StoreError) else "data"
