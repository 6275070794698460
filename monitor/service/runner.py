"""Runs one monitor: cycle, evaluation, daily tasks, snapshot, and retries after failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from monitor.clock import Clock, SystemClock
from monitor.conditions.arrivals import Misread
from monitor.errors import ClockError, InputError, LeaseLost, SourceError, Stopped, StoreError, StoreLocked, exhausted
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.messages.explanation import misfit
from monitor.messages.words import counted, storable, utc
from monitor.series.finality import final_age
from monitor.series.readings import Answer
from monitor.service.audit import RESULTS, Auditor, Readers
from monitor.service.cycle import CycleResult, FinalizedUpTo, run_cycle
from monitor.service.diagnosing import DIAGNOSE_FOR, Diagnoser, OpenDetailed
from monitor.service.election import EvaluatorElection
from monitor.service.examiner import Examiner
from monitor.service.new_series import new_series
from monitor.service.periodic import LONGEST_RETRY, doubling
from monitor.service.publisher import Failure, Outdated, SnapshotPublisher
from monitor.service.reading import BatchSize, RequestSource
from monitor.service.retention import RetentionWorker
from monitor.service.snapshot import Board
from monitor.service.telemetry import Telemetry
from monitor.source.pull import Freshness
from monitor.store import CachedStore, Lease, Store
from monitor.store.renaming import take_over
from monitor.types import Monitor, format_duration
from monitor.units import HOUR

log = logging.getLogger(__name__)

SOURCE_REASONS = ("connect", "timeout", "permission", "missing", "driver", "resources", "query", "data")
REASONS = (*SOURCE_REASONS, "store", "locked", "clock", "bug")
"""Why a cycle can fail; `locked`: another process locks the store; `clock`: this machine's clock is wrong."""

STATEMENTS = 6
"""Statements per batch: a late run ends after its batch, and each statement may take the whole timeout."""

LONGEST_ERROR = 2000
AUDIT_LEVELS = {"agrees": logging.INFO, "changed": logging.WARNING, "differs": logging.ERROR}


class Notifier(Protocol):
    """Queues notifications."""

    def recipients(self) -> Recipients:
        """Who is notified, as configured now."""

    def wake(self) -> None:
        """Send what was queued."""


RetryIn = Callable[[str, float], None]
"""Asks for a monitor's next run in so many seconds."""


@dataclass(frozen=True)
class Run:
    """The outcome of a run: result or error."""

    outcome: CycleResult | None
    error: Exception | None = None


