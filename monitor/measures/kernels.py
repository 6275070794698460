"""Every measure over many requests at once, in NumPy.

Rows are sparse: rows of gain 0 may be left out, because they add nothing to a list's gain or its ideal. Only a gain
table with gain(0) other than 0 needs every row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.measures.measure import Depth, Measure

# Up to this many grades, counting per grade beats sorting; both give the same ideal.
_FEW_GRADES = 12

# Discounts are looked up down to this rank, and computed row by row for longer lists.
_LONGEST_TABLE = 10_000


@dataclass(frozen=True)
class JudgedItems:
    """The judged items of each request's query, shown or not: `count` items of `grade` for `request`."""

    request: Ints
    grade: Floats
    count: Ints


@dataclass(frozen=True)
class GradedRankings:
    """The rows of `size` requests, as columns of equal length n.

    Attributes:
        size: number of requests, named 0 .. size - 1 by the rows.
        request: (n,) request of each row.
        rank: (n,) logged position from 1 on, unique within a request.
        grade: (n,) relevance, 0 or more.
        sampled: (size,) whether the request has a label at all; the others are no data, not zeros.
        shown: depth -> (size,) items shown; needed for `ctr`, `coec`, an uncut `precision`, and `no_results`.
        judged: needed for `ideal=global`.
        slices: dimension -> (size,) values as they are shown; needed for an examination by slice.
    """

    size: int
    request: Ints
    rank: Ints
    grade: Floats
    sampled: Bools
    shown: Mapping[Depth, Ints | Floats] = field(default_factory=dict)
    judged: JudgedItems | None = None
    slices: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @cached_property
    def by_rank(self) -> Ints:
        """Row numbers, ordered by request and then rank."""
        return np.lexsort((self.rank, self.request))


@dataclass(frozen=True)
class Scores:
    """One measure of each request, shape (size,) each.

    Attributes:
        value: the measure; 0 where `empty`.
        empty: the value is undefined (0/0), or nothing was relevant.
        numerator, denominator: sums of a pooled reading; zeros for measures without one. Of a measure corrected by
            examination the numerator is the sum of squares of what its items add.
    """

    value: Floats
    empty: Bools
    numerator: Floats
    denominator: Floats


def score(measure: Measure, rankings: GradedRankings) -> Scores:
    """The measure of every request, including those not `sampled`: the reader leaves them out.

    Sources: DCG and NDCG, Jarvelin and Kekalainen (2002) and Burges et al. (2005); ERR, Chapelle et al. (2009); RBP,
    Moffat and Zobel (2008); the others as in trec_eval, where precision of a short list divides by k. The ideal is
    over: `local` the first k shown, `recall` all logged items, `global` all judged items of the query, `max` k items of
    `max_grade`; each sorted by gain and cut at k.

    Raises:
        ValueError: a grade that the measure cannot take, or missing judgments.

    >>> rows = GradedRankings(1, np.array([0, 0]), np.array([2, 3]), np.array([1.0, 3.0]), np.array([True]))
    >>> float(score(Measure("ndcg", 2), rows).value[0].round(4))
    0.1738
    """
    found: Scores = measure.spec.score(measure, rankings) if not measure.by_slice else _score_parts(measure, rankings)
    return found


def _score_parts(measure: Measure, rankings: GradedRankings) -> Scores:
    each, place = [score(part, rankings) for part in measure.parts], parts_of(measure, rankings.slices)
    columns = ([getattr(one, f.name) for one in each] for f in fields(Scores))
    return Scores(*(np.stack(column)[place, np.arange(rankings.size)] for column in columns))


def parts_of(measure: Measure, slices: Mapping[str, Sequence[str]]) -> Ints:
    """(n,) numbers of the `parts` of a measure with `by_slice` that n requests, or cells of them, are counted by.

    Raises:
        ValueError: their slices are not known.

    >>> from monitor.measures.measure import parse
    >>> m = parse("dcg(examination={1:1,2:0.5},examination[device=mobile]={1:1,2:0.4})@2")
    >>> parts_of(m, {"device": ["tablet", "mobile"]}).tolist()
    [0, 1]
    """
    if measure.dimension not in slices:
        raise ValueError(f"{measure} needs the {measure.dimension} of each request")
    number = {value: i for i, ((_, value), _) in enumerate(measure.by_slice, 1)}
    return np.array([number.get(value, 0) for value in slices[measure.dimension]], np.int64)


def gains(measure: Measure, grade: Floats) -> Floats:
    """Gain of each grade, same shape.

    Raises:
        ValueError: a grade is out of the measure's range or missing from the gain table, where grade 0 defaults to 0.
    """
    check_range(measure, grade)
    if measure.gain == "linear":
        return grade
    if measure.gain == "exp2":
        return np.asarray(np.exp2(grade) - 1)
    table = {0.0: 0.0, **dict(measure.gain)}
    known = np.array(sorted(table))
    at = np.clip(np.searchsorted(known, grade), 0, len(known) - 1)
    if (known[at] != grade).any():
        raise ValueError(f"grade {grade[known[at] != grade][0]:g} is not in the gain table of {measure}")
    return np.array([table[g] for g in known])[at]


