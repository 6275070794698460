"""The vectorised measures against a plain loop, against other libraries, and at edge cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import log2
from random import Random

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from monitor.measures import kernels
from monitor.measures.kernels import JudgedItems, Scores, score
from monitor.measures.measure import SPECS, Measure, parse
from tests.support.examples import examples
from tests.support.oracle import (
    OF_LABELS,
    ORACLE,
    Request,
    cases,
    is_empty,
    listed,
    measures,
    rankings,
    squares,
)

TOLERANCE = 1e-12

briefly = examples(50)


def assert_close(got: Scores, expected: Scores) -> None:
    assert_array_equal(got.empty, expected.empty)
    for part in ("value", "numerator", "denominator"):
        assert_allclose(getattr(got, part), getattr(expected, part), TOLERANCE, TOLERANCE, err_msg=part)


def by_loop(m: Measure, requests: Sequence[Request]) -> Scores:
    parts = [ORACLE[m.name](m, q) for q in requests]
    quotients = np.array([over / under if under else 0.0 for over, under in parts])
    over, under = np.array(parts, float).reshape(-1, 2).T * ("aggregate" in m.spec.options)
    if m.is_corrected and m.spec.aggregate == "mean":
        over = np.array([squares(m, q) for q in requests])
    return Scores(quotients, np.array([is_empty(m, q) for q in requests], bool), over, under)


def value(text: str, *requests: Request) -> float:
    """The first request's value."""
    m = parse(text)
    return float(score(m, rankings(requests)).value[0])


def empty(text: str, request: Request) -> bool:
    m = parse(text)
    return bool(score(m, rankings([request])).empty[0])


# The plain loop.


@pytest.mark.parametrize("name", OF_LABELS)
@briefly
@given(data=st.data())
def test_every_measure_equals_a_plain_loop(name: str, data: st.DataObject) -> None:
    m, requests = data.draw(cases(name))
    assert_close(score(m, rankings(requests)), by_loop(m, requests))


@briefly
@given(cases())
def test_rows_of_grade_0_can_be_left_out_for_sparse_measures(case: tuple[Measure, list[Request]]) -> None:
    m, requests = case
    if m.is_sparse:
        assert_close(score(m, rankings(requests, sparse=True)), by_loop(m, requests))


@briefly
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(case: tuple[Measure, list[Request]], random: Random) -> None:
    m, requests = case
    r = rankings(requests)
    order = np.array(random.sample(range(len(r.rank)), len(r.rank)), int)
    shuffled = replace(r, request=r.request[order], rank=r.rank[order], grade=r.grade[order])
    assert_close(score(m, shuffled), score(m, r))


@briefly
@given(cases())
def test_the_reading_does_not_change_scores(case: tuple[Measure, list[Request]]) -> None:
    m, requests = case
    assert_close(score(m.kernel, rankings(requests)), score(m, rankings(requests)))


@briefly
@given(cases())
def test_a_ratio_lies_between_0_and_1(case: tuple[Measure, list[Request]]) -> None:
    m, requests = case
    if m.spec.unit == "ratio":
        values = score(m, rankings(requests)).value
        assert ((values >= 0) & (values <= 1 + TOLERANCE)).all()


@briefly
@given(cases("ndcg"))
def test_counting_grades_gives_the_same_ideal_as_sorting(case: tuple[Measure, list[Request]]) -> None:
    m, requests = case
    both = []
    for few in (0, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "_FEW_GRADES", few)
            both.append(score(m, rankings(requests)))
    assert_close(*both)


def test_a_long_run_of_one_grade_still_gives_the_right_ideal() -> None:
    request = Request({rank: 1.0 + max(0, rank - 300) / 7 for rank in range(1, 351)})
    m = parse("ndcg@20")
    assert_close(score(m, rankings([request])), by_loop(m, [request]))


