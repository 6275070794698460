"""What changes slowly: each slice's level, its forecast error, and the shared daily cycle. Older days fade; the
youngest are left out, so that a new drop is found before it becomes the level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.drift import constants as c
from monitor.drift import data_checks as checks
from monitor.drift.baseline import DriftBaseline, Reference
from monitor.drift.noise import Noise
from monitor.drift.seasonality import WEEKDAYS, regressors
from monitor.drift.series import all_of, frozen, units, widened
from monitor.drift.settings import DriftSettings
from monitor.units import DAY

TOTAL, EXPECTED, SQUARES, GAIN, LABELLED, EXPECTED_LABELLED, REQUESTS, EXPECTED_REQUESTS, MEASURED = range(9)
"""Fields of day sums: GAIN, values times their ideal; all REQUESTS; MEASURED, those in the measure.
Fields from REQUESTS on count even bad data."""
FIELDS = 9
PAIRS = ((TOTAL, EXPECTED), (LABELLED, EXPECTED_LABELLED), (REQUESTS, EXPECTED_REQUESTS))
QUALITY, COVERAGE, VOLUME = range(3)
SHOWN, RANK_ONE = 4, 5
CROWD = ("requests", "events", "unmatched", "refused", "shown", "rank_one")


@frozen
class DaySums:
    """Sums of a UTC day: (9, S) by slice, (6,) over all slices, and whether the mix had shifted."""

    number: int
    sums: Floats
    crowd: Floats
    is_shifted: bool = False

    @classmethod
    def empty(cls, number: int, slices: int) -> DaySums:
        return cls(number, np.zeros((FIELDS, slices)), np.zeros(len(CROWD)))

    def scaled(self, fields: int | slice | list[int], factors: Floats) -> DaySums:
        """The day with some of its sums times (S,) factors."""
        sums = self.sums.copy()
        sums[fields] *= factors
        return replace(self, sums=sums)

    def without(self, slices: Floats) -> DaySums:
        """The day without the model's part where (S,) `slices` is 0; the traffic stays."""
        return self.scaled(slice(REQUESTS), slices)


