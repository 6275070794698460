"""The smallest drop that can be shown within a day."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from monitor.drift.judge import judge_steps
from monitor.drift.power import smallest_drops
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.units import DAY, HOUR
from tests.support.drift import START, Ranking, known


def overall(peak: float, noise: float = 0.005, budget: float = 1.0) -> float:
    settings = DriftSettings(budget=budget)
    found = smallest_drops(settings, known(Ranking.of(29, peak=peak, noise=noise).draw(), settings))[""]
    assert found is not None
    return found


def test_more_traffic_shows_smaller_drops() -> None:
    found = [overall(peak) for peak in (60, 300, 1500, 5000)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2 * found[-1]


def test_more_noise_hides_larger_drops() -> None:
    assert overall(5000, noise=0.02) > overall(5000, noise=0.002)


def test_a_smaller_false_alarm_budget_hides_larger_drops() -> None:
    assert overall(300, budget=0.1) > overall(300) > overall(300, budget=10)


def test_a_slice_shows_only_larger_drops_than_overall() -> None:
    found = smallest_drops(DriftSettings(), known(Ranking.of(29, slices=4).draw()))
    assert all(found[f"slice {i}"] > found[""] for i in range(4))


def test_no_drop_is_promised_without_a_baseline() -> None:
    assert set(smallest_drops(DriftSettings(), known(Ranking.of(9).draw())).values()) == {None}


def all_ones(seed: int, drop: float) -> Hours:
    """32 days of requests that are all worth 1, except that a share `drop` of the last two days' is worth 0."""
    rng, hour = np.random.default_rng(seed), np.arange(32 * 24)
    cycle = 1 + 0.6 * np.sin((hour % 24 - 9) / 12 * np.pi)
    requests = rng.poisson(np.array([21.0, 29.5, 8.7]) * cycle[:, None]).astype(float)
    fallen = (hour >= 30 * 24)[:, None]
    worth = requests - rng.binomial(requests.astype(int), np.where(fallen, drop, 0.0))
    every, none = requests.sum(axis=1), np.zeros(len(hour))
    nothing, one = np.zeros(requests.shape), np.ones(requests.shape)
    names = ("some", "most", "few")
    return Hours(
        START + hour * HOUR,
        names,
        requests,
        worth,
        worth,
        requests,
        nothing,
        one,
        every,
        none,
        none,
        10 * every,
        every,
    )


def test_promised_drops_shrink_with_traffic_and_are_found_where_all_values_are_one() -> None:
    found = smallest_drops(DriftSettings(), known(all_ones(0, 0.0).rows(0, 30 * 24)))
    drops = [found[unit] or 1.0 for unit in ("", "most", "some", "few")]
    assert drops == sorted(drops)
    for unit, drop in zip(("", "most", "some", "few"), drops, strict=True):
        for times, least, most in ((0.5, 0, 1), (1.25, 3, 6)):
            hits = 0
            for seed in range(6):
                verdicts, _ = judge_steps(DriftSettings(), None, all_ones(seed, times * drop))
                inside = [v for v in verdicts if START + 30 * DAY < v.end <= START + 31 * DAY]
                hits += any(alarm.unit == unit for v in inside for alarm in v.alarms)
            assert least <= hits <= most, (unit, times)


@cache
def promise(seed: int) -> tuple[Ranking, float]:
    """A monitor, and the smallest drop that it promises to show after 30 days."""
    ranking = Ranking.of(32, slices=1, peak=300, seed=seed)
    promised = smallest_drops(DriftSettings(), known(ranking.draw(seed).rows(0, 30 * 24)))[""]
    assert promised is not None
    return ranking, promised


@pytest.mark.parametrize(("times", "least", "most"), [(0.5, 0, 3), (1.0, 6, 11), (1.5, 12, 12)])
def test_a_promised_drop_is_found_in_at_least_half_the_cases(times: float, least: int, most: int) -> None:
    found = 0
    for seed in range(12):
        ranking, promised = promise(seed)
        verdicts, _ = judge_steps(DriftSettings(), None, ranking.since(30, mean=1 - times * promised).draw(seed))
        found += any(v.is_degraded for v in verdicts if START + 30 * DAY < v.end <= START + 31 * DAY)
    assert least <= found <= most
