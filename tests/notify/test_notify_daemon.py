"""Channels of a running daemon: it stops despite a hanging one, and a reload replaces them while it runs."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monitor.cli import run
from monitor.config import load
from monitor.service.app import App
from tests.support.notices import INCIDENT, incident, notice, put
from tests.support.receiver import HANGS, Receiver, Reply

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
web: {{listen: "127.0.0.1:0"}}
sources: {{shop: {{url: "sqlite:///{folder}/none.db"}}}}
channels: {channels}
monitors:
  - name: search
    source: shop
    rankings: {{table: log, request: r, item: i, position: p, time: t}}
    relevance: {{column: {{grade: g}}}}
    measures: [ndcg@10]
"""
FIRING, RESOLVED = notice("firing"), notice("resolved", number=1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


class Daemon:
    """An App with only the sender running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rankmon.yaml"

    def configure(self, **urls: str) -> None:
        """Writes a configuration with these webhooks."""
        listed = ", ".join(f'{name}: {{webhook: {{url: "{url}", timeout: 30s}}}}' for name, url in urls.items())
        self.path.write_text(CONFIG.format(folder=self.folder, channels=f"{{{listed}}}"), encoding="utf-8")

    def start(self) -> App:
        app = App(load(self.path, {}))
        app.prepare()
        app.sender.start()
        return app


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    monkeypatch.setattr("monitor.service.sender.OUTBOX_EVERY", 0.05)
    monkeypatch.setattr("monitor.service.periodic.FIRST_RETRY", 0.1)
    return Daemon(tmp_path)


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_daemon_stops_despite_a_hanging_receiver_and_delivers_later(daemon: Daemon, receiver: Receiver) -> None:
    receiver.behave = lambda _: HANGS
    daemon.configure(inbox=receiver.url)
    app = daemon.start()
    put(app.store, "inbox", [FIRING], time.time())
    app.wake()
    eventually(lambda: receiver.got)
    began = time.monotonic()
    app.stop()
    assert time.monotonic() - began < 8
    receiver.close()  # ends the hanging request
    receiver.open()
    receiver.behave = lambda _: Reply()
    app = daemon.start()
    eventually(lambda: receiver.titles() == ["a firing"])
    app.stop()


def test_a_reload_sends_a_channels_queue_to_its_new_address(daemon: Daemon, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(500)
    daemon.configure(inbox=receiver.url)
    app = daemon.start()
    put(app.store, "inbox", [FIRING, RESOLVED], time.time())
    eventually(lambda: receiver.got)
    with Receiver() as moved:
        daemon.configure(inbox=moved.url)
        assert app.reload({}) == []
        eventually(lambda: moved.titles() == ["a firing", "a resolved"])
        assert app.recipients().targets == {"log": ("log",), "inbox": ("inbox",)}
    app.stop()


def test_a_reload_without_a_channel_drops_its_queue_and_logs_it(
    daemon: Daemon, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("monitor.service.sender.ORPHANED", 0.3)
    receiver.behave = lambda _: Reply(500)
    with Receiver() as other:
        daemon.configure(inbox=receiver.url, other=other.url)
        app = daemon.start()
        put(app.store, "inbox", [FIRING, RESOLVED], time.time())
        eventually(lambda: receiver.got)
        daemon.configure(other=other.url)
        assert app.reload({}) == []
        eventually(lambda: not app.store.outbox.queues())
        put(app.store, "other", [FIRING], time.time())
        eventually(lambda: other.titles() == ["a firing"])
        app.stop()
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert said == ["receiver inbox is gone, with its channel; dropping its 2 notifications"]


@pytest.mark.parametrize("runs_on", [True, False])
def test_an_unacknowledged_incident_escalates_after_downtime(
    daemon: Daemon, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, runs_on: bool
) -> None:
    monkeypatch.setattr("monitor.service.app.OUTBOX_EVERY", 0.05)
    daemon.configure(inbox=f"{receiver.url}/inbox", lead=f"{receiver.url}/lead")
    with daemon.path.open("a", encoding="utf-8") as file:
        file.write("routes: [{channels: [inbox], escalate: [{after: 30m, channels: [lead]}]}]\n")
    app, id_ = App(load(daemon.path, {})), INCIDENT.id
    app.prepare()
    incident(app.store, id_)
    put(app.store, "inbox", [notice("firing", id_)], time.time() - 3600)
    if runs_on:
        app.start()
        eventually(lambda: len(receiver.taken) == 2)
    else:
        assert [run(["once", "--config", str(daemon.path)]) for _ in range(2)] == [3, 3], "it has no source"
    app.stop()
    assert sorted((got.path, got.document["kind"]) for got in receiver.taken) == [
        ("/inbox", "firing"),
        ("/lead", "firing"),
    ]


def test_channel_secrets_are_not_logged(daemon: Daemon, receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.behave = lambda got: Reply(403, b"no " + got.path.encode())
    daemon.configure(inbox=f"{receiver.url}/services/B1HOOKPATH")
    app = daemon.start()
    put(app.store, "inbox", [FIRING], time.time())
    eventually(lambda: len(receiver.got) >= 2)
    app.stop()
    assert "answered 403" in caplog.text
    assert "B1HOOKPATH" not in caplog.text
    assert "B1HOOKPATH" not in repr(app.config.channels)
