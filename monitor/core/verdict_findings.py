"""What verdicts amount to: conditions beside those of the alert rules, and what there is to say of them.

A verdict makes a condition of its own name: `degraded` one for each unit whose alarm is open (overall, or a slice), and
each kind of broken data one on all traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.core.arrivals import ARRIVALS, LABELS_LATE, SOURCE_STALE, Lack
from monitor.core.drift.diagnosis import Split
from monitor.core.drift.gates import LISTS_RATIO, MISSING_RATIO, TRAFFIC_AGAIN_RATIO, TRAFFIC_RATIO
from monitor.core.drift.judge import LEAST_VOLUME
from monitor.core.drift.levels import LEFT_OUT_DAYS
from monitor.core.drift.series import DAY, HOUR
from monitor.core.drift.verdicts import DATA_KINDS, GRAVITY, SLICE_KINDS, Alarm, Verdict
from monitor.core.findings import MOST_SLICES, Finding, NewVersion, SliceFall, WeakVersion
from monitor.core.rules import COVERAGE, Severity
from monitor.core.thresholds import Change, Condition, ConditionName, State
from monitor.core.types import OVERALL, Drift
from monitor.core.verdict_evidence import WEEK, Evidence
from monitor.core.verdict_hours import judged, step_of
from monitor.core.verdict_versions import begun_with, weak
from monitor.core.windows import SliceKey

DEGRADED = "degraded"
FOLDED = frozenset({DEGRADED, *DATA_KINDS})
"""Names of conditions that verdicts on final buckets make."""
VERDICTS = FOLDED | ARRIVALS
"""Names of conditions that verdicts make, which no alert rule may have."""

MASKED = DATA_KINDS - SLICE_KINDS
"""Verdicts on hours that are left out of what the model is judged by."""

REFUSED, SHORT, LOW = "rows_refused", "positions_missing", "traffic_low"
SUSPECT, COLLAPSED = "labels_suspect", "labels_collapsed"
SLICE_SUSPECT, SLICE_COLLAPSED = "slice_labels_suspect", "slice_labels_collapsed"

CLEAR_SHARE, CLEAR_Z = 0.1, -2.0
"""Of the fall within slices that a slice makes, and standard errors that it fell by, to be named for it."""

MOST_REASONS = 3
"""For which rows were refused that are told."""

CALM = 6 * HOUR
"""Seconds for which data must be sound until they are so for certain."""

BACK = (1 + TRAFFIC_RATIO) / 2
"""Of the requests that are usual, from where on traffic that was low is back. What is expected of it follows it down:
at about half of that, where it counts as low, it would be over and begin anew by chance for days."""

PART = "part"
"""Figure of a slice's fall: what its own change adds to the change of the whole."""

GROWS = {SUSPECT: COLLAPSED, SLICE_SUSPECT: SLICE_COLLAPSED}
"""What a verdict on the data becomes where it lasts."""
COLLAPSES = frozenset(GROWS.values())

GREW = "grew"
"""Figure of a verdict on the data that is over as it has become a graver one."""

NEW_NORMAL = "new_normal"
"""Figure of a verdict on the data that is over though nothing came back: what there is now is what is usual."""

BEGAN = "began"
"""Figure of low traffic: start of the first step that was low, seconds."""

ROWS_OF = "rows_of_"
"""Figures of refused rows: how many of each reason; the rest of the name is the reason."""

LEFT, LEFT_OVER = "left", "left_over"
"""Figures of low traffic that became what is usual: its share of what came before it fell, and the seconds that it is
taken over."""

RISEN_FOR = "risen_for"
"""Figure of low traffic: seconds for which it has not been as low, but is not back."""

MANY, MANY_USUAL = "requests", "requests_before"
"""Figures of labels that are suspect while far more requests came than usual: how many, and how many are usual."""

FLOOD, LEAST_USUAL = 1.5, 50.0
"""Times the usual requests from which on there are far more, of which these or more must be usual."""

BELOW = "below_reference"
"""Figure of an alarm that is over: relative change of the mean since from what the reference had, if clearly lower."""

WORTHLESS = "worthless"
"""Figure of labels that are as many as ever, none of which is worth anything."""

_CAME = ("events", "events_before", "unmatched", "unmatched_before")
"""Figures of the events that came."""

