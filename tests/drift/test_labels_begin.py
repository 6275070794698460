"""Where labels begin later than rankings, the time before them does not count as usual."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict
from tests.support.drift import DAY, HOUR, START, Ranking, day, known, on, verdicts

LACKS = "a first label with a value above 0, and 14 days from then on"


def kinds(found: list[Verdict]) -> set[str]:
    return {str(v.kind) for v in found}


def worthless_until(hours: Hours, end: int) -> Hours:
    """With labels from the first day on, all worth 0 before `end`."""
    early = (hours.starts < end)[:, None]
    return replace(hours, total=np.where(early, 0, hours.total), squares=np.where(early, 0, hours.squares))


@pytest.mark.parametrize("is_labelled", [True, False])
@pytest.mark.parametrize("begins", [3, 13.5, 20, 40])
def test_the_baseline_starts_with_the_labels_and_a_later_fall_is_found(begins: float, is_labelled: bool) -> None:
    past = Ranking.of(75).since(70, mean=0.9)
    hours = past.draw() if is_labelled else past.since(0, begins, coverage=0.0).draw()
    found = verdicts(worthless_until(hours, day(begins)) if is_labelled else hours)
    assert {(v.kind, v.lacks) for v in on(found, 1, int(begins))} == {("not_enough_data", LACKS)}
    assert on(found, int(begins) + 1)[0].lacks.endswith("of 14 days to begin with")
    assert kinds(on(found, begins + 1, begins + 14)) == {"not_enough_data"}
    assert kinds(on(found, begins + 15.1, 70)) == {"healthy"}
    assert all(v.expected == pytest.approx(0.55, abs=0.02) for v in on(found, begins + 15.1, 70))
    assert kinds(on(found, 70.5)) == {"degraded"}


@pytest.mark.parametrize("begins", [9, 20, 40.5])
def test_a_slice_gets_its_own_baseline_once_its_labels_begin(begins: float) -> None:
    past = Ranking.of(80, peak=900).since(0, begins, coverage=0.0, slices=[1])
    plain = known(Ranking.of(80, peak=900).draw())
    state = known(past.draw())
    assert state.baseline is not None
    assert plain.baseline is not None
    level, usual = (s.baseline.quality.level * s.levels.ratios[0] for s in (state, plain) if s.baseline is not None)
    np.testing.assert_allclose(level, usual, rtol=0.01)
    found = verdicts(past.since(70, mean=0.8, slices=[1]).draw())
    assert not any(v.is_degraded for v in on(found, 0, 70))
    assert {a.unit for v in on(found, 70.3) for a in v.alarms} >= {"slice 1"}


def test_zeros_that_may_be_chance_stay_in_the_reference() -> None:
    hours = Ranking.of(40, slices=1, peak=2).draw()
    some = np.random.default_rng(3).random(hours.total.shape) < 0.05  # a hit now and then, none in the first two days
    some[: 2 * 24] = False
    thin = replace(hours, total=hours.total * some, squares=hours.squares * some)
    state = known(thin)
    assert state.baseline is not None
    mean = thin.total[: 28 * 24].sum() / thin.requests[: 28 * 24].sum()
    assert state.baseline.since - START < DAY
    assert state.baseline.quality.level[0] == pytest.approx(mean, rel=0.1)


def test_judging_bit_by_bit_matches_one_call_when_labels_begin_late() -> None:
    hours = Ranking.of(60).since(0, 6.4, coverage=0.0).since(0, 30.2, coverage=0.0, slices=[2]).draw()
    whole, end = judge_steps(DriftSettings(), None, hours)
    state: DriftState | None = None
    one_by_one: list[Verdict] = []
    for row in range(len(hours.starts)):
        some, state = judge_steps(DriftSettings(), state, hours.rows(row, row + 1))
        one_by_one += some
    assert one_by_one == whole
    assert state is not None
    assert end is not None
    assert state.to_json() == end.to_json()
    assert end.first_seen.tolist()[2] == day(31), "the start of the day after its first label"
    assert not end.waited_for.any()
    assert on(one_by_one, 21)[0].end == day(21) + HOUR
