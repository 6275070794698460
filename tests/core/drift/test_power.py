"""The smallest drop that can be shown within a day."""

from __future__ import annotations

from functools import cache

import pytest

from monitor.core.drift.judge import judge
from monitor.core.drift.power import smallest_drops
from monitor.core.drift.series import DAY
from monitor.core.drift.settings import Settings
from tests.support.drift import START, Ranking, known


def overall(peak: float, noise: float = 0.005, budget: float = 1.0) -> float:
    settings = Settings(budget=budget)
    found = smallest_drops(settings, known(Ranking.of(29, peak=peak, noise=noise).draw(), settings))[""]
    assert found is not None
    return found


def test_more_traffic_shows_smaller_drops() -> None:
    found = [overall(peak) for peak in (60, 300, 1500, 5000)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2 * found[-1]


def test_more_noise_hides_more() -> None:
    assert overall(5000, noise=0.02) > overall(5000, noise=0.002)


def test_a_smaller_budget_of_false_alarms_hides_more() -> None:
    assert overall(300, budget=0.1) > overall(300) > overall(300, budget=10)


def test_a_slice_shows_less_than_overall() -> None:
    found = smallest_drops(Settings(), known(Ranking.of(29, slices=4).draw()))
    assert all(found[f"slice {i}"] > found[""] for i in range(4))


def test_without_a_baseline_nothing_is_promised() -> None:
    assert set(smallest_drops(Settings(), known(Ranking.of(9).draw())).values()) == {None}


@cache
def promise(seed: int) -> tuple[Ranking, float]:
    """A monitor, and the smallest drop that is promised to be seen of it after 30 days."""
    ranking = Ranking.of(32, slices=1, peak=300, seed=seed)
    promised = smallest_drops(Settings(), known(ranking.draw(seed).rows(0, 30 * 24)))[""]
    assert promised is not None
    return ranking, promised


@pytest.mark.parametrize(("times", "least", "most"), [(0.5, 0, 3), (1.0, 6, 11), (1.5, 12, 12)])
def test_what_it_promises_is_found_in_half_of_the_cases_or_more(times: float, least: int, most: int) -> None:
    found = 0
    for seed in range(12):
        ranking, promised = promise(seed)
        verdicts, _ = judge(Settings(), None, ranking.since(30, mean=1 - times * promised).draw(seed))
        found += any(v.is_degraded for v in verdicts if START + 30 * DAY < v.end <= START + 31 * DAY)
    assert least <= found <= most
