"""`/metrics`: one collector over the board of snapshots. It asks no database; what vanished there vanishes here."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from monitor import __version__
from monitor.clock import Clock, ReplayClock, SystemClock
from monitor.conditions.arrivals import MISREAD
from monitor.conditions.incident import matter_of
from monitor.conditions.rules import Rule
from monitor.conditions.verdict_conditions import VERDICTS, severity_of
from monitor.measures.measure import Measure
from monitor.series.windows import Point
from monitor.service.snapshot import Board, MonitorSnapshot, Series
from monitor.service.telemetry import COUNTERS, Telemetry
from monitor.types import OVERALL, format_duration

LABELS = ("monitor", "measure", "window", "definition")
SLICE_LABELS = (*LABELS, "dimension", "value")


class RankmonCollector(Collector):
    """Builds every family afresh from the board and the process's own counts."""

    def __init__(self, board: Board, telemetry: Telemetry, clock: Clock) -> None:
        self._board = board
        self._telemetry = telemetry
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """All families, in a fixed order."""
        found = self._families()
        return _in_real_time(found, self._clock) if isinstance(self._clock, ReplayClock) else found

    def _families(self) -> Iterator[Metric]:
        yield from _of_monitors([self._board.snapshots[n] for n in sorted(self._board.snapshots)])
        yield from _of_process(self._telemetry)


