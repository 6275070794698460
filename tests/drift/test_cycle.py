"""The daily cycle that all slices share is followed as it changes. Falls are not followed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.drift.settings import DriftSettings
from monitor.units import DAY
from tests.support.drift import START, Ranking, known, on, verdicts

FIT = 28


def angle(ranking: Ranking) -> Floats:
    """(T, 1) angle of the day at the middle of each step."""
    return 2 * np.pi * ((ranking.starts - START + ranking.step / 2) % DAY)[:, None] / DAY


def wider(ranking: Ranking, most: float, until: float) -> Ranking:
    """With a daily cycle that grows after the reference ends, to `most` by day `until`."""
    part = np.clip((ranking.starts - START - FIT * DAY) / ((until - FIT) * DAY), 0, 1)[:, None]
    return replace(ranking, mean=ranking.mean * (1 + most * part * np.cos(angle(ranking))))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_slowly_changing_daily_cycle_raises_no_alarm_and_hides_no_fall(seed: int) -> None:
    ranking = wider(Ranking.of(185, peak=3000, seed=seed), 0.04, 180).since(182, mean=0.93)
    found = verdicts(ranking.draw(seed))
    assert not any(v.is_degraded for v in on(found, 0, 182))
    assert any(v.is_degraded for v in on(found, 182, 182.5))


def test_hourly_expectations_follow_the_changing_cycle() -> None:
    ranking = wider(Ranking.of(190, peak=3000), 0.06, 110)
    state = known(ranking.draw())
    assert state.baseline is not None
    day = state.baseline.quality.shared[:2]
    fitted = known(Ranking.of(40, peak=3000).draw()).baseline
    assert fitted is not None
    assert day[1] - fitted.quality.shared[1] == pytest.approx(0.054, abs=0.006)
    assert day[0] == pytest.approx(fitted.quality.shared[0], abs=0.006)


def test_suddenly_worse_nights_count_as_a_fall_not_a_cycle() -> None:
    ranking = Ranking.of(75, peak=6000)
    is_night = np.cos(angle(ranking) - np.pi) > 0.5
    broken = is_night & (ranking.starts >= START + 50 * DAY)[:, None]
    found = verdicts(replace(ranking, mean=ranking.mean * np.where(broken, 0.85, 1.0)).draw())
    assert any(v.is_degraded for v in on(found, 50, 51.5))


def test_a_day_with_unfit_hours_does_not_update_the_cycle() -> None:
    ranking = Ranking.of(60, peak=3000)
    state, whole = (known(r.draw()) for r in (ranking.since(56.2, 56.6, coverage=0.0), ranking))
    day = START // DAY + 56
    assert day in whole.cycle.numbers
    assert day not in state.cycle.numbers


def test_days_of_a_fall_do_not_update_the_cycle() -> None:
    state = known(Ranking.of(60, peak=3000).since(56.5, mean=0.8).draw())
    assert state.standing.is_any_open
    assert state.cycle.numbers.max() < START // DAY + 56


def test_a_stable_cycle_keeps_its_fitted_shape() -> None:
    settings = DriftSettings()
    state = known(Ranking.of(90, peak=3000).draw(), settings)
    assert np.abs(state.cycle.moved).max() < 0.004


@pytest.mark.parametrize("step", [900, 4 * 3600, DAY])
def test_steps_of_any_length_track_the_cycles_they_resolve(step: int) -> None:
    state = known(Ranking.of(60, peak=3000, step=step).draw(), DriftSettings(step=step))
    assert len(state.cycle.moved) == {900: 8, 4 * 3600: 4, DAY: 0}[step]
