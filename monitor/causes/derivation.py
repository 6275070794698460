"""A measure of one request, step by step: gains, discounts and the ideal, for checking by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np

from monitor.causes.inspection import Inspection
from monitor.measures.kernels import Scores, discounts, gains, is_relevant, parts_of, score
from monitor.measures.measure import Measure


@dataclass(frozen=True)
class Term:
    """What one item adds: gain x weight, where the weight is its rank's discount or the measure's counterpart.

    `position` is the source's; None in the ideal for an item that was not shown.
    """

    rank: int
    item: Any
    position: Any
    grade: float
    gain: float
    weight: float

    @property
    def product(self) -> float:
        """The item's contribution to the sum."""
        return self.gain * self.weight


@dataclass(frozen=True)
class Derivation:
    """A measure of one request: `value` = sum of `terms` / `denominator`, if there is one.

    Terms are the shown items up to the cut-off that add something; `below` is the number of those after it. For ndcg,
    `ideal` is the best possible list, whose sum is the denominator.
    """

    measure: Measure
    value: float | None
    terms: tuple[Term, ...]
    below: int
    numerator: float
    denominator: float | None
    ideal: tuple[Term, ...] = ()


def derive(measure: Measure, seen: Inspection) -> Derivation:
    """The derivation of a measure's value. Raises ValueError if the measure cannot take the grades."""
    seen = seen.taken_by(measure)
    one = measure.parts[parts_of(measure, seen.graded.slices)[0]] if measure.by_slice else measure
    scores = score(one, seen.graded)
    gain, weight = one.spec.terms(one, seen.graded.rank, seen.graded.grade)
    all_terms = [
        Term(int(rank), seen.rows[row].item, seen.rows[row].position, grade, g, w)
        for rank, row, grade, g, w in zip(
            seen.graded.rank, seen.used, seen.graded.grade.tolist(), gain.tolist(), weight.tolist(), strict=True
        )
        if g > 0
    ]
    terms = tuple(t for t in all_terms if t.rank <= (measure.k or t.rank))
    return Derivation(
        measure,
        None if scores.empty[0] else float(scores.value[0]),
        terms,
        len(all_terms) - len(terms),
        _numerator(one, scores, terms),
        _found_at_best(one, seen) if one.spec.is_over_pool else float(scores.denominator[0]) or None,
        _ideal(one, seen) if "max" in one.spec.ideals else (),
    )


def _numerator(measure: Measure, scores: Scores, terms: Sequence[Term]) -> float:
    if measure.is_of_lists:
        return float(scores.value[0])
    return float(scores.numerator[0]) if scores.denominator[0] else fsum(t.product for t in terms)


def _ideal(m: Measure, seen: Inspection) -> tuple[Term, ...]:
    pool = _pool(m, seen)
    gain = gains(m, np.array([grade for *_, grade in pool], float))
    best = [i for i in np.argsort(-gain, kind="stable").tolist() if gain[i] > 0][: m.k]
    weight = discounts(m, np.arange(1, len(best) + 1))
    terms = []
    for rank, (i, w) in enumerate(zip(best, weight.tolist(), strict=True), 1):
        item, position, grade = pool[i]
        terms.append(Term(rank, item, position, grade, float(gain[i]), w))
    return tuple(terms)


def _pool(m: Measure, seen: Inspection) -> list[tuple[Any, Any, float]]:
    """(item, position if shown, grade) of every item that may enter the measure's ideal."""
    if m.ideal == "max":
        return [(None, None, m.highest_grade)] * (m.k or 1)
    if m.ideal == "global":
        return [(j.item, next(iter(j.positions), None), j.grade) for j in seen.judgments if j.is_usable]
    ranked = zip(seen.graded.rank.tolist(), seen.used, seen.graded.grade.tolist(), strict=True)
    inside = [(i, g) for rank, i, g in ranked if m.ideal == "recall" or rank <= (m.k or rank)]
    return [(seen.rows[i].item, seen.rows[i].position, g) for i, g in inside]


def _found_at_best(m: Measure, seen: Inspection) -> float | None:
    """Number of relevant items by which average precision is divided."""
    grades = np.array([grade for *_, grade in _pool(m, seen)], float)
    return float(is_relevant(m, grades).sum()) or None
