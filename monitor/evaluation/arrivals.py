"""Conditions on what does not arrive: judged by what the source shows now, beside what is judged by final buckets."""

from __future__ import annotations

from dataclasses import replace

from monitor.conditions import arrivals as a
from monitor.conditions.arrivals import Arrived, Lack, Misread
from monitor.conditions.findings import Finding
from monitor.conditions.incident import matter_of
from monitor.conditions.thresholds import Change, Condition, ConditionName
from monitor.conditions.verdict_conditions import severity_of
from monitor.conditions.verdict_data import of_lack, of_misread
from monitor.drift.levels import CROWD
from monitor.evaluation.work import Followed, Work
from monitor.series.partials import TRAFFIC_FIELDS
from monitor.store import Store
from monitor.store.alerts import Kept
from monitor.types import OVERALL, Drift, Monitor

IDENTITY = "arrivals"
_REQUESTS = TRAFFIC_FIELDS.index("requests")


def follow_arrivals(work: Work, followed: Followed, store: Store, is_anew: bool) -> None:
    """Note what does not arrive now, and what arrives again; without a look at the source all stays as it is.

    Args:
        is_anew: everything is followed from the beginning, so what stands is to be placed again.
    """
    drift = work.monitor.drift
    if drift is None:
        return
    conditions = work.state.conditions.items()
    before = {n[0]: k.condition for n, k in conditions if n[0] in a.ARRIVALS and k.condition.state == "firing"}
    found, unknown = _lacks(work, followed, store)
    for kind in sorted(a.ARRIVALS):
        name, lack, was = (kind, "", ""), found.get(kind), before.get(kind)
        if was is not None and is_anew and work.state.open[matter_of(name)].incident.opened_at > work.now:
            was = None  # said by a clock that ran ahead: it is undone with its incident, unless it is so now too
        elif was is not None and is_anew:
            _place_again(work, followed, drift, name, was)
        if lack is not None:
            _fire(followed, drift, name, was, lack, int(work.now))
        elif was is not None and kind in unknown:
            followed.conditions[name] = Kept(IDENTITY, was)
        elif was is not None:
            _end(work, followed, drift, name, was, _lacking(work, followed, store))


def _fire(
    followed: Followed, drift: Drift, name: ConditionName, was: Condition | None, lack: Lack | Misread, now: int
) -> None:
    finding = of_lack(drift, name, lack, now) if isinstance(lack, Lack) else of_misread(drift, name, lack, now)
    followed.newest[name] = finding
    if was is None:
        change = Change(name, severity_of(drift, name), False, "ok", "firing", lack.since, now)
        followed.changes.append(change)
        followed.findings[change] = finding
    since = lack.since if was is None or was.since is None else was.since
    followed.conditions[name] = Kept(IDENTITY, Condition("firing", since, 0, now))


def _end(work: Work, followed: Followed, drift: Drift, name: ConditionName, was: Condition, lacks: str) -> None:
    now = int(work.now)
    since = now if was.since is None else was.since
    change = Change(name, severity_of(drift, name), False, "firing", "ok", since, now)
    followed.changes.append(change)
    # What there was to say when it was last so; nothing arrives late any more.
    known = _known(work, name) or of_lack(drift, name, Lack(since, 0), now)
    followed.findings[change] = replace(known, lacks=lacks)


def _lacking(work: Work, followed: Followed, store: Store) -> str:
    """What is missing to a baseline, by the newest verdict; empty if nothing is."""
    verdicts = () if followed.drift is None else followed.drift.verdicts
    newest = verdicts[-1] if verdicts else store.verdicts.newest(work.monitor.name)
    return newest.lacks if newest is not None and newest.kind == "not_enough_data" else ""


def _known(work: Work, name: ConditionName) -> Finding | None:
    """What was last said of a condition that fires."""
    stored = work.state.open.get(matter_of(name))
    return None if stored is None else next((found for found in stored.findings if found.rule == name[0]), None)


def _place_again(work: Work, followed: Followed, drift: Drift, name: ConditionName, was: Condition) -> None:
    """That it fires, as it was recorded with the incident that is open: no bucket says so, however often it is read."""
    stored = work.state.open[matter_of(name)]
    at = stored.incident.opened_at
    change = Change(name, severity_of(drift, name), False, "ok", "firing", at if was.since is None else was.since, at)
    followed.changes.append(change)
    if (known := _known(work, name)) is not None:
        followed.findings[change] = known


def _lacks(work: Work, followed: Followed, store: Store) -> tuple[dict[str, Lack | Misread], set[str]]:
    """(what does not arrive, and of what it cannot be told)."""
    arrived, monitor = work.arrived, work.monitor
    if arrived is None:
        return {}, set(a.ARRIVALS)
    found: dict[str, Lack | Misread] = {}
    unknown = set[str]() if arrived.request is not None else {a.SOURCE_STALE}
    if arrived.audited is None:
        unknown.add(a.MISREAD)
    elif arrived.audited.what:
        found[a.MISREAD] = arrived.audited
    if (lack := a.stale(monitor, arrived, work.now)) is not None:
        found[a.SOURCE_STALE] = lack
    if a.is_behind(monitor, arrived):
        usual = _usual_events(monitor, followed, store)
        if usual is None:
            unknown.add(a.LABELS_LATE)
        elif (lack := a.late(monitor, arrived, _requests_since(monitor, arrived, store), usual)) is not None:
            found[a.LABELS_LATE] = lack
    return found, unknown


def _usual_events(monitor: Monitor, followed: Followed, store: Store) -> float | None:
    """Events for each request, as remembered; None if nothing is."""
    judged = followed.drift
    standing = store.verdicts.standing(monitor.name) if judged is None else judged.standing
    if standing is None or standing.state is None:
        return None
    usual = dict(zip(CROWD, standing.state.levels.memory.crowd.tolist(), strict=True))
    return usual["events"] / usual["requests"] if usual["requests"] else None


def _requests_since(monitor: Monitor, arrived: Arrived, store: Store) -> int:
    """In the stored buckets after the newest event, final or not."""
    since = int(arrived.label or 0) + monitor.bucket
    history = store.history(monitor.traffic, since - since % monitor.bucket, 1 << 62, overall_only=True)
    return int(history.slice(OVERALL)[:, _REQUESTS].sum()) if OVERALL in history.slices else 0
