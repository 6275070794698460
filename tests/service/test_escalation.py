"""Incidents that nobody acknowledges: who else is notified, once each, and that all of them get the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from monitor.conditions.rules import Floor
from monitor.errors import StoreError
from monitor.messages.notification import Notification
from monitor.notify.webhook import Webhook, WebhookConfig
from monitor.routing import DAYS, Escalation, Route, WeeklyHours
from monitor.service.due_notices import DueNotices
from monitor.service.escalation import escalations
from monitor.service.sender import Sender
from monitor.service.telemetry import Telemetry
from tests.evaluation.test_judging import RULE, Bench
from tests.support.monitors import new_store
from tests.support.receiver import Got, Receiver, Reply
from tests.support.tallies import HOUR, watched

NAMES = ("team", "lead", "boss", "chat")
ROUTES = (
    Route(("team",), severity=("critical",), escalate=(Escalation(1800, ("lead",)), Escalation(7200, ("boss",)))),
    Route(("chat",)),
)
MINUTE = 60
LEASE = "escalation"
NIGHT = WeeklyHours("UTC", DAYS, 22 * 60, 7 * 60)
EVENING = 1_764_111_600.0  # 2025-11-25 23:00 UTC


@dataclass
class Duty(Bench):
    """A bench whose clock is set by hand."""

    channels: dict[str, tuple[str, ...]] = field(default_factory=lambda: {name: (name,) for name in (*NAMES, "log")})
    routes: tuple[Route, ...] = ROUTES
    now: float = EVENING

    def __post_init__(self) -> None:
        self.clock = lambda: self.now

    def later(self, seconds: float) -> None:
        """Lets time pass, then escalates as a daemon that just restarted."""
        self.now += seconds
        DueNotices(self.store, LEASE, self.due, self.wake, self.clock).run()

    def due(self, now: float) -> Iterator[tuple[str, Notification]]:
        return escalations(self.store, [self.monitor], replace(self.recipients(), real_now=now))

    def acknowledge(self) -> None:
        assert self.store.alerts.acknowledge(self.incidents[-1].incident.id, "ann", "", self.now)


@pytest.fixture
def duty(database_url: str) -> Iterator[Duty]:
    store = new_store(database_url, 20)
    yield Duty(store, replace(watched(), windows=(HOUR,), alerts=(RULE,), notify=("team",)))
    store.close()


def test_an_unacknowledged_incident_escalates_once_and_all_get_the_end(duty: Duty) -> None:
    duty.live(0.8, 0.4, 0.4)
    duty.later(30 * MINUTE - 1)
    assert duty.notices == [("team", "firing")]
    for _ in range(3):
        duty.later(1)
    assert duty.notices == [("team", "firing"), ("lead", "firing")]
    assert duty.messages[1][1].text.startswith("Not acknowledged for 30 min. ndcg@10 ")
    duty.later(2 * HOUR)
    duty.live(0.8, 0.8)
    duty.later(HOUR)
    told = ["team", "lead", "boss"]
    assert duty.notices[:3] == [(name, "firing") for name in told]
    assert sorted(duty.notices[3:]) == [(name, "resolved") for name in sorted(told)]


def test_an_acknowledgement_stops_escalation_and_notified_people_get_the_end(duty: Duty) -> None:
    duty.live(0.8, 0.4, 0.4)
    duty.later(40 * MINUTE)
    duty.acknowledge()
    duty.later(4 * HOUR)
    duty.live(0.8, 0.8)
    assert duty.notices[:2] == [("team", "firing"), ("lead", "firing")]
    assert sorted(duty.notices[2:]) == [("lead", "resolved"), ("team", "resolved")]


def test_an_incident_acknowledged_immediately_does_not_escalate(duty: Duty) -> None:
    duty.live(0.8, 0.4, 0.4)
    duty.acknowledge()
    duty.later(4 * HOUR)
    assert duty.notices == [("team", "firing")]


def test_quiet_hours_delay_a_notification_until_they_end(duty: Duty) -> None:
    duty.routes = (Route(("log",), hours=NIGHT), Route(("team",), repeat=HOUR))
    duty.live(0.8, 0.4, 0.4)
    duty.later(7 * HOUR + 59 * MINUTE)
    assert duty.notices == [("log", "firing")]
    duty.later(MINUTE)
    assert duty.notices == [("log", "firing"), ("team", "firing")]


def test_a_silence_delays_escalation(duty: Duty) -> None:
    duty.live(0.8, 0.4, 0.4)
    duty.store.alerts.silence("search", duty.now, duty.now + HOUR, "ann", "")
    duty.later(40 * MINUTE)
    assert duty.notices == [("team", "firing")]
    duty.later(20 * MINUTE)
    assert duty.notices == [("team", "firing"), ("lead", "firing")]


def test_a_raised_severity_escalates_by_its_own_route_from_then_on(duty: Duty) -> None:
    mild = replace(RULE, name="mild", severity="warning", limit=Floor(0.7, 0.7))
    duty.monitor = replace(duty.monitor, alerts=(mild, RULE))
    duty.live(0.8, 0.65, 0.65)
    duty.later(HOUR)
    assert duty.notices == [("chat", "firing")]
    duty.live(0.4, 0.4)
    assert duty.notices[1:] == [("chat", "updated"), ("team", "updated")]
    duty.later(29 * MINUTE)
    assert len(duty.notices) == 3
    duty.later(MINUTE)
    assert duty.notices[3:] == [("lead", "updated")]


def test_a_repeat_follows_a_delivery_and_has_its_own_key(duty: Duty) -> None:
    duty.routes = (Route(("team",), repeat=HOUR),)
    duty.live(0.8, 0.4, 0.4)
    duty.later(2 * HOUR)
    assert duty.notices == [("team", "firing")], "its receiver does not answer"
    for number in range(3):
        (waiting,) = duty.store.outbox.due(duty.now, ["team"])
        duty.store.outbox.sent(waiting.id, duty.now)
        duty.later(HOUR - 1)
        assert len(duty.notices) == number + 1
        duty.later(1)
        duty.later(0)
    assert duty.notices == [("team", "firing"), *[("team", "updated")] * 3]
    assert len({notice.key for _, notice in duty.messages}) == 4
    first, *again = (notice.text for _, notice in duty.messages)
    assert again == [f"Not acknowledged for {hours} h. {first}" for hours in (3, 4, 5)], "no message quotes another"


def test_escalation_yields_to_another_process_with_the_lease(duty: Duty) -> None:
    duty.live(0.8, 0.4, 0.4)
    with duty.store.hold(LEASE):
        duty.later(HOUR)
        assert duty.notices == [("team", "firing")]
    duty.later(0)
    assert duty.notices == [("team", "firing"), ("lead", "firing")]


def test_people_notified_while_the_end_is_queued_get_it_too(duty: Duty) -> None:
    duty.live(0.8, 0.4, 0.4)
    opening = duty.messages[0][1]
    duty.live(0.8, 0.8)
    with duty.store.hold(LEASE) as lease:
        duty.store.alerts.notify(lease, [("lead", opening)], duty.now)
    assert [duty.store.outbox.finish(name, duty.now) for name in ("team", "lead", "lead", "boss")] == [0, 1, 0, 0]
    assert duty.notices[2:] == [("lead", "firing"), ("lead", "resolved")]


@pytest.mark.parametrize("seed", range(8))
def test_everyone_who_gets_an_opening_gets_the_end_in_order(
    duty: Duty, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random values, acknowledgements, failing receivers, and senders that cannot record what they sent."""
    rng = random.Random(seed)
    duty.routes = (Route(("log",), severity=("warning",), hours=NIGHT), replace(ROUTES[0], repeat=3 * HOUR), ROUTES[1])
    note = duty.store.outbox.sent

    def sent(id_: int, now: float, receipt: str | None = None) -> None:
        if rng.random() < 0.2:
            raise StoreError("killed here")
        note(id_, now, receipt)

    def answer(_: Got) -> Reply:
        return Reply(503 if rng.random() < 0.2 else 200)

    with Receiver(answer) as receiver:
        inboxes = [Webhook(WebhookConfig(name, f"{receiver.url}/{name}")) for name in (*NAMES, "log")]

        def deliver(within: float = 0.3) -> None:
            sender = Sender(duty.store, Telemetry(), duty.clock)
            sender.use(inboxes)
            sender.deliver(within, lambda: False)
            sender.stop()

        monkeypatch.setattr(duty.store.outbox, "sent", sent)
        for value in [0.8, *(rng.choice((0.3, 0.3, 0.8)) for _ in range(14))]:
            duty.live(value)
            duty.later(rng.choice((0.2, 0.6, 2)) * HOUR)
            if rng.random() < 0.15 and duty.incidents:
                duty.acknowledge()
            deliver()
        monkeypatch.undo()
        receiver.behave = lambda _: Reply()
        duty.live(0.8, 0.8)
        for _ in range(3):
            duty.later(HOUR)
            deliver(within=20)  # until nothing waits, however busy the machine is
        taken: dict[tuple[str, str], dict[str, str]] = {}
        for got in receiver.taken:
            taken.setdefault((got.path, got.document["incident"]), {}).setdefault(got.key, got.document["kind"])
    assert taken
    for kinds in map(list, map(dict.values, taken.values())):
        assert kinds[0] in ("firing", "updated")
        assert kinds[-1] in ("resolved", "withdrawn")
        assert not {"resolved", "withdrawn"} & {*kinds[:-1]}
