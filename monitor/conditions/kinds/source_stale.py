"""The source has no new requests."""

from __future__ import annotations

from typing import ClassVar, Self

from monitor.conditions.arrivals import ArrivalEvidence, Arrivals, Arrived, Unknown
from monitor.conditions.evidence import register
from monitor.types import Drift, Monitor


@register
class SourceStale(ArrivalEvidence):
    """`since`: time of the newest request."""

    kind: ClassVar[str] = "source_stale"
    title: ClassVar[str] = "source stale"
    precedence: ClassVar[int] = 1
    recovered: ClassVar[str] = "source stale: requests arrive again"
    headline: ClassVar[str] = "source stale, no request for {{ it.window|lasting }}"
    text: ClassVar[str] = (
        "No request has arrived since {{ it.since|utc }}. Up to {{ it.allowed|lasting }} without one is normal "
        "(`stale_after`, `ingest_delay`)."
    )
    advice: ClassVar[str] = (
        "check whether rankings are still logged and loaded into this source; until then, hours wait for their rows."
    )

    judged: str = "requests"

    @classmethod
    def detect(cls, seen: Arrivals, drift: Drift) -> Self | None:
        """The evidence if the source has been silent for longer than usual."""
        if seen.arrived.request is None:
            raise Unknown
        since = stale_since(seen.monitor, seen.arrived, seen.now)
        return None if since is None else cls.at(drift, since, int(seen.now), allowed(seen.monitor))


def allowed(monitor: Monitor) -> int:
    """Normal seconds without a request."""
    return monitor.ingest_delay + monitor.stale_after


def stale_since(monitor: Monitor, arrived: Arrived, now: float) -> int | None:
    """Time of the newest request, seconds, if the source has been silent for longer than usual."""
    is_silent = arrived.request is not None and now - arrived.request > allowed(monitor)
    return int(arrived.request or 0) if is_silent else None
