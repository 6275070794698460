"""The daily self-audit read a bucket in two ways that disagree."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.arrivals import ArrivalEvidence, Arrivals, Unknown
from monitor.conditions.evidence import register
from monitor.types import Drift


@register
class SourceMisread(ArrivalEvidence):
    """`since`: start of the bucket; `compared_with`: the figure by each way of reading."""

    kind: ClassVar[str] = "misread"
    title: ClassVar[str] = "source misread"
    recovered: ClassVar[str] = "source misread: audits agree again"
    text: ClassVar[str] = (
        "The daily self-audit read the bucket {{ it.since|utc }} in two ways that disagree: "
        "{{ it.compared_with }}. Stored values may be wrong."
    )
    advice: ClassVar[str] = (
        "run `rankmon verify` over the last few days to see how many hours are affected, and report it to the "
        "maintainers of rankmon; it resolves once an audit agrees again."
    )

    judged: str = "requests"

    @classmethod
    def detect(cls, seen: Arrivals, drift: Drift) -> Self | None:
        """The evidence if the newest audit disagrees. Raises Unknown without an audit."""
        audited = seen.arrived.audited
        if audited is None:
            raise Unknown
        found = cls.at(drift, audited.since, int(seen.now))
        return replace(found, compared_with=audited.what) if audited.what else None
