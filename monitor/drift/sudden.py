"""Evidence of a sudden fall: what a step differs by from what the steps before foretell, not from the baseline alone.

A mean that wanders is in an hour nearly where it is now. So its deviation from the baseline is followed by a filter
(Kalman, 1960), and what a step misses the forecast by is independent of what came before: a fall that the wander of
days would hide stands out against that of an hour. The filter takes a fall in after a while, the faster the more
requests there are; how much of it is still to be seen in each step is known (Willsky and Jones, 1976). For each step of
the last day the evidence is added up that the fall began there, and what speaks most for one counts: the likelihood
ratio against a fall of TOLERATED, of one whose size beyond that is drawn from a normal distribution. Single steps are
clipped (Huber, 1981), so that neither the heavy tails of real noise nor a short blip make an alarm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from monitor.drift.frozen import frozen
from monitor.drift.noise import Noise
from monitor.drift.series import HOUR, Bools, Floats, Ints, some

STARTS = 24
"""Beginnings that are weighed, an hour apart, or a step where that is longer."""
LEAST_HOURS = 3.0
"""That a fall has lasted."""
CLIP = 2.5
"""Standard errors that one step counts for at the most."""
TOLERATED = 0.01
BETTER = 0.02
"""Above the baseline that a forecast may be, relative: to be as before, after a while of better ones, is no fall."""
TYPICAL = 0.1
"""Standard deviation of falls beyond what is tolerated, relative."""


ABSORBED, AGAINST, INFORMATION = range(3)


@frozen
class FallFilter:
    """Where the mean of U units is by the filter, and what speaks for a fall from each of the last starts.

    Attributes:
        until: end of the last step that was followed, seconds.
        deviation: (U,) relative, from the baseline.
        certainty: (U,) share of the wander's variance that is known.
        starts: (3, U, STARTS) share of a fall that the filter has taken in, and the two sums that a likelihood ratio
            rests on; the newest start is first.
    """

    until: int
    deviation: Floats
    certainty: Floats
    starts: Floats

    @classmethod
    def empty(cls, count: int, now: int) -> FallFilter:
        """Nothing known."""
        units = np.zeros(count)
        return cls(now, units, units, np.zeros((3, count, STARTS)))

    def padded(self, count: int) -> FallFilter:
        """With new units at the end."""
        more = (0, count - len(self.deviation))
        starts = np.pad(self.starts, [(0, 0), more, (0, 0)])
        return FallFilter(self.until, np.pad(self.deviation, more), np.pad(self.certainty, more), starts)

    def without(self, which: Bools) -> FallFilter:
        """With nothing known of these of the U units."""
        kept = ~which
        return FallFilter(self.until, self.deviation * kept, self.certainty * kept, self.starts * kept[:, None])

    def left_out(self, slices: Bools) -> FallFilter:
        """Where labels of (S,) slices are lost: what they were just before is known to be none, nor what all were."""
        if not some(slices):
            return self
        anew = slices & (self.certainty[1:] > 0)
        return self.without(np.concatenate([[True], anew])) if some(anew) else self

    def evidence(self, length: int) -> Floats:
        """(U,) logarithm of the evidence of a fall that has lasted for LEAST_HOURS at least, by steps of `length`."""
        found: Floats = np.maximum.reduce(self._by_start(length), axis=1) / 2
        return found

    def began(self, end: int, length: int) -> Ints:
        """(U,) start of the fall that `evidence` speaks for, seconds; the last step ends at `end`."""
        apart = max(length, HOUR)
        newest = (end - length) // apart * apart
        found: Ints = newest - (self._by_start(length).argmax(axis=1) + _youngest(length)) * apart
        return found

    def _by_start(self, length: int) -> Floats:
        return twice_evidence(*self.starts[AGAINST:, :, _youngest(length) :])


def _youngest(length: int) -> int:
    """Which of the starts is the first to be old enough."""
    return max(-int(-LEAST_HOURS * HOUR // max(length, HOUR)) - 1, 0)


def twice_evidence(against: Floats, information: Floats) -> Floats:
    """Twice the logarithm of the likelihood ratio: a fall beyond TOLERATED against one of just as much."""
    beyond = np.maximum(against - TOLERATED * information, 0.0)
    found: Floats = beyond * beyond / (information + TYPICAL**-2)
    return found


class Forecast(NamedTuple):
    """What T steps say of U units, beside the baseline.

    Attributes:
        persistence: (U,) share of a deviation that is left after a step.
        wander: (U,) its variance.
        moved: (T, U) relative deviation.
        sampling: (T, U) its sampling variance.
    """

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
    forecast = np.minimum(was.deviation * left, BETTER)
    error = seen.wander * (1 - was.certainty * left**2)
    whole = error + seen.sampling[row]
    most = CLIP * np.sqrt(whole)
    weight = has / whole
    miss, gain = np.minimum(np.maximum(seen.moved[row] - forecast, -most), most), error * weight
    begins = length >= HOUR or (end - length) % HOUR == 0
    starts = _begun(was.starts) if begins else was.starts.copy()
    absorbed, against, information = starts
    absorbed *= left[:, None]
    signature = 1 - absorbed
    absorbed += gain[:, None] * signature
    shown = weight[:, None] * signature
    against -= miss[:, None] * shown
    information += shown * signature
    return FallFilter(end, forecast + gain * miss, 1 - error * (1 - gain) / seen.wander, starts)


def _begun(of_starts: Floats) -> Floats:
    """With a new start before the others, the oldest left out."""
    found = np.empty(of_starts.shape)
    found[..., 0], found[..., 1:] = 0.0, of_starts[..., :-1]
    return found
