"""95 % intervals for windows whose requests are not independent.

Buckets of one hour or day move together, so a window's true spread exceeds that of its requests. The methods:

`long_run`  a week or more: the long-run variance of the window's days (Newey and West 1987), in which the daily cycle
            cancels, at a bandwidth near 1.3 times the root of their number (Lazarus, Lewis, Stock and Watson 2018),
            with the quantile for so few of them (Kiefer and Vogelsang 2005). A week is too short to tell how alike
            days are: where neighbours correlate by .5, a week's interval covers 84 %, four weeks' 91 %.
`history`   shorter: the sampling variance, plus the variance between earlier windows: the median squared difference of
            windows whole days and up to a week apart (a spread as of Bickel and Lehmann 1979), less the part that
            sampling explains. Whole days cancel the daily cycle, several of them see more than a day hands on to the
            next, and the median of near differences hardly notices a lasting change.
`sampling`  no history yet: the spread between requests alone, which is too narrow. If all requests were alike, the rule
            of three (Hanley and Lippman-Hand 1983).
`none`      no data, a single request, or requests all alike in a measure without an upper bound.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from monitor.arrays import Floats, Ints
from monitor.measures.measure import Measure
from monitor.series import partials as b
from monitor.units import DAY

Interval = tuple[float | None, float | None, str]

REACH = 35 * DAY
"""Seconds of history before a window's end that its interval looks at."""

_WEEK = 7
_FEWEST_WINDOWS = 4
_ALIKE = 1e-12
_CHI_SQUARE_MEDIAN = 0.454936


def interval(measure: Measure, starts: Ints, sums: Floats, width: int, length: int, end: int) -> Interval:
    """(lower, upper, method) of the measure over [end - length, end).

    Args:
        starts: (B,) bucket starts, rising; those before the window are its history, later ones are ignored.
        sums: (B, 9) partials.
        width, length, end: seconds; a bucket divides a day or is made of whole days.
    """
    return intervals(measure, starts, sums[:, None], width, length, end)[0]


def intervals(measure: Measure, starts: Ints, sums: Floats, width: int, length: int, end: int) -> list[Interval]:
    """`interval` for S slices at once; `sums` is (B, S, 9)."""
    return [found for found, _ in with_basis(measure, starts, sums, width, length, end)]


