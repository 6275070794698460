"""Measures that count relevant items: precision, recall, hit rate, click-through rate."""

from __future__ import annotations

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.measures.kernels import (
    GradedRankings,
    Scores,
    as_ratio,
    count_hits,
    count_listed,
    count_pool,
    first_relevant,
    is_relevant,
    plain_scores,
)
from monitor.measures.measure import ALL_EMPTIES, Measure, Spec
from monitor.measures.sql import Formula, RequestSums


def _score_precision(m: Measure, r: GradedRankings) -> Scores:
    hits = count_hits(m, r)
    depth = r.shown[None].astype(float) if m.k is None else np.full(r.size, float(m.k))
    ratio = as_ratio(hits, depth)
    return Scores(ratio.value, count_listed(m, r) == 0, hits, depth)


def _score_recall(m: Measure, r: GradedRankings) -> Scores:
    return as_ratio(count_hits(m, r), count_pool(m, r))


def _score_hit_rate(m: Measure, r: GradedRankings) -> Scores:
    return plain_scores((count_hits(m, r) > 0).astype(float), count_listed(m, r) == 0)


def _score_ctr(m: Measure, r: GradedRankings) -> Scores:
    return as_ratio(count_hits(m, r), r.shown[m.k].astype(float))


def _precision_sql(m: Measure, s: RequestSums) -> Formula:
    places = s.shown(None) if m.k is None else s.number(m.k)
    return Formula(numerator=s.hits(m), denominator=places, empty=s.lists_none(m))


def _terms(m: Measure, rank: Ints, grade: Floats) -> tuple[Floats, Floats]:
    return is_relevant(m, grade).astype(float), np.ones(len(rank))


PRECISION = Spec(
    name="precision",
    title="precision",
    unit="ratio",
    option_names="rel empty aggregate",
    score=_score_precision,
    sql=_precision_sql,
    terms=_terms,
    words=("relevant", "", "relevant items", "places"),
    list_length="uncut",
    what="relevant items in the first k, divided by k",
)
RECALL = Spec(
    name="recall",
    title="recall",
    unit="ratio",
    option_names="rel ideal empty aggregate",
    score=_score_recall,
    sql=lambda m, s: Formula(denominator=s.listed(m), numerator=s.hits(m)),
    terms=_terms,
    words=("relevant", "", "relevant items", "relevant items to be found"),
    empty="skip",
    empties=ALL_EMPTIES,
    ideals=("recall", "global"),
    what="relevant items in the first k, as a share of all relevant items",
)
HIT_RATE = Spec(
    name="hit_rate",
    title="hit rate",
    unit="ratio",
    option_names="rel empty",
    score=_score_hit_rate,
    sql=lambda m, s: Formula(value=s.choose(s.has_hits(m), 1, 0), empty=s.lists_none(m)),
    terms=lambda m, rank, grade: (first_relevant(m, grade), np.ones(len(rank))),
    words=("first relevant", "", "sum", ""),
    what="whether there is a relevant item",
)
CTR = Spec(
    name="ctr",
    title="share of shown items that are relevant (clicked)",
    unit="ratio",
    option_names="rel aggregate",
    score=_score_ctr,
    sql=lambda m, s: Formula(numerator=s.hits(m), denominator=s.shown(m.k)),
    terms=_terms,
    words=("relevant", "", "relevant items", "items shown"),
    aggregate="pooled",
    empty="skip",
    empties=("skip",),
    list_length="always",
)
