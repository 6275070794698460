"""The daemon's counters about itself, in memory: they start at zero with the process, as Prometheus expects."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

Key = tuple[str, ...]

MONITOR, CHANNEL = ("monitor",), ("channel",)

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        f"rankmon_{name}": (text, labels)
        for name, text, labels in (
            ("evaluations", "Successful cycles.", MONITOR),
            ("evaluation_failures", "Failed cycles, and failures after a cycle, by reason.", ("monitor", "reason")),
            ("skipped_runs", "Cycles that were due but did not run, by reason.", ("monitor", "reason")),
            (
                "source_rows",
                "Rows sent by the source plus, for push-down, rankings it summed.",
                MONITOR,
            ),
            ("buckets_stored", "Buckets read and stored, for the first time or again.", MONITOR),
            ("late_buckets", "Final buckets read again because rankings for them arrived late.", MONITOR),
            ("audits", "Final buckets read again in other ways to audit the store, by result.", ("monitor", "result")),
            ("notifications_sent", "Notifications accepted by their receiver.", CHANNEL),
            ("notification_failures", "Failed attempts to notify.", CHANNEL),
            ("notifications_dropped", "Notifications that were dropped.", CHANNEL),
            ("template_failures", "Notifications in which one of your templates failed.", ("template",)),
            ("config_reloads", "Reloads of the configuration, by result.", ("result",)),
        )
    }
)
"""Name (without `_total`) -> (help, labels)."""

_PER_MONITOR = {name for name, (_, labels) in COUNTERS.items() if labels[0] == "monitor"}


@dataclass(frozen=True)
class QueueStatus:
    """A channel's queue: notifications times receivers, and receivers that accept nothing.

    `oldest_at` in real seconds since 1970.
    """

    length: int = 0
    oldest_at: float | None = None
    receivers: int = 1
    stuck: int = 0


class Telemetry:
    """Counters, stage durations and queues. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Key], float] = defaultdict(float)
        self._stages: dict[Key, tuple[int, float]] = {}
        self._forgotten: set[str] = set()
        self.queues: Mapping[str, QueueStatus] = MappingProxyType({})
        """Channel -> queue, as of a few seconds ago. Replaced as a whole."""
        self.refused = ""
        """Why the last reload of the configuration was refused; else empty."""

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter of `COUNTERS`; `by=0` makes it visible."""
        with self._lock:
            if name not in _PER_MONITOR or labels[0] not in self._forgotten:
                self._counts[name, labels] += by

    @contextmanager
    def stage(self, monitor: str, stage: str) -> Iterator[None]:
        """Time one stage of a cycle in real seconds."""
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            with self._lock:
                if monitor not in self._forgotten:
                    runs, seconds = self._stages.get((monitor, stage), (0, 0.0))
                    self._stages[monitor, stage] = (runs + 1, seconds + took)

    def forget(self, monitor: str) -> None:
        """Drop a removed monitor's counts, and ignore those of a run in progress."""
        with self._lock:
            self._forgotten.add(monitor)
            for key in [k for k in self._counts if k[0] in _PER_MONITOR and k[1][0] == monitor]:
                del self._counts[key]
            for stage in [k for k in self._stages if k[0] == monitor]:
                del self._stages[stage]

    def expect(self, monitor: str) -> None:
        """Count for a monitor, even if it was forgotten before."""
        with self._lock:
            self._forgotten.discard(monitor)

    def counts(self) -> dict[tuple[str, Key], float]:
        """(name, label values) -> count."""
        with self._lock:
            return dict(self._counts)

    def stages(self) -> dict[Key, tuple[int, float]]:
        """(monitor, stage) -> (runs, total seconds)."""
        with self._lock:
            return dict(self._stages)
