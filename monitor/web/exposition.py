"""`/metrics`: a collector over the board of snapshots. It queries no database; what leaves the board leaves here."""

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
from monitor.service.snapshot import Board, MonitorSnapshot
from monitor.service.telemetry import COUNTERS, Telemetry
from monitor.web.gauges import of_monitors

QUEUES = (
    ("length", "notification_queue_length", "Notifications not delivered yet."),
    ("oldest_at", "notification_oldest_timestamp_seconds", "When the oldest queued notification was created."),
    ("receivers", "notification_receivers", "Receivers of the channel."),
    ("stuck", "notification_receivers_stuck", "Receivers that do not accept what waits for them."),
)
"""(field of a QueueStatus, name, help) of each channel's gauges."""

REAL = ("rankmon_notification_oldest_timestamp_seconds", "rankmon_silenced_until_timestamp_seconds")
"""Instants that are real even in a replay."""

MAX_FORMATS = 4
"""Formats whose texts are cached; one Prometheus asks for one."""

Encoder = Callable[[Collector], bytes]
_FAMILY = re.compile(rb"(^# HELP .*\n(?:^# (?:TYPE|UNIT) .*\n)*)((?:^[^#].*\n)*)", re.MULTILINE)
_END = b"# EOF\n"


class RankmonCollector(Collector):
    """Builds every family from the board and the process's own counters."""

    def __init__(self, board: Board, telemetry: Telemetry, clock: Clock) -> None:
        self._board = board
        self._telemetry = telemetry
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """All families in a fixed order; a replay's instants are shifted to look live."""
        snapshots = [snapshot for _, snapshot in sorted(self._board.snapshots.items())]
        for family in (*of_monitors(snapshots), *_of_process(self._telemetry)):
            if isinstance(self._clock, ReplayClock) and _is_replayed(family):
                real, now, speed = time.time(), self._clock.now(), self._clock.speed or 1
                family.samples = [s._replace(value=real - (now - s.value) / speed) for s in family.samples]
            yield family


def _is_replayed(family: Metric) -> bool:
    return family.name.endswith("_timestamp_seconds") and family.name not in REAL


def _of_process(telemetry: Telemetry) -> Iterator[Metric]:
    counts = sorted(telemetry.counts().items())
    for name, (text, labels) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=labels)
        for (counted, values), number in counts:
            if counted == name:
                counter.add_metric(values, number)
        yield counter
    stages = SummaryMetricFamily(
        "rankmon_stage_duration_seconds", "Duration of the stages of a cycle, real time.", labels=["monitor", "stage"]
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
    build = GaugeMetricFamily("rankmon_build_info", "Version of rankmon.", labels=["version", "python"])
    build.add_metric([__version__, platform.python_version()], 1)
    yield build


def registry(board: Board, telemetry: Telemetry, clock: Clock | None = None) -> CollectorRegistry:
    """A new registry with the collector and the process's memory, CPU time and open files."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    made = CollectorRegistry(auto_describe=False)
    made.register(RankmonCollector(board, telemetry, clock or SystemClock()))
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    return made


# ---- the text, of which a monitor's part is kept --------------------------------------------------------------------


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exposition:
    """The text of `/metrics`, as prometheus_client writes it; a monitor's part is cached until its next snapshot."""

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
        """(text, content type) for an Accept header."""
        encode, kind = choose_encoder(accept)
        if self._is_replay:  # its instants move with each scrape
            return encode(self.registry), kind
        rest = [encode(_Families(_of_process(self._telemetry))), encode(self._process)]
        families = _merged(self._monitors(encode, kind))
        end = _END if rest[0].endswith(_END) else b""
        return b"".join([*families, *(text.removesuffix(_END) for text in rest), end]), kind

    def _monitors(self, encode: Encoder, kind: str) -> list[dict[bytes, bytes]]:
        former, kept = self._kept.get(kind, {}), {}
        for name, snapshot in sorted(self._board.snapshots.items()):
            is_new = name not in former or former[name][0] is not snapshot
            kept[name] = (snapshot, _written(encode, [snapshot])) if is_new else former[name]
        others = [(k, v) for k, v in self._kept.items() if k != kind]
        self._kept = dict([*others[1 - MAX_FORMATS :], (kind, kept)])
        return [families for _, families in kept.values()]


def _written(encode: Encoder, snapshots: Sequence[MonitorSnapshot]) -> dict[bytes, bytes]:
    return dict(_FAMILY.findall(encode(_Families(of_monitors(snapshots)))))


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