REQUESTS, EVENTS, ITEMS = "requests", "events", "items"
"""What verdicts on what comes in judge in place of a measure."""


Span = tuple[int, int]
"""Seconds, without the first and with the last."""


# ---- conditions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A condition's change, with the verdict that made it; `alarm` as it was last open."""

    change: Change
    verdict: Verdict
    alarm: Alarm | None = None


def severity_of(drift: Drift, name: ConditionName) -> Severity:
    """How grave a condition is that a verdict made. Labels that stay away are as grave as a model that got worse."""
    return drift.severity if name[0] in COLLAPSES | {DEGRADED} else drift.data_severity


def follow(
    drift: Drift,
    step: int,
    verdicts: Sequence[Verdict],
    before: Mapping[ConditionName, Condition],
    ahead: Sequence[Span] = (),
) -> tuple[dict[ConditionName, Condition], list[Seen]]:
    """The conditions after some verdicts in order, and their changes on the way.

    Args:
        ahead: times in which alarms are of a level that is known to be no more, and are not told.
    """
    conditions, changes = dict(before), list[Seen]()
    for verdict in verdicts:
        is_ahead = any(since < verdict.end <= until for since, until in ahead)
        alarms = {} if is_ahead else dict(_alarms(drift, step, verdict))
        after = alarms | dict(_data(step, verdict, conditions))
        for name in sorted(conditions.keys() | after.keys()):
            was, now = conditions.get(name, Condition()), after.get(name, Condition())
            if was.state != now.state and "firing" in (was.state, now.state):
                alarm = next((a for a in verdict.alarms if name_of(drift, a.unit) == name), None)
                change = _change(drift, name, was, now, verdict.end)
                is_left = name in _withdrawn(drift, verdict) or (is_ahead and name[0] == DEGRADED)
                is_gone = now.state != "firing" and is_left
                changes.append(Seen(replace(change, became="withdrawn") if is_gone else change, verdict, alarm))
        conditions = {name: condition for name, condition in after.items() if condition.state != "ok"}
    return conditions, changes


def withdrawn_ahead(
    drift: Drift,
    verdicts: Sequence[Verdict],
    after: Mapping[ConditionName, Condition],
    until: int,
    ahead: Sequence[Span],
) -> tuple[dict[ConditionName, Condition], list[Seen]]:
    """Without the alarms on a level that is known by `until`, seconds, to be no more, and how they go."""
    if not verdicts or not any(begin <= until < end for begin, end in ahead):
        return dict(after), []
    kept, changes = {name: c for name, c in after.items() if name[0] != DEGRADED}, list[Seen]()
    for name in sorted(after.keys() - kept.keys()):
        if after[name].state == "firing":
            change = _change(drift, name, after[name], Condition(), until)
            changes.append(Seen(replace(change, became="withdrawn"), verdicts[-1]))
    return kept, changes


def name_of(drift: Drift, unit: str) -> ConditionName:
    """Name of the condition that a unit's alarm makes."""
    return (DEGRADED, drift.mix_by or "", unit) if unit else (DEGRADED, "", "")


def _withdrawn(drift: Drift, verdict: Verdict) -> set[ConditionName]:
    """The conditions whose alarms went with what they were about: a baseline, or a slice that is there no more."""
    return {name_of(drift, change.unit) for change in verdict.changes if change.became == "withdrawn"}


def _alarms(drift: Drift, step: int, verdict: Verdict) -> Iterator[tuple[ConditionName, Condition]]:
    for unit in verdict.pending:
        yield name_of(drift, unit), Condition("pending", verdict.end, 0, verdict.end)
    for alarm in verdict.alarms:
        yield name_of(drift, alarm.unit), Condition("firing", alarm.fell_at + step, 0, verdict.end)


def _data(
    step: int, verdict: Verdict, before: Mapping[ConditionName, Condition]
) -> Iterator[tuple[ConditionName, Condition]]:
    """The conditions of broken data. They hold until the data were sound for a while, and where nothing is known."""
    for kind in sorted(DATA_KINDS):
        name = (kind, "", "")
        was = before.get(name)
        if kind == verdict.kind:
            yield name, Condition("firing", verdict.end if was is None else was.since, 0, verdict.end)
        elif was is not None and GROWS.get(kind) != verdict.kind:
            is_so_no_more = _is_calm(kind, verdict)
            calm = was.streak + (is_so_no_more and _is_back(kind, verdict))
            if calm * step < CALM:
                yield name, replace(was, streak=calm, known=verdict.end if is_so_no_more else was.known)


