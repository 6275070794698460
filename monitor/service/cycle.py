"""One cycle: source freshness -> due buckets -> read -> partials -> store.

Safe to repeat at any point: each write replaces whole buckets in one transaction, and every decision follows from
the store and `now`, read once. The lease settles who writes. `runner` drives it and may stop after any batch.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.conditions.arrivals import NOTHING_YET, Arrived
from monitor.conditions.kinds.source_stale import stale_since
from monitor.errors import ClockError, SourceError
from monitor.messages.words import utc
from monitor.series.finality import CLOCK_TOLERANCE, BucketState, believed, due_buckets, final_age, is_final, is_over
from monitor.series.partials import Partials, bucket_of, effort, runs, starts
from monitor.service.reading import TOO_SLOW, BatchSize, RequestSource, read_partials
from monitor.service.retention import refuse_what_is_gone
from monitor.store import Lease, Store, Written
from monitor.types import Definition, Monitor
from monitor.units import DAY, Span

log = logging.getLogger(__name__)

States = Mapping[Definition, Mapping[int, BucketState]]
"""Stored states of each series: bucket start -> state."""


@dataclass
class FinalizedUpTo:
    """Buckets before `until` seconds are settled, while nobody else takes the lease and the clock is not set back."""

    until: int = 0
    token: int = -1
    seen_at: float = 0.0
    counted_at: float = 0.0
    all_counted_at: float = 0.0

    def begin(self, lease: Lease, now: float, oldest: int) -> int:
        """Where this cycle starts to look at buckets, seconds."""
        if lease.token != self.token + 1 or now < self.seen_at:
            self.until, self.counted_at, self.all_counted_at = 0, 0.0, 0.0
        self.token, self.seen_at = lease.token, now
        return max(oldest, self.until)

    def count_from(self, now: float, monitor: Monitor) -> int | None:
        """Since when to count rows of final buckets: all once a day, the last day's once a bucket; None: not now."""
        if now - self.counted_at < monitor.bucket:
            return None
        self.counted_at, since = now, int(now) - monitor.lookback
        if now - self.all_counted_at < DAY:
            return max(since, int(now) - final_age(monitor) - DAY)
        self.all_counted_at = now
        return since

    def learn(self, since: int, states: States, width: int) -> None:
        """Record how far the buckets from `since` on are settled in every series."""
        end = since
        while all(_is_settled(series, end) for series in states.values()):
            end += width
        self.until = end if end > since or since == self.until else 0


@dataclass(frozen=True)
class CycleResult:
    """Progress of a cycle or backfill; `due`, `stored`, `kept`, `held` and `late` are buckets.

    Attributes:
        rows, summed: rows the source sent, and further rows it aggregated itself.
        kept: not replaced: the source holds less now than the final bucket.
        held: not replaced: the source has none of their requests now, or none of their labels.
        late: final, but read again because rows arrived since.
        arrived: the newest the source has ever shown.
    """

    due: int = 0
    stored: int = 0
    rows: int = 0
    summed: int = 0
    kept: int = 0
    held: int = 0
    late: int = 0
    arrived: Arrived = NOTHING_YET
    future_rows: int = 0

    @property
    def left(self) -> int:
        """Buckets still to be read."""
        return max(0, self.due - self.stored - self.kept - self.held)

    @property
    def rows_read(self) -> int:
        """Rows the source sent or aggregated."""
        return self.rows + self.summed

    def add(self, read: Partials, written: Written) -> CycleResult:
        """The result after one more batch."""
        batch = replace(self, stored=written.buckets, kept=len(written.kept), held=written.held)
        return self.and_then(replace(batch, rows=read.rows, summed=read.summed))

    def and_then(self, later: CycleResult) -> CycleResult:
        """The sum of two attempts at the same work."""
        stored, kept, held = self.stored + later.stored, self.kept + later.kept, self.held + later.held
        rows, summed = self.rows + later.rows, self.summed + later.summed
        return replace(later, stored=stored, kept=kept, held=held, rows=rows, summed=summed)


def run_cycle(
    monitor: Monitor,
    now: float,
    source: RequestSource,
    store: Store,
    lease: Lease,
    batch_size: BatchSize,
    finalized: FinalizedUpTo | None = None,
    is_real: bool = False,
) -> Iterator[CycleResult]:
    """Read and store what is due of a monitor; yields the result so far, before the first batch and after each.

    Due are buckets never read, those whose labels still arrive, and final ones with late rankings. They are read
    oldest first in bounded batches, each stored at once. What is left when the caller stops is due next time.

    Args:
        now: seconds; decides what is due and what is final.
        finalized: what the process knows from earlier cycles.
        is_real: `now` is the present, so the source's clock should agree.

    Raises:
        SourceError, StoreError: try again later; what was stored stays.
        ClockError: `now` is far off; nothing was read.
        LeaseLost: another process writes this monitor.
        Stopped: the process is stopping.
    """
    cycle, finalized = _Cycle(monitor, now, source, store, lease, batch_size), finalized or FinalizedUpTo()
    since = finalized.begin(lease, now, bucket_of(cycle.oldest, monitor.bucket))
    with store.at_once():
        store.adopt(lease, monitor)
        cycle.refuse_a_clock_behind()
        states = cycle.stored(since)
        noted, is_begun = cycle.noted(states), store.retention.is_begun(monitor.name)
    finalized.learn(since, states, monitor.bucket)
    with source.held():
        arrived, future_rows = cycle.arrived(now - monitor.lookback, noted, states, is_real)
        late = cycle.late(finalized.count_from(now, monitor))
    never_or_open = (
        due_buckets(monitor, series, now, arrived.request, finalized.until, is_begun) for series in states.values()
    )
    if len(late) == DAY // monitor.bucket:  # there may be more
        finalized.counted_at = finalized.all_counted_at = 0.0
    due = cycle.without_rolled_up(sorted({*late, *(start for starts_due in never_or_open for start in starts_due)}))
    yield from cycle.carry_out(_Plan(arrived, future_rows, due, states, late=set(due).intersection(late)))