def test_judgments_of_one_grade_can_come_in_several_counts() -> None:
    m = parse("recall(ideal=global)@10")
    pool = JudgedItems(np.array([0, 0, 0]), np.array([1.0, 0.0, 1.0]), np.array([1, 5, 2]))
    r = replace(rankings([listed([1, 0, 1])]), judged=pool)
    assert score(m, r).value[0] == pytest.approx(2 / 3)


@briefly
@given(measures())
def test_no_requests_have_no_scores(m: Measure) -> None:
    got = score(m, rankings([]))
    assert [got.value.shape, got.empty.shape, got.numerator.shape, got.denominator.shape] == [(0,)] * 4


@briefly
@given(measures())
def test_a_request_without_rows_is_empty(m: Measure) -> None:
    got = score(m, rankings([Request({})]))
    assert got.value[0] == 0
    assert got.empty[0]


# Known values.


def test_ndcg_is_one_when_the_ranking_is_ideal() -> None:
    for options in ("", "(gain=exp2)", "(discount=jarvelin)", "(ideal=local)", "(ideal=global)"):
        assert value(f"ndcg{options}@5", listed([3, 2, 2, 1, 0])) == pytest.approx(1, abs=TOLERANCE)


def test_ndcg_below_the_best_order_is_less_than_one() -> None:
    orders = [[3, 2, 1], [3, 1, 2], [2, 1, 3], [1, 2, 3]]
    worth = [value("ndcg@3", listed(order)) for order in orders]
    assert all(better > worse for better, worse in pairwise(worth))


def test_ndcg_of_nothing_relevant_is_empty_and_zero() -> None:
    assert empty("ndcg@5", listed([0, 0, 0]))
    assert value("ndcg@5", listed([0, 0, 0])) == 0


def test_the_four_ideals_differ_by_the_items_they_include() -> None:
    request = listed([1, 0, 2], unseen=[3])
    shown = 1.0  # grade 1 at rank 1, grade 0 at rank 2
    second = 1 / log2(3)
    assert value("ndcg(ideal=local)@2", request) == pytest.approx(shown / (1 + 0 * second))
    assert value("ndcg(ideal=recall)@2", request) == pytest.approx(shown / (2 + 1 * second))
    assert value("ndcg(ideal=global)@2", request) == pytest.approx(shown / (3 + 2 * second))
    assert value("ndcg(ideal=max,max_grade=4)@2", request) == pytest.approx(shown / (4 + 4 * second))


def test_relevance_below_the_cut_off_is_empty_only_for_the_local_ideal() -> None:
    request = listed([0, 0, 1])
    assert empty("ndcg(ideal=local)@2", request)
    assert not empty("ndcg@2", request)
    assert not empty("ndcg(ideal=max,max_grade=1)@2", request)


def test_an_unshown_judged_item_counts_only_for_the_global_ideal() -> None:
    request = listed([0, 0], unseen=[1])
    assert empty("ndcg@2", request)
    assert not empty("ndcg(ideal=global)@2", request)
    assert value("recall(ideal=global)@2", listed([1, 0], unseen=[1])) == 0.5


def test_for_the_max_ideal_a_request_without_gains_is_empty_like_for_dcg() -> None:
    for text in ("ndcg(ideal=max,max_grade=1)@2", "dcg@2"):
        assert empty(text, Request({}))
        assert empty(text, listed([0, 0]))
        assert not empty(text, listed([0, 0, 1]))
    assert value("ndcg(ideal=max,max_grade=1)@2", listed([0, 0, 1])) == 0


def test_jarvelin_discounts_neither_rank_1_nor_rank_2() -> None:
    got = kernels.discounts(Measure("dcg", discount="jarvelin"), np.array([1, 2, 3, 8]))
    assert_allclose(got, [1, 1, 1 / log2(3), 1 / 3], TOLERANCE)


def test_discounts_are_right_at_rank_a_million() -> None:
    for discount, expected in (("log2", 1 / log2(1_000_001)), ("jarvelin", 1 / log2(1e6)), ("reciprocal", 1e-6)):
        m = parse(f"dcg(discount={discount})")
        assert score(m, rankings([Request({1_000_000: 1.0})])).value[0] == pytest.approx(expected, rel=TOLERANCE)


