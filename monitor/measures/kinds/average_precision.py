"""Average precision, as in trec_eval."""

from __future__ import annotations

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.measures.kernels import (
    GradedRankings,
    Scores,
    as_ratio,
    count_pool,
    is_relevant,
    plain_scores,
    relevant_in_order,
    sum_by_request,
)
from monitor.measures.measure import ALL_EMPTIES, Measure, Spec


def _score_map(m: Measure, r: GradedRankings) -> Scores:
    rows, above = relevant_in_order(m, r)
    ratio = as_ratio(sum_by_request(r.request[rows], (above + 1) / r.rank[rows], r.size), count_pool(m, r))
    return plain_scores(ratio.value, ratio.empty)


def _terms(m: Measure, rank: Ints, grade: Floats) -> tuple[Floats, Floats]:
    relevant = is_relevant(m, grade).astype(float)
    return relevant, np.cumsum(relevant) / rank


MAP = Spec(
    name="map",
    title="average precision",
    unit="ratio",
    option_names="rel ideal empty",
    score=_score_map,
    sql="average precision counts the relevant items above each one",
    terms=_terms,
    words=("relevant", "precision there", "sum", "relevant items to be found"),
    empty="skip",
    empties=ALL_EMPTIES,
    ideals=("local", "recall", "global"),
    is_over_pool=True,
    what="average precision over all relevant items, like `recall` (as in trec_eval)",
)