@frozen
class Levels:
    """Observed against expected sums over the past.

    Attributes:
        ratios: (3, S) observed over expected: quality, coverage, volume.
        memory, pending, today: old days, faded; days too young to count, oldest first; today so far.
        rising: (S,) days in a row clearly better than the level, when counted in.
        shifted: days in a row with a shifted mix or twice the requests, when counted in.
    """

    ratios: Floats
    memory: DaySums
    pending: tuple[DaySums, ...]
    today: DaySums
    rising: Ints
    shifted: int

    @classmethod
    def empty(cls, day: int, slices: int) -> Levels:
        """The levels before any data: all as expected."""
        nothing, none = DaySums.empty(0, slices), np.zeros(slices, np.int64)
        return cls(np.ones((3, slices)), nothing, (), DaySums.empty(day, slices), none, 0)

    def padded(self, slices: int) -> Levels:
        pending = tuple(widened(day, DaySums.empty(0, slices)) for day in self.pending)
        return replace(widened(self, Levels.empty(0, slices)), pending=pending)

    def _each_day(self, change: Callable[[DaySums], DaySums]) -> Levels:
        days = tuple(change(day) for day in self.pending)
        return replace(self, memory=change(self.memory), pending=days, today=change(self.today))

    def on(self, day: int) -> Levels:
        """The levels at the start of a day, with the days that are old enough counted in.

        A rise counts only once it has lasted, or the return to normal would look like a fall. Likewise a shift of
        the mix and a flood of requests: after a campaign the old mix is usual again.
        """
        pending = (*self.pending, self.today) if self.today.sums[REQUESTS].any() else self.pending
        old = [d for d in pending if d.number < day - c.LEFT_OUT_DAYS]
        memory, rising, shifted, level = self.memory, self.rising, self.shifted, self.ratios[QUALITY]
        kept = pending[len(old) :]
        for each in old:
            has = (memory.sums[EXPECTED] > 0) & (each.sums[EXPECTED] > 0)
            is_better = has & _rises(each.sums, level)
            lately = sum((d.sums for d in kept), each.sums)
            error = np.hypot(_error(lately), level * lately[EXPECTED] * _error(memory.sums) / _total(memory.sums))
            is_better &= (rising > 0) | _rises(lately, level, c.RISE_Z * error)
            rising = np.where(is_better, rising + 1, np.where(has, 0, rising))
            counted = _no_better(each, level, is_better & (rising <= c.RISE_DAYS))
            shifted = shifted + 1 if each.is_shifted or self._has_twice_as_many(each) else 0
            if 0 < shifted <= c.RISE_DAYS:
                counted = _as_many(counted, self.ratios[VOLUME])
            if _has_other_lists(counted.crowd, memory.crowd):
                counted = replace(counted, crowd=_with_lists_of(counted.crowd, memory.crowd))
            memory = faded(memory, counted)
        slices = self.ratios.shape[1]
        return Levels(_ratios(memory, self.ratios), memory, kept, DaySums.empty(day, slices), rising, shifted)

    def _has_twice_as_many(self, day: DaySums) -> bool:
        usual = float((day.sums[EXPECTED_REQUESTS] * self.ratios[VOLUME]).sum())
        return bool(usual < c.TRAFFIC_RATIO * day.sums[REQUESTS].sum())

    def with_today(self, sums: Floats, crowd: Floats, is_shifted: bool) -> Levels:
        today = DaySums(self.today.number, sums, crowd, is_shifted)
        return Levels(self.ratios, self.memory, self.pending, today, self.rising, self.shifted)

    def every(self) -> Floats:
        """(9, S) sums of all remembered days, including the youngest."""
        return sum((d.sums for d in self.pending), self.memory.sums.copy())

    @property
    def ideal(self) -> Floats:
        """(S,) what values were divided by, on average; 1 if nothing is known."""
        sums = self.memory.sums if all_of(self.memory.sums[TOTAL] > 0) else self.every()
        return np.divide(sums[GAIN], sums[TOTAL], out=np.ones(sums.shape[1]), where=sums[TOTAL] > 0)

    def variance(self, level: Floats) -> Floats:
        """(S,) variance of a request's value over the remembered days, 0 if none. `level` is the baseline's, (S,)."""
        total, expected, squares = self.memory.sums[:GAIN]
        size = np.divide(expected, level, out=np.zeros(len(level)), where=level > 0)
        has = size > 1
        scale = np.where(has, size, 1.0)
        return np.where(has, np.maximum(squares / scale - (total / scale) ** 2, 0.0), 0.0)

    def without(self, since_day: int, slices: Floats) -> Levels:
        """The levels without the model's part of slices where (S,) `slices` is 0, from the day a drop began."""
        pending = tuple(d.without(slices) if d.number >= since_day else d for d in self.pending)
        return replace(self, pending=pending, today=self.today.without(slices))

    def forgotten(self, which: Bools) -> Levels:
        """The levels with these slices reset."""
        found = self._each_day(lambda day: replace(day, sums=day.sums * ~which))
        return replace(found, rising=self.rising * ~which)

    def with_new_volume(self) -> Levels:
        """Takes the requests of the youngest days as usual, if each of them had few but not almost none."""
        young = np.array([d.sums[REQUESTS:] for d in self.pending])
        if len(young) < c.LEFT_OUT_DAYS:
            return self
        came, usual = young[:, 0].sum(axis=1), (young[:, 1] * self.ratios[VOLUME]).sum(axis=1)
        if not ((came >= c.NEXT_TO_NONE * usual) & (came < c.TRAFFIC_RATIO * usual)).all():
            return self
        sums = self.memory.sums.copy()
        sums[REQUESTS:] = young.sum(axis=0)
        return self._remembering(sums)

    def _remembering(self, sums: Floats) -> Levels:
        memory = replace(self.memory, sums=sums)
        return replace(self, memory=memory, ratios=_ratios(memory, self.ratios))

    def with_new_coverage(self, share: Floats) -> Levels:
        """Takes the labels of the youngest days as usual, overall or by slice, if each had few but not almost none.

        Only if unlabelled requests are in no measure; otherwise they count 0, and missing labels explain a fall.
        (S,) `share` is the baseline's share of requests with a label.
        """
        if len(self.pending) < c.LEFT_OUT_DAYS:
            return self
        requests, had = (np.array([d.sums[field] for d in self.pending]) for field in (REQUESTS, MEASURED))
        usual = requests * (share * self.ratios[COVERAGE])
        of_all, of_slices = _are_fewer_for_good(had.sum(axis=1), usual.sum(axis=1)), _are_fewer_for_good(had, usual)
        which = of_slices | (of_all & (had.sum(axis=0) < c.FEWER_LABELS * usual.sum(axis=0)))
        if not which.any():
            return self
        sums, base = self.memory.sums.copy(), (requests * share).sum(axis=0)
        sums[LABELLED] = np.where(which, had.sum(axis=0), sums[LABELLED])
        sums[EXPECTED_LABELLED] = np.where(which, base, sums[EXPECTED_LABELLED])
        return self._remembering(sums)

    def with_new_lists(self) -> Levels:
        """Takes the lists of the youngest days as usual, if each had much shorter ones, or other ranks."""
        young, usual = np.array([d.crowd for d in self.pending]), self.memory.crowd
        if len(young) < c.LEFT_OUT_DAYS or not usual[0] > 0:
            return self
        if not all(_has_other_lists(day, usual) for day in young):
            return self
        crowd = usual.copy()
        crowd[SHOWN:] = crowd[0] * young[:, SHOWN:].sum(axis=0) / young[:, 0].sum()
        return replace(self, memory=replace(self.memory, crowd=crowd))

    def gathered(self, prior: Floats) -> Levels:
        """The levels with the young days counted in at once, and (S,) `prior` added to observed and expected sums."""
        sums, gain = self.every(), prior * self.ideal
        sums[TOTAL], sums[EXPECTED], sums[GAIN] = sums[TOTAL] + prior, sums[EXPECTED] + prior, sums[GAIN] + gain
        crowd = sum((d.crowd for d in self.pending), self.memory.crowd)
        memory = DaySums(self.today.number - 1, sums, crowd)
        return replace(self, ratios=_ratios(memory, self.ratios), memory=memory, pending=())

    def rescaled(self, factors: Floats) -> Levels:
        """The levels with expectations times (S,) `factors`; a ratio to an expectation of 0 stays."""
        ratios = self.ratios.copy()
        np.divide(ratios[QUALITY], factors, out=ratios[QUALITY], where=factors > 0)
        return replace(self._each_day(lambda day: day.scaled(EXPECTED, factors)), ratios=ratios)


