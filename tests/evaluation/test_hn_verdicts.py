"""Verdicts without thresholds on real data: the front page of Hacker News, two requests an hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from monitor.evaluation.replay import Replay, replay
from monitor.measures.measure import parse
from monitor.store import Store
from monitor.types import Drift, Monitor
from tests.evaluation.test_hn_incident import FIRST, LAST, judge_backfill
from tests.support import hackernews
from tests.support.monitors import hacker_news, new_store

Lived = tuple[Replay, Store]


@pytest.fixture
def live(shared: Path, tmp_path: Path) -> Iterator[Callable[..., Lived]]:
    """Fill a source except for gaps in some tables and judge all of it: (replay, store)."""
    stores = []

    def made(url: str, *gaps: tuple[str, str, str]) -> Lived:
        hackernews.fill(url, shared / hackernews.FILE)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            for table, since, until in gaps:
                remove(connection, table, since, until)
        engine.dispose()
        stores.append(new_store(f"sqlite:///{tmp_path}/store.db" if url.startswith("sqlite") else url))
        judge_backfill(watched(url), url, stores[-1])
        return replay(watched(url), stores[-1], FIRST, LAST), stores[-1]

    yield made
    for store in stores:
        store.close()


def remove(connection: sa.Connection, table: str, since: str, until: str) -> None:
    """Remove the rankings shown between two moments, or their labels, from a source in SQLite."""
    shown = hackernews.RANKINGS.c
    between = shown.served_at.between(f"{since}Z", f"{until}Z")
    if table == "upvotes":
        ids = sa.select(shown.snapshot_id).where(between)
        connection.execute(hackernews.UPVOTES.delete().where(hackernews.UPVOTES.c.snapshot_id.in_(ids)))
    else:
        connection.execute(hackernews.RANKINGS.delete().where(between))


def watched(url: str) -> Monitor:
    return replace(hacker_news(url), drift=Drift(parse("ndcg@10")), notify=("log",))


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def kinds(found: Replay, since: str, until: str) -> Counter[str]:
    return Counter(v.kind for v in found.verdicts if seconds(since) < v.end <= seconds(until))


def test_the_dip_into_march_is_one_incident_without_earlier_pages(
    database_url: str, live: Callable[..., Lived]
) -> None:
    found, store = live(database_url)
    (page,) = found.of("quality")
    assert seconds("2022-02-24") <= page.incident.opened_at < seconds("2022-02-28")
    assert page.incident.closed_at is not None
    assert seconds("2022-03-01") <= page.incident.closed_at < seconds("2022-03-10")
    assert found.of("data") == []
    assert found.hours["not_enough_data"] == 14 * 24
    assert [s.incident for s in store.alerts.incidents()] == [page.incident]


def test_two_days_without_data_cause_no_degradation(tmp_path: Path, live: Callable[..., Lived]) -> None:
    found, _ = live(f"sqlite:///{tmp_path}/hn.db", ("rankings", "2022-02-18T00:00:00", "2022-02-20T00:00:00"))
    seen = kinds(found, "2022-02-18", "2022-02-20T12:00")
    assert seen["degraded"] == 0
    assert seen["traffic_low"] + seen["not_enough_data"] > 24
    assert all(page.incident.opened_at >= seconds("2022-02-24") for page in found.of("quality"))


def test_twelve_hours_without_labels_cause_no_degradation(tmp_path: Path, live: Callable[..., Lived]) -> None:
    found, _ = live(f"sqlite:///{tmp_path}/hn.db", ("upvotes", "2022-02-19T00:00:00", "2022-02-19T12:00:00"))
    seen = kinds(found, "2022-02-19", "2022-02-20T12:00")
    assert seen["degraded"] == 0
    assert seen["labels_suspect"] >= 6
    assert all(page.incident.opened_at >= seconds("2022-02-24") for page in found.of("quality"))
