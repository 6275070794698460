"""Long reads in pieces, two at a time: the same result, no more transactions than allowed, and clear failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import MethodType

import pytest

from monitor.database_url import parse_url
from monitor.errors import RankmonError, SourceError, TooMany
from monitor.series.partials import effort
from monitor.series.readings import Answer
from monitor.service.cycle import read_partials
from monitor.source.engine import Database
from monitor.source.parallel import MARGINS, ParallelReader
from monitor.source.pushdown import TRIAL, PushDown
from tests.source.test_pushdown_ways import EPOCH, fill, small
from tests.support.logs import ATTRIBUTION, BUCKET, END, SPAN, START, events

MIDDLE = (START + END) // 2


class Watched:
    """A push-down reader that records what it is asked for and calls a test's hook before each read."""

    def __init__(self, url: str, most: int = 4, before: Callable[[int, int], object] = lambda *_: None) -> None:
        self.asked: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.source = PushDown(small(), Database("s", parse_url(url), 60, max_concurrent=most), is_bound=True)
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


def test_two_pieces_are_read_at_the_same_time(url: str) -> None:
    together = threading.Barrier(2, timeout=20)
    watched = Watched(url, before=lambda *_: together.wait())
    found = ParallelReader(watched.source, cut_from=0, margins=0).read(START, END)
    assert sorted(watched.asked) == [(START, MIDDLE), (MIDDLE, END)]
    assert isinstance(found, tuple)
    assert [(part.since, part.until) for part in found] == [(START, MIDDLE), (MIDDLE, END)]


def test_a_read_is_cut_at_a_bucket_edge_and_never_below_a_block(url: str) -> None:
    watched = Watched(url)
    source = ParallelReader(watched.source, cut_from=0, margins=0)
    source.read(START + 1, END)
    assert sorted(watched.asked) == [(START + 1, MIDDLE), (MIDDLE, END)]
    for until in (START + BUCKET, START + 3 * BUCKET):  # half of either is shorter than the attribution window
        source.read(START, until)
        assert watched.asked.pop() == (START, until)


def test_a_read_is_cut_if_it_is_the_first_or_expected_to_be_long(url: str) -> None:
    watched, part = Watched(url), (START, START + 3 * BUCKET)
    source = ParallelReader(watched.source, cut_from=effort(watched.source.read(START, END)) + 1, margins=0)

    def asked(since: int, until: int) -> list[tuple[int, int]]:
        watched.asked.clear()
        source.read(since, until)
        return sorted(watched.asked)

    assert asked(START, END) == [(START, MIDDLE), (MIDDLE, END)], "nothing is known yet"
    assert asked(START, END) == [(START, END)], "too short"
    assert asked(*part) == [part], "a part of it is too short as well"
    assert len(asked(START - BUCKET, END)) == 2


@pytest.mark.parametrize("since", [START, START + 1, START + BUCKET - 1])
@pytest.mark.parametrize("length", [3, 5, 24, 61])
@pytest.mark.parametrize("pieces", [0.3, 2, 3, 4.9, 11, 400])
def test_pieces_have_about_the_same_length_and_none_is_too_short(
    url: str, since: int, length: int, pieces: float
) -> None:
    until = START + length * BUCKET
    found = ParallelReader(Watched(url).source, piece=100, margins=0)._cut(since, until, 100 * pieces)
    assert [found[0][0], *(end for _, end in found)] == [*(start for start, _ in found), until]
    assert all(end % BUCKET == 0 for _, end in found[:-1])
    lengths = [end - start for start, end in found]
    assert len(found) == 1 or min(lengths) >= ATTRIBUTION
    assert max(lengths) <= min(lengths) + 2 * BUCKET
    wanted, room = 2 * max(1, round(pieces / 2)), (until - since) // (ATTRIBUTION + BUCKET)
    assert min(wanted, room) - 1 <= len(found) <= wanted
    assert len(found) == 1 or len(found) % 2 == 0, "two are read at once, and neither should wait for the other"


