"""A real incident: the front page of Hacker News after 24 February 2022, found by a plain rule."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.evaluation.notices import Recipients
from monitor.evaluation.run import judge_monitor
from monitor.measures.measure import parse
from monitor.service.cycle import BatchSize, run_backfill
from monitor.service.runner import Runner
from monitor.service.snapshot import Board
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from monitor.store.alerts import Transition
from monitor.types import Monitor, RetrainRequests
from tests.support import hackernews
from tests.support.monitors import DAY, hacker_news, new_store, pull

FIRST = int(datetime(2022, 1, 31, tzinfo=UTC).timestamp())
LAST = int(datetime(2022, 3, 14, tzinfo=UTC).timestamp())
RULE = Rule(
    name="quality-drop",
    measure=parse("ndcg@10"),
    window=DAY,
    limit=Drop(0.07, 0.04, True, Baseline(trailing=21 * DAY)),
    lasting=DAY,
    resolve_lasting=3 * DAY,
    min_requests=20,
    retrain=True,
)


@pytest.fixture
def front_pages(database_url: str, shared: Path) -> str:
    hackernews.fill(database_url, shared / hackernews.FILE)
    return database_url


@pytest.fixture
def store(front_pages: str, tmp_path: Path) -> Iterator[Store]:
    """In the source's own database if that is PostgreSQL, so that both kinds of store are used."""
    made = new_store(f"sqlite:///{tmp_path}/store.db" if front_pages.startswith("sqlite") else front_pages)
    yield made
    made.close()


def watched(url: str) -> Monitor:
    return replace(hacker_news(url), alerts=(RULE,), notify=("log",), retrain=RetrainRequests(notify=("log",)))


def judge_backfill(monitor: Monitor, url: str, store: Store, until: int = LAST) -> None:
    now = until + 2 * DAY
    with store.hold(monitor.name) as lease:
        for _ in run_backfill(monitor, now, (FIRST, until), pull(monitor, url), store, lease, BatchSize()):
            pass
        judge_monitor(monitor, now, store, lease, Recipients({"log": ("log",)}, "http://page/", time.time()))


@dataclass
class Daemon:
    """A runner whose clock is set by hand, and an outbox that nothing is taken from."""

    monitor: Monitor
    url: str
    store: Store
    time: float = 0.0
    speed: float = 1.0

    def __post_init__(self) -> None:
        from threading import Event

        source = pull(self.monitor, self.url)
        self.runner = Runner(self.monitor, source, self.store, Board(), Telemetry(), self, Event(), self)

    def now(self) -> float:
        return self.time

    def recipients(self) -> Recipients:
        return Recipients({"log": ("log",)}, "http://page/")

    def wake(self) -> None:
        pass

    def live(self, since: int, until: int, step: int) -> None:
        for self.time in range(since, until, step):
            run = self.runner.run()
            assert run.error is None


def told(store: Store) -> list[tuple[str, str]]:
    """(kind, title) of everything put into the outbox, in order."""
    return [(w.notification.kind, w.notification.title) for w in _all(store)]


def _all(store: Store) -> list[object]:
    from monitor.store.schema import outbox

    with store.reading() as connection:
        ids = connection.execute(sa.select(outbox.c.id).order_by(outbox.c.id)).scalars().all()
    found = []
    for _ in ids:
        (waiting,) = store.outbox.due(time.time(), ["log"])
        found.append(waiting)
        store.outbox.sent(waiting.id, time.time())
    return found


def history(store: Store) -> list[tuple[int, str, str]]:
    return [(t.at, t.was, t.became) for t in transitions(store)]


def transitions(store: Store) -> list[Transition]:
    return store.alerts.transitions("hn")


def day(instant: int | None) -> str:
    assert instant is not None
    return datetime.fromtimestamp(instant, UTC).strftime("%m-%d")


def test_a_backfill_records_the_one_incident_and_pages_nobody(front_pages: str, store: Store) -> None:
    judge_backfill(watched(front_pages), front_pages, store)
    (found,) = store.alerts.incidents()
    incident = found.incident
    assert day(incident.opened_at) in ("02-24", "02-25")
    assert "03-08" <= day(incident.closed_at) <= "03-10"
    assert (incident.state, incident.severity, incident.retrain) == ("resolved", "critical", True)
    assert told(store) == []
    assert store.alerts.state("hn").retrain is None


def test_a_live_run_gives_the_same_incident_and_pages_once(front_pages: str, store: Store, tmp_path: Path) -> None:
    monitor = watched(front_pages)
    before = int(datetime(2022, 2, 22, tzinfo=UTC).timestamp())
    judge_backfill(monitor, front_pages, store, before)
    Daemon(monitor, front_pages, store).live(before, LAST + DAY, 11 * 3600)
    other = new_store(f"sqlite:///{tmp_path}/other.db")
    judge_backfill(monitor, front_pages, other)
    assert history(store) == history(other)
    assert [s.incident for s in store.alerts.incidents()] == [s.incident for s in other.alerts.incidents()]
    other.close()
    kinds = [kind for kind, _ in told(store)]
    assert kinds == ["firing", "retrain", "resolved"]


def test_an_incident_open_when_the_daemon_starts_is_notified_then(front_pages: str, store: Store) -> None:
    monitor = watched(front_pages)
    middle = int(datetime(2022, 2, 28, tzinfo=UTC).timestamp())
    judge_backfill(monitor, front_pages, store, middle)
    assert told(store) == []
    Daemon(monitor, front_pages, store).live(middle + DAY, middle + DAY + 1, 3600)
    assert [kind for kind, _ in told(store)] == ["firing"], "it is recovering, so no retraining is requested"
    assert "recovering" in store.alerts.notices(store.alerts.incidents()[0].incident.id)[1].title  # type: ignore[union-attr]


def test_judging_again_changes_nothing(front_pages: str, store: Store) -> None:
    monitor = watched(front_pages)
    judge_backfill(monitor, front_pages, store)
    before = history(store), [s.incident for s in store.alerts.incidents()]
    with store.hold("hn") as lease:
        source, now = pull(monitor, front_pages), LAST + 2 * DAY
        for _ in run_backfill(monitor, now, (FIRST, LAST), source, store, lease, BatchSize(), again=True):
            pass
        assert store.alerts.state("hn").restated
        judge_monitor(monitor, now, store, lease, Recipients())
        assert not store.alerts.state("hn").restated
        assert judge_monitor(monitor, now, store, lease, Recipients()) is None
    assert (history(store), [s.incident for s in store.alerts.incidents()]) == before
