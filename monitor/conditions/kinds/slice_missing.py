"""Slices that had traffic have none, while others still do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import MOST_SLICES, SliceFall, register
from monitor.conditions.observations import Observations
from monitor.conditions.verdicts import DataEvidence
from monitor.drift.constants import MISSING_RATIO
from monitor.drift.verdicts import Verdict
from monitor.units import WEEK

RENAMED = 0.5
"""Share of a missing slice's usual requests from which a new slice may be the same, renamed."""


@register
class SliceMissing(DataEvidence):
    """The missing slices; `instead` are (name, requests) of new ones that may be the same renamed."""

    kind: ClassVar[str] = "slice_missing"
    title: ClassVar[str] = "slices missing"
    is_of_slices: ClassVar[bool] = True
    recovered: ClassVar[str] = (
        "{{ 'some slices stay away: no longer expected' if it.became_normal else 'slices: no longer missing for 6 h' }}"
    )
    text: ClassVar[str] = """
Slices are missing that had traffic before: {% include "missing.txt" %}.

{% if it.instead %}
{% for name, requests in it.instead %}
{{ it.slices[0].dimension|named(name) }} ({{ requests|count }} requests){{ ", " if not loop.last }}
{%- endfor %}
 {{ "is" if it.instead|length == 1 else "are" }} new since then: perhaps renamed. A slice without a past is not judged.
{% endif %}"""
    advice: ClassVar[str] = (
        "{% if it.instead %}check whether they were renamed: if so, give both the same name in the rankings "
        "(`select:`), or the new one is only judged after two weeks; if not, whether they are switched off or no "
        "longer logged."
        "{% else %}check whether they are switched off on purpose, or no longer logged.{% endif %}"
    )
    new_normal: ClassVar[str] = "Missing slices ({{ it|slices }}) stay away; this counts as the new normal."

    instead: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found, dimension = super().of_verdict(seen, verdict, since), seen.drift.mix_by or ""
        missing = [seen.missing((dimension, name), verdict.end) for name in verdict.missing]
        instead = _instead(seen, missing, verdict.end) if missing else ()
        return replace(found, slices=tuple(missing[:MOST_SLICES]), instead=instead)

    def settled(self, seen: Observations, since: int, until: int) -> Self:
        """That they stay away, if one has hardly a request in the hours that resolved it."""
        came = [seen.requests((s.dimension, s.slice), since, until) or 0 for s in self.slices]
        before = [seen.requests((s.dimension, s.slice), self.since - WEEK, self.since) or 0 for s in self.slices]
        least = MISSING_RATIO * (until - since) / WEEK
        stay_away = any(now < least * then for now, then in zip(came, before, strict=True))
        return replace(self, became_normal=True) if stay_away else self


def _instead(seen: Observations, missing: Sequence[SliceFall], until: int) -> tuple[tuple[str, float], ...]:
    since = min(one.since or until for one in missing)
    usual, came = sum(one.before or 0.0 for one in missing), seen.begun(missing[0].dimension, since, until)
    if not 0 < RENAMED * usual <= sum(came.values()):
        return ()
    return tuple((name, float(requests)) for name, requests in [*came.items()][:MOST_SLICES])
