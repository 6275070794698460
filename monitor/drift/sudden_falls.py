"""Sudden falls: what a step differs by from what the steps before forecast, and when a fall began.

A mean that wanders is in an hour nearly where it is now. So its deviation from the baseline is followed by a filter
(Kalman, 1960), and what a step misses the forecast by is independent of what came before: a fall that the wander of
days would hide stands out against that of an hour. How much of a fall is still to be seen in each step, as the filter
takes it in, is known (Willsky and Jones, 1976). For each step of the last day the evidence is added up that the fall
began there, and what speaks most for one counts: the likelihood ratio against a fall that is tolerated, of one whose
size beyond that is normally distributed. Single steps are clipped (Huber, 1981): heavy tails and blips are no alarm.

When a fall began that an alarm opens on is only told, for evidence opens and closes alarms. It is the change point at
which two levels, one before and a lower one since, explain the deviations of the last day best (Hinkley, 1970).
Beginnings that explain them nearly as well say how surely that is known. A decay has no one beginning: where the days
before were lower than expected already, it may have begun with the first of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from monitor.drift import constants as c
from monitor.drift import levels as lv
from monitor.drift.levels import DaySums
from monitor.drift.noise import Noise
from monitor.drift.series import DAY, HOUR, Bools, Floats, Ints, frozen, some, units

ABSORBED, AGAINST, INFORMATION = range(3)


@frozen
class FallFilter:
    """Where the mean of U units is by the filter, and what speaks for a fall from each of the last starts.

    Attributes:
        until: end of the last step that was followed, seconds.
        deviation: (U,) relative, from the baseline.
        certainty: (U,) share of the wander's variance that is known.
        starts: (3, U, FALL_STARTS) share of a fall that the filter has taken in, and the two sums of a likelihood
            ratio; the newest start is first.
    """

    until: int
    deviation: Floats
    certainty: Floats
    starts: Floats

    @classmethod
    def empty(cls, count: int, now: int) -> FallFilter:
        """Nothing known."""
        nothing = np.zeros(count)
        return cls(now, nothing, nothing, np.zeros((3, count, c.FALL_STARTS)))

    def without(self, which: Bools) -> FallFilter:
        """With nothing known of these of the U units."""
        kept = ~which
        return FallFilter(self.until, self.deviation * kept, self.certainty * kept, self.starts * kept[:, None])

    def left_out(self, slices: Bools) -> FallFilter:
        """Where labels of (S,) slices are lost: what they were just before is known to be none, nor what all were."""
        if not some(slices):
            return self
        known = slices & (self.certainty[1:] > 0)
        return self.without(np.concatenate([[True], known])) if some(known) else self

    def evidence(self, length: int) -> Floats:
        """(U,) logarithm of the evidence of a fall that has lasted for SHORT_HOURS at least, by steps of `length`."""
        return np.maximum.reduce(self._by_start(length), axis=1) / 2

    def began(self, end: int, length: int) -> Ints:
        """(U,) start of the fall that `evidence` speaks for, seconds; the last step ends at `end`."""
        apart = max(length, HOUR)
        newest = (end - length) // apart * apart
        return newest - (self._by_start(length).argmax(axis=1) + _youngest(length)) * apart

    def _by_start(self, length: int) -> Floats:
        return twice_evidence(*self.starts[AGAINST:, :, _youngest(length) :])


def _youngest(length: int) -> int:
    return max(-int(-c.SHORT_HOURS * HOUR // max(length, HOUR)) - 1, 0)


def twice_evidence(against: Floats, information: Floats) -> Floats:
    """Twice the logarithm of the likelihood ratio: a fall beyond what is tolerated against one of just as much."""
    beyond = np.maximum(against - c.LEAST_TOLERATED * information, 0.0)
    return beyond * beyond / (information + c.FALL_TYPICAL**-2)


class Forecast(NamedTuple):
    """What T steps say of U units: (U,) persistence and variance of a deviation, (T, U) deviation and its sampling."""

    persistence: Floats
    wander: Floats
    moved: Floats
    sampling: Floats

    @classmethod
    def of(cls, noise: Noise, total: Floats, expected: Floats, chance: Floats) -> Forecast:
        """From (T, U) observed and expected sums, and the sampling variance of the observed ones."""
        scale = np.maximum(expected, 1e-9)
        return cls(noise.persistence, noise.moves, total / scale - 1, chance / scale**2)


def follow(was: FallFilter, seen: Forecast, row: int, has: Bools, end: int, length: int) -> FallFilter:
    """After one more step, of `length` seconds, that ends at `end`; (U,) `has` tells where there were requests."""
    left = seen.persistence if end - was.until <= length else seen.persistence ** ((end - was.until) / length)
    forecast = np.minimum(was.deviation * left, c.LEAST_CHANGE)
    error = seen.wander * (1 - was.certainty * left**2)
    whole = error + seen.sampling[row]
    most = c.FALL_CLIP * np.sqrt(whole)
    weight = has / whole
    miss, gain = np.minimum(np.maximum(seen.moved[row] - forecast, -most), most), error * weight
    begins = length >= HOUR or (end - length) % HOUR == 0
    starts = _with_new_start(was.starts) if begins else was.starts.copy()
    absorbed, against, information = starts
    absorbed *= left[:, None]
    signature = 1 - absorbed
    absorbed += gain[:, None] * signature
    shown = weight[:, None] * signature
    against -= miss[:, None] * shown
    information += shown * signature
    return FallFilter(end, forecast + gain * miss, 1 - error * (1 - gain) / seen.wander, starts)


def _with_new_start(of_starts: Floats) -> Floats:
    found = np.empty(of_starts.shape)
    found[..., 0], found[..., 1:] = 0.0, of_starts[..., :-1]
    return found


# ---- when a fall began ----------------------------------------------------------------------------------------------


def change_point(moved: Floats, weight: Floats, prior: Floats) -> Ints:
    """(U, 3) rows: with which each unit's fall most probably began, and the first and last with which it may have.

    By (N, U) relative deviations, one over their variances, 0 of what is not known, and (U,) that of the level before.
    """
    part, whole = np.cumsum(weight * moved, axis=0), np.cumsum(weight, axis=0)
    before, size_before = part - weight * moved, whole - weight + prior
    after, size_after = part[-1] - before, np.maximum(whole[-1] + prior - size_before, 1e-12)
    fell = np.maximum(before / size_before - after / size_after, 0.0)
    likelihood = fell**2 / (1 / size_before + 1 / size_after) / 2 * (weight > 0)
    nearly = likelihood >= likelihood.max(axis=0) - c.LIKELIER_LOG
    last = len(moved) - 1 - nearly[::-1].argmax(axis=0)
    return np.stack([likelihood.argmax(axis=0), nearly.argmax(axis=0), last], axis=1)


def roughly(since: Ints, opened_at: int, length: int) -> Ints:
    """(U, 3) seconds, as `change_point`, of evidence that began at (U,) `since`, by the time that it took alone."""
    near = np.ceil(c.NEAR_SHARE * (opened_at - since) / length).astype(np.int64) * length
    return np.stack([since, since - near, np.minimum(since + near, opened_at - length)], axis=1)


def with_days_before(
    first: Ints, effect: Floats, days: Sequence[DaySums], level: Floats, noise: Noise, steps: int
) -> Ints:
    """(U,) when falls may have begun at the earliest, seconds: at `first`, or with one of the days before that.

    That is the one from which on the whole days, oldest first, were most clearly lower than expected, taken together.
    What fell did so by (U,) `effect`, relative; the (S,) `level` is times the baseline's expectations.
    """
    found, count, most = first.copy(), np.zeros(len(first)), np.full(len(first), c.STANDARD_ERRORS)
    short, expected, sampling = np.zeros((3, len(first)))
    for day in reversed(days):
        sums, is_before = day.sums * (day.sums[lv.EXPECTED] > 0), (day.number + 1) * DAY <= first
        usual, squares = (
            sums[lv.EXPECTED] * level,
            sums[lv.SQUARES] - sums[lv.TOTAL] ** 2 / np.maximum(sums[lv.MEASURED], 1.0),
        )
        count += is_before
        expected += units(usual) * is_before
        short += units(usual - sums[lv.TOTAL]) * is_before
        sampling += units(np.maximum(squares, 0.0)) * is_before
        common = noise.long_run / np.maximum(count * steps, 1.0) + noise.level_error
        clear = short / np.sqrt(np.maximum(sampling + common * expected**2, 1e-12))
        is_it = is_before & (clear > most) & (short > -c.PART_OF_FALL * effect * expected)
        found, most = np.where(is_it, day.number * DAY, found), np.where(is_it, clear, most)
    return found
