"""Tolerance: what drop of a unit is none, for the level has been off by as much when it was forecast before."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.drift import levels as lv
from monitor.drift.baseline import DriftBaseline
from monitor.drift.levels import Levels
from monitor.drift.noise import Noise, units
from monitor.drift.series import DAY, Floats
from monitor.drift.settings import DriftSettings

BLOCK_DAYS = 3
MEMORY_DAYS = 60.0
"""In which a miss fades."""
FULL_DAYS = 28.0
"""Of a reference; on a shorter one more is tolerated, as the square root of what it lacks."""
LEAST, LEAST_OF_SLICE, MOST = 0.01, 0.02, 0.04
"""Bounds of what is tolerated for the misses alone: the least of overall and of a slice, and the most of both.

What all slices fall by shows overall, so one may fall by more: most false alarms were small and slow falls of a slice.
"""
DEVIATIONS, LEVEL_ERRORS = 2.25, 2.0
"""Standard deviations of the misses, and standard errors of the level, that are tolerated."""
ALL_BUT = 0.9
"""More than this is never tolerated, however little is known of a level."""
TYPICAL = 0.01
"""A usual miss, by which blocks of little traffic count less."""
SHARE_OF_SLOW = 0.25
"""Of the misses' long-run variance, in the noise that tempers a step's evidence. The rest is what is tolerated."""


MORE = 1.5
"""Times the usual error of overall's level from which on that of the present mix counts."""
BY_MIX = 0.01
"""What overall tolerates more while the mix is shifted: what is mixed within slices, unseen, has likely moved along."""


def doubt(found: DriftBaseline, present: Floats, usual: Floats, is_shifted: bool) -> Floats:
    """(T,) what overall tolerates more than usual, relative: the mix is another one, or its slices are little known.

    It is (1,) where there are no such slices.

    Args:
        present, usual: (T, S) expected sums of values by the requests that came, and by those that usually come.
        is_shifted: whether the mix of the slices has moved the mean.
    """
    by_mix = BY_MIX * is_shifted
    if not found.has_thin_slices:
        return np.array([by_mix])
    variance = found.noise.level_error[1:]
    errors = np.sqrt((np.stack([present, usual]) ** 2 * variance).sum(axis=2))
    now, then = errors / np.maximum(np.stack([present, usual]).sum(axis=2), 1e-9)
    more: Floats = LEVEL_ERRORS * np.maximum(now - MORE * then, 0.0) + by_mix
    return more.clip(max=max(ALL_BUT - float(found.noise.tolerated[0]), 0.0))


@dataclass(frozen=True)
class ForecastErrors:
    """By how much blocks of three days missed their forecasts, the sampling variance taken out; older ones fade.

    Attributes:
        over, under: (U,) weighted sum of squared relative misses, and of the weights.
        chance: (U,) sampling variance of the last block.
    """

    over: Floats
    under: Floats
    chance: Floats

    @classmethod
    def empty(cls, count: int) -> ForecastErrors:
        """Nothing forecast yet."""
        return cls(np.zeros(count), np.zeros(count), np.zeros(count))

    def padded(self, count: int) -> ForecastErrors:
        """With new units at the end."""
        more = count - len(self.over)
        return ForecastErrors(*(np.pad(a, (0, more)) for a in (self.over, self.under, self.chance)))

    def after(self, levels: Levels, found: DriftBaseline) -> ForecastErrors:
        """With the three days before `today`, if all of them are known; the forecast had left them out."""
        days = levels.pending[-BLOCK_DAYS:]
        first = levels.today.number - BLOCK_DAYS
        if [d.number for d in days] != [first + i for i in range(BLOCK_DAYS)]:
            return self
        sums = sum((d.sums for d in days[1:]), days[0].sums) * found.known
        forecast = sums[lv.EXPECTED] * levels.ratios[lv.QUALITY]
        requests = np.divide(forecast, found.quality.level, out=np.zeros(len(forecast)), where=found.quality.level > 0)
        total, expected, chance = units(np.stack([sums[lv.TOTAL], forecast, requests * found.quality.variance]))
        has = expected > 0
        scale = np.where(has, expected, 1.0)
        miss, chance = np.where(has, total / scale - 1, 0.0), chance / scale**2
        weight, keep = np.where(has, 1 / (chance + TYPICAL**2), 0.0), float(np.exp(-1 / MEMORY_DAYS))
        return ForecastErrors(self.over * keep + weight * (miss**2 - chance), self.under * keep + weight, chance)

    def noise(self, settings: DriftSettings, found: DriftBaseline, levels: Levels) -> Noise:
        """The baseline's noise with what the misses add, and what has become of the requests' variance.

        Tolerated are some standard deviations of the misses and of the level itself, less where sampling blurs a day
        anyway. The evidence of a step is tempered as if the misses came from independent noise of the steps.
        """
        variance = np.maximum(np.divide(self.over, self.under, out=np.zeros(len(self.over)), where=self.under > 0), 0)
        wider = np.sqrt(max(FULL_DAYS / max(found.days, 1.0), 1.0))
        visible = variance / np.maximum(variance + BLOCK_DAYS * self.chance, 1e-12)
        least = np.full(len(variance), LEAST_OF_SLICE)
        least[0] = LEAST
        usual = np.clip(DEVIATIONS * np.sqrt(variance) * visible, least, MOST) * wider
        tolerated = np.minimum(np.sqrt(usual**2 + LEVEL_ERRORS**2 * found.noise.level_error), ALL_BUT)
        slow = SHARE_OF_SLOW * variance * BLOCK_DAYS * DAY / settings.step
        common, of_requests = np.maximum(found.noise.step_variance, slow), found.noise.variance.copy()
        of_requests[1:] = np.maximum(found.quality.variance, levels.variance(found.quality.level))
        return replace(found.noise, tolerated=tolerated, common=common, variance=of_requests)
