"""Some slices lost most of their labels; the others are judged as usual."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import MOST_SLICES, SliceFall, register
from monitor.conditions.observations import UNCOUNTED, EventCounts, Observations
from monitor.conditions.rules import COVERAGE
from monitor.conditions.verdicts import DataEvidence
from monitor.drift.verdicts import Verdict
from monitor.series.windows import SliceKey


@register
class SliceLabelsSuspect(DataEvidence):
    """The slices that lost labels, with their label coverage.

    Attributes:
        lost: names of all of them, the first to lose labels first.
    """

    kind: ClassVar[str] = "slice_labels_suspect"
    title: ClassVar[str] = "labels of slices suspect"
    is_of_slices: ClassVar[bool] = True
    is_short_of_labels: ClassVar[bool] = True
    grows_into: ClassVar[str] = "slice_labels_collapsed"
    recovered: ClassVar[str] = "labels of these slices have been normal for 6 h"
    suspected: ClassVar[str] = "Some slices lost most of their labels"
    text: ClassVar[str] = """
{{ it.suspected }}
{{- ", which explains the drop in their measure" if it.counts_unlabelled }}. Requests with a label:
{% for s in it.slices %}
{{ s|slice }} {{ s.before|percent }} to {{ s.value|percent }}{{ ", " if not loop.last }}
{%- endfor %}
{%- if it.lost|length > it.slices|length %}, and {{ it.lost|length - it.slices|length }} more slices{% endif %}
{%- set of = " of these slices, those that match an impression" -%}
. The other slices are judged as usual.

{% include "events.txt" %}"""
    cause: ClassVar[str] = (
        "check how these slices' {% if it.events.match_less(0.01) %}events are joined to requests: more events than "
        "usual match nothing{% else %}{{ 'events' if it.counts_unlabelled else 'labels' }} are logged{% endif %}"
    )
    advice: ClassVar[str] = (
        "{{ it|fill(it.cause) }}; do not retrain on their hours, and do not judge the model by them."
    )

    events: EventCounts = UNCOUNTED
    lost: tuple[str, ...] = ()

    @property
    def affected(self) -> set[SliceKey]:
        return {(self.slices[0].dimension, name) for name in self.lost} if self.slices else set()

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found, dimension = super().of_verdict(seen, verdict, since), seen.drift.mix_by or ""
        lost = sorted(verdict.lost, key=lambda one: (one.since, one.slice))
        if not lost:
            return found
        slices = [SliceFall(dimension, s.slice, s.coverage_before or 0.0, s.coverage or 0.0) for s in lost]
        return replace(
            found,
            judged=COVERAGE,
            value=lost[0].coverage or 0.0,
            before=lost[0].coverage_before,
            slices=tuple(slices[:MOST_SLICES]),
            lost=tuple(one.slice for one in lost),
            events=seen.events([(dimension, one.slice) for one in lost], lost[0].since, verdict.end),
        )
