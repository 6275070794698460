"""A scrape of many monitors through the real server, against prometheus_client serving as many plain gauges."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from monitor.config import load
from monitor.evaluation.run import judge_monitor
from monitor.service.app import App
from monitor.service.snapshot import MonitorSnapshot, take_snapshot
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved
from tests.support.drift import Ranking, day
from tests.support.simulated import put

MONITORS, SLICES, DAYS = 200, 20, 70
DIFFERENT = 2
"""Simulated monitors; the others show the same numbers under other names."""

AIM, AIM_OF_ALL = 0.5, 1.5
"""Times the peer: where most monitors have not run since the last scrape, and where all have."""
REFRESHED = 20
"""One monitor in so many has run between two scrapes: scrapes every 15 s, runs every 5 minutes."""

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus asks for."""

CONFIG = """\
store: {{url: "sqlite:///{folder}/scraped.db"}}
web: {{listen: "127.0.0.1:0"}}
sources: {{shop: {{url: "sqlite:///{folder}/none.db"}}}}
defaults: {{source: shop, windows: [24h, 7d, 28d]}}
monitors:
"""
MONITOR = """\
  - name: search-{number}
    rankings: {{table: rankings, request: request, item: item, position: position, time: time}}
    relevance: {{column: {{grade: grade, max_grade: 3}}}}
    slices: [device]
    measures: [ndcg@10]
    drift: {{}}
    alerts: [{{name: low, measure: ndcg@10, window: 24h, floor: 0.1, slices: [device]}}]
"""

REMARKS = """\
{monitors} monitors of one measure, {slices} slices and 3 windows, with an alert rule on the slices and verdicts:
{samples:,} samples, {megabytes:.1f} MB of text, requested as Prometheus does, {packed}. The peer serves the same
samples from plain gauges in a registry, by its own server. Both run in this process, as does the client: each time
includes its few milliseconds. Ratios are to the peer."""


def sections(
    folder: Path, monitors: int = MONITORS, slices: int = SLICES, days: int = DAYS, rounds: int = 7
) -> Iterator[Section]:
    """A table for plain answers and one for compressed ones."""
    with _served(folder, monitors, slices, days) as (app, peer):
        for encoding, packed in (("identity", "not compressed"), ("gzip", "compressed by gzip")):
            yield _section(app, peer, encoding, packed, rounds)


@dataclass(frozen=True)
class _Peer:
    """The server of plain gauges, and what it holds."""

    port: int
    samples: int
    size: int


def _section(app: App, peer: _Peer, encoding: str, packed: str, rounds: int) -> Section:
    title = f"A scrape of {len(app.board.snapshots)} monitors, {packed}"
    slices = len({p.slice for s in next(iter(app.board.snapshots.values())).series for p in s.final}) - 1
    facts = {"samples": peer.samples, "megabytes": peer.size / 1e6, "packed": packed, "slices": slices}
    remarks = REMARKS.format(monitors=len(app.board.snapshots), **facts)
    lines = [
        *_lines(app, peer, encoding, rounds, time.process_time, "processor time"),
        *_lines(app, peer, encoding, rounds, time.perf_counter, "time"),
    ]
    return Section(title, ("what", "time", "ratio", "aim", "met"), lines, remarks)


def _lines(app: App, peer: _Peer, encoding: str, rounds: int, clock: Callable[[], float], what: str) -> Iterator[Line]:
    everybody = list(app.board.snapshots)
    turns = cycle(everybody)

    def ask_rankmon() -> None:
        _ask(app.web.port, encoding)

    def after_runs() -> None:
        _run(app, list(islice(turns, max(1, len(everybody) // REFRESHED))))
        ask_rankmon()

    def after_all() -> None:
        _run(app, everybody)
        ask_rankmon()

    calls: list[tuple[str, Callable[[], Any]]] = [
        ("peer", lambda: _ask(peer.port, encoding)),
        ("idle", ask_rankmon),
        ("some", after_runs),
        ("all", after_all),
    ]
    for _, call in calls:
        call()
    taken = interleaved(calls, rounds, clock)
    named = {
        "peer": f"prometheus_client, {what}",
        "idle": f"rankmon, nothing new since the last scrape, {what}",
        "some": f"rankmon, one monitor in {REFRESHED} has run since, {what}",
        "all": f"rankmon, every monitor has run since, {what}",
    }
    aims = {"idle": AIM, "some": AIM, "all": AIM_OF_ALL}
    for key, text in named.items():
        yield Line(text, duration(taken[key]), taken[key] / taken["peer"], aims.get(key), "at most")


def _run(app: App, names: Sequence[str]) -> None:
    """New windows of these monitors, of the same values."""
    for name in names:
        was = app.board.snapshots[name]
        app.board.publish(replace(was, series=tuple(replace(s) for s in was.series)))


def _ask(port: int, encoding: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Accept": ACCEPT, "Accept-Encoding": encoding})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200 or (answer.getheader("Content-Encoding") == "gzip") != (encoding == "gzip"):
        raise RuntimeError(f"{answer.status}, {answer.getheader('Content-Encoding')}")
    return body


# ---- what is served --------------------------------------------------------------------------------------------------


@contextmanager
def _served(folder: Path, monitors: int, slices: int, days: int) -> Iterator[tuple[App, _Peer]]:
    """The daemon's web server with so many monitors on its board, and the peer with the same samples."""
    path = folder / "scraped.yaml"
    names = "".join(MONITOR.format(number=n) for n in range(monitors))
    path.write_text(CONFIG.format(folder=folder) + names, encoding="utf-8")
    app = App(load(path, {}))
    app.prepare()
    _publish(app, slices, days)
    app.web.start()
    text = app.metrics("")[0].decode()
    registry = _as_gauges(text)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    samples = sum(not line.startswith("#") for line in text.splitlines())
    try:
        yield app, _Peer(server.server_port, samples, len(text))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        app.web.stop()
        app.close()


def _publish(app: App, slices: int, days: int) -> None:
    """Snapshots of all monitors, taken of what was stored and judged of the first few."""
    taken = [_taken(app, number, slices, days) for number in range(min(DIFFERENT, len(app.config.monitors)))]
    for number, monitor in enumerate(app.config.monitors):
        was = taken[number % len(taken)]
        series = tuple(replace(s, definition=monitor.definition(s.measure)) for s in was.series)
        app.board.publish(replace(was, monitor=monitor, series=series))


def _taken(app: App, number: int, slices: int, days: int) -> MonitorSnapshot:
    monitor, now = app.config.monitors[number], day(days)
    put(app.store, monitor, Ranking.of(days, slices=slices, peak=4000, seed=number).draw(number))
    with app.store.hold(monitor.name) as lease:
        judge_monitor(monitor, now, app.store, lease, app.recipients())
    return take_snapshot(monitor, app.store, now)


def _as_gauges(text: str) -> CollectorRegistry:
    """A registry of plain gauges with just these samples."""
    registry, made = CollectorRegistry(auto_describe=False), dict[str, Gauge]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            names = sorted(sample.labels)
            if sample.name not in made:
                made[sample.name] = Gauge(sample.name, family.documentation, names, registry=registry)
            gauge = made[sample.name]
            (gauge.labels(**sample.labels) if names else gauge).set(sample.value)
    return registry
