"""What becomes of a monitor's old buckets, cycle after cycle: a little at a time, so that nothing waits for it."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Set

from monitor.conditions.rules import Drop
from monitor.conditions.thresholds import LEAST_BASELINE
from monitor.errors import InputError
from monitor.evaluation.run import moved_checkpoint, verdict_conditions
from monitor.messages.words import counted, utc
from monitor.series.intervals import DAY
from monitor.series.partials import bucket_of
from monitor.series.retention import apart_from, pinned
from monitor.store import Holding, Lease, Store
from monitor.store.verdicts import VerdictCheckpoint
from monitor.types import Monitor, Retention

log = logging.getLogger(__name__)

LOOK_EVERY = 3600.0
"""Real seconds after which it is seen again whether anything became old."""

FROM_THE_FIRST_EVERY = 86_400.0
"""Real seconds after which also what could not be rolled up is looked at again: a gap may have been filled.

They count from when all was looked at, so that this is never begun again before it came to its end.
"""

AT_ONCE = 1.0
"""Real seconds after which the rest is left to the next cycle."""

DOUBTFUL = 7 * DAY
"""Seconds after the newest requests from which on the clock itself may be wrong."""

MADE, FORGOTTEN = "made", "forgotten"


class RetentionWorker:
    """Rolls up and forgets the buckets of one monitor, and knows how much is stored of it."""

    def __init__(self, monitor: Monitor, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: real seconds from anywhere on."""
        self.holding: Holding | None = None
        self._monitor = monitor
        self._store = store
        self._clock = clock
        self._next = self._next_from_the_first = -LOOK_EVERY
        self._rolled_until = 0
        self._done: Counter[str] = Counter()
        self._said: list[str] = []

    def advance(self, lease: Lease, now: float, is_over: Callable[[], bool]) -> bool:
        """Do a little of what is due, if anything is; whether a bucket is other than before.

        Args:
            now: seconds of the data's clock, which is believed as far as stored requests bear it out: neither a clock
                that runs ahead nor a source that fell silent makes anything old.
            is_over: whether to leave off.

        Raises:
            StoreError, LeaseLost: the step under way left no trace.
        """
        began = self._clock()
        if began < self._next or is_over():
            return False
        if began >= self._next_from_the_first:
            self._rolled_until, self._next_from_the_first = 0, math.inf
        has_changed, retention = False, self._monitor.retention
        present = self._store.retention.present(now, self._monitor.name)
        for step in (self._forget, self._roll_up):  # what goes need not be rolled up before
            while (did := step(retention, lease, present)) is not None:
                has_changed = has_changed or did
                if is_over() or self._clock() - began >= AT_ONCE:
                    return has_changed
        ended = self._clock()
        self._next = ended + LOOK_EVERY
        self._next_from_the_first = min(self._next_from_the_first, ended + FROM_THE_FIRST_EVERY)
        self.holding = self._store.retention.holding(self._monitor.name)
        self._report()
        return has_changed

    def _report(self) -> None:
        """Say what was done since the last time, and which rules compare with what is gone, if that is news."""
        name, done = self._monitor.name, self._done
        if any(done.values()):
            parts = [f"{counted(done.pop(MADE, 0), 'coarser bucket')} made", f"{done.pop(FORGOTTEN, 0)} days forgotten"]
            parts += [f"{counted(number, 'span')} left, for {why}" for why, number in sorted(done.items())]
            log.info("monitor %s: of its old buckets %s", name, ", ".join(parts))
        done.clear()
        lacking = baselines_gone(self._monitor, self._store)
        if lacking != self._said:
            for text in lacking:
                log.warning("monitor %s: %s", name, text)
        self._said = lacking

    def _roll_up(self, retention: Retention, lease: Lease, now: float) -> bool | None:
        """Make the next coarser bucket, if its span lacks nothing; whether it was made, None if none is left to see."""
        if retention.roll_up_after is None:
            return None
        width = retention.roll_up_to
        until = bucket_of(int(now) - retention.roll_up_after, width)
        spans = apart_from(pinned(self._monitor), until, width)
        spans = [(max(since, self._rolled_until), end) for since, end in spans if end > self._rolled_until]
        oldest = self._store.retention.oldest_fine(self._monitor.name, spans)
        if oldest is None:
            return None
        start, was_made = bucket_of(oldest, width), False
        said = self._store.retention.lacking(self._monitor.name, start, width)
        if ready := {definition for definition, why in said.items() if not why}:
            was_made = self._store.retention.roll_up(lease, start, width, self._checkpoint(start + width, ready))
        self._done.update({why for why in said.values() if why})
        self._done[MADE] += was_made
        self._rolled_until = start + width  # what is left there lacks something, and is looked at again much later
        return was_made

    def _forget(self, retention: Retention, lease: Lease, now: float) -> bool | None:
        """Forget the oldest day; whether it was forgotten, None if none is left to."""
        if retention.retain is None:
            return None
        spans = apart_from(pinned(self._monitor), horizon(retention.retain, now), max(DAY, self._monitor.bucket))
        found = self._store.retention.oldest_day(self._monitor.name, spans)
        if found is None:
            return None
        day, until = found
        self._store.retention.forget(lease, day, until, self._checkpoint(day[1]))
        self._done[FORGOTTEN] += 1
        return True

    def _checkpoint(self, until: int, gone: Set[str] | None = None) -> VerdictCheckpoint | None:
        """Where judging anew begins when the buckets before `until` are gone; None if that changes nothing.

        `gone`: definitions of the series of which they are; None: of all. It takes long to find out where verdicts rest
        on one of them, the longer the further back the last checkpoint lies.
        """
        monitor = self._monitor
        if monitor.drift is None or (gone is not None and gone.isdisjoint(verdict_conditions(monitor, ()).series)):
            return None
        return moved_checkpoint(monitor, until, self._store)


