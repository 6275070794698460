"""Baselines find the cycles, measure the noise that was put in, and share the budget among thresholds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.drift import baseline, noise, seasonality
from monitor.drift.baseline import Reference
from monitor.drift.constants import RESERVE
from monitor.drift.settings import DriftSettings
from monitor.units import DAY, HOUR
from tests.support.drift import START, Ranking, known, on, verdicts

HOURLY = DriftSettings()


def reference(ranking: Ranking, seed: int = 1) -> Reference:
    hours = ranking.draw(seed)
    return Reference.empty(len(hours.slices)).with_more(hours, np.ones(len(hours.starts)))


def fitted(past: baseline.Reference) -> baseline.DriftBaseline:
    """The baseline fitted on a reference."""
    return baseline.fit(HOURLY, past, baseline.counted(HOURLY, past))


@pytest.mark.parametrize(("step", "regressors"), [(HOUR, 14), (4 * HOUR, 10), (DAY // 2, 6), (DAY, 6)])
def test_regressors_hold_only_harmonics_that_the_step_resolves(step: int, regressors: int) -> None:
    found = seasonality.regressors(step)
    assert found.shape == (7 * DAY // step, regressors)
    assert np.linalg.matrix_rank(found) == regressors
    assert np.abs(found.mean(axis=0)).max() < 1e-12


def test_daily_and_weekly_cycles_are_found() -> None:
    ranking = Ranking.of(28, slices=2, peak=20_000, noise=0)
    weekend = 1 - 0.02 * ((ranking.starts // DAY + 3) % 7 >= 5)[:, None]
    shaped = replace(ranking, mean=ranking.mean * weekend, rate=ranking.rate * weekend**10)
    found = fitted(reference(shaped))
    slot = HOURLY.slots(shaped.starts)
    mean, share, volume = found.tables[:, slot]
    assert mean == pytest.approx(shaped.mean, rel=0.006)
    assert share == pytest.approx(np.full(share.shape, 0.9), rel=0.005)
    assert volume == pytest.approx(shaped.rate, rel=0.02)


def test_a_reference_with_an_outage_of_labels_gives_the_same_baseline() -> None:
    plain = fitted(reference(Ranking.of(28)))
    broken = fitted(reference(Ranking.of(28).since(9, 10.5, coverage=0)))
    assert broken.quality.level == pytest.approx(plain.quality.level, rel=0.003)
    assert broken.coverage.level == pytest.approx(plain.coverage.level, rel=0.003)


@pytest.mark.parametrize("share", [0.7, 0.95, 0.99])
@pytest.mark.parametrize("peak", [1.6, 3.0])
def test_steps_of_a_request_or_two_count_whether_or_not_labelled(peak: float, share: float) -> None:
    """Most such steps are fully labelled. Dropping the others would give the level of labelled requests only."""
    found = reference(Ranking.of(28, slices=1, peak=peak).since(0, coverage=share / 0.9))
    size = found.requests.sum(axis=1)
    assert np.median(found.labelled.sum(axis=1)[size > 0] / size[size > 0]) == 1 or share == 0.7
    assert found.precise().usable(HOURLY).all()


def test_over_dispersion_is_measured_apart_from_sampling_error() -> None:
    rng = np.random.default_rng(3)
    row, size, level = np.arange(4000), np.full((4000, 1), 500.0), 0.5
    spread = rng.normal(0, 0.02, (4000, 1))
    total = rng.binomial(500, level * (1 + spread)) * 1.0
    found = noise.measure(row, 1.0, size, total, size * level, np.array([0.25]))
    assert np.sqrt(found.long_run / 3) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("peak", [10, 40, 2000])
def test_chance_on_thin_traffic_does_not_count_as_label_spread(peak: float) -> None:
    rng = np.random.default_rng(3)
    steady = Ranking.of(28, slices=1, peak=peak)
    ranking = steady
    for day in range(28):
        ranking = ranking.since(day, day + 1, coverage=rng.uniform(0.7, 1))
    found, spread = ([fitted(reference(one, n)).coverage_noise for n in range(8)] for one in (steady, ranking))
    assert max(found) < 0.03
    assert np.mean(spread) == pytest.approx(0.1, rel=0.3)


def test_autocorrelation_makes_the_long_run_noisier() -> None:
    rng = np.random.default_rng(3)
    steps, size = 4000, np.full((4000, 1), 5000.0)
    shock, slow = rng.normal(0, 0.01, steps), np.zeros(steps)
    for step in range(1, steps):
        slow[step] = 0.8 * slow[step - 1] + 0.6 * shock[step]
    found = [
        noise.measure(np.arange(steps), 1.0, size, size * 0.5 * (1 + off[:, None]), size * 0.5, np.array([1e-6]))
        for off in (shock, slow)
    ]
    assert found[1].long_run[0] > 1.8 * found[0].long_run[0]
    assert found[1].step_variance[0] > found[0].step_variance[0]


def test_steps_around_a_gap_in_the_reference_are_not_neighbours() -> None:
    row, size = np.array([0, 1, 500, 501, 1000, 1001]), np.full((6, 1), 1e6)
    off = np.array([0.01, -0.01, 0.01, -0.01, 0.01, -0.01])[:, None]
    found = noise.measure(row, 1.0, size, size * 0.5 * (1 + off), size * 0.5, np.array([1e-6]))
    assert found.long_run[0] == pytest.approx(3 * 0.01**2, rel=0.01)


def test_a_wandering_level_widens_the_tolerance() -> None:
    tolerated = []
    for size in (0.0, 0.02):
        ranking = Ranking.of(29, slices=1, peak=5000, noise=0)
        wander = 1 + size * np.sin(2 * np.pi * np.arange(len(ranking.starts)) / (8.5 * 24))[:, None]
        state = known(replace(ranking, mean=ranking.mean * wander).draw())
        assert state.baseline is not None
        tolerated.append(state.baseline.noise.tolerated[0])
    assert tolerated[1] > 1.8 * tolerated[0]


def test_the_budget_is_shared_by_overall_and_the_slices() -> None:
    judged = np.array([True, True, True, False])
    found = DriftSettings(budget=2.0).thresholds(judged).each
    assert (1 / found[judged]).sum() * 90 * 24 == pytest.approx(2.0 * RESERVE)
    assert found[0] < found[1] == found[2]
    assert DriftSettings(step=DAY).thresholds(np.array([True, False])).each[0] == pytest.approx(90 / RESERVE)


@pytest.mark.parametrize(("step", "budget"), [(7 * HOUR, 1.0), (0, 1.0), (HOUR, 0.0)])
def test_invalid_settings_are_refused(step: int, budget: float) -> None:
    with pytest.raises(ValueError):
        DriftSettings(step=step, budget=budget)


def test_hours_refuse_wrong_shapes_and_unsorted_starts() -> None:
    hours = Ranking.of(1).draw()
    with pytest.raises(ValueError, match="need that shape"):
        type(hours)(hours.starts, hours.slices[:2], *(getattr(hours, n) for n in list(hours.__dataclass_fields__)[2:]))
    with pytest.raises(ValueError, match="must rise"):
        type(hours)(hours.starts * 0 + START, *(getattr(hours, n) for n in list(hours.__dataclass_fields__)[1:]))


def test_a_baseline_span_starts_at_the_first_traffic() -> None:
    found = fitted(reference(Ranking.of(35).since(0, 7, rate=0)))
    assert (found.since, found.until, found.days) == (START + 7 * DAY, START + 35 * DAY, 28)


@pytest.mark.parametrize(("since", "until", "factor"), [(5, 12, 0.8), (5.5, 7, 0.7), (16, 23, 1.2)])
@pytest.mark.parametrize("slices", [None, [1]])
def test_outlier_days_in_the_reference_hide_no_later_fall(
    since: float, until: float, factor: float, slices: list[int] | None
) -> None:
    past = Ranking.of(66, peak=3000)
    plain = fitted(reference(past.since(28, rate=0)))
    shaken = fitted(reference(past.since(since, until, mean=factor, slices=slices).since(28, rate=0)))
    assert shaken.quality.level == pytest.approx(plain.quality.level, rel=0.005)
    assert (shaken.noise.step_variance < 3 * plain.noise.step_variance).all()
    found = verdicts(past.since(since, until, mean=factor, slices=slices).since(60, mean=0.95, slices=slices).draw())
    assert not any(v.is_degraded for v in on(found, 28, 60))
    assert any(v.is_degraded for v in on(found, 60, 61.5))


def test_a_level_change_halfway_through_the_reference_excludes_no_days() -> None:
    past = reference(Ranking.of(28, peak=3000).since(14, mean=0.8))
    days = baseline.counted(HOURLY, past).any(axis=1).reshape(28, 24).all(axis=1)
    assert days.all(), "either half could be the usual one"


def test_a_low_spell_on_thin_traffic_is_left_out_of_the_first_reference() -> None:
    """A day's sampling error is a quarter of what these four days fell by."""
    found = []
    for seed in range(20):
        past = reference(Ranking.of(14, peak=25, seed=seed).since(6, 10, mean=0.85), seed)
        days = baseline.counted(HOURLY, past).all(axis=1).reshape(14, 24).all(axis=1)
        found.append(float((~days[6:10]).mean()))
        assert days[:5].all()
        assert days[11:].all()
    assert np.mean(found) > 0.75


