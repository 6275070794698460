"""Announced steps: neither judged nor learnt from, as if they had never been read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.verdicts import Verdict
from monitor.units import DAY
from tests.support.drift import Ranking, day, known, on, verdicts

WEEK = (day(33), day(40))
ANNOUNCED = DriftSettings(announced=(WEEK,))
RANKING = Ranking.of(50, peak=900)
CAMPAIGN = RANKING.since(33, 40, mean=0.8, rate=3.0, coverage=0.6)


def without(hours: Hours, span: tuple[int, int]) -> list[Hours]:
    first, last = (int((hours.starts < at).sum()) for at in span)
    return [hours.rows(0, first), hours.rows(last, len(hours.starts))]


def judged(found: list[Verdict]) -> list[Verdict]:
    return [v for v in found if v.kind != "announced"]


def test_an_announced_campaign_is_not_judged_while_an_unannounced_one_is() -> None:
    assert {v.kind for v in verdicts(CAMPAIGN.draw())} > {"degraded"}
    found = verdicts(CAMPAIGN.draw(), ANNOUNCED)
    assert {v.kind for v in on(found, 33, 40)} == {"announced"}
    assert {v.kind for v in [*on(found, 28, 33), *on(found, 40)]} == {"healthy"}
    assert all(v.requests > 0 and v.coverage is not None and v.expected is None for v in on(found, 33, 40))


def test_nothing_is_learnt_from_announced_steps() -> None:
    drawn = CAMPAIGN.draw()
    found, after = judge_steps(ANNOUNCED, None, drawn)
    before, rest = without(drawn, WEEK)
    bare, state = judge_steps(ANNOUNCED, None, before)
    more, state = judge_steps(ANNOUNCED, state, rest)
    assert judged(found) == [*bare, *more]
    assert after is not None
    assert state is not None
    assert after.to_json() == state.to_json()


@pytest.mark.parametrize("until", [35, 45, 50])
def test_a_reference_leaves_out_announced_days(until: int) -> None:
    spell = RANKING.since(6, 9, mean=0.8)
    announced = DriftSettings(announced=((day(6), day(9)),))
    baseline = known(spell.draw().rows(0, until * 24), announced).baseline
    assert baseline is not None
    assert baseline.quality.level == pytest.approx(known(RANKING.draw()).baseline.quality.level, rel=0.01)  # type: ignore[union-attr]


def test_an_open_alarm_stays_open_through_an_announced_day() -> None:
    worse = RANKING.since(31, mean=0.85)
    found = verdicts(worse.draw(), DriftSettings(announced=((day(33), day(34)),)))
    (opened,) = {v.alarms[0].opened_at for v in on(found, 32, 33)}
    for verdict in [*on(found, 33, 34), *on(found, 34, 36)]:
        assert verdict.alarms[0].opened_at == opened
        assert verdict.changes == ()


def test_a_fall_that_outlasts_an_announced_week_is_found_after_it() -> None:
    found = verdicts(RANKING.since(33, mean=0.85).draw(), ANNOUNCED)
    first = next(v.end for v in found if v.is_degraded)
    assert WEEK[1] < first < WEEK[1] + 2 * DAY


def test_any_split_of_announced_steps_over_calls_gives_the_same_result() -> None:
    drawn = CAMPAIGN.since(41, mean=0.9).draw()
    at_once, state = judge_steps(ANNOUNCED, None, drawn)
    found, after = list[Verdict](), None
    for row in range(0, len(drawn.starts), 7):
        some, after = judge_steps(ANNOUNCED, after, drawn.rows(row, row + 7))
        found += some
    assert found == at_once
    assert after is not None
    assert state is not None
    assert after.to_json() == state.to_json()


def test_a_new_level_that_starts_when_the_announced_span_ends_is_learnt() -> None:
    lower = RANKING.since(33, mean=0.85).draw()
    found = verdicts(lower, replace(ANNOUNCED, resets=(WEEK[1],)))
    assert not any(v.is_degraded for v in found)
    assert {v.kind for v in on(found, 43)} == {"healthy"}


@pytest.mark.parametrize("has_alarm", [False, True])
def test_announced_steps_keep_reporting_baseline_level_and_alarms(has_alarm: bool) -> None:
    ranking = Ranking.of(186, seed=1)
    decay = 1 - 0.12 * np.clip(((ranking.starts - day(0)) / DAY - 30) / 300, 0, 1)
    slowly = replace(ranking, mean=ranking.mean * decay[:, None])
    worse = slowly.since(179, mean=0.8) if has_alarm else slowly
    found = verdicts(worse.draw(), DriftSettings(announced=((day(180), day(181)),)))
    (before,), during = on(found, 179.97, 180), on(found, 180, 181)
    assert (before.reference_days, before.decayed, bool(before.alarms)) == (28, not has_alarm, has_alarm)
    names = ("alarms", "reference_days", "improved", "decayed", "moved", "labels_moved", "mix_shifted")
    for verdict in during:
        assert [getattr(verdict, name) for name in names] == [getattr(before, name) for name in names]
