"""Open incidents of a monitor are withdrawn once nobody runs it any more, and not before."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.config import load
from monitor.errors import StoreError
from monitor.evaluation.notices import Recipients
from monitor.service.app import App
from monitor.service.election import PATIENCE
from monitor.service.orphaned import OrphanedIncidents
from monitor.service.periodic import LONGEST_RETRY, PeriodicTask
from monitor.store import Store
from tests.cli.test_incidents_cli import run
from tests.evaluation.test_judging import HOUR, RULE, Bench
from tests.support.monitors import new_store
from tests.support.tallies import watched

LONG = PATIENCE * LONGEST_RETRY


class Daemon:
    """A daemon configured with these monitors, reduced to its search for orphaned incidents."""

    def __init__(self, bench: Bench, *names: str) -> None:
        self.bench = bench
        self.names = [*names]
        self.now = 1000.0
        self.woken = 0
        self.orphaned = OrphanedIncidents(bench.store, lambda: self.names, self, lambda: self.now)

    def recipients(self) -> Recipients:
        return Recipients(self.bench.channels)

    def wake(self) -> None:
        self.woken += 1

    def look(self, later: float = 0.0) -> list[str]:
        """The states of all incidents after one more look."""
        self.now += later
        self.orphaned.withdraw()
        return [s.incident.state for s in self.bench.incidents]

    def run_elsewhere(self) -> None:
        with self.bench.store.hold("search"):
            pass


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    monitor = replace(watched(), windows=(HOUR,), alerts=(RULE,), notify=("team",))
    made = Bench(store, monitor)
    made.live(0.4, 0.4)
    return made


def test_an_orphaned_incident_is_withdrawn_and_notified(bench: Bench) -> None:
    daemon = Daemon(bench, "other")
    assert daemon.look() == ["firing"]
    assert daemon.look(LONG - 1) == ["firing"]
    assert daemon.look(1) == ["withdrawn"]
    assert bench.notices == [("team", "firing"), ("team", "withdrawn")]
    assert daemon.woken == 1
    assert daemon.look(LONG) == ["withdrawn"]
    assert len(bench.notices) == 2


def test_a_monitor_run_by_another_daemon_is_left_alone(bench: Bench) -> None:
    daemon = Daemon(bench)
    for _ in range(20):
        daemon.run_elsewhere()
        assert daemon.look(LONG) == ["firing"]
    assert daemon.look(LONG) == ["withdrawn"]


def test_a_rarely_run_monitor_gets_more_time(bench: Bench) -> None:
    bench.store.record("search", refresh=6.0 * HOUR)
    daemon = Daemon(bench)
    daemon.look()
    assert daemon.look(PATIENCE * 6 * HOUR - 1) == ["firing"]
    assert daemon.look(1) == ["withdrawn"]


def test_a_monitor_configured_here_is_not_orphaned(bench: Bench) -> None:
    daemon = Daemon(bench, "search")
    for _ in range(3):
        assert daemon.look(LONG) == ["firing"]


def test_a_returning_monitor_restarts_the_wait(bench: Bench) -> None:
    daemon = Daemon(bench)
    daemon.look()
    daemon.names.append("search")
    daemon.look(LONG)
    daemon.names.clear()
    assert daemon.look() == ["firing"]
    assert daemon.look(LONG - 1) == ["firing"]


def test_withdrawal_waits_while_another_holds_the_lease(bench: Bench) -> None:
    daemon = Daemon(bench)
    daemon.look()
    other = Store(bench.store.engine.url, 20)
    with other.hold("search"):
        daemon.look()
        assert daemon.look(LONG) == ["firing"]
    other.close()
    daemon.look()
    assert daemon.look(LONG) == ["withdrawn"]


def test_the_search_continues_after_a_store_outage(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.service.election.PATIENCE", 0)
    failures = [StoreError("away")] * 3
    watched_there = bench.store.alerts.watched

    def flaky() -> list[str]:
        if failures:
            raise failures.pop()
        return watched_there()

    monkeypatch.setattr(bench.store.alerts, "watched", flaky)
    daemon = Daemon(bench)
    task = PeriodicTask("orphaned incidents", daemon.orphaned.withdraw, 0.01)
    task.start()
    until = time.monotonic() + 10
    while bench.incidents[0].incident.is_open:
        assert time.monotonic() < until
        time.sleep(0.01)
    task.end()
    task.join()


CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{shop: {{url: "sqlite:///{folder}/shop.db"}}}}
web: {{listen: "127.0.0.1:0"}}
monitors:
  - name: other
    source: shop
    rankings: {{table: log, request: r, item: i, position: p, time: t}}
    relevance: {{column: {{grade: g}}}}
    measures: [ndcg@10]
"""


def test_a_single_run_with_another_configuration_closes_nothing(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "rankmon.yaml").write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    assert run(tmp_path, "once") != 0
    assert run(tmp_path, "backfill", "--from", "2026-02-02", "--to", "2026-02-03") != 0
    assert [s.incident.state for s in bench.incidents] == ["firing"]


def test_a_daemon_with_another_configuration_closes_nothing_at_its_start(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "rankmon.yaml").write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    app = App(load(tmp_path / "rankmon.yaml", {}))
    app.prepare()
    app.start()
    app.stop()
    assert [s.incident.state for s in bench.incidents] == ["firing"]


def test_a_withdrawal_reaches_the_channels_notified_before(bench: Bench) -> None:
    """Otherwise the alert would stay open at a receiver that only the other daemon has."""
    daemon = Daemon(bench, "other")
    bench.channels = {"log": ("log",)}
    daemon.look()
    assert daemon.look(LONG) == ["withdrawn"]
    assert bench.notices == [("team", "firing"), ("team", "withdrawn")]


def test_two_watching_daemons_withdraw_an_incident_once(bench: Bench) -> None:
    first, second = Daemon(bench, "a"), Daemon(bench, "b")
    for _ in range(int(LONG // 5)):
        first.look(5)
        assert second.look(5) == ["firing"]
    first.look(5)
    assert second.look(5) == ["withdrawn"]
    assert bench.notices == [("team", "firing"), ("team", "withdrawn")]
