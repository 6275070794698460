"""Intervals on a real ranking: 24 calm days of the Hacker News front page, each judged by earlier data only."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import pytest

from monitor.series.windows import History, Point, points
from monitor.service.cycle import BatchSize, run_backfill
from monitor.store import Store
from monitor.types import Monitor
from tests.support import hackernews
from tests.support.monitors import DAY, hacker_news, new_store, pull

FIRST = int(datetime(2022, 1, 31, tzinfo=UTC).timestamp())
WAR = int(datetime(2022, 2, 24, tzinfo=UTC).timestamp())
MIDNIGHTS = range(FIRST + DAY, WAR + 1, DAY)


@pytest.fixture(scope="module")
def monitor(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Monitor, Store]]:
    folder = tmp_path_factory.mktemp("hn")
    url = f"sqlite:///{folder}/hn.db"
    hackernews.fill(url, shared / hackernews.FILE)
    watched, store = hacker_news(url, ["ndcg@10", "mrr@10", "ctr@10"]), new_store(f"sqlite:///{folder}/store.db")
    with store.hold(watched.name) as lease:
        for _ in run_backfill(watched, WAR + DAY, (FIRST, WAR), pull(watched, url), store, lease, BatchSize()):
            pass
    yield watched, store
    store.close()


def days(watched: Monitor, store: Store, number: int, length: int = DAY) -> list[Point]:
    """The windows ending at each midnight, computed from what was stored before it."""
    measure, found = watched.measures[number], []
    for end in MIDNIGHTS:
        known: tuple[History, History] = (
            store.history(watched.definition(measure), 0, end),
            store.history(watched.traffic, 0, end),
        )
        found.append(points(measure, *known, watched.bucket, length, end)[0])
    return found


def covered(found: list[Point]) -> int:
    """How many intervals contain the days' common level."""
    level = fmean(p.value for p in found if p.value is not None)
    return sum(p.lower <= level <= p.upper for p in found if p.lower is not None and p.upper is not None)


@pytest.mark.parametrize("number", [0, 1, 2], ids=["ndcg@10", "mrr@10", "ctr@10"])
def test_at_least_21_of_24_daily_intervals_contain_the_common_level(
    monitor: tuple[Monitor, Store], number: int
) -> None:
    found = days(*monitor, number)
    assert len(found) == 24
    assert covered(found) >= 21
    assert [p.method for p in found] == ["sampling"] * 3 + ["history"] * 21


def test_sampling_intervals_alone_contain_the_level_less_often(monitor: tuple[Monitor, Store]) -> None:
    """The days' true spread is twice what sampling explains."""
    found = days(*monitor, 0)
    alone = fmean(p.upper - p.lower for p in found[:3] if p.lower is not None and p.upper is not None) / 2
    level = fmean(p.value for p in found if p.value is not None)
    assert sum(abs((p.value or 0) - level) <= alone for p in found) <= 18


def test_a_weekly_interval_is_narrower_and_contains_the_level(monitor: tuple[Monitor, Store]) -> None:
    single, week = days(*monitor, 0), days(*monitor, 0, 7 * DAY)[6:]
    assert {p.method for p in week} == {"long_run"}
    level = fmean(p.value for p in single if p.value is not None)
    assert all(p.lower <= level <= p.upper for p in week if p.lower is not None and p.upper is not None)
    widths = [
        fmean(p.upper - p.lower for p in s if p.lower is not None and p.upper is not None) for s in (single, week)
    ]
    assert widths[1] < 0.6 * widths[0]
