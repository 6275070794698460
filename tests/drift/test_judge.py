"""Drift verdicts as a fold over hourly partials: what fires, what broken data give, what never fires."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.drift.verdicts import Verdict
from monitor.units import DAY, HOUR
from tests.support.drift import START, Ranking, known, on, verdicts

PLAIN = DriftSettings()


def kinds(found: list[Verdict]) -> set[str]:
    return {v.kind for v in found}


def first(found: list[Verdict], day: float) -> float:
    """Hours from a day's beginning to the first open alarm."""
    return next((v.end - START - day * DAY) / HOUR for v in found if v.is_degraded and v.end > START + day * DAY)


# ---- the fold ------------------------------------------------------------------------------------------------------


def eventful() -> Hours:
    """A drop, an outage, a new slice, a gap of a week, three hours of little traffic, another drop."""
    ranking = Ranking.of(60, slices=9, peak=900).since(0, 20.3, rate=0, slices=[7, 8]).since(31.2, 33.7, mean=0.8)
    ranking = ranking.since(35.1, 36.4, coverage=0).since(38, 38.3, rate=0.05)
    # Low traffic, reported because of a second step that alone would not be low enough.
    ranking = ranking.since(53.5, 53.5 + 2 / 24, rate=0.1).since(53.5 + 2 / 24, 53.625, rate=1.15)
    hours = ranking.since(55, mean=0.85).draw()
    kept = np.flatnonzero((hours.starts < START + 40 * DAY) | (hours.starts >= START + 47 * DAY))
    return replace(
        hours.rows(0, 0),
        **{n: getattr(hours, n)[kept] for n in hours.__dataclass_fields__ if n != "slices"},
    )


EVENTFUL = eventful()


@cache
def at_once() -> tuple[list[Verdict], DriftState]:
    """(verdicts, last state) of judging them all in one call. Lazy, so that collecting this file stays cheap."""
    found, last = judge_steps(PLAIN, None, EVENTFUL)
    assert last is not None
    return found, last


def plain(state: DriftState | None) -> str:
    assert state is not None
    return json.dumps(state.to_json(), allow_nan=False)


