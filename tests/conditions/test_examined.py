"""Where people look is told apart from what they are shown, by clicks on the same items at different ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from monitor.conditions.examined import ExaminationCheck, Examined, as_examined, check, sound_spans
from monitor.drift.verdicts import Alarm, Verdict
from monitor.measures.examination import ALL
from monitor.types import FARTHEST
from monitor.units import DAY
from tests.support.drawn_log import DEPTH, Log, by_device, draw

CHANGED = 20


def followed(
    log: Log | Mapping[str, Log], until: int, begun: int = 0, first: int = 18, budget: float = 1.0
) -> list[ExaminationCheck]:
    """The daily checks from `first` to `until`, of one log or of one log per device."""
    counts = log.counts if isinstance(log, Log) else by_device(log)
    found: list[ExaminationCheck] = []
    for day in range(first, until + 1):
        one = check(found[-1] if found else None, day * DAY, begun, budget, DEPTH, counts)
        found += [] if one is None else [one]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_new_page_is_found_in_three_days_but_not_a_worse_ranking(seed: int) -> None:
    page, worse = draw(seed, steep={CHANGED: 0.4}), draw(seed, noise={CHANGED: 1.0})
    *before, _, _, third = followed(page, CHANGED + 3)
    assert all(one.changed_since is None for one in before)
    assert third.changed_since is not None
    assert third.changed_since < CHANGED * DAY
    assert third.corrected[1] < 0 < third.corrected[2]
    assert all(one.changed_since is None for one in followed(worse, CHANGED + 3))


PHONE = {"people": 1, "views": {0: 450, CHANGED: 900}}
"""From day CHANGED on, twice as many people on phones, who look less far down."""


@pytest.mark.parametrize("seed", range(6))
def test_a_new_page_on_one_device_is_found_there_but_not_a_device_mix_shift(seed: int) -> None:
    desk = draw(seed, views={0: 900, CHANGED: 450})
    mixed = followed({"desk": desk, "phone": draw(seed, steep={0: 1.6}, **PHONE)}, CHANGED + 4)
    assert all(one.changed_since is None for one in mixed)
    assert mixed[-1].corrected[1] < 0 < mixed[-1].corrected[2]
    *_, third = followed({"desk": desk, "phone": draw(seed, steep={0: 1.6, CHANGED: 0.7}, **PHONE)}, CHANGED + 3)
    assert third.changed_since is not None
    assert third.change.part == ("device", "phone")
    assert third.corrected[1] < 0 < third.corrected[2]


def test_a_new_page_on_all_devices_is_attributed_to_none() -> None:
    logs = {name: draw(0, people=i, steep={CHANGED: 0.4}) for i, name in enumerate(("desk", "phone"))}
    *_, third = followed(logs, CHANGED + 3)
    assert third.changed_since is not None
    assert third.change.part == ALL


def test_a_device_with_few_clicks_neither_raises_nor_hides_an_alarm() -> None:
    quiet = {"desk": draw(1), "tv": draw(1, people=1, views=2)}
    assert all(one.changed_since is None for one in followed(quiet, 24))
    *_, third = followed({**quiet, "desk": draw(1, steep={CHANGED: 0.4})}, CHANGED + 3)
    assert third.changed_since is not None
    assert "tv" not in {value for _, value in third.now.parts}


def test_quiet_weeks_stay_within_the_false_alarm_budget() -> None:
    checks = [one for seed in range(12) for one in followed(draw(seed), 24)]
    assert len(checks) == 12 * 7
    assert sum(one.changed_since is not None for one in checks) <= 1  # 84 checks; one false alarm in 90 is allowed


def test_a_change_lasts_until_examination_is_back_or_the_baseline_is_reset() -> None:
    found = followed(draw(1, 40, steep={CHANGED: 0.4, 32: 1.0}), 40)
    changed = [one.at // DAY for one in found if one.changed_since is not None]
    assert changed[0] <= CHANGED + 3
    assert changed == list(range(changed[0], changed[-1] + 1))
    known = {one.known_until for one in found if one.changed_since is not None}
    assert len(known) == 1
    assert max(known) <= CHANGED * DAY
    open_ = next(one for one in found if one.at == 30 * DAY)
    log = draw(1, 60, steep={CHANGED: 0.4})
    accepted = check(open_, 30 * DAY, CHANGED * DAY, 1.0, DEPTH, log.counts)
    assert accepted is not None
    assert (accepted.changed_since, accepted.known_since, accepted.known_until) == (None, open_.since, open_.at)
    assert accepted.known is open_.now
    was, days = accepted, []
    newer = draw(1, 60, steep={CHANGED: 0.4, 40: 1.0})
    for day in range(31, 44):
        was = check(was, day * DAY, CHANGED * DAY, 1.0, DEPTH, newer.counts)
        assert was is not None
        days += [day] if was.changed_since is not None else []
    assert 40 < days[0] <= 43, "the next page is found, the accepted one is not reported again"
    after = check(open_, 50 * DAY, CHANGED * DAY, 1.0, DEPTH, log.counts)
    assert after is not None
    assert after.changed_since is None
    assert after.known_since == CHANGED * DAY


def test_a_change_ends_when_examination_is_back() -> None:
    found = followed(draw(2, 32, steep={CHANGED: 0.4, 23: 1.0}), 32)
    assert any(one.changed_since is not None for one in found)
    assert next(one.at // DAY for one in found[::-1] if one.changed_since is not None) <= 23 + 7


@pytest.mark.parametrize("seed", range(6))
def test_lost_clicks_are_told_apart_from_fewer_clicks_on_worse_lists(seed: int) -> None:
    lost = followed(draw(seed, lost={CHANGED: 0.25}), CHANGED + 1)[-1]
    worse = followed(draw(seed, noise={CHANGED: 1.0}), CHANGED + 1)[-1]
    both = followed(draw(seed, noise={CHANGED: 1.0}, steep={CHANGED: 1.5}), CHANGED + 1)[-1]
    assert [one.clicked < 0.9 for one in (lost, worse, both)] == [True] * 3
    assert [one.found.is_sound for one in (lost, worse, both)] == [False, True, True]


def test_an_unchanged_click_rate_needs_no_look_at_the_past() -> None:
    (one,) = followed(draw(3), 18)
    assert one.again is None
    assert not one.found.is_sound


def test_too_few_days_give_no_check_and_too_few_swaps_raise_an_error() -> None:
    log = draw(4)
    assert check(None, 16 * DAY, 0, 1.0, DEPTH, log.counts) is None
    assert check(None, 17 * DAY, 0, 1.0, DEPTH, log.counts) is not None
    assert check(None, 20 * DAY, 10 * DAY, 1.0, DEPTH, log.counts) is None
    thin = draw(4, views=3)
    with pytest.raises(ValueError, match="not enough swaps at rank"):
        check(None, 20 * DAY, 0, 1.0, DEPTH, thin.counts)


def test_a_check_survives_a_json_round_trip() -> None:
    desk = {"desk": draw(5), "phone": draw(5, people=1)}
    for one in (followed(log, CHANGED + 1)[-1] for log in (draw(5, lost={CHANGED: 0.5}), draw(5), desk)):
        again = ExaminationCheck.of(json.loads(json.dumps(one.plain())))
        assert again.found == one.found
        assert again.again == one.again
        assert again.change == one.change
        assert np.array_equal(again.now.covariance, one.now.covariance)


ALARM = Alarm("", 0, DAY, -0.3, 2.0, 0.05, 0.35, 0.5, 900)
SMALL = replace(ALARM, unit="mobile", effect=-0.1)
FALLEN = Verdict(5 * DAY, "degraded", (ALARM, SMALL))


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ([], (ALARM, SMALL)),
        ([Examined(4 * DAY, None, None, False)], (ALARM, SMALL)),
        ([Examined(4 * DAY, -0.2, 0.1, False)], (SMALL,)),
        ([Examined(4 * DAY, -0.05, 0.1, False)], ()),
        ([Examined(4 * DAY, -0.29, 0.0, False)], (ALARM, SMALL)),  # its middle is closer to the fall than to 0
        ([Examined(4 * DAY, -0.2, -0.1, False)], (ALARM, SMALL)),  # the corrected measure fell too
        ([Examined(5 * DAY, -0.2, 0.1, False)], (ALARM, SMALL)),  # known only later
        ([Examined(3 * DAY, -0.2, 0.1, False), Examined(4 * DAY, None, None, False)], (ALARM, SMALL)),
    ],
)
def test_the_corrected_measure_withdraws_alarms_it_contradicts(known: list[Examined], left: tuple[Alarm, ...]) -> None:
    found = as_examined(FALLEN, known)
    assert found.alarms == left
    assert found.kind == ("degraded" if left else "healthy")
    assert [change.unit for change in found.changes if change.became == "withdrawn"] == [
        alarm.unit for alarm in FALLEN.alarms if alarm not in left
    ]


def test_labels_are_sound_from_one_check_to_the_next() -> None:
    flags = [True, False, True]
    known = [Examined(at * DAY, None, None, is_sound) for at, is_sound in enumerate(flags)]
    assert sound_spans(known) == ((0, DAY), (2 * DAY, FARTHEST))
    assert sound_spans([]) == ()
