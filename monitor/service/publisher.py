"""Publishes a monitor's newest snapshot and chart histories after each run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Flag, auto

from monitor.errors import StoreError
from monitor.service.cycle import CycleResult
from monitor.service.history import extend_series, extend_verdicts
from monitor.service.snapshot import Board, MonitorSnapshot, renew, take_snapshot
from monitor.service.telemetry import Telemetry
from monitor.store import CachedStore, Holding, Progress
from monitor.types import Monitor

log = logging.getLogger(__name__)


class Outdated(Flag):
    """Parts of a snapshot that are older than the store."""

    NOTHING = 0
    WINDOWS = auto()
    HISTORIES = auto()
    PAST = auto()
    """Histories, including what was drawn before."""


@dataclass(frozen=True)
class Failure:
    """A monitor's failures in a row, with time and reason of the last."""

    times: int
    at: float
    text: str


@dataclass
class RunStatus:
    """State of a monitor's runs: newest result, failures since a success, last error."""

    result: CycleResult | None = None
    failure: Failure | None = None
    error: Exception | None = None
    holding: Holding | None = None


class SnapshotPublisher:
    """Puts one monitor's snapshots on the board until retired. Never raises."""

    def __init__(
        self, monitor: Monitor, store: CachedStore, board: Board, telemetry: Telemetry, is_over: Callable[[], bool]
    ) -> None:
        """`is_over`: True once nothing is to be shown."""
        self.status = RunStatus()
        self.shown: MonitorSnapshot | None = None
        self.is_retired = False
        self._monitor = monitor
        self._store = store
        self._board = board
        self._telemetry = telemetry
        self._is_over = is_over
        self._outdated = Outdated.WINDOWS
        self._lock = threading.Lock()

    def retire(self) -> None:
        with self._lock:
            self.is_retired = True

    def note(self, outdated: Outdated) -> None:
        """Record what a run or another process has changed in the store."""
        self._outdated |= outdated

    def publish_windows(self, now: float) -> None:
        """Publish what is stored. If it cannot be read, the last snapshot stays, with its age and the failure."""
        if self._is_over():
            return
        before = self.shown
        with self._guarded("snapshot"), self._store.at_once():
            self._publish(self._taken(now))
            self._outdated &= ~Outdated.WINDOWS
        if self.shown is before and before is not None:
            self._publish(replace(before, progress=self._with_failure(before.progress)))

    def publish_histories(self, now: float) -> None:
        """Update the histories, after the rest so that neither metrics nor start-up wait for them."""
        shown = self.shown
        if shown is None or Outdated.HISTORIES not in self._outdated or self._is_over():
            return
        with self._guarded("history"):
            is_restated = Outdated.PAST in self._outdated
            series, verdicts = ((), None) if is_restated else (shown.histories, shown.verdict_history)
            series = extend_series(self._monitor, self._store, now, series)
            verdicts = extend_verdicts(self._monitor, self._store, now, verdicts)
            self._publish(replace(shown, histories=series, verdict_history=verdicts))
            self._outdated &= ~(Outdated.HISTORIES | Outdated.PAST)

    def _taken(self, now: float) -> MonitorSnapshot:
        shown, result = self.shown, self.status.result
        if shown is not None and Outdated.WINDOWS not in self._outdated:
            taken = renew(shown, self._store, now)
        else:
            self._outdated |= Outdated.HISTORIES
            taken = take_snapshot(self._monitor, self._store, now)
            if shown is not None:
                taken = replace(taken, histories=shown.histories, verdict_history=shown.verdict_history)
        if result is not None:
            taken = replace(taken, future_rows=result.future_rows, due_buckets=result.left)
        return replace(taken, holding=self.status.holding, progress=self._with_failure(taken.progress))

    def _with_failure(self, progress: Progress) -> Progress:
        failure = self.status.failure
        if failure is None or (progress.last_attempt_at is not None and progress.last_attempt_at > failure.at):
            return progress
        return replace(progress, last_attempt_at=failure.at, last_error=failure.text)

    def _publish(self, snapshot: MonitorSnapshot) -> None:
        with self._lock:
            if not self.is_retired:
                self._board.publish(snapshot)
                self.shown = snapshot

    @contextmanager
    def _guarded(self, stage: str) -> Iterator[None]:
        name = self._monitor.name
        try:
            with self._telemetry.stage(name, stage), self._store.blaming_damage():
                yield
        except StoreError as error:
            is_known = isinstance(self.status.error, StoreError)  # the run itself has warned
            log.log(
                logging.DEBUG if is_known else logging.WARNING, "monitor %s: %s not updated: %s", name, stage, error
            )
        except Exception:
            self._telemetry.count("rankmon_evaluation_failures", name, "bug")
            log.exception("monitor %s: %s not updated: a bug in rankmon; please report it", name, stage)