def with_basis(
    measure: Measure, starts: Ints, sums: Floats, width: int, length: int, end: int
) -> list[tuple[Interval, int]]:
    """`intervals`, each with its basis: the number of the window's days, of windows before it, or of requests."""
    past, day, size = (
        _gapless(starts, sums, width, end - max(REACH, length), end),
        max(1, DAY // width),
        length // width,
    )
    daily = _by_day(past, day)
    days = _by_day(past[-size:], day) if size % day else daily[-(size // day) :]
    merged, everything = days.sum(axis=0), daily.sum(axis=0)
    level = b.read_as(measure, merged)
    spread = np.maximum(_spread(measure, merged), _spread(measure, everything))
    own = (days[..., b.REQUESTS] > 0).sum(axis=0)
    is_long = own >= _WEEK
    long_run = _long_run(measure, days, level) if is_long.any() else np.zeros(len(level))
    between, windows = np.zeros(len(level)), np.zeros(len(level))
    if not is_long.all():
        between, windows = _between(measure, _windows(past, daily, size, day), spread, -(-size // day))
    seen = (_with_value(measure, merged), level, spread, _with_value(measure, everything), _size(measure, merged))
    columns = (*seen, is_long, long_run, between, windows)
    found = [_told(measure, *row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    basis = {"long_run": own, "history": windows.astype(np.int64), "sampling": seen[0].astype(np.int64)}
    return [(one, int(basis[one[2]][i]) if one[2] in basis else 0) for i, one in enumerate(found)]


def _told(
    measure: Measure,
    requests: float,
    level: float,
    spread: float,
    everybody: float,
    size: float,
    is_long: bool,
    long_run: float,
    between: float,
    windows: float,
) -> Interval:
    if requests < 2:
        return None, None, "none"
    if spread <= _ALIKE * level**2:
        return _bounded(measure, level, 3 / requests, "sampling") if _is_ratio(measure) else (None, None, "none")
    half = student(everybody - 1) * math.sqrt(spread / size)
    if is_long:
        return _bounded(measure, level, max(half, long_run), "long_run")
    if windows < _FEWEST_WINDOWS:
        return _bounded(measure, level, half, "sampling")
    return _bounded(measure, level, math.hypot(half, student(windows - 1) * math.sqrt(between)), "history")


def _gapless(starts: Ints, sums: Floats, width: int, since: int, end: int) -> Floats:
    """Partials of every bucket from the first known one after `since` to `end`; zeros for unread ones."""
    lo, hi = np.searchsorted(starts, [since, end])
    size = (end - int(starts[lo])) // width if hi > lo else 0
    if size == hi - lo:
        return sums[lo:hi]
    rows = np.zeros((size, *sums.shape[1:]))
    rows[size - (end - starts[lo:hi]) // width] = sums[lo:hi]
    return rows


def _by_day(rows: Floats, day: int) -> Floats:
    """(D, S, 9) sums of `day` buckets each, counted from the end; the first may have fewer."""
    head = len(rows) % day
    whole: Floats = rows[head:].reshape(len(rows) // day, day, *rows.shape[1:]).sum(axis=1)
    return np.concatenate([rows[:head].sum(axis=0, keepdims=True), whole]) if head else whole


def _is_ratio(measure: Measure) -> bool:
    return measure.spec.unit == "ratio"


def _bounded(measure: Measure, level: float, half: float, method: str) -> Interval:
    bottom, top = (1.0 if measure.spec.unit == "position" else 0.0), (1.0 if _is_ratio(measure) else math.inf)
    return max(level - half, bottom), min(level + half, top), method


def _with_value(measure: Measure, partials: Floats) -> Floats:
    """Number of requests in the reading, shape (...,)."""
    requests = partials[..., b.REQUESTS]
    every = measure.aggregate == "mean" and measure.empty != "skip"
    return requests if every else requests - partials[..., b.EMPTY]


def _size(measure: Measure, partials: Floats) -> Floats:
    return b.parts(partials, measure.aggregate, measure.empty)[1]


def _spread(measure: Measure, merged: Floats) -> Floats:
    """(S,) variance of the reading, times its size, if requests were independent."""
    requests, size = _with_value(measure, merged), _size(measure, merged)
    known = (requests >= 2) & (size > 0)
    squares = b.sampling_variance(merged, measure.aggregate, measure.empty, b.read_as(measure, merged))
    found: Floats = np.divide(squares * requests, size * (requests - 1), out=np.zeros(len(size)), where=known)
    return found


def _long_run(measure: Measure, window: Floats, level: Floats) -> Floats:
    """(S,) half-width from the window's days (D, S, 9), nan without one: with Bartlett weights, the long-run variance
    is the mean square of the sums over a bandwidth's length of days."""
    over, under = b.parts(window, measure.aggregate, measure.empty)
    days, found = (window[..., b.REQUESTS] > 0).sum(axis=0), np.full(len(level), np.nan)
    for number in sorted(set(days[days >= _WEEK].tolist())):
        of, width = days == number, round(1.3 * math.sqrt(number))
        beyond = np.zeros((width, int(of.sum())))
        cumulated = np.cumsum(np.concatenate([beyond, over[:, of] - level[of] * under[:, of], beyond]), axis=0)
        blocks = cumulated[width:] - cumulated[:-width]
        # The quantile assumes many days; n / (n - 1) corrects for few.
        variance = (blocks**2).sum(axis=0) / width / under[:, of].sum(axis=0) ** 2 * number / (number - 1)
        found[of] = bartlett(width / number) * np.sqrt(variance)
    return found


def _windows(past: Floats, daily: Floats, size: int, day: int) -> Floats:
    """(N, S, 9) windows of `size` buckets ending with the past and each whole day before, newest first."""
    if size % day == 0:
        whole = daily[len(daily) - len(past) // day :]
        found = sliding_window_view(whole, size // day, axis=0) if len(whole) >= size // day else np.empty((0, 0))
        return found.sum(axis=-1)[::-1] if found.size else np.zeros((0, *past.shape[1:]))
    ends = range(len(past), size - 1, -day)
    return np.array([past[at - size : at].sum(axis=0) for at in ends]).reshape(len(ends), *past.shape[1:])


def _between(measure: Measure, windows: Floats, spread: Floats, apart: int) -> tuple[Floats, Floats]:
    """((S,) variance between windows beyond sampling, (S,) number of windows `apart` days from each other)."""
    known = _with_value(measure, windows) > 0
    value = np.where(known, b.read_as(measure, windows), np.nan)
    noise = np.divide(spread, _size(measure, windows), out=np.full(known.shape, np.nan), where=known)
    votes = [np.empty((0, len(spread)))]
    for lag in range(apart, max(apart, _WEEK) + 1, apart):
        difference, expected = value[lag:] - value[:-lag], (noise[lag:] + noise[:-lag]) / 2
        # Each pair votes for the variance at which its difference is the median.
        votes.append(difference**2 / 2 / _CHI_SQUARE_MEDIAN - expected)
    return np.maximum(_medians(np.concatenate(votes)), 0.0), known.sum(axis=0) / apart


def _medians(votes: Floats) -> Floats:
    """(S,) column medians without nan; 0 for empty columns."""
    count = np.isfinite(votes).sum(axis=0)
    ordered = np.sort(np.where(np.isfinite(votes), votes, np.inf), axis=0)
    ordered = np.concatenate([ordered, np.zeros((1, votes.shape[1]))])
    at = np.arange(votes.shape[1])
    lower, upper = ordered[np.maximum(count - 1, 0) // 2, at], ordered[count // 2, at]
    return np.where(count > 0, (lower + upper) / 2, 0.0)


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
