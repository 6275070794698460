"""Far more rankings rows are refused than usual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import SliceFall, register
from monitor.conditions.observations import Observations
from monitor.conditions.verdicts import DataEvidence
from monitor.drift.constants import NEARLY_ALL, SURE_Z
from monitor.drift.verdicts import Verdict
from monitor.series.windows import SliceKey
from monitor.types import OVERALL
from monitor.units import DAY

MOST_REASONS = 3

Refused = Mapping[SliceKey, Mapping[str, int]]
"""Slice -> reason -> refused rows; a slice without any is absent."""


@register
class RowsRefused(DataEvidence):
    """Refused rows and the usual number; `reasons` are (reason, rows) in the hours around, most first.

    `slices` has the smallest slice with nearly all of them: `value` is its share of the rows, `before` of the requests.
    """

    kind: ClassVar[str] = "rows_refused"
    title: ClassVar[str] = "rows refused"
    recovered: ClassVar[str] = "refused rows normal again for 6 h"
    text: ClassVar[str] = """
{{ it.rows|count }} rows of the rankings were refused {{ it|span }}
(usually {{ it.rows_before|count if it.rows_before >= 1 else "none" }}).
{% for s in it.slices %}
{{ "All" if s.value == 1 else s.value|share }} of them are of {{ s|slice }}, with {{ s.share|share }} of the requests.
{% endfor %}

{% if it.reasons %}
In these hours and those around them:
{% for reason, rows in it.reasons %}
{{ rows|counted(reason) }}{{ ", " if not loop.last }}
{%- endfor %}.
{% else %}
The page shows the reasons.
{% endif %}"""
    advice: ClassVar[str] = "check why rows are refused, and what changed in the logging at that time."

    rows: float = 0.0
    rows_before: float = 0.0
    reasons: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found = super().of_verdict(seen, verdict, since)
        return replace(found, rows=verdict.refused or 0.0, rows_before=verdict.refused_before or 0.0)

    def with_rows(self, seen: Observations, refused: Callable[[int, int], Refused]) -> Self:
        """With the slice that has the rows, and the reasons of at most a day before."""
        since = self.end - self.window
        around = refused(max(self.since, self.end - DAY) - self.window, self.end).get(OVERALL, {})
        reasons = sorted(around.items(), key=lambda one: (-one[1], one[0]))[:MOST_REASONS]
        return replace(self, slices=_where(seen, refused(since, self.end), since, self.end), reasons=tuple(reasons))


def _sum(rows: Refused, key: SliceKey) -> int:
    return sum(rows.get(key, {}).values())


def _where(seen: Observations, rows: Refused, since: int, until: int) -> tuple[SliceFall, ...]:
    """The smallest slice with nearly all of the refused rows of some hours, if that is beyond chance."""
    every, requests, found = _sum(rows, OVERALL), seen.requests(OVERALL, since, until) or 0, list[SliceFall]()
    for key in rows.keys() - {OVERALL} if requests and every else ():
        part, share = _sum(rows, key) / every, (seen.requests(key, since, until) or 0) / requests
        error = (share * (1 - share) / every) ** 0.5
        if part > NEARLY_ALL and part - share > SURE_Z * error:
            found.append(SliceFall(*key, share, part, share))
    return tuple(sorted(found, key=lambda one: (one.share, one.dimension, one.slice))[:1])
