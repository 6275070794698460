"""What becomes of a monitor's old buckets, cycle after cycle: a little at a time, so that nothing waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from monitor.core.buckets import bucket_of
from monitor.core.intervals import DAY
from monitor.core.retention import apart_from, pinned
from monitor.core.types import Monitor, Retention
from monitor.core.words import counted, utc
from monitor.errors import InputError
from monitor.store import Holding, Lease, Store

log = logging.getLogger(__name__)

LOOK_EVERY = 3600.0
"""Real seconds after which it is seen again whether anything became old."""

AT_ONCE = 1.0
"""Real seconds after which the rest is left to the next cycle."""


class Keeping:
    """Rolls up and forgets the buckets of one monitor, and knows how much is stored of it."""

    def __init__(self, monitor: Monitor, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: real seconds from anywhere on."""
        self.holding: Holding | None = None
        self._monitor = monitor
        self._store = store
        self._clock = clock
        self._next = -LOOK_EVERY
        self._rolled_until = 0
        self._counts = [0, 0]

    def advance(self, lease: Lease, now: float, newest: float | None, is_over: Callable[[], bool]) -> bool:
        """Do a little of what is due, if anything is; whether a bucket is other than before.

        Args:
            now, newest: seconds of the data's clock, and of the source's newest request. Ages count from what comes
                first: neither a clock that runs ahead nor a source that fell silent makes anything old.
            is_over: whether to leave off.

        Raises:
            StoreError, LeaseLost: the step under way left no trace.
        """
        began = self._clock()
        if began < self._next or newest is None or is_over():
            return False
        has_changed, retention = False, self._monitor.retention
        for step in (self._roll_up, self._forget):
            while step(retention, lease, min(now, newest)):
                has_changed = True
                if is_over() or self._clock() - began >= AT_ONCE:
                    return has_changed
        self._next = self._clock() + LOOK_EVERY
        self.holding = self._store.retention.holding(self._monitor.name)
        if any(self._counts):
            parts = [f"{counted(self._counts[0], 'coarser bucket')} made", f"{self._counts[1]} days forgotten"]
            log.info("monitor %s: of its old buckets %s", self._monitor.name, ", ".join(parts))
            self._counts = [0, 0]
        return has_changed

    def _roll_up(self, retention: Retention, lease: Lease, now: float) -> bool:
        """Make the next coarser bucket; whether there may be more."""
        if retention.roll_up_after is None:
            return False
        width = retention.roll_up_to
        until = bucket_of(int(now) - retention.roll_up_after, width)
        spans = apart_from(pinned(self._monitor), until, width)
        spans = [(max(since, self._rolled_until), end) for since, end in spans if end > self._rolled_until]
        oldest = self._store.retention.oldest_fine(self._monitor.name, spans)
        if oldest is None:
            return False
        start = bucket_of(oldest, width)
        self._counts[0] += self._store.retention.roll_up(lease, start, width) > 0
        self._rolled_until = start + width  # what is left there lacks something, and is left alone
        return True

    def _forget(self, retention: Retention, lease: Lease, now: float) -> bool:
        """Forget the oldest day; whether there may be more."""
        if retention.keep is None:
            return False
        spans = apart_from(pinned(self._monitor), horizon(retention.keep, now), max(DAY, self._monitor.bucket))
        is_gone = self._store.retention.forget(lease, spans) is not None
        self._counts[1] += is_gone
        return is_gone


def horizon(keep: int, now: float) -> int:
    """The beginning of the oldest day that is kept whole, seconds."""
    return bucket_of(int(now) - keep, DAY)


def refuse_what_is_gone(monitor: Monitor, store: Store, span: tuple[int, int], now: float) -> None:
    """See that all buckets of a span can be read into the store, and will stay.

    Raises:
        InputError: it begins before what is kept, or reaches into what was rolled up; with the first time that goes.
        StoreError: the store is out of reach.
    """
    keep = monitor.retention.keep
    if keep is not None and span[0] < (first := horizon(keep, now)):
        text = f"is forgotten again, for retention.keep says so; take --from {utc(first)} or later, or raise it"
        raise InputError(f"{monitor.name}: what is older than {utc(first)} {text}")
    for definition in monitor.definitions:
        if (coarse := store.retention.rolled_up(definition, *span)) is not None:
            text = "was rolled up into coarser buckets, and single ones cannot be put back; take a time outside of it"
            raise InputError(f"{monitor.name}: {utc(coarse[0])} to {utc(coarse[1])} {text}")


def what_lacks(monitor: Monitor, store: Store, since: int) -> str:
    """What there is to say of a time from which on is judged, if buckets lack then; empty if none do.

    Raises:
        StoreError: the store is out of reach.
    """
    first = store.oldest_bucket(monitor.traffic)
    if first is None or first <= since:
        return ""
    coarse = store.retention.rolled_up(monitor.traffic, 0, first)
    text = f"{monitor.name}: nothing before {utc(first)} can be judged, for"
    if coarse is None:
        return f"{text} no older buckets are stored, be it that they were forgotten (retention.keep) or never read"
    return f"{text} the buckets from {utc(coarse[0])} to {utc(coarse[1])} were rolled up, and older ones are not stored"
