"""Far fewer requests than usual."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import MOST_SLICES, register
from monitor.conditions.observations import Observations
from monitor.conditions.thresholds import Condition
from monitor.conditions.verdicts import CALM, DataEvidence
from monitor.drift.constants import LEFT_OUT_DAYS, NEXT_TO_NONE, TRAFFIC_AGAIN_RATIO, TRAFFIC_RATIO
from monitor.drift.verdicts import Verdict
from monitor.types import OVERALL
from monitor.units import DAY, WEEK

BACK = (1 + TRAFFIC_RATIO) / 2
"""Share of the usual requests from which traffic is back. The expectation follows traffic down: at about half of it,
where it counts as low, it would resolve and open again by chance for days."""


@register
class TrafficLow(DataEvidence):
    """Actual and usual requests; `slices` that have none.

    Attributes:
        began: start of the first low step.
        risen_for: seconds for which it has been less low without being back.
        left, left_over: of traffic that became normal, its share of that before the fall, and the seconds it is based
            on.
    """

    kind: ClassVar[str] = "traffic_low"
    title: ClassVar[str] = "traffic low"
    recovered: ClassVar[str] = "traffic normal again for 6 h"
    headline: ClassVar[str] = "traffic low, {{ it.value|count }} requests (usually {{ it.before|count }})"
    text: ClassVar[str] = """
Traffic is low: {{ it.value|count }} requests {{ it|span }}
(usually {{ it.before|count }} at these hours){% if it.began %}, low since {{ it.began|utc }}{% endif %}.

{% if it.slices %}
No requests from {% include "missing.txt" %}.
{% endif %}

{% if it.risen_for > 0 %}
Above half of the expectation for {{ it.risen_for|lasting }} since {{ it.end|utc }}, so judged again.
Resolves once most of the expected requests arrive: traffic is back, or the expectation has followed it down.
{% endif %}"""
    advice: ClassVar[str] = (
        "check whether people stay away or rankings are not logged; {% if it.risen_for %}hours this low are not "
        "judged{% else %}quality is not judged until then{% endif %}."
    )
    new_normal: ClassVar[str] = (
        "{% if it.left is none %}Traffic stays low; this counts as the new normal.{% else %}"
        "Traffic stays at {{ it.left|share }} of what it was in the same hours before it fell"
        "{% if it.left_over %} (over {{ it.left_over|lasting }}){% endif %}"
        "{% if not it.lacks %}; this is now the expectation{% endif %}.{% endif %}"
    )

    began: int | None = None
    risen_for: int = 0
    left: float | None = None
    left_over: int = 0

    @property
    def lacking_since(self) -> list[int]:
        return [*([] if self.began is None else [self.began]), *super().lacking_since]

    @classmethod
    def is_back(cls, verdict: Verdict) -> bool:
        """Whether traffic is nearly as expected."""
        usual = verdict.requests_expected
        return usual is None or verdict.requests >= BACK * usual

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found, dimension = super().of_verdict(seen, verdict, since), seen.drift.mix_by or ""
        # Of the hours just before it fired: a week before these, traffic was not low yet.
        began = seen.lacking_since(OVERALL, since, TRAFFIC_AGAIN_RATIO, DAY)
        if not verdict.requests:  # then all slices are missing
            return replace(found, began=began)
        silent = seen.silent(dimension, verdict.end - (verdict.span or 0), verdict.end)
        gone = sorted((seen.missing(key, verdict.end) for key in silent), key=lambda one: -(one.before or 0.0))
        return replace(found, began=began, slices=tuple(gone[:MOST_SLICES]))

    def calming(self, condition: Condition, step: int) -> Self:
        """With how long traffic has been normal, or less low."""
        found = super().calming(condition, step)
        risen = (condition.known or found.end) - found.end
        return replace(found, risen_for=risen) if not condition.streak and risen > 0 else found

    def settled(self, seen: Observations, since: int, until: int) -> Self:
        """With the level traffic stays at, if it resolved by that."""
        left = self._left(seen, since, until)
        if left is None or left >= BACK:
            return self
        return replace(self._with_rest(seen, since, until), became_normal=True)

    def _with_rest(self, seen: Observations, since: int, until: int) -> Self:
        """With the share traffic stays at: in the low hours of the days that made it usual, else in [since, until)."""
        today, began = until - until % DAY, self.began or 0
        first = today - LEFT_OUT_DAYS * DAY
        span = max(first, began), today
        became_usual = began < first + DAY and self.end >= today
        if not became_usual or (self._left(seen, *span) or 0.0) < NEXT_TO_NONE:
            span = since, until
        return replace(self, left=self._left(seen, *span) or 0.0, left_over=span[1] - span[0])

    def _left(self, seen: Observations, since: int, until: int) -> float | None:
        weeks = -(-(until - self.since + CALM) // WEEK) * WEEK
        now, usual = (seen.requests(OVERALL, since - back, until - back) or 0 for back in (0, weeks))
        return now / usual if usual else None
