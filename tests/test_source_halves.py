"""Long reads in two halves at the same time: the same result, no more transactions than allowed, and plain failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import MethodType

import pytest

from monitor.core.summed import Answer, effort
from monitor.database_url import parse_url
from monitor.errors import TooMany
from monitor.source.engine import Database
from monitor.source.halves import InHalves
from monitor.source.pushdown import PushDown
from tests.support.logs import BUCKET, END, START
from tests.test_pushdown_ways import fill, small

MIDDLE = (START + END) // 2


class Watched:
    """A reader by sums that notes what it is asked for, and does beforehand what a test wants."""

    def __init__(self, url: str, most: int = 4, before: Callable[[int, int], object] = lambda *_: None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.source = PushDown(small(), Database("s", parse_url(url, None), 60, max_concurrent=most), is_bound=True)
        whole = self.source.read

        def read(_: PushDown, since: int, until: int) -> Answer:
            self.asked.append((since, until))
            before(since, until)
            return whole(since, until)

        self.source.read = MethodType(read, self.source)  # type: ignore[method-assign]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A clean log in SQLite."""
    found = f"sqlite:///{tmp_path}/log.db"
    fill(found)
    return found


def test_both_halves_are_read_at_the_same_time(url: str) -> None:
    together = threading.Barrier(2, timeout=20)
    watched = Watched(url, before=lambda *_: together.wait())
    InHalves(watched.source, worth=0).read(START, END)
    assert sorted(watched.asked) == [(START, MIDDLE), (MIDDLE, END)]


def test_a_read_is_cut_at_the_edge_of_a_bucket_and_a_single_bucket_never(url: str) -> None:
    watched = Watched(url)
    source = InHalves(watched.source, worth=0)
    source.read(START + 1, START + 3 * BUCKET)
    assert sorted(watched.asked) == [(START + 1, START + BUCKET), (START + BUCKET, START + 3 * BUCKET)]
    source.read(START, START + BUCKET)
    assert watched.asked[2:] == [(START, START + BUCKET)]


def test_a_read_is_halved_once_those_before_it_took_long(url: str) -> None:
    watched, part = Watched(url), (START, START + 3 * BUCKET)
    source = InHalves(watched.source, worth=effort(watched.source.read(*part)) + 1)
    watched.asked.clear()
    source.read(*part)
    source.read(*part)
    assert watched.asked == [part, part], "nothing is known of it, then it is too short"
    source.read(START, END)
    assert sorted(watched.asked[2:]) == [(START, MIDDLE), (MIDDLE, END)]


def test_where_one_transaction_is_allowed_a_read_is_one(url: str) -> None:
    watched = Watched(url, most=1)
    InHalves(watched.source, worth=0).read(START, END)
    assert watched.asked == [(START, END)]


def test_what_is_left_to_the_pull_is_read_in_one_part(url: str) -> None:
    watched = Watched(url)
    watched.source.is_bound = False
    watched.source._yield(60, "it could not sum up")
    InHalves(watched.source, worth=0).read(START, END)
    assert watched.asked == [(START, END)]


def test_a_database_that_works_with_all_processors_by_itself_is_left_to_it() -> None:
    source = PushDown(small(), Database("s", parse_url("duckdb:////nowhere.duckdb", None), 60))
    asked = list[tuple[int, int]]()

    def read(_: PushDown, since: int, until: int) -> Answer:
        asked.append((since, until))
        return ()

    source.read = MethodType(read, source)  # type: ignore[method-assign]
    InHalves(source, worth=0).read(START, END)
    assert asked == [(START, END)]


@pytest.mark.parametrize("failing", [START, MIDDLE])
def test_a_half_that_fails_fails_the_read_when_the_other_is_done(url: str, failing: int) -> None:
    done = list[int]()

    def before(since: int, until: int) -> None:
        if since == failing:
            raise TooMany("more than fits")
        done.append(since)

    source = InHalves(Watched(url, before=before).source, worth=0)
    with pytest.raises(TooMany, match="more than fits"):
        source.read(START, END)
    assert done == [START + MIDDLE - failing]
    assert not [t.name for t in threading.enumerate() if t.name.startswith("second half")]
