"""The source has no new requests."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.arrivals import ArrivalEvidence, Arrivals, Arrived, Unknown
from monitor.conditions.evidence import register
from monitor.types import Drift, Monitor


@register
class SourceStale(ArrivalEvidence):
    """`since`: time of the newest request.

    Attributes:
        empty: seconds of whole buckets that still had no request when requests arrived again.
        empty_since, empty_until: from the first such bucket to the end of the last.
    """

    kind: ClassVar[str] = "source_stale"
    title: ClassVar[str] = "source stale"
    precedence: ClassVar[int] = 1
    recovered: ClassVar[str] = (
        "requests arrive again{% if it.empty %}, but none yet for {{ it.empty|lasting }}{% endif %}"
    )
    sound: ClassVar[str] = (
        "{% if it.empty %}Requests arrive again, but none yet for {{ it.empty|lasting }} "
        "{{ (it.empty_since, it.empty_until)|between }}.{% else %}The data problem is over.{% endif %}"
    )
    headline: ClassVar[str] = "source stale, no request for {{ it.window|lasting }}"
    text: ClassVar[str] = (
        "No request has arrived since {{ it.since|utc }}. Up to {{ it.allowed|lasting }} without one is normal "
        "(`stale_after`, `ingest_delay`)."
    )
    advice: ClassVar[str] = (
        "{% if it.empty %}load these hours if they had requests; rankmon will read them.{% else %}check whether "
        "rankings are still logged and loaded into this source; until then, hours wait for their rows.{% endif %}"
    )

    judged: str = "requests"
    empty: int = 0
    empty_since: int = 0
    empty_until: int = 0

    @classmethod
    def detect(cls, seen: Arrivals, drift: Drift) -> Self | None:
        """The evidence if the source has been silent for longer than usual."""
        if seen.arrived.request is None:
            raise Unknown
        since = stale_since(seen.monitor, seen.arrived, seen.now)
        return None if since is None else cls.at(drift, since, int(seen.now), allowed(seen.monitor))

    def ended(self, seen: Arrivals) -> Self:
        """With the hours that are still missing."""
        starts, width = seen.empty_since(self.since), seen.monitor.bucket
        if not starts:
            return self
        return replace(self, empty=len(starts) * width, empty_since=starts[0], empty_until=starts[-1] + width)

    @property
    def is_incomplete(self) -> bool:
        return self.empty > 0


def allowed(monitor: Monitor) -> int:
    """Normal seconds without a request."""
    return monitor.ingest_delay + monitor.stale_after


def stale_since(monitor: Monitor, arrived: Arrived, now: float) -> int | None:
    """Time of the newest request, seconds, if the source has been silent for longer than usual."""
    is_silent = arrived.request is not None and now - arrived.request > allowed(monitor)
    return int(arrived.request or 0) if is_silent else None
