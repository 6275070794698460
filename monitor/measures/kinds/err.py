"""Expected reciprocal rank, Chapelle et al. (2009)."""

from __future__ import annotations

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.measures.kernels import (
    GradedRankings,
    Scores,
    check_range,
    count_listed,
    is_relevant,
    plain_scores,
    relevant_in_order,
)
from monitor.measures.measure import Measure, Spec


def _score_err(m: Measure, r: GradedRankings) -> Scores:
    check_range(m, r.grade)
    rows, above = relevant_in_order(m, r)
    request, rank = r.request[rows], r.rank[rows]
    # (2^grade - 1) / 2^max_grade, written so that nothing overflows.
    stops = np.exp2(r.grade[rows] - m.highest_grade) - np.exp2(-m.highest_grade)
    value, reached = np.zeros(r.size), np.ones(r.size)
    # A user reaches an item unless an earlier one satisfied: one step per rank, all requests at once.
    order = np.argsort(above, kind="stable")
    for step in np.split(order, np.cumsum(np.bincount(above))[:-1]):
        at, stop = request[step], stops[step]
        value[at] += reached[at] * stop / rank[step]
        reached[at] *= 1 - stop
    return plain_scores(value, count_listed(m, r) == 0)


def _terms(m: Measure, rank: Ints, grade: Floats) -> tuple[Floats, Floats]:
    stop = is_relevant(m, grade) * (np.exp2(grade) - 1) / np.exp2(m.highest_grade)
    return stop, np.cumprod(np.r_[1, 1 - stop[:-1]])[: len(rank)] / rank


ERR = Spec(
    name="err",
    title="expected reciprocal rank",
    unit="ratio",
    option_names="max_grade empty",
    score=_score_err,
    sql="err multiplies along the list",
    terms=_terms,
    words=("satisfies", "is reached / rank", "sum", ""),
    needs_max_grade=True,
)
