"""When a bucket is read, read again, and final."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from monitor.series.partials import bucket_of
from monitor.types import Monitor

CLOCK_TOLERANCE = 300
"""Seconds that clocks may differ: a read dated further ahead was made by a clock that ran ahead, and a row dated
further ahead counts as future."""

Mark = Literal["", "awaited", "refused"]
"""Mark of a bucket: `awaited` if the source showed nothing newer when it was read; `refused` if it was not stored
because the source holds less of it than another series does."""


@dataclass(frozen=True, slots=True)
class BucketState:
    """Stored state of a bucket: start of its last read (seconds), whether that was final, and its mark."""

    read_at: float
    final: bool
    mark: Mark = ""

    @property
    def is_settled(self) -> bool:
        """Whether only an explicit request reads it again."""
        return self.mark == "refused" or (self.final and self.mark != "awaited")


def final_age(monitor: Monitor) -> int:
    """Seconds after a bucket's end from which a read of it can be final."""
    return max(monitor.label_delay, monitor.ingest_delay)


def is_final(monitor: Monitor, start: int, read_at: float, newest: float | None) -> bool:
    """Whether a read that began at `read_at` makes the bucket final.

    Args:
        start: of the bucket, seconds.
        newest: time of the source's newest request at that time; None without one.
    """
    age = read_at - start - monitor.bucket
    if age < final_age(monitor):
        return False
    return is_over(monitor, start, newest) or age >= final_age(monitor) + monitor.final_timeout


def is_over(monitor: Monitor, start: int, newest: float | None) -> bool:
    """Whether the source has a request later than the bucket; see `is_final`."""
    return newest is not None and newest >= start + monitor.bucket


def read_ages(monitor: Monitor) -> list[int]:
    """Ages (seconds after the bucket's end) at which a non-final bucket is read, each about twice the last.

    >>> from monitor.types import Column, Rankings, Relation, TimeColumn
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
    """Whether a bucket is to be read at `now`, given its stored state and `read_ages`."""
    end = start + monitor.bucket
    age = now - end
    if state is None:
        return age >= monitor.ingest_delay
    if state.is_settled:
        return False
    if state.mark == "awaited" and is_over(monitor, start, newest):  # a source that was away may have brought its rows
        return not state.final or is_final(monitor, start, now, newest)
    if state.final:
        return False
    if is_final(monitor, start, now, newest):
        return True
    before = state.read_at - end
    return any(before < step <= age for step in ages)


def due_buckets(
    monitor: Monitor,
    states: Mapping[int, BucketState],
    now: float,
    newest: float | None,
    settled_until: int = 0,
    is_begun: bool = True,
) -> list[int]:
    """Starts of the buckets of one series to read at `now`, oldest first.

    - Buckets not read yet, from `lookback` ago or the newest stored one, whichever is earlier: downtime leaves no gap.
    - Non-final buckets, at growing ages.
    - Buckets read while the source had nothing newer, once more when it has moved on.

    Buckets further after the source's newest request than any window reaches wait for newer requests: so a clock that
    jumps ahead, which looks like a silent source, adds a bounded number of buckets.

    Args:
        settled_until: seconds; everything before is settled, so `states` may omit it.
        is_begun: whether any request is stored. If not, a clock that was years behind may have written everything, and
            the time between is not a gap.
    """
    ages = read_ages(monitor)
    since, until = bucket_of(int(now) - monitor.lookback, monitor.bucket), int(now)
    if newest is not None:
        since = min(since, max(states) + monitor.bucket) if states and is_begun else since
        until = min(until, int(newest) + max(monitor.lookback, *monitor.windows))
    missing = (s for s in range(max(since, settled_until), until, monitor.bucket) if s not in states)
    open_ones = (s for s, state in states.items() if not state.is_settled)
    found = {s for s in (*missing, *open_ones) if is_due(monitor, s, states.get(s), now, newest, ages)}
    return sorted(found)


def believed(states: Mapping[int, BucketState], now: float) -> dict[int, BucketState]:
    """The states without those whose read is dated minutes ahead of `now`.

    They come from a clock that ran ahead, before their requests and labels existed, and count as not read. If it is the
    present clock that is wrong, good buckets are read again, which changes nothing.
    """
    return {start: state for start, state in states.items() if state.read_at <= now + CLOCK_TOLERANCE}
