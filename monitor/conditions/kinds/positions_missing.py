"""Lists are shorter than usual: the measure changes its meaning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from monitor.conditions.evidence import register
from monitor.conditions.observations import WEEK, Observations
from monitor.conditions.verdicts import CALM, DataEvidence
from monitor.drift.constants import LISTS_RATIO
from monitor.drift.verdicts import Verdict


@register
@dataclass(frozen=True, kw_only=True)
class PositionsMissing(DataEvidence):
    """Items per request."""

    kind: ClassVar[str] = "positions_missing"
    title: ClassVar[str] = "positions missing"
    recovered: ClassVar[str] = "lists as long as usual for 6 h"
    headline: ClassVar[str] = "{{ it.title }}, {{ it.value|items }} items per request (usually {{ it.before|items }})"
    text: ClassVar[str] = """
Lists are shorter: {{ it.value|items }} items per request in the last hours, down to the rank that is judged
(usually {{ it.before|items }}).

The measure has another meaning then, and clicks on missing positions match nothing."""
    advice: ClassVar[str] = (
        "see whether positions are no longer logged. If fewer items are shown on purpose, that counts as normal after "
        "four whole days, and `rankmon baseline begin` has the quality judged by its new level."
    )
    new_normal: ClassVar[str] = "Lists stay shorter; this counts as the new normal, and quality has a new baseline."

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        """The evidence at a verdict."""
        found = super().of_verdict(seen, verdict, since)
        return replace(found, judged="items", value=verdict.shown or 0.0, before=verdict.shown_before)

    def settled(self, seen: Observations, since: int, until: int) -> Self:
        """That lists stay shorter than in the same hours before, in the hours that resolved it."""
        weeks = -(-(until - self.since + CALM) // WEEK) * WEEK
        now, usual = (seen.items(since - back, until - back) for back in (0, weeks))
        stay_short = now is not None and usual is not None and now < (1 + LISTS_RATIO) / 2 * usual
        return replace(self, became_normal=True) if stay_short else self
