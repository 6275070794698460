"""A level that was reset: how soon it is known, and what is judged on it."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.drift import levels as lv
from monitor.drift.judge import judge_steps
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.messages.words import utc
from monitor.units import DAY, HOUR
from tests.support.drift import START, Ranking, known, on, verdicts

BEGAN = START + 33 * DAY + 5 * HOUR
ANEW = DriftSettings(resets=(BEGAN,))
LOWER = Ranking.of(60, peak=900).since(33.2, mean=0.9)


def kinds(found: list) -> set[str]:
    return {v.kind for v in found}


def test_after_two_days_there_are_verdicts_on_the_new_level() -> None:
    found = verdicts(LOWER.draw(), ANEW)
    assert kinds(on(found, 33.5, 36)) == {"not_enough_data"}
    known = f"of 2, so until {utc(START + 36 * DAY)} at least"
    said = "whole UTC days since the new level began, labels included"
    assert on(found, 33.5, 35)[0].lacks == f"{said}: less than one {known}"
    assert on(found, 35.3)[0].lacks == f"{said}: 1 {known}"
    assert kinds(on(found, 36)) == {"healthy"}
    assert on(found, 36.5)[0].lacks == "a whole reference since the new level began: 2 of 28 days"


@pytest.mark.parametrize("hour", [0, 1, 12, 23])
def test_a_new_level_never_promises_a_verdict_too_early(hour: int) -> None:
    began = START + 33 * DAY + hour * HOUR
    found = [v for v in verdicts(Ranking.of(38, peak=900).draw(), DriftSettings(resets=(began,))) if v.end > began]
    first = next(v.end for v in found if v.kind == "healthy") - HOUR
    waiting = [v for v in found if v.end <= first]
    assert {v.lacks.partition("so until ")[2] for v in waiting[:-1]} == {f"{utc(first)} at least"}
    assert waiting[-1].lacks == "a first hour since the new level is known"
    assert not any("2 of 2" in v.lacks for v in waiting)
    assert first == -(-began // DAY) * DAY + 2 * DAY


def test_a_new_level_withdraws_open_alarms() -> None:
    found = verdicts(Ranking.of(40, peak=900).since(32, mean=0.9).draw(), ANEW)
    assert on(found, 33)[0].is_degraded
    assert [c.became for v in found for c in v.changes if v.end == BEGAN + HOUR and not c.unit] == ["withdrawn"]


@pytest.mark.parametrize("day", [37, 40, 55])
def test_a_drop_from_the_new_level_is_found(day: float) -> None:
    found = verdicts(LOWER.since(day, mean=0.93).draw(), ANEW)
    assert not any(v.is_degraded for v in on(found, 36, day))
    assert any(v.is_degraded for v in on(found, day, day + 1))


def test_a_slice_that_moved_by_itself_is_judged_on_its_own_new_level() -> None:
    moved = Ranking.of(60, peak=3000).since(33.2, mean=1.1, slices=[0]).since(33.2, mean=0.85, slices=[2])
    assert kinds(on(verdicts(moved.draw(), ANEW), 36)) == {"healthy"}
    alarms = {a.unit for v in on(verdicts(moved.since(40, mean=0.85, slices=[2]).draw(), ANEW), 40) for a in v.alarms}
    assert "slice 2" in alarms
    assert not alarms & {"slice 0", "slice 1"}


@pytest.mark.parametrize("what", [{"coverage": 0.6}, {"rate": 0.3}])
def test_a_new_level_accepts_the_current_labels_and_traffic(what: dict[str, float]) -> None:
    found = verdicts(Ranking.of(60, peak=2000).since(33.2, **what).draw(), ANEW)
    assert kinds(on(found, 33.5, 36)) == {"not_enough_data"}
    assert kinds(on(found, 37)) == {"healthy"}


def test_labels_that_break_on_the_new_level_are_still_found() -> None:
    found = verdicts(LOWER.since(37, 37.5, coverage=0.1).draw(), ANEW)
    assert kinds(on(found, 37.1, 37.4)) == {"labels_suspect"}


def test_an_accepted_better_level_is_not_offered_again() -> None:
    better = Ranking.of(60, peak=900).since(33.2, mean=1.06)
    assert any(v.improved for v in verdicts(better.draw()))
    assert not any(v.improved for v in on(verdicts(better.draw(), ANEW), 33.5))


def test_thin_slices_lean_on_the_others() -> None:
    thin = Ranking.of(40, peak=900).since(0, rate=0.02, slices=[1]).since(33.2, mean=0.9)
    state = known(thin.draw(), ANEW)
    assert state.baseline is not None
    before = known(thin.draw()).baseline
    assert before is not None
    moved = state.baseline.quality.level / before.quality.level
    assert moved[0] == pytest.approx(0.9, abs=0.02)
    assert moved[1] == pytest.approx(0.9, abs=0.03)
    assert state.levels.ratios[lv.QUALITY] == pytest.approx(np.ones(3), abs=0.02)


def test_a_whole_reference_replaces_the_new_level() -> None:
    late = on(verdicts(Ranking.of(70, peak=900).since(33.2, mean=0.9).draw(), ANEW), 62.5)
    assert kinds(late) == {"healthy"}
    assert late[-1].lacks == ""
    assert late[-1].reference_days >= 27


def test_two_resets_in_a_row_are_each_learnt() -> None:
    twice = LOWER.since(45, mean=1.2)
    settings = DriftSettings(resets=(BEGAN, START + 45 * DAY))
    found = verdicts(twice.draw(), settings)
    assert kinds(on(found, 36, 45)) == {"healthy"}
    assert kinds(on(found, 45, 47)) == {"not_enough_data"}
    assert kinds(on(found, 47)) == {"healthy"}


def test_a_reset_without_a_baseline_restarts_the_reference() -> None:
    found = verdicts(Ranking.of(40).draw(), DriftSettings(resets=(START + 5 * DAY,)))
    assert kinds(on(found, 0, 19)) == {"not_enough_data"}
    assert found[-1].kind == "healthy"


@pytest.mark.parametrize("cut", [33 * 24 + 4, 34 * 24 + 7, 36 * 24, 37 * 24 + 1])
def test_judging_a_new_level_in_two_calls_matches_one_call(cut: int) -> None:
    hours = LOWER.draw()
    whole, last = judge_steps(ANEW, None, hours)
    first, state = judge_steps(ANEW, None, hours.rows(0, cut))
    assert state is not None
    then, end = judge_steps(ANEW, DriftState.from_json(state.to_json()), hours.rows(cut, len(hours.starts)))
    assert whole == [*first, *then]
    assert last is not None
    assert end is not None
    assert last.to_json() == end.to_json()


def test_lost_labels_do_not_become_a_new_level() -> None:
    found = verdicts(Ranking.of(60, peak=900).since(32, 40, coverage=0.1).draw(), ANEW)
    assert kinds(on(found, 32, 33)) == {"labels_suspect"}
    assert kinds(on(found, 33.1, 40)) == {"labels_collapsed"}
    late = on(found, 48)
    assert kinds(late) == {"healthy"}
    assert late[0].expected is not None
    assert late[0].expected > 0.4


def test_days_of_zeros_do_not_become_a_new_level() -> None:
    found = verdicts(Ranking.of(45, peak=900).since(33.2, coverage=0.0).draw(), ANEW)
    assert kinds(on(found, 33.21, 34.2)) == {"labels_suspect"}
    assert kinds(on(found, 34.3)) == {"labels_collapsed"}
    assert all(v.expected is None or v.expected == v.expected for v in found)


def test_a_day_missing_most_hours_does_not_count_towards_the_new_level() -> None:
    anew = DriftSettings(resets=(START + 31 * DAY,))
    found = verdicts(Ranking.of(40, peak=900).since(31.1, 33.4, coverage=0.0).draw(), anew)
    assert kinds(on(found, 31.2, 33.3)) == {"labels_suspect", "labels_collapsed"}
    assert kinds(on(found, 33.6, 36)) == {"not_enough_data"}
    assert on(found, 34.5)[0].lacks == (
        "whole UTC days since the new level began, labels included: less than one of 2, "
        f"so until {utc(START + 36 * DAY)} at least; 3 brought too few requests or labels to count"
    )
    assert kinds(on(found, 36)) == {"healthy"}


def test_slowly_declining_labels_settle_on_a_new_level() -> None:
    slow = Ranking.of(215, peak=900)
    for day in range(30, 200):
        slow = slow.since(day, coverage=0.9974, mean=1 / 0.9974)
    anew = DriftSettings(resets=(START + 210 * DAY,))
    found = verdicts(slow.since(210, coverage=0.7).draw(), anew)
    assert kinds(on(found, 20, 210)) == {"healthy"}
    assert kinds(on(found, 212)) == {"healthy"}


def test_a_slice_with_lost_labels_stays_collapsed_on_a_new_level() -> None:
    anew = DriftSettings(resets=(START + 34 * DAY,))
    found = verdicts(Ranking.of(40, 4, 2000.0).since(32, 38, coverage=0.0, slices=[1]).draw(), anew)
    assert kinds(on(found, 33.2, 38)) == {"slice_labels_collapsed"}


def test_a_broken_day_before_a_gap_does_not_become_a_new_level() -> None:
    anew = DriftSettings(resets=(START + 31 * DAY,))
    past = Ranking.of(45, peak=900).since(31, 31 + 20 / 24, coverage=0.0).since(31 + 20 / 24, 32, coverage=0.6).draw()
    before, state = judge_steps(anew, None, past.rows(0, 32 * 24))
    after, _ = judge_steps(anew, state, past.rows(37 * 24, len(past.starts)))
    assert kinds(on(before, 31.2)) == {"labels_suspect"}
    assert kinds(on(after, 37, 39)) == {"not_enough_data"}
    settled = on(after, 39.5)
    assert kinds(settled) == {"healthy"}
    assert settled[0].expected == pytest.approx(0.55, abs=0.02)
