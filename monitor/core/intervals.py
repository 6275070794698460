"""95 % intervals for windows whose requests are not independent.

People, queries and news come in waves: buckets of one hour or one day move together, so a window's true spread is
wider than its requests' own. How a window's interval came about is named with it:

`long_run`  a week or more, from the window's own days, in each of which a daily cycle cancels: their long-run variance
            (Newey and West 1987) at a bandwidth near 1.3 times the root of their number (Lazarus, Lewis, Stock and
            Watson 2018), with the quantile for so few of them (Kiefer and Vogelsang 2005). How alike days are takes
            more than a week to tell: where neighbours correlate by .5, a week's covers 84 %, four weeks' 91 %.
`history`   less than that: the sampling variance, plus the variance between windows that was seen before. This is the
            median squared difference of windows whole days and up to a week apart (a spread as of Bickel and Lehmann
            1979), less what sampling explains of it. Whole days leave out the daily cycle, several of them see more
            than what a day hands on to the next, and a median of near differences hardly notices a lasting change.
`sampling`  from the spread between requests alone, where nothing else is known yet: too narrow. Where all requests were
            alike, by the rule of three (Hanley and Lippman-Hand 1983).
`none`      no data, a single request, or requests all alike in a measure without an upper bound.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from monitor.core import buckets as b
from monitor.core.measures import Measure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Interval = tuple[float | None, float | None, str]

DAY = 86_400
REACH = 35 * DAY
"""Seconds of history before a window's end that its interval looks at."""

_WEEK = 7
_FEWEST_WINDOWS = 4
_ALIKE = 1e-12
_CHI_SQUARE_MEDIAN = 0.454936


