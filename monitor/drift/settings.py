"""The settings of drift verdicts. Only the budget of false alarms is meant to be tuned."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.drift import constants as c
from monitor.units import DAY, HOUR, WEEK


class EvidenceThreshold(NamedTuple):
    """What the evidence of U units is compared with; read-only.

    Attributes:
        each: (U,) mean number of steps to a false alarm; `half` has half its logarithm, `logarithm` is (U, 1).
        most, most_logarithm: (U, 3), (U,) cap on the evidence, the same for each stake.
    """

    each: Floats
    half: Floats
    logarithm: Floats
    most: Floats
    most_logarithm: Floats

    @classmethod
    def of(cls, each: Floats) -> EvidenceThreshold:
        """The threshold for (U,) mean numbers of steps to a false alarm."""
        most = each * c.EVIDENCE_CAP
        of_stakes = np.repeat(most[:, None], len(c.STAKES), axis=1)
        found = cls(each, np.sqrt(each), np.log(each)[:, None], of_stakes, np.log(most))
        for part in found:
            part.flags.writeable = False
        return found


@dataclass(frozen=True)
class DriftSettings:
    """How a monitor's partials are judged. Raises ValueError if the step does not divide a day or the budget is 0.

    Attributes:
        step: seconds; divides a day.
        budget: tolerated false alarms in 90 days, over overall and all slices together.
        pinned_at: seconds; earlier steps are not part of a reference.
        resets: rising seconds at which a new level begins (a new version, an acknowledged change).
        reference, least_reference: seconds of a whole reference, and of the shortest that gives verdicts.
        announced: spans (since, until) in seconds that are neither judged nor learnt from.
        sound: ends of steps, seconds in [since, until), whose labels are known to be there however few.
        rollouts: (end of a step in seconds, share of the requests that model versions have just gained).
        counts_unlabelled: whether an unlabelled request counts 0; else it is in no measure.
        zone: of the people whose days and weeks the cycles are.
    """

    step: int = HOUR
    budget: float = 1.0
    pinned_at: int = 0
    resets: tuple[int, ...] = ()
    reference: int = c.REFERENCE_DAYS * DAY
    least_reference: int = c.LEAST_REFERENCE_DAYS * DAY
    announced: tuple[tuple[int, int], ...] = ()
    sound: tuple[tuple[int, int], ...] = ()
    rollouts: tuple[tuple[int, float], ...] = ()
    counts_unlabelled: bool = True
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        if self.step <= 0 or DAY % self.step:
            raise ValueError(f"a step of {self.step} seconds does not divide a day")
        if not self.budget > 0:
            raise ValueError("no detector has no false alarms: the budget must be positive")

    @property
    def hours(self) -> float:
        """Hours per step."""
        return self.step / HOUR

    @property
    def day(self) -> int:
        """Steps per day."""
        return DAY // self.step

    @property
    def few(self) -> int:
        """Steps in the short window that shows data faults; at least one."""
        return self.steps(c.SHORT_HOURS)

    @property
    def lasting(self) -> int:
        """Seconds for which a fault makes later steps unusable, since they share the short window with it."""
        return (self.few - 1) * self.step

    def steps(self, hours: float) -> int:
        """Whole steps in this many hours, at least one."""
        return _whole_steps(hours, self.step)

    @property
    def fits_after(self) -> tuple[int, ...]:
        """Seconds of reference after which each baseline is fitted; all but the first leave the youngest days out."""
        least, whole = self.least_reference, self.reference
        return least, (least + whole) // 2, whole, whole + c.LEFT_OUT_DAYS * DAY

    @property
    def cuts(self) -> tuple[int, ...]:
        """Instants, seconds, at which judging changes."""
        return (self.pinned_at, *self.resets, *(at for span in self.announced for at in span))

    def is_announced(self, start: int) -> bool:
        """Whether the step that begins at `start` (seconds) lies in an announced span."""
        return any(since <= start < until for since, until in self.announced)

    def are_labels_sound(self, end: int) -> bool:
        """Whether the labels of the step that ends at `end` (seconds) are known to be there."""
        return any(since <= end < until for since, until in self.sound)

    def rolled_out(self, end: int) -> float:
        """Largest share of the requests that model versions were found to gain in the day up to `end`, seconds."""
        first, after = (bisect_right(self.rollouts, (at, np.inf)) for at in (end - DAY, end))
        return max((share for _, share in self.rollouts[first:after]), default=0.0)

    def pin(self, start: int) -> int:
        """The last pin or reset up to `start` (seconds); 0 if none."""
        if not self.resets:
            return self.pinned_at if self.pinned_at <= start else 0
        return max((at for at in (self.pinned_at, *self.resets) if at <= start), default=0)

    def slots(self, starts: Ints) -> Ints:
        """(T,) number of each step within its week, which begins on Thursday as the epoch does, by the clock of `zone`.

        `starts` are (T,) seconds; a step belongs where its middle is.
        """
        middles = starts + self.step // 2
        if self.zone is not UTC:
            middles = middles + np.array([self._ahead(at) for at in middles.tolist()], np.int64)
        return middles // self.step % (WEEK // self.step)

    def _ahead(self, at: int) -> int:
        ahead = datetime.fromtimestamp(at, self.zone).utcoffset()
        return 0 if ahead is None else int(ahead.total_seconds())

    def thresholds(self, judged: Bools) -> EvidenceThreshold:
        """The threshold of each unit, overall first, with which the (U,) judged ones keep the budget."""
        whole = c.BUDGET_HOURS / self.hours / self.budget / c.RESERVE
        return _shared(whole, len(judged), int(np.count_nonzero(judged[1:])))


@lru_cache
def _shared(whole: float, units: int, slices: int) -> EvidenceThreshold:
    found = np.full(units, whole)
    found[0] /= c.OVERALL_SHARE if slices else 1.0
    found[1:] *= max(slices, 1) / (1 - c.OVERALL_SHARE)
    return EvidenceThreshold.of(found)


@lru_cache
def _whole_steps(hours: float, step: int) -> int:
    return max(1, round(hours / (step / HOUR)))
