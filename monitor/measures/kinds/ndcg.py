"""Discounted cumulated gain: plain, without discounts, and normalised by the ideal list."""

from __future__ import annotations

from dataclasses import replace

from monitor.arrays import Floats, Ints
from monitor.measures.kernels import (
    GradedRankings,
    Scores,
    as_ratio,
    dcg,
    discounts,
    gains,
    ideal_dcg,
    plain_scores,
    rows_with_gain,
    rows_within,
    sum_by_request,
)
from monitor.measures.measure import ALL_EMPTIES, Measure, Spec
from monitor.measures.sql import Formula, RequestSums


def _score_ndcg(m: Measure, r: GradedRankings) -> Scores:
    rows = rows_with_gain(m, r)
    found = as_ratio(dcg(m, *rows, r.size), ideal_dcg(m, r, *rows))
    if m.ideal != "max":
        return found
    # This ideal does not depend on the data, so check for relevant items separately.
    return replace(found, empty=found.empty | (sum_by_request(rows[0], rows[2], r.size) <= 0))


def _score_dcg(m: Measure, r: GradedRankings) -> Scores:
    request, rank, gain = rows_with_gain(m, r)
    found = plain_scores(dcg(m, request, rank, gain, r.size), sum_by_request(request, gain, r.size) <= 0)
    if not m.examination:
        return found
    within = rows_within(m, rank)
    adds = gain[within] * discounts(m, rank[within])
    return replace(found, numerator=sum_by_request(request[within], adds**2, r.size))


def _dcg_sql(m: Measure, s: RequestSums) -> Formula:
    found = Formula(value=s.gained(m), empty=s.gains_nothing(m))
    return replace(found, numerator=s.gained_squares(m), denominator=s.number(0)) if m.examination else found


def _score_snips(m: Measure, r: GradedRankings) -> Scores:
    rows = rows_with_gain(m, r)
    return as_ratio(dcg(m, *rows, r.size), dcg(replace(m, name="cg"), *rows, r.size))


def _snips_sql(m: Measure, s: RequestSums) -> Formula:
    return Formula(numerator=s.gained(m), denominator=s.gained(replace(m, name="cg")))


def _ndcg_sql(m: Measure, s: RequestSums) -> Formula:
    gained, ideal = s.gained(m), s.ideal(m)
    return Formula(numerator=gained, denominator=ideal, empty=s.gains_nothing(m) if m.ideal == "max" else None)


def _terms(m: Measure, rank: Ints, grade: Floats) -> tuple[Floats, Floats]:
    return gains(m, grade), discounts(m, rank)


NDCG = Spec(
    "ndcg",
    "normalised discounted cumulated gain",
    "ratio",
    "gain discount ideal max_grade aggregate empty",
    _score_ndcg,
    _ndcg_sql,
    _terms,
    ("gain", "discount", "DCG", "ideal DCG"),
    empty="skip",
    empties=ALL_EMPTIES,
    ideals=("local", "recall", "global", "max"),
    is_weighted_by_rank=True,
)
DCG = Spec(
    "dcg",
    "discounted cumulated gain",
    "gain",
    "gain discount examination empty",
    _score_dcg,
    _dcg_sql,
    _terms,
    ("gain", "discount", "DCG", ""),
    is_weighted_by_rank=True,
)
SNIPS = Spec(
    "snips",
    "self-normalised corrected DCG",
    "ratio",
    "gain discount examination aggregate",
    _score_snips,
    _snips_sql,
    _terms,
    ("gain", "discount", "DCG", "CG"),
    aggregate="pooled",
    empty="skip",
    empties=("skip",),
    is_weighted_by_rank=True,
    what="DCG over CG, both corrected (Swaminathan and Joachims 2015): how high wanted items rank, regardless of how "
    "many there are",
)
CG = Spec(
    "cg",
    "cumulated gain",
    "gain",
    "gain examination empty",
    _score_dcg,
    _dcg_sql,
    _terms,
    ("gain", "", "CG", ""),
)