@pytest.mark.parametrize(("attribution", "pieces"), [(0, 8), (900, 8), (1800, 4), (9000, 1)])
def test_the_margins_of_a_piece_are_a_small_part_of_it(url: str, attribution: int, pieces: int) -> None:
    source = PushDown(small(events(EPOCH, attribution=attribution)), Database("s", parse_url(url), 60))
    found = ParallelReader(source, piece=100)._cut(START, START + 64 * BUCKET, 800)
    assert len(found) == pieces
    assert all(end - start >= MARGINS * (attribution + 2 * SPAN) for start, end in found) or pieces == 1


def test_a_read_is_not_cut_if_one_transaction_is_allowed(url: str) -> None:
    watched = Watched(url, most=1)
    ParallelReader(watched.source, cut_from=0, margins=0).read(START, END)
    assert watched.asked == [(START, END)]


def test_a_read_left_to_the_pull_is_not_cut(url: str) -> None:
    watched = Watched(url)
    watched.source.is_bound = False
    watched.source._yield(60, "it could not sum up")
    ParallelReader(watched.source, cut_from=0, margins=0).read(START, END)
    assert watched.asked == [(START, END)]


def test_a_read_is_not_cut_for_a_database_that_uses_all_processors() -> None:
    source = PushDown(small(), Database("s", parse_url("duckdb:////nowhere.duckdb"), 60))
    asked = list[tuple[int, int]]()

    def read(_: PushDown, since: int, until: int) -> Answer:
        asked.append((since, until))
        return ()

    source.read = MethodType(read, source)  # type: ignore[method-assign]
    ParallelReader(source, cut_from=0, margins=0).read(START, END)
    assert asked == [(START, END)]


@pytest.mark.parametrize(("failing", "other"), [((START, MIDDLE), (MIDDLE, END)), ((MIDDLE, END), (START, MIDDLE))])
@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (TooMany("more than fits"), TooMany),
        (SourceError("the server is away", "connect"), SourceError),
        (SourceError("it took longer than 60 s", "timeout"), TooMany),  # alone it may be fast enough
        (SourceError("out of memory", "resources"), TooMany),
    ],
)
def test_a_failed_piece_fails_the_read_after_the_other_is_done(
    url: str, failing: tuple[int, int], other: tuple[int, int], error: RankmonError, becomes: type[RankmonError]
) -> None:
    under_way = threading.Barrier(2, timeout=20)

    def before(since: int, until: int) -> None:
        under_way.wait()
        if (since, until) == failing:
            raise error

    watched = Watched(url, before=before)
    with pytest.raises(becomes, match=str(error)):
        ParallelReader(watched.source, cut_from=0, margins=0).read(START, END)
    assert watched.done == [other]


def test_no_more_pieces_start_after_a_failure(url: str) -> None:
    def before(since: int, _: int) -> None:
        if since == START:
            raise SourceError("the server is away", "connect")
        time.sleep(0.2)

    watched = Watched(url, before=before)
    source = ParallelReader(watched.source, cut_from=0, piece=1, margins=0)
    source._per_second = 1.0
    with pytest.raises(SourceError, match="the server is away"):
        source.read(START, START + 60 * BUCKET)
    assert len(watched.asked) <= 2
    assert len(watched.done) <= 1


def test_a_piece_too_slow_next_to_another_is_read_alone(url: str) -> None:
    beside = threading.Semaphore(1)

    def before(since: int, until: int) -> None:
        if not beside.acquire(blocking=False):
            raise SourceError("it took longer than 60 s", "timeout")
        time.sleep(0.2)
        beside.release()

    watched = Watched(url, before=before)
    found = read_partials(small(), ParallelReader(watched.source, cut_from=0, margins=0), START, END, {})
    assert {(START, MIDDLE), (MIDDLE, END)} <= {*watched.done}
    assert found.traffic.keys() >= {(start, "", "") for start in range(START, END, BUCKET)}


def test_one_piece_does_not_undo_what_another_found_out(url: str) -> None:
    source = PushDown(small(), Database("s", parse_url(url), 60))
    source._yield(60, "it could not sum up")
    source._weigh(TRIAL, 0)
    assert source.yields == "it could not sum up"
    source._yield(0, "it could not sum up")
    source._weigh(TRIAL, 0)
    assert source.yields == source._record.failed == ""
