"""What is known about each judged series, and that promised drops do show."""

from __future__ import annotations

import pytest

from monitor.conditions.verdict_units import NO_BASELINE, TOO_NEW, Unit, units_of
from monitor.drift.judge import judge_steps
from monitor.drift.settings import DriftSettings
from monitor.units import DAY
from tests.support.drift import Ranking, known

SETTINGS = DriftSettings()
WARM, DRAWS = 30 * 24, 12


def units(ranking: Ranking) -> dict[str, Unit]:
    return {unit.slice: unit for unit in units_of(SETTINGS, known(ranking.draw()))}


def test_before_the_first_step_overall_has_no_baseline() -> None:
    assert units_of(SETTINGS, None) == [Unit("", lacks=NO_BASELINE)]


def test_no_unit_has_a_baseline_before_there_is_a_reference() -> None:
    assert {unit.lacks for unit in units(Ranking.of(9)).values()} == {NO_BASELINE}


def test_slice_requests_sum_to_overall_whose_level_is_between_theirs() -> None:
    found = units(Ranking.of(30, peak=600))
    slices = [unit for name, unit in found.items() if name]
    assert found[""].requests == pytest.approx(sum(unit.requests or 0 for unit in slices))
    assert found[""].requests == pytest.approx(24 * 600 * 0.6, rel=0.05)
    levels = sorted(unit.level or 0 for unit in slices)
    assert levels[0] < (found[""].level or 0) < levels[-1]
    assert levels == pytest.approx([0.5, 0.55, 0.6], rel=0.02)


def test_a_unit_reports_how_far_its_level_moved() -> None:
    for seed in range(4):
        found = units(Ranking.of(60, peak=600, seed=seed).since(30, mean=1.04))
        assert found[""].moved == pytest.approx(0.04, abs=0.012)


def test_a_late_slice_is_not_judged_and_says_why() -> None:
    ranking = Ranking.of(30, peak=600).since(0, 25, rate=0.0, slices=[2])
    late = units(ranking)["slice 2"]
    assert (late.smallest, late.lacks) == (None, TOO_NEW)


def test_daily_buckets_also_promise_a_drop_within_a_day() -> None:
    settings = DriftSettings(step=DAY)
    _, state = judge_steps(settings, None, Ranking.of(40, slices=1, peak=900, step=DAY).draw())
    drop = units_of(settings, state)[0].smallest
    assert drop is not None
    assert 0.02 < drop < 0.1


@pytest.mark.parametrize(("peak", "noise"), [(60, 0.005), (300, 0.005), (3000, 0.015)])
def test_a_drop_of_the_promised_size_shows_within_a_day_in_half_the_cases(peak: float, noise: float) -> None:
    found, smaller = [], []
    for seed in range(4):
        ranking = Ranking.of(31, slices=1, peak=peak, noise=noise, seed=seed)
        _, state = judge_steps(SETTINGS, None, ranking.draw(seed).rows(0, WARM))
        drop = units_of(SETTINGS, state)[0].smallest
        assert state is not None
        assert drop is not None
        for draw in range(DRAWS):
            for mean, shown in ((1 - drop, found), (1 - drop / 2, smaller)):
                hours = ranking.since(30, mean=mean).draw(1000 + draw).rows(WARM, WARM + 24)
                shown.append(any(verdict.is_degraded for verdict in judge_steps(SETTINGS, state, hours)[0]))
    assert sum(found) >= len(found) / 2
    assert sum(smaller) < sum(found)
