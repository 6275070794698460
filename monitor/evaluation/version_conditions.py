"""The conditions on new model versions, each compared with the others serving at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from monitor.causes.newcomers import YOUNG, newcomer
from monitor.causes.version_mix import LEAST_REQUESTS
from monitor.conditions.checkpoint import Announcement
from monitor.conditions.evidence import severity_of
from monitor.conditions.kinds.version_worse import VersionWorse, compared
from monitor.conditions.thresholds import Change, Condition, ConditionName, State
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.constants import NEARLY_ALL
from monitor.evaluation.fold import Beginning, ConditionSet, EventBatch, FinalHours
from monitor.series import partials as b
from monitor.series.intervals import REACH
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL, Drift, Monitor
from monitor.units import DAY, WEEK

USUAL_AFTER = REACH - WEEK
"""Seconds since a version began until it counts as usual, however much worse it was."""
NO_LONGER_NEW = "almost all requests have had it for so long that it now counts as normal"
ALONE = "no other version serves its slices now, so there is nothing to compare it with"
GONE = "it has not served for weeks"
TOO_FEW = "it and the others have too few requests in common slices to compare"

Compared = dict[ConditionName, VersionWorse | str]
"""Each new version compared with the others, or why one that was found worse is not."""


@dataclass(frozen=True)
class VersionConditions(ConditionSet):
    """One condition per new version, a value of `dimension`.

    Announced hours are left out as they are known at the time: what is announced later changes nothing of the past.
    """

    monitor: Monitor
    drift: Drift
    dimension: str
    announced: Sequence[Announcement]

    @cached_property
    def identity(self) -> str:
        return f"v{self.monitor.drift_identity(self.drift, [], [])[1:]}"

    def has(self, name: ConditionName) -> bool:
        return name[0] == VersionWorse.kind

    def judges(self, name: ConditionName) -> bool:
        return name[1] in ("", self.dimension)

    def advance(
        self, past: FinalHours, begin: Beginning, until: int
    ) -> tuple[Mapping[ConditionName, Condition], EventBatch]:
        lived_until = begin.since if begin.lived_until is None else begin.lived_until
        after, evidence_of, events = dict(begin.conditions), dict[Change, VersionWorse | str](), EventBatch()
        step, newest = step_of(self.monitor.bucket), Compared()
        for ends in chain(past.windows(begin.since, lived_until), past.windows(lived_until, until)):
            steps = [end for end in ends if end % step == 0]
            history = self._history(past, steps[0], steps[-1]) if steps else None
            for end in steps:
                assert history is not None
                newest = self._compared(history, after, end)
                after, changes = self._after(after, newest, end)
                evidence_of |= changes
        for change, lived in begin.events(list(evidence_of), lived_until + self.monitor.bucket).items():
            events.changes.append(lived)
            evidence = evidence_of[change]
            if isinstance(evidence, str):
                events.reasons[lived] = evidence
            else:
                events.evidence[lived] = evidence
        by_name = {name: one for name, one in newest.items() if not isinstance(one, str)}
        events.newest |= {name: one for name, one in by_name.items() if name in after and after[name].state == "firing"}
        # Kept without a version too: else it would count as new each time.
        return after or {(VersionWorse.kind, "", ""): Condition()}, events

    def _history(self, past: FinalHours, since: int, until: int) -> History:
        """What is judged, as far back as versions are compared."""
        definition, step = self.monitor.definition(judged(self.drift.measure)), step_of(self.monitor.bucket)
        found = past.history(definition, since - REACH, until)
        spans = (range(one.since + step, one.until + step, step) for one in self.announced)
        return found.without([end for span in spans for end in span], step)

    def _compared(self, history: History, before: Mapping[ConditionName, Condition], end: int) -> Compared:
        """The new versions, and those found worse before, by the condition's name."""
        by, versions = self.drift.mix_by or "", Compared()
        for key in history.slices:
            if key[0] != self.dimension or key[1] in b.RESERVED:
                continue
            name = (VersionWorse.kind, *key)
            # What was found once is not lost for the few requests by which its number of comparable ones falls again.
            young, least = (USUAL_AFTER, LEAST_REQUESTS / 2) if name in before else (YOUNG, LEAST_REQUESTS)
            recent = history.between(end - young - WEEK, end)
            one = newcomer(recent, key, "" if by == key[0] else by, end, young, least)
            if one is not None and not one.is_before:
                versions[name] = compared(self.drift, one, recent, end, self.monitor.bucket)
            elif name in before:
                versions[name] = ALONE if one is not None else _why_unknown(history.between(end - DAY, end), key)
        return versions

    def _after(
        self, before: Mapping[ConditionName, Condition], newest: Compared, end: int
    ) -> tuple[dict[ConditionName, Condition], dict[Change, VersionWorse | str]]:
        after, changes = dict[ConditionName, Condition](), dict[Change, VersionWorse | str]()
        number = sum(not isinstance(one, str) for one in newest.values())
        for name in sorted(before.keys() | newest.keys()):
            was, one = before.get(name, Condition()), newest.get(name, GONE)
            fired, began = was.state == "firing", None if isinstance(one, str) else one.since
            fires = not isinstance(one, str) and one.holds(self.drift, number, fired)
            since = next((s for s in (was.since, began) if s is not None), end)
            if fires:
                after[name] = Condition("firing", since, 0, end)
            if fires != fired:
                became: State = "firing" if fires else "withdrawn" if isinstance(one, str) else "ok"
                changes[Change(name, severity_of(self.drift, name[0]), False, was.state, became, since, end)] = one
        return after, changes


def _why_unknown(last_day: History, key: SliceKey) -> str:
    of_it, every = (float(last_day.slice(one)[:, b.REQUESTS].sum()) for one in (key, OVERALL))
    return NO_LONGER_NEW if of_it > NEARLY_ALL * every else TOO_FEW
