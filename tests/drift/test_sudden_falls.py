"""Evidence of a sudden fall: the filter agrees with the full covariance, and noise raises no alarm."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.drift import constants as c
from monitor.drift.noise import fit_wander
from monitor.drift.series import widened
from monitor.drift.sudden_falls import AGAINST, INFORMATION, FallFilter, Forecast, filter_step
from monitor.units import DAY, HOUR

ONE = np.ones(1, bool)


def wandering(rng: np.random.Generator, steps: int, persistence: float, deviation: float, units: int = 1) -> Floats:
    """(steps, units) of a stationary first-order autoregression."""
    anew = rng.normal(size=(steps, units)) * deviation * np.sqrt(1 - persistence**2)
    found = np.empty_like(anew)
    found[0] = rng.normal(size=units) * deviation
    for step in range(1, steps):
        found[step] = persistence * found[step - 1] + anew[step]
    return found


def foretold(moved: Floats, sampling: float, persistence: float = 0.9, deviation: float = 0.01) -> Forecast:
    units = moved.shape[1]
    return Forecast(np.full(units, persistence), np.full(units, deviation**2), moved, np.full(moved.shape, sampling**2))


def courses(seen: Forecast, length: int = HOUR) -> list[FallFilter]:
    """The filter after each step."""
    count = seen.moved.shape[1]
    course, found = FallFilter.empty(count, 0), []
    for row in range(len(seen.moved)):
        course = filter_step(course, seen, row, np.ones(count, bool), (row + 1) * length, length)
        found.append(course)
    return found


def test_the_filter_sums_equal_those_of_the_full_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fall from any step has the likelihood ratio that the joint normal distribution of all steps gives."""
    monkeypatch.setattr(c, "FALL_CLIP", 1e9)
    monkeypatch.setattr(c, "LEAST_CHANGE", 1e9)
    rng, steps, persistence, deviation = np.random.default_rng(3), 20, 0.8, 0.02
    chance = rng.uniform(0.005, 0.03, steps)
    moved = wandering(rng, steps, persistence, deviation) + rng.normal(size=(steps, 1)) * chance[:, None]
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    exact = np.linalg.inv(deviation**2 * persistence**apart + np.diag(chance**2))
    seen = Forecast(np.array([persistence]), np.array([deviation**2]), moved, chance[:, None] ** 2)
    last = courses(seen)[-1]
    for start in range(steps):
        fallen = (np.arange(steps) >= start) * 1.0
        at = steps - 1 - start
        assert last.starts[AGAINST, 0, at] == pytest.approx(-(fallen @ exact @ moved)[0], rel=1e-9)
        assert last.starts[INFORMATION, 0, at] == pytest.approx(fallen @ exact @ fallen, rel=1e-9)


def test_a_return_to_normal_after_a_better_spell_is_not_a_fall() -> None:
    rng = np.random.default_rng(6)
    moved = wandering(rng, 200, 0.95, 0.01, 60) + rng.normal(size=(200, 60)) * 0.01
    usual = courses(foretold(moved, 0.01, 0.95))[149].evidence(HOUR)
    moved[60:140] += 0.1
    found = courses(foretold(moved, 0.01, 0.95))
    assert np.mean(found[149].evidence(HOUR)) < np.mean(usual) + 1.5


def test_a_sudden_fall_is_found_that_its_level_alone_would_hide() -> None:
    """A fall of 8 % in a mean that wanders by 2 % a day is found within 8 hours, with its start."""
    rng = np.random.default_rng(4)
    moved = wandering(rng, 200, 0.95, 0.02, 60) + rng.normal(size=(200, 60)) * 0.015
    moved[150:] -= 0.08
    found = courses(foretold(moved, 0.015, 0.95, 0.02))
    lasting = 0.02**2 * 1.95 / 0.05 / 8 + 0.015**2 / 8
    assert 0.07**2 / lasting / 2 < 1.5, "the level of 8 hours alone says next to nothing"
    assert np.mean(found[149].evidence(HOUR) > 6) == 0
    assert np.mean(found[157].evidence(HOUR) > 6) > 0.5
    began = found[157].began(158 * HOUR, HOUR)
    assert np.mean(np.abs(began - 150 * HOUR) <= HOUR) > 0.7


def test_noise_as_fitted_raises_no_alarm() -> None:
    rng = np.random.default_rng(5)
    moved = wandering(rng, 2160, 0.9, 0.01, 60) + rng.normal(size=(2160, 60)) * 0.01
    over = np.zeros(60, bool)
    for course in courses(foretold(moved, 0.01)):
        over |= course.evidence(HOUR) > np.log(540 / 0.5)
    assert over.mean() <= 0.1


@pytest.mark.parametrize("depth", [0.05, 0.15, 0.9])
@pytest.mark.parametrize("sampling", [0.001, 0.01, 0.05])
def test_two_low_hours_alone_raise_no_alarm_however_deep(depth: float, sampling: float) -> None:
    moved = np.zeros((60, 1))
    moved[40:42] = -depth
    highest = max(float(c.evidence(HOUR)[0]) for c in courses(foretold(moved, sampling)))
    assert highest < np.log(540)