def test_gaps_in_positions_stay_gaps() -> None:
    assert value("mrr", Request({4: 1.0, 9: 1.0})) == 0.25
    assert value("map", Request({4: 1.0, 8: 1.0})) == (1 / 4 + 2 / 8) / 2


def test_precision_of_a_short_list_divides_by_the_cut_off() -> None:
    assert value("precision@10", listed([1, 1])) == 0.2
    assert value("precision", listed([1, 1])) == 1


def test_ctr_divides_by_the_items_shown() -> None:
    assert value("ctr@10", listed([1, 0])) == 0.5
    assert empty("ctr@10", Request({}))


def test_any_grade_above_0_is_relevant_unless_a_threshold_is_given() -> None:
    request = listed([0.1, 2, 3])
    assert value("precision@3", request) == 1
    assert value("precision(rel=2)@3", request) == pytest.approx(2 / 3)
    assert value("mrr(rel=3)", request) == pytest.approx(1 / 3)


def test_err_discounts_items_after_a_satisfying_one() -> None:
    certain, half = 15 / 16, 3 / 16
    assert value("err(max_grade=4)", listed([4, 2])) == pytest.approx(certain + (1 - certain) * half / 2)


def test_rbp_weighs_ranks_by_persistence() -> None:
    assert value("rbp(p=.5)", listed([1, 0, 1])) == pytest.approx(0.5 * (1 + 0.25))


def test_a_gain_of_grade_0_counts_for_rows_but_not_for_gaps() -> None:
    assert value("cg(gain={0:1,1:3})", Request({1: 0.0, 3: 1.0})) == 4


def test_a_gain_table_without_grade_0_gives_it_nothing() -> None:
    assert value("cg(gain={1:3})", listed([0, 1])) == 3


def test_unsampled_requests_are_scored_like_the_others() -> None:
    request = listed([0, 1])
    assert value("ndcg", replace(request, sampled=False)) == value("ndcg", request)


def test_one_request_does_not_affect_another() -> None:
    first, second = listed([0, 1, 2]), listed([3, 0, 0], unseen=[9])
    for text in ("ndcg(gain=exp2)@2", "map", "err(max_grade=9)", "ndcg(ideal=global)"):
        assert value(text, first, second) == value(text, first)


# Grades that cannot be scored.

REFUSED = [
    (
        "an exponential gain that would overflow",
        "ndcg(gain=exp2)@5",
        [1, 2000],
        "grade 2000 is not between 0 and 332, as ndcg(gain=exp2)@5 requires",
    ),
    (
        "an infinite grade",
        "dcg",
        [float("inf")],
        "grade inf is not between 0 and 1e+100, as dcg requires",
    ),
    ("no grade at all", "ndcg", [float("nan")], "grade nan is not between 0 and 1e+100, as ndcg requires"),
    ("a grade below 0", "cg", [1, -1], "grade -1 is not between 0 and 1e+100, as cg requires"),
    (
        "a grade above the max_grade of ERR",
        "err(max_grade=4)@20",
        [1, 5],
        "grade 5 is not between 0 and 4, as err(max_grade=4)@20 requires",
    ),
    (
        "a grade above the max_grade of the ideal",
        "ndcg(ideal=max,max_grade=1)@5",
        [2],
        "grade 2 is not between 0 and 1, as ndcg(ideal=max,max_grade=1)@5 requires",
    ),
    (
        "a grade that the gain table lacks",
        "ndcg(gain={0:0,1:1,3:7})@5",
        [1, 2],
        "grade 2 is not in the gain table of ndcg(gain={0:0,1:1,3:7})@5",
    ),
    (
        "a grade above those in the gain table",
        "cg(gain={1:1})",
        [1.5],
        "grade 1.5 is not in the gain table of cg(gain={1:1})",
    ),
]


