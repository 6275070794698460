"""A fall begins at its change point, not with the noise before it, as precisely as the steps allow."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.drift.levels import DaySums
from monitor.drift.noise import Noise
from monitor.drift.series import Hours
from monitor.drift.sudden_falls import change_point, roughly, with_days_before
from monitor.drift.verdicts import Alarm
from monitor.units import DAY, HOUR
from tests.support.drift import Ranking, day, on, verdicts

FELL = 32 + 5 / 24
"""The day on which the ranking falls."""


def point(moved: list[float], error: float = 0.05, prior: float = 0.02) -> list[int]:
    """The change point of one unit. Its steps have `error`, and its earlier level may be off by `prior`."""
    column: Floats = np.array(moved)[:, None]
    weight = np.where(np.isnan(column), 0.0, error**-2)
    found: list[int] = change_point(np.nan_to_num(column), weight, np.array([prior**-2]))[0].tolist()
    return found


def test_noise_before_a_fall_does_not_move_its_start() -> None:
    assert point([0.0] * 10 + [-0.04, -0.05] + [-0.2] * 4) == [12, 12, 12]


def test_a_fall_after_a_low_day_starts_at_the_fall() -> None:
    assert point([-0.05] * 16 + [-0.2] * 6)[0] == 16


def test_a_fall_small_against_its_noise_has_a_less_certain_start() -> None:
    moved = [0.01, -0.01] * 8 + [-0.1] * 6
    spans = [last - first for _, first, last in (point(moved, error) for error in (0.02, 0.06, 0.15))]
    assert spans[0] == 0
    assert spans[0] < spans[1] < spans[2]


def test_a_fall_does_not_start_in_unknown_steps() -> None:
    best, first, last = point([0.0] * 8 + [float("nan")] * 3 + [-0.2] * 4)
    assert best == first == last == 11


def test_a_start_is_known_to_within_a_quarter_of_the_detection_time() -> None:
    assert roughly(np.array([0]), 80 * HOUR, HOUR).tolist() == [[0, -20 * HOUR, 20 * HOUR]]
    assert roughly(np.array([0]), 2 * HOUR, HOUR).tolist() == [[0, -HOUR, HOUR]]


def drawn(seed: int) -> Hours:
    """A ranking whose overall mean suddenly falls by an eighth."""
    return Ranking.of(34, seed=seed, peak=150, noise=0.02).since(FELL, mean=0.8, slices=[0, 1]).draw(seed)


def alarms(seed: int, until: float = 34.0) -> list[Alarm]:
    """The alarms on all traffic, step by step."""
    found = on(verdicts(drawn(seed).rows(0, round(until * 24))), FELL)
    return [alarm for v in found for alarm in v.alarms if not alarm.unit]


@pytest.mark.parametrize(("seed", "evidence_began"), [(2, -14), (11, -2)])
def test_an_alarm_starts_with_the_fall_not_with_its_evidence(seed: int, evidence_began: int) -> None:
    first, *others = alarms(seed)
    assert first.since == day(FELL) + evidence_began * HOUR
    assert first.fell_at == day(FELL)
    assert first.began_within is not None
    assert first.began_within[0] <= day(FELL) <= first.began_within[1] < first.opened_at
    assert {(a.began, a.began_within) for a in others} == {(first.began, first.began_within)}, (
        "later steps keep what the first one knew"
    )
    assert alarms(seed, until=(first.opened_at - day(0)) / 86_400)[0].began == first.began


@pytest.mark.parametrize("seed", [2, 11])
def test_the_reported_drop_covers_the_hours_since_the_fall_began(seed: int) -> None:
    hours, told = drawn(seed), alarms(seed)
    assert {alarm.back_since for alarm in told[:6]} == {None}
    for number, alarm in enumerate(told[:6]):
        fallen = (hours.starts >= day(FELL)) & (hours.starts < alarm.opened_at + number * HOUR)
        requests = hours.requests[fallen].sum()
        assert alarm.requests == requests
        assert alarm.value == pytest.approx(hours.total[fallen].sum() / requests)
        assert alarm.before is not None
        assert alarm.effect == pytest.approx(alarm.value / alarm.before - 1)


def ramp(seed: int) -> Hours:
    """A ranking whose overall mean falls by 0.5 % a day for twelve days."""
    found = Ranking.of(44, seed=seed, peak=2000)
    for number in range(12):
        found = found.since(32 + number, mean=0.995)
    return found.draw(seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_decay_reports_that_it_may_have_begun_days_before(seed: int) -> None:
    first = next(a for v in on(verdicts(ramp(seed)), 32) for a in v.alarms if not a.unit)
    assert first.began_within is not None
    earliest, last = first.began_within
    assert day(31) <= earliest <= first.opened_at - 2 * DAY
    assert first.fell_at <= last < first.opened_at


@pytest.mark.parametrize("seed", range(4))
def test_a_fall_found_when_labels_return_may_have_begun_while_they_were_lost(seed: int) -> None:
    hours = Ranking.of(35, seed=seed, peak=600).since(32, mean=0.8).since(32, 33, coverage=0.2).draw(seed)
    first = next(a for v in on(verdicts(hours), 32) for a in v.alarms if not a.unit)
    assert first.began_within is not None
    assert first.opened_at > day(33)
    assert first.began_within[0] <= day(32.1)


def before(moved: list[float], effect: float, first: float = 4.5) -> float:
    """The earliest day on which a unit's fall may have begun; `moved` is how far its whole days 0, 1, ... were off."""
    sums = [np.array([[5e2 * (1 + m)], [5e2], [3.5e2], [0], [0], [0], [1e3], [0], [1e3]]) for m in moved]
    days = [DaySums(number, of_day, np.zeros(5)) for number, of_day in enumerate(sums)]
    one = np.full(2, 1e-6)
    noise = Noise(*[one] * 8)
    found = with_days_before(np.full(2, round(first * DAY)), np.full(2, effect), days, np.ones(1), noise, 24)
    assert found[0] == found[1], "all traffic and its only slice agree"
    return float(found[0] / DAY)


def test_a_fall_may_have_begun_with_the_first_of_the_lower_days() -> None:
    assert before([0.0, 0.0, -0.05, -0.08], -0.12) == 2
    assert before([-0.05, -0.05, -0.06, -0.08], -0.12) == 0, "all of them together"


def test_days_as_expected_or_hardly_lower_do_not_extend_a_fall() -> None:
    assert before([0.0, 0.01, -0.01, 0.0], -0.12) == 4.5
    assert before([0.0, 0.0, -0.02, -0.02], -0.12) == 4.5, "less than a quarter of the fall"


def test_the_day_a_fall_began_in_does_not_move_its_start_earlier() -> None:
    assert before([0.0, 0.0, 0.0, 0.0, -0.1], -0.12) == 4.5