def run_backfill(
    monitor: Monitor,
    now: float,
    span: Span,
    source: RequestSource,
    store: Store,
    lease: Lease,
    batch_size: BatchSize,
    again: bool = False,
    force: bool = False,
) -> Iterator[CycleResult]:
    """Read the non-final buckets in `span`; otherwise as `run_cycle`. Resumes where it was interrupted.

    `again` reads final buckets too and records that in the store; less than is stored is refused unless `force`.

    Raises:
        InputError: part of the span was rolled up, or is older than the retention.
        SourceError, StoreError, LeaseLost, Stopped: as `run_cycle`.
    """
    cycle = _Cycle(monitor, now, source, store, lease, batch_size)
    cycle.refuse_a_clock_behind()
    refuse_what_is_gone(monitor, store, span, now)
    ended = [start for start in starts(*span, monitor.bucket) if start + monitor.bucket + monitor.ingest_delay <= now]
    states = cycle.stored(ended[0] if ended else int(now))
    arrived, future_rows = cycle.arrived(span[0], cycle.noted(states), states)
    due = [start for start in ended if again or not all(_is_settled(series, start) for series in states.values())]
    yield from cycle.carry_out(_Plan(arrived, future_rows, due, states, again, force))


@dataclass(frozen=True)
class _Plan:
    """Bucket starts to read, rising; settled ones are skipped unless `again` or `late`."""

    arrived: Arrived
    future_rows: int
    due: Sequence[int]
    states: States
    again: bool = False
    force: bool = False
    late: Collection[int] = ()


