"""Conditions from verdicts on final buckets: `degraded` for each unit with an open alarm, and broken data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from monitor.conditions.evidence import Evidence, kinds, severity_of
from monitor.conditions.observations import Observations
from monitor.conditions.thresholds import Change, Condition, ConditionName, State
from monitor.conditions.verdict_hours import step_of
from monitor.drift.verdicts import GRAVITY, SLICE_KINDS, Alarm, Verdict
from monitor.types import Drift
from monitor.units import HOUR

DEGRADED = "degraded"

WHOLLY = tuple(kind for kind in GRAVITY if kind not in SLICE_KINDS)
"""Faults of the data of all traffic, most severe first."""
DOUBTED = tuple(kind for kind in GRAVITY if kind not in ("traffic_low", "slice_missing"))
"""Faults by which values may be wrong, most severe first."""
MASKED = frozenset({*WHOLLY, "announced"})
"""Verdicts on hours that the model is not judged by."""

CALM = 6 * HOUR
"""Seconds of sound data needed to resolve."""

LABELS_EXPLAIN = "fewer requests have labels, which explains the fall; the owners of the data have been notified"
"""Why alarms on all traffic and its slices are withdrawn."""

Span = tuple[int, int]
"""Seconds, excluding the first and including the last."""


@dataclass(frozen=True)
class ConditionEvent:
    """A condition's change, with the verdict that caused it; `alarm` as it was last open."""

    change: Change
    verdict: Verdict
    alarm: Alarm | None = None


@dataclass(frozen=True, kw_only=True)
class DataEvidence(Evidence):
    """Broken data, by a verdict.

    Attributes:
        grew: it resolved by becoming a more severe kind.
        became_normal: it resolved because the present state counts as usual.
        began_within: earliest and latest start, seconds.
    """

    new_normal: ClassVar[str] = ""
    """Template for the state that counts as usual from now on."""

    compared_with: str = "what is usual at these hours"
    grew: bool = False
    became_normal: bool = False
    began_within: tuple[int, int] | None = None
    counts_unlabelled: bool = True

    @property
    def is_new_normal(self) -> bool:
        return self.became_normal

    @classmethod
    def holds(cls, verdict: Verdict, drift: Drift) -> bool:
        """Whether a verdict finds it, under the monitor's settings.

        By default where it is the verdict's kind. Another kind looks at figures that do not depend on one, see
        `Verdict`; unless it excludes `MASKED` kinds, it can be open together with a data fault.
        """
        return verdict.kind == cls.kind

    @classmethod
    def is_absent(cls, verdict: Verdict) -> bool:
        """Whether a verdict shows that it is over: a more severe kind hides it, and missing figures show nothing.

        Without a baseline it is enough that requests, or labels, arrive again.
        """
        if verdict.kind in GRAVITY and cls.kind in GRAVITY:
            return GRAVITY.index(verdict.kind) > GRAVITY.index(cls.kind)
        if verdict.kind == "announced":
            return False
        if verdict.kind != "not_enough_data":
            return True
        came = verdict.coverage if cls.is_short_of_labels else verdict.requests
        return verdict.requests_expected is None and bool(came)

    @classmethod
    def is_back(cls, verdict: Verdict) -> bool:
        """Whether an hour counts towards its end."""
        return True

    @classmethod
    def since_of(cls, verdict: Verdict) -> int:
        """End of the first step with it, seconds, as known at the first verdict that finds it."""
        return verdict.end

    @classmethod
    def of_verdict(cls, seen: Observations, verdict: Verdict, since: int) -> Self:
        """The evidence at a verdict; `since` ends the first step with it."""
        step, labels = step_of(seen.width), verdict.labels
        span = (verdict.span if labels is None else labels.span) or step
        return cls(
            rule=cls.kind,
            severity=severity_of(seen.drift, cls.kind),
            judged="requests",
            end=verdict.fault_end or verdict.end,
            window=span,
            since=since,
            began_within=None if labels is None else (since - step, since),
            requests=round(verdict.requests),
            value=verdict.requests,
            before=verdict.requests_expected,
            coverage=verdict.coverage,
            coverage_before=verdict.coverage_expected,
            counts_unlabelled=seen.has_events,
        )

    def calming(self, condition: Condition, step: int) -> Self:
        """With how long the data have been sound."""
        return replace(self, well_for=condition.streak * step, well_needed=CALM)

    def resolved(self, seen: Observations, by: ConditionEvent) -> Self:
        """With why it resolved, if nothing recovered, and what a baseline still needs."""
        verdict = by.verdict
        found = replace(self, lacks=verdict.lacks) if verdict.kind == "not_enough_data" else self
        if self.grows_into and self.grows_into == verdict.kind:
            return replace(found, grew=True)
        end = max(self.end, by.change.at - max(CALM, step_of(seen.width)))
        return found.settled(seen, end, by.change.at)

    def settled(self, seen: Observations, since: int, until: int) -> Self:
        """With what became normal in the hours [since, until) that resolved it."""
        return self


