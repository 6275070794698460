"""Conditions on what does not arrive: judged by what the source shows now, beside what is judged by final buckets."""

from __future__ import annotations

from collections.abc import Mapping

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
    found = _lacks(work, store, before)
    for kind in sorted(a.ARRIVALS):
        name, was, lack = (kind, "", ""), before.get(kind), found.get(kind)
        fired = was is not None and was.state == "firing"
        if lack is not None:
            _fire(followed, drift, name, None if is_anew or not fired else was, lack, work.now)
        elif fired and work.arrived is None and was is not None:
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


def _lacks(work: Work, store: Store, before: Mapping[str, Condition]) -> dict[str, Lack]:
    arrived, monitor = work.arrived, work.monitor
    if arrived is None:
        return {}
    found = {}
    if (lack := a.stale(monitor, arrived, work.now)) is not None:
        found[a.SOURCE_STALE] = lack
    if (lack := _late(monitor, arrived, store)) is not None:
        found[a.LABELS_LATE] = lack
    return found


def _late(monitor: Monitor, arrived: Arrived, store: Store) -> Lack | None:
    if not a.is_behind(monitor, arrived) or arrived.label is None:
        return None
    standing = store.verdicts.standing(monitor.name)
    if standing is None or standing.state is None:
        return None
    usual = dict(zip(CROWD, standing.state.levels.memory.crowd.tolist(), strict=True))
    if not usual["requests"]:
        return None
    since = int(arrived.label) + monitor.bucket
    history = store.history(monitor.traffic, since - since % monitor.bucket, 1 << 62, overall_only=True)
    requests = int(history.slice(OVERALL)[:, _REQUESTS].sum()) if OVERALL in history.slices else 0
    return a.late(monitor, arrived, requests, usual["events"] / usual["requests"])
