"""How much a unit moves by itself: over-dispersion beyond sampling, and its autocorrelation.

A unit is a slice, or overall: the sum over the slices of what they differ from their expectation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.drift import wander
from monitor.drift.series import Floats, Ints

FLOOR = 0.004
"""Least over-dispersion, relative to the level."""
LAG_HOURS = 24
LEAST_LONG_RUN, MOST_LONG_RUN = 3.0, 40.0
"""Of the over-dispersion."""
SHARE_OF_LONG_RUN = 1.2
"""Of the long-run variance a step's evidence is tempered by one part in so many, for most alarms take a day or less."""


@dataclass(frozen=True)
class Noise:
    """Of U units, relative to their level.

    Attributes:
        step_variance: (U,) of a step's mean beyond sampling, its autocorrelation taken in.
        long_run: (U,) long-run variance beyond sampling, of one step.
        level_error: (U,) variance of the level itself.
        tolerated: (U,) drop that is none.
        common: (U,) step_variance, or more where the level wanders by more than a day's noise explains.
        persistence: (U,) share of a deviation that is left after a step.
        wander: (U,) variance of such deviations.
        variance: (U,) of a request's value, by slice, or more where it has grown since; overall's stands for nothing.
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
        """(1, U) share of the level that is tolerated at the least."""
        return (1 - self.tolerated)[None]

    @cached_property
    def moves(self) -> Floats:
        """(U,) variance of deviations, that of the level itself too."""
        return self.wander + self.level_error


def units(sums: Floats) -> Floats:
    """(..., S + 1) from (..., S): overall, the sum, then the slices."""
    found: Floats = np.concatenate([np.add.reduce(sums, axis=-1, keepdims=True), sums], axis=-1)
    return found


def measure(row: Ints, hours: float, requests: Floats, total: Floats, expected: Floats, variance: Floats) -> Noise:
    """Noise from a reference, whose cycles are in `expected` already.

    Args:
        row: (T,) number of each step, so that gaps show.
        hours: of a step.
        requests, total, expected: (T, S) requests, sum of values, and expectation of that sum.
        variance: (S,) of the requests' values.
    """
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
    common = np.maximum(over, long_run / SHARE_OF_LONG_RUN)
    persistence, wandering = wander.fit(off, sampling, known, hours)
    tolerated, of_requests = np.zeros(len(error)), np.concatenate([[0.0], variance])
    return Noise(common, long_run, error, tolerated, common, persistence, wandering, of_requests)


def _dense(row: Ints, values: Floats) -> Floats:
    """With zeros for the steps that are missing."""
    found = np.zeros((int(row[-1] - row[0]) + 1, values.shape[1]))
    found[row - row[0]] = values
    return found


def _dispersion(off: Floats, sampling: Floats, known: Floats, hours: float) -> tuple[Floats, Floats]:
    """((U,) variance beyond sampling, (U,) long-run variance with Bartlett's weights)."""
    weight = known / (sampling + 0.01**2) ** 2
    whole = np.maximum(weight.sum(axis=0), 1e-12)
    over = np.maximum((weight * (off**2 - sampling)).sum(axis=0) / whole, FLOOR**2)
    most, root = int(LAG_HOURS / hours), np.sqrt(weight)
    weighted, long_run = root * off, over.copy()
    for lag in range(1, min(most, len(off) - 1) + 1):
        pairs = (root[lag:] * root[:-lag]).sum(axis=0)
        moment = (weighted[lag:] * weighted[:-lag]).sum(axis=0) / np.maximum(pairs, 1e-12)
        long_run += 2 * (1 - lag / (most + 1)) * np.clip(moment, 0, over)
    least, largest = 1 + (LEAST_LONG_RUN - 1) / hours, 1 + (MOST_LONG_RUN - 1) / hours
    return over, np.clip(long_run, least * over, largest * over)
