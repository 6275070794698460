"""How long buckets are kept, and when they are rolled up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from monitor.conditions.rules import Drop
from monitor.series.finality import final_age
from monitor.series.intervals import REACH
from monitor.series.partials import bucket_of
from monitor.types import Monitor, format_duration
from monitor.units import DAY, HOUR, Span

DRAWN = 42 * DAY
"""Seconds of the past that the page shows in fine steps, and the most that the chart of a fall shows."""


def least_age(monitor: Monitor) -> int:
    """Seconds after which no cycle automatically reads a bucket, in whole days."""
    return -(-sum(seconds for seconds, _ in needs(monitor)) // DAY) * DAY


def needs(monitor: Monitor) -> Iterator[tuple[int, str]]:
    """(seconds, what for) of consecutive stretches before now; they add up to the least age."""
    window = max([*monitor.windows, *(rule.window for rule in monitor.alerts)])
    looks_back = max([REACH, *(rule.reach + rule.window for rule in monitor.alerts)])
    yield DRAWN, "that the page draws"
    yield window, "of the longest window"
    yield looks_back, "that intervals and alert rules look back on before it"
    yield max(0, monitor.lookback - DRAWN - window - looks_back), "more that `lookback` reads"
    yield _until_final(monitor), "until a bucket is final at the latest"


def needed(monitor: Monitor) -> str:
    """What the least age is made of, in words and whole hours: the stretches of `needs`."""
    return ", ".join(
        f"{format_duration(-(-seconds // HOUR) * HOUR)} {what}" for seconds, what in needs(monitor) if seconds
    )


def least_kept(monitor: Monitor) -> int:
    """Seconds for which verdicts are read after their hour, in whole days: the newest is as old as labels take."""
    return -(-(DRAWN + _until_final(monitor)) // DAY) * DAY


def _until_final(monitor: Monitor) -> int:
    return final_age(monitor) + monitor.final_timeout + monitor.bucket


def pinned(monitor: Monitor) -> list[Span]:
    """What alert rules always compare with, rising: it is kept as it is."""
    limits = [rule.limit for rule in monitor.alerts]
    return sorted({b.pinned for b in (n.baseline for n in limits if isinstance(n, Drop)) if b.pinned is not None})


def apart_from(kept: Sequence[Span], before: int, width: int) -> list[Span]:
    """What lies before `before`, without the spans of `kept` and the buckets of a width that they touch.

    >>> apart_from([(25, 30)], 60, 10)
    [(0, 20), (30, 60)]
    """
    found, since = list[Span](), 0
    for begin, end in (*kept, (before, before)):
        until = min(bucket_of(begin, width), before)
        if since < until:
            found.append((since, until))
        since = max(since, bucket_of(end + width - 1, width))
    return found
