"""What there is to say of a condition that a verdict made: of an alarm on the quality, open or over."""

from __future__ import annotations

from dataclasses import replace

from monitor.conditions.concurrent import changed_beside
from monitor.conditions.findings import MOST_SLICES, Finding, NewVersion, SliceFall, WeakVersion
from monitor.conditions.thresholds import ConditionName
from monitor.conditions.verdict_conditions import DEGRADED, name_of, severity_of
from monitor.conditions.verdict_data import of_data
from monitor.conditions.verdict_evidence import Evidence
from monitor.conditions.verdict_hours import judged, step_of
from monitor.conditions.verdict_versions import begun_with, served_until, weak
from monitor.drift.series import DAY
from monitor.drift.verdicts import Alarm, Split, Verdict
from monitor.series.windows import SliceKey
from monitor.types import Drift

CLEAR_SHARE, CLEAR_Z = 0.1, -2.0
"""Of the fall within slices that a slice makes, and standard errors that it fell by, to be named for it."""

PART = "part"
"""Figure of a slice's fall: what its own change adds to the change of the whole."""

BELOW = "below_reference"
"""Figure of an alarm that is over: relative change of the mean since from what the reference had, if clearly lower."""


def finding(seen: Evidence, name: ConditionName, verdict: Verdict, alarm: Alarm | None, since: int) -> Finding:
    """All that there is to say of a condition at a verdict; without an `alarm` of one that is over.

    Args:
        since: end of the first step that had fallen, seconds.
    """
    if name[0] != DEGRADED:
        return of_data(seen, name, verdict, since)
    return _of_end(seen, name, verdict, since) if alarm is None else _of_alarm(seen, name, verdict, alarm)


def _of_alarm(seen: Evidence, name: ConditionName, verdict: Verdict, alarm: Alarm) -> Finding:
    """Of an open alarm, over its hours since the fall began; where it may be over, up to when that did."""
    key = name[1:]
    end = verdict.end if alarm.back_since is None else alarm.back_since
    window = max(end - alarm.fell_at, seen.width)
    value, before, requests = alarm.value, alarm.before, alarm.requests
    lower, upper, method = seen.bounds(key, window, end, value, requests)
    now, usual = seen.coverage(verdict, alarm.fell_at, end, key)
    found = Finding(
        DEGRADED,
        severity_of(seen.drift, name),
        str(judged(seen.drift.measure)),
        *key,
        end,
        window,
        alarm.fell_at + step_of(seen.width),
        requests,
        value,
        lower,
        upper,
        before,
        "the baseline of these hours",
        None if before is None else before * (1 - alarm.tolerated),
        now,
        usual,
        interval=method,
        verdict=DEGRADED,
        is_paused=verdict.is_data,
        well_for=0 if alarm.back_since is None else _well_for(seen, key, alarm.back_since, verdict.end),
        new_version=_new_version(seen, verdict, alarm),
        weak_version=_weak_version(seen, verdict, alarm),
        began_within=_within(alarm, step_of(seen.width)),
        beside=changed_beside(seen, key, alarm, end),
        counts_unlabelled=seen.has_events,
    )
    if verdict.split is None or alarm.opened_at != verdict.end:
        return found
    return _with_split(found, verdict.split, seen.drift)


def _within(alarm: Alarm, step: int) -> tuple[int, int] | None:
    """The time in which an alarm's fall began, as surely as that can be told."""
    return None if alarm.began_within is None else (alarm.began_within[0], alarm.began_within[1] + step)


def _new_version(seen: Evidence, verdict: Verdict, alarm: Alarm) -> NewVersion | None:
    """The version that began to serve about when an alarm's fall began; of a version's own fall none is to be told."""
    if not seen.versions or (alarm.unit and seen.drift.mix_by == seen.versions):
        return None
    step, fell = step_of(seen.width), 0.0 if alarm.unit else -alarm.effect
    at = (alarm.fell_at, alarm.opened_at, verdict.end)
    new = begun_with(seen.traffic, seen.versions, *at, seen.width, step, fell)
    if new is None:
        return None
    new = replace(new, fell_within=alarm.began_within)
    until = verdict.end if new.until is None else new.until
    return None if seen.others_fell((seen.versions, new.version), new.since, until, -alarm.effect / 2) else new


def _weak_version(seen: Evidence, verdict: Verdict, alarm: Alarm) -> WeakVersion | None:
    """The version that takes a good part of what all traffic fell by; of a slice no more is stored than of all."""
    if not seen.versions or alarm.unit or alarm.before is None:
        return None
    step = step_of(seen.width)
    first = alarm.fell_at if alarm.began_within is None else min(alarm.fell_at, alarm.began_within[0])
    by = seen.drift.mix_by or ""
    lost = -alarm.effect * alarm.before
    history = seen.history.without(seen.masked, step)
    one = weak(history, seen.versions, (first, alarm.fell_at), verdict.end, lost, "" if by == seen.versions else by)
    if one is None:
        return None
    key = seen.versions, one.version
    return replace(one, until=served_until(seen.traffic, key, one.since, verdict.end, seen.width, step))


def _well_for(seen: Evidence, key: SliceKey, since: int, until: int) -> int:
    """Seconds of what was judged since it may be over, its first step in any case: no other hour shows that it is."""
    return max(seen.judged_for(key, since, until), step_of(seen.width))


def _with_split(found: Finding, split: Split, drift: Drift) -> Finding:
    """A finding with where the change of the whole came from when its alarm opened; of a slice, how much it makes."""
    figures = (("within", split.within), ("mix", split.mix), ("before", split.before), ("value", split.value))
    if found.dimension:
        part = next(p for p in split.parts if p.slice == found.slice)
        of_it = ((PART, part.within), ("share_before", part.share_before), ("share", part.share))
        return replace(found, figures=(*figures, *of_it))
    fell = sorted((p for p in split.parts if p.within < 0 and p.slice), key=lambda p: p.within)
    clear = [p for p in fell if p.within <= CLEAR_SHARE * split.within and p.z <= CLEAR_Z]
    falls = [SliceFall(drift.mix_by or "", p.slice, p.before, p.value, p.share, p.z) for p in clear or fell[:1]]
    return replace(found, slices=tuple(falls[:MOST_SLICES]), figures=figures)


def _of_end(seen: Evidence, name: ConditionName, verdict: Verdict, since: int) -> Finding:
    key = name[1:]
    closed = next((c for c in verdict.changes if name_of(seen.drift, c.unit) == name), None)
    overall = next((c for c in verdict.changes if not c.unit), None)
    begin = next((c.since for c in (closed, overall) if c is not None and c.since is not None), verdict.end - DAY)
    window = max(verdict.end - begin, seen.width)
    value, requests = seen.mean(key, verdict.end - window, verdict.end)
    before = verdict.expected if key == ("", "") else None
    if closed is not None and closed.requests:
        value, before, requests = closed.value, closed.before, closed.requests
    lower, upper, method = seen.bounds(key, window, verdict.end, value, requests)
    least = None if before is None or closed is None else before * (1 - closed.tolerated)
    return Finding(
        DEGRADED,
        severity_of(seen.drift, name),
        str(judged(seen.drift.measure)),
        *key,
        verdict.end,
        window,
        since,
        requests,
        value,
        lower,
        upper,
        before,
        "the baseline of these hours",
        least if least is not None and value is not None and value < least else None,
        *seen.coverage(verdict, begin, verdict.end, key),
        interval=method,
        verdict=DEGRADED,
        figures=() if closed is None or closed.below is None else ((BELOW, closed.below),),
    )
