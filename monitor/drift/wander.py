"""How a unit wanders by itself: a first-order autoregression under sampling noise, fitted by its likelihood.

Each candidate of a grid forecasts the reference step by step (Kalman, 1960); the one whose forecasts were best is
taken. The misses are weighed as Student's t, for a few of them are large.
"""

from __future__ import annotations

import numpy as np

from monitor.drift.series import Floats

PERSISTENCES = np.array([0.8, 0.9, 0.95, 0.98])
"""Share of a deviation that is left after an hour."""
DEVIATIONS = 0.003 * 1.5 ** np.arange(10)
"""Standard deviations of the wander, relative to the level: .3 to 11.5 %."""
CLIP = 3.5
"""Standard errors by which a step moves the forecast at the most."""
FREEDOM = 7.0
"""Degrees of freedom of the misses."""


def fit(off: Floats, sampling: Floats, known: Floats, hours: float) -> tuple[Floats, Floats]:
    """((U,) share of a deviation that is left after a step, (U,) variance of the wander).

    What the slices have in common counts as much as what each shows by itself.

    Args:
        off, sampling: (T, U) relative deviations from the expectation, overall's first, and their sampling variance.
        known: (T, U) 1 where there were requests, 0 elsewhere.
        hours: of a step.
    """
    persistence = np.repeat(PERSISTENCES, len(DEVIATIONS)) ** hours
    variance = np.tile(DEVIATIONS, len(PERSISTENCES)) ** 2
    likelihood = _likelihood(off, sampling, known, persistence, variance)
    slices, with_requests = likelihood[1:], int(np.count_nonzero(known[:, 1:].any(axis=0)))
    likelihood[1:] += slices.sum(axis=0) / max(with_requests, 1)
    weight = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    return weight @ persistence, weight @ variance


def _likelihood(off: Floats, sampling: Floats, known: Floats, persistence: Floats, variance: Floats) -> Floats:
    """(U, G) logarithm of the likelihood of each of G candidates, but for a constant."""
    units = off.shape[1]
    forecast, error = np.zeros((units, len(variance))), np.tile(variance, (units, 1))
    found, anew = np.zeros_like(forecast), variance * (1 - persistence**2)
    for seen, chance, has in zip(off[..., None], sampling[..., None], known[..., None], strict=True):
        forecast *= persistence
        error *= persistence**2
        error += anew
        whole = error + chance
        miss = seen - forecast
        found -= has * (0.5 * np.log(whole) + (FREEDOM + 1) / 2 * np.log1p(miss**2 / whole / (FREEDOM - 2)))
        gain, most = has * error / whole, CLIP * np.sqrt(whole)
        forecast += gain * np.clip(miss, -most, most)
        error *= 1 - gain
    return found
