"""Sudden falls: how far a step misses its forecast from the steps before, and when a fall began.
A wandering mean is nearly the same an hour later, so a fall hidden by the wander of days stands out within an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.drift import constants as c
from monitor.drift import levels as lv
from monitor.drift.levels import DaySums
from monitor.drift.noise import Noise
from monitor.drift.series import frozen, some, units
from monitor.units import DAY, HOUR

ABSORBED, AGAINST, INFORMATION = range(3)


@frozen
class FallFilter:
    """A Kalman filter (1960) of the deviation of U units, and the evidence of a fall from each of the last starts.

    The filter absorbs a fall at a known rate (Willsky and Jones, 1976). The evidence is the likelihood ratio against a
    tolerated fall, of one whose further size is normally distributed; the best start counts. Steps are clipped
    (Huber, 1981), so that heavy tails and blips raise no alarm.

    Attributes:
        until: end of the last step, seconds.
        deviation: (U,) relative, from the baseline.
        certainty: (U,) known share of the wander's variance.
        starts: (3, U, FALL_STARTS) share of a fall absorbed by the filter, and the two sums of a likelihood ratio;
            newest start first.
    """

    until: int
    deviation: Floats
    certainty: Floats
    starts: Floats

    @classmethod
    def empty(cls, count: int, now: int) -> FallFilter:
        nothing = np.zeros(count)
        return cls(now, nothing, nothing, np.zeros((3, count, c.FALL_STARTS)))

    def without(self, which: Bools) -> FallFilter:
        """The filter with these units reset."""
        kept = ~which
        return FallFilter(self.until, self.deviation * kept, self.certainty * kept, self.starts * kept[:, None])

    def left_out(self, slices: Bools) -> FallFilter:
        """The filter with (S,) slices whose labels are lost, and overall, reset: their last values are unsound."""
        if not some(slices):
            return self
        known = slices & (self.certainty[1:] > 0)
        return self.without(np.concatenate([[True], known])) if some(known) else self

    def evidence(self, length: int) -> Floats:
        """(U,) log evidence of a fall that has lasted for at least SHORT_HOURS, with steps of `length` seconds."""
        return np.maximum.reduce(self._by_start(length), axis=1) / 2

    def began(self, end: int, length: int) -> Ints:
        """(U,) start (seconds) of the fall behind `evidence`; the last step ends at `end`."""
        apart = max(length, HOUR)
        newest = (end - length) // apart * apart
        return newest - (self._by_start(length).argmax(axis=1) + _youngest(length)) * apart

    def _by_start(self, length: int) -> Floats:
        return twice_evidence(*self.starts[AGAINST:, :, _youngest(length) :])


def _youngest(length: int) -> int:
    return max(-int(-c.SHORT_HOURS * HOUR // max(length, HOUR)) - 1, 0)


def twice_evidence(against: Floats, information: Floats) -> Floats:
    """Twice the log likelihood ratio of a fall beyond what is tolerated, against one just tolerated."""
    beyond = np.maximum(against - c.LEAST_TOLERATED * information, 0.0)
    return beyond * beyond / (information + c.FALL_TYPICAL**-2)


class Forecast(NamedTuple):
    """T steps of U units: (U,) persistence and variance of a deviation, (T, U) deviation and its sampling variance."""

    persistence: Floats
    wander: Floats
    moved: Floats
    sampling: Floats

    @classmethod
    def of(cls, noise: Noise, total: Floats, expected: Floats, chance: Floats) -> Forecast:
        """The forecast from (T, U) observed and expected sums, and the sampling variance of the observed ones."""
        scale = np.maximum(expected, 1e-9)
        return cls(noise.persistence, noise.moves, total / scale - 1, chance / scale**2)


def filter_step(was: FallFilter, seen: Forecast, row: int, has: Bools, end: int, length: int) -> FallFilter:
    """The filter after a step of `length` seconds that ends at `end`; (U,) `has` is true with requests."""
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
    """(U, 3) rows at which each unit's fall began: most likely, earliest, latest; for messages only.

    The change point whose two levels, the later one lower, fit best (Hinkley, 1970), and those that fit nearly as well.
    By (N, U) relative deviations and their precisions (0 if unknown), and (U,) precision of the level before.
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
    """(U, 3) seconds like `change_point`, from the age alone of evidence that began at (U,) `since`."""
    near = np.ceil(c.NEAR_SHARE * (opened_at - since) / length).astype(np.int64) * length
    return np.stack([since, since - near, np.minimum(since + near, opened_at - length)], axis=1)


def with_days_before(
    first: Ints, effect: Floats, days: Sequence[DaySums], level: Floats, noise: Noise, steps: int
) -> Ints:
    """(U,) earliest beginning of the falls, seconds: `first`, or the start of one of the `days` before it.

    A decay has no single beginning: the day from which on the whole days, oldest first, were together most clearly low.
    The (U,) `effect` is the fall's relative size; the (S,) `level` multiplies the baseline's expectations.
    """
    beginning, count, most = first.copy(), np.zeros(len(first)), np.full(len(first), c.STANDARD_ERRORS)
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
        beginning, most = np.where(is_it, day.number * DAY, beginning), np.where(is_it, clear, most)
    return beginning