def _rises(sums: Floats, level: Floats, margin: Floats | float = 0.0) -> Bools:
    return sums[TOTAL] - (1 + c.LEAST_CHANGE) * level * sums[EXPECTED] > margin


def _error(sums: Floats) -> Floats:
    return np.sqrt(np.maximum(sums[SQUARES] - sums[TOTAL] ** 2 / np.maximum(sums[MEASURED], 1), 0))


def _total(sums: Floats) -> Floats:
    return np.maximum(sums[TOTAL], 1e-9)


def _no_better(day: DaySums, level: Floats, which: Bools) -> DaySums:
    part = np.divide(level * day.sums[EXPECTED], day.sums[TOTAL], out=np.ones(len(level)), where=which)
    return day.scaled([TOTAL, SQUARES, GAIN], part)


def _are_fewer_for_good(had: Floats, usual: Floats) -> Bools:
    """(...) whether each of (N, ...) days had fewer labels than usual, but not almost none."""
    is_fewer, whole = ((had >= c.NEXT_TO_NONE * usual) & (had < c.FEWER_LABELS * usual)).all(axis=0), usual.sum(axis=0)
    return is_fewer & (whole >= c.FEW) & (had.sum(axis=0) < c.FEWER_LABELS_TOGETHER * whole)


def _has_other_lists(day: Floats, usual: Floats) -> bool:
    """Whether a day had much shorter lists than usual, or far fewer or more items at rank 1."""
    (requests, *_, items, ranked), (size, *_, usual_items, usual_ranked) = day.tolist(), usual.tolist()
    if not (requests > 0 and size > 0):
        return False
    is_short = items * size < c.LISTS_RATIO * usual_items * requests
    return (
        is_short or abs(ranked * size - usual_ranked * requests) > c.SURE_Z * c.LEAST_CHANGE * usual_ranked * requests
    )