def test_old_deviations_say_nothing_about_now() -> None:
    seen = foretold(np.full((30, 1), 0.1), 0.01)
    known = courses(seen)[-1]
    later = filter_step(known, seen, 0, ONE, known.until + 30 * DAY, HOUR)
    fresh = filter_step(FallFilter.empty(1, 0), seen, 0, ONE, HOUR, HOUR)
    assert later.deviation == pytest.approx(fresh.deviation)
    assert later.certainty == pytest.approx(fresh.certainty)


def test_steps_without_requests_only_let_time_pass() -> None:
    seen = foretold(np.full((40, 1), -0.05), 0.01)
    before = courses(seen)[-1]
    after = filter_step(before, seen, 0, np.zeros(1, bool), before.until + HOUR, HOUR)
    assert (after.starts[1:, :, 1:] == before.starts[1:, :, :-1]).all()
    assert after.deviation == pytest.approx(before.deviation * 0.9)
    assert after.certainty < before.certainty


@pytest.mark.parametrize(("length", "apart"), [(900, HOUR), (HOUR, HOUR), (3 * HOUR, 3 * HOUR), (DAY, DAY)])
def test_candidate_starts_are_one_hour_or_one_step_apart(length: int, apart: int) -> None:
    steps = 12 * max(apart // length, 1)
    moved = np.zeros((steps, 1))
    fall = 6 * apart
    moved[[i for i in range(steps) if i * length >= fall]] = -0.2
    last = courses(foretold(moved, 0.02), length)[-1]
    assert last.began(steps * length, length).tolist() == [fall]
    assert last.evidence(length)[0] > np.log(540)


def test_leaving_out_a_slice_forgets_it_and_the_overall_evidence() -> None:
    known = courses(foretold(np.full((30, 3), -0.05), 0.01))[-1]
    assert known.left_out(np.array([False, False])) is known
    without = known.left_out(np.array([False, True]))
    assert without.evidence(HOUR).tolist() == [0.0, known.evidence(HOUR)[1], 0.0]
    assert without.left_out(np.array([False, True])) is without


def test_new_units_start_without_evidence() -> None:
    wide = widened(courses(foretold(np.full((30, 2), -0.05), 0.01))[-1], FallFilter.empty(4, 0))
    assert wide.starts.shape == (3, 4, c.FALL_STARTS)
    assert wide.evidence(HOUR)[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("persistence", "deviation"), [(0.8, 0.03), (0.95, 0.01), (0.98, 0.02)])
def test_dense_traffic_shows_how_a_mean_wanders(persistence: float, deviation: float) -> None:
    rng = np.random.default_rng(6)
    off = wandering(rng, 28 * 24, persistence, deviation, 9) + rng.normal(size=(28 * 24, 9)) * 0.005
    share, variance = fit_wander(off, np.full(off.shape, 0.005**2), np.ones(off.shape), 1.0)
    assert share == pytest.approx(np.full(9, persistence), abs=0.05)
    assert np.sqrt(variance) == pytest.approx(np.full(9, deviation), rel=0.35)


def test_fitted_persistence_scales_with_the_step_length() -> None:
    rng = np.random.default_rng(7)
    off = wandering(rng, 4 * 28 * 24, 0.95**0.25, 0.02, 3)
    share, _ = fit_wander(off, np.full(off.shape, 0.002**2), np.ones(off.shape), 0.25)
    assert share**4 == pytest.approx(np.full(3, 0.95), abs=0.03)


def test_a_unit_without_requests_gets_the_wander_of_the_others() -> None:
    rng = np.random.default_rng(8)
    off, known = wandering(rng, 28 * 24, 0.9, 0.02, 4), np.ones((28 * 24, 4))
    off[:, 3], known[:, 3] = 0.0, 0.0
    _, variance = fit_wander(off, np.full(off.shape, 0.004**2), known, 1.0)
    assert np.sqrt(variance[3]) == pytest.approx(0.02, rel=0.4)


def test_units_without_requests_do_not_change_the_fit_of_the_others() -> None:
    rng, steps = np.random.default_rng(9), 28 * 24
    off, chance, known = wandering(rng, steps, 0.9, 0.01, 4), np.full((steps, 8), 0.03**2), np.ones((steps, 8))
    off = np.pad(off + rng.normal(size=(steps, 4)) * 0.03, [(0, 0), (0, 4)])
    known[:, 4:] = 0.0
    alone = fit_wander(off[:, :4], chance[:, :4], known[:, :4], 1.0)
    beside = fit_wander(off, chance, known, 1.0)
    for without, with_silent in zip(alone, beside, strict=True):
        assert with_silent[:4] == pytest.approx(without, rel=1e-9)
