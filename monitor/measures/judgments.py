"""How much people want each item of a query, by clicks over expected clicks: judgments that nobody has to make.

An item's clicks by those that examination expects of the ranks where it was shown (Zhang and Jones 2007, "Comparing
click logs and editorial labels for training query rewriting") are its clicks per look. Few looks are mostly chance, so
the fewer they are, the nearer a value is drawn to the mean of all: empirical Bayes, whose prior is taken from the
counts by moments (Marshall 1991, "Mapping disease and mortality rates using empirical Bayes estimators").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.measures.examination import ShownCounts
from monitor.measures.kernels import sum_by_request


@dataclass(frozen=True)
class Wishes:
    """Clicks per look of each (query, item), in the order of their numbers in `ShownCounts`.

    Attributes:
        value: (P,) drawn to `mean`; nan for those not shown within the depth.
        mean: of all of them: clicks by looks.
        strength: looks that the mean counts for; inf where the items do not differ by more than chance.
    """

    value: Floats
    mean: float
    strength: float

    def grades(self, highest: int) -> Ints:
        """(P,) whole grades from 0 to that of the most wanted item, in proportion; -1 where there is none."""
        most = np.nanmax(self.value, initial=0)
        return np.nan_to_num(np.rint(highest * self.value / (most or 1)), nan=-1).astype(np.int64)


def judge(counts: ShownCounts, looks: Floats, prior: float | None = None) -> Wishes:
    """The clicks per look.

    Args:
        looks: (n,) chance of a look at each of the `counts`; 0 leaves it out.
        prior: looks that the mean counts for; by default as many as the counts themselves say.

    Raises:
        ValueError: nothing was clicked where people look.
    """
    size = len(counts.names)
    clicks = sum_by_request(counts.pair, counts.clicked * (looks > 0), size)
    expected = sum_by_request(counts.pair, counts.shown * looks, size)
    if not clicks.sum():
        raise ValueError("nothing was clicked at these ranks, so clicks say nothing about any item")
    mean = float(clicks.sum() / expected.sum())
    rate = np.divide(clicks, expected, out=np.full(size, np.nan), where=expected > 0)
    squares = sum_by_request(counts.pair, counts.shown * looks**2, size)
    strength = _strength(rate, expected, squares, mean) if prior is None else prior
    kept_of_it = np.divide(expected, expected + strength, out=np.zeros(size), where=expected > 0)
    most = 1 / looks.max()  # a click for each request
    return Wishes(np.minimum(mean + kept_of_it * (rate - mean), most), mean, strength)


def _strength(rate: Floats, expected: Floats, squares: Floats, mean: float) -> float:
    """Variance that chance gives a look's click by that of the wishes: what the rates are apart by, less chance.

    Where l look, an item of wish w is clicked or not, of variance l w - (l w)^2; `expected` has the sums of l and
    `squares` those of l^2.
    """
    shown = expected > 0
    certain, size = float((squares[shown] / expected[shown]).sum()), np.count_nonzero(shown)
    apart = float(np.nansum(expected * (rate - mean) ** 2)) - mean * size + mean**2 * certain
    if apart <= 0 or expected.sum() <= certain:
        return np.inf
    variance = apart / (expected.sum() - certain)
    return float((mean - (mean**2 + variance) * certain / size) / variance)
