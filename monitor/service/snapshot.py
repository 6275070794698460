"""A monitor's current state as one frozen value, for `/metrics`, the page and `status`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from monitor.causes.newcomers import Newcomer, newcomers
from monitor.conditions.arrivals import shown_as_verdict
from monitor.conditions.assessment import in_order
from monitor.conditions.checkpoint import Announcement
from monitor.conditions.evidence import MATTERS, Matter, condition_names
from monitor.conditions.examined import ExaminationCheck
from monitor.conditions.rules import Rule
from monitor.conditions.thresholds import Condition, ConditionName, Evaluation, evaluate_rule, keys_of
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.verdicts import Verdict
from monitor.evaluation.hours import resets_of, view_of, with_calendar
from monitor.evaluation.retraining import asks, in_the_way
from monitor.measures.measure import Measure
from monitor.messages.explanation import on_retraining
from monitor.messages.words import lasting, utc
from monitor.series.intervals import REACH
from monitor.series.partials import REQUESTS, RESERVED, UNMATCHED, bucket_of, without_rank_one
from monitor.series.slices import FullDimension
from monitor.series.windows import History, Point, SliceKey, latest_final_end, points
from monitor.service.history import SeriesHistory, VerdictHistory
from monitor.service.slice_comparison import SliceComparison, compare
from monitor.store import Holding, Progress, Store
from monitor.store.alerts import AlertState
from monitor.store.alerts import StoredIncident as StoredIncident
from monitor.store.store import HARMLESS
from monitor.types import FARTHEST, MODEL_VERSION, OTHER, OVERALL, Definition, Judgments, Monitor, format_duration

MOST_INCIDENTS = 30
"""Incidents per monitor in a snapshot."""


@dataclass(frozen=True)
class Series:
    """The newest final windows of one measure and length, overall and by slice, and later provisional ones."""

    measure: Measure
    definition: Definition
    length: int
    final: tuple[Point, ...] = ()
    provisional: tuple[Point, ...] = ()
    comparison: SliceComparison = field(default_factory=SliceComparison)


@dataclass(frozen=True)
class RuleReading:
    """A rule's newest evaluation on one slice, and its resulting state."""

    rule: Rule
    key: SliceKey
    evaluation: Evaluation
    condition: Condition


