"""Power: the smallest drop that a unit can show within a day, at its traffic and noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.arrays import Floats
from monitor.drift import constants as c
from monitor.drift import sudden_falls
from monitor.drift.baseline import DriftBaseline
from monitor.drift.eprocess import most, odds
from monitor.drift.series import units
from monitor.drift.settings import DriftSettings, EvidenceThreshold
from monitor.drift.state import DriftState
from monitor.drift.sudden_falls import FallFilter, Forecast
from monitor.units import DAY, WEEK

HALVINGS = 20
LARGEST = 0.95
WARM = 2 * DAY
"""Time after which a filter has converged."""
ROUNDING = 1e-9
"""Slack for days of a single step that brings just enough evidence."""
MOST_LOST = 64
"""Up to this many requests a step that lose all their worth, their number is treated as random."""


def smallest_drops(settings: DriftSettings, state: DriftState) -> dict[str, float | None]:
    """Smallest relative drop that raises an alarm within 24 hours of average traffic; overall's under the empty name.

    None if no drop does, or without a baseline. At that drop a day's expected evidence just reaches the threshold, so
    about half of such drops are found in time.
    """
    found, names = state.baseline, ("", *state.slices)
    if found is None:
        return dict.fromkeys(names, None)
    usual = _usual(settings, state, found)
    judged = found.judged & (usual.requests > 0) & (usual.level > 0)
    threshold = settings.thresholds(judged)
    needed = threshold.logarithm[:, 0] - ROUNDING
    low, high = found.noise.tolerated, np.full(len(names), LARGEST)
    reachable = judged & (usual.evidence(settings, found, high, threshold) >= needed)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        enough = usual.evidence(settings, found, middle, threshold) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    drops = [float(drop) if is_reachable else None for drop, is_reachable in zip(high, reachable, strict=True)]
    return dict(zip(names, drops, strict=True)) | {"": drops[0]}  # a single slice without a name is overall


@dataclass(frozen=True)
class _Usual:
    """An average step of U units: (U,) requests, mean and variance of their values."""

    requests: Floats
    level: Floats
    variance: Floats

    def evidence(
        self, settings: DriftSettings, baseline: DriftBaseline, drop: Floats, threshold: EvidenceThreshold
    ) -> Floats:
        """(U,) expected logarithm of a day's evidence, the mean over the stakes, at each unit's relative drop."""
        tolerated, level = baseline.noise.tolerated, np.maximum(self.level, 1e-9)
        size, variance = np.maximum(self.requests, 1e-9), np.maximum(self.variance, 1e-9)
        lowest = np.minimum((1 - tolerated) * level, 1.0)
        bet, kappa, tempered = odds(size, level, variance, lowest, baseline.noise)
        cap, chance, lost = most(threshold, tempered, settings.hours), *self._lumps(drop)
        capped = np.zeros(bet.shape)
        for likely, share in zip(chance.T, lost.T, strict=True):
            shift = ((share - tolerated) * level)[:, None]
            gain = tempered * size[:, None] * (bet * shift - kappa * bet**2 * (variance[:, None] + shift**2))
            capped += likely[:, None] * np.minimum(gain, cap)
        of_all = np.logaddexp.reduce(capped * (DAY / settings.step), axis=1) - np.log(len(c.STAKES))
        both: Floats = np.logaddexp(of_all, np.log(c.FALL_WEIGHT) + self._sudden(settings, baseline, drop))
        return both

    def _lumps(self, drop: Floats) -> tuple[Floats, Floats]:
        """((U, K) chances, (U, K) lost shares of a step's worth) if a drop costs some requests all of theirs."""
        size = np.maximum(self.requests, 1e-9)
        mean, numbers = (size * drop)[:, None], np.arange(MOST_LOST)
        logarithm = numbers * np.log(np.maximum(mean, 1e-300)) - mean - np.cumsum(np.log(np.maximum(numbers, 1)))
        is_few = mean < MOST_LOST / 2
        chance = np.where(is_few, np.exp(logarithm), numbers == 0)
        lost = np.where(is_few, np.minimum(numbers / size[:, None], 1.0), drop[:, None])
        return chance / chance.sum(axis=1, keepdims=True), lost

    def _sudden(self, settings: DriftSettings, baseline: DriftBaseline, drop: Floats) -> Floats:
        noise, step = baseline.noise, settings.step
        sampling = self.variance / np.maximum(self.requests, 1e-9) / np.maximum(self.level, 1e-9) ** 2
        chance, lost = self._lumps(drop)
        clip = c.FALL_CLIP * np.sqrt(sampling + noise.moves)[:, None]
        seen_drop = (chance * np.minimum(lost, np.maximum(clip, c.LEAST_TOLERATED))).sum(axis=1)
        moved, always = np.stack([np.zeros(len(drop)), -seen_drop]), np.ones(len(drop), bool)
        seen = Forecast(noise.persistence, noise.moves, moved, np.stack([sampling, sampling]))
        course, highest = FallFilter.empty(len(drop), 0), np.zeros(len(drop))
        for end in range(step, WARM + DAY + 1, step):
            course = sudden_falls.filter_step(course, seen, int(end > WARM), always, end, step)
            if end > WARM:
                highest = np.maximum(highest, course.evidence(step))
        return highest


def _usual(settings: DriftSettings, state: DriftState, baseline: DriftBaseline) -> _Usual:
    mean, share, volume = baseline.tables * state.levels.ratios[:, None, :]
    volume = volume * baseline.known
    if not settings.counts_unlabelled:
        volume = volume * np.minimum(share, 1.0)
    count = WEEK // settings.step
    requests = units(volume).sum(axis=0) / count
    size = np.maximum(requests * count, 1e-9)
    level = units(volume * mean).sum(axis=0) / size
    return _Usual(requests, level, units(volume * baseline.quality.variance).sum(axis=0) / size)
