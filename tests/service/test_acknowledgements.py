"""The page shows what people do about an incident right away, not only after the next run."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from monitor.conditions.checkpoint import Announcement
from monitor.errors import StoreError
from monitor.measures.measure import parse
from monitor.page import render
from monitor.service.acknowledgements import poll_acknowledgements
from monitor.service.periodic import PeriodicTask
from monitor.store import Store
from monitor.types import Drift
from tests.support.pages import DAY, START, PageSource, fell, fill, shown, watched
from tests.support.tallies import HOUR

AT = START + 20 * DAY


@pytest.fixture
def pictured(store: Store) -> PageSource:
    """A monitor with an open incident, as a run left it on the board."""
    monitor = watched()
    fill(store, monitor, range(START, AT, HOUR), fell(AT - 2 * DAY, AT))
    return PageSource.of(AT, shown(store, monitor, AT))


def test_acknowledgements_and_silences_are_shown_without_a_run(store: Store, pictured: PageSource) -> None:
    incident = pictured.board.snapshots["search"].incident
    assert incident is not None
    assert "not acknowledged" in render(pictured)
    store.alerts.acknowledge(incident.incident.id, "ada", "rolled back", time.time())
    store.alerts.silence("search", time.time() - 1, time.time() + 3600, "ada", "")
    poll_acknowledgements(pictured.board, store)
    said = render(pictured)
    assert "acknowledged by <b>ada</b>" in said
    assert "rolled back" in said
    assert "<b>Silenced</b> until" in said
    store.alerts.unsilence("search", time.time())
    poll_acknowledgements(pictured.board, store)
    assert "Silenced" not in render(pictured)


def test_announcements_are_shown_and_removed_without_a_run(store: Store, pictured: PageSource) -> None:
    snapshot = pictured.board.snapshots["search"]
    pictured.board.publish(replace(snapshot, monitor=replace(snapshot.monitor, drift=Drift(parse("ndcg@10")))))
    store.verdicts.announce("search", Announcement(AT, AT + HOUR, "ada", "deploy v3"), time.time())
    poll_acknowledgements(pictured.board, store)
    assert "by ada: deploy v3" in render(pictured)
    store.verdicts.take_back_announcement("search", AT)
    poll_acknowledgements(pictured.board, store)
    assert "deploy v3" not in render(pictured)


def test_a_poll_without_changes_keeps_the_same_snapshots(store: Store, pictured: PageSource) -> None:
    before = pictured.board.snapshots
    poll_acknowledgements(pictured.board, store)
    assert pictured.board.snapshots is before


def test_an_unreachable_store_leaves_the_page_unchanged(tmp_path: Path, store: Store, pictured: PageSource) -> None:
    (tmp_path / "store.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(StoreError):
        poll_acknowledgements(pictured.board, store)
    task = PeriodicTask("acknowledgements", partial(poll_acknowledgements, pictured.board, store), 0.05)
    task.start()
    time.sleep(0.5)
    assert "not acknowledged" in render(pictured)
    began = time.monotonic()
    task.end()
    task.join()
    assert time.monotonic() - began < 5
