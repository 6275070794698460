"""From changes of conditions to incidents, with the newest there is to say of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from monitor.conditions.findings import Finding
from monitor.conditions.incident import MATTERS, Firing, Incident, Matter, Placed, by_matter, gather, matter_of
from monitor.conditions.rules import Drop, is_beyond, worst
from monitor.conditions.thresholds import Change, ConditionName, fires_below
from monitor.conditions.verdict_conditions import DEGRADED, severity_of
from monitor.conditions.verdict_words import lacking_since
from monitor.drift.verdicts import SLICE_KINDS
from monitor.evaluation.checkpoint import beginning
from monitor.evaluation.following import follow_from_the_first, follow_onward
from monitor.evaluation.verdicts import begun_anew
from monitor.evaluation.work import RESTATED, Followed, Result, Work
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.types import Monitor


def onward(work: Work, store: Store) -> Result:
    """From where the last judgement left off."""
    followed = follow_onward(work, store)
    incidents, placed = list[StoredIncident](), list[Placed]()
    known = [stored.incident for stored in work.state.open.values()]
    for matter, changes in by_matter(followed.changes, work.monitor.alerts, known).items():
        current = work.state.open[matter].incident if matter in work.state.open else None
        found, some = gather(work.monitor.name, current, changes, matter)
        incidents += [described(work, i, some, followed) for i in found]
        placed += some
    return Result(followed, incidents, placed)


def anew(work: Work, store: Store) -> Result:
    """From the oldest bucket on. Incidents that somebody was told of stay in the records, whatever is known now.

    So do those of a time whose buckets were forgotten or rolled up, and for as long after it as rules look back: of
    that nothing can be said any more.
    """
    followed, found, placed = from_the_first(work, store)
    stored, ids = _recorded(work, store), {i.id for i in found}
    first, since = work.views.first() or 0, _unjudged_until(work, followed, store)
    looked_back_on = max([0, *(rule.reach for rule in work.monitor.alerts)]) if since else 0
    until = max(first, since) + looked_back_on
    kept = {
        id_ for id_, s in stored.items() if s.told or s.acknowledged_at is not None or s.incident.opened_at <= until
    }
    incidents = [_with_history(described(work, i, placed, followed), stored.get(i.id), since) for i in found]
    undone = [s for s in work.state.open.values() if s.incident.id in kept - ids]
    incidents += [closed(s, work.end) for s in undone]
    ends = [p for s in undone for p in ended(s, work.end)]
    followed.reasons |= {p.change: RESTATED for p in ends}
    removed = [id_ for id_ in stored if id_ not in kept | ids]
    return Result(followed, incidents, [*placed, *ends], removed, {s.incident.id for s in undone}, True, since)


def _recorded(work: Work, store: Store) -> dict[str, StoredIncident]:
    return {s.incident.id: s for s in store.alerts.incidents(work.monitor.name, most=100_000)}


def _unjudged_until(work: Work, followed: Followed, store: Store) -> int:
    """End of the time whose buckets are gone, seconds; 0 if none are."""
    rolled_up = store.retention.rolled_up(work.monitor.traffic, 0, work.end)
    return max(0 if rolled_up is None else rolled_up[1], 0 if followed.drift is None else followed.drift.kept)


def from_the_first(work: Work, store: Store) -> tuple[Followed, list[Incident], list[Placed]]:
    """What following rules and verdicts from the oldest bucket on comes to, whatever was recorded before."""
    followed = follow_from_the_first(work, store)
    found, placed, open_there = list[Incident](), list[Placed](), _open_at_the_border(work, store)
    for matter, changes in by_matter(followed.changes, work.monitor.alerts).items():
        incidents, some = gather(work.monitor.name, open_there.get(matter), changes, matter)
        incidents, some = _renamed(work.state.open.get(matter), incidents, some)
        found, placed = [*found, *incidents], [*placed, *some]
    return followed, found, placed


def _open_at_the_border(work: Work, store: Store) -> dict[Matter, Incident]:
    """The incidents that verdicts had open where judging anew begins, as they were there."""
    drift = work.monitor.drift
    if drift is None:
        return {}
    border = beginning(work.monitor, drift, begun_anew(work.monitor, drift, store), store).border
    at, found = border.standing.until, dict[Matter, Incident]()
    recorded = [s.incident for s in _recorded(work, store).values()] if border.conditions else []
    for matter in MATTERS:
        firing = {
            name: Firing(severity_of(drift, name), drift.retrain and name[0] == DEGRADED, condition.since or at)
            for name, condition in border.conditions.items()
            if condition.state == "firing" and matter_of(name) == matter
        }
        if firing:
            mine = (i for i in recorded if i.matter == matter and i.opened_at <= at < (i.closed_at or work.end + 1))
            was = next(mine, Incident(work.monitor.name, min(f.since for f in firing.values()), at, matter=matter))
            gravest = worst([was.severity, *(f.severity for f in firing.values())])
            asks = was.retrain or any(f.retrain for f in firing.values())
            found[matter] = replace(was, state="firing", closed_at=None, firing=firing, severity=gravest, retrain=asks)
    return found


def _renamed(
    current: StoredIncident | None, found: list[Incident], placed: list[Placed]
) -> tuple[list[Incident], list[Placed]]:
    """With the name of the open incident for the same trouble, if only it is now seen to have begun at another time."""
    if current is None or not found or not found[-1].is_open or current.incident.id in {i.id for i in found}:
        return found, placed
    last, was = found[-1], current.incident
    goes_on = replace(last, began_at=was.began_at, opened_at=was.opened_at)
    renamed = [replace(p, incident=goes_on.id if p.incident == last.id else p.incident) for p in placed]
    return [*found[:-1], goes_on], renamed


def _with_history(incident: StoredIncident, stored: StoredIncident | None, gone_until: int) -> StoredIncident:
    """With what people did about it; it began when it was recorded to, where the buckets of then are gone."""
    if stored is None:
        return incident
    began_at, known = incident.incident.began_at, stored.incident.began_at
    about = replace(incident.incident, began_at=min(began_at, known) if known < gone_until else began_at)
    return replace(stored, incident=about, findings=incident.findings)


def closed(stored: StoredIncident, end: int) -> StoredIncident:
    end = max(end, stored.incident.opened_at)
    return replace(stored, incident=replace(stored.incident, state="withdrawn", closed_at=end, firing={}))


def ended(stored: StoredIncident, end: int) -> list[Placed]:
    """The changes by which all that fires in an incident goes with it."""
    at, firing = max(end, stored.incident.opened_at), stored.incident.firing or {}
    changes = (Change(n, f.severity, f.retrain, "firing", "withdrawn", f.since, at) for n, f in firing.items())
    return [Placed(change, stored.incident.id) for change in changes]


# ---- what there is to say of them --------------------------------------------------------------------------------


def described(work: Work, incident: Incident, placed: Iterable[Placed], followed: Followed) -> StoredIncident:
    """An incident with the newest there is to say of it."""
    was = work.as_open(incident.id)
    former = {(f.rule, f.dimension, f.slice): f for f in (was.findings if was is not None else ())}
    changes = [p.change for p in placed if p.incident == incident.id]
    last = {change.name: change for change in changes}
    changed = {name: followed.findings[change] for name, change in last.items() if change in followed.findings}
    if incident.is_open:
        known = _with_origin(former, _with_origin(changed, followed.newest))
        since = followed.unjudged
        fires = [(name, known[name]) for name in incident.firing or {} if name in known]
        findings = [replace(f, unjudged=since.get(name, f.unjudged)) for name, f in fires]
    else:
        ended = [(former.get(name), f) for name, f in changed.items() if last[name].was == "firing"]
        findings = [_of_slices(was_, f) for was_, f in ended] or list(former.values())
    fired = {name: f.before_when_fired for name, f in former.items()}
    fired |= {c.name: followed.findings[c].before for c in changes if c.became == "firing" and c in followed.findings}
    findings = [replace(f, before_when_fired=fired.get((f.rule, f.dimension, f.slice))) for f in findings]
    if incident.state == "resolved":
        findings = [replace(f, still_below=_still_below(work.monitor, f)) for f in findings]
    begun = replace(incident, began_at=min([incident.began_at, *lacking_since(findings)]))
    return replace(was or StoredIncident(incident), incident=begun, findings=tuple(findings))


def _still_below(monitor: Monitor, finding: Finding) -> float | None:
    """Where a condition fired that is over, if the value is still below that, for its baseline followed it down.

    Only a trailing baseline does; of another one, the value when it fired may be that of another hour of the week.
    """
    rule, then = next((r for r in monitor.alerts if r.name == finding.rule), None), finding.before_when_fired
    if rule is None or then is None or not (isinstance(rule.limit, Drop) and rule.limit.baseline.trailing):
        return None
    below = fires_below(rule, then)
    return below if finding.value is not None and is_beyond(finding.value, below, rule.rises) else None


def _of_slices(was: Finding | None, now: Finding) -> Finding:
    """What is over, with the slices whose data had been broken."""
    is_over = now.rule in SLICE_KINDS and not now.slices and was is not None
    return replace(now, slices=was.slices) if is_over and was is not None else now


def _with_origin(
    before: Mapping[ConditionName, Finding], after: Mapping[ConditionName, Finding]
) -> dict[ConditionName, Finding]:
    """The later findings; those of verdicts with where the fall came from, which is known from when it was found."""
    found = {**before, **after}
    for name in before.keys() & after.keys():
        was, now = before[name], after[name]
        if now.verdict == DEGRADED and not now.figures:
            found[name] = replace(now, slices=was.slices, figures=was.figures)
    return found
