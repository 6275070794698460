"""Every gauge of `/metrics` in one table: name, help, labels, and how it is sampled from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from prometheus_client.core import GaugeMetricFamily, Metric

from monitor.conditions.arrivals import shown_as_verdict
from monitor.conditions.evidence import MATTERS, Matter, condition_names, kinds, severity_of
from monitor.conditions.incident import matter_of
from monitor.conditions.verdicts import verdict_names
from monitor.measures.measure import Measure
from monitor.messages.explanation import TITLES
from monitor.series.windows import SliceKey
from monitor.service.snapshot import MonitorSnapshot
from monitor.types import OVERALL, format_duration

Samples = Iterator[tuple[Sequence[str] | Mapping[str, str], float | None]]
"""(label values, ending with dimension and value for a slice; number, None: no sample)."""

MONITOR = ("monitor",)
RANKED = ("monitor", "rank")
SERIES = ("monitor", "measure", "window", "definition")
SLICE = ("dimension", "value")


@dataclass(frozen=True)
class Gauge:
    """A gauge, and a second one for slices if `of_slice` (its help) is set. Families without samples are left out."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[MonitorSnapshot], Samples]
    of_slice: str = ""

    def families(self, snapshots: Iterable[MonitorSnapshot]) -> Iterator[Metric]:
        """Built from the snapshots each time, so what leaves them disappears here."""
        overall = GaugeMetricFamily(f"rankmon_{self.name}", self.help, labels=self.labels)
        slices = GaugeMetricFamily(f"rankmon_slice_{self.name}", self.of_slice, labels=(*self.labels, *SLICE))
        for snapshot in snapshots:
            for labels, number in self.samples(snapshot):
                if number is None:
                    continue
                if isinstance(labels, Mapping):
                    overall.add_sample(overall.name, dict(labels), number)
                else:
                    (overall if len(labels) == len(self.labels) else slices).add_metric(labels, number)
        yield from (family for family in (overall, slices) if family.samples)


# ---- samples of a snapshot ------------------------------------------------------------------------------------------


def _slice_labels(key: SliceKey) -> tuple[str, ...]:
    return () if key == OVERALL else key


def _windows(field: str, snapshot: MonitorSnapshot, kind: str = "", is_provisional: bool = False) -> Samples:
    """A field of the newest windows; values from too little of their window are not shown."""
    least = snapshot.monitor.min_completeness
    for series in snapshot.series:
        if kind not in ("", series.measure.name):
            continue
        labels = (snapshot.monitor.name, str(series.measure), format_duration(series.length), series.definition.id)
        for point in series.provisional if is_provisional else series.final:
            if not kind or (point.value is not None and point.completeness >= least):
                yield (*labels, *_slice_labels((point.dimension, point.slice))), getattr(point, field)


def _overall(field: str, snapshot: MonitorSnapshot) -> Samples:
    return (sample for sample in _windows(field, snapshot) if len(sample[0]) == len(SERIES))


def _limits(field: str, unit: str, labels: int, snapshot: MonitorSnapshot) -> Samples:
    """Baselines or thresholds of the newest judged windows; positions have no suffix, as gains."""
    monitor = snapshot.monitor
    for reading in snapshot.readings:
        rule = reading.rule
        if (rule.measure is None or rule.measure.spec.unit == "ratio") == (unit == "ratio"):
            series = (monitor.name, rule.judged, format_duration(rule.window), monitor.judged_definition(rule).id)
            own = (*series, rule.name, rule.severity)[:labels]
            yield (*own, *_slice_labels(reading.key)), getattr(reading.evaluation, field)


def _firing(snapshot: MonitorSnapshot) -> Samples:
    """A rule fires on all traffic if it does on any slice; verdicts use their own names."""
    monitor = snapshot.monitor
    for rule in monitor.alerts:
        matter = matter_of((rule.name, *OVERALL), (rule,))
        labels = (monitor.name, rule.name, matter, rule.severity, monitor.paging)
        mine = {r.key: r.condition.state == "firing" for r in snapshot.readings if r.rule == rule}
        yield labels, any(mine.values())
        yield from (((*labels, *key), fires) for key, fires in mine.items() if key != OVERALL)
    if monitor.drift is None:
        return
    firing = sorted(name for name, condition in snapshot.verdict_conditions.items() if condition.state == "firing")
    for kind in sorted(name for name in condition_names() if kinds()[name].concerns(monitor)):
        name = (kind, "", "")
        labels = (monitor.name, kind, matter_of(name), severity_of(monitor.drift, kind), monitor.paging)
        yield labels, any(of == kind for of, _, _ in firing)
        yield from (((*labels, dimension, value), 1) for of, dimension, value in firing if of == kind and dimension)


