"""Incidents, derived from events, each with the newest evidence of what fires in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.conditions.evidence import MATTERS, Evidence, Matter, QualityEvidence, severity_of
from monitor.conditions.incident import Firing, Incident, Placed, by_matter, gather, matter_of
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.kinds.threshold import Threshold
from monitor.conditions.rules import Drop, is_beyond, worst
from monitor.conditions.thresholds import Change, Condition, ConditionName, fires_at
from monitor.conditions.verdicts import DEGRADED, DOUBTED
from monitor.evaluation.fold import Checkpoint, EventBatch
from monitor.store.alerts import AlertState, StoredIncident
from monitor.types import Drift, Monitor

RESTATED = "the data behind it were read again and no longer show it"


@dataclass(frozen=True)
class IncidentUpdate:
    """The result of evaluation, before anybody is notified.

    Attributes:
        incidents: those that were open, in their new state, and new ones.
        removed: ids of undone incidents that nobody was notified of.
        undone: ids of open, notified incidents that better data have undone.
        since: end of the time that cannot be evaluated again, seconds; its records stay.
    """

    monitor: Monitor
    state: AlertState
    checkpoint: Checkpoint
    events: EventBatch
    incidents: Sequence[StoredIncident]
    placed: Sequence[Placed] = ()
    removed: Sequence[str] = ()
    undone: Collection[str] = ()
    since: int = 0

    @property
    def end(self) -> int:
        """End of the last evaluated window, seconds."""
        return self.checkpoint.until or 0


def as_open(state: AlertState, id_: str) -> StoredIncident | None:
    """An incident as stored while open; None if it was not open."""
    return next((s for s in state.open.values() if s.incident.id == id_), None)


def gathered(
    monitor: Monitor, open_before: Mapping[Matter, Incident], events: EventBatch, origin: str | None
) -> list[tuple[list[Incident], list[Placed]]]:
    """(incidents, events with their incidents) per matter."""
    matters = by_matter(events.changes, monitor.alerts, open_before.values())
    return [gather(monitor.name, open_before.get(matter), some, matter, origin) for matter, some in matters.items()]


def derived(
    monitor: Monitor, state: AlertState, checkpoint: Checkpoint, events: EventBatch, resolved: Sequence[Evidence] = ()
) -> IncidentUpdate:
    """Incidents derived from the open ones on. `resolved`: what was found of those resolved lately, newest first."""
    incidents, placed = list[StoredIncident](), list[Placed]()
    open_before = {matter: stored.incident for matter, stored in state.open.items()}
    for of_matter, placed_there in gathered(monitor, open_before, events, state.origin):
        incidents += [
            described(monitor, state, incident, placed_there, events, checkpoint, resolved) for incident in of_matter
        ]
        placed += placed_there
    return IncidentUpdate(monitor, state, checkpoint, events, incidents, placed)


def rederived(
    monitor: Monitor,
    state: AlertState,
    checkpoint: Checkpoint,
    events: EventBatch,
    open_before: Mapping[Matter, Incident],
    recorded: Mapping[str, StoredIncident],
    kept_until: tuple[int, int],
) -> IncidentUpdate:
    """Incidents derived from the oldest checkpoint on. Notified ones stay recorded, whatever is known now.

    So do those of the time whose buckets are gone, and of as long after it as rules look back.

    Args:
        open_before: incidents that were open at the oldest checkpoint.
        kept_until: (end of the time whose buckets are gone, end of the time that cannot be judged), seconds.
    """
    derived_ones, placed, end = list[Incident](), list[Placed](), checkpoint.until or 0
    for (of_matter, events_of), current in zip(
        gathered(monitor, open_before, events, state.origin), map(state.open.get, MATTERS), strict=True
    ):
        renamed, placed_there = _renamed(current, of_matter, events_of)
        derived_ones, placed = [*derived_ones, *renamed], [*placed, *placed_there]
    ids, (since, until) = {i.id for i in derived_ones}, kept_until
    kept = {
        id_
        for id_, s in recorded.items()
        if s.told or s.acknowledged_at is not None or s.label or s.incident.opened_at <= until
    }
    with_evidence = {i.id: described(monitor, state, i, placed, events, checkpoint) for i in derived_ones}
    incidents = [_with_history(one, recorded.get(id_), since) for id_, one in with_evidence.items()]
    undone = [s for s in state.open.values() if s.incident.id in kept - ids]
    incidents += [closed(s, end) for s in undone]
    ends = [p for s in undone for p in ended(s, end)]
    events.reasons |= {p.change: RESTATED for p in ends}
    removed = [id_ for id_ in recorded if id_ not in kept | ids]
    undone_ids = {s.incident.id for s in undone}
    return IncidentUpdate(monitor, state, checkpoint, events, incidents, [*placed, *ends], removed, undone_ids, since)


def opened_by(
    monitor: str, drift: Drift, conditions: Mapping[ConditionName, Condition], at: int, recorded: Iterable[Incident]
) -> dict[Matter, Incident]:
    """Incidents that verdict conditions had open at a checkpoint, seconds, as they were then."""
    opened, recorded = dict[Matter, Incident](), list(recorded)
    for matter in MATTERS:
        firing = {
            name: Firing(severity_of(drift, name[0]), drift.retrain and name[0] == DEGRADED, condition.since or at)
            for name, condition in conditions.items()
            if condition.state == "firing" and matter_of(name) == matter
        }
        if firing:
            mine = (i for i in recorded if i.matter == matter and i.opened_at <= at < (i.closed_at or at + 1))
            was = next(mine, Incident(monitor, min(f.since for f in firing.values()), at, matter=matter))
            gravest = worst([was.severity, *(f.severity for f in firing.values())])
            asks = was.retrain or any(f.retrain for f in firing.values())
            opened[matter] = replace(was, state="firing", closed_at=None, firing=firing, severity=gravest, retrain=asks)
    return opened


def _renamed(
    current: StoredIncident | None, incidents: list[Incident], placed: list[Placed]
) -> tuple[list[Incident], list[Placed]]:
    """With the open incident's id if the same trouble is now seen to have begun at another time."""
    if current is None or current.incident.id in {i.id for i in incidents}:
        return incidents, placed
    if not incidents or not incidents[-1].is_open:
        return incidents, placed
    last, was = incidents[-1], current.incident
    goes_on = replace(last, began_at=was.began_at, opened_at=was.opened_at)
    renamed = [replace(p, incident=goes_on.id if p.incident == last.id else p.incident) for p in placed]
    return [*incidents[:-1], goes_on], renamed


