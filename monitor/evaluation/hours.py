"""The stored hours of a monitor, and its baseline resets and announcements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter

from monitor.conditions.checkpoint import Announcement, BaselineReset, VerdictCheckpoint, announced_before
from monitor.conditions.examined import Examined
from monitor.conditions.kinds.rows_refused import Refused
from monitor.conditions.rules import Drop, Rule
from monitor.conditions.thresholds import View
from monitor.conditions.verdict_hours import hours, step_of
from monitor.conditions.versions import rollouts
from monitor.drift.series import Hours
from monitor.drift.verdicts import Verdict, VerdictPoint
from monitor.errors import InputError, Stopped
from monitor.series.intervals import REACH
from monitor.series.partials import REQUESTS, bucket_of
from monitor.series.windows import History
from monitor.store import Store
from monitor.types import FARTHEST, OVERALL, Definition, Drift, Monitor
from monitor.units import DAY

SOME = 500
"""Windows evaluated between two checks for a stop request; some tenths of a second."""


class StoredHours:
    """The stored hours of a monitor, as the fold reads them. Raises StoreError, and Stopped once `is_over`."""

    def __init__(self, monitor: Monitor, store: Store, is_over: Callable[[], bool] = bool) -> None:
        self._monitor = monitor
        self._store = store
        self._is_over = is_over
        self._read: dict[tuple[Definition, int, int, bool], History] = {}

    @cached_property
    def first(self) -> int | None:
        return self._store.retention.whole_since(self._monitor.traffic)

    @cached_property
    def rolled_up(self) -> tuple[VerdictCheckpoint | None, int]:
        monitor, drift = self._monitor, drift_of(self._monitor)
        both = monitor.definition(drift.measure), monitor.traffic
        found = (self._store.retention.rolled_up(d, 0, FARTHEST) for d in both)
        return self._store.verdicts.oldest_checkpoint(monitor.name), max(
            [0, *(span[1] for span in found if span is not None)]
        )

    @cached_property
    def examined(self) -> Sequence[Examined]:
        monitor = self._monitor
        return [] if monitor.corrected is None else self._store.verdicts.examined(monitor.name)

    def windows(self, since: int, until: int) -> Iterator[range]:
        ends = range(since + self._monitor.bucket, until + 1, self._monitor.bucket)
        for at in self._some(len(ends)):
            yield ends[at : at + SOME]

    def _some(self, number: int) -> Iterator[int]:
        for at in range(0, number, SOME):
            if self._is_over():
                raise Stopped(f"monitor {self._monitor.name}: evaluation was stopped")
            yield at

    def view(self, rule: Rule, since: int, until: int, overall_only: bool = False) -> View:
        monitor, read = self._monitor, partial(self.history, overall_only=overall_only)
        begin = since - max(r.reach + r.window for r in monitor.alerts) - REACH
        return view_of(monitor, monitor.judged_definition(rule), (rule,), read, begin, until)

    def history(self, definition: Definition, since: int, until: int, overall_only: bool = False) -> History:
        asked = (definition, since, until, overall_only)
        if asked not in self._read:
            self._read[asked] = self._store.history(*asked)
        return self._read[asked]

    def steps(self, since: int, until: int) -> Iterator[Hours]:
        monitor, drift = self._monitor, drift_of(self._monitor)
        history = self._store.history(monitor.definition(drift.measure), since, until)
        traffic = self._store.history(monitor.traffic, since, until)
        refused = self._store.refused_by_bucket(monitor.traffic, since, until)
        known = hours(drift, monitor.bucket, history, traffic, refused, monitor.has_events)
        for at in self._some(len(known.starts)):
            yield known.rows(at, at + SOME)

    def rollouts(self, since: int, until: int) -> tuple[tuple[int, float], ...]:
        version, step = self._monitor.version_slice, step_of(self._monitor.bucket)
        if version is None:
            return ()
        traffic = self._store.history(self._monitor.traffic, since - 3 * DAY, until)
        return rollouts(traffic, version.dimension, step, since - DAY, until)

    def refused(self, since: int, until: int) -> Refused:
        return self._store.refused_by_slice(self._monitor.traffic, since, until)

    def drawn(self, since: int, until: int) -> Sequence[VerdictPoint]:
        return self._store.verdicts.drawn(self._monitor.name, since, until)

    def newest(self, kind: str | None = None) -> Verdict | None:
        return self._store.verdicts.newest(self._monitor.name, kind)

    def requests_since(self, label: int) -> int:
        return sum(self._requests_after(label).values())

    def empty_since(self, request: int) -> list[int]:
        found, states = self._requests_after(request), self._store.states(self._monitor.traffic, request)
        return [start for start, number in found.items() if not number and states[start].mark != "awaited"]

    def _requests_after(self, instant: int) -> dict[int, int]:
        """Bucket start -> requests, of the buckets after the one of an instant."""
        since = bucket_of(instant + self._monitor.bucket, self._monitor.bucket)
        history = self._store.history(self._monitor.traffic, since, FARTHEST, overall_only=True)
        requests = history.slice(OVERALL)[:, REQUESTS].astype(int)
        return dict(zip(history.starts.tolist(), requests.tolist(), strict=True))


def view_of(
    monitor: Monitor,
    definition: Definition,
    rules: Sequence[Rule],
    read: Callable[[Definition, int, int], History],
    begin: int,
    until: int,
) -> View:
    """A series and the traffic of [begin, until) seconds, and before it the pinned baselines of its rules."""
    history = read(definition, begin, until)
    for rule in rules:
        pinned = rule.limit.baseline.pinned if isinstance(rule.limit, Drop) else None
        first = min([begin, *history.starts[:1].tolist()])
        if pinned is not None and pinned[0] < first:
            history = history.after(read(definition, pinned[0], min(pinned[1], first)))
    traffic = read(monitor.traffic, begin, until)
    personal = frozenset(s.dimension for s in monitor.slices if s.column == monitor.rankings.query)
    return View(history, traffic, monitor.bucket, monitor.min_completeness, monitor.by_judgments, personal)


def drift_of(monitor: Monitor) -> Drift:
    """A monitor's drift settings. Raises InputError if it has none."""
    if monitor.drift is None:
        raise InputError(f"{monitor.name} has no `drift:`, so it has no baseline; add `drift: {{}}` to it")
    return monitor.drift


