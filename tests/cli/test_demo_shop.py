"""The simulated shop follows its story and writes the same rows however often and in whatever pieces it runs."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from monitor.demo.shop import EVENT_MAX_S, SHOWN, Shop, Story, create_schema

START = datetime(2026, 1, 5, tzinfo=UTC)
DAY = timedelta(days=1)
FORMAT = "%Y-%m-%dT%H:%M:%SZ"

# Enough traffic for tests of rows, not of averages.
SMALL = Shop(story=Story(START, history_days=4, degraded_days=2, rollback_after=timedelta(hours=12)), peak=12)
ROLLOUT = SMALL.story.rolled_out


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """Makes empty shop databases."""
    engines: list[Engine] = []

    def make() -> Engine:
        engines.append(create_engine(f"sqlite:///{tmp_path / f'shop{len(engines)}.db'}"))
        create_schema(engines[-1])
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A shop at its default size: a good week and a bad one, and three days of live traffic."""
    shop = Shop(story=Story(START, history_days=14))
    engine = create_engine(f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}")
    create_schema(engine)
    shop.fill(engine, START, START + 17 * DAY)
    yield engine
    engine.dispose()


def query(engine: Engine, sql: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


def scalar(engine: Engine, sql: str) -> Any:
    return query(engine, sql)[0][0]


def rankings(engine: Engine) -> list[tuple[Any, ...]]:
    return query(engine, "SELECT * FROM rankings ORDER BY request_id, position")


def events(engine: Engine) -> list[tuple[Any, ...]]:
    return query(engine, "SELECT * FROM events ORDER BY event_id")


def rows(engine: Engine) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    return rankings(engine), events(engine)


def ndcg_at_10(grades: dict[int, float]) -> float:
    """NDCG@10 of one request's grades by position: linear gain, ideal over all impressions."""
    dcg = sum(grade / math.log2(position + 1) for position, grade in grades.items() if position <= 10)
    best = sorted(grades.values(), reverse=True)[:10]
    return dcg / sum(grade / math.log2(rank + 1) for rank, grade in enumerate(best, start=1))


def mean_ndcg(engine: Engine, where: str) -> float:
    """Mean NDCG@10 over the requests that have an event: click 1, purchase 3, the greater of both."""
    graded: dict[str, dict[int, float]] = defaultdict(dict)
    sql = "SELECT request_id, position, type FROM rankings JOIN events USING (request_id, item_id)"
    for request, position, kind in query(engine, f"{sql} WHERE {where}"):
        grade = {"click": 1.0, "purchase": 3.0}[kind]
        graded[request][position] = max(grade, graded[request].get(position, 0.0))
    return sum(map(ndcg_at_10, graded.values())) / len(graded)


def fall(engine: Engine, device: str = "%") -> float:
    """The relative drop of NDCG from v1 to v2."""
    v1, v2 = (mean_ndcg(engine, f"model_version = '{version}' AND device LIKE '{device}'") for version in ("v1", "v2"))
    return 1 - v2 / v1


def test_two_shops_of_one_seed_have_the_same_rows(database: Callable[[], Engine]) -> None:
    one, other = database(), database()
    SMALL.fill(one, START, START + DAY)
    Shop(story=SMALL.story, peak=SMALL.peak).fill(other, START, START + DAY)
    assert rows(one) == rows(other)


def test_another_seed_gives_other_rows(database: Callable[[], Engine]) -> None:
    one, other = database(), database()
    SMALL.fill(one, START, START + DAY)
    Shop(seed=8, story=SMALL.story, peak=SMALL.peak).fill(other, START, START + DAY)
    assert rows(one) != rows(other)


def test_writing_an_interval_twice_changes_nothing(database: Callable[[], Engine]) -> None:
    engine = database()
    SMALL.fill(engine, START, START + DAY)
    SMALL.advance(engine, START + DAY, START + 1.5 * DAY)
    before = rows(engine)
    SMALL.fill(engine, START, START + DAY)
    SMALL.advance(engine, START + 0.7 * DAY, START + 1.5 * DAY)
    assert rows(engine) == before


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(START, id="at the start"),
        pytest.param(START + timedelta(seconds=1), id="a second in"),
        pytest.param(START + timedelta(hours=18), id="on an hour"),
        pytest.param(START + timedelta(hours=18, minutes=23, seconds=7), id="within an hour"),
        pytest.param(START + timedelta(hours=18, minutes=23, microseconds=5), id="within a second"),
        pytest.param(START + DAY, id="on a midnight"),
        pytest.param(START + 2 * DAY, id="at the end"),
        pytest.param(datetime.fromisoformat("2026-01-06T03:30:00+05:30"), id="in another time zone"),
    ],
)
@pytest.mark.parametrize("write", [Shop.fill, Shop.advance])
def test_an_interval_cut_anywhere_gives_the_same_rows(
    database: Callable[[], Engine], write: Callable[[Shop, Engine, datetime, datetime], int], cut: datetime
) -> None:
    whole, parts = database(), database()
    requests = write(SMALL, whole, START, START + 2 * DAY)
    assert write(SMALL, parts, START, cut) + write(SMALL, parts, cut, START + 2 * DAY) == requests
    assert rows(whole) == rows(parts)


