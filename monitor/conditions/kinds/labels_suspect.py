"""Labels are broken: too few requests have one, or all values are 0."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from monitor.conditions.evidence import MOST_SLICES, SliceFall, register
from monitor.conditions.observations import FLOOD, LEAST_FLOODED, UNCOUNTED, EventCounts, Observations
from monitor.conditions.rules import COVERAGE
from monitor.conditions.verdict_hours import step_of
from monitor.conditions.verdicts import CALM, ConditionEvent, DataEvidence
from monitor.drift.verdicts import Verdict


@register
class LabelsSuspect(DataEvidence):
    """A drop of the label coverage.

    Attributes:
        worthless: as many labels as usual, but none is worth anything.
        is_degraded: whether an alarm was open too.
        flood: (actual, usual) requests if far more came than usual.
        still: (actual, usual) label coverage of the last hours if labels are still missing but no longer suspect.
    """

    kind: ClassVar[str] = "labels_suspect"
    title: ClassVar[str] = "labels suspect"
    grows_into: ClassVar[str] = "labels_collapsed"
    is_short_of_labels: ClassVar[bool] = True
    recovered: ClassVar[str] = (
        "{% if it.still %}no longer suspect, but still fewer labels than usual ({{ it.still[0]|percent }}, usually "
        "{{ it.still[1]|percent }}){% else %}labels normal again for 6 h{% endif %}"
    )
    sound: ClassVar[str] = (
        "{% if it.still %}Labels are no longer suspect, but not all are back: {{ it.still[0]|percent }} of the "
        "requests have one, usually {{ it.still[1]|percent }}.{% else %}The data problem is over.{% endif %}"
    )
    headline: ClassVar[str] = "{{ it.title }}, coverage {{ it.before|percent }} to {{ it.value|percent }}"
    suspected: ClassVar[str] = (
        "{% if it.worthless %}Labels are suspect: every request has a value of 0, although the usual number have "
        "labels."
        "{% elif not it.counts_unlabelled %}Labels are suspect: too few requests have one to represent the others."
        "{% elif it.is_degraded %}Labels are suspect: fewer requests have labels, while the verdict is degraded. "
        "Labels are lost, or people find nothing to click."
        "{% else %}Labels are suspect: fewer requests have labels, which explains why the measure is lower.{% endif %}"
    )
    text: ClassVar[str] = """
{{ it|fill(it.suspected) }}
The share of requests with a label {{ it|span }}: {{ it.before|percent }} to {{ it.value|percent }}.

{% include "events.txt" %}

{% if it.flood %}
Far more requests than usual: {{ it.flood[0]|count }} in the last hours (usually {{ it.flood[1]|count }})
{%- if it.slices %}, most of them from
{% for s in it.slices %}
{{ s|slice }} ({{ s.value|count }}, usually {{ s.before|count }}){{ ", " if not loop.last }}
{%- endfor %}
{% endif %}.
{% endif %}"""
    cause: ClassVar[str] = (
        "{% if it.flood %}find out who sends so many requests (robots leave no labels) and whether some are logged "
        "twice; otherwise check the event pipeline"
        "{% elif it.worthless %}check where grades come from: all of them say irrelevant"
        "{% elif it.events.match_less(0.1) %}check how events are joined to requests: more than usual match nothing"
        "{% elif not it.counts_unlabelled %}check where labels come from"
        "{% else %}find out why labels are missing (check the event pipeline){% endif %}"
    )
    advice: ClassVar[str] = (
        "{% if it.still %}find out why the other labels are missing{% else %}"
        "{{ it|fill(it.cause) }}; do not retrain on these hours, and do not judge the model by them"
        "{% if it.is_degraded %} until that is done{% endif %}{% endif %}."
    )

    judged: str = COVERAGE
    events: EventCounts = UNCOUNTED
    worthless: bool = False
    is_degraded: bool = False
    flood: tuple[float, float] | None = None
    still: tuple[float, float] | None = None

    @property
    def is_incomplete(self) -> bool:
        return self.still is not None

    @classmethod
    def since_of(cls, verdict: Verdict) -> int:
        """Of labels that are known to explain a fall, since it began."""
        return verdict.end if verdict.labels is None else verdict.labels.since

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        found, labels = super().of_verdict(seen, verdict, since), verdict.labels
        usual = verdict.requests_expected
        is_flooded = usual is not None and verdict.requests >= FLOOD * max(usual, LEAST_FLOODED)
        slices = _flooded(seen, verdict) if is_flooded else []
        found = replace(found, judged=COVERAGE, slices=tuple(slices[:MOST_SLICES]), is_degraded=verdict.is_degraded)
        if labels is None:
            return replace(found, value=verdict.coverage or 0.0, before=verdict.coverage_expected)
        events = EventCounts(labels.events, labels.events_before, labels.unmatched, labels.unmatched_before)
        return replace(
            found,
            value=labels.coverage or 0.0,
            before=labels.coverage_before,
            events=seen.counted(events),
            worthless=labels.worthless,
            flood=(verdict.requests, usual or 0.0) if is_flooded else None,
        )

    def resolved(self, seen: Observations, by: ConditionEvent) -> Self:
        """With the label coverage of the last hours if it is nearer to that of the loss than to the usual."""
        found, until = super().resolved(seen, by), by.change.at
        now, usual = seen.coverage(by.verdict, until - max(CALM, step_of(seen.width)), until)
        if self.value is None or not self.before or now is None or not usual:
            return found
        return replace(found, still=(now, usual)) if now / usual < (1 + self.value / self.before) / 2 else found


def _flooded(seen: Observations, verdict: Verdict) -> list[SliceFall]:
    since, found = verdict.end - verdict.span, list[SliceFall]()
    least = (verdict.requests - (verdict.requests_expected or 0.0)) / 2
    for key in (key for key in seen.traffic.slices if key[0] in seen.dimensions):
        came, usual = seen.requests(key, since, verdict.end) or 0, seen.usual_requests(key, since, verdict.end)
        if usual is not None and came - usual > least:
            found.append(SliceFall(*key, float(usual), float(came), came / verdict.requests))
    return sorted(found, key=lambda one: (one.before or 0.0) - one.value)