@dataclass(frozen=True)
class _Cycle:
    monitor: Monitor
    now: float
    source: RequestSource
    store: Store
    lease: Lease
    batch_size: BatchSize

    @property
    def oldest(self) -> int:
        return int(self.now) - self.monitor.lookback

    # ---- what is stored, and how new is the source? --------------------------------------------------------------

    def refuse_a_clock_behind(self) -> None:
        newest = self.store.retention.behind(self.now, self.monitor.name)
        if newest is not None and newest - self.now > DAY:
            raise self._clock_error(f"requests up to {utc(newest)} are stored")

    def _clock_error(self, evidence: str) -> ClockError:
        text = f"this machine's clock is wrong: it says {utc(int(self.now))}, but {evidence}"
        return ClockError(f"monitor {self.monitor.name}: {text}; nothing is read or evaluated until they agree")

    def stored(self, since: int) -> States:
        """Also the newest bucket of each series in any case, so that no gap is left after it."""
        states = {}
        for definition in self.monitor.definitions:
            newest = self.store.newest_bucket(definition)
            stored = self.store.states(definition, since if newest is None else min(since, newest))
            states[definition] = believed(stored, self.now)
        return states

    def noted(self, states: States) -> Arrived:
        """The newest that earlier cycles saw; nothing if it came from a fast clock or another definition."""
        progress = self.store.progress(self.monitor.name)
        request, label = progress.newest_source_at, progress.newest_label_at if self._looks_for_labels else None
        if request is None or max(request, label or request) > self.now or not states[self.monitor.traffic]:
            return NOTHING_YET
        return Arrived(request, label)

    @property
    def _looks_for_labels(self) -> bool:
        return self.monitor.drift is not None and self.monitor.has_events

    def arrived(self, since: float, noted: Arrived, states: States, is_real: bool = False) -> tuple[Arrived, int]:
        """(the newest ever seen, rows dated in the future). Raises ClockError if `is_real` and a day off."""
        fresh = self.source.freshness(self._look_from(since, noted, states), self.now)
        request = noted.request if fresh.newest is None else fresh.newest
        label = noted.label if fresh.newest_label is None else fresh.newest_label
        arrived, theirs = Arrived(request, label), fresh.clock
        if is_real and theirs is not None:
            is_behind = theirs - self.now >= DAY and fresh.future_rows > 0
            is_empty = request is None and self.now - theirs >= DAY
            is_silent, is_by_theirs = (stale_since(self.monitor, arrived, at) is not None for at in (self.now, theirs))
            if is_behind or is_empty or (self.now - theirs > CLOCK_TOLERANCE and is_silent and not is_by_theirs):
                raise self._clock_error(f"the source's clock says {utc(int(theirs))}")
        return arrived, fresh.future_rows

    def _look_from(self, since: float, noted: Arrived, states: States) -> float:
        if noted.request is None:
            unsettled = (start for series in states.values() for start, state in series.items() if not state.is_settled)
            return min((since, *unsettled))
        since = min(since, noted.request)
        if noted.label is None and self._looks_for_labels:
            return since
        return max(since, min(noted.request, noted.label or noted.request))

    # ---- which buckets are due? ----------------------------------------------------------------------------------

    def late(self, since: int | None) -> list[int]:
        """Final buckets with more rows in the source than when read; a day's at most. Counts by day first."""
        rows_stored = {} if since is None else self.store.row_counts(self.monitor.traffic, since)
        days: dict[int, list[int]] = {}
        for start in sorted(rows_stored):
            days.setdefault(start // DAY, []).append(start)
        width = self.monitor.bucket
        whole = [part for some in days.values() for part in runs(some, width, len(some))]
        try:
            counts = zip(whole, self.source.row_counts(whole), strict=True)
            other = [(s, u) for (s, u), rows in counts if rows != sum(rows_stored[b] for b in range(s, u, width))]
            rows = self._rows_of([start for s, u in other for start in range(s, u, width)])
        except SourceError as error:
            if error.reason not in TOO_SLOW:
                raise
            log.info("monitor %s: counting rows took too long, late rankings not checked: %s", self.monitor.name, error)
            return []
        return [start for start, number in rows.items() if number > rows_stored[start]][: DAY // width]

    def _rows_of(self, buckets: Sequence[int]) -> dict[int, int]:
        rows = self.source.row_counts([(start, start + self.monitor.bucket) for start in buckets])
        return dict(zip(buckets, rows, strict=True))

    def without_rolled_up(self, due: list[int]) -> list[int]:
        """Drops times stored in coarser buckets: read again, they would count twice."""
        if not due or due[0] > self.now - DAY:
            return due
        for definition in self.monitor.definitions:
            span = self.store.retention.rolled_up(definition, due[0], due[-1] + self.monitor.bucket)
            if span is not None:
                due = [start for start in due if start + self.monitor.bucket <= span[0] or start >= span[1]]
            if not due:
                break
        return due

    # ---- read and store ------------------------------------------------------------------------------------------

    def carry_out(self, plan: _Plan) -> Iterator[CycleResult]:
        result = CycleResult(len(plan.due), late=len(plan.late), arrived=plan.arrived, future_rows=plan.future_rows)
        yield result
        if not plan.due:
            return
        name, width = self.monitor.name, self.monitor.bucket
        for since, until in _batches(plan.due, width, self.batch_size, self.store.places(name).changes()):
            registry = self.store.places(name)
            sliced = replace(self.monitor, slices=registry.open_at(since, self.monitor.slices))
            # Before the read: rows that arrive in between are either read or late.
            with self.source.held():
                counted = self._counted(plan, since, until)
                read = read_partials(sliced, self.source, since, until, registry.at(since), self.batch_size)
            self.batch_size.learn(effort(read), (until - since) // width)
            result = result.add(read, self._write(plan, read, counted))
            yield result

    def _counted(self, plan: _Plan, since: int, until: int) -> dict[int, int]:
        inside = range(since, until, self.monitor.bucket)
        try:
            return self._rows_of([s for s in self._finals(plan, inside) if s >= self.now - self.monitor.lookback])
        except SourceError as error:
            if error.reason not in TOO_SLOW:
                raise
            return {}

    def _finals(self, plan: _Plan, inside: range) -> list[int]:
        return [start for start in inside if is_final(self.monitor, start, self.now, plan.arrived.request)]

    def _write(self, plan: _Plan, read: Partials, counted: Mapping[int, int]) -> Written:
        inside = range(read.since, read.until, self.monitor.bucket)
        again = set(inside) if plan.again else plan.late
        targets = {d: [s for s in inside if s in again or not _is_settled(plan.states[d], s)] for d in plan.states}
        finals = self._finals(plan, inside)
        awaited = {start for start in inside if not is_over(self.monitor, start, plan.arrived.request)}
        final = {s for d in plan.states for s in targets[d] if s in plan.states[d] and plan.states[d][s].final}
        restating = final.union(plan.late).intersection(inside)
        return self.store.write(
            self.lease, self.monitor, read, targets, self.now, finals, plan.force, restating, awaited, counted
        )


def _batches(due: Sequence[int], width: int, batch_size: BatchSize, cuts: Sequence[int]) -> Iterator[Span]:
    """Spans of adjacent buckets, as many as `batch_size` allows by then; none crosses an instant in `cuts` (rising)."""
    done = 0
    while done < len(due):
        since, until = next(runs(list(due[done : done + batch_size.buckets]), width, batch_size.buckets))
        edges = (-(-cut // width) * width for cut in cuts[bisect_right(cuts, since) :])
        until = min(until, next(edges, until))
        yield since, until
        done += (until - since) // width


def _is_settled(series: Mapping[int, BucketState], start: int) -> bool:
    return start in series and series[start].is_settled
