"""Clicks over expected clicks, Zhang and Jones (2007): how attractive the shown items are, regardless of rank."""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np

from monitor.measures.kernels import GradedRankings, Scores, as_ratio, count_hits, is_relevant
from monitor.measures.measure import Measure, Spec
from monitor.measures.sql import Formula, RequestSums


def _score(m: Measure, r: GradedRankings) -> Scores:
    return as_ratio(count_hits(m, r), reduce(add, (r.shown[part].astype(float) for part in m.list_lengths)))


def _sql(m: Measure, s: RequestSums) -> Formula:
    return Formula(numerator=s.hits(m), denominator=reduce(add, map(s.shown, m.list_lengths)))


COEC = Spec(
    name="coec",
    title="clicks over expected clicks",
    unit="gain",
    option_names="rel examination aggregate",
    score=_score,
    sql=_sql,
    terms=lambda m, rank, grade: (is_relevant(m, grade).astype(float), np.ones(len(rank))),
    words=("relevant", "", "relevant items", "expected at the ranks shown"),
    aggregate="pooled",
    empty="skip",
    empties=("skip",),
    list_length="always",
    what="relevant (clicked) items over the number `examination` expects at the ranks shown",
)