def _with_lists_of(day: Floats, usual: Floats) -> Floats:
    found = day.copy()
    found[SHOWN:] = usual[SHOWN:] * day[0] / usual[0]
    return found


def _as_many(day: DaySums, volume: Floats) -> DaySums:
    sums = day.sums.copy()
    sums[EXPECTED_REQUESTS] = np.divide(sums[REQUESTS], volume, out=np.zeros(len(volume)), where=volume > 0)
    return replace(day, sums=sums)


def faded(memory: DaySums, day: DaySums) -> DaySums:
    """The faded memory with one more day added."""
    keep = float(np.exp(-1 / c.LEVEL_MEMORY_DAYS))
    return DaySums(day.number, memory.sums * keep + day.sums, memory.crowd * keep + day.crowd)


def _ratios(memory: DaySums, before: Floats) -> Floats:
    found = before.copy()
    for row, (seen, expected) in enumerate(PAIRS):
        over, under = memory.sums[seen], memory.sums[expected]
        np.divide(over, under, out=found[row], where=under > 1e-9)
    return found


# ---- what is tolerated ----------------------------------------------------------------------------------------------


def doubt(baseline: DriftBaseline, present: Floats, usual: Floats, is_shifted: bool) -> Floats:
    """(T,) relative extra tolerance of overall: for a shifted mix, or slices whose level is little known.

    By (T, S) expected sums of the actual and of the usual requests; (1,) if no slice is little known.
    """
    by_mix = c.LEAST_TOLERATED * is_shifted
    if not baseline.has_thin_slices:
        return np.array([by_mix])
    variance = baseline.noise.level_error[1:]
    errors = np.sqrt((np.stack([present, usual]) ** 2 * variance).sum(axis=2))
    now, then = errors / np.maximum(np.stack([present, usual]).sum(axis=2), 1e-9)
    more: Floats = c.STANDARD_ERRORS * np.maximum(now - c.DOUBTFUL_MIX * then, 0.0) + by_mix
    return more.clip(max=max(c.NEARLY_ALL - float(baseline.noise.tolerated[0]), 0.0))


