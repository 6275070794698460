"""Back-tests: what rankmon, and plain thresholds, would have found in a stored past.

The daemon's own code evaluates the same final buckets in the same order; nothing is stored or sent. The time before the
span is evaluated too, because baselines rest on it, but not reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from monitor.conditions.evidence import Matter, QualityEvidence, condition_names, is_grave_on_data
from monitor.conditions.incident import Incident, by_matter, gather
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.conditions.thresholds import (
    Change,
    ConditionName,
    Unknown,
    View,
    bounds,
    evaluate_rule,
    keys_of,
    track_rule,
)
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.verdicts import Kind, Verdict, first_whole
from monitor.errors import InputError
from monitor.evaluation.hours import StoredHours
from monitor.evaluation.retraining import asking_since
from monitor.evaluation.run import Hindsight, judge_past
from monitor.measures.measure import Measure
from monitor.messages.explanation import condition, sentence
from monitor.messages.words import utc
from monitor.series.partials import REQUESTS, bucket_of
from monitor.series.windows import SliceKey
from monitor.store import Store
from monitor.types import FARTHEST, OVERALL, Monitor, format_duration
from monitor.units import DAY, HOUR, WEEK

FIXED_REFERENCE, LEAST_FIXED_REFERENCE = 28 * DAY, 14 * DAY
FIXED, TRAILING = 0.10, 0.05
"""Relative drops at which the plain thresholds fire."""
TRIED_OVER = 90 * DAY
"""Span over which false alarms are counted, as for `drift.false_alarm_budget`."""


@dataclass(frozen=True)
class Period:
    """A time [since, until) in seconds since 1970; `until` is None if it continues after the span."""

    since: int
    until: int | None
    effect: float = 0.0

    def within(self, since: int, until: int) -> int:
        """Seconds of it within a span."""
        return max(0, min(until if self.until is None else self.until, until) - max(self.since, since))

    def overlaps(self, other: Period) -> bool:
        """Whether they have a time in common."""
        return (other.until is None or self.since < other.until) and (self.until is None or other.since < self.until)


@dataclass(frozen=True)
class Method:
    """The result of one way of judging.

    Attributes:
        incidents: when it had an incident open, oldest first.
        pages: number of incidents that began in the span.
        open_seconds: part of the span with an open incident.
        could_judge: if False, it could not judge anything in the span, and zero pages mean nothing.
    """

    name: str
    what: str
    incidents: tuple[Period, ...]
    pages: int
    open_seconds: int
    could_judge: bool = True


@dataclass(frozen=True)
class ReplayedIncident:
    """One incident and its cause.

    Attributes:
        by: verdicts and rules that fired in it, in order.
        why: the evidence by which it opened, in a sentence.
        is_before: it was open when the span began, so it is not a page of the span.
        asks_at: when it would have asked to retrain, seconds; None if never. Ignores whether the level was recovering.
        on_call_at: for broken data, when the model's on-call would also have been notified because labels were missing
            for a day, seconds; None if never.
    """

    incident: Incident
    by: tuple[str, ...]
    why: str
    is_before: bool
    asks_at: int | None = None
    on_call_at: int | None = None


@dataclass(frozen=True)
class Replay:
    """A replayed past; instants in seconds since 1970.

    Attributes:
        since, until: the reported span; windows and steps that end in (since, until].
        first: start of the oldest evaluated bucket with a request.
        methods: rankmon, its verdicts, each of its alert rules, and plain thresholds.
        verdicts: of the span; empty for a monitor without `drift`.
        step: seconds of a verdict's step.
        whole_since: from when on the verdicts' means cover whole days: judging may begin within the span.
    """

    monitor: str
    measure: str
    since: int
    until: int
    first: int
    incidents: tuple[ReplayedIncident, ...]
    methods: tuple[Method, ...]
    verdicts: tuple[Verdict, ...]
    step: int
    mix: tuple[Period, ...]
    whole_since: int

    def of(self, matter: Matter) -> list[ReplayedIncident]:
        """The incidents that opened within the span and concern the model's quality, or its data."""
        return [f for f in self.incidents if f.incident.matter == matter and not f.is_before]

    @property
    def told_on_call(self) -> list[ReplayedIncident]:
        """The incidents on data that the model's on-call would have been notified of within the span."""
        return [f for f in self.incidents if f.on_call_at is not None and f.on_call_at > self.since]

    @property
    def hours(self) -> dict[Kind, float]:
        """Verdict -> hours of the span."""
        return {kind: number * self.step / HOUR for kind, number in Counter(v.kind for v in self.verdicts).items()}

    @property
    def masked(self) -> tuple[Period, ...]:
        """Times with bad data."""
        return _runs(self.verdicts, self.step, [v.is_data for v in self.verdicts])


