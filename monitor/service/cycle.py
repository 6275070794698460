"""One cycle, in straight lines: the way of the data from the source to the store.

    how new is the source? -> which buckets are due? -> read -> partials -> store

That is half of what the daemon does. `runner` drives it, and then has what became final judged (see `judging`), keeps,
shows and looks closer. A cycle is safe to run again at any point: every write
replaces whole buckets in one transaction, and everything decided is a function of what is stored and of `now`, which
is read once. Who may write is settled by the lease. A cycle is an iterator that pauses after each stretch it has
stored, so whoever drives it may leave off there.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from monitor.conditions.arrivals import NOTHING_YET, Arrived, stale
from monitor.errors import ClockError, SourceError, TooMany
from monitor.messages.words import utc
from monitor.series.finality import CLOCK_TOLERANCE, BucketState, believed, due_buckets, final_age, is_final, is_over
from monitor.series.partials import Partials, bucket_of, effort, runs, starts, to_partials
from monitor.series.readings import Answer
from monitor.service.retention import refuse_what_is_gone
from monitor.store import Lease, Store, Written
from monitor.types import Definition, Monitor

log = logging.getLogger(__name__)

States = Mapping[Definition, Mapping[int, BucketState]]
"""What is stored of each series: bucket start -> state."""


DAY = 86_400


class Freshness(Protocol):
    """How far a source is."""

    @property
    def newest(self) -> float | None:
        """Seconds of its newest request."""

    @property
    def future_rows(self) -> int:
        """Rows dated later than now."""

    @property
    def newest_label(self) -> float | None:
        """Seconds of its newest event; None if none was found, or looked for."""

    @property
    def clock(self) -> float | None:
        """Seconds by the source's own clock; None if it has none, or nothing seems wrong with ours."""


class RequestSource(Protocol):
    """What a cycle needs of the user's database."""

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is."""

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """How many rows of the rankings have their time in each of some spans [since, until)."""

    def read(self, since: int, until: int) -> Answer:
        """The requests served in [since, until) with their labels, or the sums of these."""


@dataclass
class BatchSize:
    """How many buckets are read at once: as many as keep one read near `rows`. Learns from each read.

    Attributes:
        growth: times as many at the most as before, for what comes next may hold more than what was read.
        slow, slow_until: as many at the most until that time of the monotonic clock, for more took the source too long.
    """

    rows: int = 200_000
    most: int = 168
    buckets: int = 12
    growth: int = 16
    slow: int = 0
    slow_until: float = 0.0

    @property
    def at_most(self) -> int:
        """As many as may be read at once now."""
        return min(self.most, self.slow) if time.monotonic() < self.slow_until else self.most

    def learn(self, rows: int, buckets: int) -> None:
        """Adjust to a read of so many buckets that brought so many rows."""
        fitting = int(self.rows * buckets / max(rows, 1))
        self.buckets = max(1, min(fitting, self.at_most, self.growth * self.buckets))

    def shrink(self, buckets: int) -> None:
        """For a day read no more than half of these at once: the source could not in time."""
        self.slow, self.slow_until = max(1, buckets // 2), time.monotonic() + DAY
        self.buckets = min(self.buckets, self.slow)


@dataclass
class FinalizedUpTo:
    """Up to where a process that runs cycle after cycle need not look at a monitor's buckets again.

    From the oldest one that cycles read up to `until`, seconds, each is stored and settled. That holds for as long as
    nobody else writes the monitor, for which the number of the lease stands, and the clock is not set back.
    """

    until: int = 0
    token: int = -1
    seen_at: float = 0.0
    counted_at: float = 0.0
    all_counted_at: float = 0.0

    def begin(self, lease: Lease, now: float, oldest: int) -> int:
        """From where on this cycle looks at buckets."""
        if lease.token != self.token + 1 or now < self.seen_at:
            self.until, self.counted_at, self.all_counted_at = 0, 0.0, 0.0
        self.token, self.seen_at = lease.token, now
        return max(oldest, self.until)

    def count_from(self, now: float, monitor: Monitor) -> int | None:
        """From where on rows of final buckets are to be counted now: all once a day, the last day's once a bucket."""
        if now - self.counted_at < monitor.bucket:
            return None
        self.counted_at, since = now, int(now) - monitor.lookback
        if now - self.all_counted_at < DAY:
            return max(since, int(now) - final_age(monitor) - DAY)
        self.all_counted_at = now
        return since

    def learn(self, since: int, states: States, width: int) -> None:
        """Note how far the buckets from `since` on are settled in every series."""
        end = since
        while all(_is_settled(series, end) for series in states.values()):
            end += width
        self.until = end if end > since or since == self.until else 0