@dataclass(frozen=True)
class ForecastErrors:
    """Misses of forecasts over blocks of three days, without sampling variance; older ones fade.

    The youngest blocks do not count yet: a new drop must not widen what is tolerated before it is found.

    Attributes:
        over, under: (U,) weighted sum of squared relative misses, and sum of the weights.
        chance: (U,) sampling variance of the last block.
        young: (LEFT_OUT_DAYS, 2, U) parts of `over` and `under` that do not count yet, oldest first.
    """

    over: Floats
    under: Floats
    chance: Floats
    young: Floats

    @classmethod
    def empty(cls, count: int) -> ForecastErrors:
        nothing = np.zeros(count)
        return cls(nothing, nothing, nothing, np.zeros((c.LEFT_OUT_DAYS, 2, count)))

    def after(self, levels: Levels, baseline: DriftBaseline) -> ForecastErrors:
        """The errors with the three days before `today`, which the forecast had left out, if all are known."""
        days = levels.pending[-c.ERROR_BLOCK_DAYS :]
        first = levels.today.number - c.ERROR_BLOCK_DAYS
        if [d.number for d in days] != [first + i for i in range(c.ERROR_BLOCK_DAYS)]:
            return self
        sums = sum((d.sums for d in days[1:]), days[0].sums) * baseline.known
        forecast = sums[EXPECTED] * levels.ratios[QUALITY]
        requests = np.divide(
            forecast, baseline.quality.level, out=np.zeros(len(forecast)), where=baseline.quality.level > 0
        )
        total, expected, chance = units(np.stack([sums[TOTAL], forecast, requests * baseline.quality.variance]))
        has = expected > 0
        scale = np.where(has, expected, 1.0)
        miss, chance = np.where(has, total / scale - 1, 0.0), chance / scale**2
        weight, keep = np.where(has, 1 / (chance + c.STEP_NOISE**2), 0.0), float(np.exp(-1 / c.ERROR_MEMORY_DAYS))
        over, under = np.stack([self.over, self.under]) * keep + self.young[0]
        young = np.concatenate([self.young[1:], [[weight * (miss**2 - chance), weight]]])
        return ForecastErrors(over, under, chance, young)

    def without_young(self) -> ForecastErrors:
        """The errors without the youngest blocks, once an alarm has opened in them."""
        return replace(self, young=np.zeros_like(self.young))

    def with_young(self) -> ForecastErrors:
        """The errors with the youngest blocks counted in at once."""
        over, under = np.stack([self.over, self.under]) + self.young.sum(axis=0)
        return replace(self, over=over, under=under).without_young()

    def noise(self, settings: DriftSettings, baseline: DriftBaseline, levels: Levels) -> Noise:
        """The baseline's noise plus the misses; less is tolerated where sampling blurs a day anyway."""
        variance = np.maximum(np.divide(self.over, self.under, out=np.zeros(len(self.over)), where=self.under > 0), 0)
        wider = np.sqrt(max(c.REFERENCE_DAYS / max(baseline.days, 1.0), 1.0))
        visible = variance / np.maximum(variance + c.ERROR_BLOCK_DAYS * self.chance, 1e-12)
        least = np.full(len(variance), c.LEAST_CHANGE)
        least[0] = c.LEAST_TOLERATED
        usual = np.clip(c.TOLERATED_DEVIATIONS * np.sqrt(variance) * visible, least, c.MOST_TOLERATED) * wider
        tolerated = np.minimum(np.sqrt(usual**2 + c.STANDARD_ERRORS**2 * baseline.noise.level_error), c.NEARLY_ALL)
        slow = c.SLOW_TEMPER * variance * c.ERROR_BLOCK_DAYS * DAY / settings.step
        common, of_requests = np.maximum(baseline.noise.step_variance, slow), baseline.noise.variance.copy()
        of_requests[1:] = np.maximum(baseline.quality.variance, levels.variance(baseline.quality.level))
        return replace(baseline.noise, tolerated=tolerated, common=common, variance=of_requests)