def replay(monitor: Monitor, store: Store, since: int | None = None, until: int | None = None) -> Replay:
    """Evaluate a monitor's stored past as if it were live.

    Args:
        since, until: seconds since 1970, clipped to what is stored; by default all of it.

    Raises:
        InputError: nothing to evaluate, or nothing to evaluate it by.
        StoreError: the store is out of reach.
    """
    if not (monitor.drift or monitor.alerts):
        raise InputError(f"{monitor.name} has neither `drift:` nor `alerts:`, so nothing is judged; add `drift: {{}}`")
    check_stored(monitor, store)
    found = judge_past(monitor, store, FARTHEST if until is None else until)
    end = 0 if found is None else found.until
    first = _first_request(monitor, store, store.retention.whole_since(monitor.traffic) or 0, end)
    begin = first if since is None else max(since, first)
    if found is None or end <= begin:
        raise InputError(_nothing(monitor, store, first, (first if since is None else since, until)))
    verdicts = tuple(v for v in found.verdicts if v.end > begin)
    step, ends = step_of(monitor.bucket), [v.end for v in found.verdicts]
    whole = first_whole(ends, [v.observed for v in found.verdicts], step)
    return Replay(
        monitor.name,
        str(_measure(monitor)),
        begin,
        end,
        first,
        tuple(_incidents(monitor, found, begin)),
        tuple(_methods(monitor, store, found, (begin, end), first)),
        verdicts,
        step,
        _runs(verdicts, step, [v.mix_shifted for v in verdicts]),
        [*ends, end][whole],
    )


def _first_request(monitor: Monitor, store: Store, since: int, until: int) -> int:
    """Start of the first stored bucket with a request; empty buckets before it are not a past."""
    crowd = store.history(monitor.traffic, since, until, overall_only=True)
    busy = crowd.starts[crowd.slice(OVERALL)[:, REQUESTS] > 0]
    return int(busy[0]) if len(busy) else since


def check_stored(monitor: Monitor, store: Store) -> None:
    """Raises InputError, naming the command to run, if a configured definition has no stored partials."""
    wanted = [monitor.traffic, *(monitor.judged_definition(rule) for rule in monitor.alerts)]
    wanted += [monitor.definition(monitor.drift.measure)] if monitor.drift is not None else []
    lacking = [d.kernel for d in dict.fromkeys(wanted) if store.oldest_bucket(d) is None]
    if lacking:
        raise InputError(
            f"{monitor.name}: nothing is stored of {', '.join(lacking)} as this configuration defines it; "
            f"run rankmon backfill --monitor {monitor.name} --from DATE with it"
        )


def _nothing(monitor: Monitor, store: Store, first: int, asked: tuple[int, int | None]) -> str:
    settled = store.settled_end(monitor.traffic, monitor.bucket)
    if settled is None:
        return f"{monitor.name}: no bucket is final yet, and only final ones are judged; see rankmon status"
    span = f"after {utc(asked[0])}" if asked[1] is None else f"from {utc(asked[0])} to {utc(asked[1])}"
    return (
        f"{monitor.name}: nothing final is stored {span}, only {utc(first)} to {utc(settled)}; take a span of that, "
        f"or run rankmon backfill --monitor {monitor.name} --from DATE"
    )


def _measure(monitor: Monitor) -> Measure:
    return judged(monitor.measures[0] if monitor.drift is None else monitor.drift.measure)


