"""When a bucket is read, read again, and final."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.core.buckets import bucket_of
from monitor.core.types import Monitor

_CLOCK_TOLERANCE = 86_400


@dataclass(frozen=True, slots=True)
class BucketState:
    """What is stored of a bucket: when its last read began (seconds), and whether that read was final."""

    read_at: float
    final: bool


def final_age(monitor: Monitor) -> int:
    """Seconds after a bucket's end from which on a read of it can be final."""
    return max(monitor.label_delay, monitor.ingest_delay)


def is_final(monitor: Monitor, start: int, read_at: float, newest: float | None) -> bool:
    """Whether a read that began at `read_at` makes the bucket final.

    Args:
        start: of the bucket, seconds.
        newest: time of the newest request that the source showed then; None if it showed none.
    """
    end = start + monitor.bucket
    age = read_at - end
    if age < final_age(monitor):
        return False
    return (newest is not None and newest >= end) or age >= final_age(monitor) + monitor.final_timeout


def read_ages(monitor: Monitor) -> list[int]:
    """Ages (seconds after the bucket's end) at which a bucket that is not final is read, each about twice the last.

    >>> from monitor.core.types import Column, Rankings, Relation, TimeColumn
    >>> rankings = Rankings(Relation(("r",)), "q", "i", "p", TimeColumn("t"))
    >>> m = Monitor("m", "s", rankings, Column("g", attribution=86400), (), final_timeout=172800)
    >>> read_ages(m)
    [300, 3900, 7800, 15600, 31200, 62400, 86400, 172800, 259200]
    """
    last, ages = final_age(monitor), [monitor.ingest_delay]
    for stop in (last, last + monitor.final_timeout):
        while ages[-1] < stop:
            ages.append(min(max(2 * ages[-1], ages[-1] + monitor.bucket), stop))
    return ages


def is_due(
    monitor: Monitor, start: int, state: BucketState | None, now: float, newest: float | None, ages: list[int]
) -> bool:
    """Whether a bucket is to be read at `now`, given what is stored of it and `read_ages`."""
    end = start + monitor.bucket
    age = now - end
    if state is None:
        return age >= monitor.ingest_delay
    if state.final:
        return False
    if is_final(monitor, start, now, newest):
        return True
    before = state.read_at - end
    return any(before < step <= age for step in ages)


def due_buckets(monitor: Monitor, states: Mapping[int, BucketState], now: float, newest: float | None) -> list[int]:
    """Starts of the buckets of one series that are to be read at `now`, oldest first.

    These are the buckets not read yet, from `history` ago or from the newest stored one on, whichever is earlier, so
    that no downtime leaves a gap; and those stored as not final, at growing ages. What lies further after the source's
    newest request than any window reaches can wait until there is something newer: so a clock that jumps ahead, which
    looks just like a source that fell silent, brings a bounded number of buckets only.
    """
    ages = read_ages(monitor)
    since, until = bucket_of(int(now) - monitor.history, monitor.bucket), int(now)
    if newest is not None:
        since = min(since, max(states) + monitor.bucket) if states else since
        until = min(until, int(newest) + max(monitor.history, *monitor.windows))
    missing = (s for s in range(since, until, monitor.bucket) if s not in states)
    open_ones = (s for s, state in states.items() if not state.final)
    found = {s for s in (*missing, *open_ones) if is_due(monitor, s, states.get(s), now, newest, ages)}
    return sorted(found)


def believed(states: Mapping[int, BucketState], now: float) -> dict[int, BucketState]:
    """The states without those whose read is dated more than a day ahead of `now`.

    A clock that ran ahead wrote them, before their requests were there; they count as not read. A day is more than
    any clock is set back for good reason, which is when stored reads are rightly ahead.
    """
    return {start: state for start, state in states.items() if state.read_at <= now + _CLOCK_TOLERANCE}
