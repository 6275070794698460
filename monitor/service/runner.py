"""One monitor's job: a cycle, its bookkeeping, and what happens when it fails."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from monitor.clock import Clock, SystemClock
from monitor.conditions.arrivals import Misread
from monitor.errors import NO_MEMORY, ClockError, LeaseLost, SourceError, Stopped, StoreError, StoreLocked
from monitor.evaluation import Telling, judge
from monitor.messages.words import counted, storable
from monitor.series.finality import final_age
from monitor.series.readings import Answer
from monitor.service.audit import RESULTS, Auditor, Ways
from monitor.service.cycle import BatchSize, CycleResult, FinalizedUpTo, Freshness, RequestSource, run_cycle
from monitor.service.diagnosing import LONGEST, Diagnoser, OpenDetailed
from monitor.service.election import LONGEST_RETRY, EvaluatorElection
from monitor.service.history import extend_series, extend_verdicts
from monitor.service.retention import RetentionWorker
from monitor.service.snapshot import Board, MonitorSnapshot, renew, take_snapshot
from monitor.service.telemetry import Telemetry
from monitor.store import CachedStore, Lease, Progress, Store
from monitor.types import Monitor, format_duration

log = logging.getLogger(__name__)

HOUR = 3600
FIRST_RETRY = 5.0

REASONS = (
    *("connect", "timeout", "permission", "missing", "driver", "resources", "query", "data"),
    *("store", "locked", "clock", "bug"),
)
"""Why a cycle can fail: those of a SourceError, the store, another process that holds it locked, this machine's clock,
or a fault in rankmon itself."""

STATEMENTS = 6
"""Of a source, for one stretch: a run ends after the one that it is at, and each may take as long as it is let."""

LONGEST_ERROR = 2000


class Desk(Protocol):
    """Where notifications are put."""

    def telling(self) -> Telling:
        """Whom to tell of what, as it is configured now."""

    def wake(self) -> None:
        """Something was put there."""


RetryIn = Callable[[str, float], None]
"""Asks for the next run of a monitor in so many seconds."""


@dataclass(frozen=True)
class Run:
    """How a run went: what it read and stored, or what it failed of."""

    outcome: CycleResult | None
    error: Exception | None = None


class Runner:
    """Runs cycles of one monitor. Not meant to run twice at once; the scheduler sees to that.

    `waits`: whether the last run ended because another process holds the store locked.
    """

    def __init__(
        self,
        monitor: Monitor,
        source: RequestSource,
        store: Store,
        board: Board,
        telemetry: Telemetry,
        clock: Clock,
        stopping: threading.Event,
        desk: Desk,
        open_detailed: OpenDetailed | None = None,
        ways: Ways | None = None,
    ) -> None:
        """Take the parts.

        Args:
            desk: where notifications are put; asked anew each time, for a new configuration may change it.
            open_detailed: opens what reads single requests, for diagnoses; None: there are none.
            ways: of reading the monitor, for audits; None: there are none.
        """
        self.monitor = monitor
        self._source = _Timed(source, monitor.name, telemetry)
        self._store = CachedStore(store, monitor)
        self._board = board
        self._telemetry = telemetry
        self._clock = clock
        self._stopping = stopping
        self._desk = desk
        self._diagnoser = None if open_detailed is None else Diagnoser(monitor, store, open_detailed)
        self._auditor = None if ways is None else Auditor(monitor, store, ways)
        self._batch_size = BatchSize()
        self._settled = FinalizedUpTo()
        self._retention = RetentionWorker(monitor, self._store)
        self._election = EvaluatorElection(monitor, store, time.monotonic)
        self._began: float | None = None
        self._failures = 0
        self._failed: tuple[float, str] | None = None
        self._is_store_away = self.waits = False
        self._outcome: CycleResult | None = None
        self._shown: MonitorSnapshot | None = None
        self._token = 0
        self._is_outdated = True
        self._is_undrawn = True
        self._is_past_changed = False
        self._retired = False
        self._publishing = threading.Lock()
        self._show_counters()

    def _show_counters(self) -> None:
        name = self.monitor.name
        self._telemetry.expect(name)
        for counter in ("rankmon_evaluations", "rankmon_source_rows", "rankmon_buckets_stored", "rankmon_late_buckets"):
            self._telemetry.count(counter, name, by=0)
        for reason in REASONS:
            self._telemetry.count("rankmon_evaluation_failures", name, reason, by=0)
        for result in RESULTS:
            self._telemetry.count("rankmon_audits", name, result, by=0)
        self._telemetry.count("rankmon_skipped_runs", name, "other_writer", by=0)

    def retire(self) -> None:
        """Begin no run any more; one under way ends after the stretch it is at, and shows nothing."""
        with self._publishing:
            self._retired = True

    @property
    def _is_over(self) -> bool:
        return self._retired or self._stopping.is_set()

    # ---- one run -------------------------------------------------------------------------------------------------

    def run(self, retry_in: RetryIn | None = None) -> Run:
        """One cycle, and a new snapshot. Never raises.

        After a failure `retry_in(name, seconds)` is asked to run it again sooner or later than usual.
        """
        if self._is_over:
            return Run(None, Stopped(f"monitor {self.monitor.name}: stopped"))
        now, began = self._clock.now(), time.monotonic()
        self._began = began
        try:
            return self._run(now, began, retry_in)
        finally:
            self._began = None

    def hangs_for(self, statement_timeout: float) -> float:
        """Seconds that a run has been going on for, if that is longer than any may take; else 0."""
        going_on = 0.0 if (began := self._began) is None else time.monotonic() - began
        return going_on if going_on > self.monitor.deadline + STATEMENTS * statement_timeout + LONGEST_RETRY else 0.0

    def _run(self, now: float, began: float, retry_in: RetryIn | None) -> Run:
        try:
            with self._telemetry.stage(self.monitor.name, "cycle"), self._store.blaming_damage():
                outcome = self._cycle(now, began)
        except Exception as error:
            self._account_for(error, now, retry_in)
            self._is_store_away, self.waits = isinstance(error, StoreError), isinstance(error, StoreLocked)
            self._show(now)
            return Run(None, error)
        self._is_store_away = self.waits = False
        self._succeed(outcome, time.monotonic() - began)
        self._show(now)
        if outcome.left == 0:
            self._diagnose(began)
        return Run(outcome)

    def _cycle(self, now: float, began: float) -> CycleResult:
        name, outcome, is_real = self.monitor.name, CycleResult(), isinstance(self._clock, SystemClock)
        with self._store.hold(name) as lease:
            self._note_others(lease)
            self._store.record(
                name, lease, last_attempt_at=now, refresh=self.monitor.refresh / (self._clock.speed or 1.0)
            )
            try:
                for outcome in run_cycle(
                    self.monitor, now, self._source, self._store, lease, self._batch_size, self._settled, is_real
                ):
                    self._outcome = outcome
                    if self._leaves_off(outcome, time.monotonic() - began):
                        break
            finally:
                self._count(outcome)
            outcome = self._audited(now, outcome)
            taken = self._judge(now, began, lease, outcome)
            newest = {"newest_source_at": outcome.arrived.request, "newest_label_at": outcome.arrived.label}
            self._store.record(name, lease, last_success_at=now, **newest, **taken, last_error="")
            self._keep(lease, now)
        return outcome

    def _keep(self, lease: Lease, now: float) -> None:
        """Make old buckets coarser, and forget what is too old. The run has ended well whatever becomes of it."""
        try:
            if self._retention.advance(lease, now, lambda: self._is_over):
                self._store.forget()
        except (StoreError, LeaseLost) as error:
            log.warning("monitor %s: old buckets are left for the next run: %s", self.monitor.name, error)

    def _diagnose(self, began: float) -> None:
        """Find out more of an incident that is open. Nothing depends on it, and so nothing of it is raised."""
        if self._diagnoser is None or self._is_over:
            return
        name, left = self.monitor.name, max(0.0, self.monitor.deadline - (time.monotonic() - began))
        try:
            with self._telemetry.stage(name, "diagnose"), self._store.blaming_damage():
                found = self._diagnoser.advance(lambda: self._is_over, min(LONGEST, left))
        except (SourceError, StoreError) as error:
            log.warning("monitor %s: no diagnosis of its open incident yet, it is tried again: %s", name, error)
        except Stopped:
            log.info("monitor %s: stopped; the diagnosis of its open incident begins anew next time", name)
        except Exception:
            self._telemetry.count("rankmon_evaluation_failures", name, "bug")
            log.exception("monitor %s: no diagnosis for a fault in rankmon itself; please report it", name)
        else:
            if found is not None:
                log.info("monitor %s: incident %s is explained, see rankmon explain-incident %s", name, found, found)

    def _audited(self, now: float, outcome: CycleResult) -> CycleResult:
        """Once a day, hold a bucket against the source. The run has ended well whatever becomes of it."""
        if self._auditor is None or outcome.left or self._is_over:
            return outcome
        name, (_, reading) = self.monitor.name, self._telemetry.stages().get((self.monitor.name, "read"), (0, 0.0))
        try:
            with self._telemetry.stage(name, "audit"):
                found = self._auditor.advance(now, reading, lambda: self._is_over)
        except SourceError as error:
            log.warning("monitor %s: audit failed: %s; the next one is made tomorrow", name, error)
            return outcome
        if found is None:
            return outcome
        self._telemetry.count("rankmon_audits", name, found.result)
        level = {"agrees": logging.INFO, "changed": logging.WARNING, "differs": logging.ERROR}[found.result]
        log.log(level, "monitor %s: audit: %s", name, found)
        wrong = str(found.difference) if found.result == "differs" else ""
        audited = Misread(found.start, found.start + self.monitor.bucket, wrong)
        return replace(outcome, arrived=replace(outcome.arrived, audited=audited))

    def _judge(self, now: float, began: float, lease: Lease, outcome: CycleResult) -> dict[str, str | int]:
        """Judge what became final, unless another process does; what to note of that."""
        if not self._election.is_mine(lease):
            return {}
        with self._telemetry.stage(self.monitor.name, "judge"):
            telling = replace(self._desk.telling(), is_current=outcome.left == 0, real_now=time.time())
            judgement = judge(
                self.monitor,
                now,
                self._store,
                lease,
                telling,
                outcome.arrived,
                is_over=lambda: self._is_over,
                leaves_off=lambda: time.monotonic() - began >= self.monitor.deadline,
            )
        if judgement is not None:
            self._is_outdated = True
            self._is_past_changed = self._is_past_changed or judgement.anew
        if judgement is not None and judgement.notices:
            self._desk.wake()
        return self._election.taken(lease)

    def _leaves_off(self, outcome: CycleResult, took: float) -> bool:
        # One stretch is read in any case: where the source is slow to say how new it is, nothing ever would be.
        return self._is_over or (took >= self.monitor.deadline and outcome.left < outcome.due)

    def _note_others(self, lease: Lease) -> None:
        # Every holder's number is one more than that of the holder before.
        if lease.token != self._token + 1:
            self._is_outdated = self._is_past_changed = True
        self._token = lease.token

    def _count(self, outcome: CycleResult) -> None:
        self._is_outdated = self._is_outdated or outcome.stored > 0
        self._telemetry.count("rankmon_source_rows", self.monitor.name, by=outcome.rows_read)
        self._telemetry.count("rankmon_buckets_stored", self.monitor.name, by=outcome.stored)

    # ---- how it ended --------------------------------------------------------------------------------------------

    def _succeed(self, outcome: CycleResult, took: float) -> None:
        name = self.monitor.name
        self._telemetry.count("rankmon_evaluations", name)
        if self._failures:
            log.info("monitor %s: works again after %s", name, counted(self._failures, "failure"))
        self._failures, self._failed = 0, None
        level = logging.INFO if outcome.stored else logging.DEBUG
        log.log(level, "monitor %s: %d of %d due buckets in %.1f s", name, outcome.stored, outcome.due, took)
        if outcome.late:
            self._telemetry.count("rankmon_late_buckets", name, by=outcome.late)
            log.warning(
                "monitor %s: rankings came after %s had been final (one server's log is late, perhaps); read again",
                name,
                counted(outcome.late, "bucket"),
            )
        if outcome.kept:
            log.warning("monitor %s: the source holds less now of %d final buckets; kept them", name, outcome.kept)
        if outcome.held:
            self._warn_of_a_purge(outcome.held)
        if outcome.future_rows and not (self._shown and self._shown.future_rows):
            log.warning("monitor %s: %d rows are dated in the future", name, outcome.future_rows)

    def _warn_of_a_purge(self, held: int) -> None:
        text = "monitor %s: of %s the source has no request any more; they stay as they were read before. "
        text += "Where it purges rankings, they must stay until labels have had their time, at least %s"
        needed = self.monitor.bucket + final_age(self.monitor) + self.monitor.refresh
        log.warning(text, self.monitor.name, counted(held, "bucket"), format_duration(-(-needed // HOUR) * HOUR))

    def _account_for(self, error: Exception, now: float, retry_in: RetryIn | None) -> None:
        name = self.monitor.name
        if isinstance(error, Stopped) or self._is_over:
            log.info("monitor %s: stopped; what was under way is read again next time", name)
        elif isinstance(error, LeaseLost):
            self._is_outdated = True
            self._telemetry.count("rankmon_skipped_runs", name, "other_writer")
            log.info("%s", error)
        else:
            self._fail(error, _reason(error), now, retry_in)

    def _fail(self, error: Exception, reason: str, now: float, retry_in: RetryIn | None) -> None:
        name, said = self.monitor.name, storable(str(NO_MEMORY if isinstance(error, MemoryError) else error))
        self._failures += 1
        self._telemetry.count("rankmon_evaluation_failures", name, reason)
        if reason == "bug":
            log.error("monitor %s: a fault in rankmon itself; please report it", name, exc_info=error)
        if retry_in is not None:
            most = max(self.monitor.refresh, 0.0 if reason == "clock" else LONGEST_RETRY)
            wait = min(FIRST_RETRY * 2 ** min(self._failures - 1, 20), most)
            times = "once" if self._failures == 1 else f"{self._failures} times in a row"
            log.warning("monitor %s: failed %s, next try in %.0f s: %s", name, times, wait, said)
            retry_in(name, wait)
        self._failed = now, said[:LONGEST_ERROR]
        with suppress(StoreError):
            self._store.record(name, last_attempt_at=now, last_error=self._failed[1])

    # ---- what is shown -------------------------------------------------------------------------------------------

    def _show(self, now: float) -> None:
        self.refresh_snapshot(now)
        self._refresh_trails(now)

    def refresh_snapshot(self, now: float) -> None:
        """Publish what is stored. Where that cannot be read, the last snapshot stays, with its age. Never raises."""
        if not self._is_over:
            was = self._shown
            with self._showing("snapshot"), self._store.at_once():
                self._publish(self._snapshot(now))
            if self._shown is was:
                self._show_failure()

    def _show_failure(self) -> None:
        """Where the store cannot be read either: what was shown last, with why nothing newer is."""
        with self._publishing:
            if not self._retired and self._shown is not None:
                self._shown = replace(self._shown, progress=self._as_failed(self._shown.progress))
                self._board.publish(self._shown)

    def _as_failed(self, progress: Progress) -> Progress:
        """With the failure of the last run, which may not have come as far as the store."""
        if self._failed is None:
            return progress
        at, error = self._failed
        if progress.last_attempt_at is not None and progress.last_attempt_at > at:
            return progress  # another process has tried since
        return replace(progress, last_attempt_at=at, last_error=error)

    def _refresh_trails(self, now: float) -> None:
        """Bring the histories up to date; apart from the rest, so that neither metrics nor a start wait for it."""
        if self._shown is not None and self._is_undrawn and not self._is_over:
            with self._showing("trail"):
                former, verdicts = (
                    ((), None) if self._is_past_changed else (self._shown.histories, self._shown.verdict_history)
                )
                histories = extend_series(self.monitor, self._store, now, former)
                verdicts = extend_verdicts(self.monitor, self._store, now, verdicts)
                self._publish(replace(self._shown, histories=histories, verdict_history=verdicts))
                self._is_undrawn = self._is_past_changed = False

    @contextmanager
    def _showing(self, stage: str) -> Iterator[None]:
        name = self.monitor.name
        try:
            with self._telemetry.stage(name, stage), self._store.blaming_damage():
                yield
        except StoreError as error:
            level = logging.DEBUG if self._is_store_away else logging.WARNING  # which the run has said before
            log.log(level, "monitor %s: no new %s: %s", name, stage, error)
        except Exception:
            self._telemetry.count("rankmon_evaluation_failures", name, "bug")
            log.exception("monitor %s: no new %s for a fault in rankmon itself; please report it", name, stage)

    def _snapshot(self, now: float) -> MonitorSnapshot:
        future_rows, left = (None, None) if self._outcome is None else (self._outcome.future_rows, self._outcome.left)
        if self._shown is None or self._is_outdated:
            self._is_undrawn = True
            taken = take_snapshot(self.monitor, self._store, now, future_rows, left)
            if self._shown is not None:
                taken = replace(taken, histories=self._shown.histories, verdict_history=self._shown.verdict_history)
        else:
            taken = renew(self._shown, self._store, now, future_rows, left)
        return replace(taken, holding=self._retention.holding, progress=self._as_failed(taken.progress))

    def _publish(self, snapshot: MonitorSnapshot) -> None:
        with self._publishing:
            if not self._retired:
                self._board.publish(snapshot)
                self._shown, self._is_outdated = snapshot, False


def _reason(error: Exception) -> str:
    if isinstance(error, SourceError):
        return error.reason
    if isinstance(error, MemoryError):
        return "resources"
    if isinstance(error, ClockError):
        return "clock"
    if isinstance(error, StoreLocked):
        return "locked"
    return "store" if isinstance(error, StoreError) else "bug"


class _Timed:
    """A source whose reading counts as a stage of its own."""

    def __init__(self, source: RequestSource, monitor: str, telemetry: Telemetry) -> None:
        self._source = source
        self._monitor = monitor
        self._telemetry = telemetry

    def freshness(self, since: float, now: float) -> Freshness:
        with self._telemetry.stage(self._monitor, "read"):
            return self._source.freshness(since, now)

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        with self._telemetry.stage(self._monitor, "read"):
            return self._source.row_counts(spans)

    def read(self, since: int, until: int) -> Answer:
        with self._telemetry.stage(self._monitor, "read"):
            return self._source.read(since, until)