def _incidents(monitor: Monitor, found: Hindsight, since: int) -> Iterator[ReplayedIncident]:
    asked = _asked(monitor, found)
    for stored in found.incidents:
        incident = stored.incident
        if incident.closed_at is not None and incident.closed_at <= since:
            continue
        fired = [p.change for p in found.placed if p.incident == incident.id and p.change.became == "firing"]
        told = next((found.evidence[change] for change in fired if change in found.evidence), None)
        by = tuple(dict.fromkeys(condition(*change.name) for change in fired))
        why, is_before = "" if told is None else sentence(told), incident.opened_at <= since
        grown = next((change.at for change in fired if is_grave_on_data(change.name[0])), None)
        yield ReplayedIncident(incident, by, why, is_before, asked.get(incident.id), grown)


def _asked(monitor: Monitor, found: Hindsight) -> dict[str, int]:
    """Incident -> when it would have asked to retrain: it lasted, no data problem was found, no request is recent."""
    incidents = [stored.incident for stored in found.incidents]
    broken = [
        (i.opened_at, found.until + 1 if i.closed_at is None else i.closed_at) for i in incidents if i.matter == "data"
    ]
    asked: dict[str, int] = {}
    of_the_model = [i for i in incidents if i.matter == "quality" and not _is_held_back(i, found)]
    for incident in of_the_model if monitor.retrain.notify else ():
        for since, until, fallen in _asking(incident, found):
            last = max(asked.values(), default=-monitor.retrain.cooldown)
            at = max(since, asking_since(incident, fallen) + monitor.retrain.after, last + monitor.retrain.cooldown)
            for opened, closed in broken:
                at = closed if opened <= at < closed else at
            if at < until:
                asked[incident.id] = at
                break
    return asked


def _is_held_back(incident: Incident, found: Hindsight) -> bool:
    """Whether a concurrent change may explain all that fired."""
    fired = (p.change for p in found.placed if p.incident == incident.id and p.change.became == "firing")
    known = (found.evidence[change] for change in fired if change in found.evidence)
    return any(isinstance(one, QualityEvidence) and one.concurrent for one in known)


def _asking(incident: Incident, found: Hindsight) -> Iterator[tuple[int, int, list[int]]]:
    """(since, until, when each condition that asks for retraining fell), while any fires."""
    changes = sorted((p.change for p in found.placed if p.incident == incident.id and p.change.retrain), key=_at)
    end, fallen = incident.closed_at or found.until + 1, dict[ConditionName, int]()
    for i, change in enumerate(changes):
        fallen.pop(change.name, None)
        if change.became == "firing":
            fallen[change.name] = change.since
        until = changes[i + 1].at if i + 1 < len(changes) else end
        if fallen and until > change.at:
            yield change.at, until, list(fallen.values())


def _at(change: Change) -> int:
    return change.at


def _runs(verdicts: Sequence[Verdict], step: int, holds: Sequence[bool]) -> tuple[Period, ...]:
    """The runs of steps on which `holds` is true, with the largest effect of the mix in each."""
    found = []
    for is_so, some in groupby(zip(verdicts, holds, strict=True), key=lambda pair: pair[1]):
        if is_so:
            run = [verdict for verdict, _ in some]
            effect = max((v.mix_effect for v in run), key=abs)
            found.append(Period(run[0].end - step, None if run[-1] is verdicts[-1] else run[-1].end, effect))
    return tuple(found)


def _methods(monitor: Monitor, store: Store, found: Hindsight, span: tuple[int, int], first: int) -> Iterator[Method]:
    placed, judged_until = [p.change for p in found.placed], Counter[str]()
    for name, condition_ in found.conditions.items():
        judged_until[name[0]] = max(judged_until[name[0]], condition_.known or 0)
    every = by_matter(placed, monitor.alerts)["quality"]
    has_verdicts = any(v.kind != "not_enough_data" for v in found.verdicts if v.end > span[0])
    if monitor.drift is not None and monitor.alerts:
        yield _method(monitor, "rankmon", "verdicts and alert rules in one incident", every, span)
    if monitor.drift is not None:
        mine = verdict_pages(monitor, found)
        what = f"verdict degraded, {monitor.drift.false_alarm_budget:g} in 90 d"
        yield _method(monitor, "drift", what, mine, span, has_verdicts)
    if gone := [c for c in placed if is_grave_on_data(c.name[0])]:
        yield _method(monitor, "labels gone", "broken data that page on-call after a day", gone, span)
    for rule in monitor.alerts:
        mine = [c for c in placed if c.name[0] == rule.name]
        yield _method(monitor, f"rule {rule.name}", _says(rule), mine, span, judged_until[rule.name] > span[0])
    for rule, what, begin in _plain(monitor, span, first):
        changes, could_judge = _crossings(monitor, store, rule, (begin, span[1]))
        yield _method(monitor, rule.name, what, changes, span, could_judge)