def _is_calm(kind: str, verdict: Verdict) -> bool:
    """Whether a verdict shows that a trouble of the data is none: not where a graver one hides it.

    Without any baseline it is enough that there are requests again, and labels of them.
    """
    if verdict.kind in GRAVITY:
        return GRAVITY.index(verdict.kind) > GRAVITY.index(kind)
    if verdict.kind != "not_enough_data":
        return True
    came = verdict.coverage if "labels" in kind else verdict.requests
    return verdict.requests_expected is None and bool(came)


def _is_back(kind: str, verdict: Verdict) -> bool:
    """Whether traffic that was low is as much as is expected by now, or nearly; other troubles have no half way."""
    usual = verdict.requests_expected
    return kind != LOW or usual is None or verdict.requests >= BACK * usual


def _change(drift: Drift, name: ConditionName, was: Condition, now: Condition, at: int) -> Change:
    since = was.since if now.since is None else now.since
    asks = drift.retrain and name[0] == DEGRADED
    to: State = now.state if now.state == "firing" else "ok"
    return Change(name, severity_of(drift, name), asks, was.state, to, at if since is None else since, at)


# ---- findings ----------------------------------------------------------------------------------------------------


def finding(seen: Evidence, name: ConditionName, verdict: Verdict, alarm: Alarm | None, since: int) -> Finding:
    """All that there is to say of a condition at a verdict; without an `alarm` of one that is over.

    Args:
        since: end of the first step that had fallen, seconds.
    """
    if name[0] != DEGRADED:
        return _of_data(seen, name, verdict, since)
    return _of_end(seen, name, verdict, since) if alarm is None else _of_alarm(seen, name, verdict, alarm)


def _of_alarm(seen: Evidence, name: ConditionName, verdict: Verdict, alarm: Alarm) -> Finding:
    """Of an open alarm, over its hours up to now; where it may be over, up to when that began, as its value is."""
    key = name[1:]
    end = verdict.end if alarm.back_since is None else alarm.back_since
    window = max(end - alarm.since, seen.width)
    value, before, requests = alarm.value, alarm.before, alarm.requests
    lower, upper, method = seen.bounds(key, window, end, value, requests)
    now, usual = seen.coverage(verdict, alarm.since, key)
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
    return weak(seen.history, seen.versions, alarm.fell_at, verdict.end, -alarm.effect * alarm.before)


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
        *seen.coverage(verdict, begin, key),
        interval=method,
        verdict=DEGRADED,
        figures=() if closed is None or closed.below is None else ((BELOW, closed.below),),
    )


def _of_data(seen: Evidence, name: ConditionName, verdict: Verdict, since: int) -> Finding:
    labels, kind = verdict.labels, name[0]
    subject, value, before = _what_broke(kind, verdict)
    span = verdict.span if labels is None else labels.span
    dimension, slices = seen.drift.mix_by or "", list[SliceFall]()
    if kind == "slice_missing":
        slices = [_missing(seen, (dimension, name), verdict.end) for name in verdict.missing]
    elif kind == LOW and verdict.requests:  # else it is all of them
        gone = [_missing(seen, key, verdict.end) for key in seen.silent(dimension, verdict.end - span, verdict.end)]
        slices = sorted(gone, key=lambda one: -(one.before or 0.0))
    elif kind in (SUSPECT, COLLAPSED) and _is_flooded(verdict):
        slices = _flooded(seen, verdict)
    elif kind in (SLICE_SUSPECT, SLICE_COLLAPSED) and verdict.lost:
        lost = sorted(verdict.lost, key=lambda one: (one.since, one.slice))
        slices = [SliceFall(dimension, s.slice, s.coverage_before or 0.0, s.coverage or 0.0, 0.0) for s in lost]
        subject, value, before = COVERAGE, lost[0].coverage or 0.0, lost[0].coverage_before
    return Finding(
        kind,
        severity_of(seen.drift, name),
        subject,
        "",
        "",
        verdict.end,
        span or step_of(seen.width),
        since,
        round(verdict.requests),
        value,
        None,
        None,
        before,
        "what is usual at these hours",
        None,
        verdict.coverage,
        verdict.coverage_expected,
        slices=tuple(slices[:MOST_SLICES]),
        verdict=kind,
        figures=tuple((n, v) for n, v in _figures_of_data(seen, kind, verdict, since) if v is not None),
    )


