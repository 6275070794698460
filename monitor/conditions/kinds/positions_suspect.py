"""Lists are shorter than usual, or different ranks are logged, which changes what the measure means."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import register
from monitor.conditions.observations import Observations
from monitor.conditions.verdicts import CALM, DataEvidence
from monitor.drift.constants import LEAST_CHANGE, LISTS_RATIO, SURE_Z
from monitor.drift.verdicts import Verdict
from monitor.units import WEEK


@register
class PositionsSuspect(DataEvidence):
    """Items per request; `rank_one` and `rank_one_before`, those at rank 1, if these have changed."""

    kind: ClassVar[str] = "positions_suspect"
    title: ClassVar[str] = "positions suspect"
    recovered: ClassVar[str] = "lists and ranks as usual for 6 h"
    headline: ClassVar[str] = """
{% if it.rank_one is none %}
{{ it.title }}, {{ it.value|items }} items per request (usually {{ it.before|items }})
{% else %}
{{ it.title }}, {{ it.rank_one|items }} items at rank 1 per request (usually {{ it.rank_one_before|items }})
{% endif %}"""
    text: ClassVar[str] = """
{% if it.rank_one is none %}
Lists are shorter: {{ it.value|items }} items per request in the hours until {{ it.end|utc }}, down to the judged rank
(usually {{ it.before|items }}).

The measure then means something else, and clicks on missing positions match nothing.
{% else %}
{{ it.rank_one|items }} items per request have rank 1 in the hours until {{ it.end|utc }}
(usually {{ it.rank_one_before|items }}).

The ranks measured are not the ranks people saw.
{% endif %}"""
    advice: ClassVar[str] = (
        "check whether positions are still logged, and still start at the same number. If lists changed on purpose, "
        "that counts as normal after four whole days, and `rankmon baseline begin` makes it the new baseline."
    )
    new_normal: ClassVar[str] = "The lists stay like this, which counts as the new normal, with a new baseline."

    rank_one: float | None = None
    rank_one_before: float | None = None

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found = super().of_verdict(seen, verdict, since)
        found = replace(found, judged="items", value=verdict.shown or 0.0, before=verdict.shown_before)
        if not _are_off(verdict.rank_one, verdict.rank_one_before):
            return found
        return replace(found, rank_one=verdict.rank_one, rank_one_before=verdict.rank_one_before)

    def settled(self, seen: Observations, since: int, until: int) -> Self:
        """That lists stay other than in the same hours before, in the hours that resolved it."""
        weeks = -(-(until - self.since + CALM) // WEEK) * WEEK
        (now, ranks), (usual, ranks_before) = (seen.items(since - back, until - back) for back in (0, weeks))
        stay_short = now is not None and usual is not None and now < (1 + LISTS_RATIO) / 2 * usual
        return replace(self, became_normal=True) if stay_short or _are_off(ranks, ranks_before) else self


def _are_off(now: float | None, usual: float | None) -> bool:
    return now is not None and usual is not None and abs(now - usual) > SURE_Z * LEAST_CHANGE * usual
