"""What does not arrive: a source without new requests, labels that stay behind the requests; and what is misread.

All are seen before any bucket suffers by it, and from the source as it is now, not from what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.types import Monitor

SOURCE_STALE, LABELS_LATE, MISREAD = "source_stale", "labels_late", "misread"
ARRIVALS = frozenset({SOURCE_STALE, LABELS_LATE, MISREAD})

LEAST_LAG = 3600
"""Seconds beyond `lateness` by which labels may be behind the requests."""
LEAST_EVENTS = 20.0
"""That the requests since the newest one would usually have brought, for their absence to be no chance."""


@dataclass(frozen=True)
class Misread:
    """What the self-audit found that two ways of reading disagree on.

    Attributes:
        since, until: of the bucket, seconds.
        what: the figure, by each of the two ways; empty if they agree.
    """

    since: int
    until: int
    what: str


@dataclass(frozen=True)
class Arrived:
    """The newest request and the newest event that a source has shown, seconds; None if none, or not looked for.

    `audited`: what a self-audit found; None if there was none.
    """

    request: float | None
    label: float | None = None
    audited: Misread | None = None


NOTHING_YET = Arrived(None)


@dataclass(frozen=True)
class Lack:
    """What has not arrived.

    Attributes:
        since: time of the newest that has, seconds.
        allowed: seconds for which that is no fault.
        requests, events: of labels: the requests since, and the events that they would usually have brought.
    """

    since: int
    allowed: int
    requests: int = 0
    events: float = 0.0


def stale(monitor: Monitor, arrived: Arrived, now: float) -> Lack | None:
    """The source's silence at `now`, seconds; None if it is none, or shorter than is usual."""
    allowed = monitor.ingest_delay + monitor.stale_after
    if arrived.request is None or now - arrived.request <= allowed:
        return None
    return Lack(int(arrived.request), allowed)


def lag_allowed(monitor: Monitor) -> int:
    """Seconds by which the newest event may be behind the newest request."""
    return monitor.lateness + LEAST_LAG


def is_behind(monitor: Monitor, arrived: Arrived) -> bool:
    """Whether labels are so far behind the requests that it is to be looked into."""
    if arrived.request is None or arrived.label is None:
        return False
    return arrived.request - arrived.label > lag_allowed(monitor)


def late(monitor: Monitor, arrived: Arrived, requests: int, usual: float) -> Lack | None:
    """Labels that are behind, if it is no chance; None if they are not.

    Args:
        requests: since the newest event.
        usual: events for each request.
    """
    if arrived.label is None or not is_behind(monitor, arrived) or requests * usual < LEAST_EVENTS:
        return None
    return Lack(int(arrived.label), lag_allowed(monitor), requests, requests * usual)