def _of_monitors(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    yield from _quality(snapshots)
    yield from _windows(snapshots)
    yield from _alerts(snapshots)
    yield from _verdicts(snapshots)
    yield from _progress(snapshots)


def _of_process(telemetry: Telemetry) -> Iterator[Metric]:
    yield from _own(telemetry)
    yield from _queues(telemetry)
    build = GaugeMetricFamily("rankmon_build_info", "Version of rankmon.", labels=["version", "python"])
    build.add_metric([__version__, platform.python_version()], 1)
    yield build


class _Families(Collector):
    """Some families, to be written out by themselves."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


Encoder = Callable[[Collector], bytes]
_FAMILY = re.compile(rb"(^# HELP .*\n(?:^# (?:TYPE|UNIT) .*\n)*)((?:^[^#].*\n)*)", re.MULTILINE)
_END = b"# EOF\n"
MOST_KINDS = 4
"""Formats of which texts are kept at the same time; one Prometheus asks for one."""


class Exposition:
    """The text of `/metrics`, as prometheus_client writes it; that of a monitor is kept until it has a new snapshot."""

    def __init__(self, board: Board, telemetry: Telemetry, clock: Clock | None = None) -> None:
        self.registry = registry(board, telemetry, clock)
        self._board = board
        self._telemetry = telemetry
        self._is_replay = isinstance(clock, ReplayClock)
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._kept: dict[str, dict[str, tuple[MonitorSnapshot, dict[bytes, bytes]]]] = {}

    def text(self, accept: str) -> tuple[bytes, str]:
        """(the text, its content type) for what an Accept header asks for."""
        encode, kind = choose_encoder(accept)
        if self._is_replay:  # whose instants move with each scrape
            return encode(self.registry), kind
        rest = [encode(_Families(_of_process(self._telemetry))), encode(self._process)]
        families = _merged([_written(encode, []), *self._monitors(encode, kind)])
        end = _END if rest[0].endswith(_END) else b""
        return b"".join([*families, *(text.removesuffix(_END) for text in rest), end]), kind

    def _monitors(self, encode: Encoder, kind: str) -> list[dict[bytes, bytes]]:
        snapshots, former = self._board.snapshots, self._kept.get(kind, {})
        kept = {
            name: former[name]
            if name in former and former[name][0] is snapshot
            else (snapshot, _written(encode, [snapshot]))
            for name, snapshot in sorted(snapshots.items())
        }
        others = [(k, v) for k, v in self._kept.items() if k != kind]
        self._kept = dict([*others[1 - MOST_KINDS :], (kind, kept)])
        return [families for _, families in kept.values()]


def _written(encode: Encoder, snapshots: Sequence[MonitorSnapshot]) -> dict[bytes, bytes]:
    """Head of each family of some monitors -> its samples."""
    return dict(_FAMILY.findall(encode(_Families(_of_monitors(snapshots)))))


def _merged(parts: Iterable[dict[bytes, bytes]]) -> Iterator[bytes]:
    """Families of several parts, each once: its head, then its samples of all parts."""
    order: list[bytes] = []
    samples: dict[bytes, list[bytes]] = {}
    for part in parts:
        at = 0  # a family that no part before had comes after the one that it follows in this part
        for head, lines in part.items():
            if head not in samples:
                order.insert(at, head)
            at = order.index(head) + 1
            samples.setdefault(head, []).append(lines)
    for head in order:
        yield head
        yield from samples[head]


REAL = ("rankmon_notification_oldest_timestamp_seconds", "rankmon_silenced_until_timestamp_seconds")
"""Instants that are never of a replay's clock."""


def _in_real_time(families: Iterator[Metric], clock: Clock) -> Iterator[Metric]:
    """The same with a replay's instants as old, in real time, as they are to whoever watches: rules ask for that."""
    for family in families:
        if family.name.endswith("_timestamp_seconds") and family.name not in REAL:
            real, now = time.time(), clock.now()
            family.samples = [s._replace(value=real - (now - s.value) / (clock.speed or 1)) for s in family.samples]
        yield family


def registry(board: Board, telemetry: Telemetry, clock: Clock | None = None) -> CollectorRegistry:
    """A fresh registry with the collector and the process's memory, CPU time and open files."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    made = CollectorRegistry(auto_describe=False)
    made.register(RankmonCollector(board, telemetry, clock or SystemClock()))
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    return made


def family_name(measure: Measure, part: str = "") -> str:
    """`ndcg_ratio`, `ndcg_lower_ratio`, `dcg`, `click_position` ...: the name of a measure's family, without prefix."""
    words = [measure.name, part, "ratio" if measure.spec.unit == "ratio" else ""]
    return "_".join(w for w in words if w)


def _quality(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """Values, bounds and provisional values, a family per kind of measure."""
    kinds = {s.measure.name: s.measure for snap in snapshots for s in snap.series}
    for _, kind in sorted(kinds.items()):
        title = kind.spec.title
        for part, what in (
            ("", ""),
            ("lower", ", lower end of the 95 % interval"),
            ("upper", ", upper end of the 95 % interval"),
        ):
            yield from _pair(
                snapshots, family_name(kind, part), f"Newest final window: {title}{what}.", kind.name, part or "value"
            )
        yield from _pair(
            snapshots,
            f"provisional_{family_name(kind)}",
            f"Newest window, labels still coming in: {title}.",
            kind.name,
            "value",
            provisional=True,
        )


def _pair(
    snapshots: Sequence[MonitorSnapshot], name: str, text: str, kind: str, field: str, provisional: bool = False
) -> Iterator[Metric]:
    overall = GaugeMetricFamily(f"rankmon_{name}", text, labels=LABELS)
    slices = GaugeMetricFamily(f"rankmon_slice_{name}", f"Of one slice. {text}", labels=SLICE_LABELS)
    for snapshot, series in _each(snapshots):
        if series.measure.name == kind:
            _add(overall, slices, snapshot, series, field, provisional)
    yield from (f for f in (overall, slices) if f.samples)


def _windows(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """What stands behind each value."""
    for name, field, text in (
        ("window_requests", "requests", "Requests with data in the newest final window."),
        ("window_empty_ratio", "empty_ratio", "Share of those requests in which nothing was relevant."),
        ("window_label_coverage_ratio", "label_coverage", "Share of the window's traffic that has a label."),
    ):
        overall = GaugeMetricFamily(f"rankmon_{name}", text, labels=LABELS)
        slices = GaugeMetricFamily(f"rankmon_slice_{name}", f"Of one slice. {text}", labels=SLICE_LABELS)
        for snapshot, series in _each(snapshots):
            _add(overall, slices, snapshot, series, field, False)
        yield overall
        yield slices
    for name, field, text in (
        ("window_completeness_ratio", "completeness", "Share of the newest final window's buckets that were read."),
        ("window_end_timestamp_seconds", "end", "End of the newest final window."),
    ):
        family = GaugeMetricFamily(f"rankmon_{name}", text, labels=LABELS)
        for snapshot, series in _each(snapshots):
            for point in series.final[:1]:
                family.add_metric(_labels(snapshot, series), float(getattr(point, field)))
        yield family


def _each(snapshots: Sequence[MonitorSnapshot]) -> Iterator[tuple[MonitorSnapshot, Series]]:
    return ((snapshot, series) for snapshot in snapshots for series in snapshot.series)


def _add(
    overall: Metric, slices: Metric, snapshot: MonitorSnapshot, series: Series, field: str, provisional: bool
) -> None:
    labels, least = _labels(snapshot, series), snapshot.monitor.min_completeness
    for point in series.provisional if provisional else series.final:
        number = _number(point, field, least)
        if number is None:
            continue
        if (point.dimension, point.slice) == OVERALL:
            overall.add_metric(labels, number)  # type: ignore[attr-defined]
        else:
            slices.add_metric([*labels, point.dimension, point.slice], number)  # type: ignore[attr-defined]


def _number(point: Point, field: str, least: float) -> float | None:
    """The sample, or None: a value that rests on too little of its window is not shown."""
    if field in ("value", "lower", "upper") and (point.value is None or point.completeness < least):
        return None
    number = getattr(point, field)
    return None if number is None else float(number)


def _labels(snapshot: MonitorSnapshot, series: Series) -> list[str]:
    return [snapshot.monitor.name, str(series.measure), format_duration(series.length), series.definition.id]


def _alerts(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """What the alert rules compare with, what fires, and what is asked for. Nothing here is named by a slice's state
    alone: a rule that judges slices is firing if any of them is."""
    yield from _limits(snapshots)
    names = ("monitor", "rule", "matter", "severity", "paging")
    rules = GaugeMetricFamily(
        "rankmon_alert_firing", "Whether an alert rule or verdict fires, on all traffic or any slice.", labels=names
    )
    slices = GaugeMetricFamily(
        "rankmon_slice_alert_firing",
        "Whether an alert rule or verdict fires on this slice.",
        labels=(*names, "dimension", "value"),
    )
    opened = GaugeMetricFamily("rankmon_incidents_open", "Number of open incidents.", labels=["monitor"])
    retrain = GaugeMetricFamily(
        "rankmon_retrain_recommended", "Whether retraining is recommended.", labels=["monitor", "paging"]
    )
    for snapshot in snapshots:
        name = snapshot.monitor.name
        for rule in snapshot.monitor.alerts:
            matter = matter_of((rule.name, *OVERALL), (rule,))
            labels = [name, rule.name, matter, rule.severity, snapshot.monitor.paging]
            mine = [r for r in snapshot.readings if r.rule == rule]
            rules.add_metric(labels, any(r.condition.state == "firing" for r in mine))
            for reading in mine:
                if reading.key != OVERALL:
                    slices.add_metric([*labels, *reading.key], reading.condition.state == "firing")
        _add_verdicts(rules, slices, snapshot)
        opened.add_metric([name], (snapshot.incident is not None) + (snapshot.data_incident is not None))
        retrain.add_metric([name, snapshot.monitor.paging], snapshot.recommends_retraining)
    yield from (rules, slices, opened, retrain, *_attended(snapshots))


def _attended(snapshots: Sequence[MonitorSnapshot]) -> tuple[Metric, Metric]:
    """What people did, for rules in Prometheus to ask for. An instant, so a silence ends though the daemon died."""
    silenced = GaugeMetricFamily(
        "rankmon_silenced_until_timestamp_seconds",
        "Until when a silence holds back alerts; 0 without one, and where the open incident was told before it.",
        labels=["monitor", "matter"],
    )
    acknowledged = GaugeMetricFamily(
        "rankmon_incident_acknowledged", "Whether the open incident is acknowledged.", labels=["monitor", "matter"]
    )
    for snapshot in snapshots:
        for matter, open_ in (("quality", snapshot.incident), ("data", snapshot.data_incident)):
            labels = [snapshot.monitor.name, matter]
            until = 0.0 if open_ is not None and open_.told else snapshot.silenced_until or 0.0
            silenced.add_metric(labels, until)
            acknowledged.add_metric(labels, open_ is not None and open_.acknowledged_at is not None)
    return silenced, acknowledged


def _add_verdicts(rules: GaugeMetricFamily, slices: GaugeMetricFamily, snapshot: MonitorSnapshot) -> None:
    """What the verdicts amount to, each under its name in place of a rule's."""
    monitor = snapshot.monitor
    if monitor.drift is None:
        return
    firing = {name for name, condition in snapshot.verdict_conditions.items() if condition.state == "firing"}
    for kind in sorted(VERDICTS):
        name = (kind, "", "")
        labels = [monitor.name, kind, matter_of(name), severity_of(monitor.drift, name), monitor.paging]
        rules.add_metric(labels, any(name[0] == kind for name in firing))
        for _, dimension, value in sorted(name for name in firing if name[0] == kind and name[1]):
            slices.add_metric([*labels, dimension, value], 1)


def _verdicts(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """The newest verdict of each monitor that has any, and the figures that it rests on."""
    judged = [(s.monitor.name, s.monitor.drift, s.verdict) for s in snapshots if s.monitor.drift and s.verdict]
    holds = {s.monitor.name: s.verdict_kind for s in snapshots}
    if not judged:
        return
    states = GaugeMetricFamily("rankmon_verdict", "1 for the verdict that holds.", labels=["monitor", "verdict"])
    effect = GaugeMetricFamily(
        "rankmon_drift_effect_ratio",
        "Relative change of the mean since an open alarm began; of overall without dimension and value.",
        labels=["monitor", "dimension", "value"],
    )
    for name, drift, verdict in judged:
        for kind in sorted({*VERDICTS - {MISREAD}, "healthy", "not_enough_data"}):
            states.add_metric([name, kind], kind == holds[name])
        for alarm in verdict.alarms:
            effect.add_metric([name, (drift.mix_by or "") if alarm.unit else "", alarm.unit], alarm.effect)
    yield from (states, effect)
    for family, text, field in (
        ("verdict_end_timestamp_seconds", "End of the hour that the newest verdict is about.", "end"),
        ("drift_observed_ratio", "Observed mean of the last day, as verdicts judge it.", "observed"),
        ("drift_expected_ratio", "What the baseline expects for the same hours and mix.", "expected"),
        ("mix_shifted", "Whether the mix of slices has moved the mean.", "mix_shifted"),
        ("mix_effect_ratio", "By how much the mix has moved the mean, as a share of it.", "mix_effect"),
        (
            "baseline_offered",
            "Whether rankmon proposes a new baseline: the level has been above the old one for a week.",
            "improved",
        ),
        ("level_decayed", "Whether the level has fallen since the reference, too slowly for an alarm.", "decayed"),
        ("level_change_ratio", "Relative change of the mean in the last days against the reference.", "moved"),
    ):
        gauge = GaugeMetricFamily(f"rankmon_{family}", text, labels=["monitor"])
        for name, _, verdict in judged:
            if (number := getattr(verdict, field)) is not None:
                gauge.add_metric([name], number)
        yield gauge


def _limits(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """Baselines and thresholds of the newest judged windows, by the unit of what they are compared with."""
    for unit, suffix in (("ratio", "_ratio"), ("gain", "")):
        for name, field, text in (
            ("baseline", "baseline", "Baseline of the newest judged window."),
            ("alert_threshold", "fires_below", "Where an alert rule fires: below, or above if lower is better."),
        ):
            of_rule = ("rule",) if name == "baseline" else ("rule", "severity")
            overall = GaugeMetricFamily(f"rankmon_{name}{suffix}", text, labels=(*LABELS, *of_rule))
            slices = GaugeMetricFamily(
                f"rankmon_slice_{name}{suffix}", f"Of one slice. {text}", labels=(*LABELS, *of_rule, *SLICE_LABELS[4:])
            )
            for snapshot in snapshots:
                for reading in snapshot.readings:
                    number = getattr(reading.evaluation, field)
                    if number is None or _unit(reading.rule) != unit:
                        continue
                    labels = _limit_labels(snapshot, reading.rule)[: len(LABELS) + len(of_rule)]
                    if reading.key == OVERALL:
                        overall.add_metric(labels, number)
                    else:
                        slices.add_metric([*labels, *reading.key], number)
            yield from (f for f in (overall, slices) if f.samples)


def _unit(rule: Rule) -> str:
    unit = "ratio" if rule.measure is None else rule.measure.spec.unit
    return "gain" if unit == "position" else unit  # neither has a suffix


def _limit_labels(snapshot: MonitorSnapshot, rule: Rule) -> list[str]:
    monitor = snapshot.monitor
    series = [monitor.name, rule.judged, format_duration(rule.window), monitor.judged_definition(rule).id]
    return [*series, rule.name, rule.severity]


def _progress(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """Where each monitor stands."""
    for name, text, field in (
        ("last_attempt_timestamp_seconds", "Start of the last cycle.", "last_attempt_at"),
        ("last_success_timestamp_seconds", "End of the last successful cycle.", "last_success_at"),
        ("source_newest_timestamp_seconds", "Time of the newest request in the source.", "newest_source_at"),
    ):
        family = GaugeMetricFamily(f"rankmon_{name}", text, labels=["monitor"])
        for snapshot in snapshots:
            if (at := getattr(snapshot.progress, field)) is not None:
                family.add_metric([snapshot.monitor.name], at)
        yield family
    for name, text, field in (
        ("source_future_rows", "Rows of the source dated later than now.", "future_rows"),
        ("provisional_buckets", "Buckets whose labels may still arrive.", "provisional_buckets"),
        ("due_buckets", "Due buckets left for the next cycle.", "due_buckets"),
        (
            "unmatched_events",
            "Events of the longest window that match no impression within the attribution.",
            "unmatched",
        ),
    ):
        family = GaugeMetricFamily(f"rankmon_{name}", text, labels=["monitor"])
        for snapshot in snapshots:
            if (number := getattr(snapshot, field)) is not None:
                family.add_metric([snapshot.monitor.name], number)
        yield family
    refused = GaugeMetricFamily(
        "rankmon_refused_rows", "Refused rows in the longest window.", labels=["monitor", "reason"]
    )
    for snapshot in snapshots:
        for reason, rows in sorted(snapshot.refused.items()):
            refused.add_metric([snapshot.monitor.name, reason], rows)
    yield refused
    yield from _places(snapshots)
    yield from _holdings(snapshots)
    yield from _info(snapshots)


def _places(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """How many values of each dimension have a series of their own, and how many can."""
    names = ["monitor", "dimension"]
    most = GaugeMetricFamily("rankmon_slice_places", "Values that can have a series of their own.", labels=names)
    taken = GaugeMetricFamily(
        "rankmon_slice_places_taken", "Values that have one, whether seen recently or not.", labels=names
    )
    for snapshot in snapshots:
        for dimension in snapshot.monitor.slices:
            if (number := snapshot.places.get(dimension.dimension)) is not None:
                labels = [snapshot.monitor.name, dimension.dimension]
                most.add_metric(labels, dimension.max_values)
                taken.add_metric(labels, number)
    yield from (most, taken)


def _holdings(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    """How much the store holds of each monitor."""
    for name, text, field in (
        ("stored_rows", "Bucket rows in the store.", "rows"),
        ("stored_coarse_rows", "Bucket rows in the store that were rolled up.", "coarse_rows"),
        ("oldest_bucket_timestamp_seconds", "Start of the oldest bucket in the store.", "oldest"),
    ):
        family = GaugeMetricFamily(f"rankmon_{name}", text, labels=["monitor"])
        for snapshot in snapshots:
            if snapshot.holding is not None and (number := getattr(snapshot.holding, field)) is not None:
                family.add_metric([snapshot.monitor.name], number)
        yield from [family] if family.samples else []


def _info(snapshots: Sequence[MonitorSnapshot]) -> Iterator[Metric]:
    info = GaugeMetricFamily("rankmon_monitor_info", "Labels and runbook of a monitor, to join on.")
    for snapshot in snapshots:
        monitor = snapshot.monitor
        runbook = {"runbook_url": monitor.runbook_url} if monitor.runbook_url else {}
        info.add_sample("rankmon_monitor_info", {"monitor": monitor.name, **runbook, **dict(monitor.labels)}, 1)
    yield info
    for name, text, field in (
        ("monitor_refresh_seconds", "Time between two runs of a monitor.", "refresh"),
        ("monitor_deadline_seconds", "Time limit of one run of a monitor.", "deadline"),
        ("monitor_ingest_delay_seconds", "How late rankings may arrive.", "ingest_delay"),
        ("monitor_stale_after_seconds", "Longest normal time without a request.", "stale_after"),
    ):
        family = GaugeMetricFamily(f"rankmon_{name}", text, labels=["monitor"])
        for snapshot in snapshots:
            family.add_metric([snapshot.monitor.name], getattr(snapshot.monitor, field))
        yield family


def _own(telemetry: Telemetry) -> Iterator[Metric]:
    counts = telemetry.counts()
    for name, (text, labels) in COUNTERS.items():
        family = CounterMetricFamily(name, text, labels=labels)
        for (counted, values), number in sorted(counts.items()):
            if counted == name:
                family.add_metric(values, number)
        yield family
    stages = SummaryMetricFamily(
        "rankmon_stage_duration_seconds", "Duration of the stages of a cycle, real time.", labels=["monitor", "stage"]
    )
    for labels_of, (runs, seconds) in sorted(telemetry.stages().items()):
        stages.add_metric(labels_of, runs, seconds)
    yield stages


def _queues(telemetry: Telemetry) -> Iterator[Metric]:
    """Notifications that wait."""
    length = GaugeMetricFamily(
        "rankmon_notification_queue_length", "Notifications not delivered yet.", labels=["channel"]
    )
    oldest = GaugeMetricFamily(
        "rankmon_notification_oldest_timestamp_seconds",
        "When the oldest queued notification was created.",
        labels=["channel"],
    )
    receivers = GaugeMetricFamily("rankmon_notification_receivers", "Receivers of the channel.", labels=["channel"])
    stuck = GaugeMetricFamily(
        "rankmon_notification_receivers_stuck",
        "Receivers that do not accept what waits for them.",
        labels=["channel"],
    )
    for channel, queue in sorted(telemetry.queues.items()):
        length.add_metric([channel], queue.length)
        if queue.oldest_at is not None:
            oldest.add_metric([channel], queue.oldest_at)
        receivers.add_metric([channel], queue.receivers)
        stuck.add_metric([channel], queue.stuck)
    yield from (length, oldest, receivers, stuck)