def data_kinds() -> list[type[DataEvidence]]:
    """The kinds of broken data, by name."""
    return [kind for _, kind in sorted(kinds().items()) if issubclass(kind, DataEvidence)]


def verdict_names() -> frozenset[str]:
    """Names of the conditions from verdicts on final buckets."""
    return frozenset({DEGRADED, *(kind.kind for kind in data_kinds())})


def track_verdicts(
    drift: Drift,
    step: int,
    verdicts: Sequence[Verdict],
    before: Mapping[ConditionName, Condition],
    ahead: Sequence[Span] = (),
) -> tuple[dict[ConditionName, Condition], list[ConditionEvent]]:
    """The conditions after some verdicts in order, and their changes.

    Args:
        ahead: times in which alarms concern a former level and are left out.
    """
    conditions, changes = dict(before), list[ConditionEvent]()
    for verdict in verdicts:
        is_ahead = any(since < verdict.end <= until for since, until in ahead)
        alarms = {} if is_ahead else dict(_alarms(drift, step, verdict))
        after = alarms | dict(_data(drift, step, verdict, conditions))
        for name in sorted(conditions.keys() | after.keys()):
            was, now = conditions.get(name, Condition()), after.get(name, Condition())
            if was.state != now.state and "firing" in (was.state, now.state):
                alarm = next((a for a in verdict.alarms if name_of(drift, a.unit) == name), None)
                change = _change(drift, name, was, now, verdict.end)
                is_left = name in _withdrawn(drift, verdict) or (is_ahead and name[0] == DEGRADED)
                if now.state != "firing" and is_left:
                    change = replace(change, became="withdrawn")
                changes.append(ConditionEvent(change, verdict, alarm))
        conditions = {name: condition for name, condition in after.items() if condition.state != "ok"}
    return conditions, changes


def close_former_alarms(
    drift: Drift,
    verdicts: Sequence[Verdict],
    after: Mapping[ConditionName, Condition],
    until: int,
    ahead: Sequence[Span],
) -> tuple[dict[ConditionName, Condition], list[ConditionEvent]]:
    """The conditions without alarms on a level that is former by `until`, seconds, and their closing changes."""
    if not verdicts or not any(begin <= until < end for begin, end in ahead):
        return dict(after), []
    kept, changes = {name: c for name, c in after.items() if name[0] != DEGRADED}, list[ConditionEvent]()
    for name in sorted(after.keys() - kept.keys()):
        if after[name].state == "firing":
            change = _change(drift, name, after[name], Condition(), until)
            changes.append(ConditionEvent(replace(change, became="withdrawn"), verdicts[-1]))
    return kept, changes


def name_of(drift: Drift, unit: str) -> ConditionName:
    """Name of the condition of a unit's alarm."""
    return (DEGRADED, drift.mix_by or "", unit) if unit else (DEGRADED, "", "")


def _withdrawn(drift: Drift, verdict: Verdict) -> set[ConditionName]:
    return {name_of(drift, change.unit) for change in verdict.changes if change.became == "withdrawn"}


def do_labels_explain(verdict: Verdict) -> bool:
    """Whether a verdict withdraws all alarms because missing labels explain the fall."""
    return verdict.is_data and any(not change.unit and change.became == "withdrawn" for change in verdict.changes)


def _alarms(drift: Drift, step: int, verdict: Verdict) -> Iterator[tuple[ConditionName, Condition]]:
    for unit in verdict.pending:
        yield name_of(drift, unit), Condition("pending", verdict.end, 0, verdict.end)
    for alarm in verdict.alarms:
        yield name_of(drift, alarm.unit), Condition("firing", alarm.fell_at + step, 0, verdict.end)


def _data(
    drift: Drift, step: int, verdict: Verdict, before: Mapping[ConditionName, Condition]
) -> Iterator[tuple[ConditionName, Condition]]:
    for kind in data_kinds():
        name = (kind.kind, "", "")
        was = before.get(name)
        if kind.holds(verdict, drift):
            yield name, Condition("firing", kind.since_of(verdict) if was is None else was.since, 0, verdict.end)
        elif was is not None and (not kind.grows_into or kind.grows_into != verdict.kind):
            is_absent = kind.is_absent(verdict)
            calm = was.streak + (is_absent and kind.is_back(verdict))
            if calm * step < CALM:
                yield name, replace(was, streak=calm, known=verdict.end if is_absent else was.known)


def _change(drift: Drift, name: ConditionName, was: Condition, now: Condition, at: int) -> Change:
    since = was.since if now.since is None else now.since
    asks = drift.retrain and name[0] == DEGRADED
    to: State = now.state if now.state == "firing" else "ok"
    return Change(name, severity_of(drift, name[0]), asks, was.state, to, at if since is None else since, at)
