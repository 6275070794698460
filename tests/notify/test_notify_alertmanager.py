"""Alertmanager: what is posted, and what a real Alertmanager does with it."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from monitor.messages.notification import Notification
from monitor.notify import alertmanager as channel
from monitor.notify.alertmanager import AlertmanagerConfig, alerts
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from tests.support.monitors import new_store
from tests.support.notices import DAY, FELL, HOUR, incident, notice, put
from tests.support.prometheus import RESOLVE_TIMEOUT, Alertmanager, alertmanager_configuration, missing_programs
from tests.support.prometheus import Receiver as Pager
from tests.support.receiver import Receiver
from tests.support.requirements import missing
from tests.support.tallies import line, python

NOW = FELL + 4.0 * HOUR
HOLD = 7.0 * DAY


def instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# ---- posted alerts -------------------------------------------------------------------------------------------------


def test_alert_labels_stay_the_same_and_changes_go_to_annotations() -> None:
    (alert,) = alerts(notice(), NOW, HOLD)
    assert alert["labels"] == {
        "alertname": "RankmonQualityDegraded",
        "environment": "production",
        "monitor": "search",
        "severity": "critical",
        "team": "ranking",
    }
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url", "incident", "state"}
    assert alert["generatorURL"] == "https://mon.test/incidents/32a395de36"
    (worse,) = alerts(notice("updated", number=1, title="other", text="figures"), NOW + 500, HOLD)
    assert worse["labels"] == alert["labels"]
    assert worse["startsAt"] == alert["startsAt"]


def test_monitor_labels_cannot_override_ours_and_empty_ones_are_dropped() -> None:
    labels = (("alertname", "x"), ("monitor", "x"), ("severity", "x"), ("team", ""))
    (alert,) = alerts(notice(labels=labels), NOW, HOLD)
    assert alert["labels"] == {
        "alertname": "RankmonQualityDegraded", "monitor": "search", "severity": "critical"
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["firing", "updated", "retrain", "test"])
def test_an_open_alert_ends_far_in_the_future(kind: Any) -> None:
    (alert,) = alerts(notice(kind), NOW, HOLD)
    assert instant(alert["startsAt"]) == FELL + 3 * HOUR
    assert instant(alert["endsAt"]) == NOW + {"test": 300, "retrain": 86_400}.get(kind, HOLD)


@pytest.mark.parametrize("kind", ["resolved", "withdrawn"])
@pytest.mark.parametrize("opened_at", [FELL, int(NOW) - 1, int(NOW) + 500])
def test_a_closed_alert_ended_before_now_and_started_earlier(kind: Any, opened_at: int) -> None:
    (alert,) = alerts(notice(kind, opened_at=opened_at), NOW, HOLD)
    assert instant(alert["endsAt"]) <= NOW - 60
    assert instant(alert["startsAt"]) < instant(alert["endsAt"])


def test_a_raised_severity_ends_the_former_alert() -> None:
    now, former = alerts(notice("updated", former_severity="warning"), NOW, HOLD)
    assert (now["labels"]["severity"], former["labels"]["severity"]) == ("critical", "warning")
    assert instant(now["endsAt"]) > NOW > instant(former["endsAt"])
    assert {**former["labels"], "severity": "critical"} == now["labels"]


def test_the_alert_name_follows_the_notification_kind() -> None:
    names = {kind: alerts(notice(kind), NOW, HOLD)[0]["labels"]["alertname"] for kind in ("firing", "retrain", "test")}
    assert names == {
        "firing": "RankmonQualityDegraded", "retrain": "RankmonRetrainRecommended", "test": "RankmonTest"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, None),
        ({"username": "me", "password": "pä:ss"}, "Basic bWU6cMOkOnNz"),
        ({"bearer_token": "abc"}, "Bearer abc"),
    ],
)
def test_configured_credentials_are_sent(given: dict[str, str], sent: str | None) -> None:
    with Receiver() as receiver:
        config = AlertmanagerConfig("am", (receiver.url + "/prefix/",), **given)  # type: ignore[arg-type]
        now = time.time()
        channel.Alertmanager(config, config.urls[0]).send(notice(), now)
        (got,) = receiver.taken
        assert got.headers.get("Authorization") == sent
        assert got.path == "/prefix/api/v2/alerts"
        assert got.document == alerts(notice(), now, HOLD)


def test_targets_distinguish_receivers_and_hold_no_secret() -> None:
    urls = ("http://me:secret@a:9093/x", "http://a:9093/y", "http://b:9093")
    config = AlertmanagerConfig("am", urls)
    targets = [channel.Alertmanager(config, url).target for url in urls]
    assert len(set(targets)) == 3
    assert [t.rpartition(" ")[0] for t in targets] == ["am http://a:9093", "am http://a:9093", "am http://b:9093"]
    assert channel.Alertmanager(replace(config, urls=urls[:1]), urls[0]).target == "am"


# ---- a real Alertmanager -------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """A store with senders to real Alertmanagers."""

    folder: Path
    store: Store
    ending: ExitStack

    def send_to(self, *servers: Alertmanager, ahead: float = 0.0) -> tuple[Sender, list[str]]:
        """(a running sender, its targets); the sender's clock is `ahead` seconds fast."""
        config = AlertmanagerConfig("am", tuple(s.url for s in servers), timeout=2)
        receivers = [channel.Alertmanager(config, url) for url in config.urls]
        for receiver in receivers:
            receiver.repeat = 0.5
        sender = Sender(self.store, Telemetry(), lambda: time.time() + ahead)
        sender.use(receivers)
        sender.start()
        self.ending.callback(sender.stop)
        return sender, [r.target for r in receivers]

    def tell(self, sender: Sender, targets: list[str], *notices: Notification) -> None:
        for target in targets:
            put(self.store, target, notices, time.time())
        sender.wake()