@given(st.lists(st.integers(0, len(EVENTFUL.starts)), max_size=6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_split_of_the_steps_gives_the_same_fold(cuts: list[int], is_stored: bool) -> None:
    state, found = None, list[Verdict]()
    edges = sorted({0, len(EVENTFUL.starts), *cuts})
    for since, until in itertools.pairwise(edges):
        some, state = judge_steps(PLAIN, state, EVENTFUL.rows(since, until))
        if is_stored and state is not None:
            state = DriftState.from_json(json.loads(plain(state)))
        found += some
    whole, last = at_once()
    assert found == whole
    assert plain(state) == plain(last)


@pytest.mark.parametrize("slices", [1, 9])
def test_judging_hour_by_hour_matches_judging_in_one_call(slices: int) -> None:
    hours = Ranking.of(31, slices).since(29.4, mean=0.8).draw()
    start = 28 * 24
    _, before = judge_steps(PLAIN, None, hours.rows(0, start))
    state, found = before, list[Verdict]()
    for row in range(start, len(hours.starts)):
        some, state = judge_steps(PLAIN, state, hours.rows(row, row + 1))
        found += some
    whole, last = judge_steps(PLAIN, before, hours.rows(start, len(hours.starts)))
    assert found == whole
    assert plain(state) == plain(last)


def test_the_simulated_events_all_occur() -> None:
    whole, _ = at_once()
    assert kinds(whole) >= {
        "not_enough_data",
        "healthy",
        "degraded",
        "labels_suspect",
        "labels_collapsed",
        "traffic_low",
    }
    assert {c.became for v in whole for c in v.changes} == {"firing", "resolved"}


def test_a_verdict_depends_on_no_later_step() -> None:
    for until in (15 * 24 + 7, 31 * 24 + 9, 35 * 24 + 5):
        assert judge_steps(PLAIN, None, EVENTFUL.rows(0, until))[0] == at_once()[0][:until]


def test_steps_out_of_sequence_are_refused() -> None:
    with pytest.raises(ValueError, match="do not follow"):
        judge_steps(PLAIN, at_once()[1], EVENTFUL.rows(0, 5))


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 0"):
        DriftState.from_json({"version": 0, "state": {}})


def test_the_state_is_small_once_the_reference_is_complete() -> None:
    assert len(plain(known(Ranking.of(33, slices=9).draw()))) < 41_000


# ---- the model -----------------------------------------------------------------------------------------------------


def test_without_a_change_nothing_fires() -> None:
    found = verdicts(Ranking.of(70).draw())
    assert kinds(on(found, 14)) == {"healthy"}
    assert not any(v.mix_shifted for v in found)


def test_a_drop_is_found_with_its_start_and_size() -> None:
    found = verdicts(Ranking.of(34).since(30.5, mean=0.9).draw())
    assert first(found, 30.5) <= 12
    alarm = found[-1].alarms[0]
    assert alarm.unit == ""
    assert abs(alarm.since - (START + 30.5 * DAY)) <= 4 * HOUR
    assert alarm.effect == pytest.approx(-0.1, abs=0.015)
    assert found[-1].observed == pytest.approx(0.9 * (found[-1].expected or 0), rel=0.02)
    assert found[-1].kind == "degraded"


def test_a_drop_in_one_slice_is_found_and_that_slice_named_first() -> None:
    found = verdicts(Ranking.of(34, slices=6, peak=2000).since(30.5, mean=0.8, slices=[4]).draw())
    assert first(found, 30.5) <= 12
    opening = next(v for v in found if v.changes)
    assert opening.changes[0].unit == "slice 4"
    assert opening.split is not None
    surest = min(opening.split.parts, key=lambda p: p.z)
    assert opening.split.parts[0].slice == surest.slice == "slice 4"
    assert opening.split.within == pytest.approx(
        opening.split.value - opening.split.before - opening.split.mix, abs=1e-12
    )


def test_after_a_rollback_every_alarm_closes_within_a_day() -> None:
    for seed in range(5):
        found = verdicts(Ranking.of(40, slices=4, seed=seed).since(30, 34, mean=0.9).draw(seed))
        assert on(found, 33, 34)[-1].is_degraded
        assert not any(v.is_degraded for v in on(found, 35))


LASTING = [(100.0, 0.9, (0, 4)), (350.0, 0.95, (2, 4))]


@pytest.mark.parametrize(("peak", "mean", "seeds"), LASTING, ids=["thin", "small"])
def test_an_alarm_that_opened_early_by_luck_stays_open_while_the_drop_lasts(
    peak: float, mean: float, seeds: tuple[int, ...]
) -> None:
    for seed in seeds:
        ranking = Ranking.of(46, slices=4, peak=peak, seed=seed).since(30, mean=mean)
        found = on(verdicts(ranking.draw(seed)), 30)
        opened = next(i for i, v in enumerate(found) if v.is_degraded)
        assert [c for v in found[opened:] for c in v.changes if c.became == "resolved"] == []


@pytest.mark.parametrize("seed", [2, 7])
def test_an_alarm_on_thin_traffic_closes_within_days_of_recovery(seed: int) -> None:
    found = verdicts(Ranking.of(40, slices=4, peak=100, seed=seed).since(30, 34, mean=0.9).draw(seed))
    assert any(v.is_degraded for v in on(found, 33.9, 34))
    assert not any(v.is_degraded for v in on(found, 37))


def test_the_baseline_does_not_follow_the_drop_while_an_alarm_is_open() -> None:
    hours = Ranking.of(100).since(30, mean=0.9).draw()
    found = verdicts(hours)
    assert all(v.is_degraded for v in on(found, 31))
    assert found[-1].expected == pytest.approx(on(found, 29, 30)[-1].expected, rel=0.005)


def test_a_lasting_rise_is_followed_once_it_is_old_enough() -> None:
    found = verdicts(Ranking.of(100).since(30, mean=1.1).draw())
    assert not any(v.is_degraded for v in found)
    assert found[-1].expected == pytest.approx(1.1 * (on(found, 29, 30)[-1].expected or 0), rel=0.03)


@pytest.mark.parametrize(("peak", "rise", "days"), [(200, 1.11, 6), (1000, 1.11, 6), (4000, 1.06, 8), (4000, 1.2, 10)])
def test_a_rise_that_ends_does_not_raise_later_expectations(peak: float, rise: float, days: float) -> None:
    """After a sale or a holiday the mean is as before, which is not a fall."""
    for seed in range(3):
        past = Ranking.of(65, peak=peak, seed=seed).since(36, 36 + days, mean=rise)
        found = verdicts(past.draw(seed))
        assert not any(v.is_degraded for v in on(found, 36))
        before, after = ([v.expected or 0 for v in on(found, *span)] for span in ((30, 36), (37 + days, 65)))
        assert max(after) < 1.03 * max(before)


def test_a_fall_from_a_lasting_rise_is_found() -> None:
    past = Ranking.of(110).since(30, mean=1.1)
    found = verdicts(past.since(95, mean=0.93).draw())
    assert not any(v.is_degraded for v in on(found, 0, 95))
    assert first(found, 95) < 48


def test_a_lasting_improvement_offers_a_new_baseline_and_a_passing_one_does_not() -> None:
    found = verdicts(Ranking.of(45).since(30, mean=1.08).draw())
    assert not any(v.improved for v in on(found, 0, 37))
    assert any(v.improved for v in on(found, 37.5))
    assert not any(v.improved for v in verdicts(Ranking.of(45).since(30, 32, mean=1.08).draw()))


def decaying(by: float, until: float, days: int, mended: float = 1e9, found: bool = False) -> list[Verdict]:
    """Verdicts on a mean that falls evenly from day 30 to day `until` and stays low until day `mended`.

    With `found`, it falls only because its divisor rises.
    """
    ranking = Ranking.of(days, seed=1)
    day = (ranking.starts - START) / DAY
    part = np.where(day < mended, np.clip((day - 30) / (until - 30), 0, 1), 0.0)
    left = 1 - by * part[:, None]
    hours = replace(ranking, mean=ranking.mean * left).draw()
    return verdicts(replace(hours, ideal=hours.ideal * 3 / left) if found else hours)


def test_a_decay_too_slow_for_an_alarm_is_reported_once_it_is_large() -> None:
    found = decaying(0.12, 330, 185)
    assert not any(v.is_degraded for v in found)
    told = [(v.end - START) / DAY for v in found if v.decayed]
    assert 155 < told[0] < 175, "5 % are lost by day 155"
    assert all(v.decayed for v in on(found, told[0]))
    assert not any(v.decayed for v in decaying(0.12, 330, 185, found=True))
    assert found[-1].moved == pytest.approx(-0.12 * 153 / 300, abs=0.01)


def test_a_decay_is_not_reported_when_small_or_under_an_open_alarm() -> None:
    small = decaying(0.03, 120, 130)
    assert not any(v.decayed for v in small)
    assert small[-1].moved == pytest.approx(-0.03, abs=0.01)
    sudden = decaying(0.1, 30.1, 60)
    assert sudden[-1].is_degraded
    assert sudden[-1].moved is None
    assert not any(v.decayed for v in sudden)


def test_a_decay_that_is_mended_is_no_longer_reported() -> None:
    found = decaying(0.12, 180, 150, mended=140)
    assert all(v.decayed for v in on(found, 130, 140))
    assert not any(v.decayed for v in on(found, 144))


def test_an_alarm_closing_on_a_decayed_level_reports_the_gap_to_the_reference() -> None:
    ranking = Ranking.of(186, seed=1)
    decay = 1 - 0.12 * np.clip(((ranking.starts - START) / DAY - 30) / 300, 0, 1)
    slowly = replace(ranking, mean=ranking.mean * decay[:, None]).since(180, 181.5, mean=0.8)
    (over,) = (c for v in on(verdicts(slowly.draw()), 180) for c in v.changes if not c.unit and c.became == "resolved")
    assert over.below == pytest.approx(-0.12 * 151 / 300, abs=0.015)
    sound = Ranking.of(40, seed=1).since(32, 33.5, mean=0.8).draw()
    (over,) = (c for v in on(verdicts(sound), 32) for c in v.changes if not c.unit and c.became == "resolved")
    assert over.below is None


def test_few_low_requests_after_a_fall_report_no_gap_to_the_reference() -> None:
    resolved = []
    for seed in range(6):
        over = verdicts(Ranking.of(36, peak=60.0, seed=seed).since(31.4, 32.6, mean=0.6).draw(seed))
        resolved += [change for v in over for change in v.changes if change.became == "resolved"]
    assert len(resolved) > 12
    assert [change for change in resolved if change.below is not None] == []


def test_a_mix_shift_is_reported_and_pages_nobody() -> None:
    ranking = Ranking.of(40, slices=2, peak=2000)
    spread = replace(ranking, mean=ranking.mean * [0.7, 1.2])
    found = verdicts(spread.since(32, rate=2.0, slices=[0]).since(32, rate=0.3, slices=[1]).draw())
    assert not any(v.is_degraded for v in found)
    assert not any(v.mix_shifted for v in on(found, 0, 32))
    assert all(v.mix_shifted and v.mix_effect < -0.02 for v in on(found, 33))


def test_a_campaign_leaves_no_mix_shift_behind() -> None:
    past = Ranking.of(55, slices=4)
    past = replace(past, mean=past.mean * np.array([0.4, 1.0, 1.0, 1.1]))
    found = verdicts(past.since(31, 32.5, rate=6.0, slices=[0]).draw())
    assert all(v.mix_shifted for v in on(found, 31.5, 32.5))
    assert not any(v.mix_shifted for v in on(found, 35))


def test_a_lasting_mix_becomes_the_usual_one() -> None:
    past = Ranking.of(90, slices=4)
    past = replace(past, mean=past.mean * np.array([0.4, 1.0, 1.0, 1.1]))
    found = verdicts(past.since(31, rate=3.0, slices=[0]).draw())
    assert all(v.mix_shifted for v in on(found, 31.5, 45))
    assert not any(v.mix_shifted for v in on(found, 80))
    assert not any(v.changes for v in found)


@pytest.mark.parametrize(("mean", "steady", "shifted"), [(0.98, True, False), (0.95, True, True)])
def test_overall_tolerates_a_little_more_while_the_mix_is_shifted(mean: float, steady: bool, shifted: bool) -> None:
    ranking = Ranking.of(44, slices=2, peak=20_000, noise=0.001)
    before = replace(ranking, mean=ranking.mean * [0.7, 1.2])
    after = before.since(32, rate=2.0, slices=[0]).since(32, rate=0.3, slices=[1])
    pages = [any(v.is_degraded for v in verdicts(r.since(34, mean=mean).draw())) for r in (before, after)]
    assert pages == [steady, shifted]


def test_a_slice_may_fall_twice_as_far_as_overall_before_an_alarm() -> None:
    ranking = Ranking.of(44, peak=20_000, noise=0.001)
    assert any(v.is_degraded for v in verdicts(ranking.since(32, mean=0.98).draw()))
    assert not any(v.is_degraded for v in verdicts(ranking.since(32, mean=0.98, slices=[1]).draw()))
    (told,) = {a.unit for v in verdicts(ranking.since(32, mean=0.96, slices=[1]).draw()) for a in v.alarms if a.unit}
    assert told == "slice 1"


def test_daylight_saving_pages_nobody() -> None:
    hours = Ranking.of(60).draw()
    shifted = Ranking.of(60)
    moved = replace(shifted, mean=np.roll(shifted.mean, 1, axis=0), rate=np.roll(shifted.rate, 1, axis=0)).draw()
    half = 30 * 24
    joined = {
        n: np.concatenate([getattr(hours, n)[:half], getattr(moved, n)[half:]])
        for n in hours.__dataclass_fields__
        if n not in ("slices", "starts")
    }
    assert kinds(on(verdicts(replace(hours, **joined)), 14)) == {"healthy"}


# ---- data before model -----------------------------------------------------------------------------------------------


def test_labels_that_go_missing_are_suspect_then_collapsed_never_a_drop() -> None:
    found = verdicts(Ranking.of(40).since(30.5, 32.5, coverage=0).draw())
    during = on(found, 30.5, 32.5)
    assert kinds(during[:24]) == {"labels_suspect"}
    assert kinds(during[24:]) == {"labels_collapsed"}
    assert kinds(on(found, 32.7)) == {"healthy"}
    assert not any(v.is_degraded for v in found)


def test_collapsed_labels_come_with_the_rates_of_events_and_of_unmatched_ones() -> None:
    hours = Ranking.of(33).since(30, coverage=0.2).draw()
    late = hours.starts >= START + 30 * DAY
    # As many events arrive as before, but four in five of those that matched an impression no longer do.
    hours = replace(hours, unmatched=np.where(late, hours.events * 4 + hours.unmatched * 5, hours.unmatched))
    labels = verdicts(hours)[-1].labels
    assert labels is not None
    assert labels.since == START + 30 * DAY + HOUR
    assert labels.coverage == pytest.approx(0.18, abs=0.01)
    assert labels.coverage_before == pytest.approx(0.9, abs=0.01)
    assert labels.events == pytest.approx(labels.events_before, rel=0.05)
    assert labels.unmatched == pytest.approx(4.25 / 5.25), "a share of all events, whether they match or not"
    assert labels.unmatched_before == pytest.approx(0.05 / 1.05)


def test_a_partial_loss_of_labels_is_suspect_too() -> None:
    found = verdicts(Ranking.of(33, peak=2000).since(30.5, 30.75, coverage=0.7).draw())
    assert kinds(on(found, 30.5 + 1 / 12, 30.75)) == {"labels_suspect"}
    assert not any(v.is_degraded for v in found)


def test_a_broken_model_is_not_taken_for_lost_labels() -> None:
    found = verdicts(Ranking.of(33, peak=2000).since(30.5, mean=0.75).draw())
    assert kinds(on(found, 31)) == {"degraded"}
    assert not any(v.is_data for v in found)


@pytest.mark.parametrize(("seed", "lower"), [(3, 0.1), (7, 0.1), (5, 0.05)])
def test_weekends_of_next_to_no_traffic_get_their_own_lower_expectation(seed: int, lower: float) -> None:
    ranking = Ranking.of(60, seed=seed, peak=400)
    weekday = (ranking.starts // DAY + 3) % 7
    rate = np.select([weekday == 5, weekday == 6], [0.12, 0.04], 1.0)[:, None]
    mean = np.where(weekday >= 5, 1 - lower, 1.0)[:, None]
    hours = replace(ranking, rate=ranking.rate * rate, mean=ranking.mean * mean).draw(seed)
    found = known(hours.rows(0, 29 * 24))
    assert found.baseline is not None
    quality = found.baseline.quality.table(HOUR)[DriftSettings().slots(hours.starts[: 7 * 24])]
    for day_of_week in (5, 6):
        its = weekday[: 7 * 24] == day_of_week
        rest = weekday[: 7 * 24] < 5
        assert quality[its].mean() / quality[rest].mean() == pytest.approx(1 - lower, abs=0.6 * lower)


@pytest.mark.parametrize("seed", [20, 21, 23])
def test_far_worse_weekends_with_a_fifth_of_the_traffic_raise_no_alarm(seed: int) -> None:
    ranking = Ranking.of(118, seed=seed, peak=200)
    is_weekend = ((ranking.starts // DAY + 3) % 7 >= 5)[:, None]
    rate, mean = np.where(is_weekend, 0.2, 1.0), np.where(is_weekend, 0.8, 1.0)
    found = verdicts(replace(ranking, rate=ranking.rate * rate, mean=ranking.mean * mean).draw(seed))
    assert not any(v.is_degraded for v in found)


@pytest.mark.parametrize("of", [[True, True, True], [True, False, False]])
@pytest.mark.parametrize("peak", [200, 600])
def test_weekends_that_are_worse_every_week_raise_no_alarm(of: list[bool], peak: float) -> None:
    ranking = Ranking.of(90, peak=peak)
    is_weekend = ((ranking.starts // DAY + 3) % 7 >= 5)[:, None]
    mean = ranking.mean * np.where(is_weekend & np.array(of), 0.9, 1.0)
    found = verdicts(replace(ranking, mean=mean, rate=ranking.rate * np.where(is_weekend, 0.5, 1.0)).draw())
    assert not any(v.is_degraded for v in found)


def test_lost_traffic_is_reported_as_low_traffic_not_as_a_drop() -> None:
    found = verdicts(Ranking.of(33).since(30.5, 31, rate=0.3).draw())
    assert kinds(on(found, 30.75, 31)) == {"traffic_low"}
    assert on(found, 30.75, 31)[-1].requests < 0.5 * (on(found, 30.75, 31)[-1].requests_expected or 0)
    assert not any(v.is_degraded for v in found)


def kinds_of_hours(*rates: float) -> list[str]:
    """The verdict kinds of consecutive hours, each with a given share of its usual traffic."""
    changed = Ranking.of(32)
    for hour, rate in enumerate(rates):
        changed = changed.since(30.5 + hour / 24, 30.5 + (hour + 1) / 24, rate=rate)
    return [v.kind for v in on(verdicts(changed.draw()), 30.5, 30.5 + len(rates) / 24)]


def test_low_traffic_is_reported_after_a_second_step_that_may_be_less_low() -> None:
    # Over three hours, traffic is .73, .47, .55, .88 and 1.08 of the usual.
    assert kinds_of_hours(0.2, 0.2, 1.25, 1.2, 0.8) == ["healthy", "healthy", "traffic_low", "healthy", "healthy"]


def test_slightly_over_half_the_traffic_counts_as_low_only_right_after_less() -> None:
    assert set(kinds_of_hours(*[0.56] * 24)) == {"healthy"}
    found = kinds_of_hours(0.2, 0.2, *[0.58] * 22)  # two steps at .2 pull the next one or two below half
    assert found.index("traffic_low") == 2
    assert set(found[5:]) == {"healthy"}


def test_a_step_of_little_traffic_before_a_gap_does_not_count_after_it() -> None:
    dip = Ranking.of(40).since(30.5, 30.5 + 2 / 24, rate=0.2).since(33, 33.25, rate=0.55)
    low = [v for v in verdicts(without(dip.draw(), 30.5 + 2 / 24, 33)) if v.kind == "traffic_low"]
    assert not low


@pytest.mark.parametrize("hour", [0, 3, 6, 12, 18])
def test_vanished_thin_traffic_stays_low_without_a_break(hour: int) -> None:
    """By the day alone, quiet hours would look healthy again, because the day before was."""
    gone = 30 + hour / 24
    found = [v.kind for v in on(verdicts(Ranking.of(33, peak=40).since(gone, rate=0).draw()), gone, gone + 1.5)]
    since = found.index("traffic_low")
    assert set(found[since:]) == {"traffic_low"}
    assert set(found[:since]) == {"healthy"}


def test_thin_traffic_that_returns_is_healthy_again() -> None:
    found = verdicts(Ranking.of(33, peak=40).since(30.125, 31.125, rate=0).draw())
    assert kinds(on(found, 30.5, 31.125)) == {"traffic_low"}
    assert kinds(on(found, 32.2)) == {"healthy"}


OFFICE = np.array([0] * 8 + [1] * 9 + [0] * 7)
SHOP = np.array(
    [5, 3, 2, 2, 3, 10, 50, 250, 700, 950, 1e3, 950, 750, 850, 950, 900, 750, 450, 200, 100, 60, 40, 20, 10]
)


def by_the_clock(of_day: np.ndarray, weekend: float, peak: float, changed: float = 1e9, by: int = 0) -> Hours:
    """Sixty days of traffic with this daily shape, `by` seconds earlier from day `changed` on."""
    ranking = Ranking.of(60)
    local = ranking.starts + np.where(ranking.starts >= START + changed * DAY, by, 0)
    is_weekend = (local // DAY + 3) % 7 >= 5
    rate = peak * of_day[local % DAY // HOUR] * np.where(is_weekend, weekend, 1.0)
    return replace(ranking, rate=rate[:, None] * np.ones(3) / 3).draw()


@pytest.mark.parametrize("peak", [300, 3000])
@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_traffic_that_follows_a_clock_change_is_not_low(peak: float, by: int) -> None:
    found = verdicts(by_the_clock(SHOP / 1e3, 0.04, peak, changed=35, by=by))
    assert "traffic_low" not in kinds(found)


@pytest.mark.parametrize("peak", [300, 3000])
def test_an_office_that_closes_in_the_evening_and_for_the_weekend_has_no_low_traffic(peak: float) -> None:
    assert "traffic_low" not in kinds(verdicts(by_the_clock(OFFICE, 0, peak)))


@pytest.mark.parametrize("hour", [6, 9, 12, 15, 18])
def test_vanished_traffic_is_reported_within_four_hours_at_any_time_of_day(hour: int) -> None:
    gone, hours = START + 38 * DAY + hour * HOUR, by_the_clock(SHOP / 1e3, 0.04, 3000)
    after = (hours.starts >= gone)[:, None]
    none = {name: np.where(after, 0, getattr(hours, name)) for name in ("requests", "total", "squares", "labelled")}
    ranked = np.where(after[:, 0], 0, hours.rank_one)
    found = verdicts(replace(hours, **none, rank_one=ranked))
    assert {v.kind for v in found if gone < v.end <= gone + HOUR} == {"healthy"}
    assert {v.kind for v in found if gone + 3 * HOUR < v.end <= gone + 12 * HOUR} == {"traffic_low"}


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_traffic_that_stays_low_becomes_usual_after_four_days(rate: float) -> None:
    found = verdicts(Ranking.of(45).since(30, rate=rate).draw())
    assert kinds(on(found, 30.5, 34)) == {"traffic_low"}
    assert kinds(on(found, 34.5)) == {"healthy"}


def test_next_to_no_traffic_is_reported_for_longer_and_none_at_all_forever() -> None:
    assert kinds(on(verdicts(Ranking.of(46).since(34, rate=0.05).draw()), 34.5)) == {"traffic_low"}
    assert kinds(on(verdicts(Ranking.of(60).since(30, rate=0).draw()), 30.5)) == {"traffic_low"}


def test_once_lower_traffic_is_usual_drops_are_found_and_more_traffic_is_healthy() -> None:
    less = Ranking.of(60).since(30, 45, rate=0.3)
    assert first(verdicts(less.since(40, mean=0.85).draw()), 40) < 24
    assert kinds(on(verdicts(less.draw()), 35)) == {"healthy"}


def test_a_slice_that_goes_missing_is_named_while_the_others_are_judged() -> None:
    found = verdicts(Ranking.of(50).since(30, rate=0, slices=[1]).since(33, mean=0.85, slices=[0, 2]).draw())
    assert kinds(on(found, 30.5, 33)) == {"slice_missing"}
    assert on(found, 30.5, 33)[-1].missing == ("slice 1",)
    assert on(found, 34, 35)[-1].alarms[0].unit == ""
    assert kinds(on(found, 38)) == {"degraded"}


def test_refused_rows_are_reported() -> None:
    hours = Ranking.of(33).draw()
    late = (hours.starts >= START + 30 * DAY) & (hours.starts < START + 31 * DAY)
    found = verdicts(replace(hours, refused=np.where(late, 400.0, 2.0)))
    assert kinds(on(found, 30, 31)) == {"rows_refused"}
    assert kinds(on(found, 14, 30) + on(found, 31.2)) == {"healthy"}


def test_hours_with_bad_data_do_not_move_the_baseline() -> None:
    found = verdicts(Ranking.of(60).since(30, 35, coverage=0).draw())
    assert on(found, 55)[-1].expected == pytest.approx(on(found, 29, 30)[-1].expected, rel=0.01)
    assert on(found, 55)[-1].coverage_expected == pytest.approx(0.9, abs=0.01)


# ---- starts and gaps -------------------------------------------------------------------------------------------------


def test_a_new_monitor_reports_what_it_lacks_and_begins_after_two_weeks() -> None:
    found = verdicts(Ranking.of(33).draw())
    assert kinds(on(found, 0, 14)) == {"not_enough_data"}
    assert found[0].lacks == "a first reference: less than one of 14 days to begin with"
    assert on(found, 3, 4)[-1].lacks == "a first reference: 3 of 14 days to begin with"
    assert kinds(on(found, 14)) == {"healthy"}
    assert on(found, 20, 21)[-1].lacks == "a whole reference: 14 of 28 days, fitted again in 1 d"
    assert found[-1].lacks == ""
    assert (on(found, 20, 21)[-1].reference_days, found[-1].reference_days) == (14, 28)


def test_a_monitor_with_too_few_requests_for_a_baseline_says_so() -> None:
    found = verdicts(Ranking.of(40, peak=0.4).draw())
    assert kinds(found) == {"not_enough_data"}
    assert found[-1].lacks.endswith(" of 200 requests to begin with")


def test_a_shorter_reference_tolerates_more() -> None:
    tolerated = []
    for day in (15, 29):
        state = known(Ranking.of(day).draw())
        assert state.baseline is not None
        tolerated.append(state.baseline.noise.tolerated[0])
    assert tolerated[0] > tolerated[1]


def test_a_baseline_reports_the_span_it_was_fitted_on() -> None:
    state = known(Ranking.of(33).draw())
    assert state.baseline is not None
    assert (state.baseline.since, state.baseline.until) == (START, START + 28 * DAY)
    assert state.reference is None


def test_a_new_slice_warms_up_by_itself() -> None:
    def judged(day: float) -> Hours:
        return Ranking.of(70, peak=3000).since(0, 35, rate=0, slices=[2]).since(day, mean=0.7, slices=[2]).draw()

    early, late = verdicts(judged(45)), verdicts(judged(60))
    assert not any(v.is_degraded for v in on(early, 0, 49))
    assert {a.unit for v in on(late, 60, 61) for a in v.alarms} >= {"slice 2"}
    assert not any(v.is_degraded for v in on(late, 0, 60))


def test_a_pin_starts_a_new_reference_and_withdraws_open_alarms() -> None:
    hours, pin = Ranking.of(60).since(30, mean=0.9).draw(), START + 33 * DAY + 5 * HOUR
    found = verdicts(hours, DriftSettings(pinned_at=pin))
    assert [c.became for v in found for c in v.changes if v.end == pin + HOUR and c.unit == ""] == ["withdrawn"]
    assert kinds([v for v in found if pin < v.end <= pin + 13 * DAY]) == {"not_enough_data"}
    assert kinds(on(found, 48)) == {"healthy"}


def test_a_pin_before_hours_already_judged_takes_effect_from_now_on() -> None:
    hours = Ranking.of(60).since(30, mean=0.9).draw()
    _, state = judge_steps(PLAIN, None, hours.rows(0, 34 * 24))
    found, _ = judge_steps(DriftSettings(pinned_at=START + 33 * DAY), state, hours.rows(34 * 24, 60 * 24))
    assert found[0].kind == "not_enough_data"
    assert kinds(on(found, 49)) == {"healthy"}


def without(hours: Hours, day: float, until: float) -> Hours:
    kept = (hours.starts < START + day * DAY) | (hours.starts >= START + until * DAY)
    fields = {n: getattr(hours, n)[kept] for n in hours.__dataclass_fields__ if n != "slices"}
    return replace(hours.rows(0, 0), **fields)


def test_a_week_of_downtime_pages_nobody() -> None:
    assert kinds(on(verdicts(without(Ranking.of(50).draw(), 31.3, 38.6)), 14)) == {"healthy"}


def test_a_day_without_requests_is_reported_as_such() -> None:
    found = verdicts(Ranking.of(36).since(32, rate=0.0).draw())
    assert {v.lacks for v in on(found, 33.1)} == {"requests: there have been none for a day"}


@pytest.mark.parametrize("is_read", [True, False])
def test_a_fall_after_a_gap_of_weeks_starts_after_the_gap(is_read: bool) -> None:
    past = Ranking.of(75, peak=60, seed=2).since(30, 51, rate=0).since(51, mean=0.85).draw(2)
    found = on(verdicts(past if is_read else without(past, 30, 51)), 51)
    assert min(a.since for v in found for a in v.alarms) >= START + 51 * DAY


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not read"])
def test_two_months_without_traffic_end_the_baseline(is_read: bool) -> None:
    hours = Ranking.of(110).since(30, 90, rate=0).draw()
    found = verdicts(hours if is_read else without(hours, 30, 90))
    assert not any(v.is_degraded for v in found)
    assert kinds(on(found, 31, 36)) == ({"traffic_low"} if is_read else set())
    assert kinds(on(found, 90, 100)) == {"not_enough_data"}
    assert found[-1].kind == "healthy"


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("slices", [1, 3])
def test_a_measure_that_never_moves_is_healthy_unless_it_is_always_zero(value: float, slices: int) -> None:
    hours = Ranking.of(40, slices).draw()
    found = verdicts(replace(hours, total=hours.requests * value, squares=hours.requests * value))
    assert kinds(on(found, 14)) == ({"healthy"} if value else {"not_enough_data"})
    assert found[-1].lacks == ("" if value else "a first label with a value above 0, and 14 days from then on")


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_all_zero_windows_are_collapsed_labels_and_all_one_windows_are_healthy(value: float) -> None:
    hours = Ranking.of(34).draw()
    late = (hours.starts >= START + 30 * DAY)[:, None]
    total = np.where(late, hours.requests * value, hours.total)
    found = verdicts(replace(hours, total=total, squares=np.where(late, total, hours.squares)))
    assert kinds(on(found, 31.25)) == ({"labels_collapsed"} if value == 0 else {"healthy"})
    assert not any(v.is_degraded for v in found)
    said = found[-1].labels
    assert said is None if value else said is not None and said.worthless


def test_suspect_labels_are_marked_worthless_throughout_when_all_are_zero() -> None:
    hours = Ranking.of(32).draw()
    late = ((hours.starts >= START + 30.3 * DAY) & (hours.starts < START + 30.8 * DAY))[:, None]
    total = np.where(late, 0.0, hours.total)
    found = verdicts(replace(hours, total=total, squares=np.where(late, 0.0, hours.squares)))
    said = [v.labels for v in found if v.kind == "labels_suspect"]
    assert len(said) > 10
    assert all(labels is not None and labels.worthless for labels in said)


def test_missing_labels_are_not_marked_worthless() -> None:
    found = verdicts(Ranking.of(32).since(30, 30.5, coverage=0.0).draw())
    said = [v.labels for v in found if v.kind == "labels_suspect"]
    assert said
    assert not any(labels is None or labels.worthless for labels in said)


def test_a_slice_that_is_all_zero_is_degraded() -> None:
    hours = Ranking.of(34).draw()
    late = (hours.starts >= START + 30 * DAY)[:, None] & np.array([True, False, False])
    total = np.where(late, 0.0, hours.total)
    found = verdicts(replace(hours, total=total, squares=np.where(late, 0.0, hours.squares)))
    assert kinds(on(found, 31)) == {"degraded"}


@pytest.mark.parametrize("days", [0, 1, 4, 10])
def test_low_traffic_is_reported_however_late_traffic_began(days: int) -> None:
    found = verdicts(Ranking.of(60).since(0, days, rate=0.0).since(50, 53, rate=0.02).draw())
    assert sum(v.kind == "traffic_low" for v in on(found, 50, 53)) >= 70


@pytest.mark.parametrize("days", [1, 2, 4, 7])
def test_low_traffic_is_reported_after_an_outage_in_the_reference(days: int) -> None:
    found = verdicts(Ranking.of(60).since(8, 8 + days, rate=0.0).since(50, 53, rate=0.02).draw())
    assert sum(v.kind == "traffic_low" for v in on(found, 50, 53)) >= 68


def test_a_day_of_rest_each_week_does_not_count_as_an_outage() -> None:
    past = Ranking.of(60)
    rests = (past.starts // DAY % 7 == 3)[:, None]
    found = verdicts(replace(past, rate=np.where(rests, 0.0, past.rate)).draw())
    assert not any(v.is_data or v.is_degraded for v in on(found, 15))


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_a_vanished_slice_is_reported_missing_even_if_thin(share: float) -> None:
    past = Ranking.of(40, peak=900)
    rate = past.rate * [share, 1.0, 1.0]
    found = verdicts(replace(past, rate=rate).since(32, slices=[0], rate=0.0).draw())
    missing = [v for v in on(found, 32, 34) if v.kind == "slice_missing"]
    assert missing[0].missing == ("slice 0",)
    assert not any(v.is_data for v in on(found, 15, 32))


def test_a_reopened_alarm_forgets_how_the_previous_one_closed() -> None:
    past = Ranking.of(40, slices=1, peak=2000).since(30, 31, mean=0.8).since(34, mean=0.8).draw()
    found = verdicts(past)
    opened = [v for v in found if any(change.became == "firing" for change in v.changes)]
    assert len(opened) == 2
    assert [v.alarms[0].back_since for v in opened] == [None, None]
    assert any(alarm.back_since for v in on(found, 31, 32) for alarm in v.alarms), "the first alarm was recovering"


def test_a_degraded_slice_that_vanishes_is_withdrawn_not_resolved() -> None:
    past = Ranking.of(36, peak=3000).since(30, mean=0.75, slices=[0]).since(31, rate=0.0, slices=[0]).draw()
    found = verdicts(past)
    changes = [(change.unit, change.became) for v in on(found, 31, 32) for change in v.changes]
    assert ("slice 0", "resolved") not in changes
    assert ("", "resolved") not in changes
    ended = [(v.end, change) for v in found for change in v.changes if change.unit == "slice 0"][-1]
    assert ended[1].became == "withdrawn"
    assert ended[0] == pytest.approx(START + 32 * DAY, abs=2 * HOUR)
    assert not on(found, 33)[-1].is_degraded


@pytest.mark.parametrize("slices", [1, 2])
def test_one_request_an_hour_is_judged_within_the_budget(slices: int) -> None:
    opened = 0
    for seed in range(10):
        found = verdicts(Ranking.of(106, slices, peak=1.2, seed=seed).draw(seed))
        assert kinds(on(found, 16)) <= {"healthy", "degraded"}
        opened += sum(change.became == "firing" for v in found for change in v.changes)
    assert opened <= 5  # ten are allowed in ten times 90 days


def test_no_requests_at_all_means_not_enough_data() -> None:
    assert kinds(verdicts(Ranking.of(40).since(0, rate=0).draw())) == {"not_enough_data"}


@pytest.mark.parametrize("step", [4 * HOUR, DAY])
def test_longer_steps_are_judged_alike(step: int) -> None:
    plain_settings = DriftSettings(step=step)
    quiet = verdicts(Ranking.of(90, step=step).draw(), plain_settings)
    assert kinds(on(quiet, 16)) == {"healthy"}
    found = verdicts(Ranking.of(90, step=step).since(60, mean=0.88).draw(), plain_settings)
    assert first(found, 60) <= max(24, 4 * step / HOUR)


def test_an_alarm_within_the_reference_gives_the_same_fold_in_any_split() -> None:
    hours = Ranking.of(30).since(18.4, 20.1, mean=0.8).draw()
    state, found = None, list[Verdict]()
    for row in range(0, len(hours.starts), 5):
        some, state = judge_steps(PLAIN, state, hours.rows(row, row + 5))
        found += some
    whole, last = judge_steps(PLAIN, None, hours)
    assert any(v.is_degraded for v in whole)
    assert found == whole
    assert plain(state) == plain(last)


def test_slices_that_come_up_with_hardly_any_traffic_hide_no_fall() -> None:
    with_new = Ranking.of(35, slices=5).since(0, 31, rate=0.0, slices=[3, 4]).since(31, rate=0.01, slices=[3, 4])
    found = verdicts(with_new.since(32, mean=0.85).draw())
    assert {v.kind for v in on(found, 31, 32)} == {"healthy"}
    assert {v.kind for v in on(found, 33)} == {"degraded"}


def test_the_reference_stays_bounded_while_an_alarm_stays_open() -> None:
    long = Ranking.of(160, slices=1).since(20, mean=0.7).draw()
    assert known(long).standing.open.any()
    assert len(plain(known(long))) < 1.2 * len(plain(known(long.rows(0, 80 * 24))))


@pytest.mark.parametrize("at", [14, 15])
def test_a_drop_on_the_first_judged_day_costs_the_reference_no_good_days(at: int) -> None:
    past = Ranking.of(42, 3, 2000.0).since(at, at + 0.5, mean=0.8).draw()
    first = next(alarm for v in verdicts(past) for alarm in v.alarms)
    assert START + at * DAY <= first.since < START + (at + 0.25) * DAY
    assert verdicts(past)[-1].reference_days >= 27


def test_days_before_there_was_any_traffic_stay_out_of_the_reference() -> None:
    late = Ranking.of(52, 3, 900.0).since(0, 9.5, rate=0.0)
    found = verdicts(late.draw())
    assert {v.kind for v in on(found, 0, 24)} == {"not_enough_data"}
    assert {v.kind for v in on(found, 24)} == {"healthy"}
    assert on(found, 30)[0].lacks == "a whole reference: 15 of 28 days, fitted again in 1 d"
    assert found[-1].lacks == ""
    assert found[-1].reference_days >= 27


def test_a_burst_of_refused_rows_is_reported_until_its_hours_pass() -> None:
    past, since = Ranking.of(32).draw(), START + 30 * DAY
    burst = past.starts == since
    found = verdicts(replace(past, refused=np.where(burst, 3000.0, 2.0)))
    told = [(v.end - since, v.refused) for v in found if v.kind == "rows_refused"]
    assert told == [(HOUR * n, 3004.0) for n in range(1, 1 + len(told))]
    assert len(told) >= 3
    usual = [v.refused_before for v in found if v.kind == "rows_refused"]
    assert all(before is not None and 3 < before < 12 for before in usual)
    assert not any(v.refused for v in found if v.kind != "rows_refused")


# ---- shorter lists ---------------------------------------------------------------------------------------------------


def test_truncated_lists_are_bad_data_not_a_worse_model() -> None:
    past = Ranking.of(36)
    found = verdicts(past.since(32, 33, items=0.5, mean=0.8).draw())
    short = on(found, 32, 33)
    assert kinds(short) == {"positions_suspect"}, "from the first hour on"
    assert {(v.shown, v.shown_before) for v in short} == {(5.0, 10.0)}
    assert not any(v.changes for v in found)
    assert kinds(on(found, 33.2)) == {"healthy"}


def test_lists_that_stay_shorter_become_usual_after_four_whole_days() -> None:
    found = verdicts(Ranking.of(50).since(32.5, items=0.5).draw())
    assert kinds(on(found, 32.5, 37)) == {"positions_suspect"}
    assert kinds(on(found, 37, 39)) == {"not_enough_data"}
    assert on(found, 38)[0].lacks.startswith("whole UTC days since the new level began, labels included: 1 of 2, ")
    assert kinds(on(found, 39)) == {"healthy"}
    assert not any(v.changes for v in found)


@pytest.mark.parametrize("mean", [0.8, 1.2])
def test_lists_that_stay_shorter_get_their_own_level_and_label_rate(mean: float) -> None:
    """Half the items bring fewer labels and another mean. Neither is a fault on later days."""
    shorter = Ranking.of(60).since(32.5, items=0.5, mean=mean, coverage=0.6)
    found = verdicts(shorter.draw())
    assert kinds(on(found, 39)) == {"healthy"}
    assert not any(v.changes for v in found)
    assert on(found, 50)[0].coverage_expected == pytest.approx(on(found, 50)[0].coverage, rel=0.05)
    fallen = verdicts(shorter.since(50, mean=0.85).draw())
    assert kinds(on(fallen, 39, 50)) == {"healthy"}
    assert kinds(on(fallen, 51)) == {"degraded"}, "the new level is judged like the old one"


def test_an_alarm_is_withdrawn_when_shorter_lists_become_usual() -> None:
    found = verdicts(Ranking.of(42).since(31, mean=0.8).since(32.5, items=0.5).draw())
    assert kinds(on(found, 32, 32.5)) == {"degraded"}
    assert {c.became for v in on(found, 32, 37) for c in v.changes} <= {"firing"}
    gone = {(v.end, c.unit, c.became) for v in on(found, 37) for c in v.changes}
    assert ((START + 37 * DAY + HOUR), "", "withdrawn") in gone
    assert {became for _, _, became in gone} == {"withdrawn"}
    assert kinds(on(found, 39)) == {"healthy"}


def test_shorter_lists_on_thin_traffic_are_found_within_a_day() -> None:
    found = verdicts(Ranking.of(40, slices=1, peak=6.0).since(32, items=0.5).draw())
    short = [v for v in on(found, 32, 36) if v.kind == "positions_suspect"]
    assert short
    assert short[0].end <= START + 33 * DAY
    assert all(v.kind != "positions_suspect" for v in on(found, 0, 32))


@pytest.mark.parametrize("items", [0.7, 1.5])
def test_slightly_shorter_or_longer_lists_are_healthy(items: float) -> None:
    found = verdicts(Ranking.of(36).since(32, items=items).draw())
    assert kinds(on(found, 16)) == {"healthy"}


def test_lists_that_are_shorter_every_night_are_usual() -> None:
    past = Ranking.of(40)
    night = (past.starts % DAY) < 8 * HOUR
    nightly = replace(past, items=np.where(night, 3.0, 12.0))
    assert kinds(on(verdicts(nightly.draw()), 16)) == {"healthy"}
    lost = replace(nightly, items=np.where(past.starts >= START + 32.4 * DAY, 3.0, nightly.items))
    found = verdicts(lost.draw())
    assert kinds(on(found, 16, 32.4)) == {"healthy"}
    assert kinds(on(found, 32.45, 36)) == {"positions_suspect"}, "once begun, it does not end at night"


def test_lists_shorter_because_of_the_slice_mix_are_usual() -> None:
    length = np.array([2.0, 10.0, 20.0])
    past = Ranking.of(40).since(32, 35, rate=12.0, slices=[0]).draw()
    shown = (past.requests * length).sum(axis=1)
    busy = (past.starts >= START + 32 * DAY) & (past.starts < START + 35 * DAY)
    each = shown / np.maximum(past.requests.sum(axis=1), 1)
    assert each[busy].mean() < 0.5 * each[~busy].mean()
    assert "positions_suspect" not in kinds(verdicts(replace(past, shown=shown)))


def test_lists_shorter_because_of_the_slice_mix_withdraw_no_alarm() -> None:
    length = np.array([2.0, 10.0, 20.0])
    past = Ranking.of(44).since(31, mean=0.85).since(32, rate=12.0, slices=[0]).draw()
    found = verdicts(replace(past, shown=(past.requests * length).sum(axis=1)))
    assert kinds(on(found, 32, 44)) == {"degraded"}
    assert not any(c.became == "withdrawn" for v in found for c in v.changes)


def test_unknown_list_lengths_are_never_short() -> None:
    found = verdicts(Ranking.of(36).since(0, items=0.0).draw())
    assert kinds(on(found, 16)) == {"healthy"}


def test_short_lists_with_many_refused_rows_are_reported_as_refused_rows() -> None:
    past = Ranking.of(34).since(32, 33, items=0.5).draw()
    at = (past.starts >= START + 32 * DAY) & (past.starts < START + 33 * DAY)
    refused = np.where(at, 5 * past.requests.sum(axis=1), 0.0)
    found = verdicts(replace(past, refused=refused))
    assert kinds(on(found, 32, 33)) == {"rows_refused"}
