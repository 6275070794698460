"""Long reads in two halves at the same time: the same result, no more transactions than allowed, and plain failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MethodType

import pytest

from monitor.core.summed import Answer, effort
from monitor.cycle import read_tally
from monitor.database_url import parse_url
from monitor.errors import RankmonError, SourceError, TooMany
from monitor.source.engine import Database
from monitor.source.halves import InHalves
from monitor.source.pushdown import TRIAL, PushDown
from tests.support.logs import BUCKET, END, START
from tests.test_pushdown_ways import fill, small

MIDDLE = (START + END) // 2


class Watched:
    """A reader by sums that notes what it is asked for, and does beforehand what a test wants."""

    def __init__(self, url: str, most: int = 4, before: Callable[[int, int], object] = lambda *_: None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.source = PushDown(small(), Database("s", parse_url(url, None), 60, max_concurrent=most), is_bound=True)
        whole = self.source.read

        def read(_: PushDown, since: int, until: int) -> Answer:
            self.asked.append((since, until))
            before(since, until)
            found = whole(since, until)
            self.done.append((since, until))
            return found

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
    found = InHalves(watched.source, halved_from=0).read(START, END)
    assert sorted(watched.asked) == [(START, MIDDLE), (MIDDLE, END)]
    assert isinstance(found, tuple)
    assert [(part.since, part.until) for part in found] == [(START, MIDDLE), (MIDDLE, END)]


def test_a_read_is_cut_at_the_edge_of_a_bucket_and_never_into_less_than_a_block(url: str) -> None:
    watched = Watched(url)
    source = InHalves(watched.source, halved_from=0)
    source.read(START + 1, END)
    assert sorted(watched.asked) == [(START + 1, MIDDLE), (MIDDLE, END)]
    for until in (START + BUCKET, START + 3 * BUCKET):  # of which a half is shorter than the attribution
        source.read(START, until)
        assert watched.asked.pop() == (START, until)


def test_a_read_is_halved_once_those_before_it_took_long(url: str) -> None:
    watched, part = Watched(url), (START, START + 3 * BUCKET)
    source = InHalves(watched.source, halved_from=effort(watched.source.read(*part)) + 1)
    watched.asked.clear()
    source.read(*part)
    source.read(*part)
    assert watched.asked == [part, part], "nothing is known of it, then it is too short"
    source.read(START, END)
    assert sorted(watched.asked[2:]) == [(START, MIDDLE), (MIDDLE, END)]


def test_where_one_transaction_is_allowed_a_read_is_one(url: str) -> None:
    watched = Watched(url, most=1)
    InHalves(watched.source, halved_from=0).read(START, END)
    assert watched.asked == [(START, END)]


def test_what_is_left_to_the_pull_is_read_in_one_part(url: str) -> None:
    watched = Watched(url)
    watched.source.is_bound = False
    watched.source._yield(60, "it could not sum up")
    InHalves(watched.source, halved_from=0).read(START, END)
    assert watched.asked == [(START, END)]


def test_a_database_that_works_with_all_processors_by_itself_is_left_to_it() -> None:
    source = PushDown(small(), Database("s", parse_url("duckdb:////nowhere.duckdb", None), 60))
    asked = list[tuple[int, int]]()

    def read(_: PushDown, since: int, until: int) -> Answer:
        asked.append((since, until))
        return ()

    source.read = MethodType(read, source)  # type: ignore[method-assign]
    InHalves(source, halved_from=0).read(START, END)
    assert asked == [(START, END)]


@pytest.mark.parametrize(("failing", "other"), [((START, MIDDLE), (MIDDLE, END)), ((MIDDLE, END), (START, MIDDLE))])
@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (TooMany("more than fits"), TooMany),
        (SourceError("the server is away", "connect"), SourceError),
        (SourceError("it took longer than 60 s", "timeout"), TooMany),  # by itself it may not
        (SourceError("out of memory", "resources"), TooMany),
    ],
)
def test_a_half_that_fails_fails_the_read_when_the_other_is_done(
    url: str, failing: tuple[int, int], other: tuple[int, int], error: RankmonError, becomes: type[RankmonError]
) -> None:
    def before(since: int, until: int) -> None:
        if (since, until) == failing:
            raise error

    watched = Watched(url, before=before)
    with pytest.raises(becomes, match=str(error)):
        InHalves(watched.source, halved_from=0).read(START, END)
    assert watched.done == [other]


def test_a_half_in_which_a_bucket_takes_too_long_beside_the_other_is_read_alone(url: str) -> None:
    beside = threading.Semaphore(1)

    def before(since: int, until: int) -> None:
        if not beside.acquire(blocking=False):
            raise SourceError("it took longer than 60 s", "timeout")
        time.sleep(0.2)
        beside.release()

    watched = Watched(url, before=before)
    found = read_tally(small(), InHalves(watched.source, halved_from=0), START, END, {})
    assert {(START, MIDDLE), (MIDDLE, END)} <= {*watched.done}
    assert found.traffic.keys() >= {(start, "", "") for start in range(START, END, BUCKET)}


def test_what_one_half_found_out_the_other_does_not_take_back(url: str) -> None:
    source = PushDown(small(), Database("s", parse_url(url, None), 60))
    source._yield(60, "it could not sum up")
    source._weigh(TRIAL, 0)
    assert source.yields == "it could not sum up"
    source._yield(0, "it could not sum up")
    source._weigh(TRIAL, 0)
    assert source.yields == source._record.failed == ""