def _of_incidents(number: Callable[[MonitorSnapshot, Matter], float], snapshot: MonitorSnapshot) -> Samples:
    for matter in MATTERS if snapshot.monitor.corrected else MATTERS[:2]:
        yield (snapshot.monitor.name, matter), number(snapshot, matter)


def _silenced_until(snapshot: MonitorSnapshot, matter: Matter) -> float:
    open_ = snapshot.opened.get(matter)
    return 0.0 if open_ is not None and open_.told else snapshot.silenced_until or 0.0


def _precision(snapshot: MonitorSnapshot) -> Samples:
    right, wrong = (snapshot.labels.get(label, 0) for label in ("right", "wrong"))
    yield (snapshot.monitor.name,), right / (right + wrong) if right + wrong else None


def _is_acknowledged(snapshot: MonitorSnapshot, matter: Matter) -> float:
    open_ = snapshot.opened.get(matter)
    return open_ is not None and open_.acknowledged_at is not None


def _verdicts(snapshot: MonitorSnapshot) -> Samples:
    if snapshot.monitor.drift and snapshot.verdict:
        for kind in sorted(_VERDICTS):
            yield (snapshot.monitor.name, kind), kind == snapshot.verdict_kind


def _alarms(snapshot: MonitorSnapshot) -> Samples:
    drift = snapshot.monitor.drift
    if drift and snapshot.verdict:
        for alarm in snapshot.verdict.alarms:
            yield (snapshot.monitor.name, (drift.mix_by or "") if alarm.unit else "", alarm.unit), alarm.effect


def _newcomers(field: str, snapshot: MonitorSnapshot) -> Samples:
    for one in snapshot.newcomers:
        yield (snapshot.monitor.name, one.dimension, one.slice), getattr(one, field)


def _examination(field: str, snapshot: MonitorSnapshot) -> Samples:
    if (found := snapshot.examined) is not None:
        for key, fit in {OVERALL: found.now, **found.now.parts}.items():
            for rank, chance in enumerate(getattr(fit, field).tolist(), 1):
                yield (snapshot.monitor.name, str(rank), *_slice_labels(key)), chance


def _misfits(snapshot: MonitorSnapshot) -> Samples:
    if (found := snapshot.examined) is not None:
        for measure in snapshot.monitor.measures:
            if measure.is_corrected:
                yield (snapshot.monitor.name, str(measure)), found.misfit(measure) is not None


def _verdict(field: str, snapshot: MonitorSnapshot) -> Samples:
    if snapshot.monitor.drift and snapshot.verdict:
        yield (snapshot.monitor.name,), getattr(snapshot.verdict, field)


def _one(path: str, snapshot: MonitorSnapshot) -> Samples:
    yield (snapshot.monitor.name,), attrgetter(path)(snapshot)


def _holding(field: str, snapshot: MonitorSnapshot) -> Samples:
    if snapshot.holding is not None:
        yield (snapshot.monitor.name,), getattr(snapshot.holding, field)


def _refused(snapshot: MonitorSnapshot) -> Samples:
    yield from (((snapshot.monitor.name, reason), rows) for reason, rows in sorted(snapshot.refused.items()))


def _places(taken: bool, snapshot: MonitorSnapshot) -> Samples:
    for one in snapshot.monitor.slices:
        if (number := snapshot.places.get(one.dimension)) is not None:
            yield (snapshot.monitor.name, one.dimension), number if taken else one.max_values


def _info(snapshot: MonitorSnapshot) -> Samples:
    monitor = snapshot.monitor
    runbook = {"runbook_url": monitor.runbook_url} if monitor.runbook_url else {}
    yield {"monitor": monitor.name, **runbook, **dict(monitor.labels)}, 1


# ---- the table ------------------------------------------------------------------------------------------------------


