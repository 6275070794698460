"""Which single requests are sampled: always the same ones, and their sums agree with the partials."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.causes.sample import (
    NO_REQUESTS,
    RequestCounts,
    RequestSample,
    SampleQuery,
    by_query,
    pieces,
    sampled,
    text,
    weights,
)
from monitor.measures.kernels import Scores
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.types import Slice
from tests.series.test_partials import reading

HOUR = 3600


def requests(
    values: list[float],
    queries: list[str | None] | None = None,
    versions: list[str] | None = None,
    first: int = 0,
    places: list[str] | None = None,
) -> RequestSample:
    """One request an hour, named r0, r1, ..."""
    size = len(values)
    return RequestSample(
        tuple(f"r{first + i}" for i in range(size)),
        np.arange(first, first + size, dtype=np.int64) * HOUR,
        np.array(values, dtype=float),
        np.ones(size),
        tuple(queries or [None] * size),
        tuple(places or [""] * size),
        tuple(versions or ["v1"] * size),
        size,
    )


def test_a_sample_is_the_same_in_whatever_parts_it_is_read() -> None:
    whole = requests([0.5] * 500)
    kept = set(whole.at_most(100).ids)
    parts = [whole.where(np.arange(500) % 3 == n) for n in range(3)]
    found = NO_REQUESTS
    for part in parts[::-1]:
        found = (found + part).at_most(100)
    assert set(found.ids) == kept
    assert len(kept) == 100
    assert kept != {f"r{i}" for i in range(100)}, "the first ones would not be a sample"


def test_a_sample_that_fits_is_kept_whole() -> None:
    whole = requests([0.1, 0.2])
    assert whole.at_most(2) is whole
    assert NO_REQUESTS.mean is None
    assert whole.mean == pytest.approx(0.15)


def test_excluded_slices_count_as_unread() -> None:
    whole = requests([0.1, 0.2, 0.3], places=["tv", "pc", "tv"])
    found = whole.without_places({"tv"})
    assert (found.ids, found.read, found.empty) == (("r1",), 1, {})
    assert whole.without_places(()) is whole


def test_a_sample_is_not_biased() -> None:
    values = np.random.default_rng(1).random(20_000)
    kept = requests(values.tolist()).at_most(5_000)
    assert kept.mean == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(5_000))


@pytest.mark.parametrize(
    "wanted",
    ["ndcg@10", "ndcg(empty=zero)@10", "ndcg(empty=one)@10", "ndcg(aggregate=pooled)@10", "ctr@10"],
)
def test_sample_weights_match_the_partials(wanted: str) -> None:
    rng, measure = np.random.default_rng(2), parse(wanted)
    over, under = rng.random(50), 1 + rng.random(50)
    empty = rng.random(50) < 0.3
    over[empty], under[empty] = 0.0, 0.0
    value = np.divide(over, under, out=np.zeros(50), where=~empty)
    scores = Scores(value, empty, over, under)
    partial = b.sums(scores, np.ones(50, bool), np.zeros(50, np.int64), 1)[0]
    numerator, denominator = weights(measure, scores)
    assert numerator.sum() / denominator.sum() == pytest.approx(float(b.read_as(measure, partial)), abs=1e-12)


@pytest.mark.parametrize("reading_", ["ndcg@10", "ndcg(empty=zero)@10"])
def test_requests_with_nothing_relevant_are_counted_even_without_a_value(reading_: str) -> None:
    read = reading([1, 2, 3, 4], ["v1", "v1", "v2", None], grades=[1, 0, 0, 2])
    found = sampled(read, SampleQuery(parse(reading_), None, "device", None))
    assert found.empty == {"v1": (2, 1), "v2": (1, 1), "(none)": (1, 0)}
    assert len(found) == (2 if reading_ == "ndcg@10" else 4)
    both = (found + found).at_most(1)
    assert both.empty["v1"] == (4, 2), "counts include all requests read, kept or not"
    assert found.of_place("").empty == {}


def test_each_request_keeps_its_nothing_relevant_flag() -> None:
    read = reading([1, 2, 3, 4], ["v1", "v1", "v2", None], grades=[1, 0, 0, 2])
    found = sampled(read, SampleQuery(parse("ndcg(empty=zero)@10"), None, "device", None))
    assert found.is_bare.tolist() == [False, True, True, False]
    assert (found.of_version("v1") + found.of_version("v2")).is_bare.tolist() == [False, True, True]
    assert requests([0.0]).is_bare.tolist() == [False], "unknown counts as False"


def test_a_sample_of_one_slice_keeps_only_that_slice() -> None:
    read = reading([1, 2, 3, 4], ["v1", "v1", "v2", None], grades=[1, 1, 1, 2])
    by = Slice("device", "device")
    every = sampled(read, SampleQuery(parse("ndcg@10"), None, "device", by, frozenset({"v1", "v2"})))
    found = sampled(read, SampleQuery(parse("ndcg@10"), None, "device", by, frozenset({"v1", "v2"}), "v2"))
    assert (len(every), every.read) == (4, 4)
    assert (found.ids, found.places, found.read) == (("2",), ("v2",), 1)


@pytest.mark.parametrize(
    ("every", "wanted", "to_read"),
    [(10_000, 10_000, 10_000), (1_000_000, 1_000_000, 20_000), (1_000_000, 250_000, 80_000), (10**7, 5_000, 200_000)],
)
def test_a_thin_slice_is_read_further_up_to_a_limit(every: int, wanted: int, to_read: int) -> None:
    assert RequestCounts(every, wanted).to_read(20_000) == to_read


def test_pieces_cover_a_period_that_fits_exactly() -> None:
    found = list(pieces(0, 24 * HOUR, HOUR, 12_000, 20_000))
    assert found[0][0] == 0
    assert found[-1][1] == 24 * HOUR
    assert [end for _, end in found[:-1]] == [start for start, _ in found[1:]]
    assert len(found) <= 4, "thin traffic is read in few steps"


@pytest.mark.parametrize("requests_", [1_000_000, 5_000_000, 10**12])
def test_pieces_of_a_large_period_take_an_equal_share_of_every_hour(requests_: int) -> None:
    found = list(pieces(0, 24 * HOUR, HOUR, requests_, 20_000))
    lengths = [end - start for start, end in found]
    assert len(found) == 24
    assert all(start // HOUR == n and (end - 1) // HOUR == n for n, (start, end) in enumerate(found))
    assert sum(lengths) == pytest.approx(max(24, 24 * HOUR * 20_000 / requests_), rel=0.05)
    assert found == list(pieces(0, 24 * HOUR, HOUR, requests_, 20_000))
    assert requests_ != 1_000_000 or len({start % HOUR for start, _ in found}) > 12, (
        "reads at one fixed minute would only see what runs by the clock"
    )


def test_a_period_of_unknown_size_is_read_in_bounded_steps() -> None:
    found = list(pieces(0, 7 * 24 * HOUR, HOUR, None, 20_000))
    assert 12 <= len(found) <= 48
    assert found[-1][1] == 7 * 24 * HOUR


def test_requests_by_query_leave_out_requests_without_one() -> None:
    found = by_query(requests([1, 2, 3], ["a", None, "a"]))
    assert {query: rows.tolist() for query, rows in found.items()} == {"a": [0, 2]}


def test_ids_are_made_safe_for_the_store() -> None:
    assert text("a\x00b") == "ab"
    assert len(text("x" * 5000)) == 200
    assert text("\ud800").encode()
