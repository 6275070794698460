"""What verdicts amount to: conditions beside those of the alert rules.

A verdict makes a condition of its own name: `degraded` one for each unit whose alarm is open (overall, or a slice), and
each kind of broken data one on all traffic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.conditions.arrivals import ARRIVALS
from monitor.conditions.rules import Severity
from monitor.conditions.thresholds import Change, Condition, ConditionName, State
from monitor.drift.constants import TRAFFIC_RATIO
from monitor.drift.series import HOUR
from monitor.drift.verdicts import DATA_KINDS, GRAVITY, SLICE_KINDS, Alarm, Verdict
from monitor.types import Drift

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

CALM = 6 * HOUR
"""Seconds for which data must be sound until they are so for certain."""

BACK = (1 + TRAFFIC_RATIO) / 2
"""Of the requests that are usual, from where on traffic that was low is back. What is expected of it follows it down:
at about half of that, where it counts as low, it would be over and begin anew by chance for days."""

GROWS = {SUSPECT: COLLAPSED, SLICE_SUSPECT: SLICE_COLLAPSED}
"""What a verdict on the data becomes where it lasts."""
COLLAPSES = frozenset(GROWS.values())

Span = tuple[int, int]
"""Seconds, without the first and with the last."""


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
