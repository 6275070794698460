"""Ranks of relevant items: one over the first, and the mean of all."""

from __future__ import annotations

import numpy as np

from monitor.measures.kernels import (
    GradedRankings,
    Scores,
    as_ratio,
    count_hits,
    count_listed,
    first_relevant,
    hit_rows,
    is_relevant,
    plain_scores,
    sum_by_request,
)
from monitor.measures.measure import Measure, Spec
from monitor.measures.sql import Formula


def _score_mrr(m: Measure, r: GradedRankings) -> Scores:
    rows = hit_rows(m, r)
    first = np.full(r.size, np.inf)
    np.minimum.at(first, r.request[rows], r.rank[rows].astype(float))
    return plain_scores(1 / first, count_listed(m, r) == 0)


def _score_click_position(m: Measure, r: GradedRankings) -> Scores:
    hit = hit_rows(m, r)
    return as_ratio(sum_by_request(r.request[hit], r.rank[hit].astype(float), r.size), count_hits(m, r))


MRR = Spec(
    name="mrr",
    title="reciprocal rank",
    unit="ratio",
    option_names="rel empty",
    score=_score_mrr,
    sql=lambda m, s: Formula(value=s.first(m), empty=s.lists_none(m)),
    terms=lambda m, rank, grade: (first_relevant(m, grade), 1 / rank),
    words=("first relevant", "1 / rank", "sum", ""),
    what="reciprocal rank of the first relevant item",
)
CLICK_POSITION = Spec(
    name="click_position",
    title="mean position of the relevant (clicked) items",
    unit="position",
    option_names="rel aggregate",
    score=_score_click_position,
    sql=lambda m, s: Formula(numerator=s.ranks(m), denominator=s.hits(m)),
    terms=lambda m, rank, grade: (is_relevant(m, grade).astype(float), rank.astype(float)),
    words=("relevant", "its rank", "sum of ranks", "relevant items shown"),
    aggregate="pooled",
    empty="skip",
    empties=("skip",),
)
