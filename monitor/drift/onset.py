"""When a fall began that an alarm has just opened on: told only, for what opens and closes alarms is the evidence.

Evidence gathers from where it did not run out any more, which noise may have begun. The fall itself began at the
change point at which two levels, one before and a lower one since, explain the deviations of the last day best
(Hinkley, 1970); what was before is rather as expected than not. Beginnings that explain them nearly as well say how
surely that is known. But a decay has no one beginning: where the days before were lower than expected already, it may
have begun with the first of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monitor.drift.levels import EXPECTED, MEASURED, SQUARES, TOTAL, DaySums
from monitor.drift.noise import Noise, units
from monitor.drift.series import DAY, Floats, Ints

NEARLY = 2.0
"""Logarithm of the likelihood by which another beginning may explain less, to be told as one that may be."""
NEAR_SHARE = 0.25
"""Of the time that it took to find a fall of which no day is enough: within so much of it the beginning is known."""
CLEARLY = 2.0
"""Standard errors by which days before must be lower than expected for the fall to be in them already."""
PART = 0.25
"""Of what fell, by which they must be lower: a slice has days that are worse than others."""


def change_point(moved: Floats, weight: Floats, prior: Floats) -> Ints:
    """(U, 3) rows: with which each unit's fall most probably began, and the first and last with which it may have.

    Args:
        moved: (N, U) relative deviation of each step.
        weight: (N, U) one over its variance; 0 of what is not known.
        prior: (U,) the same of the level before, which is as expected but for that.
    """
    part, whole = np.cumsum(weight * moved, axis=0), np.cumsum(weight, axis=0)
    before, size_before = part - weight * moved, whole - weight + prior
    after, size_after = part[-1] - before, np.maximum(whole[-1] + prior - size_before, 1e-12)
    fell = np.maximum(before / size_before - after / size_after, 0.0)
    likelihood = fell**2 / (1 / size_before + 1 / size_after) / 2 * (weight > 0)
    nearly = likelihood >= likelihood.max(axis=0) - NEARLY
    last = len(moved) - 1 - nearly[::-1].argmax(axis=0)
    found: Ints = np.stack([likelihood.argmax(axis=0), nearly.argmax(axis=0), last], axis=1)
    return found


def roughly(since: Ints, opened_at: int, length: int) -> Ints:
    """(U, 3) seconds, as `change_point`, of evidence that began at (U,) `since`, by the time that it took alone."""
    near = np.ceil(NEAR_SHARE * (opened_at - since) / length).astype(np.int64) * length
    return np.stack([since, since - near, np.minimum(since + near, opened_at - length)], axis=1)


def with_days_before(
    first: Ints, effect: Floats, days: Sequence[DaySums], level: Floats, noise: Noise, steps: int
) -> Ints:
    """(U,) when falls may have begun at the earliest, seconds: at `first`, or with one of the days before that.

    That is the one from which on the days, taken together, were most clearly lower than expected.

    Args:
        effect: (U,) relative change by which what fell did.
        days: whole ones, oldest first.
        level: (S,) what comes of the baseline's expectations.
        noise: of the units.
        steps: of a day.
    """
    found, count, most = first.copy(), np.zeros(len(first)), np.full(len(first), CLEARLY)
    short, expected, sampling = np.zeros((3, len(first)))
    for day in reversed(days):
        sums, is_before = day.sums * (day.sums[EXPECTED] > 0), (day.number + 1) * DAY <= first
        usual, squares = sums[EXPECTED] * level, sums[SQUARES] - sums[TOTAL] ** 2 / np.maximum(sums[MEASURED], 1.0)
        count += is_before
        expected += units(usual) * is_before
        short += units(usual - sums[TOTAL]) * is_before
        sampling += units(np.maximum(squares, 0.0)) * is_before
        common = noise.long_run / np.maximum(count * steps, 1.0) + noise.level_error
        clear = short / np.sqrt(np.maximum(sampling + common * expected**2, 1e-12))
        is_it = is_before & (clear > most) & (short > -PART * effect * expected)
        found, most = np.where(is_it, day.number * DAY, found), np.where(is_it, clear, most)
    return found
