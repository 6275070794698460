"""The model got worse: an alarm on the mean of all traffic or of a slice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from monitor.conditions.concurrent import concurrent_changes
from monitor.conditions.evidence import AS_MUCH, MOST_SLICES, QualityEvidence, SliceFall, kind_of, register, severity_of
from monitor.conditions.observations import Observations
from monitor.conditions.thresholds import Condition, ConditionName
from monitor.conditions.verdict_hours import judged, step_of
from monitor.conditions.verdicts import DEGRADED, WHOLLY, ConditionEvent, DataEvidence, name_of
from monitor.conditions.versions import NewVersion, WeakVersion, begun_with, served_until, weak
from monitor.drift.constants import LIKELIER_LOG
from monitor.drift.verdicts import SLICE_KINDS, Alarm, Split, Verdict
from monitor.series.windows import SliceKey
from monitor.types import OVERALL, Drift
from monitor.units import DAY

CLEAR_SHARE, CLEAR_Z = 0.1, -2.0
"""A slice is named from this share of the fall within slices, and a fall of this many standard errors."""


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Where the change of all traffic came from when the alarm opened: `value - before = within + mix`.

    Attributes:
        part: of a slice's fall, the effect of its own change; None on all traffic.
        share, share_before: that slice's share of the requests.
    """

    within: float
    mix: float
    before: float
    value: float
    part: float | None = None
    share_before: float = 0.0
    share: float = 0.0


@register
class Degraded(QualityEvidence):
    """A fall of the mean below its baseline that is too large for chance.

    Attributes:
        is_paused: the data are bad now, and such hours are left out.
        leaves_out: slices have bad data now, and are left out.
        new_version: the version that began to serve about when the fall began.
        weak_version: on all traffic, a version that causes a good part of the fall.
        began_within: earliest and latest start, seconds.
        below_reference: once resolved, relative change of the mean against the reference, if clearly lower.
    """

    kind: ClassVar[str] = DEGRADED
    title: ClassVar[str] = "degraded"
    is_grave: ClassVar[bool] = True
    fired: ClassVar[str] = "verdict degraded: significantly below the baseline"
    recovered: ClassVar[str] = (
        "{{ 'back at the baseline' if it.below_reference is none else 'back at its recent level' }}{{ it|below }}"
        "{% if it.value is not none %}: {{ it.value|written(it) }} in {{ it.requests|counted('request') }} "
        "{{ it|span }}{% if it.before is not none %}, {{ it.before|written(it) }} expected{% endif %}{% endif %}"
    )
    text: ClassVar[str] = """
{% include "measure.txt" %}.
{%- if it.fires and not is_over %}
 Statistically significant
{%- if it.is_paused %}. Hours with bad data, such as now, are left out
{%- elif it.leaves_out %}{{ ". Slices with bad data or without requests are left out" if not it.dimension }}
{%- elif it.fell_as_labels %}. Label coverage fell by about as much: labels may be lost
{%- elif not (it.concurrent or is_doubted) %}; no data problem found{% endif %}.
{%- endif %}
{%- if not is_short %} Requests with nothing relevant count as 0.{% endif %}"""

    compared_with: str = "the baseline for these hours"
    is_paused: bool = False
    leaves_out: bool = False
    new_version: NewVersion | None = None
    weak_version: WeakVersion | None = None
    began_within: tuple[int, int] | None = None
    split: Decomposition | None = None
    below_reference: float | None = None

    def calming(self, condition: Condition, step: int) -> Degraded:
        """Unchanged: an alarm tracks its own recovery."""
        return self

    def resolved(self, seen: Observations, by: ConditionEvent) -> Degraded:
        """With what a baseline still needs."""
        return replace(self, lacks=by.verdict.lacks) if by.verdict.kind == "not_enough_data" else self

    @property
    def fell_as_labels(self) -> bool:
        """Whether fewer labels may explain the whole fall, whether lost or due to worse lists."""
        now, before, change = self.coverage, self.coverage_before, self.change
        if not self.counts_unlabelled or self.is_recovering or now is None or not before or change is None:
            return False
        return -1 < change < 0 and now / before <= (1 + change) ** AS_MUCH


def evidence_at(
    seen: Observations, name: ConditionName, verdict: Verdict, alarm: Alarm | None, since: int
) -> Degraded | DataEvidence:
    """The evidence of a condition at a verdict; without an `alarm`, of one that closed.

    Args:
        since: end of the first fallen step, seconds.
    """
    kind = kind_of(name[0])
    if kind is not None and issubclass(kind, DataEvidence):
        return kind.of_verdict(seen, verdict, since)
    return _of_end(seen, name, verdict, since) if alarm is None else _of_alarm(seen, name, verdict, alarm)


