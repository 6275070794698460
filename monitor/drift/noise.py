"""How much a unit (slice or overall) moves on its own: over-dispersion beyond sampling, autocorrelation, wander,
and the mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from monitor.arrays import Floats, Ints
from monitor.drift import constants as c
from monitor.drift.series import units
from monitor.drift.settings import DriftSettings
from monitor.units import HOUR


@dataclass(frozen=True)
class Noise:
    """The noise of U units, (U,) each, relative to their level.

    Attributes:
        step_variance: of a step's mean beyond sampling, autocorrelation included.
        long_run: long-run variance beyond sampling, of one step.
        level_error: variance of the level itself.
        tolerated: largest drop that is not a fall.
        common: step_variance, or more if the level wanders more than a day's noise explains.
        persistence, wander: share of a deviation left after a step, and the variance of such deviations.
        variance: of a request's value, larger if it has grown since; overall's is unused.
    """

    step_variance: Floats
    long_run: Floats
    level_error: Floats
    tolerated: Floats
    common: Floats
    persistence: Floats
    wander: Floats
    variance: Floats

    @cached_property
    def still(self) -> Floats:
        """(1, U) lowest tolerated share of the level."""
        return (1 - self.tolerated)[None]

    @cached_property
    def moves(self) -> Floats:
        """(U,) variance of deviations, including that of the level."""
        return self.wander + self.level_error


def measure(row: Ints, hours: float, requests: Floats, total: Floats, expected: Floats, variance: Floats) -> Noise:
    """The noise, by (T,) step numbers (which show gaps), (T, S) sums and (S,) variances of the requests' values."""
    size, fit = units(requests), units(expected)
    off = units(total) - fit
    sampling = units(requests * variance)
    with_data = (size > 0) & (fit > 0)
    scale = np.where(with_data, fit, 1.0)
    off, sampling = np.where(with_data, off / scale, 0.0), np.where(with_data, sampling / scale**2, 0.0)
    known, off, sampling = _dense(row, np.where(with_data, 1.0, 0.0)), _dense(row, off), _dense(row, sampling)
    over, long_run = _dispersion(off, sampling, known, hours)
    whole = np.maximum(fit.sum(axis=0), 1e-9)
    error = units(requests * variance).sum(axis=0) / whole**2 + long_run / len(row)
    common = np.maximum(over, long_run / c.LONG_RUN_TEMPER)
    persistence, wander = fit_wander(off, sampling, known, hours)
    tolerated, of_requests = np.zeros(len(error)), np.concatenate([[0.0], variance])
    return Noise(common, long_run, error, tolerated, common, persistence, wander, of_requests)


def _dense(row: Ints, values: Floats) -> Floats:
    found = np.zeros((int(row[-1] - row[0]) + 1, values.shape[1]))
    found[row - row[0]] = values
    return found


def _dispersion(off: Floats, sampling: Floats, known: Floats, hours: float) -> tuple[Floats, Floats]:
    """((U,) variance beyond sampling, (U,) long-run variance with Bartlett's weights)."""
    weight = known / (sampling + c.STEP_NOISE**2) ** 2
    whole = np.maximum(weight.sum(axis=0), 1e-12)
    over = np.maximum((weight * (off**2 - sampling)).sum(axis=0) / whole, c.NOISE_FLOOR**2)
    most, root = int(c.NOISE_LAG_HOURS / hours), np.sqrt(weight)
    weighted, long_run = root * off, over.copy()
    for lag in range(1, min(most, len(off) - 1) + 1):
        pairs = (root[lag:] * root[:-lag]).sum(axis=0)
        moment = (weighted[lag:] * weighted[:-lag]).sum(axis=0) / np.maximum(pairs, 1e-12)
        long_run += 2 * (1 - lag / (most + 1)) * np.clip(moment, 0, over)
    least, largest = 1 + (c.LEAST_LONG_RUN - 1) / hours, 1 + (c.MOST_LONG_RUN - 1) / hours
    return over, np.clip(long_run, least * over, largest * over)


