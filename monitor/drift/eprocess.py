"""Evidence that a unit's mean is lower than tolerated: a one-sided e-process on partials, one factor per step.
Summed over all starts (Shiryaev, 1963; Roberts, 1966; e-detectors: Shin, Ramdas and Rinaldo, 2022), its mean time
to a false alarm is the threshold, whatever the values' distribution.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from monitor.arrays import Floats
from monitor.drift import constants as c
from monitor.drift.noise import Noise
from monitor.drift.series import frozen, some_of, units
from monitor.drift.settings import EvidenceThreshold


@frozen
class SliceSums:
    """T steps by S slices; zeros for slices without a baseline.

    Attributes:
        mean: (T, S) expected mean of a request; `requests`, `total` and `squares` are (T, S) too.
        variance, recent_variance: (S,) or (1, S), of a request's value; the recent one is at least as large.
        doubt: (T,), or (1,) for all steps: relative extra tolerance of overall.
    """

    requests: Floats
    total: Floats
    squares: Floats
    mean: Floats
    variance: Floats
    recent_variance: Floats
    doubt: Floats = field(default_factory=lambda: np.zeros(1))

    @cached_property
    def whole(self) -> UnitSums:
        """These sums by unit: overall, then the slices."""
        n, total, mean = self.requests, self.total, self.mean
        expected = n * mean
        every = [
            n,
            total,
            expected,
            n * self.variance,
            n * self.recent_variance,
            expected * mean,
            total * mean,
            self.squares,
        ]
        found = units(np.array(every))
        requests, total, expected, within, chance = found[:5]
        size = np.maximum(requests, 1.0)
        level, variance = expected / size, within / size
        level[:, 1:], variance[:, 1:] = mean, self.variance
        variance = np.maximum(variance, c.LEAST_VARIANCE)
        return UnitSums(requests, total, expected, size, level, variance, chance, found[5:])


class UnitSums(NamedTuple):
    """T steps by U units, (T, U) each.

    Attributes:
        requests, total, expected: observed and expected sums.
        size: requests, at least one.
        level, variance: expected mean and variance of a request's value.
        chance: sampling variance of `total`, by the recent variance of the requests.
        products: (3, T, U) sums over requests of: expected mean squared, expected mean times value, value squared.
    """

    requests: Floats
    total: Floats
    expected: Floats
    size: Floats
    level: Floats
    variance: Floats
    chance: Floats
    products: Floats


def factors(sums: SliceSums, noise: Noise, threshold: EvidenceThreshold, hours: float) -> Floats:
    """(T, U, 3) logarithm of the factor of each step of `hours` hours, per stake; 0 without a request."""
    whole = sums.whole
    short, squared, lowest = _shortfall(sums, noise)
    bet, kappa, tempered = odds(whole.size, whole.level, whole.variance, lowest, noise)
    found = tempered * (bet * short[..., None] - kappa * bet**2 * squared[..., None])
    capped: Floats = np.minimum(found, most(threshold, tempered, hours))
    return capped


def most(threshold: EvidenceThreshold, tempered: Floats, hours: float) -> Floats:
    """(..., U, 1) logarithm of a step's largest factor; `tempered` is the share of the variance that is sampling."""
    lasting = c.MOST_ALARM_HOURS - (c.MOST_ALARM_HOURS - c.LEAST_ALARM_HOURS) * tempered
    share = hours / lasting
    return threshold.logarithm * (share if hours <= c.LEAST_ALARM_HOURS else np.minimum(share, 1.0))


def odds(size: Floats, level: Floats, variance: Floats, lowest: Floats, noise: Noise) -> tuple[Floats, Floats, Floats]:
    """((..., U, 3) lambda of each stake, (..., U, 3) kappa, (..., U, 1) exponent that tempers for common noise).

    By (..., U) number of requests, mean and variance of their values, and least tolerated mean m. For y in [0, 1],
    1 + lambda (m - y) has expectation at most one, and so has its lower bound by ln(1 + x) >= x - kappa x^2 for
    x >= -c, kappa = (-ln(1 - c) - c) / c^2 (Fan, Grama and Liu, 2015, lemma 4.1): sums and squares are enough.
    """
    sampling = variance / size
    whole = sampling + noise.common * level**2
    stake = c.STAKES * np.sqrt(whole)[..., None]
    bet = np.minimum(stake / (variance[..., None] + stake**2), c.NEARLY_ALL)
    worst = np.minimum(bet * (lowest - 1)[..., None], -c.LEAST_BET)
    kappa = (worst - np.log1p(worst)) / worst**2
    return bet, kappa, (sampling / whole)[..., None]


def _shortfall(sums: SliceSums, noise: Noise) -> tuple[Floats, Floats, Floats]:
    """(T, U) sums of m - y and of (m - y)^2, and least m: the lowest tolerated mean, for overall by slice."""
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


def grow(evidence: Floats, factor: Floats, threshold: EvidenceThreshold) -> Floats:
    """(U, 3) evidence after one more step: (M + 1) x factor, capped."""
    return np.minimum((evidence + 1.0) * factor, threshold.most)


def score(evidence: Floats) -> Floats:
    """(U,) mean over the stakes, which is an e-detector too."""
    return np.add.reduce(evidence, axis=-1) / len(c.STAKES)
