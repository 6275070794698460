"""How the mix of the slices moves the mean: by a step, smoothed, and as it does by itself."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from monitor.drift.series import HOUR, Floats
from monitor.drift.settings import DriftSettings

MEMORY_HOURS = 12.5


def effects_of(size: Floats, expected: Floats, worth: Floats, expected_worth: Floats) -> list[float]:
    """T relative changes of the expected mean by the mix of the (T,) requests, against the expected mix.

    Args:
        worth, expected_worth: (T,) what these requests, and those that were expected, are expected to sum up to.
    """
    rows = zip(size.tolist(), expected.tolist(), worth.tolist(), expected_worth.tolist(), strict=True)
    return [_effect(*row) for row in rows]


def _effect(size: float, expected: float, worth: float, expected_worth: float) -> float:
    usual = expected_worth / max(expected, 1e-9)
    return worth / max(size, 1.0) / max(usual, 1e-9) - 1 if size > 0 and usual > 0 else 0.0


@lru_cache
def weight_of(step: int) -> float:
    """Of the newest step, of so many seconds, in the smoothed effect of the mix."""
    return float(-np.expm1(-step / HOUR / MEMORY_HOURS))


def noise(settings: DriftSettings, size: Floats, expected: Floats, mean: Floats) -> float:
    """Standard deviation of the smoothed effect of the mix."""
    sums = (size, expected, size * mean, expected * mean)
    effects = effects_of(*(of_slices.sum(axis=1) for of_slices in sums))
    whole, weight = size.sum(axis=1), weight_of(settings.step)
    over = under = 0.0
    smoothed = []
    for effect, count in zip(effects, whole.tolist(), strict=True):
        over += weight * (effect * count - over)
        under += weight * (count - under)
        smoothed.append(over / under if under > 0 else 0.0)
    later = np.array(smoothed[settings.steps(24) :] or [0.0])
    return float(np.sqrt((later**2).mean()))