def test_steps_in_any_order_by_restarted_shops_give_the_same_rows(database: Callable[[], Engine]) -> None:
    whole, steps = database(), database()
    SMALL.fill(whole, START, START + DAY, events_until=START + DAY)
    for step in reversed(range(96)):
        restarted = Shop(story=SMALL.story, peak=SMALL.peak)
        restarted.advance(steps, START + step * DAY / 96, START + (step + 1) * DAY / 96)
    assert rows(whole) == rows(steps)


def test_advance_writes_events_only_once_they_occur(database: Callable[[], Engine]) -> None:
    live, complete, shop = database(), database(), Shop(story=Story(START), peak=400)
    evening = START + timedelta(hours=20, minutes=10)
    soon = evening + timedelta(minutes=20)
    shop.fill(live, evening - DAY / 6, evening, events_until=evening)
    shop.fill(complete, evening - DAY / 6, evening)
    late = set(events(complete)) - set(events(live))
    assert all(occurred_at >= evening.strftime(FORMAT) for *_, occurred_at in late)
    shop.advance(live, evening, soon)
    due = {event for event in late if event[-1] < soon.strftime(FORMAT)}
    assert late & set(events(live)) == due
    assert set() < due < late


def test_advance_equals_fill_after_the_last_event(database: Callable[[], Engine]) -> None:
    filled, live = database(), database()
    SMALL.fill(filled, START, START + DAY)
    # Go on past the end of the day until its last event; requests of the next day are filtered out below.
    now, end = START, START + DAY + timedelta(seconds=EVENT_MAX_S + 1)
    while now < end:
        SMALL.advance(live, now, now + timedelta(minutes=47))
        now += timedelta(minutes=47)
    served = f"substr(request_id, -16, 10) < '{START + DAY:%Y%m%d%H}'"
    assert rankings(filled) == query(live, f"SELECT * FROM rankings WHERE {served} ORDER BY 1, position")
    assert events(filled) == query(live, f"SELECT * FROM events WHERE {served} ORDER BY 1")


def test_nothing_is_served_before_the_story_starts(database: Callable[[], Engine]) -> None:
    engine, opening = database(), START + timedelta(hours=18, minutes=30)
    shop = Shop(story=Story(opening))
    assert shop.fill(engine, START, opening) == shop.advance(engine, START, opening) == 0
    shop.advance(engine, opening, opening + timedelta(hours=3))
    assert scalar(engine, "SELECT min(served_at) FROM rankings") >= opening.strftime(FORMAT)
    dangling = "SELECT count(*) FROM events WHERE request_id NOT IN (SELECT request_id FROM rankings)"
    assert scalar(engine, dangling) <= 0.03 * len(events(engine))


def test_an_empty_interval_writes_nothing(database: Callable[[], Engine]) -> None:
    engine = database()
    assert SMALL.fill(engine, START, START) == SMALL.advance(engine, START, START - DAY) == 0
    assert rows(engine) == ([], [])


def test_progress_receives_the_end_of_every_day_written(database: Callable[[], Engine]) -> None:
    told: list[datetime] = []
    SMALL.fill(database(), START + DAY / 4, START + 2.5 * DAY, told.append)
    assert told == [START + DAY, START + 2 * DAY, START + 2.5 * DAY]


def test_creating_the_schema_twice_keeps_the_rows(database: Callable[[], Engine]) -> None:
    engine = database()
    SMALL.fill(engine, START, START + DAY)
    before = rows(engine)
    with engine.begin() as connection:
        create_schema(connection)
    assert rows(engine) == before


