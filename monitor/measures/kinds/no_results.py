"""Share of requests with an empty list, independent of labels."""

from __future__ import annotations

import numpy as np

from monitor.measures.kernels import GradedRankings, Scores, is_relevant, plain_scores
from monitor.measures.measure import Measure, Spec
from monitor.measures.sql import Formula


def _score_no_results(m: Measure, r: GradedRankings) -> Scores:
    return plain_scores((r.shown[None] == 0).astype(float), np.zeros(r.size, bool))


NO_RESULTS = Spec(
    name="no_results",
    title="share of requests without results",
    unit="ratio",
    option_names="",
    score=_score_no_results,
    sql=lambda m, s: Formula(value=s.choose(s.shows_any(), 0, 1), empty=s.never()),
    terms=lambda m, rank, grade: (is_relevant(m, grade).astype(float), np.ones(len(rank))),
    words=("relevant", "", "1 if the list is empty", ""),
    empties=("zero",),
    is_of_lists=True,
    what="share of requests with an empty list",
)