def baselines_gone(monitor: Monitor, store: Store) -> list[str]:
    """What there is to say of alert rules whose pinned baseline is not stored in fine buckets: they cannot fire.

    Raises:
        StoreError: the store is out of reach.
    """
    found, newest = [], store.newest_bucket(monitor.traffic)
    for rule in monitor.alerts:
        pinned = rule.limit.baseline.pinned if isinstance(rule.limit, Drop) else None
        if pinned is None or newest is None or pinned[1] > newest + monitor.bucket:
            continue  # or it is still to come
        definition, (since, until) = monitor.judged_definition(rule), pinned
        known = len(store.history(definition, since, until, overall_only=True).starts) * monitor.bucket
        if known >= LEAST_BASELINE * (until - since):
            continue
        coarse = store.retention.rolled_up(definition, since, until)
        why = "was never read or is forgotten" if coarse is None else "was rolled up into coarser buckets"
        span = f"{utc(since)} to {utc(until)}"
        found.append(
            f"alert rule {rule.name} cannot fire, for its pinned baseline, {span}, {why}; pin a later time"
            + (" or backfill it" if coarse is None else "")
        )
    return found


def doubt(store: Store, now: float) -> str:
    """What there is to say of a clock that stored requests do not bear out by far; empty if they do, or there are none.

    Raises:
        StoreError: the store is out of reach.
    """
    present = store.retention.present(now)
    if not present or now - present <= DOUBTFUL:
        return ""
    told, newest = f"by this clock it is {utc(int(now))}", store.retention.newest(now)
    if newest <= present:
        told += f", but requests are stored up to {utc(newest)} only; see whether the clock is right"
    else:
        told += f" and requests are stored up to {utc(newest)}, but on so few days that they bear out"
        told += f" {utc(int(present))} only; see whether the clock is right, or days are missing"
    return f"{told}; until they agree, history is only forgotten as of {utc(int(present))}"


def horizon(retain: int, now: float) -> int:
    """The beginning of the oldest day that is kept whole, seconds."""
    return bucket_of(int(now) - retain, DAY)


def refuse_what_is_gone(monitor: Monitor, store: Store, span: tuple[int, int], now: float) -> None:
    """See that all buckets of a span can be read into the store, and will stay.

    Raises:
        InputError: it begins before what is kept, or reaches into what was rolled up; with the first time that goes.
        StoreError: the store is out of reach.
    """
    retain = monitor.retention.retain
    if retain is not None and span[0] < (first := horizon(retain, now)):
        text = f"is forgotten again, for retention.retain says so; take --from {utc(first)} or later, or raise it"
        raise InputError(f"{monitor.name}: what is older than {utc(first)} {text}")
    for definition in monitor.definitions:
        if (coarse := store.retention.rolled_up(definition, *span)) is not None:
            text = "was rolled up into coarser buckets, and single ones cannot be put back; take a time outside of it"
            raise InputError(f"{monitor.name}: {utc(coarse[0])} to {utc(coarse[1])} {text}")


def what_lacks(monitor: Monitor, store: Store, since: int | None) -> str:
    """What there is to say of a time from which on is judged, if buckets lack then; empty if none do.

    Args:
        since: seconds; None: all that there is, of which what was never read is no lack.

    Raises:
        StoreError: the store is out of reach.
    """
    first = store.retention.whole_since(monitor.traffic)
    coarse = store.retention.rolled_up(monitor.traffic, 0, 1 << 62)
    if first is None or (coarse is None if since is None else first <= since):
        return ""
    text = f"{monitor.name}: nothing before {utc(first)} can be judged, for"
    if coarse is None:
        return f"{text} no older buckets are stored, be it that they were forgotten (retention.retain) or never read"
    return f"{text} the buckets from {utc(coarse[0])} to {utc(coarse[1])} were rolled up, and older ones are not stored"