@pytest.mark.parametrize(("peak", "factor"), [(25, 0.85), (600, 0.85), (600, 0.94)])
def test_weekends_that_are_always_lower_are_not_left_out_as_a_spell(peak: float, factor: float) -> None:
    for seed in range(10):
        worse = Ranking.of(14, peak=peak, seed=seed)
        for saturday in (2, 9):
            worse = worse.since(saturday, saturday + 2, mean=factor)
        assert baseline.counted(HOURLY, reference(worse, seed)).mean() > 0.99


def test_an_undetected_drop_does_not_widen_the_tolerance() -> None:
    tolerated = []
    for factor in (1.0, 0.95):
        state = known(Ranking.of(37, peak=15).since(33, mean=factor).draw())
        assert not state.standing.is_any_open, "or the test shows nothing"
        assert state.baseline is not None
        tolerated.append(state.baseline.noise.tolerated[0])
    assert tolerated[1] == pytest.approx(tolerated[0], rel=0.01)


@pytest.mark.parametrize(("refit", "fits"), [(21, 2), (28, 3), (32, 4)])
def test_a_refit_leaves_out_a_drop_just_before_it(refit: int, fits: int) -> None:
    levels = []
    for factor in (1.0, 0.95):
        state = known(Ranking.of(refit + 1, peak=10).since(refit - 2, mean=factor).draw())
        assert not state.standing.is_any_open, "or the test shows nothing"
        assert state.baseline is not None
        assert state.fits == fits
        levels.append(state.baseline.quality.level)
    assert levels[1] == pytest.approx(levels[0], rel=0.002)


def test_plain_noise_excludes_no_days_from_the_reference() -> None:
    for seed in range(20):
        past = reference(Ranking.of(28, noise=0.02, seed=seed, peak=200))
        assert baseline.counted(HOURLY, past).mean() > 0.99
