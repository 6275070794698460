"""Two daemons on one store with different rules for a monitor: one judges, and the other says that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.engine import make_url

from monitor.conditions.rules import Floor
from monitor.service.election import PATIENCE, EvaluatorElection
from monitor.service.periodic import LONGEST_RETRY
from monitor.store import Store
from monitor.store.lease import holder_in_words
from monitor.types import Drift
from tests.evaluation.test_judging import RULE, Bench, bench
from tests.support.tallies import HOUR

__all__ = ["bench"]

STRICT = replace(RULE, limit=Floor(0.9, 0.9))


class Daemon:
    """One of several daemons on a store; to the store each looks like a process of its own."""

    def __init__(self, bench: Bench, **changes: object) -> None:
        monitor = replace(bench.monitor, **changes)  # type: ignore[arg-type]
        self.at = 0.0
        self.store = Store(make_url(str(bench.store.engine.url.render_as_string(hide_password=False))), 20)
        self.bench = replace(bench, store=self.store, monitor=monitor)
        self.election = EvaluatorElection(monitor, self.store, lambda: self.at)

    def run(self, hour: int) -> bool:
        """Runs at `hour`; returns whether it judged."""
        self.at += HOUR
        self.bench.hour = hour
        with self.store.hold("search") as lease:
            if not self.election.is_mine(lease):
                return False
        self.bench.judge()
        with self.store.hold("search") as lease:
            self.store.record("search", refresh=60.0, **self.election.taken(lease))
        return True


def test_only_the_first_of_two_daemons_with_different_rules_judges_and_pages(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    lenient, strict = Daemon(bench), Daemon(bench, alerts=(STRICT,))
    for hour in range(1, 13):
        bench.put(0.8 if hour < 3 else 0.4)
        assert lenient.run(hour)
        strict.at -= HOUR  # both look at the same time
        assert not strict.run(hour)
    assert [kind for _, kind in bench.notices] == ["firing"]
    (said,) = {record.getMessage() for record in caplog.records}
    assert said == (
        f"monitor search: {holder_in_words(lenient.store.leases.holder)} already evaluates it with different rules or "
        "another `drift`; this process will not. Give both the same configuration, or rename this monitor"
    )
    assert len(caplog.records) == 1
    lenient.store.leave()
    assert strict.run(13)
    assert not lenient.run(13)


def test_another_drift_setting_conflicts_but_other_notification_settings_do_not(bench: Bench) -> None:
    first, same = Daemon(bench), Daemon(bench, notify=("log",), runbook_url="https://wiki.example.com/")
    other = Daemon(bench, drift=Drift(bench.monitor.measures[0]))
    bench.put(0.8)
    assert first.run(1)
    assert same.run(1)
    assert not other.run(1)


def test_a_daemon_waits_a_limited_time_for_a_killed_evaluator(bench: Bench) -> None:
    killed, left = Daemon(bench), Daemon(bench, alerts=(STRICT,))
    bench.put(0.8)
    assert killed.run(1)
    assert not left.run(1)
    left.at += PATIENCE * LONGEST_RETRY - HOUR - 1
    assert not left.run(1)
    left.at += 1 - HOUR
    assert left.run(1)