# ---- wander --------------------------------------------------------------------------------------------------------


def fit_wander(off: Floats, sampling: Floats, known: Floats, hours: float) -> tuple[Floats, Floats]:
    """((U,) share of a deviation left after a step, (U,) variance of the wander).

    By (T, U) relative deviations, their sampling variance, and 1 where there were requests. The wander is a first-order
    autoregression under sampling noise, fitted by likelihood on a grid (Kalman, 1960; misses as Student's t, since a
    few are large). What the slices have in common counts as much as what each shows alone.
    """
    persistence = np.repeat(c.WANDER_PERSISTENCES, len(c.WANDER_DEVIATIONS)) ** hours
    variance = np.tile(c.WANDER_DEVIATIONS, len(c.WANDER_PERSISTENCES)) ** 2
    likelihood = _likelihood(off, sampling, known, persistence, variance)
    slices, with_requests = likelihood[1:], int(np.count_nonzero(known[:, 1:].any(axis=0)))
    likelihood[1:] += slices.sum(axis=0) / max(with_requests, 1)
    weight = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    return weight @ persistence, weight @ variance


def _likelihood(off: Floats, sampling: Floats, known: Floats, persistence: Floats, variance: Floats) -> Floats:
    forecast, error = np.zeros((off.shape[1], len(variance))), np.tile(variance, (off.shape[1], 1))
    found, fresh, freedom = np.zeros_like(forecast), variance * (1 - persistence**2), c.WANDER_FREEDOM
    for seen, chance, has in zip(off[..., None], sampling[..., None], known[..., None], strict=True):
        forecast *= persistence
        error *= persistence**2
        error += fresh
        whole = error + chance
        miss = seen - forecast
        found -= has * (0.5 * np.log(whole) + (freedom + 1) / 2 * np.log1p(miss**2 / whole / (freedom - 2)))
        gain, most = has * error / whole, c.WANDER_CLIP * np.sqrt(whole)
        forecast += gain * np.clip(miss, -most, most)
        error *= 1 - gain
    return found


# ---- mix -----------------------------------------------------------------------------------------------------------


def mix_effects(size: Floats, expected: Floats, worth: Floats, expected_worth: Floats) -> list[float]:
    """T relative changes of the expected mean caused by the mix of (T,) requests, against the expected mix.

    `worth` and `expected_worth` are the expected sums of the actual and the expected requests.
    """
    rows = zip(size.tolist(), expected.tolist(), worth.tolist(), expected_worth.tolist(), strict=True)
    return [_mix_effect(*row) for row in rows]


def _mix_effect(size: float, expected: float, worth: float, expected_worth: float) -> float:
    usual = expected_worth / max(expected, 1e-9)
    return worth / max(size, 1.0) / max(usual, 1e-9) - 1 if size > 0 and usual > 0 else 0.0


@lru_cache
def mix_weight(step: int) -> float:
    """Weight of the newest step (of `step` seconds) in the smoothed effect of the mix."""
    return float(-np.expm1(-step / HOUR / c.MIX_MEMORY_HOURS))


def mix_noise(settings: DriftSettings, size: Floats, expected: Floats, mean: Floats) -> float:
    """Standard deviation of the smoothed effect of the mix, by (T, S) requests and their expectation."""
    sums = (size, expected, size * mean, expected * mean)
    effects = mix_effects(*(of_slices.sum(axis=1) for of_slices in sums))
    whole, weight = size.sum(axis=1), mix_weight(settings.step)
    over = under = 0.0
    smoothed = []
    for effect, count in zip(effects, whole.tolist(), strict=True):
        over += weight * (effect * count - over)
        under += weight * (count - under)
        smoothed.append(over / under if under > 0 else 0.0)
    later = np.array(smoothed[settings.steps(24) :] or [0.0])
    return float(np.sqrt((later**2).mean()))