def verdict_pages(monitor: Monitor, found: Hindsight) -> list[Change]:
    """The changes of what verdicts alone page for."""
    every = by_matter([p.change for p in found.placed], monitor.alerts)["quality"]
    return [change for change in every if change.name[0] in condition_names()]


def _method(
    monitor: Monitor, name: str, what: str, changes: Iterable[Change], span: tuple[int, int], could_judge: bool = True
) -> Method:
    since, until = span
    seen = tuple(s for s in incidents_of(monitor, changes) if s.until is None or s.until > since)
    pages, seconds = sum(s.since > since for s in seen), sum(s.within(since, until) for s in seen)
    return Method(name, what, seen, pages, seconds, could_judge)


def incidents_of(monitor: Monitor, changes: Iterable[Change]) -> list[Period]:
    """When incidents of some changes were open, oldest first."""
    return [Period(i.opened_at, i.closed_at) for i in gather(monitor.name, None, changes)[0]]


def _says(rule: Rule) -> str:
    if not isinstance(rule.limit, Drop):
        side = "above" if rule.rises else "below"
        return f"{rule.judged} over {format_duration(rule.window)} {side} {rule.limit.at:g}"
    by = f"{100 * rule.limit.by:g} %" if rule.limit.relative else f"{rule.limit.by:g}"
    return f"{rule.judged} over {format_duration(rule.window)} {'up' if rule.rises else 'down'} by {by}"