def _of_alarm(seen: Observations, name: ConditionName, verdict: Verdict, alarm: Alarm) -> Degraded:
    key = name[1:]
    end = verdict.end if alarm.back_since is None else alarm.back_since
    found = replace(
        _measured(seen, key, verdict, (alarm.fell_at, end), alarm.value, alarm.requests),
        since=alarm.fell_at + step_of(seen.width),
        before=alarm.before,
        threshold=None if alarm.before is None else alarm.before * (1 - alarm.tolerated),
        is_paused=verdict.kind in WHOLLY,
        leaves_out=verdict.kind in SLICE_KINDS,
        well_for=_well_for(seen, key, alarm, verdict.end),
        new_version=_new_version(seen, verdict, alarm),
        weak_version=_weak_version(seen, verdict, alarm),
        began_within=_within(alarm, step_of(seen.width)),
        concurrent=concurrent_changes(seen, key, alarm, end),
        counts_unlabelled=seen.has_events,
    )
    if verdict.split is None or alarm.opened_at != verdict.end:
        return found
    return _with_split(found, verdict.split, seen.drift)


def _measured(
    seen: Observations, key: SliceKey, verdict: Verdict, span: tuple[int, int], value: float | None, requests: int
) -> Degraded:
    """What was measured of a slice in [since, until) seconds, the fall's `span`."""
    since, end = span
    window = max(end - since, seen.width)
    lower, upper, method = seen.bounds(key, window, end, value, requests)
    now, usual = seen.coverage(verdict, since, end, key)
    return Degraded(
        rule=DEGRADED,
        severity=severity_of(seen.drift, DEGRADED),
        judged=str(judged(seen.drift.measure)),
        dimension=key[0],
        slice=key[1],
        end=end,
        window=window,
        since=since,
        requests=requests,
        value=value,
        lower=lower,
        upper=upper,
        interval=method,
        coverage=now,
        coverage_before=usual,
    )


def _within(alarm: Alarm, step: int) -> tuple[int, int] | None:
    return None if alarm.began_within is None else (alarm.began_within[0], alarm.began_within[1] + step)


def _new_version(seen: Observations, verdict: Verdict, alarm: Alarm) -> NewVersion | None:
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


def _weak_version(seen: Observations, verdict: Verdict, alarm: Alarm) -> WeakVersion | None:
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


def _well_for(seen: Observations, key: SliceKey, alarm: Alarm, until: int) -> int:
    """Seconds for which it has been well; 0 while a few requests of a night may say so by chance."""
    if alarm.back_since is None or alarm.recovery < LIKELIER_LOG:
        return 0
    return max(seen.judged_for(key, alarm.back_since, until), step_of(seen.width))


def _with_split(found: Degraded, split: Split, drift: Drift) -> Degraded:
    whole = Decomposition(split.within, split.mix, split.before, split.value)
    if found.dimension:
        part = next(p for p in split.parts if p.slice == found.slice)
        of_it = replace(whole, part=part.within, share_before=part.share_before, share=part.share)
        return replace(found, split=of_it)
    fell = sorted((p for p in split.parts if p.within < 0 and p.slice), key=lambda p: p.within)
    clear = [p for p in fell if p.within <= CLEAR_SHARE * split.within and p.z <= CLEAR_Z]
    falls = (SliceFall(drift.mix_by or "", p.slice, p.before, p.value, p.share, p.z) for p in clear or fell[:1])
    return replace(found, slices=tuple(f for f in falls if not f.is_everywhere)[:MOST_SLICES], split=whole)


def _of_end(seen: Observations, name: ConditionName, verdict: Verdict, since: int) -> Degraded:
    key = name[1:]
    closed = next((c for c in verdict.changes if name_of(seen.drift, c.unit) == name), None)
    overall = next((c for c in verdict.changes if not c.unit), None)
    begin = next((c.since for c in (closed, overall) if c is not None and c.since is not None), verdict.end - DAY)
    value, requests = seen.mean(key, min(begin, verdict.end - seen.width), verdict.end)
    before = verdict.expected if key == OVERALL else None
    if closed is not None and closed.requests:
        value, before, requests = closed.value, closed.before, closed.requests
    least = None if before is None or closed is None else before * (1 - closed.tolerated)
    return replace(
        _measured(seen, key, verdict, (begin, verdict.end), value, requests),
        since=since,
        before=before,
        threshold=least if least is not None and value is not None and value < least else None,
        below_reference=None if closed is None else closed.below,
    )