@pytest.fixture(scope="module")
def pager() -> Iterator[Pager]:
    made = Pager()
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pager: Pager) -> Iterator[Alertmanager]:
    if "prometheus-alertmanager" in missing_programs():
        missing("not installed: prometheus-alertmanager (Debian's package of that name)")
    made = started(tmp_path_factory.mktemp("first"), pager)
    yield made
    made.kill()


def started(folder: Path, pager: Pager) -> Alertmanager:
    made = Alertmanager(folder, alertmanager_configuration(folder, pager.url))
    made.start()
    return made


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr("monitor.service.sender.OUTBOX_EVERY", 0.1)
    monkeypatch.setattr("monitor.service.periodic.FIRST_RETRY", 0.2)
    store = new_store(f"sqlite:///{tmp_path}/store.db")
    with ExitStack() as ending:
        ending.callback(store.close)
        yield Desk(tmp_path, store, ending)


def known(server: Alertmanager, monitor: str) -> list[dict[str, Any]]:
    """The active alerts of a monitor."""
    return [a for a in server.get("/api/v2/alerts", active="true") if a["labels"]["monitor"] == monitor]


def eventually(holds: Callable[[], object], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def of(monitor: str, kind: Any = "firing", number: int = 0, **changes: Any) -> Notification:
    return notice(kind, monitor, number, monitor=monitor, **changes)


def test_an_alert_keeps_its_identity_updates_and_resolves(desk: Desk, server: Alertmanager, pager: Pager) -> None:
    incident(desk.store, "life")
    sender, targets = desk.send_to(server)
    desk.tell(sender, targets, of("life"))
    eventually(lambda: known(server, "life"))
    (first,) = known(server, "life")
    assert first["labels"] == {**dict(of("life").labels), "alertname": "RankmonQualityDegraded", "monitor": "life",
                               "severity": "critical"}  # fmt: skip
    assert first["annotations"]["summary"] == of("life").title
    assert first["annotations"]["description"] == of("life").text
    assert instant(first["startsAt"]) == FELL + 3 * HOUR
    assert instant(first["endsAt"]) > time.time() + HOLD - 60
    eventually(lambda: known(server, "life")[0]["updatedAt"] > first["updatedAt"])
    assert known(server, "life")[0]["fingerprint"] == first["fingerprint"]

    desk.tell(sender, targets, of("life", "updated", 1, title="worse yet"))
    eventually(lambda: known(server, "life")[0]["annotations"]["summary"] == "worse yet")
    time.sleep(1.2)
    assert [a["annotations"]["summary"] for a in known(server, "life")] == ["worse yet"], (
        "the repeats carry the new text"
    )

    incident(desk.store, "life", "resolved")
    desk.tell(sender, targets, of("life", "resolved", 2))
    eventually(lambda: not known(server, "life"))
    eventually(lambda: "life" in monitors(pager, "resolved"))
    time.sleep(1.2)
    assert known(server, "life") == [], "a resolved alert is not repeated"


def monitors(pager: Pager, status: str) -> set[str]:
    return {a["labels"]["monitor"] for a in pager.told("RankmonQualityDegraded", status)}


def test_a_raised_severity_replaces_the_alert(desk: Desk, server: Alertmanager, pager: Pager) -> None:
    incident(desk.store, "rises")
    sender, targets = desk.send_to(server)
    desk.tell(sender, targets, of("rises", severity="warning"))
    eventually(lambda: [a["labels"]["severity"] for a in known(server, "rises")] == ["warning"])
    desk.tell(sender, targets, of("rises", "updated", 1, severity="critical", former_severity="warning"))
    eventually(lambda: [a["labels"]["severity"] for a in known(server, "rises")] == ["critical"])
    eventually(lambda: "rises" in monitors(pager, "resolved"))


def test_a_dead_daemon_resolves_nothing(desk: Desk, server: Alertmanager, pager: Pager) -> None:
    incident(desk.store, "dead")
    sender, targets = desk.send_to(server)
    desk.tell(sender, targets, of("dead"))
    eventually(lambda: known(server, "dead"))
    sender.stop()
    time.sleep(2 * RESOLVE_TIMEOUT)
    assert known(server, "dead")
    assert "dead" not in monitors(pager, "resolved")


def test_a_resolution_counts_with_alertmanagers_clock_behind(desk: Desk, server: Alertmanager) -> None:
    sender, targets = desk.send_to(server, ahead=50)
    desk.tell(sender, targets, of("ahead"))
    eventually(lambda: known(server, "ahead"))
    desk.tell(sender, targets, of("ahead", "resolved", 1))
    eventually(lambda: not known(server, "ahead"), 5)


def test_alertmanagers_that_were_down_or_restarted_get_the_alert(
    desk: Desk, pager: Pager, server: Alertmanager, tmp_path: Path
) -> None:
    second = started(tmp_path, pager)
    desk.ending.callback(second.kill)
    second.kill()
    incident(desk.store, "again")
    sender, targets = desk.send_to(server, second)
    desk.tell(sender, targets, of("again"))
    eventually(lambda: known(server, "again"))
    second.start()
    eventually(lambda: known(second, "again"))
    eventually(lambda: not desk.store.outbox.queues())
    second.kill()
    second.start()  # it has forgotten its alerts
    eventually(lambda: known(second, "again"))
    incident(desk.store, "again", "resolved")
    desk.tell(sender, targets, of("again", "resolved", 1))
    eventually(lambda: not known(server, "again") and not known(second, "again"))


# ---- a frozen process ----------------------------------------------------------------------------------------------

ZOMBIE = """
import os, signal, sys, time
from sqlalchemy.engine import make_url
from monitor.notify import alertmanager, http
from monitor.service.sender import Sender
from monitor.store import Store
from monitor.service.telemetry import Telemetry

store, url, mark = Store(make_url(sys.argv[1]), lease_seconds=1), sys.argv[2], sys.argv[3]
post = http.Poster.post

def stopped(*arguments):
    if os.path.exists(mark):
        os.remove(mark)
        os.kill(os.getpid(), signal.SIGSTOP)
    return post(*arguments)

http.Poster.post = stopped
receiver = alertmanager.Alertmanager(alertmanager.AlertmanagerConfig("am", (url,), timeout=2), url)
receiver.repeat = 0.05
sender = Sender(store, Telemetry())
sender.use([receiver])
sender.start()
print("started", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("where", ["at the post", "anywhere"])
def test_a_frozen_process_cannot_revive_a_resolved_alert(desk: Desk, server: Alertmanager, where: str) -> None:
    mark, name = desk.folder / "stop", f"zombie {where}"
    incident(desk.store, name)
    put(desk.store, "am", [of(name)], time.time())
    zombie = python(ZOMBIE, desk.store.url.render_as_string(False), server.url, mark)
    desk.ending.callback(zombie.kill)
    assert line(zombie) == "started"
    eventually(lambda: known(server, name))
    if where == "at the post":
        mark.touch()
        eventually(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    else:
        time.sleep(random.random())
        zombie.send_signal(signal.SIGSTOP)
    incident(desk.store, name, "resolved")
    sender, targets = desk.send_to(server)
    desk.tell(sender, targets, of(name, "resolved", 1))
    eventually(lambda: not known(server, name), 30)
    sender.stop()  # now only the frozen process could resolve the alert again
    zombie.send_signal(signal.SIGCONT)
    time.sleep(2)
    eventually(lambda: not known(server, name))
    zombie.kill()
    zombie.communicate()


def test_a_resolution_is_repeated_unless_a_like_alert_is_open(desk: Desk, server: Alertmanager) -> None:
    sender, targets = desk.send_to(server)
    for name in ("first", "second"):
        incident(desk.store, name)
        desk.tell(sender, targets, notice("firing", name, monitor="again"))
        eventually(lambda: known(server, "again"))
        if name == "first":
            incident(desk.store, name, "resolved")
            desk.tell(sender, targets, notice("resolved", name, 1, monitor="again"))
            eventually(lambda: not known(server, "again"))
            config = AlertmanagerConfig("am", (server.url,), timeout=2)
            channel.Alertmanager(config, server.url).send(notice("firing", name, monitor="again"), time.time())
            eventually(lambda: not known(server, "again"))
    time.sleep(1.5)
    assert known(server, "again")


@pytest.mark.parametrize("ahead", [-365 * DAY, -40 * DAY, 40 * DAY, 365 * DAY])
def test_an_alert_lasts_and_ends_correctly_by_a_wrong_clock(desk: Desk, server: Alertmanager, ahead: int) -> None:
    name = f"off {ahead}"
    incident(desk.store, name)
    sender, targets = desk.send_to(server, ahead=ahead)
    desk.tell(sender, targets, of(name))
    eventually(lambda: known(server, name))
    time.sleep(1)
    assert instant(known(server, name)[0]["endsAt"]) > time.time() + HOLD - 120
    incident(desk.store, name, "resolved")
    desk.tell(sender, targets, of(name, "resolved", 1))
    eventually(lambda: not known(server, name))