def of_measure(kind: Measure) -> Iterator[Gauge]:
    """Value, bounds and provisional value of a kind of measure: `ndcg_ratio`, `ndcg_lower_ratio`, `dcg` ..."""
    ratio, title = ("ratio",) if kind.spec.unit == "ratio" else (), kind.spec.title
    bound = ", {} end of the 95 % interval"
    for field, of in (("value", ""), ("lower", bound.format("lower")), ("upper", bound.format("upper"))):
        name = "_".join((kind.name, *((field,) if of else ()), *ratio))
        samples = partial(_windows, field, kind=kind.name)
        yield _sliced(name, f"Newest final window: {title}{of}.", SERIES, samples)
    name, text = "_".join(("provisional", kind.name, *ratio)), f"Newest window, labels still arriving: {title}."
    yield _sliced(name, text, SERIES, partial(_windows, "value", kind=kind.name, is_provisional=True))


def _sliced(
    name: str, text: str, labels: tuple[str, ...], samples: Callable[[MonitorSnapshot], Samples], of_slice: str = ""
) -> Gauge:
    return Gauge(name, text, labels, samples, of_slice or f"By slice. {text}")


def _limit_gauges() -> Iterator[Gauge]:
    for unit, suffix in (("ratio", "_ratio"), ("gain", "")):
        for name, field, labels, text in (
            ("baseline", "baseline", ("rule",), "Baseline of the newest judged window."),
            (
                "alert_threshold",
                "fires_at",
                ("rule", "severity"),
                "Where an alert rule fires: below, or above if lower is better.",
            ),
        ):
            own = (*SERIES, *labels)
            yield _sliced(f"{name}{suffix}", text, own, partial(_limits, field, unit, len(own)))


def _gauges(of: Callable[[str, MonitorSnapshot], Samples], *rows: tuple[str, str, str]) -> Iterator[Gauge]:
    return (Gauge(name, text, MONITOR, partial(of, field)) for field, name, text in rows)


_FIRING = "Whether an alert rule or verdict fires"
_VERDICTS = frozenset({*verdict_names(), *shown_as_verdict(), *TITLES})
_ALONG = ", ".join(sorted(condition_names() - _VERDICTS))
_VERDICT = (
    f"1 for the current verdict; conditions that can hold at the same time are in rankmon_alert_firing: {_ALONG}."
)

