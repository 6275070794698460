"""How much worse a version is than the others, from stored sums by slice and by version: none are stored for both
together, but a version that serves a share of a slice has that share of its requests in every hour.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL
from monitor.units import WEEK

CLEARLY = 6.0
"""Least F statistic of shares by slice against one overall share (explained variance per share over residual)."""
LEAST_HOURS = 6
"""Hours needed beyond the number of slices to fit their shares."""
ROUNDS = 500
EDGE = 1e-3
"""A share this near to 0 or 1 is exactly that."""

ALONE = 0.1
"""Least share of a version's requests in doubt between it and others; below it, the version serves alone."""
LEAST_REQUESTS = 30
"""Of a version: with fewer, a mean is not near enough to normal for its interval."""
MOST_WEEKS = 4
LEAST_KNOWN = 0.5
"""Least share of a version's requests in slices that had requests in the weeks before."""
IN_WAVES = 2.0
"""Factor on the variance of independent requests, because people and queries cluster in time."""


@dataclass(frozen=True)
class VersionEffect:
    """A version's mean in what is compared, its difference from the others' and the standard error.

    `dimension`: whose slices were compared; empty if all requests are treated alike. `is_before`: compared with the
    weeks before, since the version alone serves its slices.
    """

    value: float
    difference: float
    error: float
    dimension: str
    is_before: bool

    @property
    def others(self) -> float:
        """The others' mean."""
        return self.value - self.difference

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference."""
        return self.difference - 1.96 * self.error, self.difference + 1.96 * self.error


def version_effect(
    history: History, key: SliceKey, by: str, span: tuple[int, int], began: int, least: float = LEAST_REQUESTS
) -> VersionEffect | None:
    """The effect of a version in [since, until), within the slices of dimension `by`, if any; None if it is too thin.

    `began`: seconds, when neither the version served nor anything had fallen. `least`: requests below which it is too
    thin. With p the version's share of each slice in each hour, and T and n sums and numbers by slice and version, the
    difference is `(T_v - sum p T) / (sum p n (1 - p))`, over all hours: Mantel and Haenszel (1959) weight each by
    n_v n_o / (n_v + n_o), so what differs from hour to hour is not a difference of versions.
    """
    window = _while_it_served(history.between(*span), key)
    theirs, every = window.slice(key), window.slice(OVERALL)
    if theirs[:, b.REQUESTS].sum() < least:
        return None
    keys = [one for one in window.slices if by and one[0] == by] or [OVERALL]
    slices = np.stack([window.slice(one) for one in keys], axis=1)
    if not np.allclose(slices[:, :, b.REQUESTS].sum(axis=1), every[:, b.REQUESTS]):
        keys, slices = [OVERALL], every[:, None, :]
    shares, unsure = shares_of(theirs[:, b.REQUESTS], slices[:, :, b.REQUESTS])
    name = by if np.ptp(shares) > 0 else ""
    by_hour = _by_hour(theirs[:, b.REQUESTS], slices[:, :, b.REQUESTS], shares)
    doubtful = float((by_hour * (1 - by_hour) * slices[:, :, b.REQUESTS]).sum())
    of_it, sums = theirs.sum(axis=0), slices.sum(axis=0)
    if doubtful >= max(least, ALONE * of_it[b.REQUESTS]):
        return _against_others(theirs, slices, by_hour, unsure, name)
    before = _before(history, window, keys, span[1], began) if name else None
    return None if before is None else _since(of_it, sums[:, b.REQUESTS] * shares, before, name)


def shares_of(theirs: b.Floats, slices: b.Floats) -> tuple[b.Floats, b.Floats]:
    """(S,) the share of each slice's requests that a version served, and (S, S) covariance of the errors.

    By (H,) requests of the version and (H, S) of each slice, per hour; one overall share unless more fit far better.

    >>> mobile, desktop = np.array([9, 4, 7, 8, 3, 9, 5, 6.0]), np.array([5, 5, 6, 4, 7, 5, 6, 5.0])
    >>> both = np.stack([mobile, desktop], axis=1)
    >>> [shares_of(theirs, both)[0].round(2).tolist() for theirs in (mobile, 0.1 * both.sum(axis=1))]
    [[1.0, 0.0], [0.1, 0.1]]
    """
    every, size = slices.sum(axis=1), slices.shape[1]
    even = np.full(size, theirs.sum() / max(every.sum(), 1.0))
    spread = 1 / np.sqrt(np.maximum(every, 1.0))
    x, y, free = slices * spread[:, None], theirs * spread, len(theirs) - size
    if size == 1 or free < LEAST_HOURS:
        return even, np.zeros((size, size))
    fitted = _fitted(x, y, even)
    off_even, off_whole, off = (float(((y - x @ one).round(9) ** 2).sum()) for one in (even, fitted.round(), fitted))
    if off_whole <= off:
        fitted, off = fitted.round(), off_whole
    if (off_even - off) * free <= CLEARLY * (size - 1) * max(off, 1e-9):
        return even, np.zeros((size, size))
    inside = np.flatnonzero((fitted > EDGE) & (fitted < 1 - EDGE))
    errors = np.zeros((size, size))
    errors[np.ix_(inside, inside)] = off / free * np.linalg.pinv(x[:, inside].T @ x[:, inside])
    scaled: b.Floats = fitted * theirs.sum() / max(float((fitted * slices.sum(axis=0)).sum()), 1e-9)
    return np.clip(scaled, 0.0, 1.0), errors


def _fitted(x: b.Floats, y: b.Floats, start: b.Floats) -> b.Floats:
    """(S,) least-squares shares in [0, 1], by coordinate descent."""
    square, product, found = x.T @ x, x.T @ y, start.copy()
    for _ in range(ROUNDS):
        was = found.copy()
        for i in np.flatnonzero(np.diag(square) > 0).tolist():
            found[i] = min(1.0, max(0.0, found[i] + float(product[i] - square[i] @ found) / float(square[i, i])))
        if np.abs(found - was).max() < 1e-6:
            break
    return found


def _while_it_served(window: History, key: SliceKey) -> History:
    """The buckets in which a version served, without the first and last if it may have served only a part of them."""
    busy = np.flatnonzero(window.slice(key)[:, b.REQUESTS] > 0)
    if not len(busy):
        return window.between(0, 0)
    first, last = int(busy[0]), int(busy[-1])
    if last - first > LEAST_HOURS:
        first, last = first + (first > 0), last - (last < len(window.starts) - 1)
    return window.between(int(window.starts[first]), int(window.starts[last]) + 1)


def _by_hour(theirs: b.Floats, slices: b.Floats, shares: b.Floats) -> b.Floats:
    """(H, S) shares of each hour: the (S,) shares of all hours, scaled to the version's requests of that hour."""
    whole = shares >= 1
    left, expected = theirs - slices[:, whole].sum(axis=1), (slices * np.where(whole, 0.0, shares)).sum(axis=1)
    scale = np.divide(left, expected, out=np.zeros(len(theirs)), where=expected > 0)
    found: b.Floats = np.where(whole, 1.0, np.clip(shares * scale[:, None], 0.0, 1.0))
    return found