def interval(measure: Measure, starts: Ints, sums: Floats, width: int, length: int, end: int) -> Interval:
    """(lower, upper, method) of the measure over [end - length, end).

    Args:
        starts: (B,) bucket starts, rising; those before the window are its history, those after are not looked at.
        sums: (B, 9) partials.
        width, length, end: seconds; a bucket divides a day or is made of whole days.
    """
    past = _gapless(starts, sums, width, end - max(REACH, length), end)
    window = past[-(length // width) :]
    merged, everything = window.sum(axis=0), past.sum(axis=0)
    requests = float(_with_value(measure, merged))
    if requests < 2:
        return None, None, "none"
    level = float(b.read_as(measure, merged))
    spread = max(_spread(measure, merged), _spread(measure, everything))
    if spread <= _ALIKE * level**2:
        return _bounded(measure, level, 3 / requests, "sampling") if _is_ratio(measure) else (None, None, "none")
    half = student(float(_with_value(measure, everything)) - 1) * math.sqrt(spread / float(_size(measure, merged)))
    day = max(1, DAY // width)
    number = np.arange(len(window))[::-1] // day
    if len(np.unique(number[window[:, b.REQUESTS] > 0])) >= _WEEK:
        return _bounded(measure, level, max(half, _long_run(measure, window, level, number)), "long_run")
    between, windows = _between(measure, past, spread, length // width, day)
    if windows < _FEWEST_WINDOWS:
        return _bounded(measure, level, half, "sampling")
    return _bounded(measure, level, math.hypot(half, student(windows - 1) * math.sqrt(between)), "history")


def _gapless(starts: Ints, sums: Floats, width: int, since: int, end: int) -> Floats:
    """The partials of every bucket from the first known one after `since` to `end`; zeros for those not read."""
    lo, hi = np.searchsorted(starts, [since, end])
    size = (end - int(starts[lo])) // width if hi > lo else 0
    rows = np.zeros((size, sums.shape[1]))
    rows[size - (end - starts[lo:hi]) // width] = sums[lo:hi]
    return rows


def _is_ratio(measure: Measure) -> bool:
    return measure.spec.unit == "ratio"


def _bounded(measure: Measure, level: float, half: float, method: str) -> Interval:
    bottom, top = (1.0 if measure.spec.unit == "position" else 0.0), (1.0 if _is_ratio(measure) else math.inf)
    return max(level - half, bottom), min(level + half, top), method


def _with_value(measure: Measure, partials: Floats) -> Floats:
    """How many requests the reading rests on, shape (...,)."""
    requests = partials[..., b.REQUESTS]
    every = measure.aggregate == "mean" and measure.empty != "skip"
    return requests if every else requests - partials[..., b.EMPTY]


def _size(measure: Measure, partials: Floats) -> Floats:
    """What the reading divides by, shape (...,)."""
    return b.parts(partials, measure.aggregate, measure.empty)[1]


def _spread(measure: Measure, merged: Floats) -> float:
    """Variance of the reading, times its size, if requests were independent."""
    requests, size = float(_with_value(measure, merged)), float(_size(measure, merged))
    if requests < 2 or size <= 0:
        return 0.0
    level = b.read_as(measure, merged)
    squares = float(b.sampling_variance(merged, measure.aggregate, measure.empty, level))
    return squares / size * requests / (requests - 1)


def _long_run(measure: Measure, window: Floats, level: float, number: Ints) -> float:
    """Half the width of the interval, from `window` (N, 9) and the `number` of each bucket's day.

    With Bartlett's weights, the long-run variance is the mean square of the sums over a bandwidth's length of days.
    """
    over, under = b.parts(window, measure.aggregate, measure.empty)
    days = len(np.unique(number[window[:, b.REQUESTS] > 0]))
    width = round(1.3 * math.sqrt(days))
    daily = np.bincount(number, over - level * under)
    cumulated = np.cumsum(np.concatenate([np.zeros(width), daily, np.zeros(width)]))
    blocks = cumulated[width:] - cumulated[:-width]
    # The quantile is one for many days; n / (n - 1) makes up for their being few.
    variance = float(blocks @ blocks) / width / float(under.sum()) ** 2 * days / (days - 1)
    return bartlett(width / days) * math.sqrt(variance)


def _between(measure: Measure, past: Floats, spread: float, size: int, day: int) -> tuple[float, float]:
    """(variance between windows of `size` buckets beyond sampling, how many apart from each other there were)."""
    ends = range(len(past), size - 1, -day)
    windows = np.array([past[at - size : at].sum(axis=0) for at in ends]).reshape(len(ends), past.shape[1])
    known = _with_value(measure, windows) > 0
    value = np.where(known, b.read_as(measure, windows), np.nan)
    noise = np.divide(spread, _size(measure, windows), out=np.full(len(windows), np.nan), where=known)
    apart = -(-size // day)
    votes = [np.empty(0)]
    for lag in range(apart, max(apart, _WEEK) + 1, apart):
        difference, expected = value[lag:] - value[:-lag], (noise[lag:] + noise[:-lag]) / 2
        # Each pair votes for the variance at which its difference is just the median one of its kind.
        votes.append(difference**2 / 2 / _CHI_SQUARE_MEDIAN - expected)
    vote = np.concatenate(votes)
    vote = vote[np.isfinite(vote)]
    return (max(float(np.median(vote)), 0.0) if len(vote) else 0.0), float(known.sum()) / apart


def student(freedom: float) -> float:
    """The .975 quantile of Student's t; `freedom` below 3 is rounded down to 1 or 2.

    Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5), within .004 from 3 on.

    >>> [round(student(f), 3) for f in (1, 2, 3, 10, 1000)]
    [12.706, 4.303, 3.179, 2.228, 1.962]
    """
    if freedom < 3:
        return 12.706 if freedom < 2 else 4.303
    z, f = 1.959964, freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(t / f ** (i + 1) for i, t in enumerate(terms))


def bartlett(share: float) -> float:
    """The .975 quantile of a mean over its Newey-West error whose bandwidth is `share` of the series.

    Kiefer and Vogelsang (2005), table 1.

    >>> [round(bartlett(s), 2) for s in (0, 1 / 7, 3 / 7)]
    [1.96, 2.39, 3.27]
    """
    return 1.96 + 2.9694 * share + 0.416 * share**2 - 0.5324 * share**3