def check_range(measure: Measure, grade: Floats) -> None:
    """Raises ValueError if a grade is out of the measure's range."""
    highest = measure.highest_grade
    within = (grade >= 0) & (grade <= highest)
    if not within.all():
        raise ValueError(f"grade {grade[~within][0]:g} is not between 0 and {highest:g}, as {measure} requires")


def discounts(measure: Measure, rank: Ints) -> Floats:
    """Discount of each rank (from 1 on), 1 for a measure without, over its examination, same shape.

    >>> discounts(Measure("dcg", discount="jarvelin"), np.array([1, 2, 4])).tolist()
    [1.0, 1.0, 0.5]
    >>> looked_at = Measure("dcg", 2, discount="reciprocal", examination=((1, 1.0), (2, 0.25)))
    >>> discounts(looked_at, np.array([1, 2])).tolist()
    [1.0, 2.0]
    """
    if "discount" not in measure.spec.options:
        found = np.ones(len(rank))
    elif measure.discount == "reciprocal":
        found = 1 / rank
    elif measure.discount == "jarvelin":
        found = np.asarray(1 / np.log2(np.maximum(rank, 2)))
    else:
        found = np.asarray(1 / np.log2(rank + 1.0))
    if not measure.examination:
        return found
    looks = np.array([chance for _, chance in measure.examination])
    return np.asarray(found / looks[np.minimum(rank, len(looks)) - 1])


def worth(depth: Depth, rank: Ints | Floats) -> Floats:
    """What an item shown at each rank counts for in `GradedRankings.shown`, same shape.

    >>> worth(2, np.array([1, 3])).tolist(), worth(((1.0, 0.5), (3.0, 0.2)), np.array([1, 2, 3, 4])).tolist()
    ([1.0, 0.0], [0.5, 0.0, 0.2, 0.0])
    """
    if isinstance(depth, tuple):
        return np.asarray(np.sum([value * (rank == at) for at, value in depth], axis=0), float)
    return (rank <= (depth or np.inf)).astype(np.float64)


def sum_by_request(request: Ints, weight: Floats | None, size: int) -> Floats:
    """(size,) sum of `weight`, or the number of rows, per request."""
    return np.bincount(request, weights=weight, minlength=size).astype(np.float64, copy=False)


def as_ratio(numerator: Floats, denominator: Floats) -> Scores:
    """Scores that can be pooled: empty where the denominator is 0."""
    empty = denominator <= 0
    value = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=~empty)
    return Scores(value, empty, numerator, denominator)


def plain_scores(value: Floats, empty: Bools) -> Scores:
    """Scores without a pooled reading."""
    none = np.zeros(len(value))
    return Scores(value, empty, none, none)


def rows_within(m: Measure, rank: Ints) -> Ints | slice:
    """The rows within k."""
    return slice(None) if m.k is None else np.flatnonzero(rank <= m.k)


def rows_with_gain(m: Measure, r: GradedRankings) -> tuple[Ints, Ints, Floats]:
    """(request, rank, gain) of the rows with gain above 0: only these add to a list's gain or its ideal."""
    gain = gains(m, r.grade)
    some = np.flatnonzero(gain > 0)
    if len(some) == len(gain):
        return r.request, r.rank, gain
    return r.request[some], r.rank[some], gain[some]


def dcg(m: Measure, request: Ints, rank: Ints, gain: Floats, size: int) -> Floats:
    """(size,) discounted sum of the gains within k."""
    return sum_by_request(request, gain * _discounts_within(m, rank), size)


def _discounts_within(m: Measure, rank: Ints) -> Floats:
    """Discount of each rank, 0 past the cut-off."""
    longest = int(rank.max(initial=0))
    last = longest if m.k is None else min(m.k, longest)
    if last > _LONGEST_TABLE:
        return np.where(rank <= last, discounts(m, rank), 0.0)
    table: Floats = np.r_[0.0, discounts(m, np.arange(1, last + 1)), 0.0]
    return np.take(table, np.minimum(rank, last + 1))


def ideal_dcg(m: Measure, r: GradedRankings, request: Ints, rank: Ints, gain: Floats) -> Floats:
    """The ideal gain of each request; the last three are from `rows_with_gain`."""
    if m.ideal == "max":
        top = gains(m, np.array([m.highest_grade]))[0]
        return np.full(r.size, top * discounts(m, np.arange(1, (m.k or 1) + 1)).sum())
    if m.ideal == "global":
        if r.judged is None:
            raise ValueError(f"{m} needs all judgments of each query")
        return _best(m, r.judged.request, gains(m, r.judged.grade), r.judged.count, r.size)
    kept = rows_within(m, rank) if m.ideal == "local" else slice(None)
    return _best(m, request[kept], gain[kept], None, r.size)


