"""One unit's alarm, step by step: how it opens, what it remembers, how it closes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.drift.alarms import AlarmStates, StepEvidence, see, step
from monitor.drift.constants import LIKELIER_LOG
from monitor.drift.eprocess import SliceSums
from monitor.drift.noise import Noise
from monitor.drift.series import units
from monitor.drift.settings import EvidenceThreshold
from tests.support.drift import Ranking, verdicts

THRESHOLD = EvidenceThreshold.of(np.full(3, 2000.0))
JUDGED = np.array([True, True, True])


def seen(values: Floats, requests: float = 2000.0, found: Floats | float = 0.0, hours: int = 1) -> StepEvidence:
    """Evidence of two slices expected at .5, with (T, 2) means `values`, and `found` more by the usual ideal."""
    size = np.full(values.shape, requests)
    mean, variance = np.full(values.shape, 0.5), np.full(2, 0.05)
    sums = SliceSums(size, size * values, size * (values**2 + 0.05), mean, variance, variance)
    common = np.full(3, 0.005**2)
    noise = Noise(common, 3 * common, np.zeros(3), np.full(3, 0.01), common, np.full(3, 0.9), common, np.full(3, 0.05))
    short = units(np.stack([size, size, size * values, size * mean, size * (values + found), size, size, size, size]))
    past = short[1:5, :, 1:]
    return see(
        sums,
        noise,
        JUDGED,
        np.zeros(values.shape, bool),
        short,
        past,
        THRESHOLD,
        [3600 * hours * (i + 1) for i in range(len(values))],
        float(hours),
    )


def followed(values: list[tuple[float, float]], found_more: Floats | float = 0.0, hours: int = 1) -> list[AlarmStates]:
    """The alarm states after each step."""
    what, standing, found = seen(np.array(values), found=found_more, hours=hours), AlarmStates.empty(3, 0), []
    for row in range(len(values)):
        standing = step(standing, what, row, THRESHOLD)
        found.append(standing)
    return found


WELL, LOW = (0.5, 0.5), (0.46, 0.46)


def test_a_better_ideal_that_lowers_the_mean_opens_no_alarm() -> None:
    values = [WELL] * 10 + [LOW] * 30
    assert followed(values, found_more=0.005)[-1].open.all()
    assert not any(s.open.any() for s in followed(values, found_more=0.04))


@pytest.mark.parametrize("hours", [1, 6, 12, 24])
def test_a_deeper_fall_by_the_usual_ideal_delays_no_alarm(hours: int) -> None:
    """The gap between mean and finds is not noise, although steps of many requests show a lot of it."""
    values = [WELL] * 10 + [LOW] * 8
    more = [np.array([[0.0, 0.0]] * 10 + [[by, by]] * 8) for by in (0.0, -0.04)]
    plain, deeper = (followed(values, by, hours) for by in more)
    assert [s.open.tolist() for s in deeper] == [s.open.tolist() for s in plain]
    assert deeper[-1].open.all()


def test_a_lasting_drop_opens_an_alarm_with_its_start_and_size() -> None:
    found = followed([WELL] * 10 + [LOW] * 8)
    assert not any(s.open.any() for s in found[:13])
    last = found[-1]
    assert last.open.tolist() == [True, True, True]
    assert last.since.tolist() == [36_000] * 3
    assert last.effect == pytest.approx(-0.08, abs=1e-9)


def test_an_alarm_after_unjudged_hours_starts_after_them() -> None:
    what, standing = seen(np.array([WELL] * 10 + [LOW] * 12)), AlarmStates.empty(3, 0)
    for row in [0, 1, 2, *range(14, 22)]:
        standing = step(standing, what, row, THRESHOLD)
    assert standing.open.all()
    assert standing.since.tolist() == [14 * 3600] * 3


def test_an_alarm_closes_when_the_mean_is_back_and_not_at_a_single_step() -> None:
    found = followed([WELL] * 10 + [LOW] * 8 + [WELL] + [LOW] * 5 + [WELL] * 6)
    assert all(s.open[0] for s in found[17:24])
    closed = next(i for i, s in enumerate(found) if i > 24 and not s.open[0])
    assert closed <= 27
    assert (found[closed].evidence == 0).all()


def test_recovering_steps_do_not_dilute_the_remembered_drop() -> None:
    found = followed([WELL] * 10 + [LOW] * 8 + [WELL] * 2)
    assert found[-1].open[0]
    assert found[-1].effect[0] == pytest.approx(-0.08, abs=0.012)


def test_closing_the_overall_alarm_closes_all_slices_but_a_low_one() -> None:
    found = followed([WELL] * 10 + [LOW] * 8 + [(0.53, 0.46)] * 12)
    opened = found[17].opened_at[2]
    closed = next(i for i, s in enumerate(found) if i > 18 and not s.open[0])
    assert found[closed].open.tolist() == [False, False, True]
    assert [s.opened_at[2] for s in found[closed:]] == [opened] * len(found[closed:])


def test_closing_the_overall_alarm_closes_a_slice_back_within_tolerance() -> None:
    found = followed([WELL] * 10 + [LOW] * 8)
    back = replace(seen(np.array([WELL])), has=np.array([[True, True, False]]))
    after = found[-1]
    while after.open[0]:
        after = step(after, replace(back, ends=[int(after.opened_at.max()) + 3600]), 0, THRESHOLD)
    assert not after.open.any()


def test_a_closing_alarm_reports_the_mean_since_its_recovery_began() -> None:
    found = followed([WELL] * 10 + [LOW] * 20 + [WELL] * 6)
    closed = next(s for s in found[30:] if not s.open[0])
    requests, total, expected, *_ = closed.risen[0]
    assert total / requests == pytest.approx(0.5)
    assert expected / requests == pytest.approx(0.5)
    assert closed.back_since[0] == 31 * 3600


def test_a_new_alarm_does_not_inherit_how_the_last_one_closed() -> None:
    found = followed([WELL] * 10 + [LOW] * 8 + [WELL] * 8 + [LOW] * 8 + [WELL])
    assert found[-1].risen[0, :3] == pytest.approx([4000.0, 2000.0, 2000.0])
    assert found[-1].back_since[0] == 35 * 3600


def test_a_false_recovery_counts_as_part_of_the_drop() -> None:
    found = followed([WELL] * 10 + [LOW] * 8 + [WELL] * 2)
    assert found[-1].back[0] > 0
    assert found[-1].fallen[0, :3] == pytest.approx([8 * 4000.0, 8 * 4000 * 0.46, 8 * 4000 * 0.5])
    found = followed([WELL] * 10 + [LOW] * 8 + [WELL] * 2 + [LOW] * 4)
    assert found[-1].back[0] == 0
    assert found[-1].fallen[0, :3] == pytest.approx([14 * 4000.0, 4000 * (12 * 0.46 + 2 * 0.5), 14 * 4000 * 0.5])


def test_better_than_expected_never_opens_an_alarm() -> None:
    assert not any(s.open.any() for s in followed([WELL] * 5 + [(0.6, 0.6)] * 20))


def test_a_step_without_requests_leaves_the_evidence_unchanged() -> None:
    what = seen(np.array([LOW]))
    empty = seen(np.array([LOW]), requests=0.0)
    once = step(AlarmStates.empty(3, 0), what, 0, THRESHOLD)
    assert (step(once, empty, 0, THRESHOLD).evidence == once.evidence).all()


def test_an_ongoing_fall_hardly_ever_looks_recovered() -> None:
    """In an hour with few requests, some evidence of recovery may be chance. Odds of 7 hardly ever are."""
    for seed in range(3):
        found = verdicts(Ranking.of(42, peak=60.0, seed=seed).since(31, mean=0.8).draw(seed))
        alarms = [alarm for verdict in found for alarm in verdict.alarms]
        assert sum(alarm.back_since is not None for alarm in alarms) > 0.1 * len(alarms)
        assert sum(alarm.recovery >= LIKELIER_LOG for alarm in alarms) < 0.01 * len(alarms)
