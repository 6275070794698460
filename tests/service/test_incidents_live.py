"""A daemon's notifications of open incidents: at its start, and after a reload that changes rules or channels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.clock import ReplayClock
from monitor.config import load
from monitor.service.app import App
from monitor.store import Store
from tests.cli.test_incidents_cli import STORY, filled, run, write
from tests.support.notices import notice, put
from tests.support.receiver import Receiver, Reply

__all__ = ["filled"]


def eventually(holds: Callable[[], bool], seconds: float = 15) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "the condition never held"
        time.sleep(0.05)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def folder(filled: Path, tmp_path: Path, receiver: Receiver) -> Path:
    """A copy of the filled folder, so that each test has an incident without any notification yet."""
    for name in ("shop.db", "store.db"):
        (tmp_path / name).write_bytes((filled / name).read_bytes())
    write(tmp_path, receiver.url)
    text = (tmp_path / "rankmon.yaml").read_text(encoding="utf-8")
    with_web = text + '    refresh: 1s\nweb: {listen: "127.0.0.1:0", external_url: "https://rankmon.example.com/x"}\n'
    (tmp_path / "rankmon.yaml").write_text(with_web, encoding="utf-8")
    return tmp_path


@pytest.fixture
def app(folder: Path) -> Iterator[App]:
    made = App(load(folder / "rankmon.yaml", {}), ReplayClock(STORY.history_end.timestamp()))
    made.prepare()
    made.start()
    yield made
    made.stop()


def change(folder: Path, before: str, after: str) -> None:
    path = folder / "rankmon.yaml"
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def kinds(receiver: Receiver) -> list[str]:
    return [str(g.document["kind"]) for g in list(receiver.taken)]


def test_an_incident_left_open_by_backfill_is_notified_once_with_a_link(app: App, receiver: Receiver) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    (got,) = [g.document for g in receiver.taken]
    assert got["url"] == f"https://rankmon.example.com/x/incidents/{got['incident']}"
    assert got["labels"] == {"team": "search"}
    assert got["title"].startswith("shop: ndcg@10 down ")
    before = app.telemetry.counts()["rankmon_evaluations", ("shop",)]
    eventually(lambda: app.telemetry.counts()["rankmon_evaluations", ("shop",)] >= before + 3)
    assert kinds(receiver) == ["firing"]


def test_a_reload_that_relaxes_a_rule_withdraws_its_incident(app: App, folder: Path, receiver: Receiver) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    change(folder, "drop: 7%", "drop: 60%")
    assert app.reload({}) == []
    eventually(lambda: kinds(receiver) == ["firing", "withdrawn"])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a monitor that is no longer configured no grace period."""
    monkeypatch.setattr("monitor.service.app.ORPHANS_EVERY", 0.1)
    monkeypatch.setattr("monitor.service.election.PATIENCE", 0)


def test_a_reloaded_rule_that_still_fires_does_not_page_again(app: App, folder: Path, receiver: Receiver) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    change(folder, "for: 6h", "for: 5h")
    assert app.reload({}) == []
    before = app.telemetry.counts()["rankmon_evaluations", ("shop",)]
    eventually(lambda: app.telemetry.counts()["rankmon_evaluations", ("shop",)] >= before + 3)
    assert kinds(receiver) == ["firing"]
    assert [s.incident.state for s in app.store.alerts.incidents()][:1] == ["firing"]


@pytest.mark.usefixtures("impatient")
def test_a_reload_without_a_monitor_withdraws_its_incident(app: App, folder: Path, receiver: Receiver) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    change(folder, "- name: shop", "- name: market")
    assert app.reload({}) == []
    eventually(lambda: "withdrawn" in kinds(receiver))
    gone = next(g.document for g in receiver.taken if g.document["kind"] == "withdrawn")
    assert (gone["monitor"], gone["labels"]) == ("shop", {"team": "search"})
    assert "no longer configured" in gone["text"]


@pytest.mark.usefixtures("impatient")
def test_incidents_of_a_monitor_removed_during_downtime_are_withdrawn(
    app: App, folder: Path, receiver: Receiver
) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    app.stop()
    change(folder, "- name: shop", "- name: market")
    other = App(load(folder / "rankmon.yaml", {}), ReplayClock(STORY.history_end.timestamp()))
    other.prepare()
    other.start()
    try:
        eventually(lambda: "withdrawn" in kinds(receiver))
    finally:
        other.stop()


def test_a_reload_with_a_wrong_rule_changes_nothing(app: App, folder: Path, receiver: Receiver) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    change(folder, "measure: ndcg(empty=skip)@10", "measure: ndgc@10")
    (problem,) = app.reload({})
    assert "'ndgc@10' is not a measure" in problem
    assert len(app.config.monitors[0].alerts) == 1


def test_a_channel_moved_by_a_reload_is_notified_at_its_new_address(app: App, folder: Path, receiver: Receiver) -> None:
    eventually(lambda: kinds(receiver) == ["firing"])
    with Receiver() as moved:
        change(folder, receiver.url, moved.url)
        change(folder, "drop: 7%", "drop: 60%")
        assert app.reload({}) == []
        eventually(lambda: kinds(moved) == ["withdrawn"])


def test_once_sends_waiting_notifications(folder: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(load(folder / "rankmon.yaml", {}).store.url, 20)
    put(store, "team", [notice("firing")], time.time())
    put(store, "unknown", [notice("firing")], time.time())
    assert run(folder, "once") == 0
    assert kinds(receiver) == ["firing"]
    receiver.behave = lambda _: Reply(503)
    put(store, "team", [notice("resolved", number=1)], time.time())
    assert run(folder, "once") == 0
    assert "notifications left for the next run: 1" in capsys.readouterr().err
    store.close()


def test_rankmon_does_not_page_if_prometheus_pages(folder: Path, receiver: Receiver) -> None:
    change(folder, "notify: [team]", "paging: prometheus")
    app = App(load(folder / "rankmon.yaml", {}), ReplayClock(STORY.history_end.timestamp()))
    app.prepare()
    app.start()
    try:
        eventually(lambda: app.store.outbox.queues() == {} and app.store.alerts.incidents()[0].told)
        assert kinds(receiver) == []
    finally:
        app.stop()


def test_an_open_incident_is_diagnosed_from_the_source(app: App) -> None:
    (found,) = app.store.alerts.incidents("shop", "firing")
    eventually(lambda: app.store.verdicts.diagnosed(found.incident.id))
    document = app.store.verdicts.diagnoses(found.incident.id)[0].document
    assert document is not None
    assert document["captured"]["requests"]
    assert document["captured"]["queries"] is None, "this monitor has no query column"