@dataclass(frozen=True)
class CycleResult:
    """What a cycle or backfill has done so far.

    Attributes:
        due: buckets that were to be read.
        stored: buckets that were read and stored.
        rows, summed: how many rows the source sent, and how many more of the rankings it went through to sum them up.
        kept: buckets left as they were because the source holds less of them now than is stored as final.
        held: buckets left as they were read before because the source has no request of them any more.
        late: final buckets that are read again because rows have come since.
        arrived: the newest that the source has ever shown.
        future_rows: rows of the source dated later than now.
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
        """Buckets that are still to be read."""
        return max(0, self.due - self.stored - self.kept - self.held)

    @property
    def rows_read(self) -> int:
        """Rows that the source sent or went through by itself."""
        return self.rows + self.summed

    def add(self, to_partials: Partials, written: Written) -> CycleResult:
        """The outcome after one stretch more."""
        stored, kept = self.stored + written.buckets, self.kept + len(written.kept)
        held, rows, summed = self.held + written.held, self.rows + to_partials.rows, self.summed + to_partials.summed
        return replace(self, stored=stored, kept=kept, held=held, rows=rows, summed=summed)

    def and_then(self, later: CycleResult) -> CycleResult:
        """Both, of two attempts at the same."""
        stored, kept, held = self.stored + later.stored, self.kept + later.kept, self.held + later.held
        rows, summed = self.rows + later.rows, self.summed + later.summed
        return replace(later, stored=stored, kept=kept, held=held, rows=rows, summed=summed)


@dataclass(frozen=True)
class _Plan:
    """What is to be read, decided at one moment.

    Attributes:
        now: seconds; decides what is final.
        arrived: the newest of the source.
        due: starts of buckets, rising.
        late: those of them that are final, and of which rows have come since.
        states: what is stored of them; what is settled there is left alone unless `again`.
        force: replace final buckets even by less.
    """

    monitor: Monitor
    now: float
    arrived: Arrived
    future_rows: int
    due: Sequence[int]
    states: States
    again: bool = False
    force: bool = False
    late: Collection[int] = ()


def run_cycle(
    monitor: Monitor,
    now: float,
    source: RequestSource,
    store: Store,
    lease: Lease,
    batch_size: BatchSize,
    settled: FinalizedUpTo | None = None,
    is_real: bool = False,
) -> Iterator[CycleResult]:
    """Read what is due of one monitor and store it; the outcome so far, before the first stretch and after each.

    1. See what is stored, and ask the source how new it is.
    2. Find the buckets that were never read, those whose labels are still coming in and that are due again, and, by a
       count of rows, final ones whose rankings have come late.
    3. Read them, oldest first, a bounded stretch at a time; turn each into partials; store it at once.

    What is not read when the caller leaves off is due in the next cycle.

    Args:
        now: seconds; decides what is due and what is final.
        settled: what the process knows from the cycles before; None: it begins with this one.
        is_real: `now` is the present, so that the source's clock should say the same.

    Raises:
        SourceError, StoreError: try again later; what was stored stays.
        ClockError: `now` is wrong by far; nothing was read.
        LeaseLost: another process writes this monitor.
        Stopped: the process is to end.
    """
    settled = settled or FinalizedUpTo()
    since = settled.begin(lease, now, bucket_of(int(now) - monitor.lookback, monitor.bucket))
    with store.at_once():
        store.adopt(lease, monitor)
        refuse_a_clock_behind(monitor, now, store)
        states = _stored(monitor, store, since, now)
        noted, is_begun = _noted(monitor, now, store, states), store.retention.is_begun(monitor.name)
    settled.learn(since, states, monitor.bucket)
    arrived, future_rows = _arrived(monitor, now - monitor.lookback, now, source, noted, states, is_real)
    request = arrived.request
    found = (due_buckets(monitor, s, now, request, settled.until, is_begun) for s in states.values())
    late = _late(monitor, settled.count_from(now, monitor), source, store)
    if len(late) == DAY // monitor.bucket:  # and there may be more
        settled.counted_at = settled.all_counted_at = 0.0
    due = _without_rolled_up(monitor, sorted({*late, *(start for starts in found for start in starts)}), store, now)
    plan = _Plan(monitor, now, arrived, future_rows, due, states, late=set(due).intersection(late))
    yield from _read_and_store(plan, source, store, lease, batch_size)


def _late(monitor: Monitor, since: int | None, source: RequestSource, store: Store) -> list[int]:
    """Starts of final buckets from `since` on of which the source has more rows than when they were read; a day's most.

    Rows are counted by the day first, and by the bucket where a day has others than it had.
    """
    known = {} if since is None else store.row_counts(monitor.traffic, since)
    days: dict[int, list[int]] = {}
    for start in sorted(known):
        days.setdefault(start // DAY, []).append(start)
    whole = [part for some in days.values() for part in runs(some, monitor.bucket, len(some))]
    try:
        counts = zip(whole, source.row_counts(whole), strict=True)
        other = [(s, u) for (s, u), rows in counts if rows != sum(known[b] for b in range(s, u, monitor.bucket))]
        starts = [start for s, u in other for start in range(s, u, monitor.bucket)]
        now = source.row_counts([(start, start + monitor.bucket) for start in starts])
    except SourceError as error:
        if error.reason not in ("timeout", "resources"):
            raise
        log.info("monitor %s: late rankings are not looked for, counting rows took too long: %s", monitor.name, error)
        return []
    late = [start for start, rows in zip(starts, now, strict=True) if rows > known[start]]
    return late[: DAY // monitor.bucket]


def _counted(plan: _Plan, since: int, until: int, source: RequestSource) -> dict[int, int]:
    """Start -> rows of the buckets in [since, until) that a read now makes final, where `_late` will ask for them."""
    monitor, oldest = plan.monitor, plan.now - plan.monitor.lookback
    final = [
        start
        for start in range(since, until, monitor.bucket)
        if start >= oldest and is_final(monitor, start, plan.now, plan.arrived.request)
    ]
    try:
        rows = source.row_counts([(start, start + monitor.bucket) for start in final])
    except SourceError as error:
        if error.reason not in ("timeout", "resources"):
            raise
        return {}
    return dict(zip(final, rows, strict=True))


def refuse_a_clock_behind(monitor: Monitor, now: float, store: Store) -> None:
    """See that no buckets are read by a clock that is more than a day behind: nothing is wrong with what is stored.

    Raises:
        ClockError: it is.
        StoreError: the store is out of reach.
    """
    newest = store.retention.behind(now, monitor.name)
    if newest is not None and newest - now > DAY:
        raise _doubted(monitor, now, f"requests up to {utc(newest)} are stored")


def _doubted(monitor: Monitor, now: float, evidence: str) -> ClockError:
    text = f"monitor {monitor.name}: this machine's clock is wrong: it says {utc(int(now))}, but {evidence}"
    return ClockError(f"{text}; nothing is read or judged until they agree")


def _without_rolled_up(monitor: Monitor, due: list[int], store: Store, now: float) -> list[int]:
    """Without buckets of a time that is stored in coarser ones: read once more, they would count twice."""
    if not due or due[0] > now - DAY:
        return due
    for definition in monitor.definitions:
        span = store.retention.rolled_up(definition, due[0], due[-1] + monitor.bucket)
        if span is not None:
            due = [start for start in due if start + monitor.bucket <= span[0] or start >= span[1]]
        if not due:
            break
    return due


def run_backfill(
    monitor: Monitor,
    now: float,
    span: tuple[int, int],
    source: RequestSource,
    store: Store,
    lease: Lease,
    batch_size: BatchSize,
    again: bool = False,
    force: bool = False,
) -> Iterator[CycleResult]:
    """Read the buckets in `span` = [since, until) seconds that are not final yet; otherwise as `run_cycle`.

    Left off anywhere and started again, it goes on where it was. `again` reads final buckets too, and notes in the
    store that it did; a read that holds less than what is stored is refused unless `force`.

    Raises:
        InputError: some of it was rolled up, or is too old to be kept.
        SourceError, StoreError, LeaseLost, Stopped: as of `run_cycle`.
    """
    refuse_a_clock_behind(monitor, now, store)
    refuse_what_is_gone(monitor, store, span, now)
    ended = [start for start in starts(*span, monitor.bucket) if start + monitor.bucket + monitor.ingest_delay <= now]
    states = _stored(monitor, store, ended[0] if ended else int(now), now)
    noted = _noted(monitor, now, store, states)
    arrived, future_rows = _arrived(monitor, span[0], now, source, noted, states)
    due = [start for start in ended if again or not all(_is_settled(series, start) for series in states.values())]
    plan = _Plan(monitor, now, arrived, future_rows, due, states, again, force)
    yield from _read_and_store(plan, source, store, lease, batch_size)


def _stored(monitor: Monitor, store: Store, since: int, now: float) -> States:
    """What is stored of each series from `since` on, and its newest bucket in any case: no gap is left after it."""
    found = {}
    for definition in monitor.definitions:
        newest = store.newest_bucket(definition)
        stored = store.states(definition, since if newest is None else min(since, newest))
        found[definition] = believed(stored, now)
    return found


def _arrived(
    monitor: Monitor,
    since: float,
    now: float,
    source: RequestSource,
    noted: Arrived,
    states: States,
    is_real: bool = False,
) -> tuple[Arrived, int]:
    """(the newest that the source has ever shown, its rows dated later than now).

    Raises:
        ClockError: by the source's clock, `is_real`, it is another day, and its requests are of that one.
    """
    fresh = source.freshness(_look_from(monitor, since, noted, states), now)
    request = noted.request if fresh.newest is None else fresh.newest
    label = noted.label if fresh.newest_label is None else fresh.newest_label
    arrived, theirs = Arrived(request, label), fresh.clock
    if is_real and theirs is not None:
        is_behind = theirs - now >= DAY and fresh.future_rows > 0
        is_empty = request is None and now - theirs >= DAY
        is_silent, is_by_theirs = (stale(monitor, arrived, at) is not None for at in (now, theirs))
        if is_behind or is_empty or (now - theirs > CLOCK_TOLERANCE and is_silent and not is_by_theirs):
            raise _doubted(monitor, now, f"by the source's clock it is {utc(int(theirs))}")
    return arrived, fresh.future_rows


def _noted(monitor: Monitor, now: float, store: Store, states: States) -> Arrived:
    """The newest that cycles before have seen.

    Nothing where a clock that ran ahead noted it, or another definition did, of other tables perhaps.
    """
    progress = store.progress(monitor.name)
    request, label = progress.newest_source_at, progress.newest_label_at if _looks_for_labels(monitor) else None
    if request is None or max(request, label or request) > now or not states[monitor.traffic]:
        return NOTHING_YET
    return Arrived(request, label)


def _look_from(monitor: Monitor, since: float, noted: Arrived, states: States) -> float:
    """Where to begin to look for the newest: where it was; if that is not known, `since` or the oldest open bucket."""
    if noted.request is None:
        unsettled = (start for series in states.values() for start, state in series.items() if not state.is_settled)
        return min((since, *unsettled))
    since = min(since, noted.request)
    if noted.label is None and _looks_for_labels(monitor):
        return since
    return max(since, min(noted.request, noted.label or noted.request))


def _looks_for_labels(monitor: Monitor) -> bool:
    """Whether the newest event is asked for: where verdicts are, that tell when labels stay behind."""
    return monitor.drift is not None and monitor.has_events


def _read_and_store(
    plan: _Plan, source: RequestSource, store: Store, lease: Lease, batch_size: BatchSize
) -> Iterator[CycleResult]:
    """Carry out a plan, stretch by stretch; the outcome so far, before the first one and after each."""
    monitor = plan.monitor
    outcome = CycleResult(len(plan.due), late=len(plan.late), arrived=plan.arrived, future_rows=plan.future_rows)
    yield outcome
    if not plan.due:
        return
    for since, until in _stretches(plan.due, monitor.bucket, batch_size, store.places(monitor.name).changes()):
        places = store.places(monitor.name)
        sliced = replace(monitor, slices=places.open_at(since, monitor.slices))
        counted = _counted(plan, since, until, source)  # before the read: what comes in between is read, or told late
        found = read_partials(sliced, source, since, until, places.at(since), batch_size)
        batch_size.learn(effort(found), (until - since) // monitor.bucket)
        written = _write(plan, found, store, lease, counted)
        outcome = outcome.add(found, written)
        yield outcome


def _stretches(
    due: Sequence[int], width: int, batch_size: BatchSize, cuts: Sequence[int] = ()
) -> Iterator[tuple[int, int]]:
    """[since, until) of neighbouring buckets, as many at once as `batch_size` says when it is their turn.

    Args:
        cuts: instants, rising. A bucket that begins before one is never read together with one that does not.
    """
    done = 0
    while done < len(due):
        since, until = next(runs(list(due[done : done + batch_size.buckets]), width, batch_size.buckets))
        edges = (-(-cut // width) * width for cut in cuts[bisect_right(cuts, since) :])
        until = min(until, next(edges, until))
        yield since, until
        done += (until - since) // width


def read_partials(
    monitor: Monitor,
    source: RequestSource,
    since: int,
    until: int,
    known: Mapping[str, set[str]],
    batch_size: BatchSize | None = None,
) -> Partials:
    """Partials of [since, until); read in halves where it is more than fits into memory, or the source's time, at once.

    Args:
        known: dimension -> values that have a place.
        batch_size: learns of what takes too long.
    """
    if batch_size is not None and until - since > batch_size.at_most * monitor.bucket:  # as was learnt on the way
        return _in_halves(monitor, source, since, until, known, batch_size)
    try:
        answer = source.read(since, until)
    except SourceError as error:
        if error.reason not in ("timeout", "resources") or until - since <= monitor.bucket:
            raise
        buckets = (until - since) // monitor.bucket
        log.info(
            "monitor %s: %d buckets at once took too long, so they are read in halves: %s", monitor.name, buckets, error
        )
        if batch_size is not None:
            batch_size.shrink(buckets)
        return _in_halves(monitor, source, since, until, known, batch_size)
    except TooMany as error:
        if until - since <= 1:
            raise SourceError(
                f"monitor {monitor.name}: {error} within a second and max_request_span around it; lower that, or see "
                "whether the times are right",
                "data",
            ) from error
        return _in_halves(monitor, source, since, until, known, batch_size)
    kernels = dict.fromkeys(m.kernel for m in monitor.measures)
    return to_partials(answer, monitor.bucket, kernels, monitor.slices, known)


def _in_halves(
    monitor: Monitor,
    source: RequestSource,
    since: int,
    until: int,
    known: Mapping[str, set[str]],
    batch_size: BatchSize | None,
) -> Partials:
    middle = _middle(since, until, monitor.bucket)
    first = read_partials(monitor, source, since, middle, known, batch_size)
    return first + read_partials(monitor, source, middle, until, _with_admitted(known, first), batch_size)


def _with_admitted(known: Mapping[str, set[str]], to_partials: Partials) -> dict[str, set[str]]:
    """Dimension -> values admitted before or by these partials."""
    found = {dimension: set(values) for dimension, values in known.items()}
    for dimension, value in to_partials.admitted:
        found.setdefault(dimension, set()).add(value)
    return found


def _middle(since: int, until: int, width: int) -> int:
    """A bucket's edge near the middle, or just the middle where there is none between."""
    middle = (since + until) // 2
    edge = bucket_of(middle, width)
    return edge if edge > since else middle


def _write(plan: _Plan, to_partials: Partials, store: Store, lease: Lease, counted: Mapping[int, int]) -> Written:
    """Store the buckets of partials, of each series those that are open, or all if they are read again."""
    monitor, inside = plan.monitor, range(to_partials.since, to_partials.until, plan.monitor.bucket)
    again = set(inside) if plan.again else plan.late
    targets = {d: [s for s in inside if s in again or not _is_settled(plan.states[d], s)] for d in plan.states}
    finals = [start for start in inside if is_final(monitor, start, plan.now, plan.arrived.request)]
    awaited = {start for start in finals if not is_over(monitor, start, plan.arrived.request)}
    final = {s for d in plan.states for s in targets[d] if s in plan.states[d] and plan.states[d][s].final}
    restating = final.union(plan.late).intersection(inside)
    return store.write(lease, monitor, to_partials, targets, plan.now, finals, plan.force, restating, awaited, counted)


def _is_settled(series: Mapping[int, BucketState], start: int) -> bool:
    return start in series and series[start].is_settled
