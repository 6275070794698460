"""A monitor with an alert rule over made-up buckets, and what the page shows of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from monitor.clock import Clock, ReplayClock
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.measures.measure import parse
from monitor.messages.words import CALLED
from monitor.series.partials import Partials
from monitor.service.history import SeriesHistory, extend_series, extend_verdicts
from monitor.service.snapshot import Board, MonitorSnapshot, take_snapshot
from monitor.store import Store
from monitor.types import OVERALL, Column, Monitor, Slice
from tests.support.tallies import HOUR, RANKINGS

DAY = 86_400
START = 1_640_995_200
"""2022-01-01 00:00 UTC."""

RULE = Rule(
    "drop", parse("ndcg@10"), DAY, Drop(0.07, 0.04, True, Baseline(trailing=7 * DAY)), 6 * HOUR, 6 * HOUR, retrain=True
)

Value = Callable[[int, str], float | None]
"""Mean of a bucket and device from its start; None leaves the bucket out."""


def watched(name: str = "search", **changes: Any) -> Monitor:
    """A monitor of one measure by device, with one rule."""
    given: dict[str, Any] = {"alerts": (RULE,), "lookback": 60 * DAY} | changes
    return Monitor(name, "shop", RANKINGS, Column("grade"), (parse("ndcg@10"),), (Slice("device", "device"),), **given)


def fell(since: int, until: int, by: float = 0.2) -> Value:
    """0.8, and on mobile less by so much in [since, until)."""
    return lambda start, device: 0.8 - (by if device == "mobile" and since <= start < until else 0.0)


def fill(
    store: Store,
    monitor: Monitor,
    starts: Sequence[int],
    value: Value,
    devices: tuple[str, ...] = ("desktop", "mobile"),
    labelled: float = 1.0,
    dimension: str = "device",
) -> None:
    """Store a final bucket for each start, and judge what has become final."""
    tallied, read = Partials(min(starts), max(starts) + HOUR), []
    for start in starts:
        means = {d: m for d in devices if (m := value(start, d)) is not None}
        if means:
            read.append(start)
            _add(tallied, monitor, start, {(dimension, d): m for d, m in means.items()}, labelled)
    with store.hold(monitor.name) as lease:
        store.write(lease, monitor, tallied, dict.fromkeys(monitor.definitions, read), 1e6, read)
        judge_monitor(monitor, tallied.until, store, lease, Recipients({"log": ("log",)}, "http://page/", 1.0, True))


def _add(tallied: Partials, monitor: Monitor, start: int, means: dict[tuple[str, str], float], labelled: float) -> None:
    """One bucket: 50 requests a device, whose values lie around the mean."""
    kernel = str(monitor.measures[0].kernel)
    cells = {key: np.array([50, 0, 50 * m, 50 * (m * m + 0.01), *[0.0] * 5]) for key, m in means.items()}
    cells[OVERALL] = np.sum(list(cells.values()), axis=0)
    tallied.measures.setdefault(kernel, {}).update({(start, *key): sums for key, sums in cells.items()})
    for key, sums in cells.items():
        shown = 10 * sums[0]
        crowd = [sums[0], sums[0] * labelled, shown, shown * labelled, 0, 0, 0, sums[0]]
        tallied.traffic[(start, *key)] = np.array(crowd)
    tallied.admitted = list(dict.fromkeys([*tallied.admitted, *means]))


def shown(store: Store, monitor: Monitor, now: float, former: tuple[SeriesHistory, ...] = ()) -> MonitorSnapshot:
    """What a daemon's board would hold."""
    histories, verdicts = extend_series(monitor, store, now, former), extend_verdicts(monitor, store, now, None)
    return replace(take_snapshot(monitor, store, now), histories=histories, verdict_history=verdicts)


@dataclass
class PageSource:
    """Snapshots as the page takes them."""

    clock: Clock
    board: Board = field(default_factory=Board)
    called: str = CALLED
    notice: str = ""

    @classmethod
    def of(cls, now: float, *snapshots: MonitorSnapshot) -> "PageSource":
        """At a moment that does not pass."""
        made = cls(ReplayClock(now, 0))
        for snapshot in snapshots:
            made.board.publish(snapshot)
        return made

    def pending(self) -> str:
        return ""

    def health(self) -> str:
        """Nothing is wrong."""
        return ""

    def refused(self) -> str:
        return ""

    def next_run_at(self, name: str) -> float | None:
        """Nothing is scheduled."""
        return None
