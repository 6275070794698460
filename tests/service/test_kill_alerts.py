"""A pager killed between a transition and its delivery loses nothing after a restart, and duplicates share a key."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.store import Store
from monitor.store.schema import incidents, metadata, outbox, transitions
from tests.support.monitors import new_store
from tests.support.paging import TARGETS
from tests.support.processes import Child, Zygote
from tests.support.receiver import Got, Receiver, Reply

KILLS = int(os.environ.get("RANKMON_TEST_KILLS", "50"))
HOURS = 120

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Records:
    """What a run leaves in its store, without row numbers and real times."""

    transitions: Rows
    incidents: Rows
    notices: dict[tuple[str, str], list[tuple[str, str, str]]] = field(default_factory=dict)
    """(target, incident) -> (kind, key, document) in order."""


def records(store: Store) -> Records:
    def all_of(table: sa.Table, *left_out: str) -> Rows:
        columns = [c for c in table.c if c.name not in left_out]
        return sorted((tuple(r) for r in connection.execute(sa.select(*columns))), key=repr)

    with store.reading() as connection:
        found = Records(all_of(transitions, "id"), all_of(incidents))
        for row in connection.execute(sa.select(outbox).order_by(outbox.c.id)):
            assert (row.sent_at is None, row.dropped_at) == (False, None)
            found.notices.setdefault((row.target, row.incident), []).append((row.kind, row.key, row.document))
    return found


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote("tests.support.paging:run")
    yield made
    made.close()


@pytest.fixture(scope="module")
def calm(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """What an undisturbed run leaves."""
    url = f"sqlite:///{tmp_path_factory.mktemp('calm')}/store.db"
    store = new_store(url)
    with Receiver() as receiver:
        finish(zygote.start(url, receiver.url, str(HOURS)))
        assert len(receiver.got) == len({(g.path, g.key) for g in receiver.got})
    found = records(store)
    store.close()
    kinds = Counter(kind for some in found.notices.values() for kind, _, _ in some)
    assert {kind for kind, number in kinds.items() if number >= 3} == {"firing", "updated", "resolved", "retrain"}
    return found


def finish(child: Child) -> None:
    assert child.wait() == 0, child.output


class Slow(Receiver):
    """A receiver that is slow to take and to answer, and refuses some notifications."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        super().__init__(self._answer)

    def _answer(self, _: Got) -> Reply:
        if self._rng.random() < 0.1:
            return Reply(500)
        return Reply(hangs=self._rng.uniform(0, 0.02), drips=self._rng.choice((0, 0, 0.0005)))


@dataclass
class Drill:
    """Kills a run of the pager again and again, a moment after it stored a transition."""

    zygote: Zygote
    store: Store
    url: str
    receiver: Receiver
    rng: random.Random
    kills: int = 0
    undelivered: int = 0

    def kill_once(self) -> bool:
        """Starts a run and kills it; returns False if it ended first."""
        seen = self._number_of_transitions()
        child = self.zygote.start(self.url, self.receiver.url, str(HOURS))
        while self._number_of_transitions() == seen and child.is_running():
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0, 0.08))
        if not child.is_running():
            finish(child)
            return False
        child.kill()
        self.kills += 1
        self.undelivered += bool(self.store.outbox.queues())
        return True

    def _number_of_transitions(self) -> int:
        with self.store.reading() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(transitions)).scalar() or 0

    def check(self, calm: Records) -> None:
        """Lets the run end; asserts that its records equal the undisturbed ones and that all arrived in order."""
        finish(self.zygote.start(self.url, self.receiver.url, str(HOURS)))
        assert records(self.store) == calm
        arrived: dict[tuple[str, str], dict[str, str]] = {}
        for got in self.receiver.taken:
            kept = arrived.setdefault((got.path.strip("/"), got.document["incident"]), {})
            assert kept.setdefault(got.key, got.body.decode()) == got.body.decode(), "one key, one content"
        assert {place: list(some) for place, some in arrived.items()} == {
            place: [key for _, key, _ in some] for place, some in calm.notices.items()
        }, "in the order of first arrival"

    def forget(self) -> None:
        with self.store.writing() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())


def test_a_pager_killed_between_transition_and_delivery_loses_nothing(
    zygote: Zygote, calm: Records, database_url: str
) -> None:
    rng, duplicates = random.Random(3), 0
    store = new_store(database_url)
    drill = Drill(zygote, store, database_url, Slow(rng), rng)
    # Kills fall at random: go on until one falls between a delivery and its record.
    while drill.kills < KILLS // 2 or (not duplicates and drill.kills < 4 * KILLS):
        is_over = not drill.kill_once()
        if is_over or drill.kills >= KILLS // 2:
            drill.check(calm)
            taken = [(g.path, g.key) for g in drill.receiver.taken]
            duplicates += len(taken) - len(set(taken))
            drill.receiver.close()
            drill.forget()
            drill.receiver = Slow(rng)
    drill.receiver.close()
    store.close()
    assert {target for target, _ in calm.notices} == set(TARGETS)
    assert drill.undelivered >= drill.kills // 2, "the kills fell where they should"
    assert duplicates >= 1, "and some between a delivery and its record"


def test_notifications_refused_before_a_kill_are_delivered_once_after_it(
    zygote: Zygote, calm: Records, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    store = new_store(url)
    with Receiver(lambda _: Reply(500)) as receiver:
        child = zygote.start(url, receiver.url, str(HOURS))
        while len(store.alerts.incidents()) < 5:
            time.sleep(0.01)
        child.kill()
        assert receiver.taken == []
        receiver.behave = lambda _: Reply()
        Drill(zygote, store, url, receiver, random.Random(1)).check(calm)
        assert len(receiver.taken) == sum(map(len, calm.notices.values())), "none of it twice"
    store.close()
