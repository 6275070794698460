"""The effective sample size of clicks that count by where people look, added up over any buckets."""

from __future__ import annotations

import numpy as np

from monitor.measures.kernels import GradedRankings, score
from monitor.measures.measure import Measure, parse
from monitor.series.partials import effective, sums

MEASURE = parse("dcg(discount=reciprocal,examination={1:1,2:0.5,3:0.1})@3")
NORMALISED = parse("snips(examination={1:1,2:0.5,3:0.1})@3")


def partials(ranks: list[int], cells: list[int], measure: Measure = MEASURE) -> np.ndarray:
    """(cells, 9) of requests with a click at one rank each."""
    size = len(ranks)
    rows = GradedRankings(size, np.arange(size), np.array(ranks), np.ones(size), np.ones(size, bool))
    return sums(score(measure, rows), rows.sampled, np.array(cells), max(cells) + 1)


def test_clicks_of_equal_weight_are_as_many_as_they_are_and_one_heavy_click_counts_for_most() -> None:
    assert effective(MEASURE, partials([1] * 7, [0] * 7)).tolist() == [7.0]
    weights = np.array([1.0, 1.0, 1.0, 10 / 3])
    (found,) = effective(MEASURE, partials([1, 1, 2, 3], [0] * 4))
    assert np.isclose(found, weights.sum() ** 2 / (weights**2).sum())
    assert found < 3


def test_a_self_normalised_measure_weighs_requests_by_the_looks_of_their_clicks() -> None:
    ranks = [1, 1, 2, 3]
    weights = np.array([1, 1, 2, 10])
    (found,) = effective(NORMALISED, partials(ranks, [0] * 4, NORMALISED))
    assert np.isclose(found, weights.sum() ** 2 / (weights**2).sum())


def test_sums_of_buckets_give_that_of_the_whole() -> None:
    ranks = [1, 2, 3, 3, 1, 2]
    whole = effective(MEASURE, partials(ranks, [0] * 6))[0]
    assert np.isclose(effective(MEASURE, partials(ranks, [0, 1, 2, 0, 1, 2]).sum(axis=0)), whole)


def test_nothing_clicked_is_worth_nothing() -> None:
    assert effective(MEASURE, np.zeros(9)) == 0
