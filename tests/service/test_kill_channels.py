"""Each channel's sender is killed at random moments and restarted: nothing is lost, copies have the same key, and the
notifications of each incident arrive in order.

`RANKMON_TEST_KILLS=50` kills each sender 50 times.
"""

from __future__ import annotations

import email
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.messages.notification import Kind, Notification
from monitor.notify import channel_kinds
from monitor.store.schema import outbox
from tests.support.monitors import new_store
from tests.support.notices import notice, put
from tests.support.processes import Zygote
from tests.support.receiver import Got, Receiver, Reply
from tests.support.sending import CHANNEL
from tests.support.services import MailDouble, PagerDutyDouble, SlackDouble

KILLS = int(os.environ.get("RANKMON_TEST_KILLS", "6"))
KINDS: tuple[Kind, ...] = ("firing", "updated", "resolved")
INCIDENTS = 8

BEGUN = sa.select(sa.func.max(outbox.c.begun_at))
"""When the newest attempt began, so that kills hit the sending and not the start."""

LONGER = {"apprise": 0.8}
"""Seconds of sending within which the kill falls; Apprise loads all its services first."""

Life = list[tuple[str, str]]
"""(key, what was said), in order."""
Lives = dict[str, Life]
"""Incident -> what its receiver heard."""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("tests.support.sending:run")
    yield made
    made.close()


@contextmanager
def slowed(receiver: Receiver, rng: random.Random) -> Iterator[Receiver]:
    """Makes a receiver slow to take and to answer, and busy now and then."""
    inner = receiver.behave

    def behave(got: Got) -> Reply:
        time.sleep(rng.uniform(0, 0.01))
        if rng.random() < 0.1:
            return Reply(503)
        return replace(inner(got), hangs=rng.uniform(0, 0.02))

    receiver.behave = behave
    with receiver:
        yield receiver


Double = Callable[[random.Random], AbstractContextManager[tuple[int, Callable[[], Lives]]]]
"""A port, and what was heard there."""


def by_http(said: Callable[[Got], tuple[str, str, str]]) -> Double:
    """Anything over HTTP; `said` gives the incident, the key and the words of what was taken."""

    @contextmanager
    def made(rng: random.Random) -> Iterator[tuple[int, Callable[[], Lives]]]:
        with slowed(Receiver(lambda _: Reply(200, b"ok")), rng) as receiver:
            yield receiver.port, lambda: gathered(said(got) for got in list(receiver.taken))

    return made


def gathered(told: Iterator[tuple[str, str, str]]) -> Lives:
    found: Lives = {}
    for incident, key, words in told:
        found.setdefault(incident, []).append((key, words))
    return found


@contextmanager
def pagerduty(rng: random.Random) -> Iterator[tuple[int, Callable[[], Lives]]]:
    double = PagerDutyDouble()

    def said() -> Iterator[tuple[str, str, str]]:
        for event in list(double.payloads):
            words = event["payload"]["summary"] if "payload" in event else title("resolved", event["dedup_key"])
            yield event["dedup_key"], words, words

    with slowed(double.receiver, rng):
        yield double.receiver.port, lambda: gathered(said())


@contextmanager
def slack(rng: random.Random) -> Iterator[tuple[int, Callable[[], Lives]]]:
    """Each message is its own key: an incident must not have two, nor the same line twice in its thread."""
    double = SlackDouble()

    def told() -> Lives:
        found: Lives = {}
        for number, message in enumerate(list(double.messages.values())):
            first = title("firing", message.keys[0][:10])
            assert message.text == (message.thread or [first])[-1], "the message equals the last line of its thread"
            lines = [first, *message.thread]
            found.setdefault(message.keys[0][:10], []).extend((f"{number} {at}", line) for at, line in enumerate(lines))
        return found

    with slowed(double.receiver, rng):
        yield double.receiver.port, told


@contextmanager
def mail(rng: random.Random) -> Iterator[tuple[int, Callable[[], Lives]]]:
    def told() -> Iterator[tuple[str, str, str]]:
        for _, raw in list(double.mails):
            made = email.message_from_bytes(raw)
            incident = str(made["References"] or made["Message-ID"]).strip("<>").partition("@")[0]
            yield incident, str(made["Message-ID"]), str(made["Subject"])

    with MailDouble(None, pause=lambda: rng.uniform(0, 0.02)) as double:
        yield double.port, lambda: gathered(told())


def title(kind: str, incident: str) -> str:
    return f"search: {incident} {kind}"


def life_of(incident: str) -> list[Notification]:
    made = (notice(kind, incident, at, title=title(kind, incident)) for at, kind in enumerate(KINDS))
    return [replace(one, key=f"{incident}{at:030x}") for at, one in enumerate(made)]


def of_webhook(got: Got) -> tuple[str, str, str]:
    return got.document["incident"], got.key, got.document["title"]


def of_alertmanager(got: Got) -> tuple[str, str, str]:
    (alert,) = got.document
    state, is_over = alert["annotations"]["state"], alert["endsAt"] < datetime.now(UTC).isoformat()
    assert is_over == (state == "resolved")
    return alert["annotations"]["incident"], state, alert["annotations"]["summary"]


def of_title(words: Callable[[Got], str]) -> Callable[[Got], tuple[str, str, str]]:
    """For channels without keys, where only the text tells a copy from another message."""
    return lambda got: (words(got).split()[1], words(got), words(got))


CHANNELS: dict[str, Double] = {
    "alertmanager": by_http(of_alertmanager),
    "apprise": by_http(of_title(lambda got: str(got.document["title"]))),
    "email": mail,
    "pagerduty": pagerduty,
    "slack": slack,
    "slack-webhook": by_http(of_title(lambda got: str(got.document["text"]))),
    "teams": by_http(of_title(lambda got: str(got.document["attachments"][0]["content"]["body"][0]["text"]))),
    "webhook": by_http(of_webhook),
}


def test_every_channel_kind_has_a_kill_test() -> None:
    assert {name.partition("-")[0] for name in CHANNELS} == set(channel_kinds())


@pytest.mark.parametrize("kind", CHANNELS)
def test_a_killed_sender_loses_nothing_and_keeps_the_order(
    kind: str, zygote: Zygote, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rng, url = random.Random(kind), f"sqlite:///{tmp_path}/store.db"
    kills = copies = number = 0
    with closing(new_store(url)) as store, CHANNELS[kind](rng) as (port, told):
        expected: dict[str, list[str]] = {}
        while kills < KILLS:
            for incident in (f"{number + i:010x}" for i in range(INCIDENTS)):
                expected[incident] = [title(k, incident) for k in KINDS]
                put(store, CHANNEL, life_of(incident))
            number += INCIDENTS
            while store.outbox.queues():
                child, before = zygote.start(url, kind, str(port)), store.scalar(BEGUN)
                while child.is_running() and store.scalar(BEGUN) == before:
                    time.sleep(0.002)
                time.sleep(rng.uniform(0, LONGER.get(kind, 0.08)))
                if kills < KILLS and child.is_running():
                    child.kill()
                    kills += 1
                else:
                    assert child.wait() == 0, child.output
        time.sleep(0.1)  # the receiver still takes what a dead process sent
        found = told()
    assert set(found) == set(expected)
    for incident, life in found.items():
        first = list(dict(life))
        assert [dict(life)[key] for key in first] == expected[incident], "each once, in order"
        runs = [key for key, _ in groupby(life)]
        assert len(runs) == len(first), "a copy follows what it copies"
        copies += len(life) - len(first)
    print(f"{kind}: {kills} kills, {copies} copies among {sum(map(len, found.values()))}")
    assert copies <= kills