def _with_history(incident: StoredIncident, stored: StoredIncident | None, gone_until: int) -> StoredIncident:
    """With what people did about it; keeps the recorded beginning where the buckets are gone."""
    if stored is None:
        return incident
    began_at, recorded_at = incident.incident.began_at, stored.incident.began_at
    about = replace(incident.incident, began_at=min(began_at, recorded_at) if recorded_at < gone_until else began_at)
    return replace(stored, incident=about, findings=incident.findings)


def closed(stored: StoredIncident, end: int) -> StoredIncident:
    end = max(end, stored.incident.opened_at)
    return replace(stored, incident=replace(stored.incident, state="withdrawn", closed_at=end, firing={}))


def ended(stored: StoredIncident, end: int) -> list[Placed]:
    """The closing changes of everything that fires in an incident."""
    at, firing = max(end, stored.incident.opened_at), stored.incident.firing or {}
    changes = (Change(n, f.severity, f.retrain, "firing", "withdrawn", f.since, at) for n, f in firing.items())
    return [Placed(change, stored.incident.id) for change in changes]


def described(
    monitor: Monitor,
    state: AlertState,
    incident: Incident,
    placed: Iterable[Placed],
    events: EventBatch,
    checkpoint: Checkpoint,
    resolved: Sequence[Evidence] = (),
) -> StoredIncident:
    """An incident with the newest evidence of what fires in it, or last fired. `resolved` as of `derived`."""
    was = as_open(state, incident.id)
    former = {f.name: f for f in (was.findings if was is not None else ())}
    changes = [p.change for p in placed if p.incident == incident.id]
    last = {change.name: change for change in changes}
    changed = {name: events.evidence[change] for name, change in last.items() if change in events.evidence}
    if incident.is_open:
        evidence = _with_origin(former, _with_origin(changed, events.newest))
        since, faults = events.unjudged, _faults(state, events, checkpoint, resolved)
        fires = [(name, evidence[name]) for name in incident.firing or {} if name in evidence]
        findings = [
            replace(f.doubted(_doubt(f, faults), former.get(name)), unjudged=since.get(name, f.unjudged))
            if isinstance(f, Threshold)
            else f
            for name, f in fires
        ]
    else:
        # What was withdrawn has no evidence of its end: then the evidence before counts.
        evidence = former | {c.name: events.evidence[c] for c in changes if c in events.evidence}
        ended = [name for name, change in last.items() if change.was == "firing" and name in evidence]
        findings = [_of_slices(former.get(name), evidence[name]) for name in ended] or list(evidence.values())
    fired = {name: f.before_when_fired for name, f in former.items() if isinstance(f, QualityEvidence)}
    fired |= {c.name: events.evidence[c].before for c in changes if c.became == "firing" and c in events.evidence}
    findings = [
        replace(f, before_when_fired=fired.get(f.name)) if isinstance(f, QualityEvidence) else f for f in findings
    ]
    if incident.state == "resolved":
        findings = [
            replace(f, still_below=_still_below(monitor, f)) if isinstance(f, Threshold) else f for f in findings
        ]
    begun = replace(incident, began_at=min([incident.began_at, *(at for f in findings for at in f.lacking_since)]))
    return replace(was or StoredIncident(incident), incident=begun, findings=tuple(findings))


