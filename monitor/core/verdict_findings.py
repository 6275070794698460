"""What verdicts amount to: conditions beside those of the alert rules, and what there is to say of them.

A verdict makes a condition of its own name: `degraded` one for each unit whose alarm is open (overall, or a slice), and
each kind of broken data one on all traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from monitor.core import buckets as b
from monitor.core.arrivals import ARRIVALS, LABELS_LATE, SOURCE_STALE, Lack
from monitor.core.drift.diagnosis import Split
from monitor.core.drift.gates import MISSING_RATIO, TRAFFIC_RATIO
from monitor.core.drift.series import DAY, HOUR, Hours
from monitor.core.drift.verdicts import DATA_KINDS, Alarm, Verdict
from monitor.core.findings import MOST_SLICES, Finding, SliceFall
from monitor.core.intervals import REACH, Interval, interval
from monitor.core.measures import Measure
from monitor.core.rules import COVERAGE, Severity
from monitor.core.thresholds import Change, Condition, ConditionName, State
from monitor.core.types import NONE, OVERALL, Drift
from monitor.core.windows import History, SliceKey

DEGRADED = "degraded"
FOLDED = frozenset({DEGRADED, *DATA_KINDS})
"""Names of conditions that verdicts on final buckets make."""
VERDICTS = FOLDED | ARRIVALS
"""Names of conditions that verdicts make, which no alert rule may have."""

MASKED = DATA_KINDS - {"slice_missing"}
"""Verdicts on hours that are left out of what the model is judged by."""

SUSPECT, COLLAPSED = "labels_suspect", "labels_collapsed"

MOST = 0.9
"""Share of the requests since an alarm began that must have been judged for an interval of all of them to be told."""
CALM = 6 * HOUR
"""Seconds for which data must be sound until they are so for certain."""

FIELDS = len(b.TRAFFIC_FIELDS)

PART = "part"
"""Figure of a slice's fall: what its own change adds to the change of the whole."""

NEW_NORMAL = "new_normal"
"""Figure of a verdict on the data that is over though nothing came back: what there is now is what is usual."""
WEEK = 7 * DAY

REQUESTS, EVENTS = "requests", "events"
"""What verdicts on what comes in judge in place of a measure."""


def step_of(bucket: int) -> int:
    """Seconds of the steps in which buckets of a width are judged: an hour, or the bucket if it is longer."""
    return max(bucket, HOUR)


def judged(measure: Measure) -> Measure:
    """The reading that verdicts are on: the other ones hide requests that lost all their labels."""
    return replace(measure, empty="zero")


# ---- what is judged ----------------------------------------------------------------------------------------------


