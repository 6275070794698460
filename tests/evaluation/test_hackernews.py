"""The main job on real input: 42 days of a real ranking, on SQLite and on PostgreSQL."""

import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from monitor.clock import ReplayClock
from monitor.measures.measure import parse
from monitor.series.windows import points
from monitor.service.app import App
from monitor.service.cycle import BatchSize, run_backfill
from monitor.store import Store
from monitor.types import Monitor
from tests.support import hackernews
from tests.support.monitors import DAY, config, hacker_news, new_store, pull

FIRST = int(datetime(2022, 1, 31, tzinfo=UTC).timestamp())
LAST = int(datetime(2022, 3, 14, tzinfo=UTC).timestamp())


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def front_pages(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A source that no test writes to."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path_factory.mktemp('hn')}/hn.db" if sqlite else request.getfixturevalue("shared_url")
    hackernews.fill(url, shared / hackernews.FILE)
    return str(url)


@pytest.fixture(scope="module")
def stored(front_pages: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Monitor, Store]]:
    """The whole source, backfilled."""
    monitor = hacker_news(front_pages, ["ndcg@10", "ndcg@30"])
    store = new_store(f"sqlite:///{tmp_path_factory.mktemp('stored')}/store.db")
    backfill(monitor, front_pages, store)
    yield monitor, store
    store.close()


def backfill(monitor: Monitor, url: str, store: Store, until: int = LAST) -> None:
    with store.hold(monitor.name) as lease:
        for _ in run_backfill(monitor, LAST + 2 * DAY, (FIRST, until), pull(monitor, url), store, lease, BatchSize()):
            pass


def test_daily_ndcg_agrees_with_an_independent_computation_on_every_day(
    stored: tuple[Monitor, Store], shared: Path
) -> None:
    monitor, store = stored
    expected = hackernews.daily_ndcg(shared / hackernews.FILE)
    measure = monitor.measures[0]
    history = store.history(monitor.definition(measure), FIRST, LAST)
    traffic = store.history(monitor.traffic, FIRST, LAST)
    assert len(expected) == 42
    for end in range(FIRST + DAY, LAST + 1, DAY):
        point = points(measure, history, traffic, monitor.bucket, DAY, end)[0]
        assert point.value == pytest.approx(expected[datetime.fromtimestamp(end - DAY, UTC).date()], abs=1e-9)
        assert point.final
        assert point.completeness == 1.0


def test_adverts_and_vanished_items_are_reported_not_guessed(stored: tuple[Monitor, Store], shared: Path) -> None:
    monitor, store = stored
    shown = hackernews.read(shared / hackernews.FILE)
    adverts = sum(1 for row in shown if row.item_id is None)
    assert store.refused(monitor.traffic, FIRST, LAST) == {"null_item": adverts}
    requests, labelled, impressions, judged, events, unmatched, no_results, rank_one = (
        store.history(monitor.traffic, FIRST, LAST).sums[:, 0].sum(axis=0).tolist()
    )
    assert requests == 1970
    assert labelled == 1968  # two snapshots have no later one within two hours
    assert impressions == 59_100 - adverts
    assert judged == events == 48_324  # the others vanished from the page before their label was due
    assert unmatched == no_results == 0
    assert rank_one == requests - 1  # one list starts with an advert


def test_the_running_daemon_serves_the_same_values(front_pages: str, shared: Path, tmp_path: Path) -> None:
    monitor = replace(hacker_news(front_pages), lookback=2 * DAY)
    expected = hackernews.daily_ndcg(shared / hackernews.FILE)
    for day in (date(2022, 2, 10), date(2022, 2, 24), date(2022, 3, 12)):
        folder = tmp_path / str(day)
        folder.mkdir()
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() + DAY
        # Three hours on, the day's last bucket is final (two hours of attribution), and no later one is.
        app = App(config(folder, {"hn": front_pages}, [monitor]), ReplayClock(midnight + 7200 + 600))
        app.prepare()
        try:
            app.runners["hn"].run(lambda *_: None)
            app.start()
            served = scrape(app.web.port)
        finally:
            app.stop()
        line = next(s for s in served.splitlines() if s.startswith("rankmon_ndcg_ratio{"))
        assert 'measure="ndcg@10"' in line
        assert float(line.rsplit(" ", 1)[1]) == pytest.approx(expected[day], abs=1e-9)
        end = next(s for s in served.splitlines() if s.startswith("rankmon_window_end_timestamp_seconds{"))
        # As old as by the replay's clock, which has hardly moved.
        assert time.time() - float(end.rsplit(" ", 1)[1]) == pytest.approx(7200 + 600, abs=120)
        assert re.search(r'rankmon_refused_rows\{monitor="hn",reason="null_item"\} \d', served)


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_changed_label_recipe_never_mixes_with_the_old_series(front_pages: str, tmp_path: Path) -> None:
    old, store = hacker_news(front_pages), new_store(f"sqlite:///{tmp_path}/store.db")
    backfill(old, front_pages, store, FIRST + 7 * DAY)
    new = replace(old, recipe=replace(old.recipe, attribution=5400))  # type: ignore[type-var]
    assert new.definition(parse("ndcg@10")) != old.definition(parse("ndcg@10"))
    assert store.newest_bucket(new.definition(parse("ndcg@10"))) is None
    assert len(store.history(new.traffic, FIRST, LAST).starts) == 0
    backfill(new, front_pages, store, FIRST + 7 * DAY)
    before = store.history(old.definition(parse("ndcg@10")), FIRST, LAST)
    after = store.history(new.definition(parse("ndcg@10")), FIRST, LAST)
    assert len(before.starts) == len(after.starts) == 7 * 24
    assert (before.sums != after.sums).any()
    store.close()
