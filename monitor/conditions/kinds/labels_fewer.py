"""Fewer requests than usual have a label, where those without one are in no measure: the rest is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import register
from monitor.conditions.observations import Observations
from monitor.conditions.rules import COVERAGE
from monitor.conditions.verdicts import MASKED, ConditionEvent, DataEvidence
from monitor.drift.verdicts import Verdict
from monitor.types import Drift
from monitor.units import DAY


@register
class LabelsFewer(DataEvidence):
    """The share of the last day's requests with a label, and the usual one."""

    kind: ClassVar[str] = "labels_fewer"
    title: ClassVar[str] = "fewer labels"
    is_short_of_labels: ClassVar[bool] = True
    recovered: ClassVar[str] = (
        "{{ 'this coverage is usual now' if it.became_normal else 'label coverage normal again for 6 h' }}"
    )
    new_normal: ClassVar[str] = "Label coverage stays this low; this counts as the new normal."
    headline: ClassVar[str] = "{{ it.title }}, coverage {{ it.before|percent }} to {{ it.value|percent }}"
    text: ClassVar[str] = """
Fewer requests than usual have a label {{ it|span }}: {{ it.before|percent }} to {{ it.value|percent }}.
A request without one is in no measure, so a worse model may go unseen."""
    advice: ClassVar[str] = (
        "find out which queries or items have lost their labels, or are new and have none yet; quality is judged by "
        "the requests with a label."
    )

    judged: str = COVERAGE

    @classmethod
    def holds(cls, verdict: Verdict, drift: Drift) -> bool:
        """Whether a verdict says so and no other fault explains it."""
        return verdict.fewer_labels and verdict.kind not in MASKED

    @classmethod
    def is_absent(cls, verdict: Verdict) -> bool:
        return not verdict.fewer_labels and verdict.kind not in MASKED and super().is_absent(verdict)

    def resolved(self, seen: Observations, by: ConditionEvent) -> Self:
        """With whether as few labels count as usual now."""
        found, now = super().resolved(seen, by), by.verdict.coverage
        if now is None or self.value is None or self.before is None or now > (self.value + self.before) / 2:
            return found
        return replace(found, became_normal=True)

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found = super().of_verdict(seen, verdict, since)
        return replace(found, window=DAY, value=verdict.coverage, before=verdict.coverage_expected)
