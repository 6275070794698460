"""A level that begins anew: after a change that is here to stay the cycles hold on, and the level is learnt again.

begun anew --two days with enough requests--> settled: judged, with more tolerance until there is a whole reference
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.core.drift import levels as lv
from monitor.core.drift.baseline import LEAST_REQUESTS, Baseline
from monitor.core.drift.noise import units
from monitor.core.drift.series import DAY, Floats
from monitor.core.drift.settings import Settings
from monitor.core.drift.state import State

SETTLING_DAYS = 2
"""Whole days that it takes to know a new level."""


def begun_anew(settings: Settings, state: State, start: int, slices: tuple[str, ...]) -> State:
    """The state at a moment from which on the level is another one; without a baseline nothing is kept.

    Args:
        state: before it, of the same slices.
        start: seconds, of the next step.
    """
    new = State.begin(settings, start, slices, state.first_seen)
    if state.baseline is None:
        return new
    levels = replace(new.levels, ratios=state.levels.ratios)
    return replace(new, baseline=state.baseline, levels=levels, misses=state.misses, settled=False)


def days_since(state: State, now: int) -> int:
    """Whole days since the reference, or the new level, began."""
    return max(0, now - state.began) // DAY


def settle(settings: Settings, state: State, found: Baseline, now: int) -> State:
    """With the new level, if enough is known of it by `now`, seconds, the beginning of a day.

    Quality is expected on the new level from here on; coverage and traffic follow by their ratios. Thin slices lean on
    what became of all of them together.
    """
    sums = state.levels.every()
    if days_since(state, now) < SETTLING_DAYS or sums[lv.REQUESTS].sum() < LEAST_REQUESTS:
        return state
    prior = LEAST_REQUESTS * found.quality.level
    total, expected = sums[lv.TOTAL] * found.known, sums[lv.EXPECTED] * found.known
    together = float(total.sum()) / max(float(expected.sum()), 1e-9)
    moved = np.where(found.known, (total + together * prior) / np.maximum(expected + prior, 1e-9), 1.0)
    quality = replace(found.quality, level=found.quality.level * moved)
    levels = state.levels.rescaled(moved).gathered(prior * moved * found.known)
    return replace(state, baseline=replace(found, quality=quality), levels=levels, settled=True)


def with_level_error(settings: Settings, state: State, found: Baseline, now: int) -> Baseline:
    """With the error of a level that rests on what there was since it began anew, and not on a reference."""
    sums = state.levels.every()
    size, expected = sums[lv.REQUESTS] * found.known, units(sums[lv.EXPECTED] * found.known)
    steps = min(days_since(state, now), lv.MEMORY_DAYS) * DAY / settings.step
    error: Floats = units(size * found.quality.variance) / np.maximum(expected, 1e-9) ** 2
    error = np.where(expected > 0, error, 1.0) + found.noise.long_run / max(steps, 1.0)
    return found.with_noise(replace(found.noise, level_error=error))
