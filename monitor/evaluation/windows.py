"""Judging the windows that have become final, or all of a past."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.conditions.arrivals import Arrived
from monitor.conditions.findings import Finding
from monitor.conditions.incident import Placed
from monitor.conditions.thresholds import Change
from monitor.evaluation.incidents import anew, described, from_the_first, onward
from monitor.evaluation.telling import Telling, tell
from monitor.evaluation.views import Views
from monitor.evaluation.work import Work
from monitor.messages.words import utc
from monitor.series.partials import bucket_of
from monitor.store import Lease, Store
from monitor.store.alerts import AlertState, Judgement, StoredIncident
from monitor.store.verdicts import VerdictUpdate
from monitor.types import Monitor

log = logging.getLogger(__name__)

MOST_AT_ONCE = 1000
"""Windows that are judged and stored at once: of 1h they are six weeks, and take less than a second or two."""


def judge(
    monitor: Monitor,
    now: float,
    store: Store,
    lease: Lease,
    telling: Telling,
    arrived: Arrived | None = None,
    is_over: Callable[[], bool] = bool,
    leaves_off: Callable[[], bool] = bool,
) -> Judgement | None:
    """Judge the windows that have become final since the last time, MOST_AT_ONCE at once; None if nothing came of it.

    1. Follow each rule over those windows; gather what fires into the monitor's incident.
    2. See who is to be told of what has changed.
    3. Store all of it at once.

    Args:
        now: seconds of the data's clock.
        arrived: the newest that the source shows; None if it was not looked at.
        is_over: whether the process is to end; then nothing more is stored.
        leaves_off: asked before each further part; what is left is judged the next time.

    Returns:
        Of several parts the last, with the incidents and notices of all.

    Raises:
        StoreError, LeaseLost, Stopped: of the part under way nothing was stored.
    """
    found = None
    while True:
        with store.at_once():
            part, is_whole = _judged(monitor, now, store, telling, arrived, is_over)
        if part is not None:
            store.alerts.save(lease, part, telling.real_now)
        found = _both(found, part) if found is not None and part is not None else part or found
        if is_whole or leaves_off():
            return found


def _both(first: Judgement, then: Judgement) -> Judgement:
    known = {s.incident.id: s for s in (*first.incidents, *then.incidents)}
    notices, is_anew = [*first.notices, *then.notices], first.anew or then.anew
    return replace(then, incidents=list(known.values()), notices=notices, anew=is_anew)


def _judged(
    monitor: Monitor,
    now: float,
    store: Store,
    telling: Telling,
    arrived: Arrived | None,
    is_over: Callable[[], bool],
) -> tuple[Judgement | None, bool]:
    """(What came of the next windows, whether none are left)."""
    known = store.alerts.state(monitor.name)
    went_back = known.until is not None and known.until > now
    if went_back and (newest := store.retention.behind(now, monitor.name)) is not None:
        text = "monitor %s: nothing is judged by this clock: it is %s by it, but requests up to %s are stored"
        log.warning(text, monitor.name, utc(int(now)), utc(newest))
        return None, True
    state = _to_go_on_from(known, monitor, now)
    if not (monitor.alerts or monitor.drift or state.conditions or state.open):
        return None, True
    is_anew = state.until is None or state.anew
    settled = store.settled_end(monitor.traffic, monitor.bucket, 0 if is_anew else state.until or 0, now)
    if settled is None and state.until is None:
        return None, True
    end = max(settled or 0, state.until or 0)
    until = end if is_anew else min(end, (state.until or 0) + MOST_AT_ONCE * monitor.bucket)
    if until < end:  # what does not arrive now says nothing of then
        arrived, telling = None, replace(telling, is_current=False)
    work = Work(monitor, state, until, Views(monitor, store), now, arrived, is_over=is_over)
    result = anew(work, store) if is_anew else onward(work, store)
    judgement = tell(work, result, now, store, telling)
    return None if judgement is None else replace(judgement, since=result.since), until == end


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
    drift: VerdictUpdate | None


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