def _what_broke(kind: str, verdict: Verdict) -> tuple[str, float, float | None]:
    """What a verdict on the data is on, how much of it there was, and how much is usual."""
    labels = verdict.labels
    if kind == SHORT:
        return ITEMS, verdict.shown or 0.0, verdict.shown_before
    if kind not in (SUSPECT, COLLAPSED):
        return REQUESTS, verdict.requests, verdict.requests_expected
    if labels is not None:
        return COVERAGE, labels.coverage or 0.0, labels.coverage_before
    return COVERAGE, verdict.coverage or 0.0, verdict.coverage_expected


def _missing(seen: Evidence, key: SliceKey, end: int) -> SliceFall:
    """A slice that is missing, with its requests since then and what is usual."""
    since = seen.lacking_since(key, end, MISSING_RATIO, WEEK)
    usual, came = seen.usual_requests(key, since, end), seen.requests(key, since, end)
    return SliceFall(*key, None if usual is None else float(usual), float(came or 0), 0.0, since=since)


def _is_flooded(verdict: Verdict) -> bool:
    """Whether far more requests came than usual, which robots send, and a loop in a client: they leave no labels."""
    usual = verdict.requests_expected
    return usual is not None and verdict.requests >= FLOOD * max(usual, LEAST_USUAL)


def _flooded(seen: Evidence, verdict: Verdict) -> list[SliceFall]:
    """The slices that have most of the requests beyond the usual ones, with how many these are."""
    since, found = verdict.end - verdict.span, list[SliceFall]()
    least = (verdict.requests - (verdict.requests_expected or 0.0)) / 2
    for key in (key for key in seen.traffic.slices if key[0] in seen.dimensions):
        came, usual = seen.requests(key, since, verdict.end) or 0, seen.usual_requests(key, since, verdict.end)
        if usual is not None and came - usual > least:
            found.append(SliceFall(*key, float(usual), float(came), came / verdict.requests))
    return sorted(found, key=lambda one: (one.before or 0.0) - one.value)


def calming(found: Finding, condition: Condition, step: int) -> Finding:
    """A finding of broken data, with for how long they have been sound since and must be until it is over."""
    found = replace(found, well_for=condition.streak * step, well_needed=CALM)
    risen = (condition.known or found.end) - found.end
    if found.verdict == LOW and not condition.streak and risen > 0:
        return replace(found, figures=(*found.figures, (RISEN_FOR, float(risen))))
    return found


def _figures_of_data(seen: Evidence, kind: str, verdict: Verdict, since: int) -> Iterator[tuple[str, float | None]]:
    """What else there is to say of broken data."""
    labels, came = verdict.labels, dict[str, float | None]()
    if kind in (SUSPECT, COLLAPSED) and labels is not None:
        came = {name: getattr(labels, name) for name in _CAME}
        if labels.worthless:
            yield WORTHLESS, 1.0
        if _is_flooded(verdict):
            yield from ((MANY, verdict.requests), (MANY_USUAL, verdict.requests_expected))
    elif kind in (SLICE_SUSPECT, SLICE_COLLAPSED) and verdict.lost:
        keys = [(seen.drift.mix_by or "", one.slice) for one in verdict.lost]
        came = seen.events(keys, min(one.since for one in verdict.lost), verdict.end)
    for name, value in came.items():
        if seen.counts_unmatched if name.startswith("unmatched") else seen.has_events:
            yield name, value
    if kind == LOW:
        # Of the hours just before it was told: what came a week before these was not low yet.
        yield BEGAN, float(seen.lacking_since(OVERALL, since, TRAFFIC_AGAIN_RATIO, DAY))
    if kind == REFUSED:
        yield from (("rows", verdict.refused), ("rows_before", verdict.refused_before))


