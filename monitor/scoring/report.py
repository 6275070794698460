"""Measures of `Lists`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monitor.arrays import Bools, Floats
from monitor.errors import InputError
from monitor.measures.kernels import GradedRankings, Scores, gains, score, sum_by_request, worth
from monitor.measures.measure import Depth, Measure
from monitor.scoring.lists import Lists
from monitor.scoring.sheets import first_true
from monitor.series.partials import EMPTY, REQUESTS, read_as, sums


@dataclass(frozen=True)
class MeasureScore:
    """One measure of a file: its mean (None without data), and (requests,) values, nan where skipped.

    `judged`: share of the items within k that have a grade, of requests that count; None without items.
    """

    measure: Measure
    value: float | None
    requests: int
    empty: int
    values: Floats
    is_empty: Bools
    judged: float | None


@dataclass(frozen=True)
class ScoreReport:
    """All measures of a file, the names of its labelled requests, and the numbers of unlabelled and unranked ones."""

    path: Path
    requests: list[str]
    unlabelled: int
    unranked: int
    results: list[MeasureScore]


def evaluate(lists: Lists, measures: Sequence[Measure]) -> ScoreReport:
    """Every measure of the lists."""
    rankings = _rankings(lists, {k for m in measures for k in m.list_lengths})
    sampled = np.flatnonzero(lists.sampled)
    results = [_result(lists, rankings, m) for m in measures]
    ids, unlabelled = [lists.ids[i] for i in sampled], len(lists.ids) - len(sampled)
    return ScoreReport(lists.path, ids, unlabelled, lists.unranked, results)


def _rankings(lists: Lists, depths: set[Depth]) -> GradedRankings:
    judged, size = ~np.isnan(lists.grade), len(lists.ids)
    shown = {k: sum_by_request(lists.request, worth(k, lists.rank), size) for k in depths}
    request, rank, grade = lists.request[judged], lists.rank[judged], lists.grade[judged]
    return GradedRankings(size, request, rank, grade, lists.sampled, shown, lists.judged)


def _result(lists: Lists, rankings: GradedRankings, measure: Measure) -> MeasureScore:
    scores = _scores(lists, rankings, measure)
    partials = sums(scores, lists.sampled, np.zeros(rankings.size, np.int64), 1)[0]
    value = float(read_as(measure, partials))
    is_empty = scores.empty[lists.sampled]
    instead = {"skip": np.nan, "zero": 0.0, "one": 1.0}[measure.empty]
    return MeasureScore(
        measure,
        None if np.isnan(value) else value,
        int(partials[REQUESTS]),
        int(partials[EMPTY]),
        np.where(is_empty, instead, scores.value[lists.sampled]),
        is_empty,
        _judged(lists, measure.k),
    )


def _judged(lists: Lists, k: int | None) -> float | None:
    graded = ~np.isnan(lists.grade[lists.sampled[lists.request] & (lists.rank <= (k or np.inf))])
    return float(graded.mean()) if len(graded) else None


def _scores(lists: Lists, rankings: GradedRankings, measure: Measure) -> Scores:
    if measure.ideal == "global" and lists.judged is None:
        raise InputError(f"{measure} needs all judgments of each query; give them with --qrels or --ideal-from")
    refuse_above(lists, measure.max_grade, f"the max_grade of {measure}")
    try:
        scores = score(measure, rankings)
        return _with_missing(lists, measure, scores) if lists.missing.any() else scores
    except ValueError as error:
        raise InputError(f"{lists.path}: {error}") from None


def refuse_above(lists: Lists, highest: float | None, what: str) -> None:
    """Raises InputError if a row has a grade above the highest possible one, called `what`."""
    row = None if highest is None else first_true(lists.grade > highest)
    if row is not None:
        why = f"grade {lists.grade[row]:g} is above {what}"
        raise InputError(f"{lists.at(row)}: {why}; give the highest possible grade")


def _with_missing(lists: Lists, measure: Measure, scores: Scores) -> Scores:
    """A query without a ranking scores 0 by every ideal, or is empty if nothing is relevant for it."""
    if lists.judged is None or "zero" not in measure.spec.empties:
        return scores
    grade = lists.judged.grade
    if "gain" in measure.spec.options:
        relevant = gains(measure, grade) > 0
    else:
        relevant = grade > 0 if measure.rel is None else grade >= measure.rel
    findable = np.bincount(lists.judged.request[relevant], minlength=len(lists.ids)) > 0
    empty = scores.empty & ~(lists.missing & findable)
    return Scores(scores.value, empty, scores.numerator, scores.denominator)
