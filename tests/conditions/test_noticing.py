"""Reads warn about recurring request ids where they see them anyway."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.database_url import parse_url
from monitor.source import recurring as again
from monitor.source.choice import open_reader, open_source
from monitor.source.engine import Database
from monitor.types import Monitor
from tests.support.logs import BUCKET, END, SPAN, START, Log, Style, column, events, monitor, write

EPOCH = Style("bigint", "epoch_ms", None, lambda micros: micros // 1000)
WAYS = ("pull", "pushdown")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database("s", parse_url(f"sqlite:///{tmp_path}/log.db"), 60)
    yield made
    made.close()


def served_again(tmp_path: Path, after: int, people: int = 40, others: int = 0) -> None:
    """Lists of people whose ids recur `after` seconds later, and of others."""
    log = Log()
    for n in range(people + others):
        for at in (START + n, START + n + after)[: 2 if n < people else 1]:
            log.show(f"u{n}", [1, 2, 3], at, device="tv", country="x", query="q", grade=[0, 1, 2])
            log.happen(f"u{n}", 2, at + 5)
    write(f"sqlite:///{tmp_path}/log.db", log, EPOCH)


def reads(way: str, recipe: Any = None) -> Monitor:
    return monitor(recipe or events(EPOCH), EPOCH, ("ndcg@3",), engine=way)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("way", WAYS)
def test_recurring_ids_are_warned_about_once_with_the_remedy(
    database: Database, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    served_again(tmp_path, after=300)
    source = open_reader(reads(way), database)
    for start in range(START, END, BUCKET):
        source.read(start, start + BUCKET)
    source.read(START, END)
    (said,) = warned(caplog)
    assert said.startswith(
        "monitor m: 40 of 40 ids in 'request' have rows more than max_request_span, 1m, apart and within 15m, as "
        "those that are served again have: an event counts for every serving of its request id within the attribution "
        "window, 15m, so values are too high; name a column with a unique id per served ranking"
    )
    assert said.endswith("where these are single requests that last so long, raise max_request_span")


@pytest.mark.parametrize("way", WAYS)
def test_a_read_of_several_buckets_finds_ids_recurring_across_them(
    database: Database, tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    served_again(tmp_path, after=BUCKET + 200)
    source = open_reader(reads(way), database)
    source.read(START, START + BUCKET)
    assert warned(caplog) == []  # one bucket shows only its own rows
    source.read(START, END)
    assert len(warned(caplog)) == 1


def test_the_warning_about_recurring_ids_repeats_the_next_day(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_again(tmp_path, after=300)
    source, began = open_reader(reads("pull"), database), time.monotonic()
    for later, times in [(0, 1), (again.SAID_EVERY - 60, 1), (again.SAID_EVERY + 60, 2)]:
        monkeypatch.setattr(again.time, "monotonic", lambda later=later: began + later)
        source.read(START, START + BUCKET)
        assert len(warned(caplog)) == times


@pytest.mark.parametrize(
    ("after", "people", "others"), [(300, 10, 0), (300, 20, 500), (SPAN - 1, 40, 0), (1000, 40, 0)]
)
def test_few_recurring_ids_or_ones_sharing_no_events_are_ignored(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, after: int, people: int, others: int
) -> None:
    served_again(tmp_path, after, people, others)
    open_reader(reads("pull"), database).read(START, END)
    assert warned(caplog) == []


def test_recurring_ids_are_ignored_where_labels_are_not_events(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served_again(tmp_path, after=300)
    open_reader(reads("pull", column()), database).read(START, END)
    assert warned(caplog) == []


def test_a_one_off_read_does_not_warn_about_recurring_ids(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served_again(tmp_path, after=300)
    open_source(reads("pull"), database).read(START, END)
    assert warned(caplog) == []
