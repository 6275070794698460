"""The knobs of drift verdicts. One of them is meant to be turned: how many false alarms may come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from monitor.drift.evidence import Threshold
from monitor.drift.series import DAY, HOUR, Bools

BUDGET_HOURS = 90 * 24
OVERALL_SHARE = 0.5
"""Of the budget of false alarms."""
RESERVE = 4.5
"""By how much the threshold may be lower, for the drop that is tolerated keeps most false alarms away by itself."""


@dataclass(frozen=True)
class DriftSettings:
    """How a monitor's partials are judged.

    Attributes:
        step: seconds of a step; divides a day.
        budget: false alarms that are tolerated in 90 days, over overall and all slices together.
        pinned_at: seconds; what lies before is known to be no reference.
        begun_anew: rising seconds from which on the level is another one (a new model version, an acknowledged change).
        reference: seconds of the reference that the baseline is fitted on.
        least_reference: seconds of it from which on verdicts begin, with wider tolerance.
        counts_unlabelled: whether a request without a label is in the measure, as a 0; else it is in none.
    """

    step: int = HOUR
    budget: float = 1.0
    pinned_at: int = 0
    begun_anew: tuple[int, ...] = ()
    reference: int = 28 * DAY
    least_reference: int = 14 * DAY
    counts_unlabelled: bool = True

    def __post_init__(self) -> None:
        """Check what would not do.

        Raises:
            ValueError: the step does not divide a day, or the budget is not positive.
        """
        if self.step <= 0 or DAY % self.step:
            raise ValueError(f"a step of {self.step} seconds does not divide a day")
        if not self.budget > 0:
            raise ValueError("no detector has no false alarms: the budget must be positive")

    @property
    def hours(self) -> float:
        """Of a step."""
        return self.step / HOUR

    def steps(self, hours: float) -> int:
        """Whole steps in so many hours, one at least."""
        return _whole_steps(hours, self.step)

    def pin(self, start: int) -> int:
        """The last moment by `start`, seconds, at which what went before was left behind; 0 if there is none."""
        if not self.begun_anew:  # as ever
            return self.pinned_at if self.pinned_at <= start else 0
        return max((at for at in (self.pinned_at, *self.begun_anew) if at <= start), default=0)

    def thresholds(self, judged: Bools) -> Threshold:
        """The mean number of steps to a false alarm of each unit, by which those that are judged keep the budget.

        Overall, the first, gets OVERALL_SHARE of it: it is what most drops show on first. The slices share the rest.
        """
        whole = BUDGET_HOURS / self.hours / self.budget / RESERVE
        return _shared(whole, len(judged), int(np.count_nonzero(judged[1:])))


@lru_cache
def _shared(whole: float, units: int, slices: int) -> Threshold:
    """What each unit gets of a budget that overall and so many slices share."""
    found = np.full(units, whole)
    found[0] /= OVERALL_SHARE if slices else 1.0
    found[1:] *= max(slices, 1) / (1 - OVERALL_SHARE)
    return Threshold.of(found)


@lru_cache
def _whole_steps(hours: float, step: int) -> int:
    return max(1, round(hours / (step / HOUR)))
