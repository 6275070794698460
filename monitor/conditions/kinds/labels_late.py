"""Labels lag behind the requests."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.arrivals import ArrivalEvidence, Arrivals, Arrived, Unknown
from monitor.conditions.evidence import register
from monitor.types import Drift, Monitor
from monitor.units import HOUR

LEAST_LAG = HOUR
"""Least lag of labels beyond `lateness`, seconds."""
LEAST_EVENTS = 20.0
"""Events expected since the newest one for their absence not to be chance."""


@register
class LabelsLate(ArrivalEvidence):
    """`since`: time of the newest event; `before`: events expected from the requests since."""

    kind: ClassVar[str] = "labels_late"
    title: ClassVar[str] = "labels late"
    precedence: ClassVar[int] = 2
    is_short_of_labels: ClassVar[bool] = True
    recovered: ClassVar[str] = "labels late: events arrive again"
    headline: ClassVar[str] = "labels late, no event for {{ it.window|lasting }}"
    text: ClassVar[str] = (
        "No events since {{ it.since|utc }}; the {{ it.requests|count }} requests since then usually bring "
        "{{ it.before|count }}. Events up to {{ it.allowed|lasting }} late are normal here (`lateness` plus an hour)."
    )
    advice: ClassVar[str] = (
        "check the event pipeline; if events will take this long from now on, raise `lateness`; otherwise hours become "
        "final without them."
    )

    judged: str = "events"

    @classmethod
    def detect(cls, seen: Arrivals, drift: Drift) -> Self | None:
        """The evidence if labels lag by more than chance. Raises Unknown if the usual events per request are."""
        arrived, monitor = seen.arrived, seen.monitor
        if arrived.label is None or not is_behind(monitor, arrived):
            return None
        usual = seen.usual_events()
        if usual is None:
            raise Unknown
        requests = seen.requests_since(arrived.label)
        if requests * usual < LEAST_EVENTS:
            return None
        found = cls.at(drift, int(arrived.label), int(seen.now), lag_allowed(monitor))
        expected = requests * usual
        return replace(found, requests=requests, before=expected, compared_with="what this many requests usually bring")


def lag_allowed(monitor: Monitor) -> int:
    """Seconds by which the newest event may lag behind the newest request."""
    return monitor.lateness + LEAST_LAG


def is_behind(monitor: Monitor, arrived: Arrived) -> bool:
    """Whether the newest event lags further behind the newest request than allowed."""
    if arrived.request is None or arrived.label is None:
        return False
    return arrived.request - arrived.label > lag_allowed(monitor)
