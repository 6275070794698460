"""How far off a mean of requests, or the difference of two, may be: what hours bring, and what requests differ by.

Requests of one hour move together, so a mean's error is taken from the spread of its hours. Of few hours that says too
little, and of a single one nothing: all of it is off by the same, and the sum of what its requests are off the mean is
none. So no interval is taken to be narrower than what single requests alone would make it, with what hours bring
too, as all of both versions' hours show it: the variance between hours, by moments as DerSimonian and Laird (1986)
have it between trials. In an hour in which both versions served, they share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.series.intervals import student

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PRIOR = 10.0
"""As so many requests the spread of both versions counts for that of each: of a few alike ones it is not none."""


@dataclass(frozen=True)
class WeightedMean:
    """n requests, or fewer, of one version, of which a weighted mean is made.

    Attributes:
        weight: (n,) of each in it; they add up to 1, or to less where the mean is over some slices of several.
        off: (n,) by how much each one's value is off the mean of its slice.
        hour: (n,) in which it was served.
        means: how many means were taken from the requests.
    """

    weight: Floats
    off: Floats
    hour: Ints
    means: int = 1

    @property
    def freedom(self) -> int:
        """Requests beyond those that the means took."""
        return len(self.off) - self.means

    @property
    def squares(self) -> float:
        """Of what all are off."""
        return float((self.off**2).sum())


def half_width(one: WeightedMean, other: WeightedMean | None = None) -> float | None:
    """Half the 95 % interval of a mean, or of the difference of two; None where there are too few requests to tell.

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
    # Welch and Satterthwaite: how many degrees of freedom the sum of such variances has.
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
    """(H,) weight of each hour, what it is off by, and the squares of that by single requests."""
    product = part.weight * part.off
    weight, off, squares = (np.bincount(hour, x, hours).astype(float) for x in (part.weight, product, product**2))
    return weight, off, squares


def _between_hours(parts: list[tuple[Floats, Floats, Floats]]) -> tuple[float, int]:
    """(variance between hours beyond what requests differ by, degrees of freedom that tell it)."""
    seen, least, free = 0.0, 0.0, 0
    for weight, off, squares in parts:
        whole = float(weight.sum())
        share = weight / max(whole, 1e-12)
        alone = squares * (1 - 2 * share) + share**2 * squares.sum()
        seen += float((off**2 - alone).sum())
        least += whole**2 * float((share**2 * (1 - 2 * share + (share**2).sum())).sum())
        free += int((weight > 0).sum()) - 1
    return (max(seen / least, 0.0) if least > 1e-12 else 0.0), free
