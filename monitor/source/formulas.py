"""Measures as SQL: what is summed over a request's relevant rows, and what comes of these sums for the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
import sqlalchemy as sa

from monitor.measures.kernels import discounts, gains
from monitor.measures.measure import Measure
from monitor.source.dialects.base import Condition, Dialect, Expression, written

LONGEST = 60
"""Down to this rank a discount is looked up; below it is computed. So many relevant items of a request are counted
where there is no cut-off; a bucket with more is read row by row."""

LEAST = 1e-150
"""A weight below it is none: PostgreSQL and Redshift refuse to work out what is too small for a float, such as its
square."""


@dataclass(frozen=True)
class Formula:
    """One measure of a request, as SQL over its sums; see `kernels.Scores`.

    Attributes:
        empty: whether the value is undefined, or nothing relevant was there; None if that is where
            the denominator is 0.
        value: None if it is numerator / denominator, and undefined where that is 0.
        numerator, denominator: None where the measure has no pooled reading.
    """

    empty: Condition | None = None
    value: Expression | None = None
    numerator: Expression | None = None
    denominator: Expression | None = None


@dataclass
class Formulas:
    """Gathers the sums that measures need of a request's graded rows, each once however many share it.

    Attributes:
        rank, grade: of a row: from 1 on, NULL where it has none; one of `grades`, 0 or NULL.
        grades: that there can be above 0, rising.
        sums: name -> aggregate over a request's rows.
        too_many: name of a sum -> the most it may come to for the formulas to hold.
    """

    sql: Dialect
    rank: Expression
    grade: Expression
    grades: Sequence[float]
    sums: dict[str, Expression] = field(default_factory=dict)
    too_many: dict[str, int] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def of(
        self, measure: Measure, get: Callable[[str], Expression], shown: Callable[[int | None], Expression]
    ) -> Formula:
        """The measure.

        Args:
            get: the sum of that name, 0 where the request has no graded row.
            shown: how many different items the request shows down to a rank.
        """
        return _MAKERS[measure.name](self, measure, get, shown)

    # ---- sums over rows ----------------------------------------------------------------------------------------

    def total(self, condition: Condition, weight: Expression, whole: bool = False) -> str:
        """Name of the sum of `weight` over the rows that meet the condition."""
        zero = written("0") if whole else self.sql.number(0)
        return self._named(sa.func.sum(sa.case((condition, weight), else_=zero)))

    def _named(self, aggregate: Expression) -> str:
        text = str(aggregate.compile(compile_kwargs={"literal_binds": True}))
        name = self._names.setdefault(text, f"s{len(self._names)}")
        self.sums.setdefault(name, aggregate)
        return name

    def within(self, k: int | None) -> Condition:
        """Whether a row is at one of the first k ranks."""
        return self.rank.isnot(None) if k is None else self.rank <= written(str(k))

    def relevant(self, m: Measure) -> Condition:
        """Whether a row is relevant to a binary measure."""
        least = self.sql.number(m.rel or 0)
        return self.grade > least if m.rel is None else self.grade >= least

    def count(self, *conditions: Condition) -> str:
        """Name of the number of rows that meet all conditions."""
        return self.total(sa.and_(*conditions), written("1"), whole=True)

    def hits(self, m: Measure) -> str:
        """Name of the number of relevant rows within k."""
        return self.count(self.within(m.k), self.relevant(m))

    def listed(self, m: Measure) -> str:
        """Name of the number of relevant rows anywhere in the list."""
        return self.count(self.within(None), self.relevant(m))

    def gain(self, m: Measure) -> Expression:
        """Gain of a row."""
        steps = list(zip(self.grades, gains(m, np.array(self.grades)).tolist(), strict=True))
        cases = [(self.grade == self.sql.number(grade), self.sql.number(gain)) for grade, gain in steps]
        return sa.case(*cases, else_=self.sql.number(0))

    def discount(self, m: Measure) -> Expression:
        """Discount of a row within k."""
        if m.discount == "reciprocal":
            return self.sql.number(1) / self.sql.double(self.rank)
        last = min(m.k or LONGEST, LONGEST)
        table = discounts(m, np.arange(1, last + 1)).tolist()
        if m.k is not None and m.k <= LONGEST:
            return self.sql.table(self.rank, 1, table, 0.0)
        shift = self.sql.number(1.0 if m.discount == "log2" else 0.0)
        below = self.sql.number(log(2)) / self.sql.ln(self.sql.double(self.rank) + shift)
        known = self.sql.table(self.rank, 1, table, 0.0)
        return sa.case((self.rank <= written(str(last)), known), else_=below)

    # ---- the ideal ---------------------------------------------------------------------------------------------

    def ideal(self, m: Measure, get: Callable[[str], Expression]) -> Expression:
        """The best that a list could gain: the sum of (gain - next lower gain) * C[min(k, items of that gain)]."""
        if m.ideal == "max":
            top = gains(m, np.array([m.highest_grade]))[0]
            return self.sql.number(float(top * discounts(m, np.arange(1, (m.k or 1) + 1)).sum()))
        longest = min(m.k or LONGEST, LONGEST)
        cumulated = np.cumsum(discounts(m, np.arange(1, longest + 1))).tolist()
        found, below = self.sql.number(0), 0.0
        for grade, gain in zip(self.grades, gains(m, np.array(self.grades)).tolist(), strict=True):
            if gain <= below:
                continue
            inside = self.within(m.k if m.ideal == "local" else None)
            name = self.count(inside, self.grade >= self.sql.number(grade))
            if m.k is None or m.k > LONGEST:
                self.too_many[name] = LONGEST
            steps = [0.0, *cumulated]
            found = found + self.sql.number(gain - below) * self.sql.table(get(name), 0, steps[:-1], steps[-1])
            below = gain
        return found


Getter = Callable[[str], Expression]
Shown = Callable[[int | None], Expression]


def _ndcg(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    dcg, ideal = get(f.total(f.within(m.k), f.gain(m) * f.discount(m))), f.ideal(m, get)
    if m.ideal != "max":
        return Formula(None, None, dcg, ideal)
    return Formula(get(f.total(f.within(None), f.gain(m))) <= f.sql.number(0), None, dcg, ideal)


def _dcg(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    dcg = get(f.total(f.within(m.k), f.gain(m) * f.discount(m)))
    return Formula(get(f.total(f.within(None), f.gain(m))) <= f.sql.number(0), dcg)


def _cg(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    gained = get(f.total(f.within(m.k), f.gain(m)))
    return Formula(get(f.total(f.within(None), f.gain(m))) <= f.sql.number(0), gained)


def _precision(f: Formulas, m: Measure, get: Getter, shown: Shown) -> Formula:
    depth = f.sql.double(shown(None)) if m.k is None else f.sql.number(m.k)
    hits = f.sql.double(get(f.hits(m)))
    return Formula(get(f.listed(m)) == written("0"), None, hits, depth)


def _recall(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    listed = f.sql.double(get(f.listed(m)))
    return Formula(None, None, f.sql.double(get(f.hits(m))), listed)


def _mrr(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    relevant = sa.and_(f.within(m.k), f.relevant(m))
    first = get(f._named(sa.func.min(sa.case((relevant, f.rank)))))
    value = sa.case((first > written("0"), f.sql.number(1) / f.sql.double(first)), else_=f.sql.number(0))
    return Formula(get(f.listed(m)) == written("0"), value)


def _hit_rate(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    some = get(f.hits(m)) > written("0")
    value = sa.case((some, f.sql.number(1)), else_=f.sql.number(0))
    return Formula(get(f.listed(m)) == written("0"), value)


def _rbp(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    p, last = m.p or 0.8, min(m.k or LONGEST, LONGEST)
    deepest = 1 + int(log(LEAST) / log(p))
    weight = f.sql.table(f.rank, 1, [p**i if i < deepest else 0.0 for i in range(last)], 0.0)
    if (m.k is None or m.k > LONGEST) and deepest > LONGEST:
        powers = sa.func.exp((f.sql.double(f.rank) - f.sql.number(1)) * f.sql.number(log(p)), type_=sa.Double)
        known, weighs = f.rank <= written(str(last)), f.rank <= written(str(deepest))
        weight = sa.case((known, weight), (weighs, powers), else_=f.sql.number(0))
    total = get(f.total(sa.and_(f.within(m.k), f.relevant(m)), weight))
    return Formula(get(f.listed(m)) == written("0"), f.sql.number(1 - p) * total)


def _ctr(f: Formulas, m: Measure, get: Getter, shown: Shown) -> Formula:
    depth = f.sql.double(shown(m.k))
    return Formula(None, None, f.sql.double(get(f.hits(m))), depth)


def _click_position(f: Formulas, m: Measure, get: Getter, _: Shown) -> Formula:
    clicked = sa.and_(f.within(m.k), f.relevant(m))
    places = get(f.total(clicked, f.sql.double(f.rank)))
    hits = f.sql.double(get(f.hits(m)))
    return Formula(None, None, places, hits)


def _no_results(f: Formulas, m: Measure, get: Getter, shown: Shown) -> Formula:
    value = sa.case((shown(None) > written("0"), f.sql.number(0)), else_=f.sql.number(1))
    return Formula(written("0") == written("1"), value)


_MAKERS: dict[str, Callable[[Formulas, Measure, Getter, Shown], Formula]] = {
    "ndcg": _ndcg,
    "dcg": _dcg,
    "cg": _cg,
    "precision": _precision,
    "recall": _recall,
    "mrr": _mrr,
    "hit_rate": _hit_rate,
    "rbp": _rbp,
    "ctr": _ctr,
    "click_position": _click_position,
    "no_results": _no_results,
}


def needs_logarithm(measure: Measure) -> bool:
    """Whether a measure takes functions that not every build of SQLite has."""
    long = measure.k is None or measure.k > LONGEST
    return long and (measure.name == "rbp" or (measure.name in ("ndcg", "dcg") and measure.discount != "reciprocal"))
