"""Conditions on missing arrivals and misread sources, from the source's current state, which buckets do not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.conditions.arrivals import ArrivalEvidence, Arrivals, Arrived, Unknown, arrival_kinds
from monitor.conditions.evidence import Evidence, Matter, severity_of
from monitor.conditions.incident import Incident
from monitor.conditions.thresholds import Change, Condition, ConditionName
from monitor.drift.levels import CROWD
from monitor.drift.verdicts import Verdict
from monitor.evaluation.fold import Beginning, Checkpoint, ConditionSet, EventBatch, FinalHours
from monitor.types import Drift, Monitor


@dataclass(frozen=True)
class ArrivalConditions(ConditionSet):
    """What is missing at `now`, seconds of the data's clock; if the source was not checked, everything stays as it is.

    Attributes:
        arrived: the newest the source has; None if it was not checked.
        end: of the last window to evaluate, seconds.
        opened: the open incidents, with their newest evidence.
        is_restated: the past is evaluated again, so what stands must become an event again.
    """

    monitor: Monitor
    drift: Drift
    now: float
    arrived: Arrived | None
    end: int
    opened: Mapping[Matter, tuple[Incident, Sequence[Evidence]]]
    is_restated: bool

    identity = "arrivals"

    def has(self, name: ConditionName) -> bool:
        return any(kind.kind == name[0] for kind in arrival_kinds())

    def newest(self, checkpoint: Checkpoint) -> Beginning:
        """Always the newest checkpoint: observations of the source cannot be repeated."""
        return Beginning(checkpoint.until or 0, checkpoint.of(self.identity), checkpoint.verdicts)

    def oldest(self, past: FinalHours, until: int) -> Beginning:
        return Beginning(until)

    def advance(
        self, past: FinalHours, begin: Beginning, until: int
    ) -> tuple[Mapping[ConditionName, Condition], EventBatch]:
        if until < self.end:
            return begin.conditions, EventBatch()
        after, events = dict[ConditionName, Condition](), EventBatch()
        for kind in arrival_kinds():
            name: ConditionName = (kind.kind, "", "")
            was = self._standing(kind, begin.conditions.get(name))
            if was is not None and self.is_restated:
                self._place_again(kind, was, events)
            try:
                evidence = kind.detect(self._arrivals(past, begin), self.drift)
            except Unknown:
                after |= {} if was is None else {name: was}
                continue
            if evidence is not None:
                after[name] = self._fire(name, was, evidence, events)
            elif was is not None:
                self._end(kind, was, past, begin, events)
        return after, events

    def _standing(self, kind: type[ArrivalEvidence], was: Condition | None) -> Condition | None:
        """A firing condition; after a restatement, one from a clock that ran ahead is undone with its incident."""
        incident, _ = self.opened.get(kind.audience, (None, ()))
        is_ahead = self.is_restated and incident is not None and incident.opened_at > self.now
        return None if was is None or was.state != "firing" or is_ahead else was

    def _change(self, name: ConditionName, since: int, at: int, fires: bool = True) -> Change:
        severity = severity_of(self.drift, name[0])
        if fires:
            return Change(name, severity, False, "ok", "firing", since, at)
        return Change(name, severity, False, "firing", "ok", since, at)

    def _place_again(self, kind: type[ArrivalEvidence], was: Condition, events: EventBatch) -> None:
        """Replays that it fires, as recorded with the open incident: no bucket shows it."""
        name, at = (kind.kind, "", ""), self.opened[kind.audience][0].opened_at
        change = self._change(name, at if was.since is None else was.since, at)
        events.changes.append(change)
        if (known := self._known(name)) is not None:
            events.evidence[change] = known

    def _fire(
        self, name: ConditionName, was: Condition | None, evidence: ArrivalEvidence, events: EventBatch
    ) -> Condition:
        now = int(self.now)
        events.newest[name] = evidence
        if was is None:
            change = self._change(name, evidence.since, now)
            events.changes.append(change)
            events.evidence[change] = evidence
        since = evidence.since if was is None or was.since is None else was.since
        return Condition("firing", since, 0, now)

    def _end(
        self, kind: type[ArrivalEvidence], was: Condition, past: FinalHours, begin: Beginning, events: EventBatch
    ) -> None:
        name, now = (kind.kind, "", ""), int(self.now)
        since = now if was.since is None else was.since
        change = self._change(name, since, now, fires=False)
        events.changes.append(change)
        known = self._known(name)  # as it was when it last held
        known = known if isinstance(known, ArrivalEvidence) else kind.at(self.drift, since, now)
        events.evidence[change] = replace(known.ended(self._arrivals(past, begin)), lacks=_lacking(past, begin))

    def _known(self, name: ConditionName) -> Evidence | None:
        found = (one for _, findings in self.opened.values() for one in findings)
        return next((one for one in found if one.rule == name[0]), None)

    def _arrivals(self, past: FinalHours, begin: Beginning) -> Arrivals:
        """Input of the kinds. Raises Unknown if the source was not checked."""
        if self.arrived is None:
            raise Unknown
        return Arrivals(
            self.monitor,
            self.arrived,
            self.now,
            lambda: _usual_events(begin),
            lambda since: past.requests_since(int(since)),
            lambda since: past.empty_since(int(since)),
        )


def _lacking(past: FinalHours, begin: Beginning) -> str:
    """What a baseline lacks, by the newest verdict; empty if nothing."""
    new = () if begin.verdicts is None else begin.verdicts.verdicts
    newest: Verdict | None = new[-1] if new else past.newest()
    return newest.lacks if newest is not None and newest.kind == "not_enough_data" else ""


def _usual_events(begin: Beginning) -> float | None:
    """Remembered events per request; None if unknown."""
    if begin.verdicts is None or begin.verdicts.checkpoint.state is None:
        return None
    usual = dict(zip(CROWD, begin.verdicts.checkpoint.state.levels.memory.crowd.tolist(), strict=True))
    return usual["events"] / usual["requests"] if usual["requests"] else None