class Runner:
    """Runs one monitor. Not reentrant; the scheduler prevents overlapping runs."""

    def __init__(
        self,
        monitor: Monitor,
        source: RequestSource,
        store: Store,
        board: Board,
        telemetry: Telemetry,
        clock: Clock,
        stopping: threading.Event,
        notifier: Notifier,
        open_detailed: OpenDetailed | None = None,
        readers: Readers | None = None,
    ) -> None:
        """`open_detailed`: reads single requests for diagnoses; `readers`: for audits and where people look.

        None disables them.
        """
        self.monitor = monitor
        self._source = _TimedSource(source, monitor.name, telemetry)
        self._store = CachedStore(store, monitor)
        self._telemetry = telemetry
        self._clock = clock
        self._stopping = stopping
        self._notifier = notifier
        self._diagnoser = None if open_detailed is None else Diagnoser(monitor, store, open_detailed)
        self._auditor = None if readers is None else Auditor(monitor, store, readers)
        self._examiner = (
            None if readers is None or monitor.corrected is None else Examiner(monitor, store, readers.pull)
        )
        self._batch_size = BatchSize()
        self._finalized = FinalizedUpTo()
        self._retention = RetentionWorker(monitor, self._store)
        self._election = EvaluatorElection(monitor, store, time.monotonic)
        self._publisher = SnapshotPublisher(monitor, self._store, board, telemetry, self._is_over)
        self._status = self._publisher.status
        self._began: float | None = None
        self._token = 0
        self._former = monitor.renamed_from
        self._has_named_new = False
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
        """Start no further run; one in progress ends after its batch and shows nothing."""
        self._publisher.retire()

    def _is_over(self) -> bool:
        return self._publisher.is_retired or self._stopping.is_set()

    @property
    def waits(self) -> bool:
        """Whether the last run ended because another process locks the store."""
        return isinstance(self._status.error, StoreLocked)

    def refresh_snapshot(self, now: float) -> None:
        """Publish what is stored. Never raises."""
        self._publisher.publish_windows(now)

    # ---- one run -----------------------------------------------------------------------------------------------

    def run(self, retry_in: RetryIn | None = None) -> Run:
        """Run one cycle and publish a snapshot. Never raises.

        After a failure, calls `retry_in(name, seconds)` for a retry sooner or later than usual.
        """
        if self._is_over():
            return Run(None, Stopped(f"monitor {self.monitor.name}: stopped"))
        now, self._began = self._clock.now(), time.monotonic()
        try:
            return self._run(now, self._began, retry_in)
        finally:
            self._began = None

    def hangs_for(self, statement_timeout: float) -> float:
        """Seconds a run has lasted, if longer than any may take; else 0."""
        lasted = 0.0 if (began := self._began) is None else time.monotonic() - began
        return lasted if lasted > self.monitor.deadline + STATEMENTS * statement_timeout + LONGEST_RETRY else 0.0

    def _run(self, now: float, began: float, retry_in: RetryIn | None) -> Run:
        run = Run(None)
        try:
            with self._telemetry.stage(self.monitor.name, "cycle"), self._store.blaming_damage():
                run = Run(self._cycle(now, began))
        except Exception as error:
            run = Run(None, error)
            self._account_for(error, now, retry_in)
        self._status.error = run.error
        if run.outcome is not None:
            self._succeed(run.outcome, time.monotonic() - began)
        self._publisher.publish_windows(now)
        self._publisher.publish_histories(now)
        if run.outcome is not None and run.outcome.left == 0:
            self._diagnose(began)
        return run

    def _cycle(self, now: float, began: float) -> CycleResult:
        name, refresh = self.monitor.name, self.monitor.refresh / (self._clock.speed or 1.0)
        with self._store.hold(name) as lease:
            if lease.token != self._token + 1:  # another process has held it since
                self._publisher.note(Outdated.WINDOWS | Outdated.PAST)
            self._token = lease.token
            self._take_over(lease)
            if not self._has_named_new and (new := new_series(self.monitor, self._store)):
                log.warning("monitor %s: %s", name, new)
            self._has_named_new = True
            self._store.record(name, lease, last_attempt_at=now, refresh=refresh)
            result = self._examine(now, began, self._audit(now, self._read(now, began, lease)))
            taken = self._judge(now, began, lease, result)
            newest = {"newest_source_at": result.arrived.request, "newest_label_at": result.arrived.label}
            self._store.record(name, lease, last_success_at=now, **newest, **taken, last_error="")
            self._retain(lease, now)
        return result

    def _take_over(self, lease: Lease) -> None:
        """Take the history of the monitor's former name, if there is any. A run waits for who writes that one."""
        former, self._former = self._former, None
        if former is None:
            return
        try:
            if take_over(self._store, lease, former):
                log.info("monitor %s: it now has the history of %s", lease.monitor, former)
                self._publisher.note(Outdated.WINDOWS | Outdated.PAST)
        except InputError as error:
            log.error("%s", error)
        except (LeaseLost, StoreError):
            self._former = former
            raise

    def _read(self, now: float, began: float, lease: Lease) -> CycleResult:
        result, is_real = CycleResult(), isinstance(self._clock, SystemClock)
        parts = (self._source, self._store, lease, self._batch_size, self._finalized, is_real)
        try:
            for result in run_cycle(self.monitor, now, *parts):
                self._status.result = result
                # Always read one batch, or a source with slow freshness queries would never be read.
                if self._is_over() or (self._is_late(began) and result.left < result.due):
                    break
        finally:
            if result.stored:
                self._publisher.note(Outdated.WINDOWS)
            self._telemetry.count("rankmon_source_rows", self.monitor.name, by=result.rows_read)
            self._telemetry.count("rankmon_buckets_stored", self.monitor.name, by=result.stored)
        return result

    def _is_late(self, began: float) -> bool:
        return time.monotonic() - began >= self.monitor.deadline

    def _judge(self, now: float, began: float, lease: Lease, result: CycleResult) -> dict[str, str | int]:
        """Evaluates new final windows unless another process does; returns what to record of that."""
        if not self._election.is_mine(lease):
            return {}
        with self._telemetry.stage(self.monitor.name, "judge"):
            recipients = replace(self._notifier.recipients(), is_current=result.left == 0, real_now=time.time())
            judgement = judge_monitor(
                self.monitor,
                now,
                self._store,
                lease,
                recipients,
                result.arrived,
                is_over=self._is_over,
                leaves_off=lambda: self._is_late(began),
            )
        if judgement is not None:
            self._publisher.note(Outdated.WINDOWS | (Outdated.PAST if judgement.restated else Outdated.NOTHING))
            if judgement.notices:
                self._notifier.wake()
        return self._election.taken(lease)

    # ---- small tasks, whose failures do not fail the run ---------------------------------------------------------

    def _retain(self, lease: Lease, now: float) -> None:
        try:
            if self._retention.advance(lease, now, self._is_over):
                self._store.forget()
        except (StoreError, LeaseLost) as error:
            log.warning("monitor %s: retention failed: %s; will retry with the next run", self.monitor.name, error)
        self._status.holding = self._retention.holding

    def _audit(self, now: float, result: CycleResult) -> CycleResult:
        if self._auditor is None or result.left or self._is_over():
            return result
        name, (_, reading) = self.monitor.name, self._telemetry.stages().get((self.monitor.name, "read"), (0, 0.0))
        try:
            with self._telemetry.stage(name, "audit"):
                audit = self._auditor.advance(now, reading, self._is_over)
        except SourceError as error:
            log.warning("monitor %s: audit failed: %s; will retry tomorrow", name, error)
            return result
        if audit is None:
            return result
        self._telemetry.count("rankmon_audits", name, audit.result)
        log.log(AUDIT_LEVELS[audit.result], "monitor %s: audit: %s", name, audit)
        wrong = str(audit.difference) if audit.result == "differs" else ""
        audited = Misread(audit.start, audit.start + self.monitor.bucket, wrong)
        return replace(result, arrived=replace(result.arrived, audited=audited))

    def _examine(self, now: float, began: float, result: CycleResult) -> CycleResult:
        if self._examiner is None or result.left:
            return result
        check, days = None, self._examiner.due(now)
        for at in days:
            if self._is_over() or self._is_late(began):
                break
            try:
                with self._telemetry.stage(self.monitor.name, "examine"):
                    check = self._examiner.check(at) or check
            except ValueError as error:
                text = "monitor %s: where people looked on the day until %s is unknown: %s"
                log.warning(text, self.monitor.name, utc(at), error)
            except SourceError as error:
                text = "monitor %s: check of where people looked on the day until %s failed: %s; will retry tomorrow"
                log.warning(text, self.monitor.name, utc(at), error)
                self._examiner.given_up = days[-1]
                break
        wrong = None if check is None or self.monitor.corrected is None else check.misfit(self.monitor.corrected)
        if wrong is not None:
            text = "monitor %s: %s: %s; run `rankmon examination fit`"
            log.warning(text, self.monitor.name, self.monitor.corrected, misfit(wrong))
        return replace(result, arrived=replace(result.arrived, examined=check))

    def _diagnose(self, began: float) -> None:
        if self._diagnoser is None or self._is_over():
            return
        name, left = self.monitor.name, max(0.0, self.monitor.deadline - (time.monotonic() - began))
        try:
            with self._telemetry.stage(name, "diagnose"), self._store.blaming_damage():
                incident = self._diagnoser.advance(self._is_over, min(DIAGNOSE_FOR, left))
        except (SourceError, StoreError) as error:
            log.warning("monitor %s: diagnosis of the open incident failed: %s; will retry", name, error)
        except Stopped:
            log.info("monitor %s: diagnosis of the open incident stopped; will restart with the next run", name)
        except Exception:
            self._telemetry.count("rankmon_evaluation_failures", name, "bug")
            log.exception("monitor %s: diagnosis failed: a bug in rankmon; please report it", name)
        else:
            if incident is not None:
                log.info(
                    "monitor %s: incident %s is diagnosed: see rankmon explain-incident %s", name, incident, incident
                )

    # ---- how it ended --------------------------------------------------------------------------------------------

    def _succeed(self, result: CycleResult, took: float) -> None:
        name = self.monitor.name
        self._telemetry.count("rankmon_evaluations", name)
        if self._status.failure is not None:
            log.info("monitor %s: works again after %s", name, counted(self._status.failure.times, "failure"))
        self._status.failure = None
        level = logging.INFO if result.stored else logging.DEBUG
        log.log(level, "monitor %s: %d of %d due buckets in %.1f s", name, result.stored, result.due, took)
        if result.late:
            self._telemetry.count("rankmon_late_buckets", name, by=result.late)
        shown = self._publisher.shown
        for warning in warnings_of(self.monitor, result, shown.future_rows if shown else None):
            log.warning("monitor %s: %s", name, warning)

    def _account_for(self, error: Exception, now: float, retry_in: RetryIn | None) -> None:
        name = self.monitor.name
        if isinstance(error, Stopped) or self._is_over():
            log.info("monitor %s: stopped; the current batch will be read again", name)
        elif isinstance(error, LeaseLost):
            self._publisher.note(Outdated.WINDOWS)
            self._telemetry.count("rankmon_skipped_runs", name, "other_writer")
            log.info("%s", error)
        else:
            self._fail(error, _reason(error), now, retry_in)

    def _fail(self, error: Exception, reason: str, now: float, retry_in: RetryIn | None) -> None:
        name, said = self.monitor.name, storable(exhausted(error) or str(error))
        times = 1 + (self._status.failure.times if self._status.failure else 0)
        self._telemetry.count("rankmon_evaluation_failures", name, reason)
        if reason == "bug":
            log.error("monitor %s: a bug in rankmon; please report it", name, exc_info=error)
        if retry_in is not None:
            most = max(self.monitor.refresh, 0.0 if reason == "clock" else LONGEST_RETRY)
            wait = doubling(times - 1, most)
            often = "once" if times == 1 else f"{times} times in a row"
            log.warning("monitor %s: failed %s, next try in %.0f s: %s", name, often, wait, said)
            retry_in(name, wait)
        self._status.failure = Failure(times, now, said[:LONGEST_ERROR])
        with suppress(StoreError):
            self._store.record(name, last_attempt_at=now, last_error=self._status.failure.text)