@dataclass(frozen=True)
class MonitorSnapshot:
    """One monitor's state; instants in seconds.

    Attributes:
        refused: reason -> rows refused in the longest window.
        unmatched: events for which no impression was found; None where they are not counted.
        requests, without_rank_one: requests in the longest window, and those that showed something, but nothing at
            rank 1.
        future_rows, due_buckets: rows dated in the future, buckets left for the next cycle; None before the daemon's
            first.
        opened: the open incidents, in the order of `MATTERS`.
        incidents: newest first; always includes the open ones.
        judged_until: end of the last judged window.
        recommends_retraining: retraining was recommended for the open incident, and the reason still holds.
        no_retraining_as: why it is not recommended although a firing rule asks for it.
        silenced_until: real seconds since 1970.
        histories, verdict_history: for charts; only in a daemon's snapshot.
        refused_then: for incidents about refused rows, id -> reason -> rows refused while it lasted.
        places: dimension -> values with a series of their own.
        announced: what is announced and not over; `noted` is all that ever was.
        examined: the newest check of where people look.
        came: (start, version of the model) of each that began to serve in the time of charts, oldest first.
        newcomers: slices and versions that began lately, by what the verdicts judge; worst first.
    """

    monitor: Monitor
    taken_at: float
    series: tuple[Series, ...] = ()
    progress: Progress = field(default_factory=Progress)
    provisional_buckets: int = 0
    refused: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    unmatched: int | None = None
    requests: int = 0
    without_rank_one: int = 0
    future_rows: int | None = None
    due_buckets: int | None = None
    readings: tuple[RuleReading, ...] = ()
    opened: MappingProxyType[Matter, StoredIncident] = field(default_factory=lambda: MappingProxyType({}))
    incidents: tuple[StoredIncident, ...] = ()
    judged_until: int | None = None
    recommends_retraining: bool = False
    no_retraining_as: str = ""
    silenced_until: float | None = None
    histories: tuple[SeriesHistory, ...] = ()
    verdict_history: VerdictHistory | None = None
    verdict: Verdict | None = None
    verdict_conditions: MappingProxyType[ConditionName, Condition] = field(default_factory=lambda: MappingProxyType({}))
    refused_then: MappingProxyType[str, dict[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    holding: Holding | None = None
    places: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    labels: MappingProxyType[str, int] = field(default_factory=lambda: MappingProxyType({}))
    came: tuple[tuple[int, str], ...] = ()
    newcomers: tuple[Newcomer, ...] = ()
    announced: tuple[Announcement, ...] = ()
    noted: tuple[Announcement, ...] = ()
    examined: ExaminationCheck | None = None

    @property
    def incident(self) -> StoredIncident | None:
        """The open incident on quality."""
        return self.opened.get("quality")

    @property
    def full(self) -> list[FullDimension]:
        """Dimensions without a free place for new values."""
        longest = max(self.monitor.windows)
        points = next((s.final for s in self.series if s.length == longest), ())
        requests = {(p.dimension, p.slice): p.requests for p in points}
        return [
            FullDimension(
                one.dimension,
                one.max_values,
                format_duration(longest),
                requests[one.dimension, OTHER],
                requests[OVERALL],
            )
            for one in self.monitor.slices
            if self.places.get(one.dimension, 0) >= one.max_values and requests.get((one.dimension, OTHER))
        ]

    @property
    def on_retraining(self) -> str:
        """The retraining recommendation, with what to check first; empty without one."""
        if not self.recommends_retraining or self.incident is None:
            return ""
        return on_retraining(in_order(self.incident.findings, self.incident.incident.opened_at))

    @property
    def not_judged_as(self) -> str:
        """Why neither a rule nor a verdict can judge all traffic; empty if one can, or there is none."""
        why: list[str] = [r.evaluation.unknown for r in self.readings if r.key == OVERALL]
        if self.monitor.drift is not None:
            missing = self.verdict is None or self.verdict_kind == "not_enough_data"
            lacks = "" if self.verdict is None or not self.verdict.lacks else f", still needs {self.verdict.lacks}"
            why.append(f"not enough data{lacks}" if missing else "")
        return ", ".join(dict.fromkeys(why)) if why and all(why) else ""

    @property
    def verdict_kind(self) -> str:
        """The current verdict; data that do not arrive now go before the newest one. Empty if there is none."""
        firing = {name[0] for name, condition in self.verdict_conditions.items() if condition.state == "firing"}
        absent = next((kind for kind in shown_as_verdict() if kind in firing), "")
        return absent or ("" if self.verdict is None else self.verdict.kind)


def take_snapshot(monitor: Monitor, store: Store, now: float, every_slice: bool = True) -> MonitorSnapshot:
    """The newest windows of a monitor, as stored up to `now`, seconds. Raises StoreError.

    Args:
        every_slice: False: slices only of the first measure and of what verdicts and rules judge by slice, which read
            in a fifth of the time.
    """
    newest = store.newest_bucket(monitor.traffic)
    empty = MonitorSnapshot(monitor, now, tuple(Series(m, monitor.definition(m), w) for m, w in monitor.shown))
    if newest is None:
        return renew(empty, store, now)
    end = min(newest + monitor.bucket, bucket_of(int(now), monitor.bucket))
    begin, since = end - max(monitor.windows), end - max(monitor.windows) - REACH
    # Measures that differ in their reading only share partials.
    sliced = {
        monitor.definition(monitor.shown[0][0]),
        *(monitor.judged_definition(r) for r in monitor.alerts if r.slices),
    }
    sliced |= set() if monitor.drift is None else {monitor.definition(judged(monitor.drift.measure))}
    histories = {
        d: store.history(d, since, end, overall_only=not every_slice and d not in sliced) for d in monitor.definitions
    }
    traffic = histories[monitor.traffic]
    recent = traffic.between(begin, end).slice(OVERALL)
    state = store.alerts.state(monitor.name)
    fell_at = _fell_at(state.open.get("quality"))
    read = replace(
        empty,
        series=tuple(
            current(monitor, measure, histories[monitor.definition(measure)], traffic, length, fell_at)
            for measure, length in monitor.shown
        ),
        provisional_buckets=int((~traffic.final).sum()),
        refused=MappingProxyType(store.refused(monitor.traffic, begin, end)),
        unmatched=int(recent[:, UNMATCHED].sum()) if monitor.counts_unmatched else None,
        requests=int(recent[:, REQUESTS].sum()),
        without_rank_one=without_rank_one(recent.sum(axis=0)),
        readings=_readings(monitor, store, state, histories, since),
        places=MappingProxyType(_places(monitor, store)),
        came=tuple(sorted(_came(traffic))),
        newcomers=tuple(_newcomers(monitor, histories)),
    )
    return renew(read, store, now)


def _came(traffic: History) -> Iterator[tuple[int, str]]:
    for key in traffic.slices:
        if key[0] == MODEL_VERSION and key[1] not in RESERVED:
            served = np.flatnonzero(traffic.slice(key)[:, REQUESTS] > 0)
            if len(served) and served[0] > 0:
                yield int(traffic.starts[served[0]]), key[1]


def _newcomers(monitor: Monitor, histories: Mapping[Definition, History]) -> list[Newcomer]:
    if monitor.drift is None:
        return []
    history = histories[monitor.definition(judged(monitor.drift.measure))]
    until = latest_final_end(history.starts, history.final, monitor.bucket)
    return [] if until is None else newcomers(history, monitor.drift.mix_by or "", until)


def _places(monitor: Monitor, store: Store) -> dict[str, int]:
    present = store.places(monitor.name).present
    return {s.dimension: len(present.get(s.dimension, set()) - RESERVED) for s in monitor.slices}


def _fell_at(open_: StoredIncident | None) -> int | None:
    """Earliest possible start of an open incident's fall: the start of a fallen window."""
    if open_ is None:
        return None
    return min((open_.incident.began_at, *(f.since - f.window for f in open_.findings if not f.verdict)))


def _readings(
    monitor: Monitor, store: Store, state: AlertState, histories: Mapping[Definition, History], since: int
) -> tuple[RuleReading, ...]:
    """Each rule on `histories`, read from `since` on; a baseline that lies farther back is read on its own."""
    if state.until is None:
        return ()

    def read(definition: Definition, begin: int, until: int) -> History:
        return histories[definition] if begin >= since else store.history(definition, begin, until)

    readings = []
    for rule in monitor.alerts:
        begin = min(since, state.until - rule.reach)
        view = view_of(monitor, monitor.judged_definition(rule), (rule,), read, begin, state.until)
        keys = keys_of(rule, view)
        for key, evaluation in zip(keys, evaluate_rule(rule, view, keys, state.until), strict=True):
            kept = state.conditions.get((rule.name, *key))
            readings.append(RuleReading(rule, key, evaluation, Condition() if kept is None else kept.condition))
    return tuple(readings)


def renew(snapshot: MonitorSnapshot, store: Store, now: float) -> MonitorSnapshot:
    """A snapshot's windows with current progress, acknowledgements and silences. Raises StoreError."""
    name = snapshot.monitor.name
    state, silenced_until = store.alerts.state(name), store.alerts.silenced(time.time()).get(name)
    incidents = tuple(store.alerts.incidents(name, most=MOST_INCIDENTS))
    renewed = replace(
        snapshot,
        taken_at=now,
        progress=store.progress(name),
        opened=MappingProxyType({matter: state.open[matter] for matter in MATTERS if matter in state.open}),
        incidents=incidents,
        refused_then=MappingProxyType(dict(_refused_then(snapshot.monitor, store, incidents))),
        judged_until=state.until,
        labels=MappingProxyType(store.alerts.labels(name)),
        recommends_retraining=_recommends_retraining(state),
        no_retraining_as=_no_retraining_as(snapshot.monitor, state, store, silenced_until),
        verdict=None if snapshot.monitor.drift is None else store.verdicts.newest(name),
        verdict_conditions=MappingProxyType(
            {name: kept.condition for name, kept in state.conditions.items() if name[0] in condition_names()}
        ),
        silenced_until=silenced_until,
        examined=None if snapshot.monitor.corrected is None else store.verdicts.newest_check(name),
    )
    return announced_to(renewed, store.verdicts.announced(name))


def announced_to(snapshot: MonitorSnapshot, by_people: Iterable[Announcement]) -> MonitorSnapshot:
    """A snapshot with what people announced."""
    every = tuple(with_calendar(snapshot.monitor, by_people))
    return replace(snapshot, noted=every, announced=tuple(one for one in every if one.until > snapshot.taken_at))


def _refused_then(
    monitor: Monitor, store: Store, incidents: Iterable[StoredIncident]
) -> Iterator[tuple[str, dict[str, int]]]:
    for incident in (s.incident for s in incidents if any(f.verdict == "rows_refused" for f in s.findings)):
        until = FARTHEST if incident.closed_at is None else incident.closed_at
        refused = store.refused(monitor.traffic, incident.began_at - step_of(monitor.bucket), until)
        yield incident.id, {reason: rows for reason, rows in refused.items() if reason not in HARMLESS}


def _recommends_retraining(state: AlertState) -> bool:
    current = state.open.get("quality")
    if current is None or state.retrain is None or state.retrain.incident != current.incident.id:
        return False
    return asks(current)


def _no_retraining_as(monitor: Monitor, state: AlertState, store: Store, silenced_until: float | None) -> str:
    current = state.open.get("quality")
    if state.until is None or current is None or not monitor.retrain.notify or not asks(current):
        return ""
    if obstacle := in_the_way(monitor, state.retrain, state.until, state.open, resets_of(monitor, store)):
        return obstacle
    if not current.told:
        return "no notification of the incident was sent"
    return "" if silenced_until is None else f"notifications are silenced until {utc(int(silenced_until))}"


def current(
    monitor: Monitor, measure: Measure, history: History, traffic: History, length: int, fell_at: int | None = None
) -> Series:
    """The newest final and provisional window of one length; `fell_at`: start of an open incident."""
    by_judgments = isinstance(monitor.recipe, Judgments)

    def at(end: int | None) -> tuple[Point, ...]:
        if end is None:
            return ()
        return tuple(points(measure, history, traffic, monitor.bucket, length, end, by_judgments=by_judgments))

    settled = latest_final_end(history.starts, history.final, monitor.bucket)
    newest = int(history.starts[-1]) + monitor.bucket if len(history.starts) else None
    series = Series(measure, monitor.definition(measure), length, at(settled), at(newest) if newest != settled else ())
    if settled is None:
        return series
    return replace(series, comparison=compare(monitor, measure, length, history, traffic, settled, fell_at))


def shown(series: Series, least_completeness: float) -> tuple[Point, ...]:
    """Final points fit to show: with data, and enough of the window read."""
    return tuple(p for p in series.final if p.value is not None and p.completeness >= least_completeness)


def bad_for(stored: StoredIncident, until: int | None) -> int:
    """Seconds an incident has lasted, as far as judged; `until`: end of its monitor's last judged window."""
    incident = stored.incident
    # Missing data are noticed later than any window's end.
    ends = [incident.closed_at or until or 0, *(f.end for f in stored.findings if incident.is_open)]
    return max(0, max(ends) - incident.began_at)


def lasted(stored: StoredIncident, until: int | None) -> str:
    """How long an incident has lasted, in words; if open, also until when it was judged. Empty if it lasted no time."""
    incident, seconds = stored.incident, bad_for(stored, until)
    judged = f" (judged until {utc(incident.began_at + seconds)})" if incident.is_open else ""
    return f"{lasting(seconds)}{judged}" if seconds else ""


class Board:
    """The newest snapshot per monitor. Readers get an immutable mapping; writers swap in a new one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshots: Mapping[str, MonitorSnapshot] = MappingProxyType({})

    @property
    def snapshots(self) -> Mapping[str, MonitorSnapshot]:
        return self._snapshots

    def publish(self, snapshot: MonitorSnapshot) -> None:
        with self._lock:
            self._snapshots = MappingProxyType({**self._snapshots, snapshot.monitor.name: snapshot})

    def amend(self, name: str, change: Callable[[MonitorSnapshot], MonitorSnapshot]) -> None:
        """Change a monitor's snapshot in place, if it has one."""
        with self._lock:
            was = self._snapshots.get(name)
            if was is not None and (now := change(was)) is not was:
                self._snapshots = MappingProxyType({**self._snapshots, name: now})

    def keep_only(self, names: Iterable[str]) -> None:
        """Drop all other monitors."""
        wanted = set(names)
        with self._lock:
            self._snapshots = MappingProxyType({n: s for n, s in self._snapshots.items() if n in wanted})
