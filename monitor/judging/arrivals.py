"""Conditions on what does not arrive: judged by what the source shows now, beside what is judged by final buckets."""

from __future__ import annotations

from monitor.core import arrivals as a
from monitor.core.arrivals import Arrived, Lack
from monitor.core.buckets import TRAFFIC_FIELDS
from monitor.core.drift.levels import CROWD
from monitor.core.thresholds import Change, Condition, ConditionName
from monitor.core.types import OVERALL, Drift, Monitor
from monitor.core.verdict_findings import of_lack, severity_of
from monitor.judging.work import Followed, Work
from monitor.store import Store
from monitor.store.alerts import Kept

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
    before = {name[0]: kept.condition for name, kept in work.state.conditions.items() if name[0] in a.ARRIVALS}
    found, unknown = _lacks(work, store)
    for kind in sorted(a.ARRIVALS):
        name, was, lack = (kind, "", ""), before.get(kind), found.get(kind)
        fired = was is not None and was.state == "firing"
        if lack is not None:
            _fire(followed, drift, name, None if is_anew or not fired else was, lack, work.now)
        elif fired and kind in unknown and was is not None:
            followed.conditions[name] = Kept(IDENTITY, was)
            if is_anew:
                since = was.since or work.end
                change = Change(name, severity_of(drift, name), False, "ok", "firing", since, since)
                followed.changes.append(change)
        elif fired and was is not None and not is_anew:
            since, now = was.since or int(work.now), int(work.now)
            change = Change(name, severity_of(drift, name), False, "firing", "ok", since, now)
            followed.changes.append(change)
            followed.findings[change] = of_lack(drift, name, Lack(since, 0), now)


def _fire(followed: Followed, drift: Drift, name: ConditionName, was: Condition | None, lack: Lack, now: float) -> None:
    finding = of_lack(drift, name, lack, int(now))
    followed.newest[name] = finding
    if was is None:
        change = Change(name, severity_of(drift, name), False, "ok", "firing", lack.since, int(now))
        followed.changes.append(change)
        followed.findings[change] = finding
    since = lack.since if was is None or was.since is None else was.since
    followed.conditions[name] = Kept(IDENTITY, Condition("firing", since, 0, int(now)))


def _lacks(work: Work, store: Store) -> tuple[dict[str, Lack], set[str]]:
    """(what does not arrive, and of what it cannot be told)."""
    arrived, monitor = work.arrived, work.monitor
    if arrived is None:
        return {}, set(a.ARRIVALS)
    found: dict[str, Lack] = {}
    unknown = set[str]() if arrived.request is not None else {a.SOURCE_STALE}
    if (lack := a.stale(monitor, arrived, work.now)) is not None:
        found[a.SOURCE_STALE] = lack
    if a.is_behind(monitor, arrived):
        usual = _usual_events(monitor, store)
        if usual is None:
            unknown.add(a.LABELS_LATE)
        elif (lack := a.late(monitor, arrived, _requests_since(monitor, arrived, store), usual)) is not None:
            found[a.LABELS_LATE] = lack
    return found, unknown


def _usual_events(monitor: Monitor, store: Store) -> float | None:
    """Events for each request, as remembered; None if nothing is."""
    standing = store.verdicts.standing(monitor.name)
    if standing is None or standing.state is None:
        return None
    usual = dict(zip(CROWD, standing.state.levels.memory.crowd.tolist(), strict=True))
    return usual["events"] / usual["requests"] if usual["requests"] else None


def _requests_since(monitor: Monitor, arrived: Arrived, store: Store) -> int:
    """In the stored buckets after the newest event, final or not."""
    since = int(arrived.label or 0) + monitor.bucket
    history = store.history(monitor.traffic, since - since % monitor.bucket, 1 << 62, overall_only=True)
    return int(history.slice(OVERALL)[:, _REQUESTS].sum()) if OVERALL in history.slices else 0
