"""The effective sample size of clicks weighted by examination, added up over any buckets."""

from __future__ import annotations

import numpy as np

from monitor.measures.kernels import GradedRankings, score
from monitor.measures.measure import Measure, parse
from monitor.series.partials import effective, sums

MEASURE = parse("dcg(discount=reciprocal,examination={1:1,2:0.5,3:0.1})@3")
NORMALISED = parse("snips(examination={1:1,2:0.5,3:0.1})@3")


def partials(ranks: list[int], cells: list[int], measure: Measure = MEASURE) -> np.ndarray:
    """Partials, shape (cells, 9), of requests with one click each at these ranks."""
    size = len(ranks)
    rows = GradedRankings(size, np.arange(size), np.array(ranks), np.ones(size), np.ones(size, bool))
    return sums(score(measure, rows), rows.sampled, np.array(cells), max(cells) + 1)


def test_equal_weights_count_fully_and_a_heavy_click_lowers_the_effective_size() -> None:
    assert effective(MEASURE, partials([1] * 7, [0] * 7)).tolist() == [7.0]
    weights = np.array([1.0, 1.0, 1.0, 10 / 3])
    (found,) = effective(MEASURE, partials([1, 1, 2, 3], [0] * 4))
    assert np.isclose(found, weights.sum() ** 2 / (weights**2).sum())
    assert found < 3


def test_a_self_normalised_measure_weights_requests_by_examination() -> None:
    ranks = [1, 1, 2, 3]
    weights = np.array([1, 1, 2, 10])
    (found,) = effective(NORMALISED, partials(ranks, [0] * 4, NORMALISED))
    assert np.isclose(found, weights.sum() ** 2 / (weights**2).sum())


def test_summed_buckets_give_the_effective_size_of_the_whole() -> None:
    ranks = [1, 2, 3, 3, 1, 2]
    whole = effective(MEASURE, partials(ranks, [0] * 6))[0]
    assert np.isclose(effective(MEASURE, partials(ranks, [0, 1, 2, 0, 1, 2]).sum(axis=0)), whole)


def test_without_clicks_the_effective_size_is_0() -> None:
    assert effective(MEASURE, np.zeros(9)) == 0
