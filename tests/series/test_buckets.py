"""Partials: merging them equals computing on all their requests, for every reading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import isnan, nan
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.measures.kernels import Scores
from monitor.measures.measure import Aggregate, Empty, Measure
from monitor.series import partials as b
from tests.support.examples import examples

READINGS: list[tuple[Aggregate, Empty]] = [*product(("mean", "pooled"), ("skip", "zero", "one"))]  # type: ignore[list-item]


class Scored(NamedTuple):
    """One request: numerator, denominator (0 if empty), and whether it is a sample at all."""

    numerator: float
    denominator: float
    sampled: bool = True

    @property
    def empty(self) -> bool:
        return self.denominator == 0


# Numbers of similar size: rounding in sums of squares of very different ones would hide a mistake.
SIZES = st.floats(0.125, 8) | st.just(1.0)
REQUESTS = st.lists(
    st.builds(Scored, st.just(0.0) | SIZES, SIZES, st.booleans())
    | st.builds(Scored, st.just(0.0), st.just(0.0), st.booleans()),
    max_size=30,
)


def scores(requests: Sequence[Scored]) -> Scores:
    values = [0.0 if r.empty else r.numerator / r.denominator for r in requests]
    return Scores(
        np.array(values, dtype=float),
        np.array([r.empty for r in requests], dtype=bool),
        np.array([r.numerator for r in requests], dtype=float),
        np.array([r.denominator for r in requests], dtype=float),
    )


def partials(requests: Sequence[Scored]) -> b.Floats:
    """Partials of all requests in one cell, shape (9,)."""
    sampled = np.array([r.sampled for r in requests], dtype=bool)
    (only,) = b.sums(scores(requests), sampled, np.zeros(len(requests), np.int64), 1)
    return np.asarray(only)


def counted(requests: Sequence[Scored], aggregate: Aggregate, empty: Empty) -> list[tuple[float, float]]:
    """(numerator, denominator) of each request that the reading counts, by a plain loop."""
    found = []
    for r in requests:
        if not r.sampled:
            continue
        if aggregate == "pooled":
            found.append((r.numerator, r.denominator))
        elif not r.empty:
            found.append((r.numerator / r.denominator, 1.0))
        elif empty != "skip":
            found.append((1.0 if empty == "one" else 0.0, 1.0))
    return found


def read(requests: Sequence[Scored], aggregate: Aggregate, empty: Empty) -> float:
    pairs = counted(requests, aggregate, empty)
    under = sum(d for _, d in pairs)
    return sum(n for n, _ in pairs) / under if under > 0 else nan


@examples(200)
@given(REQUESTS, st.data())
def test_any_partition_of_requests_merges_to_the_whole(requests: list[Scored], data: st.DataObject) -> None:
    part = data.draw(st.lists(st.integers(0, 5), min_size=len(requests), max_size=len(requests)))
    merged = sum((partials([r for r, p in zip(requests, part, strict=True) if p == n]) for n in range(6)), np.zeros(9))
    assert merged == pytest.approx(partials(requests), rel=1e-12, abs=1e-12)


@examples(100)
@given(REQUESTS, st.data())
def test_cells_filled_together_equal_cells_filled_one_by_one(requests: list[Scored], data: st.DataObject) -> None:
    cell = data.draw(st.lists(st.integers(0, 3), min_size=len(requests), max_size=len(requests)))
    sampled = np.array([r.sampled for r in requests], dtype=bool)
    at_once = b.sums(scores(requests), sampled, np.array(cell, dtype=np.int64), 5)
    assert at_once.shape == (5, len(b.FIELDS))
    for number in range(5):
        alone = partials([r for r, c in zip(requests, cell, strict=True) if c == number])
        assert at_once[number] == pytest.approx(alone, rel=1e-12, abs=1e-12)


@given(REQUESTS)
def test_the_zero_partial_is_the_identity(requests: list[Scored]) -> None:
    whole = partials(requests)
    assert (whole + np.zeros(len(b.FIELDS)) == whole).all()
    assert (partials([]) == np.zeros(len(b.FIELDS))).all()


@given(REQUESTS)
def test_unsampled_requests_do_not_affect_the_partials(requests: list[Scored]) -> None:
    assert (partials([r._replace(sampled=False) for r in requests]) == 0).all()
    assert (partials(requests) == partials([r for r in requests if r.sampled])).all()


@pytest.mark.parametrize(("aggregate", "empty"), READINGS)
@examples(100)
@given(requests=REQUESTS)
def test_a_value_equals_a_loop_over_the_requests(requests: list[Scored], aggregate: Aggregate, empty: Empty) -> None:
    value = float(b.value(partials(requests), aggregate, empty))
    expected = read(requests, aggregate, empty)
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("aggregate", "empty"), READINGS)
def test_values_of_many_partials_equal_those_of_each(aggregate: Aggregate, empty: Empty) -> None:
    groups = [[], [Scored(0, 0)], [Scored(1, 2)], [Scored(1, 2), Scored(0, 0), Scored(3, 4)]]
    values = b.value(np.array([[partials(g)] for g in groups]), aggregate, empty)
    assert values.shape == (4, 1)
    assert values[:, 0] == pytest.approx([read(g, aggregate, empty) for g in groups], nan_ok=True)


@pytest.mark.parametrize(("aggregate", "empty"), READINGS)
@examples(100)
@given(requests=REQUESTS, level=st.floats(0, 8))
def test_the_sampling_variance_equals_the_direct_sum_over_requests(
    requests: list[Scored], level: float, aggregate: Aggregate, empty: Empty
) -> None:
    direct = sum((n - level * d) ** 2 for n, d in counted(requests, aggregate, empty))
    found = float(b.sampling_variance(partials(requests), aggregate, empty, np.array(level)))
    assert found == pytest.approx(direct, rel=1e-9, abs=1e-9)


def test_no_data_gives_nan_rather_than_zero() -> None:
    assert all(isnan(b.value(np.zeros(9), aggregate, empty)) for aggregate, empty in READINGS)
    assert isnan(b.value(partials([Scored(0, 0)]), "mean", "skip"))
    assert b.value(partials([Scored(0, 0)]), "mean", "zero") == 0


def test_a_measure_reads_partials_by_its_own_options() -> None:
    p = partials([Scored(1, 2), Scored(0, 0), Scored(3, 4)])
    assert b.read_as(Measure("ndcg"), p) == b.value(p, "mean", "skip") == 0.625
    assert b.read_as(Measure("ndcg", empty="zero"), p) == b.value(p, "mean", "zero")
    assert b.read_as(Measure("ndcg", aggregate="pooled"), p) == pytest.approx(4 / 6)


@given(st.integers(-(10**12), 10**12), st.sampled_from([60, 3600, 86400, 604800]))
def test_a_bucket_contains_its_instant(instant: int, width: int) -> None:
    start = b.bucket_of(instant, width)
    assert start <= instant < start + width
    assert start % width == 0


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**5), st.sampled_from([60, 3600, 86400]))
def test_whole_buckets_of_a_span_lie_fully_inside_it(since: int, length: int, width: int) -> None:
    until = since + length
    around = range(b.bucket_of(since, width) - width, until + 2 * width, width)
    assert list(b.starts(since, until, width)) == [s for s in around if s >= since and s + width <= until]


@given(st.sets(st.integers(0, 60)), st.integers(1, 10))
def test_runs_cover_exactly_the_given_buckets_in_order(numbers: set[int], most: int) -> None:
    instants = sorted(n * 60 for n in numbers)
    found = list(b.runs(instants, 60, most))
    assert [s for since, until in found for s in range(since, until, 60)] == instants
    assert all(0 < (until - since) // 60 <= most for since, until in found)
    assert list(b.runs([], 60, most)) == []
