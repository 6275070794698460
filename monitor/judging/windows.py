"""Judging the windows that have become final, or all of a past."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.core.arrivals import Arrived
from monitor.core.buckets import TRAFFIC_FIELDS, bucket_of
from monitor.core.findings import Finding
from monitor.core.incidents import Placed
from monitor.core.thresholds import Change
from monitor.core.types import OVERALL, Monitor
from monitor.core.words import utc
from monitor.judging.incidents import anew, described, from_the_first, onward
from monitor.judging.telling import Telling, tell
from monitor.judging.views import Views
from monitor.judging.work import Work
from monitor.store import Lease, Store
from monitor.store.alerts import AlertState, Judgement, StoredIncident
from monitor.store.verdicts import Judged

log = logging.getLogger(__name__)

REQUESTS = TRAFFIC_FIELDS.index("requests")


def judge(
    monitor: Monitor, now: float, store: Store, lease: Lease, telling: Telling, arrived: Arrived | None = None
) -> Judgement | None:
    """Judge the windows that have become final since the last time; None if nothing came of it.

    1. Follow each rule over those windows; gather what fires into the monitor's incident.
    2. See who is to be told of what has changed.
    3. Store all of it at once.

    Args:
        now: seconds of the data's clock.
        arrived: the newest that the source shows; None if it was not looked at.

    Raises:
        StoreError, LeaseLost: nothing was stored.
    """
    with store.at_once():
        judgement = _judged(monitor, now, store, telling, arrived)
    if judgement is not None:
        store.alerts.save(lease, judgement, telling.real_now)
    return judgement


def _judged(monitor: Monitor, now: float, store: Store, telling: Telling, arrived: Arrived | None) -> Judgement | None:
    known = store.alerts.state(monitor.name)
    if _runs_behind(known, monitor, now, store):
        text = "monitor %s: nothing is judged by this clock: it is %s by it, but requests up to %s are stored"
        log.warning(text, monitor.name, utc(int(now)), utc(known.until))
        return None
    state = _to_go_on_from(known, monitor, now)
    if not (monitor.alerts or monitor.drift or state.conditions or state.open):
        return None
    is_anew = state.until is None or state.anew
    settled = store.settled_end(monitor.traffic, monitor.bucket, 0 if is_anew else state.until or 0, now)
    if settled is None and state.until is None:
        return None
    work = Work(monitor, state, max(settled or 0, state.until or 0), Views(monitor, store), now, arrived)
    result = anew(work, store) if is_anew else onward(work, store)
    judgement = tell(work, result, now, store, telling)
    return None if judgement is None else replace(judgement, since=result.since)


def _runs_behind(state: AlertState, monitor: Monitor, now: float, store: Store) -> bool:
    """Whether it is the present clock that is wrong where windows later than now were judged.

    Most buckets since have requests then, which a clock that ran ahead would not have found.
    """
    if state.until is None or state.until <= now:
        return False
    since = bucket_of(int(now), monitor.bucket)
    requests = store.history(monitor.traffic, since, state.until, overall_only=True).slice(OVERALL)[:, REQUESTS]
    return 2 * int((requests > 0).sum()) * monitor.bucket >= state.until - since


def _to_go_on_from(state: AlertState, monitor: Monitor, now: float) -> AlertState:
    """Where judging goes on: between two of the present buckets, and from the beginning if it was ahead of `now`.

    Windows that have not ended were judged by a clock that ran ahead.
    """
    if state.until is not None and state.until > now:
        return replace(state, until=None, anew=True)
    return state if state.until is None else replace(state, until=bucket_of(state.until, monitor.bucket))


@dataclass(frozen=True)
class Hindsight:
    """What judging a past comes to.

    Attributes:
        until: end of the last window that was judged, seconds.
        incidents: oldest first, each with the newest there is to say of it.
        placed: every change of a condition, with its incident.
        findings: what there was to say of a change.
        drift: what the verdicts came to; None if there are none.
    """

    until: int
    incidents: Sequence[StoredIncident]
    placed: Sequence[Placed]
    findings: Mapping[Change, Finding]
    drift: Judged | None


def judge_past(monitor: Monitor, store: Store, until: int) -> Hindsight | None:
    """Judge what is stored as `judge` would have, bucket after bucket, and store nothing; None if there is nothing.

    Each window is judged by final buckets that had ended by then, and by what had been said by then of the baseline,
    so this is what would have been found at the time.

    Args:
        until: windows that end later are left out, seconds.

    Raises:
        StoreError: the store is out of reach.
    """
    settled = store.settled_end(monitor.traffic, monitor.bucket)
    if settled is None:
        return None
    end = min(settled, until - until % monitor.bucket)
    work = Work(monitor, AlertState(), end, Views(monitor, store), is_past=True)
    followed, found, placed = from_the_first(work, store)
    incidents = [described(work, incident, placed, followed) for incident in found]
    return Hindsight(end, incidents, placed, followed.findings, followed.drift)