# ---- daily cycle ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DailyCycle:
    """How the shared daily cycle has moved since it was fitted, by K harmonics.

    Attributes:
        moved: (K,) change of the baseline's coefficients, already included in them.
        memory: (K + 1, K + 2) normal equations of old days, faded: level first, response last.
        numbers: (D,) rising numbers of the days too young to count.
        pending: (D, K + 1, K + 2) their equations.
    """

    moved: Floats
    memory: Floats
    numbers: Ints
    pending: Floats

    @classmethod
    def empty(cls, step: int) -> DailyCycle:
        """The cycle with no data, free to move."""
        count = _harmonics(step).shape[1]
        equations = np.zeros((0, count, count + 1))
        return cls(np.zeros(count - 1), np.zeros((count, count + 1)), np.zeros(0, np.int64), equations)

    @classmethod
    def fitted(cls, settings: DriftSettings, reference: Reference, kept: Floats, baseline: DriftBaseline) -> DailyCycle:
        """The cycle as fitted on the reference, of which (T, S) `kept` counts; not moved yet."""
        size = reference.precise().requests * kept * baseline.known
        x = _harmonics(settings.step)[settings.slots(reference.starts)]
        none = np.zeros(len(x))
        return replace(cls.empty(settings.step), memory=_equations(x, size, none, baseline, baseline.quality.level))

    def young(self) -> DailyCycle:
        """The cycle without the young days, for a new level."""
        return replace(self, numbers=self.numbers[:0], pending=self.pending[:0])

    def after(
        self, settings: DriftSettings, levels: Levels, day: int, sums: Floats, baseline: DriftBaseline, since: int
    ) -> DailyCycle:
        """The cycle at the start of a day, before the levels are updated.

        Args:
            sums: (9, R, S) of the day before, fields as in `data_checks`.
            since: start of the open alarms' falls, seconds; later days are ignored.
        """
        numbers, pending = self.numbers, self.pending
        if _is_whole(levels, sums, baseline):
            numbers = np.append(numbers, levels.today.number)
            pending = np.concatenate([pending, self._day(settings, levels, sums, baseline)[None]])
        kept = numbers < since // DAY
        numbers, pending = numbers[kept], pending[kept]
        old = numbers < day - c.LEFT_OUT_DAYS
        memory, keep = self.memory, float(np.exp(-1 / c.REFERENCE_DAYS))
        for equations in pending[old]:
            memory = memory * keep + equations
        moved = _solved(memory) if old.any() else self.moved
        return DailyCycle(moved, memory, numbers[~old], pending[~old])

    def _day(self, settings: DriftSettings, levels: Levels, sums: Floats, baseline: DriftBaseline) -> Floats:
        slot = settings.slots(levels.today.number * DAY + np.arange(sums.shape[1]) * settings.step)
        x, size = _harmonics(settings.step)[slot], sums[checks.JUDGED]
        level = baseline.quality.level * levels.ratios[QUALITY]
        whole = np.maximum((size * level).sum(axis=1), 1e-9)
        off = (sums[checks.TOTAL] - sums[checks.EXPECTED]).sum(axis=1) / whole
        return _equations(x, size, off + x[:, 1:] @ self.moved, baseline, level)


def with_cycle(baseline: DriftBaseline, was: DailyCycle, now: DailyCycle) -> DriftBaseline:
    """The baseline with the cycle moved from `was` to `now`."""
    if (was.moved == now.moved).all():
        return baseline
    shared = baseline.quality.shared.copy()
    shared[: len(now.moved)] += now.moved - was.moved
    return replace(baseline, quality=replace(baseline.quality, shared=shared))


def _harmonics(step: int) -> Floats:
    waves = regressors(step)[:, :-WEEKDAYS]
    return np.concatenate([np.ones((len(waves), 1)), waves], axis=1)


def _equations(x: Floats, size: Floats, response: Floats, baseline: DriftBaseline, level: Floats) -> Floats:
    """(K + 1, K + 2) normal equations of T steps, response last; weighted so that thin traffic hardly counts."""
    whole = (size * level).sum(axis=1)
    scale = np.maximum(whole, 1e-9)
    sampling = (size * baseline.quality.variance).sum(axis=1) / scale**2
    weight = (whole > 0) / (c.REPEATED * (sampling + c.STEP_NOISE**2) + float(baseline.noise.long_run[0]))
    weighted = x * weight[:, None]
    return np.concatenate([weighted.T @ x, (weighted.T @ response)[:, None]], axis=1)


def _is_whole(levels: Levels, sums: Floats, baseline: DriftBaseline) -> bool:
    """Whether the steps cover the whole day and all were counted in."""
    today, known = levels.today.sums, baseline.known
    requests = np.allclose(today[REQUESTS], sums[checks.REQUESTS].sum(axis=0), rtol=c.CYCLE_ALIKE, atol=0)
    total = np.allclose(today[TOTAL] * known, sums[checks.TOTAL].sum(axis=0), rtol=c.CYCLE_ALIKE, atol=0)
    return bool(requests and total and today[REQUESTS].any())


def _solved(equations: Floats) -> Floats:
    normal = equations[:, :-1].copy()
    places = np.arange(len(normal))
    normal[places, places] += np.concatenate([[1.0], np.full(len(normal) - 1, c.SHARED_SPREAD**-2)])
    return np.asarray(np.linalg.solve(normal, equations[:, -1])[1:], np.float64)
