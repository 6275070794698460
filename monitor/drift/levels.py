"""Slow levels: what has come of the baseline's expectations since, with the last days left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.drift.frozen import frozen
from monitor.drift.series import Bools, Floats, Ints

LEFT_OUT_DAYS = 4
"""Whole days before today: a drop that begins is found before it is taken for the level."""
MEMORY_DAYS = 12.0
"""In which a day fades."""
LASTING_DAYS = 10
"""Days in a row, beside those left out, for which a rise must last to be the level: a sale or a feast is none."""
RISE, RISE_Z = 0.02, 4.0
"""Relative rise of a day that is one, and standard errors beyond it by which a first one and the days left out after it
must show that: what thin traffic has by chance is none."""

LEAST_LEFT, FEWER, FEWER_TOGETHER, LEAST_LABELS = 0.1, 0.7, 0.65, 20
"""Share of the labels that days have left that are what is usual from then on, of each day and of all together: below a
half they are suspect, and somewhat above that by turns. And labels that usually tell it."""

TOTAL, EXPECTED, SQUARES, LABELLED, EXPECTED_LABELLED, REQUESTS, EXPECTED_REQUESTS, MEASURED = range(8)
"""Sums of days: REQUESTS are those that came, MEASURED those of them that are in the measure. From REQUESTS on they are
counted whatever is wrong with the data."""
FIELDS = 8
PAIRS = ((TOTAL, EXPECTED), (LABELLED, EXPECTED_LABELLED), (REQUESTS, EXPECTED_REQUESTS))
QUALITY, COVERAGE, VOLUME = range(3)
SHOWN = 4
CROWD = ("requests", "events", "unmatched", "refused", "shown")


@frozen
class DaySums:
    """Sums of a UTC day: (8, S) by slice, (5,) of all slices together; and whether the mix was shifted on it."""

    number: int
    sums: Floats
    crowd: Floats
    is_shifted: bool = False

    @classmethod
    def empty(cls, number: int, slices: int) -> DaySums:
        """Without anything in it."""
        return cls(number, np.zeros((FIELDS, slices)), np.zeros(len(CROWD)))

    def padded(self, slices: int) -> DaySums:
        """With columns of zeros for new slices."""
        return replace(self, sums=np.pad(self.sums, ((0, 0), (0, slices - self.sums.shape[1]))))

    def without(self, slices: Floats) -> DaySums:
        """What the model did left out, where (S,) `slices` is 0; the traffic stays."""
        sums = self.sums.copy()
        sums[:REQUESTS] *= slices
        return replace(self, sums=sums)


@frozen
class Levels:
    """How observed and expected sums compare over the past, older days fading.

    Attributes:
        ratios: (3, S) observed over expected: quality, coverage, volume.
        memory: days that are old enough, faded.
        pending: days that are too young, oldest first; a drop that goes on now is in none of the ratios.
        today: as far as it was judged.
        rising: (S,) days in a row that were clearly better than the level when they were counted in.
        shifted: days in a row on which the mix was shifted, when they were counted in.
    """

    ratios: Floats
    memory: DaySums
    pending: tuple[DaySums, ...]
    today: DaySums
    rising: Ints
    shifted: int

    @classmethod
    def empty(cls, day: int, slices: int) -> Levels:
        """As expected, and nothing seen."""
        nothing, none = DaySums.empty(0, slices), np.zeros(slices, np.int64)
        return cls(np.ones((3, slices)), nothing, (), DaySums.empty(day, slices), none, 0)

    def padded(self, slices: int) -> Levels:
        """With new slices."""
        more = slices - self.ratios.shape[1]
        ratios = np.pad(self.ratios, ((0, 0), (0, more)), constant_values=1.0)
        pending = tuple(day.padded(slices) for day in self.pending)
        rising = np.pad(self.rising, (0, more))
        return Levels(ratios, self.memory.padded(slices), pending, self.today.padded(slices), rising, self.shifted)

    def on(self, day: int) -> Levels:
        """At the beginning of a day: what is old enough is counted in.

        But a rise not before it has lasted: it would be expected of the days after it, and to be as before a fall.
        Nor a shift of the mix: what is usual after a campaign is what was before it.
        """
        pending = (*self.pending, self.today) if self.today.sums[REQUESTS].any() else self.pending
        old = [d for d in pending if d.number < day - LEFT_OUT_DAYS]
        memory, rising, shifted, level = self.memory, self.rising, self.shifted, self.ratios[QUALITY]
        kept = pending[len(old) :]
        for each in old:
            has = (memory.sums[EXPECTED] > 0) & (each.sums[EXPECTED] > 0)
            is_better = has & _rises(each.sums, level)
            lately = sum((d.sums for d in kept), each.sums)
            error = np.hypot(_error(lately), level * lately[EXPECTED] * _error(memory.sums) / _total(memory.sums))
            is_better &= (rising > 0) | _rises(lately, level, RISE_Z * error)
            rising = np.where(is_better, rising + 1, np.where(has, 0, rising))
            counted = _no_better(each, level, is_better & (rising <= LASTING_DAYS))
            shifted = shifted + 1 if each.is_shifted else 0
            if 0 < shifted <= LASTING_DAYS:
                counted = _as_many(counted, self.ratios[VOLUME])
            memory = faded(memory, counted)
        slices = self.ratios.shape[1]
        return Levels(_ratios(memory, self.ratios), memory, kept, DaySums.empty(day, slices), rising, shifted)

    def with_today(self, sums: Floats, crowd: Floats, is_shifted: bool) -> Levels:
        """With other sums of today."""
        today = DaySums(self.today.number, sums, crowd, is_shifted)
        return Levels(self.ratios, self.memory, self.pending, today, self.rising, self.shifted)

    def every(self) -> Floats:
        """(8, S) all that is remembered, the youngest days too."""
        found: Floats = sum((d.sums for d in self.pending), self.memory.sums.copy())
        return found

    def variance(self, level: Floats) -> Floats:
        """(S,) of a request's value, from what is remembered; 0 where nothing is. (S,) `level` is the baseline's."""
        total, expected, squares = self.memory.sums[:LABELLED]
        size = np.divide(expected, level, out=np.zeros(len(level)), where=level > 0)
        has = size > 1
        scale = np.where(has, size, 1.0)
        found: Floats = np.where(has, np.maximum(squares / scale - (total / scale) ** 2, 0.0), 0.0)
        return found

    def without(self, since_day: int, slices: Floats) -> Levels:
        """From a day on, what the model did left out of the slices where (S,) `slices` is 0: a drop began there."""
        pending = tuple(d.without(slices) if d.number >= since_day else d for d in self.pending)
        return replace(self, pending=pending, today=self.today.without(slices))

    def forgotten(self, which: Bools) -> Levels:
        """With nothing known of these of the S slices."""
        days = [replace(d, sums=d.sums * ~which) for d in (self.memory, *self.pending, self.today)]
        return replace(self, memory=days[0], pending=tuple(days[1:-1]), today=days[-1], rising=self.rising * ~which)

    def with_new_volume(self, least: float, most: float) -> Levels:
        """With the requests of the youngest days as what is usual, if each of them had so few, but not next to none.

        Args:
            least, most: shares of the requests that were usual.
        """
        young = np.array([d.sums[REQUESTS:] for d in self.pending])
        if len(young) < LEFT_OUT_DAYS:
            return self
        came, usual = young[:, 0].sum(axis=1), (young[:, 1] * self.ratios[VOLUME]).sum(axis=1)
        if not ((came >= least * usual) & (came < most * usual)).all():
            return self
        sums = self.memory.sums.copy()
        sums[REQUESTS:] = young.sum(axis=0)
        memory = replace(self.memory, sums=sums)
        return replace(self, memory=memory, ratios=_ratios(memory, self.ratios))

    def with_new_coverage(self, share: Floats) -> Levels:
        """With the labels of the youngest days as what is usual, of all or of slices of which so few had one each day.

        Only where requests without a label are in no measure: else they count 0, and their labels explain a fall.

        Args:
            share: (S,) of the requests that have a label, as the baseline has it.
        """
        if len(self.pending) < LEFT_OUT_DAYS:
            return self
        requests, had = (np.array([d.sums[field] for d in self.pending]) for field in (REQUESTS, MEASURED))
        usual = requests * (share * self.ratios[COVERAGE])
        of_all, of_slices = _are_fewer_for_good(had.sum(axis=1), usual.sum(axis=1)), _are_fewer_for_good(had, usual)
        which = of_slices | (of_all & (had.sum(axis=0) < FEWER * usual.sum(axis=0)))
        if not which.any():
            return self
        sums, base = self.memory.sums.copy(), (requests * share).sum(axis=0)
        sums[LABELLED] = np.where(which, had.sum(axis=0), sums[LABELLED])
        sums[EXPECTED_LABELLED] = np.where(which, base, sums[EXPECTED_LABELLED])
        memory = replace(self.memory, sums=sums)
        return replace(self, memory=memory, ratios=_ratios(memory, self.ratios))

    def with_new_lists(self, most: float) -> Levels:
        """With the lists of the youngest days as what is usual, if on each of them they were so much shorter.

        Args:
            most: share of the items a request that were usual.
        """
        young, usual = np.array([d.crowd[[0, SHOWN]] for d in self.pending]), self.memory.crowd
        if len(young) < LEFT_OUT_DAYS or not usual[0] > 0:
            return self
        if not (young[:, 1] < most * usual[SHOWN] / usual[0] * young[:, 0]).all():
            return self
        crowd = usual.copy()
        crowd[SHOWN] = crowd[0] * young[:, 1].sum() / young[:, 0].sum()
        return replace(self, memory=replace(self.memory, crowd=crowd))

    def gathered(self, prior: Floats) -> Levels:
        """With the young days counted in at once, and (S,) `prior` beside them, observed just as expected."""
        sums = self.every()
        sums[TOTAL], sums[EXPECTED] = sums[TOTAL] + prior, sums[EXPECTED] + prior
        crowd = sum((d.crowd for d in self.pending), self.memory.crowd)
        memory = DaySums(self.today.number - 1, sums, crowd)
        return replace(self, ratios=_ratios(memory, self.ratios), memory=memory, pending=())

    def rescaled(self, factors: Floats) -> Levels:
        """With expectations that are (S,) `factors` times what they were."""
        days = [_rescaled(d, factors) for d in (self.memory, *self.pending, self.today)]
        ratios = self.ratios.copy()
        ratios[QUALITY] /= factors
        return replace(self, ratios=ratios, memory=days[0], pending=tuple(days[1:-1]), today=days[-1])


def _rescaled(day: DaySums, factors: Floats) -> DaySums:
    sums = day.sums.copy()
    sums[EXPECTED] *= factors
    return replace(day, sums=sums)


def _rises(sums: Floats, level: Floats, margin: Floats | float = 0.0) -> Bools:
    """(S,) whether the totals of (8, S) sums are above the (S,) level by RISE, and by a margin more."""
    found: Bools = sums[TOTAL] - (1 + RISE) * level * sums[EXPECTED] > margin
    return found


def _error(sums: Floats) -> Floats:
    """(S,) standard error of the totals of (8, S) sums."""
    found: Floats = np.sqrt(np.maximum(sums[SQUARES] - sums[TOTAL] ** 2 / np.maximum(sums[MEASURED], 1), 0))
    return found


def _total(sums: Floats) -> Floats:
    """(S,) totals of (8, S) sums, to divide by."""
    found: Floats = np.maximum(sums[TOTAL], 1e-9)
    return found


def _no_better(day: DaySums, level: Floats, which: Bools) -> DaySums:
    """The day with some of the (S,) slices at the level, and what they were above it left out."""
    part = np.divide(level * day.sums[EXPECTED], day.sums[TOTAL], out=np.ones(len(level)), where=which)
    sums = day.sums.copy()
    sums[[TOTAL, SQUARES]] *= part
    return replace(day, sums=sums)


def _are_fewer_for_good(had: Floats, usual: Floats) -> Bools:
    """(...) whether on each of (N, ...) days fewer requests had a label than usual, though not next to none."""
    is_fewer, whole = ((had >= LEAST_LEFT * usual) & (had < FEWER * usual)).all(axis=0), usual.sum(axis=0)
    found: Bools = is_fewer & (whole >= LEAST_LABELS) & (had.sum(axis=0) < FEWER_TOGETHER * whole)
    return found


def _as_many(day: DaySums, volume: Floats) -> DaySums:
    """The day with as many requests expected of the (S,) slices as came, at the levels of their volumes."""
    sums = day.sums.copy()
    sums[EXPECTED_REQUESTS] = np.divide(sums[REQUESTS], volume, out=np.zeros(len(volume)), where=volume > 0)
    return replace(day, sums=sums)


def faded(memory: DaySums, day: DaySums) -> DaySums:
    """A day put into what is remembered of those before it."""
    keep = float(np.exp(-1 / MEMORY_DAYS))
    return DaySums(day.number, memory.sums * keep + day.sums, memory.crowd * keep + day.crowd)


def _ratios(memory: DaySums, before: Floats) -> Floats:
    """(3, S); as before where nothing is remembered."""
    found = before.copy()
    for row, (seen, expected) in enumerate(PAIRS):
        over, under = memory.sums[seen], memory.sums[expected]
        np.divide(over, under, out=found[row], where=under > 1e-9)
    return found