def hours(drift: Drift, width: int, history: History, traffic: History, refused: Mapping[int, int]) -> Hours:
    """The whole steps of some final buckets.

    Args:
        width: of a bucket, seconds.
        history, traffic: partials of the measure and of the traffic; what is not final of them is left out, and where
            `mix_by` was not read yet.
        refused: start of a bucket -> rows that were refused.
    """
    step = step_of(width)
    dimension = drift.mix_by or ""
    usable = traffic.final & _is_read(traffic, dimension)
    starts = np.intersect1d(history.starts[history.final], traffic.starts[usable])
    firsts, at, number = np.unique(starts // step, return_index=True, return_counts=True)
    whole = np.flatnonzero(number == step // width)
    kept = np.isin(starts // step, firsts[whole])
    starts, at = starts[kept], np.concatenate(([0], np.cumsum(number[whole])))[:-1]
    # Where the dimension has no value yet, there are no requests either.
    names = tuple(value for of, value in traffic.slices if of == dimension) or (NONE,)

    def summed(of: History, dimension: str, names: Sequence[str], field: int) -> b.Floats:
        rows = np.isin(of.starts, starts)
        place = {key: i for i, key in enumerate(of.slices)}
        found = np.zeros((int(rows.sum()), len(names)))
        for to, name in enumerate(names):
            if (dimension, name) in place:
                found[:, to] = of.sums[rows, place[dimension, name], field]
        sums: b.Floats = np.add.reduceat(found, at, axis=0) if len(found) else found
        return sums

    fields = {name: b.TRAFFIC_FIELDS.index(name) for name in ("labelled", "events", "unmatched")}
    lost = np.array([float(refused.get(int(start), 0)) for start in starts])
    return Hours(
        firsts[whole].astype(np.int64) * step,
        names,
        requests=summed(history, dimension, names, b.REQUESTS),
        total=summed(history, dimension, names, b.TOTAL),
        squares=summed(history, dimension, names, b.SQUARES),
        labelled=summed(traffic, dimension, names, fields["labelled"]),
        events=summed(traffic, "", [""], fields["events"])[:, 0],
        unmatched=summed(traffic, "", [""], fields["unmatched"])[:, 0],
        refused=np.add.reduceat(lost, at) if len(lost) else lost,
    )


def _is_read(traffic: History, dimension: str) -> b.Bools:
    """(B,) whether each bucket's requests have a value of the dimension, which one that was added later lacks."""
    field = b.TRAFFIC_FIELDS.index("requests")
    inside = [i for i, (of, _) in enumerate(traffic.slices) if of == dimension]
    busy = traffic.sums[:, traffic.slices.index(OVERALL), field] > 0
    found: b.Bools = ~busy | (traffic.sums[:, inside, field].sum(axis=1) > 0)
    return found


# ---- conditions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A condition's change, with the verdict that made it; `alarm` as it was last open."""

    change: Change
    verdict: Verdict
    alarm: Alarm | None = None


def severity_of(drift: Drift, name: ConditionName) -> Severity:
    """How grave a condition is that a verdict made. Labels that stay away are as grave as a model that got worse."""
    return drift.severity if name[0] in (DEGRADED, COLLAPSED) else drift.data_severity


def follow(
    drift: Drift, step: int, verdicts: Sequence[Verdict], before: Mapping[ConditionName, Condition]
) -> tuple[dict[ConditionName, Condition], list[Seen]]:
    """The conditions after some verdicts in order, and their changes on the way."""
    conditions, changes = dict(before), list[Seen]()
    for verdict in verdicts:
        after = dict(_alarms(drift, step, verdict)) | dict(_data(step, verdict, conditions))
        for name in sorted(conditions.keys() | after.keys()):
            was, now = conditions.get(name, Condition()), after.get(name, Condition())
            if was.state != now.state and "firing" in (was.state, now.state):
                alarm = next((a for a in verdict.alarms if name_of(drift, a.unit) == name), None)
                change = _change(drift, name, was, now, verdict.end)
                is_gone = now.state != "firing" and name in _withdrawn(drift, verdict)
                changes.append(Seen(replace(change, became="withdrawn") if is_gone else change, verdict, alarm))
        conditions = {name: condition for name, condition in after.items() if condition.state != "ok"}
    return conditions, changes


def name_of(drift: Drift, unit: str) -> ConditionName:
    """Name of the condition that a unit's alarm makes."""
    return (DEGRADED, drift.mix_by or "", unit) if unit else (DEGRADED, "", "")


def _withdrawn(drift: Drift, verdict: Verdict) -> set[ConditionName]:
    """The conditions whose alarms went with the baseline that they were compared with."""
    return {name_of(drift, change.unit) for change in verdict.changes if change.became == "withdrawn"}


def _alarms(drift: Drift, step: int, verdict: Verdict) -> Iterator[tuple[ConditionName, Condition]]:
    for unit in verdict.pending:
        yield name_of(drift, unit), Condition("pending", verdict.end, 0, verdict.end)
    for alarm in verdict.alarms:
        yield name_of(drift, alarm.unit), Condition("firing", alarm.since + step, 0, verdict.end)


def _data(
    step: int, verdict: Verdict, before: Mapping[ConditionName, Condition]
) -> Iterator[tuple[ConditionName, Condition]]:
    """The conditions of broken data. They hold until the data were sound for a while, and where nothing is known."""
    for kind in sorted(DATA_KINDS):
        name = (kind, "", "")
        was = before.get(name)
        if kind == verdict.kind:
            yield name, Condition("firing", verdict.end if was is None else was.since, 0, verdict.end)
        elif was is not None and not (kind == SUSPECT and verdict.kind == COLLAPSED):
            calm = was.streak + (verdict.kind != "not_enough_data")
            if calm * step < CALM:
                yield name, replace(was, streak=calm)


def _change(drift: Drift, name: ConditionName, was: Condition, now: Condition, at: int) -> Change:
    since = was.since if now.since is None else now.since
    asks = drift.retrain and name[0] == DEGRADED
    to: State = now.state if now.state == "firing" else "ok"
    return Change(name, severity_of(drift, name), asks, was.state, to, at if since is None else since, at)


# ---- findings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What findings are worked out from: the stored partials, as far back as intervals look.

    Attributes:
        width: of a bucket, seconds.
        masked: ends of the steps that were left out for the data were bad, seconds.
    """

    drift: Drift
    width: int
    history: History
    traffic: History
    masked: frozenset[int] = frozenset()


def finding(seen: Evidence, name: ConditionName, verdict: Verdict, alarm: Alarm | None, since: int) -> Finding:
    """All that there is to say of a condition at a verdict; without an `alarm` of one that is over.

    Args:
        since: end of the first step that had fallen, seconds.
    """
    if name[0] != DEGRADED:
        return _of_data(seen, name, verdict, since)
    return _of_end(seen, name, verdict, since) if alarm is None else _of_alarm(seen, name, verdict, alarm)


def _of_alarm(seen: Evidence, name: ConditionName, verdict: Verdict, alarm: Alarm) -> Finding:
    key = name[1:]
    window = max(verdict.end - alarm.since, seen.width)
    value, before, requests = alarm.value, alarm.before, alarm.requests
    lower, upper, method = _bounds_of(seen, key, window, verdict.end, value, requests)
    now, usual = _coverage(seen, verdict, alarm.since)
    found = Finding(
        DEGRADED,
        severity_of(seen.drift, name),
        str(seen.drift.measure),
        *key,
        verdict.end,
        window,
        alarm.since + step_of(seen.width),
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
        well_for=0 if alarm.back_since is None else verdict.end - alarm.back_since,
    )
    if verdict.split is None or alarm.opened_at != verdict.end:
        return found
    return _with_split(found, verdict.split, seen.drift)


def _with_split(found: Finding, split: Split, drift: Drift) -> Finding:
    """A finding with where the change of the whole came from when its alarm opened; of a slice, how much it makes."""
    figures = (("within", split.within), ("mix", split.mix), ("before", split.before), ("value", split.value))
    if found.dimension:
        part = next(p for p in split.parts if p.slice == found.slice)
        of_it = ((PART, part.within), ("share_before", part.share_before), ("share", part.share))
        return replace(found, figures=(*figures, *of_it))
    falls = [
        SliceFall(drift.mix_by or "", p.slice, p.before, p.value, p.share, p.z)
        for p in split.parts
        if p.within < 0 and p.slice
    ]
    return replace(found, slices=tuple(falls[:MOST_SLICES]), figures=figures)


def _coverage(seen: Evidence, verdict: Verdict, since: int) -> tuple[float | None, float | None]:
    """(label coverage of the last day, what is expected of it), without the hours in which the data were bad.

    Where there are such hours, the others are held against themselves in the last week before `since`.
    """
    step = step_of(seen.width)
    ends = range(verdict.end, verdict.end - max(DAY, step), -step)
    sound = [end for end in ends if end not in seen.masked]
    if len(sound) == len(ends):
        return verdict.coverage, verdict.coverage_expected
    weeks = -(-(verdict.end - since) // WEEK) * WEEK
    before = [end - weeks for end in sound if end - weeks not in seen.masked]
    return _labelled(seen, sound, step), _labelled(seen, before, step)


def _labelled(seen: Evidence, ends: Sequence[int], step: int) -> float | None:
    """Label coverage of some steps; None if nothing is known of them."""
    sums = sum((seen.traffic.between(end - step, end).slice(OVERALL).sum(axis=0) for end in ends), np.zeros(FIELDS))
    requests, labelled = (float(sums[b.TRAFFIC_FIELDS.index(name)]) for name in ("requests", "labelled"))
    return labelled / requests if requests else None


def _of_end(seen: Evidence, name: ConditionName, verdict: Verdict, since: int) -> Finding:
    key = name[1:]
    closed = next((c for c in verdict.changes if name_of(seen.drift, c.unit) == name), None)
    overall = next((c for c in verdict.changes if not c.unit), None)
    begin = next((c.since for c in (closed, overall) if c is not None and c.since is not None), verdict.end - DAY)
    window = max(verdict.end - begin, seen.width)
    value, requests = _mean(seen, key, verdict.end - window, verdict.end)
    before = verdict.expected if key == ("", "") else None
    if closed is not None and closed.requests:
        value, before, requests = closed.value, closed.before, closed.requests
    lower, upper, method = _bounds_of(seen, key, window, verdict.end, value, requests)
    least = None if before is None or closed is None else before * (1 - closed.tolerated)
    return Finding(
        DEGRADED,
        severity_of(seen.drift, name),
        str(seen.drift.measure),
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
        *_coverage(seen, verdict, begin),
        interval=method,
        verdict=DEGRADED,
    )


def _of_data(seen: Evidence, name: ConditionName, verdict: Verdict, since: int) -> Finding:
    labels, kind = verdict.labels, name[0]
    value, before, subject = verdict.requests, verdict.requests_expected, REQUESTS
    figures: list[tuple[str, float | None]] = []
    if kind in (SUSPECT, COLLAPSED):
        subject, value, before = COVERAGE, verdict.coverage or 0.0, verdict.coverage_expected
        if labels is not None:
            value, before = labels.coverage or 0.0, labels.coverage_before
            figures = [("events", labels.events), ("events_before", labels.events_before)]
            figures += [("unmatched", labels.unmatched), ("unmatched_before", labels.unmatched_before)]
    span = verdict.span if labels is None else labels.span
    missing = tuple(SliceFall(seen.drift.mix_by or "", name, 0.0, 0.0, 0.0) for name in verdict.missing[:MOST_SLICES])
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
        slices=missing,
        verdict=kind,
        figures=tuple((n, v) for n, v in figures if v is not None),
    )


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


def taken_as_normal(seen: Evidence, found: Finding, at: int) -> Finding:
    """A finding of what is over, with a figure that says so if it is only as what there is now is what is usual."""
    if found.verdict == "slice_missing":
        # It is back with a request, or told of no longer.
        came = [_mean(seen, (s.dimension, s.slice), found.end, at)[1] for s in found.slices]
        before = [_mean(seen, (s.dimension, s.slice), found.since - WEEK, found.since)[1] for s in found.slices]
        least = MISSING_RATIO * (at - found.end) / WEEK
        stays = any(now < least * then for now, then in zip(came, before, strict=True))
    elif found.verdict == "traffic_low":
        # Against the same hours of the last week before it fell.
        weeks = -(-(at - found.since + CALM) // WEEK) * WEEK
        now, usual = (_mean(seen, OVERALL, found.end - back, at - back)[1] for back in (0, weeks))
        stays = now < (1 + TRAFFIC_RATIO) / 2 * usual
    else:
        stays = False
    return replace(found, figures=(*found.figures, (NEW_NORMAL, 1.0))) if stays else found


def _mean(seen: Evidence, key: SliceKey, since: int, until: int) -> tuple[float | None, int]:
    """(mean, requests) of the stored buckets in [since, until)."""
    if key not in seen.history.slices:
        return None, 0
    sums = seen.history.between(since, until).slice(key).sum(axis=0)
    requests = int(sums[b.REQUESTS])
    return (float(sums[b.TOTAL] / requests) if requests else None), requests


def _bounds_of(seen: Evidence, key: SliceKey, window: int, end: int, value: float | None, requests: int) -> Interval:
    """The interval of all hours of a window, unless the value is of so few of them that it is of something else."""
    lower, upper, method = _bounds(seen, key, window, end)
    _, stored = _mean(seen, key, end - window, end)
    if value is None or lower is None or upper is None or requests < MOST * stored or not lower <= value <= upper:
        return None, None, "none"
    return lower, upper, method


def _bounds(seen: Evidence, key: SliceKey, window: int, end: int) -> Interval:
    if key not in seen.history.slices:
        return None, None, "none"
    length = min(window, REACH)
    return interval(judged(seen.drift.measure), seen.history.starts, seen.history.slice(key), seen.width, length, end)
