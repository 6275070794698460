"""Daily and weekly cycles: regressors of the slots of a week, and ridge regressions on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.drift import constants as c
from monitor.units import DAY, HOUR, WEEK

WEEKDAYS = 6
"""Number of weekday contrasts."""


@lru_cache(maxsize=8)
def regressors(step: int) -> Floats:
    """(P, K) for the P slots of a week: the day's harmonics that the step resolves, then six weekday contrasts."""
    middles = (np.arange(WEEK // step) + 0.5) * step
    angles = 2 * np.pi * middles / DAY
    most = min(c.HARMONICS, (DAY // step - 1) // 2)
    waves = [wave(k * angles) for k in range(1, most + 1) for wave in (np.sin, np.cos)]
    days = (middles // DAY).astype(int)
    contrasts = [(days == d) * 1.0 - (days == 6) for d in range(WEEKDAYS)]
    found = np.stack([*waves, *contrasts], axis=1)
    found.setflags(write=False)
    return found


def by_slot(slot: Ints, count: int, values: Floats) -> Floats:
    """(P, S) sums of (T, S) values by slot of the week."""
    found = np.zeros((count, values.shape[1]))
    np.add.at(found, slot, values)
    return found


def ridge(x: Floats, weights: Floats, weighted: Floats, precision: Floats) -> Floats:
    """(S, K) coefficients of S weighted ridge regressions on (P, K) regressors.

    By (P, S) summed weights, (P, S) summed weight times response, and the (K,) precision of the prior around zero.
    """
    return _solved(_with_prior(_gram(x, weights), precision), (weighted.T @ x)[..., None])


def _solved(normal: Floats, response: Floats) -> Floats:
    return np.asarray(np.linalg.solve(normal, response)[..., 0], np.float64)


def _gram(x: Floats, weights: Floats) -> Floats:
    return np.einsum("ps,pk,pl->skl", weights, x, x, optimize=True)


def _with_prior(gram: Floats, precision: Floats) -> Floats:
    found, each = gram.copy(), np.arange(gram.shape[1])
    found[:, each, each] += precision
    return found


def adapted(x: Floats, weights: Floats, weighted: Floats, least: float, free: int = 0) -> tuple[Floats, Floats]:
    """(S, K) coefficients as of `ridge`, with a prior fitted to the data; (S,) its larger standard deviation.

    The day's and the week's cycle have a prior each, at least `least` wide, that maximises the marginal likelihood
    (empirical Bayes by EM: Dempster, Laird and Rubin, 1977). The first `free` regressors have almost no prior.
    """
    days = x.shape[1] - WEEKDAYS
    variance = np.full((weights.shape[1], x.shape[1]), least**2)
    variance[:, :free] = 1 / c.FREE_PRECISION
    gram, response = _gram(x, weights), (weighted.T @ x)[..., None]
    for _ in range(c.CYCLE_ROUNDS):
        inverse: Floats = np.asarray(np.linalg.inv(_with_prior(gram, 1 / variance)), np.float64)
        squares = (inverse @ response)[..., 0] ** 2 + np.diagonal(inverse, axis1=1, axis2=2)
        for group in (slice(free, days), slice(days, None)):
            if squares[:, group].size:  # steps of a day have no daily cycle
                variance[:, group] = np.maximum(squares[:, group].mean(axis=1, keepdims=True), least**2)
    return _solved(_with_prior(gram, 1 / variance), response), np.sqrt(variance[:, free:].max(axis=1))


@dataclass(frozen=True)
class SeasonalMeans:
    """Expected mean of each slice by slot of the week: level x (1 + shared cycle + own cycle).

    `level` and `variance` of the requests' values are (S,), `shared` is (K,), `own` is (S, K + 1), intercept first.
    """

    level: Floats
    variance: Floats
    shared: Floats
    own: Floats

    def table(self, step: int) -> Floats:
        """(P, S) expected means."""
        x = regressors(step)
        cycle = x @ (self.shared + self.own[:, 1:]).T + self.own[:, 0]
        return self.level * np.maximum(1 + cycle, c.LEAST_CYCLE)

    def of_any_weekday(self) -> SeasonalMeans:
        """The means without the cycle of the week."""
        is_daily = np.arange(len(self.shared)) < len(self.shared) - WEEKDAYS
        return replace(self, shared=self.shared * is_daily, own=self.own * np.append(True, is_daily))


def fit_means(slot: Ints, step: int, requests: Floats, total: Floats, variance: Floats) -> SeasonalMeans:
    """Level and cycles from (T, S) sums, zeros for steps left out, and the (S,) variance of the values."""
    x = regressors(step)
    size = requests.sum(axis=0)
    level = np.divide(total.sum(axis=0), size, out=np.zeros(len(size)), where=size > 0)
    has = (requests > 0) & (level > 0)
    whole = np.where(has, requests * level, 1.0)
    response = np.where(has, total / whole - 1, 0.0)
    spread = variance * np.where(has, requests, 1.0) / whole**2
    careful, plain = 1 / (spread + c.STEP_NOISE**2) / c.REPEATED, 1 / (spread + c.REPEATED * c.STEP_NOISE**2)
    by_slots = [
        (by_slot(slot, len(x), weight), by_slot(slot, len(x), weight * response))
        for weight in (np.where(has, careful, 0.0), np.where(has, plain, 0.0))
    ]
    of_all = [(weights.sum(axis=1, keepdims=True), sums.sum(axis=1, keepdims=True)) for weights, sums in by_slots]
    above, shared = _cycle(x, of_all, c.SHARED_SPREAD, is_level=True)
    rest = [(weights, sums - weights * (x @ shared[0] + above)[:, None]) for weights, sums in by_slots]
    intercept, cycle = _cycle(x, rest, c.OWN_SPREAD, is_level=False)
    own = np.concatenate([(intercept + above)[:, None], cycle], axis=1)
    return SeasonalMeans(level, np.maximum(variance, c.LEAST_VARIANCE), shared[0], own)


def _cycle(x: Floats, by_slots: Sequence[tuple[Floats, Floats]], usual: float, is_level: bool) -> tuple[Floats, Floats]:
    """((S,) intercepts, (S, K) coefficients) with a cautious prior, or with a fitted one if the cycle is far wider.

    Args:
        by_slots: the careful weights, which treat all noise as repeated, and the plain ones, for a cycle as wide as a
            weekend worse every week: (weights, weighted responses), (P, S).
        usual: standard deviation of the prior.
        is_level: whether a usual cycle is around the level and has no intercept; a wide one needs one.
    """
    careful, plain = by_slots
    precision = np.full(x.shape[1], usual**-2)
    with_intercept = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    wide, spread = adapted(with_intercept, *plain, usual, 1)
    if is_level:
        drawn = ridge(x, *careful, precision)
        drawn = np.concatenate([np.zeros((len(drawn), 1)), drawn], axis=1)
    else:
        drawn = ridge(with_intercept, *careful, np.concatenate([[c.FREE_PRECISION], precision]))
    found: Floats = np.where(spread[:, None] > c.WIDE_CYCLE, wide, drawn)
    return found[:, 0], found[:, 1:]


def fit_volume(slot: Ints, step: int, requests: Floats, kept: Floats) -> Floats:
    """(S, K + 1) coefficients of log-linear Poisson regressions of (T, S) requests on the slots of the week.

    By Newton's method with a ridge (McCullagh and Nelder, 1989, 2.5), the variance inflated for common noise; steps
    whose (T,) `kept` is 0 are left out.
    """
    x = np.concatenate([np.ones((WEEK // step, 1)), regressors(step)], axis=1)
    counts = by_slot(slot, len(x), requests * kept[:, None])
    steps = by_slot(slot, len(x), kept[:, None])
    mean = counts.sum(axis=0) / max(float(steps.sum()), 1.0)
    found = np.zeros((requests.shape[1], x.shape[1]))
    found[:, 0] = np.log(np.maximum(mean, 1e-3))
    prior = np.concatenate([[1e-6], np.full(x.shape[1] - 1, c.VOLUME_SPREAD**-2)])
    for _ in range(c.NEWTON_ROUNDS):
        rate = np.exp(np.clip(x @ found.T, -12, 25))
        share = 1 / (1 + c.STEP_NOISE * rate)
        weights = steps * rate * share
        weighted = weights * (x @ found.T) + (counts - steps * rate) * share
        found = ridge(x, weights, weighted, prior)
    rate = np.exp(np.clip(x @ found.T, -12, 25))
    found[:, 0] += np.log(np.maximum(counts.sum(axis=0), 1e-3) / np.maximum((steps * rate).sum(axis=0), 1e-6))
    return found


def volume_table(coefficients: Floats, step: int) -> Floats:
    """(P, S) expected requests by slot of the week."""
    cycle = regressors(step) @ coefficients[:, 1:].T + coefficients[:, 0]
    return np.exp(np.clip(cycle, -12, 25))


def by_changed_clocks(volume: Floats, step: int, together: int) -> Floats:
    """(P,) least share of the usual requests in the `together` steps up to each slot, if clocks were changed.

    `volume` is the (P,) expected requests by slot of the week.
    """
    sums, at = np.stack([np.roll(volume, back) for back in range(together)]).sum(axis=0), np.arange(len(volume))
    moved = [np.interp(at + by / step, at, sums, period=len(volume)) for by in (-HOUR, HOUR)]
    return np.minimum(np.minimum(*moved) / np.maximum(sums, 1e-9), 1.0)
