"""The daily cycle that all slices share, as it becomes in months: a day in winter is another than one in summer.

It is fitted once, and then followed: days that are old enough, fade, and on which nothing was the matter tell by how
much the cycle has moved (weighted ridge regression on the day's harmonics, beside a level, which is tracked by itself).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.drift import gates
from monitor.drift import levels as lv
from monitor.drift.baseline import DriftBaseline, Reference
from monitor.drift.levels import LEFT_OUT_DAYS, Levels
from monitor.drift.seasons import NOISE, REPEATED, SHARED_SPREAD, WEEKDAYS, regressors, slots
from monitor.drift.series import DAY, Floats, Ints
from monitor.drift.settings import DriftSettings

MEMORY_DAYS = 28.0
"""In which a day fades."""
ALIKE = 1e-9
"""Relative difference up to which two sums are of the same steps."""


@dataclass(frozen=True)
class DailyCycle:
    """How the shared daily cycle has moved since it was fitted, by K harmonics.

    Attributes:
        moved: (K,) change of the baseline's coefficients, which it has in it.
        memory: (K + 1, K + 2) normal equations of the days that are old enough, faded: level first, response last.
        numbers: (D,) of the days that are too young, rising.
        pending: (D, K + 1, K + 2) their equations.
    """

    moved: Floats
    memory: Floats
    numbers: Ints
    pending: Floats

    @classmethod
    def empty(cls, step: int) -> DailyCycle:
        """Nothing known, not even that it stays."""
        count = _harmonics(step).shape[1]
        equations = np.zeros((0, count, count + 1))
        return cls(np.zeros(count - 1), np.zeros((count, count + 1)), np.zeros(0, np.int64), equations)

    @classmethod
    def fitted(cls, settings: DriftSettings, reference: Reference, kept: Floats, found: DriftBaseline) -> DailyCycle:
        """What a baseline knows of its cycle by the reference that it was fitted on: it has not moved.

        Args:
            kept: (T, S) what counted of the reference.
        """
        size = reference.precise().requests * kept * found.known
        x = _harmonics(settings.step)[slots(reference.starts, settings.step)]
        none = np.zeros(len(x))
        return replace(cls.empty(settings.step), memory=_equations(x, size, none, found, found.quality.level))

    def young(self) -> DailyCycle:
        """Without the days that are too young: what comes is another level."""
        return replace(self, numbers=self.numbers[:0], pending=self.pending[:0])

    def after(
        self, settings: DriftSettings, levels: Levels, day: int, sums: Floats, found: DriftBaseline, since: int
    ) -> DailyCycle:
        """At the beginning of a day, before the levels are.

        Args:
            sums: (8, R, S) of the day before as far as it is the last day, fields as in `gates`.
            since: start of what alarms that are open are about, seconds; days from there on say nothing.
        """
        numbers, pending = self.numbers, self.pending
        if _is_whole(levels, sums, found):
            numbers = np.append(numbers, levels.today.number)
            pending = np.concatenate([pending, self._day(settings, levels, sums, found)[None]])
        kept = numbers < since // DAY
        numbers, pending = numbers[kept], pending[kept]
        old = numbers < day - LEFT_OUT_DAYS
        memory, keep = self.memory, float(np.exp(-1 / MEMORY_DAYS))
        for equations in pending[old]:
            memory = memory * keep + equations
        moved = _solved(memory) if old.any() else self.moved
        return DailyCycle(moved, memory, numbers[~old], pending[~old])

    def _day(self, settings: DriftSettings, levels: Levels, sums: Floats, found: DriftBaseline) -> Floats:
        """The equations of a day, on the whole movement since the fit."""
        slot = slots(levels.today.number * DAY + np.arange(sums.shape[1]) * settings.step, settings.step)
        x, size = _harmonics(settings.step)[slot], sums[gates.JUDGED]
        level = found.quality.level * levels.ratios[lv.QUALITY]
        whole = np.maximum((size * level).sum(axis=1), 1e-9)
        off = (sums[gates.TOTAL] - sums[gates.EXPECTED]).sum(axis=1) / whole
        return _equations(x, size, off + x[:, 1:] @ self.moved, found, level)


def followed(found: DriftBaseline, was: DailyCycle, now: DailyCycle) -> DriftBaseline:
    """The baseline with the cycle as it is now."""
    if (was.moved == now.moved).all():
        return found
    shared = found.quality.shared.copy()
    shared[: len(now.moved)] += now.moved - was.moved
    return replace(found, quality=replace(found.quality, shared=shared))


def _harmonics(step: int) -> Floats:
    """(P, K + 1) for the slots of a week: a level, and the day's harmonics."""
    waves = regressors(step)[:, :-WEEKDAYS]
    return np.concatenate([np.ones((len(waves), 1)), waves], axis=1)


def _equations(x: Floats, size: Floats, response: Floats, found: DriftBaseline, level: Floats) -> Floats:
    """(K + 1, K + 2) weighted normal equations of T steps, with the weighted response in the last column.

    Steps are weighed with as much care as when the cycle is fitted: of thin traffic it hardly moves.

    Args:
        x: (T, K + 1)
        size: (T, S) requests.
        response: (T,) relative to the level.
        level: (S,) of a request's value.
    """
    whole = (size * level).sum(axis=1)
    scale = np.maximum(whole, 1e-9)
    sampling = (size * found.quality.variance).sum(axis=1) / scale**2
    weight = (whole > 0) / (REPEATED * (sampling + NOISE**2) + float(found.noise.long_run[0]))
    weighted = x * weight[:, None]
    return np.concatenate([weighted.T @ x, (weighted.T @ response)[:, None]], axis=1)


def _is_whole(levels: Levels, sums: Floats, found: DriftBaseline) -> bool:
    """Whether the steps are those of the day, and all of them were fit to be judged: what was counted in says it."""
    today, known = levels.today.sums, found.known
    requests = np.allclose(today[lv.REQUESTS], sums[gates.REQUESTS].sum(axis=0), rtol=ALIKE, atol=0)
    total = np.allclose(today[lv.TOTAL] * known, sums[gates.TOTAL].sum(axis=0), rtol=ALIKE, atol=0)
    return bool(requests and total and today[lv.REQUESTS].any())


def _solved(equations: Floats) -> Floats:
    """(K,) movement of the harmonics."""
    normal = equations[:, :-1].copy()
    places = np.arange(len(normal))
    normal[places, places] += np.concatenate([[1.0], np.full(len(normal) - 1, SHARED_SPREAD**-2)])
    found: Floats = np.asarray(np.linalg.solve(normal, equations[:, -1])[1:], np.float64)
    return found
