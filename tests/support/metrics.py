"""What `/metrics` should say, as prometheus_client itself collects and writes it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from monitor.service.snapshot import Board
from monitor.service.telemetry import Telemetry
from monitor.web.exposition import of_process
from monitor.web.gauges import of_monitors


class RankmonCollector(Collector):
    """Every family of the board and of the process, in a fixed order."""

    def __init__(self, board: Board, telemetry: Telemetry) -> None:
        self.board = board
        self.telemetry = telemetry

    def collect(self) -> Iterator[Metric]:
        yield from of_monitors([snapshot for _, snapshot in sorted(self.board.snapshots.items())])
        yield from of_process(self.telemetry)


def registry(board: Board, telemetry: Telemetry) -> CollectorRegistry:
    disable_created_metrics()
    made = CollectorRegistry(auto_describe=False)
    made.register(RankmonCollector(board, telemetry))
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    return made
