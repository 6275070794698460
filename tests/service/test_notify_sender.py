"""The sender against real receivers and stores: everything arrives once it can, in order, and nothing blocks."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.errors import StoreError
from monitor.notify import Receiver as Channel
from monitor.notify.alertmanager import Alertmanager, AlertmanagerConfig
from monitor.notify.log import Log
from monitor.notify.webhook import Webhook, WebhookConfig
from monitor.service.periodic import FIRST_RETRY, LONGEST_RETRY
from monitor.service.sender import (
    LEAST_ATTEMPTS,
    ORPHANED,
    STUCK,
    Drawing,
    Sender,
    no_chart,
    pause,
)
from monitor.service.telemetry import QueueStatus, Telemetry
from monitor.store import Store
from monitor.store.outbox import LONGEST_WAIT
from monitor.store.schema import outbox
from tests.support.monitors import new_store
from tests.support.notices import DAY, HOUR, incident, notice, put
from tests.support.receiver import HANGS, Got, Receiver, Reply
from tests.support.tallies import bear_out

OFTEN = 0.03


@dataclass
class Hand:
    """A clock that is set by hand."""

    time: float = 1e9

    def __call__(self) -> float:
        return self.time


@dataclass
class Post:
    """A store, a clock, and senders on them."""

    store: Store
    clock: Hand = field(default_factory=Hand)
    senders: list[Sender] = field(default_factory=list)

    def sender(self, *receivers: Channel, draw: Drawing = no_chart) -> Sender:
        """A running sender."""
        made = Sender(self.store, Telemetry(), self.clock, draw=draw)
        made.use(receivers)
        made.start()
        self.senders.append(made)
        return made

    def put(self, target: str, *notices: Any) -> None:
        put(self.store, target, notices, self.clock.time)
        for sender in self.senders:
            sender.wake()

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """Columns of the outbox, in order."""
        with self.store.reading() as connection:
            return [
                tuple(r) for r in connection.execute(sa.select(*(outbox.c[n] for n in names)).order_by(outbox.c.id))
            ]

    def attempts(self) -> int:
        """The number of failed attempts on record."""
        return sum(n for (n,) in self.rows("attempts"))

    def later(self, seconds: float) -> None:
        self.clock.time += seconds
        for sender in self.senders:
            sender.wake()


@pytest.fixture
def post(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    monkeypatch.setattr("monitor.service.sender.OUTBOX_EVERY", OFTEN)
    store = new_store(database_url)
    made = Post(store)
    yield made
    for sender in made.senders:
        sender.stop()
    store.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def webhook(receiver: Receiver, name: str = "inbox", **changes: Any) -> Webhook:
    return Webhook(WebhookConfig(name, receiver.url + "/hook", **{"timeout": 10, **changes}))


def alertmanager(*receivers: Receiver, repeat: float = 3600, **changes: Any) -> list[Alertmanager]:
    config = AlertmanagerConfig("am", tuple(r.url for r in receivers), **{"timeout": 10, **changes})
    made = [Alertmanager(config, url) for url in config.urls]
    for one in made:
        one.repeat = repeat
    return made


def eventually(holds: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def eventually_sent(post: Post, step: float) -> int:
    """The number sent once nothing waits any more; failures are retried after `step` seconds."""
    for _ in range(20):
        with suppress(AssertionError):
            eventually(lambda: not post.store.outbox.queues(), 2)
            break
        post.later(step)
    return sum(at is not None for (at,) in post.rows("sent_at"))


def counted(sender: Sender, what: str, channel: str = "inbox") -> float:
    return sender._telemetry.counts()[f"rankmon_notification{what}", (channel,)]


FIRING, UPDATED, RESOLVED = notice("firing", number=0), notice("updated", number=1), notice("resolved", number=2)
LIFE = ["a firing", "a updated", "a resolved"]


# ---- as soon as it can, in order -----------------------------------------------------------------------------------


def test_notifications_are_sent_once_and_in_order(post: Post, receiver: Receiver) -> None:
    sender = post.sender(Log(), webhook(receiver))
    post.put("inbox", FIRING, UPDATED, RESOLVED)
    eventually(lambda: len(receiver.got) == 3)
    time.sleep(5 * OFTEN)
    assert receiver.titles() == LIFE
    assert [g.key for g in receiver.got] == [FIRING.key, UPDATED.key, RESOLVED.key]
    assert [s for (s,) in post.rows("sent_at")] == [post.clock.time] * 3
    assert counted(sender, "s_sent") == 3
    assert counted(sender, "_failures") == counted(sender, "s_dropped") == 0


@pytest.mark.parametrize("away", ["closed", "500", "hangs"])
def test_a_receiver_back_after_an_hour_gets_everything(post: Post, receiver: Receiver, away: str) -> None:
    receiver.behave = lambda _: HANGS if away == "hangs" else Reply(500)
    if away == "closed":
        receiver.close()
    sender = post.sender(webhook(receiver, timeout=0.1 if away == "hangs" else 10))
    post.put("inbox", FIRING, UPDATED, RESOLVED, notice(incident="b"))
    passed, tried = 0.0, 0
    while passed < HOUR:
        eventually(lambda: post.attempts() >= tried + 2)  # noqa: B023 (the first of each incident)
        tried = post.attempts()
        post.later(LONGEST_RETRY * 1.3)
        passed += LONGEST_RETRY * 1.3
    assert receiver.taken == []
    if away == "closed":
        receiver.open()
    receiver.behave = lambda _: Reply()
    post.later(LONGEST_RETRY * 1.3)
    sent = eventually_sent(post, STEP)
    assert sent == 4
    # With a timeout of 0.1 s, a late answer means one more delivery under the same key.
    assert [t for t in dict.fromkeys(receiver.titles()) if t.startswith("a")] == LIFE
    assert len({g.key for g in receiver.taken}) == 4
    assert len(receiver.taken) == 4 or away == "hangs"
    assert counted(sender, "s_sent") == 4
    assert counted(sender, "_failures") >= 20


def test_a_refused_incident_keeps_its_order_and_delays_no_other(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda got: Reply(400 if got.document["incident"] == "bad" else 200)
    post.sender(webhook(receiver))
    post.put("inbox", notice(incident="bad"), FIRING, notice("resolved", "bad", 1), UPDATED, RESOLVED)
    eventually(lambda: len(receiver.taken) == 3)
    assert receiver.titles() == LIFE
    assert {g.document["kind"] for g in receiver.got if g.document["incident"] == "bad"} == {"firing"}
    receiver.behave = lambda _: Reply()
    post.later(10)
    eventually(lambda: len(receiver.taken) == 5)
    assert receiver.titles()[3:] == ["bad firing", "bad resolved"]


def test_a_hanging_receiver_delays_no_other(post: Post, receiver: Receiver) -> None:
    with Receiver(lambda _: HANGS) as slow:
        post.sender(webhook(slow, "slow", timeout=30), webhook(receiver))
        post.put("slow", FIRING)
        eventually(lambda: slow.got)
        began = time.monotonic()
        post.put("inbox", FIRING, UPDATED, RESOLVED)
        eventually(lambda: len(receiver.taken) == 3)
        assert time.monotonic() - began < 15


def test_a_broken_notification_delays_no_other(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    post.put("inbox", notice(incident="broken"), FIRING)
    with post.store.writing() as connection:
        connection.execute(outbox.update().where(outbox.c.incident == "broken").values(document='{"version": 0}'))
    sender = post.sender(webhook(receiver))
    eventually(lambda: receiver.titles() == ["a firing"])
    eventually(lambda: post.attempts() == 1)
    assert "firing of incident broken for inbox: a bug in rankmon" in caplog.text
    assert counted(sender, "_failures") == 1


# ---- giving up -----------------------------------------------------------------------------------------------------


def test_openings_are_dropped_after_the_limit_but_ends_never(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.behave = lambda _: Reply(500, b"broken")
    sender = post.sender(webhook(receiver))
    post.put("inbox", FIRING, RESOLVED)
    eventually(lambda: post.attempts() == 1)
    fail(post, LEAST_ATTEMPTS)
    post.later(DAY - LEAST_ATTEMPTS * STEP - 1)
    eventually(lambda: post.attempts() == LEAST_ATTEMPTS + 2)
    assert post.rows("dropped_at") == [(None,), (None,)]
    post.later(STEP)
    eventually(lambda: post.rows("dropped_at")[0][0] is not None)
    for tried in range(LEAST_ATTEMPTS + 4, LEAST_ATTEMPTS + 9):
        eventually(lambda: post.attempts() == tried)  # noqa: B023 (it is called at once)
        post.later(30 * DAY)
    receiver.behave = lambda _: Reply()
    post.later(30 * DAY)
    eventually(lambda: receiver.titles() == ["a resolved"])
    said, tries = f"{receiver.url}: answered 500: broken", LEAST_ATTEMPTS + 3
    assert post.rows("kind", "attempts", "last_error")[0] == ("firing", tries, said)
    assert counted(sender, "s_dropped") == 1
    given_up = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [r.getMessage() for r in given_up] == [
        f"firing of incident a for inbox dropped after {tries} attempts: {said}"
    ]


STEP = LONGEST_RETRY * 1.3
"""Seconds after which every failure is retried."""


def fail(post: Post, times: int) -> None:
    """Lets `times` more attempts fail after a first one."""
    for _ in range(times):
        before = post.attempts()
        post.later(STEP)
        eventually(lambda: post.attempts() > before)  # noqa: B023 (it is called at once)


def test_age_alone_drops_no_notification(post: Post, receiver: Receiver) -> None:
    """A clock may jump, and a machine may sleep."""
    receiver.behave = lambda _: Reply(500)
    post.put("inbox", FIRING)
    post.clock.time += 3 * DAY
    post.sender(webhook(receiver))
    eventually(lambda: post.attempts() == 1)
    fail(post, LEAST_ATTEMPTS - 2)
    assert post.rows("dropped_at") == [(None,)]
    fail(post, 1)
    assert post.rows("dropped_at") != [(None,)]


def test_an_open_incident_waits_for_its_receiver_and_newer_notices_replace_the_first(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.behave = lambda _: Reply(500)
    incident(post.store, "a")
    sender = post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: post.attempts() == 1)
    fail(post, LEAST_ATTEMPTS)
    post.later(30 * DAY)
    eventually(lambda: post.attempts() == LEAST_ATTEMPTS + 2)
    assert post.rows("dropped_at") == [(None,)]
    post.put("inbox", notice("retrain", number=7), UPDATED)
    fail(post, 1)
    assert [row[0] is None for row in post.rows("dropped_at")] == [False, True, True]
    eventually(lambda: post.attempts() == LEAST_ATTEMPTS + 4)
    receiver.behave = lambda _: Reply()
    post.later(STEP)
    eventually(lambda: receiver.titles() == ["a retrain", "a updated"])
    assert counted(sender, "s_dropped") == 0, "the newer notice replaces it"
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_an_end_resolves_every_severity_sent_to_the_receiver(post: Post, receiver: Receiver) -> None:
    incident(post.store, "a")
    post.sender(*alertmanager(receiver))
    post.put("am", notice(severity="info"))
    eventually(lambda: receiver.taken)
    receiver.behave = lambda _: Reply(500)
    post.put("am", notice("updated", number=1, severity="warning", former_severity="info"))
    eventually(lambda: post.attempts() == 1)
    fail(post, LEAST_ATTEMPTS)
    post.put("am", notice("updated", number=2, former_severity="warning"))
    post.later(2 * DAY)
    eventually(lambda: post.attempts() == LEAST_ATTEMPTS + 3)
    incident(post.store, "a", "resolved")
    post.put("am", notice("resolved", number=3))
    fail(post, LEAST_ATTEMPTS)
    post.later(2 * DAY)
    eventually(lambda: post.rows("dropped_at", "attempts")[2][0] is not None)
    receiver.behave = lambda _: Reply()
    post.later(STEP)
    eventually(lambda: states(receiver)[-1] == "resolved")
    over = receiver.taken[-1].document
    assert [alert["labels"]["severity"] for alert in over] == ["critical", "info", "warning"]
    assert {alert["endsAt"] < alert["startsAt"] for alert in over} == {False}
    assert {alert["annotations"]["state"] for alert in over} == {"resolved"}


def test_retries_postponed_by_a_clock_ahead_happen_once_it_is_right(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(500)
    post.clock.time += 2 * DAY
    post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: post.attempts() == 1)
    fail(post, 4)
    receiver.behave = lambda _: Reply()
    post.later(-2 * DAY)
    eventually(lambda: receiver.titles() == ["a firing"])


def test_a_returning_channel_gets_the_open_incident_dropped_with_it(post: Post, receiver: Receiver) -> None:
    incident(post.store, "a")
    incident(post.store, "b", "resolved")
    sender = post.sender(Log())
    post.put("inbox", FIRING, UPDATED, notice(incident="b"))
    post.later(ORPHANED + 1)
    eventually(lambda: post.store.outbox.queues() == {})
    sender.use([webhook(receiver)])
    eventually(lambda: receiver.titles() == ["a updated"])
    time.sleep(3 * OFTEN)
    assert receiver.titles() == ["a updated"]


@pytest.mark.parametrize("kind", ["resolved", "withdrawn"])
def test_an_end_dropped_by_another_daemon_is_sent_once_its_own_is_back(
    kind: Any, post: Post, receiver: Receiver, database_url: str
) -> None:
    incident(post.store, "a")
    incident(post.store, "untold", "resolved")
    own = post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: receiver.titles() == ["a firing"])
    own.stop()
    post.senders.clear()
    incident(post.store, "a", "resolved")
    post.put("inbox", notice(kind, number=1), notice(incident="untold"), notice("resolved", "untold", 1))
    post.sender(Log())
    post.later(ORPHANED + 60)
    eventually(lambda: not post.store.outbox.queues())
    assert [at is None for (at,) in post.rows("dropped_at")] == [True, False, False, False]
    post.sender(webhook(receiver))
    eventually(lambda: receiver.titles() == ["a firing", f"a {kind}"])
    time.sleep(5 * OFTEN)
    assert not post.store.outbox.queues(), "an incident that nobody heard of gets no end"
    assert len(receiver.got) == 2


def test_a_delayed_sender_still_sends_what_another_daemon_dropped(post: Post, receiver: Receiver) -> None:
    incident(post.store, "b")
    receiver.behave = lambda got: Reply(429, headers={"Retry-After": "1"}) if len(receiver.got) == 2 else Reply()
    post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: receiver.taken)
    post.put("inbox", RESOLVED)
    eventually(lambda: post.attempts() == 1)
    post.put("inbox", notice("retrain", "b"))
    gone = post.store.outbox.retire("inbox", [], post.clock.time)  # as a daemon without this channel does
    assert gone == 2
    eventually(lambda: receiver.titles() == ["a firing", "a resolved", "b retrain"])


def test_dropped_notifications_are_purged_in_the_end(post: Post, receiver: Receiver) -> None:
    post.put("inbox", FIRING, RESOLVED)
    post.clock.time += ORPHANED + 1
    assert post.store.outbox.retire("inbox", [], post.clock.time) == 2
    post.store.outbox.purge(post.clock.time + 1)
    assert post.rows("id") == []


def test_retry_pauses_grow_are_bounded_and_vary() -> None:
    assert [pause(n, 0) for n in range(4)] == [4, 8, 16, 32]
    assert pause(1000, 0.999) < LONGEST_RETRY * 1.2 < LONGEST_WAIT
    assert FIRST_RETRY * 0.8 <= pause(0, 0.3) < pause(0, 0.7) <= FIRST_RETRY * 1.2


def test_a_failure_is_retried_after_a_growing_pause_and_not_before(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(500)
    post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    for attempt in range(1, 8):
        eventually(lambda: post.attempts() == attempt)  # noqa: B023
        ((next_at,),) = post.rows("next_at")
        assert pause(attempt - 1, 0) <= next_at - post.clock.time <= pause(attempt - 1, 1)
        post.later(next_at - post.clock.time - 0.001)
        time.sleep(3 * OFTEN)
        assert len(receiver.got) == attempt, "too early"
        post.later(0.002)


def test_retry_after_pauses_all_sending_to_the_receiver(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(429, headers={"Retry-After": "2"})
    post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: post.attempts() == 1)
    began = time.monotonic()
    receiver.behave = lambda _: Reply(200)
    post.put("inbox", notice("firing", "b"))
    post.later(3600)
    time.sleep(10 * OFTEN)
    assert len(receiver.got) == 1, "no other incident is sent either"
    eventually(lambda: len(receiver.got) == 3)
    assert time.monotonic() - began > 1.5


@pytest.mark.parametrize("asked", ["Wed, 21 Oct 2026 07:28:00 GMT", "-5", "soon", "9" * 23])
def test_an_implausible_retry_after_is_ignored(post: Post, receiver: Receiver, asked: str) -> None:
    receiver.behave = lambda _: Reply(429, headers={"Retry-After": asked})
    post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: post.attempts() == 1)
    post.later(3600)
    eventually(lambda: post.attempts() == 2)
    ((said,),) = post.rows("last_error")
    assert "429" in said, "the refusal is recorded, not an error in reading the header"


# ---- two daemons, and one that ends ---------------------------------------------------------------------------------


def test_two_daemons_on_one_store_send_each_notification_once(
    post: Post, receiver: Receiver, database_url: str
) -> None:
    receiver.behave = lambda _: Reply(hangs=0.005)
    other = Post(new_store(database_url), post.clock)
    post.sender(webhook(receiver))
    other.sender(webhook(receiver))
    for number in range(40):
        post.put("inbox", notice("updated", f"i{number % 4}", number))
        other.senders[0].wake()
    eventually(lambda: not post.store.outbox.queues(), 20)
    other.senders[0].stop()
    other.store.close()
    assert len(receiver.got) == 40
    assert len({g.key for g in receiver.got}) == 40
    sent = [counted(s, "s_sent") for s in (*post.senders, *other.senders)]
    assert sum(sent) == 40


def test_stopping_does_not_wait_for_a_hanging_receiver(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: HANGS
    sender = post.sender(webhook(receiver, timeout=8))
    post.put("inbox", FIRING)
    eventually(lambda: receiver.got)
    began = time.monotonic()
    sender.stop()
    assert 1.5 < time.monotonic() - began < 6.5
    receiver.behave = lambda _: Reply()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "notifications to inbox"])
    post.clock.time += 60
    post.sender(webhook(receiver))
    eventually(lambda: receiver.titles() == ["a firing"])
    assert {g.key for g in receiver.got} == {FIRING.key}


def test_stopping_waits_for_an_answer_on_its_way(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(hangs=0.5)
    sender = post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: receiver.got)
    sender.stop()
    assert post.store.outbox.queues() == {}
    assert len(receiver.taken) == 1


def test_a_delivery_the_store_fails_to_record_is_not_repeated(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting, tries = post.store.outbox.sent, []

    def full(id_: int, now: float, receipt: str | None = None) -> None:
        tries.append(id_)
        if len(tries) < 4:
            raise StoreError("store: the disk is full")
        noting(id_, now, receipt)

    monkeypatch.setattr(post.store.outbox, "sent", full)
    sender = post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: not post.store.outbox.queues())
    assert len(tries) == 4
    assert len(receiver.got) == 1
    assert counted(sender, "s_sent") == 1


def test_a_store_outage_is_logged_once_per_task(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[None] = []

    def away(*_: object) -> None:
        looks.append(None)
        raise StoreError("store: the server is away")

    monkeypatch.setattr("monitor.service.sender.OUTBOX_EVERY", 0.02)
    for name in ("due", "queues", "strangers", "purge"):
        monkeypatch.setattr(post.store.outbox, name, away)
    post.sender(webhook(receiver))
    eventually(lambda: len(looks) > 20)
    said = [r.getMessage() for r in caplog.records if "the server is away" in r.getMessage()]
    assert len(said) == 2, "once by the outbox and once by the receiver"


# ---- channels that change ------------------------------------------------------------------------------------------


def test_a_channel_with_a_new_address_keeps_its_queue(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(500)
    sender = post.sender(webhook(receiver))
    post.put("inbox", FIRING, RESOLVED)
    eventually(lambda: post.attempts() == 1)
    with Receiver() as moved:
        sender.use([webhook(moved)])
        post.later(10)
        eventually(lambda: moved.titles() == ["a firing", "a resolved"])
        assert receiver.taken == []


def test_receivers_can_be_replaced_during_a_delivery(post: Post, receiver: Receiver) -> None:
    receiver.behave = lambda _: Reply(hangs=1.5)
    sender = post.sender(webhook(receiver, timeout=10))
    post.put("inbox", FIRING, UPDATED, RESOLVED)
    eventually(lambda: receiver.got)
    with Receiver() as moved:
        sender.use([webhook(moved)])
        eventually(lambda: not post.store.outbox.queues())
        assert receiver.titles() == ["a firing"], "what was under way"
        assert moved.titles() == ["a updated", "a resolved"], "the rest, after it"


def test_notifications_for_a_removed_channel_are_dropped_and_logged(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.behave = lambda _: Reply(500)
    sender = post.sender(webhook(receiver))
    post.put("inbox", FIRING, RESOLVED)
    eventually(lambda: post.attempts() == 1)
    sender.use([Log()])
    post.later(ORPHANED - 1)
    time.sleep(5 * OFTEN)
    assert post.rows("dropped_at") == [(None,), (None,)], "another daemon may be about to get a newer configuration"
    post.later(1 + 1.2 * FIRST_RETRY)  # past the retry that nobody made
    eventually(lambda: post.store.outbox.queues() == {})
    said = "receiver inbox is gone, with its channel; dropping its 2 notifications"
    eventually(lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == [said])
    assert counted(sender, "s_dropped") == 2
    assert [e for (e,) in post.rows("last_error")] == ["no channel has this receiver any more"] * 2


def test_notifications_another_daemon_still_tries_are_not_dropped(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.behave = lambda _: Reply(503)
    post.sender(webhook(receiver))
    with Receiver() as other:
        post.sender(webhook(other, "elsewhere"))
        post.put("inbox", notice("firing"), notice("resolved", number=1))
        for tried in range(1, 6):
            eventually(lambda tried=tried: post.attempts() >= tried)  # type: ignore[misc]
            post.later(LONGEST_RETRY * 1.2)
        assert post.clock.time - 1e9 > 2 * ORPHANED
        time.sleep(10 * OFTEN)
        receiver.behave = lambda _: Reply()
        post.later(LONGEST_RETRY * 1.2)
        eventually(lambda: receiver.titles() == ["a firing", "a resolved"])
    assert "dropped" not in caplog.text


def test_a_single_run_sends_due_notifications_and_counts_the_rest(post: Post, receiver: Receiver) -> None:
    sender = Sender(post.store, Telemetry(), post.clock)
    with Receiver() as away:
        away.behave = lambda _: Reply(503)
        sender.use([webhook(receiver), webhook(away, "away")])
        post.put("inbox", notice("firing"), notice("resolved", number=1))
        post.put("away", notice("firing"))
        post.put("unknown", notice("firing"))
        assert sender.deliver(10, lambda: False) == 1
        assert sender.deliver(10, lambda: True) == 1
    sender.stop()
    assert receiver.titles() == ["a firing", "a resolved"]


def alone(post: Post, *receivers: Channel, seconds: float = 10) -> int:
    """Sends what there is, like a process that then ends; returns how many still wait."""
    sender = Sender(post.store, Telemetry(), post.clock)
    sender.use(receivers)
    try:
        return sender.deliver(seconds, lambda: False)
    finally:
        sender.stop()


def test_a_single_run_retries_failures_within_its_time(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.service.periodic.FIRST_RETRY", 0.3)
    monkeypatch.setattr(post, "clock", time.time)
    receiver.behave = lambda _: Reply(503 if len(receiver.got) < 3 else 200)
    put(post.store, "inbox", [FIRING, RESOLVED], time.time())
    assert alone(post, webhook(receiver)) == 0
    assert receiver.titles() == ["a firing", "a resolved"]


def test_a_single_run_does_not_wait_for_retries_after_its_end(post: Post, receiver: Receiver) -> None:
    began = time.monotonic()
    receiver.behave = lambda _: Reply(503)
    post.put("inbox", FIRING)
    assert alone(post, webhook(receiver), seconds=3.9) == 1  # the retry comes after four seconds at least
    post.later(FIRST_RETRY * 2)
    receiver.behave = lambda _: Reply(429, headers={"Retry-After": "600"})
    assert alone(post, webhook(receiver), seconds=600) == 1
    assert alone(post, Log(), seconds=600) == 0
    assert time.monotonic() - began < 60


def test_single_runs_remind_alertmanager_like_a_daemon(post: Post, receiver: Receiver) -> None:
    incident(post.store, "a")
    channel = alertmanager(receiver, repeat=60)
    post.put("am", FIRING)
    for _ in range(2):
        alone(post, *channel)
    assert states(receiver) == ["firing"], "it was notified just now"
    post.later(3600)
    alone(post, *channel)
    assert states(receiver) == ["firing"] * 2
    incident(post.store, "a", "resolved")
    post.put("am", RESOLVED)
    post.later(3600)
    for _ in range(2):
        alone(post, *channel)
    assert states(receiver) == ["firing", "firing", "resolved"]


def test_single_runs_clean_the_outbox_and_notify_new_receivers(post: Post, receiver: Receiver) -> None:
    cleaned: list[None] = []
    incident(post.store, "goes on")
    post.put("inbox", FIRING, notice(incident="goes on"))
    alone(post, webhook(receiver))
    post.put("gone", notice(incident="c"))
    post.later(31 * DAY)
    bear_out(post.store, post.clock.time)
    sender = Sender(post.store, Telemetry(), post.clock, lambda: cleaned.append(None))
    sender.use([webhook(receiver)])
    assert sender.deliver(10, lambda: False) == 0
    sender.stop()
    assert cleaned == [None]
    assert post.rows("incident", "last_error") == [("goes on", ""), ("c", "no channel has this receiver any more")]
    with Receiver() as second:
        alone(post, *alertmanager(receiver))
        post.put("am", notice(incident="goes on", number=1))
        alone(post, *alertmanager(receiver))
        alone(post, *alertmanager(receiver, second))
        assert states(second) == ["firing"]


def test_a_failed_cleaning_still_drops_orphaned_notifications(post: Post, receiver: Receiver) -> None:
    def fails() -> None:
        raise StoreError("store: the disk is full")

    alone(post, webhook(receiver))
    post.put("gone", notice(incident="c"))
    post.later(31 * DAY)
    sender = Sender(post.store, Telemetry(), post.clock, fails)
    sender.use([webhook(receiver)])
    with pytest.raises(StoreError, match="disk is full"):
        sender.tidy()
    sender.stop()
    assert post.rows("incident", "last_error") == [("c", "no channel has this receiver any more")]


def test_an_added_alertmanager_gets_open_incidents_and_their_ends(post: Post, receiver: Receiver) -> None:
    sender = post.sender(*alertmanager(receiver))
    incident(post.store, "a")
    post.put("am", FIRING)
    eventually(lambda: len(receiver.taken) == 1)
    with Receiver() as second:
        both = alertmanager(receiver, second)
        sender.use(both)
        eventually(lambda: len(second.taken) == 1)
        assert set(post.store.alerts.told("a")) == {"am", *(one.target for one in both)}
        incident(post.store, "a", "resolved")
        for target in post.store.alerts.told("a"):
            post.put(target, RESOLVED)
        eventually(lambda: states(second) == ["firing", "resolved"])
        eventually(lambda: states(receiver)[-1] == "resolved")
        eventually(lambda: not post.store.outbox.queues())


def states(receiver: Receiver) -> list[str]:
    return [got.document[0]["annotations"]["state"] for got in list(receiver.taken)]


# ---- several, and reminders ----------------------------------------------------------------------------------------


def test_every_alertmanager_is_notified_even_if_one_is_down(post: Post, receiver: Receiver) -> None:
    with Receiver() as down:
        down.close()
        both = alertmanager(receiver, down)
        post.sender(*both)
        for one in both:
            post.put(one.target, FIRING, RESOLVED)
        eventually(lambda: states(receiver) == ["firing", "resolved"])
        down.open()
        post.later(60)
        eventually(lambda: states(down) == ["firing", "resolved"])


def test_a_stuck_receiver_is_counted_in_its_channel(post: Post, receiver: Receiver) -> None:
    with Receiver(lambda _: Reply(500)) as down:
        both = alertmanager(receiver, down)
        sender = post.sender(*both, Log())
        for one in both:
            post.put(one.target, FIRING)
        eventually(
            lambda: sender._telemetry.queues == {"am": QueueStatus(1, post.clock.time, 2, 0), "log": QueueStatus()}
        )
        began = post.clock.time
        post.later(STUCK + 1)
        eventually(lambda: sender._telemetry.queues["am"] == QueueStatus(1, began, 2, 1))
        down.behave = lambda _: Reply()
        post.later(STEP)
        eventually(lambda: sender._telemetry.queues["am"] == QueueStatus(receivers=2))


def test_alertmanager_is_reminded_of_the_newest_state_of_open_incidents(post: Post, receiver: Receiver) -> None:
    incident(post.store, "a")
    incident(post.store, "b")
    post.sender(*alertmanager(receiver, repeat=0.1))
    changed = notice("updated", number=1, title="worse", former_severity="warning")
    post.put("am", FIRING, changed, notice(incident="b"))
    eventually(lambda: not post.store.outbox.queues())
    number = len(receiver.taken) + 2  # reminders under way may precede the last update
    eventually(lambda: len(receiver.taken) >= number + 4)
    reminders = [got.document for got in receiver.taken[number:]]
    assert {(len(d), d[0]["annotations"]["incident"]) for d in reminders} == {(1, "a"), (1, "b")}
    assert {d[0]["annotations"]["summary"] for d in reminders if d[0]["annotations"]["incident"] == "a"} == {"worse"}
    incident(post.store, "a", "resolved")
    incident(post.store, "b", "resolved")
    post.put("am", RESOLVED)
    eventually(lambda: states(receiver)[-1] == "resolved")
    time.sleep(0.4)
    assert states(receiver)[-1] == "resolved", "closed incidents are not repeated"


def test_a_late_end_of_an_earlier_incident_does_not_end_its_successor(post: Post, receiver: Receiver) -> None:
    takes_ends = threading.Event()

    def behave(got: Got) -> Reply:
        is_end = got.document[0]["annotations"]["state"] == "resolved"
        return Reply(500 if is_end and not takes_ends.is_set() else 200)

    receiver.behave = behave
    incident(post.store, "b")
    post.sender(*alertmanager(receiver))
    post.put("am", FIRING, RESOLVED, notice(incident="b"))
    eventually(lambda: len(receiver.taken) == 2 and post.attempts() == 1)
    takes_ends.set()
    post.later(10)
    eventually(lambda: len(receiver.taken) == 4)
    assert [
        (g.document[0]["annotations"]["incident"], s) for g, s in zip(receiver.taken, states(receiver), strict=True)
    ][2:] == [
        ("a", "resolved"),
        ("b", "firing"),
    ], "both are the same alert to Alertmanager"


def test_a_webhook_gets_no_reminders(post: Post, receiver: Receiver) -> None:
    incident(post.store, "a")
    post.sender(webhook(receiver))
    post.put("inbox", FIRING)
    eventually(lambda: receiver.taken)
    time.sleep(0.3)
    assert len(receiver.got) == 1


def test_the_log_channel_records_every_notification(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "monitor.incidents")
    post.sender(Log())
    post.put("log", FIRING, RESOLVED)
    eventually(lambda: post.store.outbox.queues() == {})
    assert [r.levelname for r in caplog.records if r.name == "monitor.incidents"] == ["WARNING", "INFO"]
    assert "firing [critical, incident a] search: ndcg@10 down 12.7 %" in caplog.text


def test_a_delivery_is_logged_with_its_incident_and_receiver(
    post: Post, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the log channel, the log once said nothing of an incident."""
    caplog.set_level(logging.INFO)
    post.put("inbox", FIRING)
    post.sender(webhook(receiver))
    eventually(lambda: "firing of incident a for inbox: delivered; search: ndcg@10 down 12.7 %" in caplog.text)