def test_the_worse_model_serves_from_rollout_to_rollback(
    database: Callable[[], Engine],
) -> None:
    engine = database()
    SMALL.fill(engine, START, START + 6 * DAY)
    sql = "SELECT DISTINCT model_version FROM rankings WHERE served_at >= '{}' AND served_at < '{}'"
    edges = [START, ROLLOUT, SMALL.story.history_end + timedelta(hours=12), START + 6 * DAY]
    stamps = [edge.strftime(FORMAT) for edge in edges]
    versions = [query(engine, sql.format(*pair)) for pair in itertools.pairwise(stamps)]
    assert versions == [[("v1",)], [("v2",)], [("v1",)]]


def test_each_request_shows_twenty_different_items_to_one_shopper(history: Engine) -> None:
    sql = """SELECT DISTINCT count(*), count(DISTINCT item_id), min(position), max(position),
        count(DISTINCT served_at || query || device || country || model_version)
        FROM rankings GROUP BY request_id"""
    assert query(history, sql) == [(SHOWN, SHOWN, 1, SHOWN, 1)]


def test_times_are_whole_seconds_in_utc(history: Engine) -> None:
    pattern = "____-__-__T__:__:__Z"
    assert scalar(history, f"SELECT count(*) FROM rankings WHERE served_at NOT LIKE '{pattern}'") == 0
    assert scalar(history, f"SELECT count(*) FROM events WHERE occurred_at NOT LIKE '{pattern}'") == 0


def test_evenings_are_busier_than_nights(history: Engine) -> None:
    sql = "SELECT substr(served_at, 12, 2) AS hour, count(*) FROM rankings WHERE position = 1 GROUP BY hour"
    by_hour = {int(hour): count / 17 for hour, count in query(history, sql)}
    assert by_hour[20] == pytest.approx(60 * 0.95, rel=0.15)
    assert by_hour[3] < by_hour[20] / 5


def test_few_queries_make_much_of_the_traffic(history: Engine) -> None:
    sql = "SELECT count(*) FROM rankings WHERE position = 1 GROUP BY query ORDER BY 1 DESC"
    counts = [count for (count,) in query(history, sql)]
    assert len(counts) == pytest.approx(200, abs=5)
    assert sum(counts[:20]) / sum(counts) == pytest.approx(0.5, abs=0.1)


def test_the_click_rate_falls_with_the_position(history: Engine) -> None:
    sql = """SELECT position, avg(event_id IS NOT NULL) FROM rankings r
        LEFT JOIN events e ON e.request_id = r.request_id AND e.item_id = r.item_id AND type = 'click'
        GROUP BY position ORDER BY position"""
    rates = [rate for _, rate in query(history, sql)]
    assert rates[:8] == sorted(rates[:8], reverse=True)
    assert rates[0] > 2 * rates[2] > 10 * rates[19] > 0


def test_clicks_come_within_100_seconds_and_purchases_over_hours(history: Engine) -> None:
    sql = """SELECT type, avg(delay < 100), avg(delay < 600), avg(delay < 7200), min(delay), max(delay) FROM (
        SELECT type, unixepoch(occurred_at) - unixepoch(served_at) AS delay
        FROM events JOIN rankings USING (request_id, item_id)) GROUP BY type"""
    (_, fast, _, _, soonest, _), (_, _, minutes, hours, _, latest) = query(history, sql + " ORDER BY type")
    assert fast == 1
    assert soonest >= 0
    assert 0.25 < minutes < 0.55
    assert 0.97 < hours < 1
    assert latest <= EVENT_MAX_S


def test_about_three_events_in_a_thousand_match_no_impression(history: Engine) -> None:
    total = scalar(history, "SELECT count(*) FROM events")
    unlogged = scalar(history, "SELECT count(*) FROM events WHERE request_id LIKE 'staging-%'")
    unmatched = scalar(
        history,
        "SELECT count(*) FROM events LEFT JOIN rankings USING (request_id, item_id) WHERE position IS NULL",
    )
    assert unmatched / total == pytest.approx(0.003, abs=0.0015)
    assert 0 < unlogged < unmatched


def test_ndcg_falls_with_the_worse_model_and_most_on_mobile(history: Engine) -> None:
    assert 0.12 < fall(history) < 0.18
    assert 0.25 < fall(history, "mobile") < 0.31
    assert fall(history, "desktop") < 0.035


def test_every_bad_day_is_worse_than_every_good_one(history: Engine) -> None:
    days = [(START + day * DAY).strftime("%Y-%m-%d") for day in range(17)]
    daily = [mean_ndcg(history, f"served_at LIKE '{day}%'") for day in days]
    good, bad = daily[:7] + daily[16:], daily[7:16]
    assert max(bad) < min(good) - 0.05
