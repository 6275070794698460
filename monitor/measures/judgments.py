"""The attractiveness of each item of a query, by clicks over expected clicks: judgments that nobody has to make.

An item's clicks by those that examination expects of the ranks where it was shown (Zhang and Jones 2007, "Comparing
click logs and editorial labels for training query rewriting") estimate its attractiveness. Each impression
counts by the examination of its rank. Few examined impressions are mostly chance, so the fewer they are, the nearer a
value is drawn to the mean of the items at the same ranks: empirical Bayes, whose prior is taken from the counts by
moments (Marshall 1991, "Mapping disease and mortality rates using empirical Bayes estimators"). One mean of all would
raise what a good ranker puts far down, where few look, above what it puts on top; a prior by what is known of an item
beforehand is that of Fay and Herriot (1979, "Estimates of income for small places").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.measures.examination import ShownCounts
from monitor.measures.kernels import sum_by_request


@dataclass(frozen=True)
class Attractiveness:
    """Clicks over expected clicks of each (query, item), in the order of their numbers in `ShownCounts`.

    Attributes:
        value: (P,) drawn to the mean at their ranks; nan for those not shown within the depth.
        mean: of all of them together.
        strength: weight of a mean, in examined impressions; inf where items of the same ranks differ by no more than
            chance.
    """

    value: Floats
    mean: float
    strength: float

    def grades(self, highest: int) -> Ints:
        """(P,) whole grades from 0 to that of the most attractive item, in proportion; -1 where there is none."""
        most = np.nanmax(self.value, initial=0)
        return np.nan_to_num(np.rint(highest * self.value / (most or 1)), nan=-1).astype(np.int64)


def estimate_attractiveness(counts: ShownCounts, examination: Floats, prior: float | None = None) -> Attractiveness:
    """The clicks over expected clicks.

    Args:
        examination: (n,) at the rank of each of the `counts`; 0 leaves it out.
        prior: weight of a mean, in examined impressions; by default as many as the counts themselves say.

    Raises:
        ValueError: nothing was clicked where people look.
    """
    size = len(counts.names)
    clicks = sum_by_request(counts.pair, counts.clicked * (examination > 0), size)
    expected = sum_by_request(counts.pair, counts.shown * examination, size)
    if not clicks.sum():
        raise ValueError("nothing was clicked at these ranks, so clicks say nothing about any item")
    rate, mean = _ratio(clicks, expected), _mean_at_its_ranks(counts, examination, expected)
    squares = sum_by_request(counts.pair, counts.shown * examination**2, size)
    there = expected > 0
    strength = _strength(*(one[there] for one in (rate, expected, squares, mean))) if prior is None else prior
    kept_of_it = np.divide(expected, expected + strength, out=np.zeros(size), where=there)
    most = 1 / examination.max()  # a click for each request
    value = np.minimum(mean + kept_of_it * (rate - mean), most)
    return Attractiveness(value, float(clicks.sum() / expected.sum()), strength)


def _mean_at_its_ranks(counts: ShownCounts, examination: Floats, expected: Floats) -> Floats:
    """(P,) clicks over expected clicks of all items at the ranks where an item was shown."""
    seen, ranks = counts.shown * examination, int(counts.rank.max()) + 1
    clicks = sum_by_request(counts.rank, counts.clicked * (examination > 0), ranks)
    at_rank = _ratio(clicks, sum_by_request(counts.rank, seen, ranks))[counts.rank]
    return _ratio(sum_by_request(counts.pair, np.where(examination > 0, seen * at_rank, 0), len(expected)), expected)


def _ratio(one: Floats, other: Floats) -> Floats:
    return np.divide(one, other, out=np.full_like(one, np.nan), where=other > 0)


def _strength(rate: Floats, expected: Floats, squares: Floats, mean: Floats) -> float:
    """Variance of a single impression's click by chance, divided by that of the items' attractiveness.

    The latter is the variance of the rates less that of chance: with examination l and attractiveness a, a click
    has variance l a - (l a)^2. `expected` has the sums of l and `squares` those of l^2.
    """
    certain = squares / expected
    apart = float((expected * (rate - mean) ** 2 - mean + mean**2 * certain).sum())
    if apart <= 0 or expected.sum() <= certain.sum():
        return np.inf
    variance = apart / float(expected.sum() - certain.sum())
    return float((mean - (mean**2 + variance) * certain).mean() / variance)