def _against_others(theirs: b.Floats, slices: b.Floats, shares: b.Floats, unsure: b.Floats, by: str) -> VersionEffect:
    """A version against the others in shared slices, by (H, F) and (H, S, F) sums and (H, S) shares.

    The error is that of independent requests, or what the hours' differences show if that is more: people and queries
    come in waves. `unsure` is the (S, S) covariance of the shares' errors.
    """
    every, totals = slices[:, :, b.REQUESTS], slices[:, :, b.TOTAL]
    of_it = theirs.sum(axis=0)
    number = shares * every
    shared = number * (1 - shares)
    weights = shared.sum(axis=1)
    doubtful = float(weights.sum())
    moved = theirs[:, b.TOTAL] - (shares * totals).sum(axis=1)
    difference = float(moved.sum()) / doubtful
    # Both means have the weights `shared`: slices and hours in which it served alone are in neither.
    others = float((shared * (totals / np.maximum(every, 1.0) - shares * difference)).sum()) / doubtful
    spreads = _variance(of_it), _variance(slices.sum(axis=(0, 1)) - of_it)
    noise = spreads[0] * ((1 - shares) ** 2 * number).sum() + spreads[1] * (shares**2 * (every - number)).sum()
    in_waves = ((moved - difference * weights) ** 2).sum()
    # Change of the difference with each share, for a fixed number of the version's requests.
    moves = (totals - every * others + difference * every * (1 - 2 * shares)).sum(axis=0)
    error = np.sqrt(max(float(noise), float(in_waves)) + float(moves @ unsure @ moves)) / doubtful
    return VersionEffect(others + difference, difference, float(error), by, False)


def _since(of_it: b.Floats, theirs: b.Floats, before: b.Floats, by: str) -> VersionEffect | None:
    """A version against its slices in the weeks before, by (F,) and (S, F) sums; `theirs` (S,) are its requests."""
    known = before[:, b.REQUESTS] > 0
    weights = np.where(known, theirs, 0.0)
    if weights.sum() < LEAST_KNOWN * theirs.sum() or before[weights > 0, b.REQUESTS].sum() < LEAST_REQUESTS:
        return None
    weights = weights / weights.sum()
    means = np.array([_mean(sums) for sums in before])
    noise = np.array([_variance(sums) / max(float(sums[b.REQUESTS]), 1.0) for sums in before])
    error = np.sqrt(IN_WAVES * (_variance(of_it) / of_it[b.REQUESTS] + (weights**2 * noise).sum()))
    return VersionEffect(_mean(of_it), _mean(of_it) - float((weights * means).sum()), float(error), by, True)


def _before(history: History, window: History, keys: list[SliceKey], until: int, began: int) -> b.Floats:
    """(S, F) sums of the slices in the same hours of the last weeks before `began`."""
    weeks = max(1, -(-(until - began) // WEEK))
    starts = np.concatenate([window.starts - week * WEEK for week in range(weeks, weeks + MOST_WEEKS)])
    at = np.isin(history.starts, starts)
    return np.stack([history.slice(key)[at].sum(axis=0) for key in keys])


def _mean(sums: b.Floats) -> float:
    return float(sums[b.TOTAL] / max(sums[b.REQUESTS], 1.0))


def _variance(sums: b.Floats) -> float:
    return max(float(sums[b.SQUARES] / max(sums[b.REQUESTS], 1.0)) - _mean(sums) ** 2, 0.0)
