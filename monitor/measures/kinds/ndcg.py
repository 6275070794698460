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
    name="ndcg",
    title="normalised discounted cumulated gain",
    unit="ratio",
    option_names="gain discount ideal max_grade aggregate empty",
    score=_score_ndcg,
    sql=_ndcg_sql,
    terms=_terms,
    words=("gain", "discount", "DCG", "ideal DCG"),
    empty="skip",
    empties=ALL_EMPTIES,
    ideals=("local", "recall", "global", "max"),
    is_weighted_by_rank=True,
)
DCG = Spec(
    name="dcg",
    title="discounted cumulated gain",
    unit="gain",
    option_names="gain discount examination empty",
    score=_score_dcg,
    sql=_dcg_sql,
    terms=_terms,
    words=("gain", "discount", "DCG", ""),
    is_weighted_by_rank=True,
)
SNIPS = Spec(
    name="snips",
    title="self-normalised corrected DCG",
    unit="ratio",
    option_names="gain discount examination aggregate",
    score=_score_snips,
    sql=_snips_sql,
    terms=_terms,
    words=("gain", "discount", "DCG", "CG"),
    aggregate="pooled",
    empty="skip",
    empties=("skip",),
    is_weighted_by_rank=True,
    what="DCG over CG, both corrected (Swaminathan and Joachims 2015): how high wanted items rank, regardless of how "
    "many there are",
)
CG = Spec(
    name="cg",
    title="cumulated gain",
    unit="gain",
    option_names="gain examination empty",
    score=_score_dcg,
    sql=_dcg_sql,
    terms=_terms,
    words=("gain", "", "CG", ""),
)