def resets_of(monitor: Monitor, store: Store) -> list[BaselineReset]:
    """A monitor's baseline resets, oldest first, without those the configuration leaves out."""
    if monitor.drift is None:
        return []
    least = monitor.drift.baseline_from or 0
    return [reset for reset in store.verdicts.baselines(monitor.name) if reset.since > least]


def announced_of(monitor: Monitor, store: Store, until: int) -> list[Announcement]:
    """What was announced for a monitor, by its calendar or by people, of steps that end by `until`, seconds."""
    return with_calendar(monitor, store.verdicts.announced(monitor.name), until)


def with_calendar(monitor: Monitor, by_people: Iterable[Announcement], until: int = FARTHEST) -> list[Announcement]:
    """What the calendar and people announced of steps that end by `until`; empty for a monitor without verdicts."""
    if monitor.drift is None:
        return []
    of_calendar = [Announcement(a.since, a.until, "the calendar", a.note or "") for a in monitor.drift.calendar]
    found = [in_steps(monitor, one) for one in (*of_calendar, *by_people)]
    return announced_before(sorted(found, key=attrgetter("since", "until")), until - until % step_of(monitor.bucket))


def in_steps(monitor: Monitor, one: Announcement) -> Announcement:
    """An announcement of the whole steps that it touches."""
    step = step_of(monitor.bucket)
    return replace(one, since=one.since - one.since % step, until=-(-one.until // step) * step)
