"""Retention of a monitor's buckets: rolled up, then deleted, a little per run so nothing has to wait."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Set

from monitor.conditions.checkpoint import VerdictCheckpoint
from monitor.conditions.rules import Drop
from monitor.conditions.thresholds import LEAST_BASELINE
from monitor.errors import InputError
from monitor.messages.words import counted, utc
from monitor.series.partials import bucket_of
from monitor.series.retention import apart_from, pinned
from monitor.store import Holding, Lease, Store
from monitor.types import FARTHEST, Monitor, Retention
from monitor.units import DAY

log = logging.getLogger(__name__)

RETENTION_EVERY = 3600.0
"""Real seconds between checks for old buckets."""

FROM_THE_FIRST_EVERY = 86_400.0
"""Real seconds until skipped roll-ups are tried again: gaps may have been filled."""

WORK_PER_CYCLE = 1.0
"""Real seconds of work per cycle."""

DOUBTFUL = 7 * DAY
"""Seconds after the newest requests from which the clock may be wrong."""

MADE, FORGOTTEN = "made", "forgotten"


class RetentionWorker:
    """Rolls up and deletes one monitor's buckets, and knows how much is stored."""

    def __init__(self, monitor: Monitor, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: real seconds from any origin."""
        self.holding: Holding | None = None
        self._monitor = monitor
        self._store = store
        self._clock = clock
        self._next = self._next_from_the_first = -RETENTION_EVERY
        self._rolled_until = 0
        self._done: Counter[str] = Counter()
        self._said: list[str] = []

    def advance(self, lease: Lease, now: float, is_over: Callable[[], bool]) -> bool:
        """Do a little of what is due; True if a bucket changed.

        `now` is capped by the newest stored requests: neither a fast clock nor a silent source makes anything old.

        Raises:
            StoreError, LeaseLost: the step in progress left no trace.
        """
        began = self._clock()
        if began < self._next or is_over():
            return False
        if began >= self._next_from_the_first:
            self._rolled_until, self._next_from_the_first = 0, math.inf
        has_changed, retention = False, self._monitor.retention
        present = self._store.retention.present(now, self._monitor.name)
        for step in (self._forget, self._roll_up):  # deleted buckets need no roll-up
            while (did := step(retention, lease, present)) is not None:
                has_changed = has_changed or did
                if is_over() or self._clock() - began >= WORK_PER_CYCLE:
                    return has_changed
        ended = self._clock()
        self._next = ended + RETENTION_EVERY
        self._next_from_the_first = min(self._next_from_the_first, ended + FROM_THE_FIRST_EVERY)
        self.holding = self._store.retention.holding(self._monitor.name)
        self._report()
        return has_changed

    def _report(self) -> None:
        name, done = self._monitor.name, self._done
        if any(done.values()):
            parts = [
                f"{counted(done.pop(MADE, 0), 'coarser bucket')} created",
                f"{done.pop(FORGOTTEN, 0)} days deleted",
            ]
            parts += [f"{counted(number, 'span')} left as {why}" for why, number in sorted(done.items())]
            log.info("monitor %s: retention: %s", name, ", ".join(parts))
        done.clear()
        lacking = baselines_gone(self._monitor, self._store)
        if lacking != self._said:
            for text in lacking:
                log.warning("monitor %s: %s", name, text)
        self._said = lacking

    def _roll_up(self, retention: Retention, lease: Lease, now: float) -> bool | None:
        """True if a coarser bucket was made, False if its span has gaps, None if none is left."""
        if (coarse := retention.roll_up) is None:
            return None
        width = coarse.to
        until = bucket_of(int(now) - coarse.after, width)
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
        self._rolled_until = start + width  # the rest has gaps and is checked again much later
        return was_made

    def _forget(self, retention: Retention, lease: Lease, now: float) -> bool | None:
        """Deletes the oldest day; None if none is left."""
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
        """Where evaluation restarts without buckets before `until` (`gone`: of these series); None if unaffected."""
        from monitor.evaluation.run import moved_checkpoint, verdict_conditions

        monitor = self._monitor
        if monitor.drift is None:
            return None
        if gone is not None and gone.isdisjoint(verdict_conditions(monitor, self._store, 0).series):
            return None
        return moved_checkpoint(monitor, until, self._store)


def baselines_gone(monitor: Monitor, store: Store) -> list[str]:
    """Warnings for rules that cannot fire: their pinned baseline is not stored in fine buckets. Raises StoreError."""
    gone, newest = [], store.newest_bucket(monitor.traffic)
    for rule in monitor.alerts:
        pinned = rule.limit.baseline.pinned if isinstance(rule.limit, Drop) else None
        if pinned is None or newest is None or pinned[1] > newest + monitor.bucket:
            continue
        definition, (since, until) = monitor.judged_definition(rule), pinned
        known = len(store.history(definition, since, until, overall_only=True).starts) * monitor.bucket
        if known >= LEAST_BASELINE * (until - since):
            continue
        coarse = store.retention.rolled_up(definition, since, until)
        why = "was never read or was deleted" if coarse is None else "was rolled up into coarser buckets"
        text = f"alert rule {rule.name} cannot fire: its pinned baseline, {utc(since)} to {utc(until)}, {why}"
        gone.append(f"{text}; pin a later time{' or backfill it' if coarse is None else ''}")
    return gone


def doubt(store: Store, now: float) -> str:
    """Warning of a clock far ahead of the stored requests; empty if it is not. Raises StoreError."""
    present = store.retention.present(now)
    if not present or now - present <= DOUBTFUL:
        return ""
    told, newest = f"this clock says {utc(int(now))}, but requests are stored", store.retention.newest(now)
    if newest <= present:
        told += f" only up to {utc(newest)}: nothing has been read since, or the clock is wrong"
    else:
        told += f" up to {utc(newest)} on so few days that they count only up to {utc(int(present))}; check the clock"
        told += ", or whether days are missing"
    return f"{told}. Until they agree, retention counts from {utc(int(present))}"


def horizon(retain: int, now: float) -> int:
    """Start of the oldest day kept whole, seconds."""
    return bucket_of(int(now) - retain, DAY)


def refuse_what_is_gone(monitor: Monitor, store: Store, span: tuple[int, int], now: float) -> None:
    """Raise InputError if buckets of a span were rolled up or are past the retention. Raises StoreError."""
    retain = monitor.retention.retain
    if retain is not None and span[0] < (first := horizon(retain, now)):
        text = f"would be deleted again by retention.retain; use --from {utc(first)} or later, or raise it"
        raise InputError(f"{monitor.name}: data older than {utc(first)} {text}")
    for definition in monitor.definitions:
        if (coarse := store.retention.rolled_up(definition, *span)) is not None:
            text = (
                "was rolled up into coarser buckets, and single buckets cannot be restored; choose a different period"
            )
            raise InputError(f"{monitor.name}: {utc(coarse[0])} to {utc(coarse[1])} {text}")


def what_lacks(monitor: Monitor, store: Store, since: int | None) -> str:
    """Why nothing can be evaluated from `since` (seconds) on; empty if it can. Raises StoreError.

    `since` None: from the first bucket; what was never read then does not count as missing.
    """
    first = store.retention.whole_since(monitor.traffic)
    coarse = store.retention.rolled_up(monitor.traffic, 0, FARTHEST)
    if first is None or (coarse is None if since is None else first <= since):
        return ""
    text = f"{monitor.name}: nothing before {utc(first)} can be evaluated:"
    if coarse is None:
        return f"{text} no older buckets are stored; they were deleted (retention.retain) or never read"
    return f"{text} the buckets from {utc(coarse[0])} to {utc(coarse[1])} were rolled up, and older ones are not stored"
