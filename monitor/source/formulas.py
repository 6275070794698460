"""Measures as SQL: sums over a request's relevant rows, and the request's value computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log

import numpy as np
import sqlalchemy as sa

from monitor.measures.kernels import discounts, gains
from monitor.measures.measure import Depth, Measure
from monitor.measures.sql import Formula, RequestSums
from monitor.source.dialects.base import ONE, ZERO, Condition, Dialect, Expression, written

TABULATED_RANKS = 60
"""Discounts are tabulated down to this rank and computed below it. Without a cut-off, a request with more relevant
items makes its bucket be read row by row."""

LEAST = 1e-150
"""Smaller weights count as 0: PostgreSQL and Redshift raise on float underflow, for example of the square."""


@dataclass
class Formulas(RequestSums):
    """`RequestSums` in the database's SQL; collects the sums of a request's rows, which measures share.

    Attributes:
        rank, grade: of a row. Rank starts at 1, NULL without one; grade is one of `grades`, 0 or NULL.
        grades: possible grades above 0, ascending.
        get: the sum of that name, 0 if the request has no graded row.
        shows: distinct items the request shows down to a rank, or the sum of a table over the ranks shown.
        sums: name -> aggregate over a request's rows.
        too_many: name of a sum -> the highest value for which the formulas hold.
    """

    sql: Dialect
    rank: Expression
    grade: Expression
    grades: Sequence[float]
    get: Callable[[str], Expression]
    shows: Callable[[Depth], Expression]
    sums: dict[str, Expression] = field(default_factory=dict)
    too_many: dict[str, int] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def of(self, measure: Measure) -> Formula:
        make = measure.spec.sql
        assert not isinstance(make, str), make
        found: Formula = make(measure, self)
        return found

    # ---- sums over rows ----------------------------------------------------------------------------------------

    def _total(self, condition: Condition, weight: Expression) -> Expression:
        """The sum of `weight` over the rows that meet the condition."""
        return self.get(self._named(sa.func.sum(sa.case((condition, weight), else_=self.number(0)))))

    def _count(self, *conditions: Condition) -> str:
        """Name of the count of rows that meet all conditions."""
        return self._named(sa.func.sum(sa.case((sa.and_(*conditions), ONE), else_=ZERO)))

    def _named(self, aggregate: Expression) -> str:
        """Name of an aggregate; equal SQL text shares a name."""
        text = str(aggregate.compile(compile_kwargs={"literal_binds": True}))
        name = self._names.setdefault(text, f"s{len(self._names)}")
        self.sums.setdefault(name, aggregate)
        return name

    def within(self, k: int | None) -> Condition:
        """Whether a row is at one of the first k ranks."""
        return self.rank.isnot(None) if k is None else self.rank <= written(str(k))

    def _relevant(self, m: Measure, k: int | None) -> list[Condition]:
        """Whether a row is at one of the first k ranks, and relevant to a binary measure."""
        least = self.sql.number(m.rel or 0)
        return [self.within(k), self.grade > least if m.rel is None else self.grade >= least]

    def _gain(self, m: Measure) -> Expression:
        steps = list(zip(self.grades, gains(m, np.array(self.grades)).tolist(), strict=True))
        cases = [(self.grade == self.sql.number(grade), self.sql.number(gain)) for grade, gain in steps]
        return sa.case(*cases, else_=self.sql.number(0))

    def _discount(self, m: Measure) -> Expression:
        if m.discount == "reciprocal" and not m.examination:
            return self.sql.number(1) / self.sql.double(self.rank)
        last = len(m.examination) or min(m.k or TABULATED_RANKS, TABULATED_RANKS)
        table = discounts(m, np.arange(1, last + 1)).tolist()
        if m.examination or (m.k is not None and m.k <= TABULATED_RANKS):
            return self.sql.table(self.rank, 1, table, 0.0)
        shift = self.sql.number(1.0 if m.discount == "log2" else 0.0)
        below = self.sql.number(log(2)) / self.sql.ln(self.sql.double(self.rank) + shift)
        known = self.sql.table(self.rank, 1, table, 0.0)
        return sa.case((self.rank <= written(str(last)), known), else_=below)

    # ---- of a request ------------------------------------------------------------------------------------------

    def number(self, value: float) -> Expression:
        return self.sql.number(value)

    def choose(self, condition: Condition, then: float, otherwise: float) -> Expression:
        return sa.case((condition, self.number(then)), else_=self.number(otherwise))

    def hits(self, m: Measure) -> Expression:
        return self.sql.double(self.get(self._count(*self._relevant(m, m.k))))

    def has_hits(self, m: Measure) -> Condition:
        return self.get(self._count(*self._relevant(m, m.k))) > ZERO

    def listed(self, m: Measure) -> Expression:
        return self.sql.double(self.get(self._count(*self._relevant(m, None))))

    def lists_none(self, m: Measure) -> Condition:
        return self.get(self._count(*self._relevant(m, None))) == ZERO

    def gained(self, m: Measure) -> Expression:
        is_plain = not m.examination and "discount" not in m.spec.options
        return self._total(self.within(m.k), self._gain(m) if is_plain else self._gain(m) * self._discount(m))

    def gained_squares(self, m: Measure) -> Expression:
        adds = self._gain(m) * self._discount(m)
        return self._total(self.within(m.k), adds * adds)

    def gains_nothing(self, m: Measure) -> Condition:
        return self._total(self.within(None), self._gain(m)) <= self.number(0)

    def first(self, m: Measure) -> Expression:
        hit = sa.and_(*self._relevant(m, m.k))
        first = self.get(self._named(sa.func.min(sa.case((hit, self.rank)))))
        return sa.case((first > ZERO, self.number(1) / self.sql.double(first)), else_=self.number(0))

    def ranks(self, m: Measure) -> Expression:
        return self._total(sa.and_(*self._relevant(m, m.k)), self.sql.double(self.rank))

    def powers(self, m: Measure, base: float) -> Expression:
        last, deepest = min(m.k or TABULATED_RANKS, TABULATED_RANKS), 1 + int(log(LEAST) / log(base))
        weight = self.sql.table(self.rank, 1, [base**i if i < deepest else 0.0 for i in range(last)], 0.0)
        if (m.k is None or m.k > TABULATED_RANKS) and deepest > TABULATED_RANKS:
            exponent = (self.sql.double(self.rank) - self.number(1)) * self.number(log(base))
            known, weighs = self.rank <= written(str(last)), self.rank <= written(str(deepest))
            deeper = sa.func.exp(exponent, type_=sa.Double)
            weight = sa.case((known, weight), (weighs, deeper), else_=self.number(0))
        return self._total(sa.and_(*self._relevant(m, m.k)), weight)

    def ideal(self, m: Measure) -> Expression:
        """The ideal gain of a list: the sum of (gain - next lower gain) * C[min(k, items of that gain)]."""
        if m.ideal == "max":
            top = gains(m, np.array([m.highest_grade]))[0]
            return self.sql.number(float(top * discounts(m, np.arange(1, (m.k or 1) + 1)).sum()))
        longest = min(m.k or TABULATED_RANKS, TABULATED_RANKS)
        cumulated = np.cumsum(discounts(m, np.arange(1, longest + 1))).tolist()
        total, below = self.sql.number(0), 0.0
        for grade, gain in zip(self.grades, gains(m, np.array(self.grades)).tolist(), strict=True):
            if gain <= below:
                continue
            inside = self.within(m.k if m.ideal == "local" else None)
            name = self._count(inside, self.grade >= self.sql.number(grade))
            if m.k is None or m.k > TABULATED_RANKS:
                self.too_many[name] = TABULATED_RANKS
            steps = [0.0, *cumulated]
            total = total + self.sql.number(gain - below) * self.sql.table(self.get(name), 0, steps[:-1], steps[-1])
            below = gain
        return total

    def shown(self, k: Depth) -> Expression:
        return self.sql.double(self.shows(k))

    def shows_any(self) -> Condition:
        return self.shows(None) > ZERO

    def never(self) -> Condition:
        return ZERO == ONE


def needs_logarithm(measure: Measure) -> bool:
    """Whether a measure needs functions that some SQLite builds lack."""
    is_long = measure.k is None or measure.k > TABULATED_RANKS
    return is_long and not measure.examination and measure.spec.is_weighted_by_rank and measure.discount != "reciprocal"
