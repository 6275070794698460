"""Rank-biased precision, Moffat and Zobel (2008)."""

from __future__ import annotations

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.measures.kernels import (
    GradedRankings,
    Scores,
    count_listed,
    hit_rows,
    is_relevant,
    plain_scores,
    sum_by_request,
)
from monitor.measures.measure import Measure, Spec
from monitor.measures.sql import Formula, RequestSums

PERSISTENCE = 0.8


def _score_rbp(m: Measure, r: GradedRankings) -> Scores:
    p = m.p or PERSISTENCE
    hit = hit_rows(m, r)
    value = (1 - p) * sum_by_request(r.request[hit], np.power(p, r.rank[hit] - 1.0), r.size)
    return plain_scores(value, count_listed(m, r) == 0)


def _sql(m: Measure, s: RequestSums) -> Formula:
    p = m.p or PERSISTENCE
    return Formula(value=s.number(1 - p) * s.powers(m, p), empty=s.lists_none(m))


def _terms(m: Measure, rank: Ints, grade: Floats) -> tuple[Floats, Floats]:
    p = m.p or PERSISTENCE
    return is_relevant(m, grade).astype(float), np.asarray((1 - p) * p ** (rank - 1.0))


RBP = Spec(
    name="rbp",
    title="rank-biased precision",
    unit="ratio",
    option_names="rel p empty",
    score=_score_rbp,
    sql=_sql,
    terms=_terms,
    words=("relevant", "(1 - p) p^(rank - 1)", "sum", ""),
    p=PERSISTENCE,
    is_weighted_by_rank=True,
    what="rank-biased precision, binary; `p` is 0.8 by default as in ir_measures, 0.9 in trec_eval 10",
)