def _faults(
    state: AlertState, events: EventBatch, checkpoint: Checkpoint, resolved: Sequence[Evidence]
) -> list[Evidence]:
    """The faults of the data by which values may be wrong: those found now, most severe first, and those that ended."""
    newest = {f.name: f for stored in state.open.values() for f in stored.findings} | events.newest
    firing = checkpoint.firing()
    found = [newest[name] for name in ((kind, "", "") for kind in DOUBTED) if name in firing and name in newest]
    over = [evidence for change, evidence in events.evidence.items() if change.was == "firing"]
    return [*found, *(f for f in (*reversed(over), *resolved) if f.name[0] in DOUBTED)]


def _doubt(found: Threshold, faults: Iterable[Evidence]) -> Evidence | None:
    """The first fault in the window: of all data, of the rule's slice, or else of the slice that fell most."""
    fell = [(found.dimension, found.slice)] if found.dimension else [(s.dimension, s.slice) for s in found.slices[:1]]
    lately = (f for f in faults if f.since < found.end and f.end > found.end - found.window)
    hit = (f for f in lately if not f.is_of_slices or f.affected.intersection(fell))
    return next(hit, None)


def _still_below(monitor: Monitor, finding: Threshold) -> float | None:
    """Where a resolved condition fired, if the value is still below because its trailing baseline followed."""
    rule, then = next((r for r in monitor.alerts if r.name == finding.rule), None), finding.before_when_fired
    if rule is None or then is None or not (isinstance(rule.limit, Drop) and rule.limit.baseline.trailing):
        return None
    below = fires_at(rule, then)
    return below if finding.value is not None and is_beyond(finding.value, below, rule.rises) else None


def _of_slices(was: Evidence | None, now: Evidence) -> Evidence:
    return replace(now, slices=was.slices) if now.is_of_slices and not now.slices and was is not None else now


def _with_origin(
    before: Mapping[ConditionName, Evidence], after: Mapping[ConditionName, Evidence]
) -> dict[ConditionName, Evidence]:
    """The later findings; those of verdicts keep the origin of the fall found at the start."""
    merged = {**before, **after}
    for name in before.keys() & after.keys():
        was, now = before[name], after[name]
        if isinstance(now, Degraded) and isinstance(was, Degraded) and now.split is None:
            merged[name] = replace(now, slices=was.slices, split=was.split)
    return merged
