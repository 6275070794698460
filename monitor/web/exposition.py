"""`/metrics`: the board of snapshots as text. It queries no database; series disappear when they leave the board."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from monitor import __version__
from monitor.clock import Clock, ReplayClock
from monitor.service.snapshot import Board, MonitorSnapshot
from monitor.service.telemetry import COUNTERS, Telemetry
from monitor.web.gauges import of_monitors

QUEUES = (
    ("length", "notification_queue_length", "Notifications not yet delivered."),
    ("oldest_at", "notification_oldest_timestamp_seconds", "When the oldest queued notification was created."),
    ("receivers", "notification_receivers", "Receivers of the channel."),
    ("stuck", "notification_receivers_stuck", "Receivers that do not accept their queued notifications."),
)
"""(field of a QueueStatus, name, help) of each channel's gauges."""

REAL = "rankmon_silenced_until_timestamp_seconds"
"""Its instants are real even in a replay."""

MAX_FORMATS = 4
"""Formats whose texts are cached; one Prometheus asks for one."""

Encoder = Callable[[Collector], bytes]
_FAMILY = re.compile(rb"(^# HELP .*\n(?:^# (?:TYPE|UNIT) .*\n)*)((?:^[^#].*\n)*)", re.MULTILINE)
_END = b"# EOF\n"


def of_process(telemetry: Telemetry) -> Iterator[Metric]:
    """The counters, stages and queues of the process, and which rankmon it is."""
    counts = sorted(telemetry.counts().items())
    for name, (text, labels) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        for (counted, values), number in counts:
            if counted == name:
                counter.add_metric(values, number)
        yield counter
    stages = SummaryMetricFamily(
        "rankmon_stage_duration_seconds",
        "Duration of each stage of a cycle, in real time.",
        labels=["monitor", "stage"],
    )
    for of, (runs, seconds) in sorted(telemetry.stages().items()):
        stages.add_metric(of, runs, seconds)
    yield stages
    for field, name, text in QUEUES:
        gauge = GaugeMetricFamily(f"rankmon_{name}", text, labels=["channel"])
        for channel, queue in sorted(telemetry.queues.items()):
            if (number := getattr(queue, field)) is not None:
                gauge.add_metric([channel], number)
        yield gauge
    loaded = "Whether the configuration in use is that of the last reload; 0 if it was refused."
    yield GaugeMetricFamily("rankmon_config_last_reload_successful", loaded, 0 if telemetry.refused else 1)
    build = GaugeMetricFamily("rankmon_build_info", "Version of rankmon.", labels=["version", "python"])
    build.add_metric([__version__, platform.python_version()], 1)
    yield build


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exposition:
    """The text of `/metrics`, as prometheus_client writes it; a monitor's part is cached until its next snapshot."""

    def __init__(self, board: Board, telemetry: Telemetry, clock: Clock | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._board = board
        self._telemetry = telemetry
        self._clock = clock
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        self._kept: dict[str, dict[str, tuple[MonitorSnapshot, dict[bytes, bytes]]]] = {}

    def text(self, accept: str) -> tuple[bytes, str]:
        """(text, content type) for an Accept header."""
        encode, kind = choose_encoder(accept)
        rest = [encode(_Families(of_process(self._telemetry))), encode(self._process)]
        families = _merged(self._monitors(encode, kind))
        end = _END if rest[0].endswith(_END) else b""
        return b"".join([*families, *(text.removesuffix(_END) for text in rest), end]), kind

    def _monitors(self, encode: Encoder, kind: str) -> list[dict[bytes, bytes]]:
        former, kept = self._kept.get(kind, {}), {}
        for name, snapshot in sorted(self._board.snapshots.items()):
            # In a replay, instants move with each scrape.
            is_new = name not in former or former[name][0] is not snapshot or isinstance(self._clock, ReplayClock)
            kept[name] = (snapshot, self._written(encode, snapshot)) if is_new else former[name]
        others = [(k, v) for k, v in self._kept.items() if k != kind]
        self._kept = dict([*others[1 - MAX_FORMATS :], (kind, kept)])
        return [families for _, families in kept.values()]

    def _written(self, encode: Encoder, snapshot: MonitorSnapshot) -> dict[bytes, bytes]:
        families = of_monitors([snapshot])
        if isinstance(self._clock, ReplayClock):
            families = _as_if_live(families, self._clock)
        return dict(_FAMILY.findall(encode(_Families(families))))


def _as_if_live(families: Iterable[Metric], clock: ReplayClock) -> Iterator[Metric]:
    """With a replay's instants as old as they are to whoever watches it."""
    real, now, speed = time.time(), clock.now(), clock.speed or 1
    for family in families:
        if family.name.endswith("_timestamp_seconds") and family.name != REAL:
            family.samples = [s._replace(value=real - (now - s.value) / speed) for s in family.samples]
        yield family


def _merged(parts: Iterable[dict[bytes, bytes]]) -> Iterator[bytes]:
    """Each family once: its head, then the samples of all parts."""
    order: list[bytes] = []
    samples: dict[bytes, list[bytes]] = {}
    for part in parts:
        at = 0  # a family new in this part goes after the one it follows here
        for head, lines in part.items():
            if head not in samples:
                order.insert(at, head)
            at = order.index(head) + 1
            samples.setdefault(head, []).append(lines)
    for head in order:
        yield head
        yield from samples[head]
