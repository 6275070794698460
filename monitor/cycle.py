"""One cycle, in straight lines: the way of the data from the source to the store.

    freshness -> due buckets -> read -> tally -> store

It is safe to run again at any point: every write replaces whole buckets in one transaction, and everything decided is
a function of what is stored and of `now`, which is read once. Who may write is settled by the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from monitor.core.buckets import bucket_of, runs, starts
from monitor.core.tally import Reading, Tally, tally
from monitor.core.types import Definition, Monitor
from monitor.core.watermark import BucketState, due_buckets, is_final
from monitor.errors import SourceError, TooMany
from monitor.store import Lease, Store


class Freshness(Protocol):
    """How far a source is."""

    @property
    def newest(self) -> float | None:
        """Seconds of its newest request."""

    @property
    def future_rows(self) -> int:
        """Rows dated later than now."""


class Source(Protocol):
    """What a cycle needs of the user's database."""

    def freshness(self, since: float, now: float) -> Freshness:
        """How new the source is."""

    def read(self, since: int, until: int) -> Reading:
        """The requests served in [since, until) with their labels."""


@dataclass
class Stride:
    """How many buckets are read at once: as many as keep one answer near `rows`. Learns from each read."""

    rows: int = 200_000
    most: int = 168
    buckets: int = 12

    def learn(self, tallied: Tally, width: int) -> None:
        """Adjust to what a read brought."""
        per_bucket = tallied.rows / max(1, (tallied.until - tallied.since) // width)
        self.buckets = max(1, min(self.most, int(self.rows / max(per_bucket, 1)), 4 * self.buckets))


@dataclass
class Outcome:
    """What a cycle or backfill did.

    Attributes:
        due: buckets that were to be read.
        stored: buckets that were read and stored.
        rows: rows that the source sent.
        kept: final buckets kept because the source holds less of them now.
        newest: seconds of the source's newest request.
        future_rows: rows of the source dated later than now.
    """

    due: int = 0
    stored: int = 0
    rows: int = 0
    kept: list[int] = field(default_factory=list)
    newest: float | None = None
    future_rows: int = 0

    @property
    def is_caught_up(self) -> bool:
        """Whether nothing that was due is left."""
        return self.stored + len(self.kept) >= self.due


def run_cycle(
    monitor: Monitor,
    now: float,
    source: Source,
    store: Store,
    lease: Lease,
    stride: Stride,
    may_go_on: Callable[[], bool],
) -> Outcome:
    """Read what is due of one monitor and store it.

    1. Ask the source how new it is.
    2. See which buckets were never read, or are due again because their labels are still coming in.
    3. Read them, oldest first, a bounded stretch at a time; turn each into partials; store it at once.

    Args:
        now: seconds; decides what is due and what is final.
        may_go_on: asked before each stretch; what is left then is due in the next cycle.

    Raises:
        SourceError, StoreError: try again later; what was stored stays.
        LeaseLost: another process writes this monitor.
        Stopped: the process is to end.
    """
    states = _states(monitor, store, bucket_of(int(now) - monitor.history, monitor.bucket))
    known = store.progress(monitor.name).newest_source_at
    fresh = source.freshness(_look_back(monitor, states, known, now), now)
    newest = fresh.newest if fresh.newest is not None else known
    due = sorted({start for s in states.values() for start in due_buckets(monitor, s, now, newest)})
    outcome = Outcome(len(due), newest=newest, future_rows=fresh.future_rows)
    for done in read_and_store(monitor, now, newest, due, states, source, store, lease, stride):
        outcome.stored += done.stored
        outcome.rows += done.rows
        outcome.kept += done.kept
        if not may_go_on():
            break
    return outcome


def run_backfill(
    monitor: Monitor,
    now: float,
    span: tuple[int, int],
    source: Source,
    store: Store,
    lease: Lease,
    stride: Stride,
    again: bool = False,
    force: bool = False,
) -> Iterator[Outcome]:
    """Read the buckets in `span` = [since, until) seconds that are not final yet, oldest first, stretch by stretch.

    Stopped anywhere and started again, it goes on where it was. `again` reads final buckets too, and a read that holds
    less than what is stored is refused unless `force`.
    """
    wanted = [s for s in starts(*span, monitor.bucket) if s + monitor.bucket + monitor.ingest_delay <= now]
    states = _states(monitor, store, wanted[0]) if wanted else {}
    fresh = source.freshness(span[0], now)
    settled = {} if again else states
    due = [s for s in wanted if not _all_final(states, s) or again]
    yield Outcome(len(due), newest=fresh.newest, future_rows=fresh.future_rows)
    restated = 0
    for done in read_and_store(monitor, now, fresh.newest, due, settled, source, store, lease, stride, force):
        restated += done.stored
        yield done
    if again and restated:
        store.log_restatement(lease, *span, now=now, forced=force, buckets=restated)


def read_and_store(
    monitor: Monitor,
    now: float,
    newest: float | None,
    due: Sequence[int],
    states: Mapping[Definition, Mapping[int, BucketState]],
    source: Source,
    store: Store,
    lease: Lease,
    stride: Stride,
    force: bool = False,
) -> Iterator[Outcome]:
    """Read `due` buckets stretch by stretch and store each; final ones in `states` are left alone."""
    left = list(due)
    while left:
        since, until = next(runs(left, monitor.bucket, stride.buckets))
        left = [s for s in left if s >= until]
        tallied = read_tally(monitor, source, since, until, store.known_slices(monitor.name), stride)
        targets = {d: _open_buckets(states.get(d, {}), since, until, monitor.bucket) for d in monitor.definitions}
        finals = [s for s in range(since, until, monitor.bucket) if is_final(monitor, s, now, newest)]
        written = store.write(lease, monitor, tallied, targets, now, finals, force)
        yield Outcome(0, written.buckets, tallied.rows, list(written.kept), newest)


def read_tally(
    monitor: Monitor, source: Source, since: int, until: int, known: Mapping[str, set[str]], stride: Stride
) -> Tally:
    """Partials of [since, until); read in halves where it is more than fits into memory at once."""
    try:
        reading = source.read(since, until)
    except TooMany as error:
        if until - since <= 1:
            raise SourceError(f"monitor {monitor.name}: {error} within one second; are the times right?") from error
        stride.buckets = max(1, (until - since) // monitor.bucket // 2)
        middle = _middle(since, until, monitor.bucket)
        first = read_tally(monitor, source, since, middle, known, stride)
        admitted = {d: set(v) for d, v in known.items()}
        for dimension, value in first.admitted:
            admitted.setdefault(dimension, set()).add(value)
        return first + read_tally(monitor, source, middle, until, admitted, stride)
    kernels = dict.fromkeys(m.kernel for m in monitor.measures)
    tallied = tally(reading, monitor.bucket, kernels, monitor.slices, known)
    stride.learn(tallied, monitor.bucket)
    return tallied


def _middle(since: int, until: int, width: int) -> int:
    """A bucket's edge near the middle, or just the middle where there is none between."""
    middle = (since + until) // 2
    edge = bucket_of(middle, width)
    return edge if edge > since else middle


def _states(monitor: Monitor, store: Store, since: int) -> dict[Definition, dict[int, BucketState]]:
    """What is stored of each series from `since` on, and its newest bucket in any case: no gap is left after it."""
    found = {}
    for definition in monitor.definitions:
        newest = store.newest_bucket(definition)
        found[definition] = store.states(definition, since if newest is None else min(since, newest))
    return found


def _look_back(
    monitor: Monitor, states: Mapping[Definition, Mapping[int, BucketState]], known: float | None, now: float
) -> float:
    oldest = min((s for one in states.values() for s, state in one.items() if not state.final), default=now)
    return min(oldest, now - monitor.history) if known is None else known


def _all_final(states: Mapping[Definition, Mapping[int, BucketState]], start: int) -> bool:
    return all(start in s and s[start].final for s in states.values())


def _open_buckets(states: Mapping[int, BucketState], since: int, until: int, width: int) -> list[int]:
    return [s for s in range(since, until, width) if s not in states or not states[s].final]
