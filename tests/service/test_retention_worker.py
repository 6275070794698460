"""The retention worker visits every day, does nothing twice, and reports correctly whether it changed anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import sqlalchemy as sa

from monitor.evaluation import run
from monitor.service.retention import FROM_THE_FIRST_EVERY, RETENTION_EVERY, RetentionWorker
from monitor.store import Store
from monitor.store.schema import buckets, series
from monitor.types import Drift, Monitor, Retention, RollUp
from tests.support.monitors import new_store
from tests.support.tallies import HOUR, tally, watched, write

DAY = 24 * HOUR
DAYS, AGE = 16, 4
NOW = float(DAYS * DAY)
OLD = DAYS - AGE
"""Days that are old enough to be rolled up."""
PLAIN = watched()
MONITOR = replace(PLAIN, drift=Drift(PLAIN.measures[0], mix_by="device"), retention=Retention(None, RollUp(AGE * DAY)))
"""Its ages are below what a configuration allows, so that little data suffices."""


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    made = new_store(database_url)
    yield made
    made.close()


def fill(store: Store, hours: range | list[int], monitor: Monitor = MONITOR) -> None:
    with store.hold(monitor.name) as lease:
        tallied = tally(monitor, {n * HOUR: {"mobile": 5, "desktop": 3} for n in hours})
        write(store, lease, monitor, tallied)


def without(*days: int) -> list[int]:
    """All hours but one of each of these days."""
    return [n for n in range(DAYS * 24) if n % 24 != 7 or n // 24 not in days]


@dataclass
class Watched:
    """A retention worker of a monitor, and a record of what it does."""

    keeping: RetentionWorker
    store: Store
    at: list[float]
    moved: list[int] = field(default_factory=list)
    """Times to which the checkpoint was moved, seconds."""
    looked: list[int] = field(default_factory=list)
    """Days that were checked for gaps."""

    def advance(self) -> bool:
        with self.store.hold("search") as lease:
            return self.keeping.advance(lease, NOW, lambda: False)

    def coarse(self) -> list[int]:
        """Days that were rolled up."""
        found = self.store.retention.coarse(MONITOR.traffic, 0, 1 << 40)
        return [start // DAY for history in found.values() for start in history.starts.tolist()]


def watching(store: Store, monkeypatch: pytest.MonkeyPatch, monitor: Monitor = MONITOR) -> Watched:
    at = [0.0]
    made, lacking = Watched(RetentionWorker(monitor, store, clock=lambda: at[0]), store, at), store.retention.lacking
    move = run.moved_checkpoint

    def moved(monitor: Monitor, until: int, store: Store) -> Any:
        made.moved.append(until)
        return move(monitor, until, store)

    def looked(name: str, start: int, seconds: int) -> dict[str, str]:
        made.looked.append(start // DAY)
        return lacking(name, start, seconds)

    monkeypatch.setattr("monitor.evaluation.run.moved_checkpoint", moved)
    monkeypatch.setattr(store.retention, "lacking", looked)
    return made


def test_incomplete_days_move_no_checkpoint_and_report_no_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, without(*range(DAYS)))
    watched = watching(store, monkeypatch)
    assert not watched.advance()
    assert watched.looked == list(range(OLD))
    assert watched.moved == []
    assert watched.keeping.holding is not None
    watched.at[0] = RETENTION_EVERY
    assert not watched.advance()
    assert watched.looked == list(range(OLD))


def test_each_rolled_up_day_moves_the_checkpoint_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, without(2, 3, 4, 8))
    watched = watching(store, monkeypatch)
    assert watched.advance()
    done = [n for n in range(OLD) if n not in (2, 3, 4, 8)]
    assert watched.coarse() == done
    assert watched.moved == [(n + 1) * DAY for n in done]
    assert watched.looked == list(range(OLD))


def test_an_old_series_is_rolled_up_without_a_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    former = replace(watched(grade="former"), retention=MONITOR.retention)
    fill(store, range(DAYS * 24), former)
    traffic = sa.select(series.c.id).where(series.c.kernel == "traffic")
    store.change(buckets.delete().where(buckets.c.bucket_start % DAY == 7 * HOUR, buckets.c.series_id.in_(traffic)))
    fill(store, without(*range(DAYS)))
    seen = watching(store, monkeypatch)
    assert seen.advance()
    assert store.retention.rolled_up(former.definition(former.measures[0]), 0, 1 << 40) == (0, OLD * DAY)
    assert (seen.coarse(), seen.moved) == ([], [])


def test_a_pass_over_all_days_finishes_before_the_next_starts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.service.retention.WORK_PER_CYCLE", 0.0)
    fill(store, without(*range(5)))
    watched, changed = watching(store, monkeypatch), []
    for number in range(OLD):
        watched.at[0] = number * FROM_THE_FIRST_EVERY / 2
        changed.append(watched.advance())
        assert watched.keeping.holding is None
    assert changed == [False] * 5 + [True] * (OLD - 5)
    assert watched.looked == list(range(OLD))
    assert watched.coarse() == list(range(5, OLD))
    assert not watched.advance()
    assert watched.keeping.holding is not None
    watched.at[0] += FROM_THE_FIRST_EVERY - 1
    assert not watched.advance()
    assert watched.looked == list(range(OLD))
    watched.at[0] += RETENTION_EVERY
    watched.advance()
    assert watched.looked == [*range(OLD), 0]


def test_incomplete_days_do_not_delay_deletion(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.service.retention.WORK_PER_CYCLE", 0.0)
    fill(store, without(*range(DAYS)))
    kept = OLD - 3
    watched = watching(
        store, monkeypatch, replace(MONITOR, retention=Retention((DAYS - kept) * DAY, RollUp(AGE * DAY)))
    )
    for _ in range(kept):
        assert watched.advance()
    assert store.oldest_bucket(MONITOR.traffic) == kept * DAY
    assert watched.looked == []
    assert watched.moved == [(n + 1) * DAY for n in range(kept)]
    for _ in range(4):
        assert not watched.advance()
    assert watched.looked == [kept, kept + 1, kept + 2]
    assert watched.keeping.holding is not None
