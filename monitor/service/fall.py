"""An incident's fall as values for a chart: measured, expected, when it began, and when it was noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from monitor.conditions.evidence import Evidence
from monitor.conditions.incident import Incident
from monitor.conditions.kinds.degraded import Degraded
from monitor.conditions.rules import Rule
from monitor.conditions.thresholds import bounds, evaluate_rule, keys_of
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.verdicts import DATA_KINDS
from monitor.errors import InputError
from monitor.evaluation.hours import StoredHours, drift_of
from monitor.evaluation.stored_fall import first_fired
from monitor.messages.words import named
from monitor.series import partials as b
from monitor.series.intervals import REACH, interval
from monitor.series.retention import DRAWN
from monitor.series.windows import SliceKey
from monitor.service.history import VerdictHistory
from monitor.store import Store
from monitor.store.alerts import StoredIncident
from monitor.types import MODEL_VERSION, OVERALL, Monitor, format_duration
from monitor.units import DAY, WEEK

MOST_POINTS = 200
MOST_MARKS = 4
WINDOWS, BUCKETS = 56, 28
"""Windows shown where they are shorter than a day, and buckets at least."""


class Mean(NamedTuple):
    """The mean of [since, until), seconds, and its 95 % interval; None is unknown."""

    since: int
    until: int
    value: float
    lower: float | None
    upper: float | None


class ChartMark(NamedTuple):
    """Something people did at an instant, seconds: a new model version or baseline, or an announcement."""

    at: int
    words: str


class FallPoint(NamedTuple):
    """A window by its end, seconds: its value, 95 % interval, expectation, and where a rule fires; None is unknown."""

    end: int
    value: float | None
    lower: float | None
    upper: float | None
    expected: float | None
    limit: float | None = None


@dataclass(frozen=True)
class Fall:
    """The judged values of the last days, oldest first, and the incident shown.

    Attributes:
        judged: slice, measure and window in words.
        step: seconds between points.
        began: earliest and latest instant, seconds, at which the fall may have begun.
        since: the mean since then, which the alarm is about: at first a whole day shows little of a fall.
        bad: [since, until) seconds with bad data, by the verdicts.
        marks: versions, baselines and announcements of these days, the newest MOST_MARKS, oldest first.
    """

    monitor: str
    judged: str
    step: int
    points: tuple[FallPoint, ...]
    incident: Incident | None = None
    began: tuple[int, int] | None = None
    since: Mean | None = None
    bad: tuple[tuple[int, int], ...] = ()
    marks: tuple[ChartMark, ...] = ()


def fall_of(monitor: Monitor, store: Store, stored: StoredIncident | None = None) -> Fall:
    """The fall of an incident; without one, the last days of what is judged first.

    Raises:
        InputError: there is nothing to show, or the incident is about the data.
        StoreError: out of reach.
    """
    incident = None if stored is None else stored.incident
    if incident is not None and incident.matter == "data":
        raise InputError(f"incident {incident.id} is about the data; only a fall in quality has a chart")
    evidence = None if stored is None else first_fired(stored, store).finding
    rule, until = _rule(monitor, evidence), store.alerts.state(monitor.name).until
    if until is None:
        raise InputError(f"{monitor.name}: nothing is judged yet; run once or backfill")
    key = OVERALL if evidence is None else (evidence.dimension, evidence.slice)
    if rule is None:
        measure, window, unit = (
            str(judged(drift_of(monitor).measure)),
            max(DAY, monitor.bucket),
            step_of(monitor.bucket),
        )
    else:
        measure, window, unit = rule.judged, rule.window, monitor.bucket
    ends = _ends(window, unit, until, incident)
    points = (
        _of_verdicts(monitor, store, ends, window, key, evidence)
        if rule is None
        else _of_rule(monitor, store, ends, rule, key)
    )
    text = f"{named(*key)}: " * (key != OVERALL) + f"{measure} over {format_duration(window)}"
    began, since = (None, None) if stored is None else (_began(stored.incident, evidence), _since(stored, evidence))
    bad, marks = tuple(_bad(monitor, store, ends)), marks_of(monitor, store, ends[0], ends[-1])
    return Fall(monitor.name, text, ends.step, tuple(points), incident, began, since, bad, marks)


def marks_of(monitor: Monitor, store: Store, since: int, until: int) -> tuple[ChartMark, ...]:
    """The newest marks in [since, until), seconds, oldest first. A version that is back after two weeks is one too."""
    came = store.came(monitor.traffic, MODEL_VERSION, since, until, 2 * WEEK)
    found = [ChartMark(at, f"version {version}") for version, at in came.items()]
    found += [ChartMark(one.since, one.note or "announced") for one in store.verdicts.announced(monitor.name)]
    resets = store.verdicts.baselines(monitor.name)
    found += [ChartMark(reset.since, f"new baseline{reset.note and ': '}{reset.note}") for reset in resets]
    return tuple(sorted(mark for mark in found if since <= mark.at < until)[-MOST_MARKS:])


def _rule(monitor: Monitor, found: Evidence | None) -> Rule | None:
    """The rule that judges what is shown; None for verdicts. Raises InputError."""
    if monitor.drift is not None and (found is None or found.verdict):
        return None
    known = (rule for rule in monitor.alerts if rule.measure is not None)
    rule = next((r for r in known if (r.overall if found is None else r.name == found.rule)), None)
    if rule is None:
        why = "nothing judges quality for all traffic" if found is None else f"{found.rule} no longer judges anything"
        raise InputError(f"{monitor.name}: {why}; rankmon series draws what is stored")
    return rule


def _ends(window: int, unit: int, until: int, incident: Incident | None) -> range:
    span = max(BUCKETS * unit, min(max(WINDOWS * window, DAY), WEEK))
    if incident is not None and incident.closed_at is not None:
        until = min(until, incident.closed_at + span // 4)
    until -= until % unit
    since = until - span
    if incident is not None:
        since = max(until - DRAWN, min(since, incident.began_at - span // 2))
    step = -(-(until - since) // MOST_POINTS // unit) * unit
    return range(until - (until - since) // step * step, until + 1, step)


def _began(incident: Incident, found: Evidence | None) -> tuple[int, int]:
    """Earliest and latest start of the fall, as notifications give it, seconds."""
    within = found.began_within if isinstance(found, Degraded) else None
    return (incident.began_at, incident.began_at) if within is None else within


def _since(stored: StoredIncident, found: Evidence | None) -> Mean | None:
    newest = next((f for f in stored.findings if found is not None and f.name == found.name), None)
    it = newest if stored.incident.is_open else found  # at its end the newest is about the recovery
    if not isinstance(it, Degraded) or it.value is None:
        return None
    return Mean(it.end - it.window, it.end, it.value, it.lower, it.upper)


def _bad(monitor: Monitor, store: Store, ends: range) -> Iterator[tuple[int, int]]:
    if monitor.drift is not None:
        width, told = step_of(monitor.bucket), store.verdicts.drawn(monitor.name, ends[0], ends[-1])
        history = VerdictHistory(width, width).onward(told, ends[0])
        yield from ((one.since, one.until) for one in history.troubles if one.kind in DATA_KINDS)


def _of_rule(monitor: Monitor, store: Store, ends: range, rule: Rule, key: SliceKey) -> Iterator[FallPoint]:
    view = StoredHours(monitor, store).view(rule, ends[0], ends[-1], overall_only=key == OVERALL)
    for end in ends if key in keys_of(rule, view) else ():
        (found,) = evaluate_rule(rule, view, [key], end)
        is_known = found.value is not None and found.unknown != "window incomplete"
        lower, upper, _ = bounds(rule, view, key, end) if is_known else (None, None, "")
        yield FallPoint(end, found.value if is_known else None, lower, upper, found.baseline, found.fires_at)


def _of_verdicts(
    monitor: Monitor, store: Store, ends: range, window: int, key: SliceKey, found: Evidence | None
) -> Iterator[FallPoint]:
    """Of all traffic, what was judged then. Of a slice the expectation is known for its fall alone."""
    drift = drift_of(monitor)
    measure, since = judged(drift.measure), ends[0] - window
    history = store.history(monitor.definition(drift.measure), since - REACH, ends[-1], overall_only=key == OVERALL)
    told = {one.end: one for one in store.verdicts.drawn(monitor.name, since, ends[-1])} if key == OVERALL else {}
    sums = history.slice(key)
    for end in ends:
        inside = sums[history.rows(end - window, end)].sum(axis=0)
        value: float | None = float(b.read_as(measure, inside)) if inside[b.REQUESTS] else None
        expected = None if found is None or end < found.since else found.before
        if key == OVERALL:
            value, expected = (told[end].observed, told[end].expected) if end in told else (None, None)
        lower, upper = None, None
        if value is not None and inside[b.REQUESTS]:
            lower, upper, _ = interval(measure, history.starts, sums, monitor.bucket, window, end)
        is_of_it = value is not None and lower is not None and upper is not None and lower <= value <= upper
        yield FallPoint(end, value, *((lower, upper) if is_of_it else (None, None)), expected)
