"""What fired in an incident, and what the store knows of its fall, as it began."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from monitor.causes import diagnosis as d
from monitor.conditions.evidence import Evidence
from monitor.conditions.incident import Incident
from monitor.conditions.rules import COVERAGE, SEVERITIES
from monitor.conditions.thresholds import ConditionName
from monitor.conditions.verdict_hours import step_of
from monitor.drift.verdicts import Verdict
from monitor.series.intervals import REACH
from monitor.series.windows import SliceKey
from monitor.store import Store
from monitor.store.alerts import StoredIncident, Transition
from monitor.types import OVERALL, Monitor

SOUND = frozenset({"healthy", "not_enough_data"})
"""Verdicts on hours that are fit to compare a fall with."""

MOST_TRANSITIONS = 10_000


@dataclass(frozen=True)
class FiredCondition:
    """A condition that began to fire at the end of a window, seconds; its finding then, if known."""

    name: ConditionName
    at: int
    finding: Evidence | None


@dataclass(frozen=True)
class UnsavedEvaluation:
    """Transitions and verdicts not stored yet, oldest first; they replace stored ones later than `since`."""

    steps: Sequence[Transition] = ()
    since: float = math.inf
    verdicts: Sequence[Verdict] = ()


NOTHING = UnsavedEvaluation()


def fired(incident: StoredIncident, store: Store, unsaved: UnsavedEvaluation = NOTHING) -> list[FiredCondition]:
    """The conditions that fired in an incident, at their start, most important first. Raises StoreError.

    Order: still firing, falls before label coverage, still down, most severe, overall before slices, largest fall.
    """
    about, found = incident.incident, dict[ConditionName, FiredCondition]()
    stored = store.alerts.transitions(about.monitor, about.began_at, about.closed_at, MOST_TRANSITIONS)
    for step in [*(step for step in stored if step.at <= unsaved.since), *unsaved.steps]:
        name = (step.rule, step.dimension, step.value)
        if step.incident == about.id and step.became == "firing" and step.evidence is not None:
            found.setdefault(name, FiredCondition(name, step.at, step.evidence))
    return sorted(found.values(), key=lambda one: _order(one, incident))


def _order(one: FiredCondition, incident: StoredIncident) -> tuple[object, ...]:
    is_over, found = is_over_by_now(one, incident), one.finding
    if not is_over:
        newest = {f.name: f for f in incident.findings}
        found = newest.get(one.name, found)
    if found is None:
        return is_over, True
    grave = -SEVERITIES.index(found.severity)
    fell = (found.is_recovering, grave, bool(found.dimension), -found.loss, one.at, one.name)
    return is_over, found.judged == COVERAGE, *fell


def is_over_by_now(one: FiredCondition, incident: StoredIncident) -> bool:
    """Whether a condition of an incident has stopped firing."""
    return one.name not in (incident.incident.firing or {})


def first_fired(incident: StoredIncident, store: Store, unsaved: UnsavedEvaluation = NOTHING) -> FiredCondition:
    """The first of `fired`; if there is none, one from the incident's findings."""
    if found := fired(incident, store, unsaved):
        return found[0]
    at = incident.incident.opened_at
    known = [FiredCondition(f.name, at, f) for f in incident.findings]
    return min(known, key=lambda one: _order(one, incident), default=FiredCondition(("", "", ""), at, None))


def as_it_fell(incident: StoredIncident, store: Store) -> Sequence[Evidence]:
    """Findings that describe an incident: its own; of one on quality that is over, what fired, as it began to."""
    if incident.incident.is_open or incident.incident.matter != "quality":
        return incident.findings
    return [one.finding for one in fired(incident, store) if one.finding is not None] or incident.findings


def unsound(monitor: Monitor, since: int, until: int, store: Store, unsaved: UnsavedEvaluation = NOTHING) -> list[int]:
    """Ends in (since, until] of steps with bad data or an open alarm. Raises StoreError."""
    if monitor.drift is None:
        return []
    kinds = {one.end: one.kind for one in store.verdicts.drawn(monitor.name, since, until)}
    kinds |= {verdict.end: str(verdict.kind) for verdict in unsaved.verdicts if since < verdict.end <= until}
    return [end for end, kind in kinds.items() if kind not in SOUND]


@dataclass(frozen=True)
class StoredFall:
    """What the store knows of a condition's fall, as it began. Raises StoreError."""

    monitor: Monitor
    one: FiredCondition
    store: Store
    unsaved: UnsavedEvaluation = NOTHING

    @cached_property
    def subject(self) -> d.Subject:
        """What the condition is about."""
        monitor, one = self.monitor, self.one
        first = self.store.oldest_bucket(monitor.traffic)
        found = d.subject(monitor, [] if one.finding is None else [one.finding], one.at, first or 0)
        if not found.before:
            return found
        step = step_of(monitor.bucket)
        return found.without(self._unsound(found.before[-1][0], found.before[0][1] + step), step)

    @cached_property
    def partials(self) -> d.StoredPartials:
        monitor, fell = self.monitor, self.subject
        begin, end = min([fell.window[0], *(since for since, _ in fell.before)]) - REACH, fell.window[1]
        spoilt, step = self._unsound(begin, fell.window[0]), step_of(monitor.bucket)
        history = self.store.history(monitor.definition(fell.measure), begin, end).without(spoilt, step)
        traffic, verdict, drift = self.store.history(monitor.traffic, begin, end), self._verdict, monitor.drift
        unlabelled: tuple[SliceKey, ...] = ()
        if verdict is not None and fell.key == OVERALL and drift is not None and drift.mix_by is not None:
            unlabelled = tuple((drift.mix_by, lost.slice) for lost in verdict.lost)
        return d.StoredPartials(fell, history, traffic, monitor.bucket, unlabelled)

    def _unsound(self, since: int, until: int) -> list[int]:
        return unsound(self.monitor, since, until, self.store, self.unsaved)

    @cached_property
    def _verdict(self) -> Verdict | None:
        finding = self.subject.finding
        if finding is None or not finding.verdict:
            return None
        new = [verdict for verdict in self.unsaved.verdicts if verdict.end == finding.end]
        stored = self.store.verdicts.between(self.monitor.name, finding.end - 1, finding.end) if not new else ()
        return next(iter(new or stored), None)

    def document(self, about: Incident) -> dict[str, Any]:
        """All of it as JSON data."""
        verdict, name = self._verdict, self.monitor.name
        found = {"incident": about.id, "monitor": name, "began_at": about.began_at, "opened_at": about.opened_at}
        split = None if verdict is None else d.VerdictSplit.of(verdict, step_of(self.monitor.bucket))
        return found | {"fired_at": self.one.at} | d.from_stored(self.monitor, self.partials, split)
