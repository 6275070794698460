"""The outbox: written together with its judgement, handed out in order, and cheap to query."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.messages.notification import Notification
from monitor.store import Store
from monitor.store.alerts import Judgement
from monitor.store.outbox import LONGEST_ERROR, MOST_DUE
from monitor.store.schema import outbox
from tests.support.monitors import new_store
from tests.support.notices import DROP, SLICE, incident, notice, put

FIRING, UPDATED, RESOLVED = notice("firing", number=0), notice("updated", number=1), notice("resolved", number=2)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url)
    yield made
    made.close()


def due(store: Store, *targets: str, now: float = 0.0) -> list[str]:
    return [f"{w.target} {w.incident} {w.kind}" for w in store.outbox.due(now, targets)]


def numbers(store: Store) -> dict[str, int]:
    """`target incident kind` -> id of the row."""
    with store.reading() as connection:
        return {f"{r.target} {r.incident} {r.kind}": r.id for r in connection.execute(sa.select(outbox))}


def errors(store: Store) -> list[str]:
    with store.reading() as connection:
        return list(connection.execute(sa.select(outbox.c.last_error).order_by(outbox.c.id)).scalars())


def test_a_notification_survives_the_store(store: Store) -> None:
    made = notice(findings=(DROP, SLICE), former_severity="warning")
    put(store, "inbox", [made])
    (waiting,) = store.outbox.due(0, ["inbox"])
    assert waiting.notification == made
    assert Notification.of(made.plain()) == made


def test_later_notices_wait_for_earlier_ones(store: Store) -> None:
    put(store, "x", [FIRING, RESOLVED, notice(incident="b")])
    put(store, "y", [FIRING, UPDATED])
    assert due(store, "x") == ["x a firing", "x b firing"]
    assert due(store, "x", "y") == ["x a firing", "x b firing", "y a firing"]
    store.outbox.sent(numbers(store)["x a firing"], 5)
    assert due(store, "x") == ["x a resolved", "x b firing"]
    assert due(store, "y") == ["y a firing"], "each target has its own order"


def test_a_failed_notice_and_its_followers_wait_for_the_retry_time(store: Store) -> None:
    put(store, "x", [FIRING, RESOLVED])
    store.outbox.failed(numbers(store)["x a firing"], 10.0, "e" * 10_000)
    assert due(store, "x", now=9.9) == []
    assert due(store, "x", now=10) == ["x a firing"]
    (waiting,) = store.outbox.due(10, ["x"])
    assert waiting.attempts == 1
    assert errors(store)[0] == "e" * LONGEST_ERROR


def test_a_dropped_notice_makes_way_for_the_next(store: Store) -> None:
    put(store, "x", [FIRING, RESOLVED])
    store.outbox.drop(numbers(store)["x a firing"], 7, "gone")
    assert due(store, "x") == ["x a resolved"]


def test_a_transition_stored_twice_is_sent_once(store: Store) -> None:
    put(store, "x", [FIRING])
    store.outbox.sent(numbers(store)["x a firing"], 5)
    put(store, "x", [FIRING])
    assert due(store, "x") == []
    put(store, "y", [FIRING])
    assert due(store, "y") == ["y a firing"]


def test_a_judgement_and_its_notices_are_stored_together_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Judgement("search", 100, {}, notices=[("x", FIRING), ("y", FIRING)])
    monkeypatch.setattr(Notification, "plain", lambda _: 1 / 0)
    with store.hold("search") as lease, pytest.raises(ZeroDivisionError):
        store.alerts.save(lease, told, 0)
    assert store.alerts.state("search").until is None
    monkeypatch.undo()
    with store.hold("search") as lease:
        store.alerts.save(lease, told, 0)
    assert store.alerts.state("search").until == 100
    assert due(store, "x", "y") == ["x a firing", "y a firing"]


def test_a_broken_document_is_handed_out_like_any_other(store: Store) -> None:
    put(store, "x", [FIRING, notice(incident="b")])
    with store.writing() as connection:
        connection.execute(outbox.update().where(outbox.c.incident == "a").values(document="{"))
    assert due(store, "x") == ["x a firing", "x b firing"]


# ---- open incidents ------------------------------------------------------------------------------------------------


def test_standing_notices_are_the_newest_sent_of_each_open_incident(store: Store) -> None:
    incident(store, "a")
    incident(store, "over", "resolved")
    put(store, "x", [FIRING, UPDATED, notice(incident="over"), notice("retrain", number=9)])
    put(store, "y", [FIRING])
    assert store.outbox.standing("x") == []
    for name in ("x a firing", "x over firing", "x a retrain"):
        store.outbox.sent(numbers(store)[name], 5)
    assert store.outbox.standing("x") == [FIRING]
    store.outbox.sent(numbers(store)["x a updated"], 6)
    assert store.outbox.standing("x") == [UPDATED]
    assert store.outbox.standing("y") == []


# ---- targets that come and go ----------------------------------------------------------------------------------------


def test_notices_for_unknown_targets_are_found(store: Store) -> None:
    put(store, "x", [FIRING], now=3)
    put(store, "y", [FIRING], now=4)
    put(store, "y", [UPDATED], now=5)
    assert store.outbox.strangers(["x", "z"]) == {"y": 5.0}
    assert store.outbox.strangers(["x", "y"]) == {}
    (waiting,) = store.outbox.due(10.0, ["y"])
    store.outbox.failed(waiting.id, 300.0, "away")
    assert store.outbox.strangers(["x", "z"]) == {"y": 300.0}, "somebody is trying it"


def test_notices_for_a_removed_target_go_to_its_heirs_in_order(store: Store) -> None:
    put(store, "am", [FIRING, UPDATED, RESOLVED])
    put(store, "am b", [FIRING])
    for name in ("am a firing", "am b a firing"):
        store.outbox.sent(numbers(store)[name], 5)
    assert store.outbox.retire("am", ["am b", "am c"], 9) == 2
    for kind in ("updated", "resolved"):
        assert due(store, "am", "am b", "am c", now=9) == [f"am b a {kind}", f"am c a {kind}"]
        for target in ("am b", "am c"):
            store.outbox.sent(numbers(store)[f"{target} a {kind}"], 10)
    assert store.outbox.queues() == {}


def test_an_heir_does_not_get_a_notice_twice(store: Store) -> None:
    put(store, "am", [FIRING])
    put(store, "am b", [FIRING])
    store.outbox.sent(numbers(store)["am b a firing"], 5)
    assert store.outbox.retire("am", ["am b"], 9) == 1
    assert due(store, "am", "am b", now=9) == []


def test_notices_for_a_removed_target_without_heirs_are_dropped(store: Store) -> None:
    put(store, "gone", [FIRING, RESOLVED])
    assert store.outbox.retire("gone", [], 9) == 2
    assert store.outbox.queues() == {}
    assert errors(store) == ["no channel has this receiver any more"] * 2


def test_a_new_target_gets_the_newest_notice_of_each_open_incident_of_its_channel(store: Store) -> None:
    incident(store, "a")
    incident(store, "over", "resolved")
    put(store, "am", [FIRING, UPDATED, notice(incident="over")])
    put(store, "am2", [notice(incident="other")])
    incident(store, "other")
    store.outbox.introduce("am new", "am", 7)
    assert due(store, "am new") == ["am new a updated"]
    store.outbox.sent(numbers(store)["am new a updated"], 8)
    store.outbox.introduce("am new", "am", 9)
    store.outbox.introduce("am", "am", 9)
    assert due(store, "am new", now=9) == []
    assert due(store, "am") == ["am a firing", "am over firing"]
    assert "am new" in store.alerts.told("a")


# ---- the queue as a whole --------------------------------------------------------------------------------------------


def test_queues_report_how_much_waits_and_since_when(store: Store) -> None:
    put(store, "x", [FIRING], now=3)
    put(store, "x", [UPDATED], now=4)
    put(store, "y", [FIRING], now=5)
    store.outbox.sent(numbers(store)["y a firing"], 6)
    assert store.outbox.queues() == {"x": (2, 3.0)}


def test_only_finished_notices_of_closed_incidents_are_purged(store: Store) -> None:
    incident(store, "open")
    incident(store, "over", "resolved")
    put(store, "x", [notice(incident="open"), notice(incident="over"), notice("updated", "over", 1)])
    put(store, "x", [notice("resolved", "over", 2), notice(incident="unknown")])
    names = numbers(store)
    for name in ("x open firing", "x over firing"):
        store.outbox.sent(names[name], 5)
    store.outbox.drop(names["x over updated"], 6, "")
    store.outbox.sent(names["x unknown firing"], 50)
    store.outbox.purge(10)
    assert set(numbers(store)) == set(names), "nothing goes before the end was sent"
    store.outbox.sent(names["x over resolved"], 8)
    store.outbox.purge(10)
    assert set(numbers(store)) == {"x open firing", "x unknown firing"}


def fill(store: Store, number: int, **values: Any) -> None:
    """That many notifications, one of each incident for each of ten targets."""
    row = {"kind": "firing", "document": "{}", "created_at": 0.0, "attempts": 0, "next_at": 0.0, "last_error": ""}
    some = [
        {**row, "target": f"t{n % 10}", "incident": f"{n // 10:x}", "key": f"{len(values)} {n}", **values}
        for n in range(number)
    ]
    with store.writing() as connection:
        connection.execute(outbox.insert(), some)


def test_queries_of_a_long_queue_use_an_index_and_return_a_limited_number(store: Store) -> None:
    fill(store, 50_000, sent_at=1.0)
    fill(store, 5_000)
    asked = list[tuple[str, Any]]()
    sa.event.listen(store.engine, "before_cursor_execute", lambda *of: asked.append((of[2], of[3])))
    assert len(store.outbox.due(1, ["t3"])) == MOST_DUE
    assert sum(n for n, _ in store.outbox.queues().values()) == 5_000
    plans = [plan(store, *statement) for statement in list(asked) if "FROM outbox" in statement[0]]
    assert len(plans) >= 2
    assert store.outbox.strangers([f"t{n}" for n in range(9)]) == {"t9": 1.0}
    for found in plans:
        assert "INDEX" in found.upper(), found
        assert not re.search(r"SCAN outbox$|Seq Scan on outbox", found, re.MULTILINE), found


def plan(store: Store, statement: str, parameters: Any) -> str:
    """How the database finds what a statement asks for."""
    explain = "EXPLAIN QUERY PLAN " if store.dialect == "sqlite" else "EXPLAIN "
    with store.reading() as connection:
        if store.dialect == "postgresql":
            connection.exec_driver_sql("ANALYZE outbox")
        rows = connection.exec_driver_sql(explain + statement, parameters).all()
    return "\n".join(str(row[-1]) for row in rows)


def test_waiting_notices_of_a_monitor_are_counted_by_target_with_the_last_error(store: Store) -> None:
    for id_ in ("a", "b"):
        incident(store, id_)
    put(store, "x", [FIRING, RESOLVED, notice(incident="b")])
    put(store, "y", [FIRING])
    store.outbox.failed(numbers(store)["x a firing"], 7, "cannot be reached")
    store.outbox.sent(numbers(store)["x b firing"], 5)
    (x, y) = store.outbox.of_monitor("search")
    assert (x.target, x.number, x.said) == ("x", 2, "cannot be reached")
    assert (y.target, y.number, y.said) == ("y", 1, "")
    assert store.outbox.of_monitor("other") == []