def _best(m: Measure, request: Ints, gain: Floats, count: Ints | None, size: int) -> Floats:
    """DCG@k of each request's gains in their best order."""
    levels = _levels(gain)
    if levels is None:
        return _best_by_sorting(m, request, gain, count, size)
    return _best_by_counting(m, request, gain, count, size, levels)


def _from(level: float, request: Ints, gain: Floats, count: Ints | None) -> tuple[Ints, Floats, Ints | None]:
    enough = np.flatnonzero(gain >= level)
    if len(enough) == len(gain):
        return request, gain, count
    return request[enough], gain[enough], None if count is None else count[enough]


def _levels(gain: Floats) -> list[float] | None:
    """The distinct gains above 0, rising; None if there are many. A first look may save a useless sort."""
    if len(np.unique(gain[:256])) > _FEW_GRADES:
        return None
    levels = np.unique(gain)
    return None if len(levels) > _FEW_GRADES else levels[levels > 0].tolist()


def _best_by_counting(
    m: Measure, request: Ints, gain: Floats, count: Ints | None, size: int, levels: list[float]
) -> Floats:
    """Sum over distinct gains g of (g - next lower g) * C[min(k, items of gain >= g)], C[j] the sum of j discounts."""
    ideal, below = np.zeros(size), 0.0
    for level in levels:
        request, gain, count = _from(level, request, gain, count)
        items = sum_by_request(request, None if count is None else count.astype(float), size).astype(np.int64)
        items = items if m.k is None else np.minimum(items, m.k)
        cumulated = np.r_[0.0, np.cumsum(discounts(m, np.arange(1, items.max(initial=0) + 1)))]
        ideal += (level - below) * cumulated[items]
        below = level
    return ideal


def _best_by_sorting(m: Measure, request: Ints, gain: Floats, count: Ints | None, size: int) -> Floats:
    if count is not None:
        request, gain = np.repeat(request, count), np.repeat(gain, count)
    order = np.lexsort((-gain, request))
    request, gain = request[order], gain[order]
    return dcg(m, request, _ordinal(request, size) + 1, gain, size)


def _ordinal(request: Ints, size: int) -> Ints:
    """0, 1, 2 ... within each request, for rows grouped by request in rising order."""
    counts = np.bincount(request, minlength=size)
    starts = np.cumsum(counts) - counts
    return np.arange(len(request)) - starts[request]


def is_relevant(m: Measure, grade: Floats) -> Bools:
    """(n,) whether grades count as relevant in a binary measure."""
    return grade > 0 if m.rel is None else np.asarray(grade >= m.rel)


def relevant_rows(m: Measure, r: GradedRankings) -> Ints:
    return np.flatnonzero(is_relevant(m, r.grade))


def hit_rows(m: Measure, r: GradedRankings) -> Ints:
    """Numbers of the relevant rows within k."""
    rows = relevant_rows(m, r)
    return rows if m.k is None else rows[r.rank[rows] <= m.k]


def count_hits(m: Measure, r: GradedRankings) -> Floats:
    """Relevant items within k, per request."""
    return sum_by_request(r.request[hit_rows(m, r)], None, r.size)


def count_listed(m: Measure, r: GradedRankings) -> Floats:
    """Relevant items anywhere in the list, per request."""
    return sum_by_request(r.request[relevant_rows(m, r)], None, r.size)


def count_pool(m: Measure, r: GradedRankings) -> Floats:
    """Relevant items that exist, by the measure's ideal, per request."""
    if m.ideal == "global":
        if r.judged is None:
            raise ValueError(f"{m} needs all judgments of each query")
        relevant = is_relevant(m, r.judged.grade)
        return sum_by_request(r.judged.request[relevant], r.judged.count[relevant].astype(float), r.size)
    return count_hits(m, r) if m.ideal == "local" else count_listed(m, r)


def relevant_in_order(m: Measure, r: GradedRankings) -> tuple[Ints, Ints]:
    """(row number, relevant items above it) of the relevant rows within k, by request and rank."""
    hit = np.zeros(len(r.rank), bool)
    hit[hit_rows(m, r)] = True
    rows = r.by_rank[hit[r.by_rank]]
    return rows, _ordinal(r.request[rows], r.size)


def first_relevant(m: Measure, grade: Floats) -> Floats:
    """1 for a request's first relevant item by rank, else 0."""
    relevant = is_relevant(m, grade)
    return np.asarray(relevant & (np.cumsum(relevant) == 1), float)
