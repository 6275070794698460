"""A monitor is renamed or removed: its stored data follows, and receivers still recognise its open incident."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.conditions.checkpoint import Announcement, BaselineReset
from monitor.conditions.incident import Incident
from monitor.errors import InputError, LeaseLost
from monitor.evaluation.run import withdraw
from monitor.store import Store
from monitor.store.renaming import names, remove, take_over
from monitor.store.schema import leases, metadata, outbox
from tests.evaluation.test_judging import BASE, RULE, Bench
from tests.support.monitors import new_store
from tests.support.tallies import HOUR, watched

OF_MONITORS = [table for table in metadata.sorted_tables if "monitor" in table.c and table is not leases]


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    """A monitor with a notified open incident and everything that people can set."""
    store = new_store(database_url, 20)
    made = Bench(store, replace(watched(), windows=(HOUR,), alerts=(RULE,), notify=("team",), lookback=999 * HOUR))
    made.live(0.8, 0.8, 0.8, 0.3, 0.3, 0.3)
    (incident,) = made.incidents
    store.alerts.acknowledge(incident.incident.id, "ada", "seen", 1.0)
    store.alerts.label(incident.incident.id, "right", "ada", "")
    store.alerts.silence("search", 0.0, 2e10, "ada", "")
    store.verdicts.begin_baseline("search", BaselineReset(BASE, "ada", "", None), 1.0)
    store.verdicts.announce("search", Announcement(BASE, BASE + HOUR, "ada", "sale", False), 1.0)
    yield made
    store.close()


def renamed(bench: Bench, name: str = "find") -> None:
    with bench.store.hold(name) as lease:
        assert take_over(bench.store, lease, bench.monitor.name)
    bench.monitor = replace(bench.monitor, name=name)


def rows_of(store: Store, name: str) -> dict[str, int]:
    counted = (sa.select(sa.func.count()).where(table.c.monitor == name) for table in OF_MONITORS)
    return {table.name: int(store.scalar(query)) for table, query in zip(OF_MONITORS, counted, strict=True)}


def test_a_renamed_monitor_keeps_all_stored_rows(bench: Bench) -> None:
    before = rows_of(bench.store, "search")
    assert {"series", "slices", "incidents", "transitions", "silences", "baselines", "announcements", "judged"} <= {
        table for table, number in before.items() if number
    }
    renamed(bench)
    assert rows_of(bench.store, "find") == {**before, "monitors": 1}
    assert set(rows_of(bench.store, "search").values()) == {0}
    assert names(bench.store) == {"find"}


def test_an_open_incident_survives_a_rename_without_another_page(bench: Bench) -> None:
    (was,), told = bench.incidents, bench.notices
    renamed(bench)
    bench.put(0.31, at=4)  # the past is judged again
    bench.live(0.3)
    (now,) = bench.incidents
    assert (now.incident.id, now.incident.monitor) == (was.incident.id, "find")
    assert (now.acknowledged_by, now.label, now.note) == ("ada", "right", "seen")
    assert bench.notices == told
    bench.live(0.8, 0.8, 0.8, 0.8)
    (*_, (target, last)) = bench.messages
    assert (target, last.kind, last.incident) == ("team", "resolved", was.incident.id)
    assert last.monitor == "search", "Alertmanager knows its alert by that label"
    bench.store.alerts.unsilence("find", time.time())
    bench.live(0.3, 0.3, 0.3)
    assert bench.messages[-1][1].monitor == "find"


def test_repeated_renames_keep_incidents_apart_from_a_reused_name(bench: Bench) -> None:
    (was,) = bench.incidents
    for name in ("find", "found", "search"):
        free(bench.store, name)
        renamed(bench, name)
    bench.live(0.3)
    assert [one.incident.id for one in bench.incidents] == [was.incident.id]
    free(bench.store, "find")
    renamed(bench, "find")
    free(bench.store, "search")
    new = Bench(bench.store, replace(bench.monitor, name="search"))
    new.live(0.8, 0.8, 0.8, 0.3, 0.3, 0.3)
    ids = {one.incident.monitor: one.incident.id for one in bench.incidents}
    assert ids.keys() == {"find", "search"}
    assert ids["find"] == was.incident.id != ids["search"]


def free(store: Store, name: str) -> None:
    """As if the hour had passed in which nobody may run a monitor under its former name."""
    store.change(leases.update().where(leases.c.monitor == name).values(expires_at=0.0))


def test_a_daemon_with_the_old_name_cannot_take_the_lease(bench: Bench) -> None:
    renamed(bench)
    with pytest.raises(LeaseLost, match="search: another process, which renamed it to find, is writing it"):
        bench.store.hold("search").__enter__()


def test_a_rename_is_refused_while_another_writes_the_old_name(bench: Bench) -> None:
    with bench.store.hold("search"), bench.store.hold("find") as lease, pytest.raises(LeaseLost):
        take_over(bench.store, lease, "search")
    assert names(bench.store) == {"search"}


def test_a_rename_does_not_merge_two_histories(bench: Bench) -> None:
    other = Bench(bench.store, replace(bench.monitor, name="find"))
    other.live(0.8)
    before = rows_of(bench.store, "find")
    with bench.store.hold("find") as lease, pytest.raises(InputError, match="rankmon remove find"):
        take_over(bench.store, lease, "search")
    assert rows_of(bench.store, "find") == before
    with bench.store.hold("find") as lease:
        assert not take_over(bench.store, lease, "never-there")


def test_a_removed_monitor_leaves_only_its_withdrawal_notice(bench: Bench) -> None:
    other = Bench(bench.store, replace(bench.monitor, name="find"))
    other.live(0.8, 0.8)
    kept, (was,) = rows_of(bench.store, "find"), bench.incidents
    with bench.store.hold("search") as lease:
        withdraw("search", bench.store, lease, bench.recipients())
        assert remove(bench.store, lease) == 6 * len(bench.monitor.definitions)
    assert set(rows_of(bench.store, "search").values()) == {0}
    assert rows_of(bench.store, "find") == kept
    waiting: list[Any] = list(bench.store.rows(sa.select(outbox.c.incident, outbox.c.kind).order_by(outbox.c.id)))
    assert waiting[-1] == (was.incident.id, "withdrawn")


def test_an_incident_id_comes_from_the_first_name() -> None:
    plain = Incident("search", 0, 3600)
    assert replace(plain, monitor="find", origin="search").id == plain.id != replace(plain, monitor="find").id
