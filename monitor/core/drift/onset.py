"""When a fall began that an alarm has just opened on: told only, for what opens and closes alarms is the evidence.

Evidence gathers from where it did not run out any more, which noise may have begun. The fall itself began at the
change point at which two levels, one before and a lower one since, explain the deviations of the last day best
(Hinkley, 1970); what was before is rather as expected than not. Beginnings that explain them nearly as well say how
surely that is known.
"""

from __future__ import annotations

import numpy as np

from monitor.core.drift.series import Floats, Ints

NEARLY = 2.0
"""Logarithm of the likelihood by which another beginning may explain less, to be told as one that may be."""
NEAR_SHARE = 0.25
"""Of the time that it took to find a fall of which no day is enough: within so much of it the beginning is known."""


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
