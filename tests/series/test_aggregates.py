"""Sums computed by a database give the same partials as reading the requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.kernels import GradedRankings
from monitor.measures.measure import parse
from monitor.measures.relevance import Refusals
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS, Partials, to_partials
from monitor.series.readings import MICROS, Aggregates, Reading
from monitor.types import Slice
from tests.support.examples import examples

NDCG = parse("ndcg@3")
WIDTH, BUCKETS = 100, 4
SLICES = (Slice("device", "device", max_values=2), Slice("land", "land", max_values=3))

Request = tuple[int, Any, Any, int]
"""Bucket, device, land and rank of the one relevant item; rank 0 if there is none."""

REQUESTS = st.lists(
    st.tuples(
        st.integers(0, BUCKETS - 1),
        st.sampled_from(["tv", "pc", "phone", None, "(mixed)"]),
        st.sampled_from(["x", "y", 1, None]),
        st.integers(0, 4),
    ),
    max_size=30,
)


def reading(requests: Sequence[Request], since: int = 0, until: int = BUCKETS * WIDTH) -> Reading:
    """The requests in [since, until), read row by row."""
    here = [r for r in requests if since <= r[0] * WIDTH < until]
    size, hits = len(here), [(i, r[3]) for i, r in enumerate(here) if r[3]]
    ints = np.array(hits, np.int64).reshape(-1, 2).T
    refusals = Refusals(size)
    refusals.add_counts("null_item", np.array([r[3] == 4 for r in here], np.int64))
    return Reading(
        since,
        until,
        served=np.array([r[0] * WIDTH * MICROS for r in here], np.int64),
        rankings=GradedRankings(size, ints[0], ints[1], np.ones(len(hits)), np.ones(size, bool)),
        impressions=np.full(size, 3),
        judged=np.full(size, 2),
        events=np.full(size, 1),
        labelled=np.array([r[3] > 0 for r in here], bool),
        rank_one=np.ones(size, np.int64),
        no_results=np.array([r[1] == "phone" for r in here], bool),
        slices={"device": [r[1] for r in here], "land": [r[2] for r in here]},
        refusals=refusals,
    )


def summed(requests: Sequence[Request], read: Sequence[int] = ()) -> Aggregates:
    """The same requests summed by a database, except for the buckets in `read`."""
    cells = sorted({r[:3] for r in requests if r[0] not in read}, key=str)
    parts = [to_partials(reading([r for r in requests if r[:3] == cell]), WIDTH, (NDCG,), (), {}) for cell in cells]
    keys = [(cell[0] * WIDTH, "", "") for cell in cells]
    refused = [part.refused.get((key, "null_item"), 0) for part, key in zip(parts, keys, strict=True)]

    def stacked(found: list[Any], width: int) -> Any:
        return np.array(found, np.float64).reshape(len(cells), width)

    return Aggregates(
        0,
        BUCKETS * WIDTH,
        bucket=np.array([key[0] for key in keys], np.int64),
        slices={"device": [c[1] for c in cells], "land": [c[2] for c in cells]},
        traffic=stacked([p.traffic[k] for p, k in zip(parts, keys, strict=True)], len(TRAFFIC_FIELDS)),
        measures={NDCG: stacked([p.measures["ndcg@3"][k] for p, k in zip(parts, keys, strict=True)], len(FIELDS))},
        refused={"null_item": np.array(refused, np.int64)},
        read=[reading(requests, b * WIDTH, (b + 1) * WIDTH) for b in sorted(read)],
        rows=5,
        summed=70,
    )


def assert_same(left: Partials, right: Partials) -> None:
    assert {c: t.tolist() for c, t in left.traffic.items()} == {c: t.tolist() for c, t in right.traffic.items()}
    assert left.refused == right.refused
    assert sorted(left.admitted) == sorted(right.admitted)
    for kernel, cells in right.measures.items():
        assert left.measures[kernel].keys() == cells.keys()
        for cell, partial in cells.items():
            np.testing.assert_allclose(left.measures[kernel][cell], partial, rtol=1e-12, atol=1e-12)


@given(REQUESTS, st.sets(st.integers(0, BUCKETS - 1)))
@examples(150)
def test_database_sums_and_rows_give_the_same_partials(requests: list[Request], read: set[int]) -> None:
    known = {"device": {"tablet"}}
    by_rows = to_partials(reading(requests), WIDTH, (NDCG,), SLICES, known)
    by_sums = to_partials(summed(requests, sorted(read)), WIDTH, (NDCG,), SLICES, known)
    assert_same(by_sums, by_rows)
    assert (by_sums.since, by_sums.until) == (0, BUCKETS * WIDTH)


def test_rows_without_a_request_count_in_their_own_bucket() -> None:
    answer = summed([(1, "tv", "x", 1)])
    answer = Aggregates(**vars(answer) | {"strays": {(100, "null_request"): 3}, "unmatched": {0: 2}})
    found = to_partials(answer, WIDTH, (NDCG,), SLICES, {})
    assert found.refused == {((100, "", ""), "null_request"): 3}
    assert [found.traffic[start, "", ""][5] for start in (0, 100)] == [2, 0]


def test_fetched_and_summed_rows_are_counted_apart() -> None:
    found = to_partials(summed([(1, "tv", "x", 1)]), WIDTH, (NDCG,), SLICES, {})
    assert (found.rows, found.summed) == (5, 70)


def test_partials_from_rows_are_reproducible() -> None:
    requests: list[Request] = [(0, "tv", "x", 2), (2, "pc", None, 0)]
    rows = reading(requests)
    assert_same(to_partials(rows, WIDTH, (NDCG,), SLICES, {}), to_partials(rows, WIDTH, (NDCG,), SLICES, {}))