def _plain(monitor: Monitor, span: tuple[int, int], first: int) -> Iterator[tuple[Rule, str, int]]:
    """(rule, its description, seconds from which it is judged) of thresholds as one would set them by hand."""
    since, until = span
    width = monitor.bucket
    window, week = -(-DAY // width) * width, -(-WEEK // width) * width
    known = (max(first, since - FIXED_REFERENCE), since)
    if known[1] - known[0] < LEAST_FIXED_REFERENCE:
        known = (first, min(first + LEAST_FIXED_REFERENCE, until))
    fixed = Drop(FIXED, FIXED, True, Baseline(pinned=known))
    days = f"{(known[1] - known[0]) / DAY:.0f} d from {utc(known[0])[:10]}"
    yield (
        _rule(monitor, "fixed threshold", window, fixed),
        f"{100 * FIXED:g} % below the mean of {days}",
        max(since, known[1]),
    )
    trailing = Drop(TRAILING, TRAILING, True, Baseline(trailing=week))
    what = f"{100 * TRAILING:g} % below the previous {format_duration(week)}"
    yield _rule(monitor, "trailing threshold", window, trailing), what, since


def _rule(monitor: Monitor, name: str, window: int, limit: Drop) -> Rule:
    return Rule(name, _measure(monitor), window, limit)


def _crossings(monitor: Monitor, store: Store, rule: Rule, span: tuple[int, int]) -> tuple[list[Change], bool]:
    """(changes of a rule evaluated from the start of the span, whether it could be judged in it)."""
    since, until = span
    assert isinstance(rule.limit, Drop)
    pinned = rule.limit.baseline.pinned
    begin = min(since - rule.reach, since if pinned is None else pinned[0])
    history = store.history(monitor.judged_definition(rule), begin, until, overall_only=True)
    view = View(history, history, monitor.bucket, monitor.min_completeness)
    ends = range(bucket_of(since, monitor.bucket) + monitor.bucket, until + 1, monitor.bucket)
    conditions, changes = track_rule(rule, view, ends, {})
    return changes, any(condition.known is not None for condition in conditions.values())


@dataclass(frozen=True)
class RuleTrial:
    """One alert rule tried on the stored past, and how certain its windows are.

    Attributes:
        since, until: windows that end in (since, until], seconds since 1970.
        method: its incidents as if it were the only rule.
        fired: series -> number of times it fired.
        margins: series -> (drop at which the rule fires, half of the newest window's 95 % interval), in its unit. The
            drop is negative if the newest window is beyond a fixed limit.
        unknown: why the newest window of the first series cannot be judged; empty if it can.
    """

    rule: Rule
    since: int
    until: int
    method: Method
    fired: Counter[SliceKey]
    margins: dict[SliceKey, tuple[float, float]]
    unknown: Unknown

    @property
    def is_too_thin(self) -> bool:
        """Whether no window has the requests that the rule asks for."""
        return not self.method.could_judge and self.unknown == "too few requests"

    @property
    def unsure(self) -> list[SliceKey]:
        """The series whose interval holds the rule's threshold, so that chance decides whether it fires."""
        return [key for key, (drop, half) in self.margins.items() if half > abs(drop)]


def try_rules(monitor: Monitor, store: Store) -> list[RuleTrial]:
    """Each alert rule over the newest `TRIED_OVER` of final buckets. Raises StoreError."""
    past, first = StoredHours(monitor, store), store.retention.whole_since(monitor.traffic)
    settled = store.settled_end(monitor.traffic, monitor.bucket)
    if first is None or settled is None:
        return []
    since = max(_first_request(monitor, store, first, settled), settled - TRIED_OVER)
    return [_tried(monitor, rule, past.view(rule, since, settled), since, settled) for rule in monitor.alerts]


def _tried(monitor: Monitor, rule: Rule, view: View, since: int, until: int) -> RuleTrial:
    ends = range(since + monitor.bucket, until + 1, monitor.bucket)
    conditions, changes = track_rule(rule, view, ends, {})
    margins, keys = dict[SliceKey, tuple[float, float]](), keys_of(rule, view)
    newest = evaluate_rule(rule, view, keys, until)
    for key, seen in zip(keys, newest, strict=True):
        lower, upper, _ = bounds(rule, view, key, until)
        level = seen.value if seen.baseline is None else seen.baseline
        if seen.unknown or lower is None or upper is None or level is None or seen.fires_at is None:
            continue
        room = seen.fires_at - level if rule.rises else level - seen.fires_at
        margins[key] = (room, (upper - lower) / 2)
    fired = Counter(c.key for c in changes if c.became == "firing")
    could_judge = any(condition.known is not None for condition in conditions.values())
    method = _method(monitor, rule.name, _says(rule), changes, (since, until), could_judge)
    unknown: Unknown = newest[0].unknown if newest else "no traffic"
    return RuleTrial(rule, since, until, method, fired, margins, unknown)


def plain(found: Replay) -> dict[str, Any]:
    """A replay as JSON data; instants in seconds since 1970, lengths in seconds."""
    return {
        "monitor": found.monitor,
        "measure": found.measure,
        "since": found.since,
        "until": found.until,
        "judged_from": found.first,
        "pages": len(found.of("quality")),
        "data_incidents": len(found.of("data")),
        "told_on_call_of_data": len(found.told_on_call),
        "incidents": [_incident(one, found.until) for one in found.incidents],
        "verdict_hours": found.hours,
        "mix_shifts": [asdict(period) for period in found.mix],
        "masked": [_times(period) for period in found.masked],
        "methods": [vars(one) | {"incidents": [_times(period) for period in one.incidents]} for one in found.methods],
    }


def _incident(found: ReplayedIncident, until: int) -> dict[str, Any]:
    incident = found.incident
    names = ("id", "matter", "severity", "state", "retrain", "began_at", "opened_at", "closed_at")
    return {name: getattr(incident, name) for name in names} | {
        "asks_to_retrain_at": found.asks_at,
        "on_call_told_at": found.on_call_at,
        "lasted": (incident.closed_at or until) - incident.began_at,
        "open_before": found.is_before,
        "by": list(found.by),
        "why": found.why,
    }


def _times(period: Period) -> dict[str, Any]:
    return {"since": period.since, "until": period.until}
