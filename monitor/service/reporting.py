"""A report on a monitor's last days: its values, what happened, which slices moved, and its labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.conditions.evidence import EVERYWHERE, MATTERS
from monitor.conditions.verdict_hours import judged, step_of
from monitor.errors import InputError
from monitor.evaluation.stored_fall import as_it_fell
from monitor.measures.measure import Measure
from monitor.messages.explanation import begun_lately
from monitor.messages.notification import About, notification
from monitor.series.intervals import REACH
from monitor.series.partials import read_as
from monitor.series.windows import History, Point, points
from monitor.service.fall import ChartMark, marks_of
from monitor.service.history import extend_verdicts
from monitor.service.slice_comparison import ComparedSlice, compare
from monitor.service.snapshot import MonitorSnapshot, take_snapshot
from monitor.store import Store
from monitor.types import OVERALL, Definition, Judgments, Monitor, format_duration
from monitor.units import DAY, HOUR

MOST_SLICES = 5
MOST_INCIDENTS = 1_000


@dataclass(frozen=True)
class DayValue:
    """A measure on a day that ends at `end`, seconds, with its 95 % interval; None is unknown."""

    end: int
    value: float | None
    lower: float | None
    upper: float | None
    requests: int


@dataclass(frozen=True)
class Value:
    """A measure over all days of the report, over the same number of days before (None: unknown), and day by day.

    Attributes:
        requests: those in the mean.
    """

    measure: str
    value: float | None
    lower: float | None
    upper: float | None
    requests: int
    before: float | None
    days: tuple[DayValue, ...]

    @property
    def change(self) -> float | None:
        """Relative change; None without both."""
        return self.value / self.before - 1 if self.before and self.value is not None else None


@dataclass(frozen=True)
class VerdictHours:
    """How many hours had a verdict, and the mean of what is judged in these hours; None without labels."""

    verdict: str
    hours: float
    value: float | None


@dataclass(frozen=True)
class Happened:
    """An incident of these days, in the words of its first notification; instants in seconds.

    Attributes:
        where: in which slices, and by which version of the model.
        advice: what to do; empty if it is over.
    """

    id: str
    matter: str
    severity: str
    title: str
    where: str
    advice: str
    began_at: int
    opened_at: int
    closed_at: int | None
    state: str
    lasted: int
    told: bool
    acknowledged_by: str | None
    label: str | None

    @property
    def is_as_it_fell(self) -> bool:
        """Whether the title's figures are of when it fired; of an open incident, and of one on data, the newest."""
        return self.is_on_quality and self.closed_at is not None

    @property
    def is_on_quality(self) -> bool:
        """Whether it is on the model's quality."""
        return self.matter == "quality"


@dataclass(frozen=True)
class QualityReport:
    """A monitor's report on [since, until), seconds.

    Attributes:
        incidents: those that were open at some time of these days, or are open since, oldest first.
        in_comparison: seconds of the days before in which an incident on quality or data was open.
        moved, slices: those that moved this measure most; `whole` is all traffic, `against` is what they are compared
            with.
        new: what began in the last two weeks, against the others, in words.
        marks: new model versions, announcements and new baselines of these days, oldest first.
        coverage, coverage_before: share of the requests with a label; with judgments, of the items with a judgment.
        completeness: share of the buckets that were read.
        refused: reason -> rows.
        judged, verdicts: the measure that verdicts judge, and the hours of each verdict.
        snapshot: of the same time, with its verdicts, for a chart.
    """

    monitor: str
    since: int
    until: int
    values: tuple[Value, ...]
    incidents: tuple[Happened, ...]
    in_comparison: int
    moved: str
    whole: ComparedSlice | None
    slices: tuple[ComparedSlice, ...]
    against: str
    new: tuple[str, ...]
    marks: tuple[ChartMark, ...]
    coverage: float | None
    coverage_before: float | None
    completeness: float
    refused: Mapping[str, int]
    judged: str
    verdicts: tuple[VerdictHours, ...]
    snapshot: MonitorSnapshot = field(metadata={"json": False})

    @property
    def by_matter(self) -> Mapping[str, tuple[int, int]]:
        """Matter -> (incidents, those that somebody was notified of)."""
        found = {matter: [one.told for one in self.incidents if one.matter == matter] for matter in MATTERS}
        return {matter: (len(told), sum(told)) for matter, told in found.items() if told}

    @property
    def open_now(self) -> int:
        """Incidents that are open."""
        return sum(1 for one in self.incidents if one.closed_at is None)

    @property
    def to_label(self) -> int:
        """Incidents that somebody was notified of, and of which nobody said whether that was right."""
        return sum(1 for one in self.incidents if one.told and not one.label)

    @property
    def labels(self) -> Mapping[str, int]:
        """How many of the incidents people labelled right, wrong or known."""
        given = [one.label for one in self.incidents if one.label]
        return {label: given.count(label) for label in dict.fromkeys(given)}