def warnings_of(monitor: Monitor, result: CycleResult, known_future_rows: int | None) -> Iterator[str]:
    """Oddities of a successful run; future rows only if none were known before."""
    if result.late:
        late = counted(result.late, "bucket")
        yield f"rankings arrived after {late} became final; read again. Are rankings delivered late?"
    if result.kept:
        buckets, replaces = counted(result.kept, "final bucket"), "`rankmon backfill --again --force` replaces them"
        yield f"source has fewer requests or labels now for {buckets}; keeping stored values. If right, {replaces}"
    if result.held:
        needed = -(-(monitor.bucket + final_age(monitor) + monitor.refresh) // HOUR) * HOUR
        buckets, least = counted(result.held, "bucket"), format_duration(needed)
        missing = f"source has no requests or no labels left for {buckets}; keeping stored values"
        yield f"{missing}. Keep rankings and labels for at least {least}"
    if result.future_rows and not known_future_rows:
        yield f"{counted(result.future_rows, 'row')} dated in the future"


def _reason(error: Exception) -> str:
    if isinstance(error, SourceError):
        return error.reason
    if exhausted(error):
        return "resources"
    kinds = {ClockError: "clock", StoreLocked: "locked", StoreError: "store"}
    return next((reason for kind, reason in kinds.items() if isinstance(error, kind)), "bug")


class _TimedSource:
    def __init__(self, source: RequestSource, monitor: str, telemetry: Telemetry) -> None:
        self._source = source
        self._monitor = monitor
        self._telemetry = telemetry

    def freshness(self, since: float, now: float) -> Freshness:
        with self._telemetry.stage(self._monitor, "read"):
            return self._source.freshness(since, now)

    def held(self) -> AbstractContextManager[None]:
        return self._source.held()

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        with self._telemetry.stage(self._monitor, "read"):
            return self._source.row_counts(spans)

    def read(self, since: int, until: int) -> Answer:
        with self._telemetry.stage(self._monitor, "read"):
            return self._source.read(since, until)
