"""95 % intervals for windows whose requests are not independent.

People, queries and news come in waves: buckets of one hour or one day move together, so a window's true spread is
wider than its requests' own. How a window's interval came about is named with it:

`long_run`  from the window's own buckets, where they are many against a day: the long-run variance of Newey and West
            (1987) with Bartlett weights over a day, at which a daily cycle cancels.
`history`   the sampling variance, plus the variance between windows that was seen before: half the mean square of how
            much windows of this length differ from those a day (or a length) before (von Neumann 1941), less what
            sampling explains of it. Differences leave out the daily cycle, and a lasting change counts once only.
`sampling`  from the spread between requests alone, where nothing else is known yet. It is too narrow.
`none`      no data, or a single request.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from monitor.core import buckets as b
from monitor.core.measures import Measure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY = 86_400
REACH = 35 * DAY
"""Seconds of history before a window that its interval looks at."""

_FEWEST_DIFFERENCES = 3
_LONG = 7


def interval(
    measure: Measure, starts: Ints, sums: Floats, width: int, length: int, end: int
) -> tuple[float | None, float | None, str]:
    """(lower, upper, method) of the measure over [end - length, end).

    Args:
        starts: (B,) bucket starts, rising; those before the window are its history, those after are not looked at.
        sums: (B, 9) partials.
        width, length, end: seconds.
    """
    lo, hi = np.searchsorted(starts, [end - length, end])
    merged = sums[lo:hi].sum(axis=0)
    level = float(b.read_as(measure, merged))
    under = b.parts(merged, measure.aggregate, measure.empty)[1]
    if not np.isfinite(level) or merged[b.REQUESTS] < 2:
        return None, None, "none"
    sampling = float(_variance(measure, merged)) * merged[b.REQUESTS] / (merged[b.REQUESTS] - 1)
    lags = max(1, DAY // width)
    if hi - lo >= _LONG * lags and (hi - lo) * width == length:
        variance = _long_run(measure, sums[lo:hi], level, lags) / float(under) ** 2
        method, freedom = "long_run", 1.5 * (hi - lo) / lags
    else:
        extra, pairs = _between(measure, starts[:hi], sums[:hi], width, length, end)
        method = "history" if pairs >= _FEWEST_DIFFERENCES else "sampling"
        sampling = max(sampling, float(_variance(measure, sums[:hi].sum(axis=0)) * _size(measure, sums[:hi]) / under))
        variance, freedom = sampling + (extra if method == "history" else 0.0), max(pairs, 1.0)
        if method == "sampling":
            freedom = float(merged[b.REQUESTS]) - 1
    half = student(freedom) * math.sqrt(max(variance, sampling))
    return _clipped(measure, level, half, method)


def _clipped(measure: Measure, level: float, half: float, method: str) -> tuple[float, float, str]:
    top = 1.0 if measure.spec.unit == "ratio" else math.inf
    return float(max(level - half, 0.0)), float(min(level + half, top)), method


def _variance(measure: Measure, merged: Floats) -> Floats:
    """Sampling variance of the value that partials read as, shape (...,); nan where there is no value."""
    level = b.read_as(measure, merged)
    under = b.parts(merged, measure.aggregate, measure.empty)[1]
    spread = b.sampling_variance(merged, measure.aggregate, measure.empty, np.nan_to_num(level))
    variance: Floats = np.divide(spread, under**2, out=np.full(level.shape, np.nan), where=under > 0)
    return variance


def _size(measure: Measure, sums: Floats) -> float:
    return float(b.parts(sums, measure.aggregate, measure.empty)[1].sum())


def _long_run(measure: Measure, sums: Floats, level: float, lags: int) -> float:
    """Variance of the sum of residuals over the buckets of `sums`, (B, 9)."""
    over, under = b.parts(sums, measure.aggregate, measure.empty)
    residual = over - level * under
    total = float(residual @ residual)
    for lag in range(1, lags):
        total += 2 * (1 - lag / lags) * float(residual[lag:] @ residual[:-lag])
    return total


def _between(
    measure: Measure, starts: Ints, sums: Floats, width: int, length: int, end: int
) -> tuple[float, float]:
    """(variance between windows beyond sampling, how many independent differences it rests on)."""
    since = max(int(starts[0]), end - REACH)
    lag = max(length, DAY)
    size = (end - since) // width
    grid = np.zeros((size, sums.shape[1]))
    at = (starts - (end - size * width)) // width
    grid[at[at >= 0]] = sums[at >= 0]
    windows = _rolling(grid, length // width)
    value, noise = b.read_as(measure, windows), _variance(measure, windows)
    step = lag // width
    if len(value) <= step:
        return 0.0, 0.0
    change = (value[step:] - value[:-step]) ** 2 / 2
    expected = (noise[step:] + noise[:-step]) / 2
    known = np.isfinite(change) & np.isfinite(expected)
    pairs = known.sum() * width / lag
    if not known.any():
        return 0.0, 0.0
    excess, expected = change[known] - expected[known], expected[known]
    rough = max(float(excess.mean()), 0.0)
    # Thin windows say little about what is beyond their own noise; but a lucky one without any does not say it all.
    weight = 1 / (expected + expected.mean() + rough + 1e-12) ** 2
    return max(float(weight @ excess / weight.sum()), 0.0), float(pairs)


def _rolling(grid: Floats, size: int) -> Floats:
    """Sums over every `size` neighbouring rows, shape (len - size + 1, ...)."""
    cumulated = np.concatenate([np.zeros((1, grid.shape[1])), np.cumsum(grid, axis=0)])
    return cumulated[size:] - cumulated[:-size] if len(cumulated) > size else cumulated[:0]


def student(freedom: float) -> float:
    """The .975 quantile of Student's t (Cornish-Fisher expansion; Abramowitz and Stegun 26.7.5; exact below 3).

    >>> [round(student(f), 2) for f in (1, 2, 3, 10, 1000)]
    [12.71, 4.3, 3.17, 2.23, 1.96]
    """
    if freedom < 1.5:
        return 12.706
    if freedom < 2.5:
        return 4.303
    z, f = 1.959964, freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(t / f ** (i + 1) for i, t in enumerate(terms))