def report(monitor: Monitor, store: Store, span: int) -> QualityReport:
    """The report on the last `span` seconds of final data. Raises InputError if there are none, and StoreError."""
    if span < monitor.bucket or span % monitor.bucket:
        raise InputError(f"{monitor.name}: a report covers a multiple of the bucket, {format_duration(monitor.bucket)}")
    past = _ReportDays.of(monitor, store, span)
    snapshot = take_snapshot(monitor, store, past.until)
    main, drawn = (_judged(monitor) or monitor.measures)[0], extend_verdicts(monitor, store, past.until, None)
    history = past.histories[monitor.definition(main)]
    incidents = tuple(_happened(monitor, store, past))
    fell_at = min((one.began_at for one in incidents if one.is_on_quality), default=None)
    moved = compare(monitor, main, span, history, past.traffic, past.until, fell_at)
    comparable = [one for one in moved.slices if one.is_known and one.share < EVERYWHERE]
    whole = past.overall(main, past.until)
    return QualityReport(
        monitor=monitor.name,
        since=past.since,
        until=past.until,
        values=tuple(_value(measure, past) for measure in dict.fromkeys((*monitor.measures, *_judged(monitor)))),
        incidents=incidents,
        in_comparison=_open_for(monitor, store, past.since - span, past.since),
        moved=str(main),
        whole=moved.whole,
        slices=tuple(sorted(comparable, key=lambda one: -abs(one.effect))[:MOST_SLICES]),
        against=moved.against,
        new=tuple(map(begun_lately, snapshot.newcomers)),
        marks=marks_of(monitor, store, past.since, past.until),
        coverage=whole.label_coverage,
        coverage_before=past.overall(main, past.since).label_coverage,
        completeness=whole.completeness,
        refused=store.refused(monitor.traffic, past.since, past.until),
        judged="" if monitor.drift is None else str(judged(monitor.drift.measure)),
        verdicts=tuple(_by_verdict(monitor, store, past)),
        snapshot=replace(snapshot, verdict_history=drawn),
    )


@dataclass(frozen=True)
class _ReportDays:
    """What is stored of the days [since, until) and of those that they are compared with."""

    monitor: Monitor
    since: int
    until: int
    histories: Mapping[Definition, History]

    @classmethod
    def of(cls, monitor: Monitor, store: Store, span: int) -> _ReportDays:
        newest = store.newest_bucket(monitor.traffic)
        end = None if newest is None else store.settled_end(monitor.traffic, monitor.bucket)
        if end is None:
            raise InputError(f"{monitor.name}: no final bucket is stored yet; run once or backfill")
        begin = end - 2 * span - REACH
        return cls(monitor, end - span, end, {d: store.history(d, begin, end) for d in monitor.definitions})

    @property
    def traffic(self) -> History:
        return self.histories[self.monitor.traffic]

    def overall(self, measure: Measure, end: int, length: int | None = None) -> Point:
        """A measure over the `length` seconds that end at `end`, by default as many as the report's, on all traffic."""
        monitor, history = self.monitor, self.histories[self.monitor.definition(measure)]
        length, by_judgments = length or self.until - self.since, isinstance(monitor.recipe, Judgments)
        (found,) = points(measure, history, self.traffic, monitor.bucket, length, end, [OVERALL], by_judgments)
        return found

    def days(self, measure: Measure) -> Iterator[DayValue]:
        """A measure on each of the whole days that end with the report, on all traffic."""
        length = max(DAY, self.monitor.bucket)
        for number in reversed(range((self.until - self.since) // length)):
            found = self.overall(measure, end := self.until - number * length, length)
            yield DayValue(end, found.value, found.lower, found.upper, found.requests)


def _judged(monitor: Monitor) -> list[Measure]:
    """The measures that verdicts and rules judge."""
    of_rules = [rule.measure for rule in monitor.alerts if rule.measure is not None]
    return of_rules if monitor.drift is None else [judged(monitor.drift.measure), *of_rules]


def _value(measure: Measure, past: _ReportDays) -> Value:
    now, before = past.overall(measure, past.until), past.overall(measure, past.since)
    days = tuple(past.days(measure))
    in_the_mean = now.requests if measure.empty == "zero" else round(now.requests * (1 - (now.empty_ratio or 0.0)))
    return Value(str(measure), now.value, now.lower, now.upper, in_the_mean, before.value, days)


def _by_verdict(monitor: Monitor, store: Store, past: _ReportDays) -> Iterator[VerdictHours]:
    if monitor.drift is None:
        return
    found, step = store.verdicts.drawn(monitor.name, past.since, past.until), step_of(monitor.bucket)
    measure = judged(monitor.drift.measure)
    history = past.histories[monitor.definition(measure)]
    sums, ends = history.slice(OVERALL), history.starts - history.starts % step + step
    for kind in dict.fromkeys(one.kind for one in found):
        of_it = [one.end for one in found if one.kind == kind]
        value = float(read_as(measure, sums[np.isin(ends, of_it)].sum(axis=0)))
        yield VerdictHours(kind, len(of_it) * step / HOUR, None if np.isnan(value) else value)


def _open_for(monitor: Monitor, store: Store, since: int, until: int) -> int:
    """Seconds of [since, until) in which an incident on quality or data was open."""
    found = [one.incident for one in store.alerts.incidents(monitor.name, most=MOST_INCIDENTS)]
    spans = sorted((one.began_at, one.closed_at or until) for one in found if one.matter in ("quality", "data"))
    total, counted = 0, since
    for begin, end in spans:
        total += max(min(end, until) - max(begin, counted), 0)
        counted = max(counted, end)
    return total


def _happened(monitor: Monitor, store: Store, past: _ReportDays) -> Iterator[Happened]:
    for one in reversed(store.alerts.incidents(monitor.name, most=MOST_INCIDENTS)):
        incident = one.incident
        closed_at = max(past.until, incident.began_at) if incident.closed_at is None else incident.closed_at
        if not incident.is_open and (incident.opened_at >= past.until or closed_at <= past.since):
            continue
        told = notification("firing", About(monitor.name), incident, as_it_fell(one, store), 0)
        yield Happened(
            incident.id,
            incident.matter,
            incident.severity,
            told.title.removeprefix(f"{monitor.name}: "),
            told.line("Where"),
            told.line("What to do") if incident.is_open else "",
            incident.began_at,
            incident.opened_at,
            incident.closed_at,
            incident.state,
            closed_at - incident.began_at,
            one.told,
            one.acknowledged_by,
            one.label,
        )
