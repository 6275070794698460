"""Error of a mean of requests, or of a difference of two, from the spread between hours and between requests.

Requests of one hour move together, so a mean's error comes from the spread of its hours. Few hours say too little, and
a single one nothing: its deviations from the mean sum to zero. So no interval is narrower than single requests alone
would make it, plus the variance between hours that both versions' hours show, by moments as in DerSimonian and Laird
(1986). In an hour in which both versions served, they share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.series.intervals import student

PRIOR = 10.0
"""Prior requests: both versions' spread counts as this many for each, so a few identical requests have some spread."""


@dataclass(frozen=True)
class WeightedMean:
    """n requests, or fewer, of one version, of which a weighted mean is made.

    Attributes:
        weight: (n,) of each request; they sum to 1, or to less if the mean covers some of several slices.
        off: (n,) deviation of each value from its slice's mean.
        hour: (n,) in which it was served.
        means: number of means estimated from the requests.
    """

    weight: Floats
    off: Floats
    hour: Ints
    means: int = 1

    @property
    def freedom(self) -> int:
        """Requests minus estimated means."""
        return len(self.off) - self.means

    @property
    def squares(self) -> float:
        """Sum of squared deviations."""
        return float((self.off**2).sum())


def half_width(one: WeightedMean, other: WeightedMean | None = None) -> float | None:
    """Half the 95 % interval of a mean, or of the difference of two; None with too few requests.

    >>> hours = np.repeat(np.arange(50), 2)
    >>> alike = WeightedMean(np.full(100, 0.01), np.tile([0.1, -0.1], 50), hours)
    >>> round(half_width(alike), 3)
    0.02
    >>> few = WeightedMean(np.full(4, 0.25), np.array([0.1, -0.1, 0.1, -0.1]), np.zeros(4, int))
    >>> [round(half_width(alike, few), 2), half_width(WeightedMean(np.ones(1), np.zeros(1), np.zeros(1, int)))]
    [0.11, None]
    """
    parts = [one] if other is None else [one, other]
    free = sum(part.freedom for part in parts)
    if free < 1:
        return None
    common = sum(part.squares for part in parts) / free
    noise = [_noise(part, common) for part in parts]
    hours, number = np.unique(np.concatenate([part.hour for part in parts]), return_inverse=True)
    at = np.split(number, [len(one.hour)])
    by_hour = [_by_hour(part, where, len(hours)) for part, where in zip(parts, at, strict=False)]
    between, cells = _between_hours(by_hour)
    weights = by_hour[0][0] - (0.0 if other is None else by_hour[1][0])
    waves = between * float((weights**2).sum())
    whole = sum(noise) + waves
    # Degrees of freedom of the summed variances (Welch and Satterthwaite).
    shares = [(n, part.freedom + PRIOR) for n, part in zip(noise, parts, strict=True)] + [(waves, max(cells, 1))]
    freedom = whole**2 / sum(n**2 / f for n, f in shares) if whole > 0 else 1.0
    found = student(max(freedom, 1.0)) * math.sqrt(whole)
    sums = by_hour[0][1] - (0.0 if other is None else by_hour[1][1])
    if (size := len(hours)) > 1:
        found = max(found, student(size - 1) * math.sqrt(float((sums**2).sum()) * size / (size - 1)))
    return found


def _noise(part: WeightedMean, common: float) -> float:
    """Variance of a part's mean if requests were independent."""
    own = float(((part.weight * part.off) ** 2).sum()) * len(part.off) / max(part.freedom, 1)
    share = max(part.freedom, 0) / (max(part.freedom, 0) + PRIOR)
    return share * own + (1 - share) * common * float((part.weight**2).sum())


def _by_hour(part: WeightedMean, hour: Ints, hours: int) -> tuple[Floats, Floats, Floats]:
    """(H,) weight of each hour, its deviation, and the squared deviations of its requests."""
    product = part.weight * part.off
    weight, off, squares = (np.bincount(hour, x, hours).astype(float) for x in (part.weight, product, product**2))
    return weight, off, squares


def _between_hours(parts: list[tuple[Floats, Floats, Floats]]) -> tuple[float, int]:
    """(variance between hours beyond that of requests, its degrees of freedom)."""
    seen, least, free = 0.0, 0.0, 0
    for weight, off, squares in parts:
        whole = float(weight.sum())
        share = weight / max(whole, 1e-12)
        alone = squares * (1 - 2 * share) + share**2 * squares.sum()
        seen += float((off**2 - alone).sum())
        least += whole**2 * float((share**2 * (1 - 2 * share + (share**2).sum())).sum())
        free += int((weight > 0).sum()) - 1
    return (max(seen / least, 0.0) if least > 1e-12 else 0.0), free