def of_lack(drift: Drift, name: ConditionName, lack: Lack, now: int) -> Finding:
    """All that there is to say at `now`, seconds, of what does not arrive, or did not."""
    return Finding(
        name[0],
        severity_of(drift, name),
        {SOURCE_STALE: REQUESTS, LABELS_LATE: EVENTS}[name[0]],
        "",
        "",
        now,
        max(now - lack.since, 1),
        lack.since,
        lack.requests,
        0.0,
        None,
        None,
        lack.events or None,
        "what so many requests usually bring" if lack.events else "",
        None,
        None,
        None,
        verdict=name[0],
        figures=(("newest", lack.since), ("allowed", lack.allowed)),
    )


def with_reasons(found: Finding, reasons: Mapping[str, int]) -> Finding:
    """A finding of refused rows with the reasons for which most were, in the hours around it."""
    most = sorted(reasons.items(), key=lambda one: (-one[1], one[0]))[:MOST_REASONS]
    return replace(found, figures=(*found.figures, *((ROWS_OF + name, float(rows)) for name, rows in most)))


def how_it_ended(seen: Evidence, found: Finding, by: Seen) -> Finding:
    """A finding of what is over, with figures that say why if nothing came back.

    Either it has become a graver one, or what there is now is what is usual. And what there lacks to judge the model.
    """
    if by.verdict.kind == "not_enough_data":
        found = replace(found, lacks=by.verdict.lacks)
    if found.verdict in GROWS and GROWS[found.verdict] == by.verdict.kind:
        return replace(found, figures=(*found.figures, (GREW, 1.0)))
    end = max(found.end, by.change.at - max(CALM, step_of(seen.width)))
    if found.verdict == "slice_missing" and _stay_away(seen, found, end, by.change.at):
        return replace(found, figures=(*found.figures, (NEW_NORMAL, 1.0)))
    if found.verdict == SHORT and _stay_short(seen, found, end, by.change.at):
        return replace(found, figures=(*found.figures, (NEW_NORMAL, 1.0)))
    left = _left(seen, found, end, by.change.at) if found.verdict == LOW else None
    if left is not None and left < BACK:
        return replace(
            found, figures=(*found.figures, (NEW_NORMAL, 1.0), *_what_is_left(seen, found, end, by.change.at))
        )
    return found


def _stay_away(seen: Evidence, found: Finding, since: int, until: int) -> bool:
    """Whether one of the slices that were missing has as good as no request in the hours by which that is over.

    It is back with a request, or told of no longer.
    """
    came = [seen.mean((s.dimension, s.slice), since, until)[1] for s in found.slices]
    before = [seen.mean((s.dimension, s.slice), found.since - WEEK, found.since)[1] for s in found.slices]
    least = MISSING_RATIO * (until - since) / WEEK
    return any(now < least * then for now, then in zip(came, before, strict=True))


def _stay_short(seen: Evidence, found: Finding, since: int, until: int) -> bool:
    """Whether lists are as good as short still in the hours by which it is over, beside the same hours before."""
    weeks = -(-(until - found.since + CALM) // WEEK) * WEEK
    now, usual = (seen.items(since - back, until - back) for back in (0, weeks))
    return now is not None and usual is not None and now < (1 + LISTS_RATIO) / 2 * usual


def _what_is_left(seen: Evidence, found: Finding, since: int, until: int) -> tuple[tuple[str, float], ...]:
    """The share that traffic stays at, of the low hours of the whole days by which the judge took it for usual.

    If it did not, of the hours [since, until) by which it is over.
    """
    today, began = until - until % DAY, round(dict(found.figures)[BEGAN])
    first = today - LEFT_OUT_DAYS * DAY
    span = max(first, began), today
    was_taken = began < first + DAY and found.end >= today
    if not was_taken or (_left(seen, found, *span) or 0.0) < LEAST_VOLUME:
        span = since, until
    return (LEFT, _left(seen, found, *span) or 0.0), (LEFT_OVER, float(span[1] - span[0]))


def _left(seen: Evidence, found: Finding, since: int, until: int) -> float | None:
    """What [since, until) has of the requests of the same hours before it fell, where it was low until about then."""
    weeks = -(-(until - found.since + CALM) // WEEK) * WEEK
    now, usual = (seen.mean(OVERALL, since - back, until - back)[1] for back in (0, weeks))
    return now / usual if usual else None