GAUGES: tuple[Gauge, ...] = (
    *(
        _sliced(f"window_{name}", text, SERIES, partial(_windows, field))
        for field, name, text in (
            ("requests", "requests", "Requests with data in the newest final window."),
            (
                "empty_ratio",
                "empty_ratio",
                "Share of those requests in which nothing was relevant; not of ctr, coec and no_results.",
            ),
            (
                "label_coverage",
                "label_coverage_ratio",
                "Share of requests with a label; by judgments, of items with a judgment.",
            ),
        )
    ),
    Gauge(
        "window_completeness_ratio",
        "Share of the newest final window's buckets that were read.",
        SERIES,
        partial(_overall, "completeness"),
    ),
    Gauge("window_end_timestamp_seconds", "End of the newest final window.", SERIES, partial(_overall, "end")),
    *_limit_gauges(),
    _sliced(
        "alert_firing",
        f"{_FIRING}, on all traffic or any slice.",
        ("monitor", "rule", "matter", "severity", "paging"),
        _firing,
        f"{_FIRING} on this slice.",
    ),
    Gauge(
        "incidents_open",
        "Number of open incidents.",
        MONITOR,
        lambda shown: iter([((shown.monitor.name,), len(shown.opened))]),
    ),
    Gauge(
        "retrain_recommended",
        "Whether retraining is recommended.",
        ("monitor", "paging"),
        lambda shown: iter([((shown.monitor.name, shown.monitor.paging), shown.recommends_retraining)]),
    ),
    Gauge(
        "silenced_until_timestamp_seconds",
        "Until when a silence holds back new incidents; 0 without one, or if the open incident was notified before it.",
        ("monitor", "matter"),
        partial(_of_incidents, _silenced_until),
    ),
    Gauge(
        "incident_acknowledged",
        "Whether the open incident is acknowledged.",
        ("monitor", "matter"),
        partial(_of_incidents, _is_acknowledged),
    ),
    Gauge(
        "labelled_incidents",
        "Incidents labelled by people: right, wrong, or already known.",
        ("monitor", "label"),
        lambda shown: (((shown.monitor.name, label), number) for label, number in shown.labels.items()),
    ),
    Gauge(
        "incident_precision_ratio",
        "Share of the incidents labelled right among those labelled right or wrong.",
        MONITOR,
        _precision,
    ),
    Gauge("verdict", _VERDICT, ("monitor", "verdict"), _verdicts),
    Gauge(
        "drift_effect_ratio",
        "Relative change of the mean since an open alarm began; without dimension and value: overall.",
        ("monitor", *SLICE),
        _alarms,
    ),
    *(
        Gauge(f"newcomer_{name}", text, ("monitor", *SLICE), partial(_newcomers, field))
        for field, name, text in (
            ("difference", "difference", "Mean of a new slice or model version minus that of the others."),
            ("lower", "difference_lower", "Lower end of the 95 % interval of that difference."),
            ("upper", "difference_upper", "Upper end of the 95 % interval of that difference."),
            ("share", "share_ratio", "Share of requests of a new slice or model version since it began."),
        )
    ),
    *(
        _sliced(
            f"examination{name}_ratio", f"{text} that people look at a rank, relative to the first.", RANKED, samples
        )
        for name, text, samples in (
            ("", "Chance", partial(_examination, "value")),
            ("_lower", "Lower end of the 95 % interval of the chance", partial(_examination, "lower")),
            ("_upper", "Upper end of the 95 % interval of the chance", partial(_examination, "upper")),
        )
    ),
    Gauge(
        "examination_misfit",
        "Whether a corrected measure's table is surely off by more than a tenth at some rank.",
        ("monitor", "measure"),
        _misfits,
    ),
    *_gauges(
        _verdict,
        ("end", "verdict_end_timestamp_seconds", "End of the hour that the newest verdict covers."),
        ("observed", "drift_observed_ratio", "Observed mean of the last day, as verdicts judge it."),
        ("expected", "drift_expected_ratio", "What the baseline expects for the same hours and mix."),
        ("mix_shifted", "mix_shifted", "Whether the mix of slices has moved the mean."),
        ("mix_effect", "mix_effect_ratio", "How much the mix has moved the mean, as a share of the mean."),
        (
            "improved",
            "baseline_offered",
            "Whether rankmon proposes a new baseline: the level has been above the old one for a week.",
        ),
        ("decayed", "level_decayed", "Whether the level has fallen since the reference, too slowly for an alarm."),
        ("moved", "level_change_ratio", "Relative change of the mean in the last days against the reference."),
    ),
    *_gauges(
        _one,
        ("progress.last_attempt_at", "last_attempt_timestamp_seconds", "Start of the last cycle."),
        ("progress.last_success_at", "last_success_timestamp_seconds", "End of the last successful cycle."),
        ("progress.newest_source_at", "source_newest_timestamp_seconds", "Time of the newest request in the source."),
        ("future_rows", "source_future_rows", "Rows in the source dated in the future."),
        ("provisional_buckets", "provisional_buckets", "Buckets whose labels may still arrive."),
        ("due_buckets", "due_buckets", "Due buckets left for the next cycle."),
        (
            "unmatched",
            "unmatched_events",
            "Events in the longest window for which no impression was found; some may be later than the attribution.",
        ),
    ),
    Gauge("refused_rows", "Refused rows in the longest window.", ("monitor", "reason"), _refused),
    Gauge(
        "slice_places",
        "Number of values that can have their own series.",
        ("monitor", "dimension"),
        partial(_places, False),
    ),
    Gauge(
        "slice_places_taken",
        "Number of values that have one, seen recently or not.",
        ("monitor", "dimension"),
        partial(_places, True),
    ),
    *_gauges(
        _holding,
        ("rows", "stored_rows", "Bucket rows in the store."),
        ("coarse_rows", "stored_coarse_rows", "Bucket rows in the store that were rolled up."),
        ("oldest", "oldest_bucket_timestamp_seconds", "Start of the oldest bucket in the store."),
    ),
    Gauge(
        "monitor_info",
        "For joins: the monitor's own labels from its configuration, and its runbook if it has one.",
        ("monitor", "runbook_url"),
        _info,
    ),
    *_gauges(
        _one,
        ("monitor.refresh", "monitor_refresh_seconds", "Time between two runs of a monitor."),
        ("monitor.deadline", "monitor_deadline_seconds", "Time limit of one run of a monitor."),
        ("monitor.ingest_delay", "monitor_ingest_delay_seconds", "How late rankings may arrive."),
        ("monitor.stale_after", "monitor_stale_after_seconds", "Longest normal time without a request."),
    ),
)


def of_monitors(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """All gauges of some monitors, those of measures first."""
    kinds = {s.measure.name: s.measure for snapshot in snapshots for s in snapshot.series}
    for _, kind in sorted(kinds.items()):
        for gauge in of_measure(kind):
            yield from gauge.families(snapshots)
    for gauge in GAUGES:
        yield from gauge.families(snapshots)
