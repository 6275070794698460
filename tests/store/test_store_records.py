"""Old records of closed incidents, silences and the like are purged with all that belongs to them, and nothing else."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.clock import ReplayClock
from monitor.messages.words import utc
from monitor.service.app import App
from monitor.store import Store
from monitor.store.schema import diagnoses, incidents, outbox, restatements, retrains, silences, transitions
from tests.support.monitors import config, new_store, shop
from tests.support.notices import DAY, FELL
from tests.support.tallies import bear_out, rows

NOW = FELL + 1000 * DAY
LONG_AGO, LATELY = FELL, NOW - 10 * DAY
KEEP = 730 * DAY
SENT = {"target": "log", "incident": "kept", "kind": "firing", "key": "k", "document": "{}", "attempts": 1}
SENT |= {"next_at": 0.0, "last_error": ""}


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url)
    yield made
    made.close()


def put(store: Store, table: sa.Table, **row: Any) -> None:
    with store.writing() as connection:
        connection.execute(table.insert().values(row))


def incident(store: Store, id_: str, closed_at: int | None, recorded_at: float, state: str = "resolved") -> None:
    """An incident with a transition, a diagnosis and a request to retrain."""
    row = {"monitor": "search", "severity": "critical", "retrain": True, "began_at": LONG_AGO, "opened_at": LONG_AGO}
    more = {"state": state, "closed_at": closed_at, "told": True, "summary": '{"firing": [], "findings": []}'}
    put(store, incidents, id=id_, **row, **more)
    transition(store, id_, recorded_at)
    taken = {"rule": "r", "dimension": "", "value": "", "taken_at": recorded_at, "document": "{}", "error": ""}
    put(store, diagnoses, incident=id_, monitor="search", **taken)
    put(store, retrains, key=id_, monitor="search", incident=id_, asked_at=int(recorded_at))


def transition(store: Store, incident_: str | None, recorded_at: float) -> None:
    row = {"monitor": "search", "rule": "r", "dimension": "", "value": "", "was": "ok", "became": "pending"}
    put(store, transitions, **row, incident=incident_, at=0, recorded_at=recorded_at, reason="", evidence="")


def names(store: Store, column: sa.Column[Any]) -> set[Any]:
    with store.reading() as connection:
        return set(connection.execute(sa.select(column)).scalars())


def test_old_closed_incidents_are_purged_with_all_that_belongs_to_them(store: Store) -> None:
    incident(store, "old", LONG_AGO + DAY, LONG_AGO + DAY)
    incident(store, "open", None, LONG_AGO + 2 * DAY, "firing")
    incident(store, "new", LATELY, LATELY)
    incident(store, "backfilled", LONG_AGO + DAY, LATELY)
    transition(store, None, LONG_AGO)
    transition(store, None, LATELY)
    assert store.alerts.purge(NOW - KEEP) == 1
    assert names(store, incidents.c.id) == names(store, diagnoses.c.incident) == {"open", "new", "backfilled"}
    assert names(store, transitions.c.incident) == {"open", "new", "backfilled", None}
    assert NOW - KEEP > LONG_AGO + 2 * DAY
    assert min(names(store, transitions.c.recorded_at)) == LONG_AGO + 2 * DAY, "everything of an open incident is kept"
    assert store.alerts.purge(NOW - KEEP) == 0


def test_the_newest_retrain_request_is_kept(store: Store) -> None:
    """The next request keeps its distance from it."""
    incident(store, "first", LONG_AGO + DAY, LONG_AGO + DAY)
    incident(store, "second", LONG_AGO + 2 * DAY, LONG_AGO + 2 * DAY)
    store.alerts.purge(NOW - KEEP)
    assert names(store, retrains.c.key) == {"second"}


def test_ended_silences_are_purged_and_active_ones_are_kept(store: Store) -> None:
    store.alerts.silence("search", LONG_AGO, LONG_AGO + DAY, "ada", "past")
    store.alerts.silence("search", LONG_AGO, NOW + DAY, "ada", "present")
    store.alerts.purge(NOW - KEEP)
    assert names(store, silences.c.note) == {"present"}


def test_old_restatements_are_purged(store: Store) -> None:
    for at in (LONG_AGO, LATELY):
        put(store, restatements, monitor="search", since=0, until=DAY, restated_at=at, forced=False, buckets=24)
    store.alerts.purge(NOW - KEEP)
    assert names(store, restatements.c.restated_at) == {LATELY}


def test_a_daemon_whose_clock_runs_years_ahead_purges_nothing_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(config(tmp_path, {"shop": "sqlite:///none.db"}, [shop()]), ReplayClock(NOW + 3 * 365.0 * DAY))
    app.store.schema.migrate()
    incident(app.store, "kept", LATELY, LATELY)
    bear_out(app.store, NOW)
    before, sent = rows(app.store), FELL + 999 * DAY
    put(app.store, outbox, **SENT, created_at=sent, sent_at=sent)
    app.sender.tidy()
    app.sender.tidy()
    assert rows(app.store, "outbox") == {name: found for name, found in before.items() if name != "outbox"}
    assert names(app.store, outbox.c.sent_at) == {sent}
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert said == [
        f"store: this clock says {utc(NOW + 3 * 365 * DAY)}, but requests are stored only up to {utc(NOW)}: nothing "
        f"has been read since, or the clock is wrong. Until they agree, retention counts from {utc(NOW)}"
    ]
    app.close()


def test_a_daemon_purges_by_the_clock_of_its_data(tmp_path: Path) -> None:
    app = App(config(tmp_path, {"shop": "sqlite:///none.db"}, [shop()]), ReplayClock(LONG_AGO + 10.0 * DAY))
    app.store.schema.migrate()
    incident(app.store, "replayed", LONG_AGO + DAY, LONG_AGO + DAY)
    app.sender.start()
    time.sleep(0.5)
    app.sender.stop()
    assert names(app.store, incidents.c.id) == {"replayed"}
    app.close()
    later = App(config(tmp_path, {"shop": "sqlite:///none.db"}, [shop()]), ReplayClock(float(NOW)))
    bear_out(later.store, NOW)
    later.sender.start()
    until = time.monotonic() + 10
    while names(later.store, incidents.c.id):
        assert time.monotonic() < until
        time.sleep(0.02)
    later.sender.stop()
    later.close()
