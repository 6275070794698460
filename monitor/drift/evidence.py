"""Evidence that a unit's mean is lower than tolerated: a one-sided e-process on partials, one factor a step.

For values y in [0, 1] with mean at least m, 1 + lambda (m - y) has an expectation of at most one, and so has what is
below it: ln(1 + x) >= x - kappa x^2 for x >= -c, kappa = (-ln(1 - c) - c) / c^2 (Fan, Grama and Liu, 2015, lemma 4.1).
So sums and sums of squares are enough. Added up from every start (Shiryaev, 1963; Roberts, 1966; e-detectors: Shin,
Ramdas and Rinaldo, 2022), the mean time to a false alarm is the threshold, whatever the values' distribution.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from monitor.drift.frozen import frozen
from monitor.drift.noise import Noise, units
from monitor.drift.seasons import LEAST_VARIANCE
from monitor.drift.series import Floats, some_of

STAKES = np.array([0.5, 1.0, 2.0])
"""Drops that are bet on, in standard deviations of a step's mean."""
LEAST_HOURS, MOST_HOURS = 4.0, 7.0
"""Hours that the strongest evidence takes to an alarm, so that a short blip raises none: the least where chance makes
most of what a step moves by; the most where it makes hardly any, and every blip is seen."""
BEYOND = 7.4
"""How many times the threshold evidence may grow to."""


class Threshold(NamedTuple):
    """What the evidence of U units is held against, and what is reckoned with it; not to be written to.

    Attributes:
        each: (U,) mean number of steps to a false alarm.
        half: (U,) with half its logarithm.
        logarithm: (U, 1)
        most: (U, 3) as far as evidence may grow, the same for each stake.
        most_logarithm: (U,) of that.
    """

    each: Floats
    half: Floats
    logarithm: Floats
    most: Floats
    most_logarithm: Floats

    @classmethod
    def of(cls, each: Floats) -> Threshold:
        """Of (U,) steps."""
        most = each * BEYOND
        of_stakes = np.repeat(most[:, None], len(STAKES), axis=1)
        found = cls(each, np.sqrt(each), np.log(each)[:, None], of_stakes, np.log(most))
        for part in found:
            part.flags.writeable = False
        return found


@frozen
class SliceSums:
    """T steps by S slices, of those slices alone that have a baseline; zeros elsewhere.

    Attributes:
        requests, total, squares: (T, S)
        mean: (T, S) expected mean of a request.
        variance: (S,), or (1, S), of a request's value.
        of_late: (S,), or (1, S), the same, or more where it has grown since.
        doubt: (T,), or (1,) of every step, what overall tolerates more than usual, relative.
    """

    requests: Floats
    total: Floats
    squares: Floats
    mean: Floats
    variance: Floats
    of_late: Floats
    doubt: Floats = field(default_factory=lambda: np.zeros(1))

    @cached_property
    def whole(self) -> UnitSums:
        """The same by unit."""
        n, total, mean = self.requests, self.total, self.mean
        expected = n * mean
        every = [n, total, expected, n * self.variance, n * self.of_late, expected * mean, total * mean, self.squares]
        found = units(np.array(every))
        requests, total, expected, within, chance = found[:5]
        size = np.maximum(requests, 1.0)
        level, variance = expected / size, within / size
        level[:, 1:], variance[:, 1:] = mean, self.variance
        variance = np.maximum(variance, LEAST_VARIANCE)
        sums = found[:3].transpose(1, 2, 0)
        return UnitSums(sums, requests, total, expected, size, level, variance, chance, found[5:])


class UnitSums(NamedTuple):
    """T steps by U units.

    Attributes:
        sums: (T, U, 3) requests, observed and expected sums.
        requests, total, expected: (T, U) each of these.
        size: (T, U) requests, at least one.
        level, variance: (T, U) expected mean of a request, and variance of its value.
        chance: (T, U) sampling variance of `total`, by what the requests' variance is of late.
        products: (3, T, U) sums over the requests of the squared expected mean, of it times the value, of the squared
            value.
    """

    sums: Floats
    requests: Floats
    total: Floats
    expected: Floats
    size: Floats
    level: Floats
    variance: Floats
    chance: Floats
    products: Floats


def factors(sums: SliceSums, noise: Noise, threshold: Threshold, hours: float) -> Floats:
    """(T, U, 3) logarithm of each step's factor, of so many hours, for each stake; 0 where there is no request."""
    whole = sums.whole
    short, squared, lowest = _shortfall(sums, noise)
    bet, kappa, tempered = odds(whole.size, whole.level, whole.variance, lowest, noise)
    found = tempered * (bet * short[..., None] - kappa * bet**2 * squared[..., None])
    capped: Floats = np.minimum(found, most(threshold, tempered, hours))
    return capped


def most(threshold: Threshold, tempered: Floats, hours: float) -> Floats:
    """(..., U, 1) logarithm of the largest factor of a step of so many hours.

    Args:
        tempered: (..., U, 1) share of chance in what a step moves by.
    """
    lasting = MOST_HOURS - (MOST_HOURS - LEAST_HOURS) * tempered
    share = hours / lasting
    found: Floats = threshold.logarithm * (share if hours <= LEAST_HOURS else np.minimum(share, 1.0))
    return found


def odds(size: Floats, level: Floats, variance: Floats, lowest: Floats, noise: Noise) -> tuple[Floats, Floats, Floats]:
    """((..., U, 3) lambda of each stake, (..., U, 3) kappa, (..., U, 1) exponent that tempers for common noise).

    Args:
        size, level, variance: (..., U) of a step's requests: how many, mean and variance of their values.
        lowest: (..., U) least tolerated mean.
    """
    sampling = variance / size
    whole = sampling + noise.common * level**2
    stake = STAKES * np.sqrt(whole)[..., None]
    bet = np.minimum(stake / (variance[..., None] + stake**2), 0.9)
    worst = np.minimum(bet * (lowest - 1)[..., None], -1e-3)
    kappa = (worst - np.log1p(worst)) / worst**2
    return bet, kappa, (sampling / whole)[..., None]


def _shortfall(sums: SliceSums, noise: Noise) -> tuple[Floats, Floats, Floats]:
    """((T, U) sum of m - y, (T, U) sum of (m - y)^2, (T, U) least m) for the mean m that is still tolerated.

    Of overall that is each slice's expected mean less what overall tolerates.
    """
    whole = sums.whole
    by_mean, of_mean, squares = whole.products
    share = noise.still
    if some_of(sums.doubt):
        share = np.repeat(share, len(sums.doubt), axis=0)
        share[:, 0] -= sums.doubt
    short = share * whole.expected - whole.total
    squared = share * (share * by_mean - 2 * of_mean) + squares
    lowest = share * whole.level
    lowest[:, 0] = share[:, 0] * np.minimum.reduce(np.where(sums.requests > 0, sums.mean, 1.0), axis=1)
    return short, squared, lowest


def grow(evidence: Floats, factor: Floats, threshold: Threshold) -> Floats:
    """(M + 1) x factor for each unit and stake, (U, 3)."""
    found: Floats = np.minimum((evidence + 1.0) * factor, threshold.most)
    return found


def score(evidence: Floats) -> Floats:
    """(U,) mean over the stakes: an e-detector again."""
    found: Floats = np.add.reduce(evidence, axis=-1) / len(STAKES)
    return found
