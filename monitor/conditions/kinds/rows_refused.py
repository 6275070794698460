"""Far more rankings rows are refused than usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import register
from monitor.conditions.observations import Observations
from monitor.conditions.verdicts import DataEvidence
from monitor.drift.verdicts import Verdict

MOST_REASONS = 3


@register
class RowsRefused(DataEvidence):
    """Refused rows and the usual number; `reasons` are (reason, rows) in the hours around, most first."""

    kind: ClassVar[str] = "rows_refused"
    title: ClassVar[str] = "rows refused"
    recovered: ClassVar[str] = "refused rows normal again for 6 h"
    text: ClassVar[str] = """
{{ it.rows|count }} rows of the rankings were refused {{ it|span }}
(usually {{ it.rows_before|count if it.rows_before >= 1 else "none" }}).

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

    def with_reasons(self, reasons: Mapping[str, int]) -> Self:
        """With the most frequent reasons."""
        most = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:MOST_REASONS]
        return replace(self, reasons=tuple(most))