@pytest.mark.parametrize(("text", "grades", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_a_grade_that_cannot_be_scored_is_named(text: str, grades: list[float], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        value(text, listed(grades))
    assert str(caught.value) == message


def test_the_highest_grade_overflows_nothing_even_squared() -> None:
    for text in ("ndcg(gain=exp2)", "ndcg", "dcg(gain=exp2)", "err(max_grade=1e100)"):
        m = parse(text)
        got = score(m, rankings([listed([m.highest_grade] * 1000)]))
        assert np.isfinite([got.value**2, got.numerator**2, got.denominator**2]).all()


@pytest.mark.parametrize("text", ["ndcg(ideal=global)@5", "recall(ideal=global)@5", "map(ideal=global)"])
def test_a_global_ideal_without_judgments_is_refused(text: str) -> None:
    r = replace(rankings([listed([1])]), judged=None)
    with pytest.raises(ValueError) as caught:
        score(parse(text), r)
    assert str(caught.value) == f"{text} needs all judgments of each query"


# Other libraries.

GRADED = st.lists(st.integers(0, 4), min_size=2, max_size=30)
CUTOFF = st.integers(1, 35)


def falling(count: int) -> list[float]:
    """Model scores that keep the items in list order, without ties."""
    return [float(count - n) for n in range(count)]


@briefly
@given(GRADED, st.none() | CUTOFF)
def test_linear_ndcg_and_dcg_match_scikit_learn(grades: list[int], k: int | None) -> None:
    cut = "" if k is None else f"@{k}"
    from sklearn.metrics import (
        dcg_score,
        ndcg_score,
    )  # takes a second; at the top of the file every worker would pay it

    for name, peer in (("ndcg", ndcg_score), ("dcg", dcg_score)):
        expected = peer([grades], [falling(len(grades))], k=k)
        assert value(name + cut, listed(grades)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


TREC = {
    "ndcg": "ndcg(ideal=global)",
    "ndcg_cut_{k}": "ndcg(ideal=global)@{k}",
    "map": "map(ideal=global)",
    "map_cut_{k}": "map(ideal=global)@{k}",
    "recip_rank": "mrr",
    "P_{k}": "precision@{k}",
    "recall_{k}": "recall(ideal=global)@{k}",
    "success_{k}": "hit_rate@{k}",
}
"""trec_eval's names and ours. Its ideal covers all judged items, shown or not. It divides P_k by k, and recall and map
by all relevant items judged. A query without relevant items counts as 0. Success is 1 with a hit."""


@briefly
@given(GRADED, st.lists(st.integers(0, 4), max_size=8), CUTOFF)
def test_measures_over_judgments_match_trec_eval(grades: list[int], unseen: list[int], k: int) -> None:
    qrel = {f"d{n}": grade for n, grade in enumerate(grades + unseen)}
    run = {f"d{n}": worth for n, worth in enumerate(falling(len(grades)))}
    wanted = {name.format(k=k).replace(f"_{k}", f".{k}") for name in TREC}
    peer = pytrec_eval.RelevanceEvaluator({"q": qrel}, wanted).evaluate({"q": run})["q"]
    for name, text in TREC.items():
        ours = value(text.format(k=k), listed(grades, unseen))
        assert ours == pytest.approx(peer[name.format(k=k)], rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("name", ["map", "ndcg", "recall"])
def test_a_list_without_results_is_empty_unless_a_global_ideal_has_judgments(name: str) -> None:
    """As docs/reference/measures.md says."""
    none = np.array([], int)
    judged = JudgedItems(np.array([0]), np.array([2.0]), np.array([3]))  # only for the first request's query
    lists = kernels.GradedRankings(2, none, none, none.astype(float), np.ones(2, bool), judged=judged)
    for ideal in {"local", "recall", "global"} & {*SPECS[name].ideals}:
        empty = [ideal != "global", True]
        scores = score(parse(f"{name}(ideal={ideal})@5"), lists)
        assert (scores.empty.tolist(), scores.value.tolist()) == (empty, [0, 0])
