"""With judgments or a label column, an unlabelled request is in no measure: lost labels are not lost traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.drift import data_checks as g
from monitor.drift.judge import judge_steps
from monitor.drift.settings import DriftSettings
from monitor.drift.verdicts import Verdict
from monitor.units import DAY, HOUR
from tests.support.drift import Ranking, day, on, verdicts

SETTINGS = DriftSettings(counts_unlabelled=False)


def judged(ranking: Ranking, seed: int = 1) -> list[Verdict]:
    return verdicts(ranking.draw(seed, counts_unlabelled=False), SETTINGS)


def kinds(found: list[Verdict]) -> set[str]:
    return {v.kind for v in found}


@pytest.mark.parametrize("coverage", [1.1, 1.0, 0.05], ids=["nearly all", "nine of ten", "few"])
@pytest.mark.parametrize("left", [0.0, 0.2])
def test_labels_that_stop_while_traffic_continues_are_suspect(coverage: float, left: float) -> None:
    past = Ranking.of(36, peak=6000.0 if coverage < 0.1 else 600.0).since(0, coverage=coverage)
    found = judged(past.since(31.5, 32.0, coverage=left))
    assert kinds(on(found, 20, 31.5)) == {"healthy"}
    assert kinds(on(found, 31.5, 32.0)) == {"labels_suspect"}
    assert kinds(on(found, 32.2)) == {"healthy"}
    last = on(found, 31.5, 32.0)[-1]
    assert last.labels is not None
    assert last.labels.coverage == pytest.approx(0.9 * coverage * left, abs=0.02)
    assert last.labels.coverage_before == pytest.approx(0.9 * coverage, abs=0.02)
    assert last.requests == pytest.approx(last.requests_expected, rel=0.1)


def sums(requests: float, labelled: float) -> Floats:
    """A span in which three of ten requests usually have a label, and are in the measure."""
    found = np.zeros((g.FIELDS, 1))
    found[[g.REQUESTS, g.SERVED, g.EXPECTED_REQUESTS]] = requests
    found[g.EXPECTED_LABELLED] = 0.3 * requests
    found[[g.JUDGED, g.LABELLED]] = labelled
    found[[g.EXPECTED, g.TOTAL]] = 0.5 * labelled
    return found


@pytest.mark.parametrize(
    ("lately", "labelled", "is_suspect"),
    [(180, 0, True), (180, 40, False), (90, 0, True), (90, 18, False), (90, 10, True)],
    ids=["gone", "back", "thin and gone", "thin and back", "thin and hardly back"],
)
def test_labels_are_no_longer_suspect_once_back_after_an_outage(lately: int, labelled: int, is_suspect: bool) -> None:
    """Labels are back once the missing ones may be chance and are less than half of the usual few."""
    spans = sums(lately / 3, labelled / 3), sums(lately, labelled), sums(8 * lately, 0.8 * lately)
    assert g.labels_suspect(spans, g.Dispersion(0.02, 0.1)).tolist() == [is_suspect]


def test_reported_requests_include_unlabelled_ones() -> None:
    past = Ranking.of(36, peak=6000.0).since(0, coverage=0.1)
    hours = past.draw(counts_unlabelled=False)
    found = verdicts(hours, SETTINGS)
    assert on(found, 33)[0].requests == hours.served[33 * 24 - 2 : 33 * 24 + 1].sum()
    assert on(found, 33)[0].requests_expected == pytest.approx(on(found, 33)[0].requests, rel=0.1)
    assert on(found, 3)[0].coverage == pytest.approx(0.09, abs=0.03)
    assert on(found, 33)[0].coverage == pytest.approx(0.09, abs=0.005)
    assert on(found, 33)[0].coverage_expected == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize("coverage", [1.0, 0.05])
def test_falling_traffic_is_low_without_suspect_labels(coverage: float) -> None:
    past = Ranking.of(36, peak=600.0 / coverage).since(0, coverage=coverage)
    found = judged(past.since(31.5, 32.0, rate=0.2))
    assert kinds(on(found, 31.65, 32.0)) == {"traffic_low"}
    last = on(found, 31.65, 32.0)[-1]
    assert last.requests == pytest.approx(0.2 * (last.requests_expected or 0), rel=0.1)
    assert kinds(on(found, 32.2)) == {"healthy"}


def test_a_fall_with_somewhat_fewer_labels_is_blamed_on_the_model() -> None:
    """Unlabelled requests cannot lower the mean, so they explain nothing."""
    found = judged(Ranking.of(36, peak=2000.0).since(31.5, mean=0.9, coverage=0.75))
    assert kinds(on(found, 31.5)) <= {"healthy", "degraded"}
    assert kinds(on(found, 32.5)) == {"degraded"}


def test_a_slice_that_loses_its_labels_is_not_missing() -> None:
    found = judged(Ranking.of(36).since(31.5, 33.5, coverage=0.0, slices=[1]))
    assert kinds(on(found, 31.6, 33.5)) == {"slice_labels_suspect", "slice_labels_collapsed"}
    assert {s.slice for v in on(found, 31.6, 33.5) for s in v.lost} == {"slice 1"}
    assert kinds(on(found, 34)) == {"healthy"}


def test_a_slice_without_requests_is_missing() -> None:
    found = judged(Ranking.of(36).since(31.5, rate=0.0, slices=[1]))
    assert kinds(on(found, 31.7)) == {"slice_missing"}


def test_permanently_fewer_labels_become_usual_after_four_whole_days() -> None:
    past = Ranking.of(50, peak=6000.0).since(31.5, coverage=0.3)
    found = judged(past.since(42.5, mean=0.9))
    assert kinds(on(found, 31.6, 35.0)) == {"labels_suspect", "labels_collapsed"}
    assert kinds(on(found, 36.3, 42.5)) == {"healthy"}
    assert kinds(on(found, 43.5)) == {"degraded"}
    assert on(found, 40)[0].requests_expected == pytest.approx(on(found, 40)[0].requests, rel=0.15)


def test_labels_that_stay_away_never_become_usual() -> None:
    found = judged(Ranking.of(60).since(31.5, coverage=0.0))
    assert kinds(on(found, 33)) == {"labels_collapsed"}


def test_a_slice_with_few_labels_causes_no_mix_shift() -> None:
    past = Ranking.of(40, peak=3000.0).since(0, coverage=0.1, slices=[0])
    found = judged(past)
    assert not any(v.mix_shifted for v in found)
    assert kinds(on(found, 20)) == {"healthy"}
    worse = on(judged(past.since(33, mean=0.8, slices=[0])), 33)
    (split,) = [v.split for v in worse if v.split is not None][:1]
    assert min(split.parts, key=lambda p: p.z).slice == "slice 0"
    assert abs(split.mix) < 0.02 * abs(split.value - split.before) + 0.002


@pytest.mark.parametrize("seed", range(3))
def test_a_label_outage_on_thin_traffic_is_found(seed: int) -> None:
    past = Ranking.of(40, slices=1, peak=4.0).since(0, coverage=1.1)
    found = judged(past.since(33.0, 34.0, coverage=0.0), seed)
    lost = [v.kind for v in on(found, 33.1, 34.0)]
    assert set(lost) <= {"labels_suspect", "healthy"}  # healthy where next to nothing came for hours
    assert lost.count("labels_suspect") > 0.5 * len(lost)
    assert kinds(on(found, 20, 33)) == {"healthy"}


def test_a_label_outage_in_the_reference_leaves_expectations_unchanged() -> None:
    found = judged(Ranking.of(40).since(6.0, 8.5, coverage=0.0))
    assert kinds(on(found, 15)) == {"healthy"}
    assert on(found, 15)[0].coverage_expected == pytest.approx(0.9, abs=0.02)
    assert on(found, 20.5)[0].requests == pytest.approx(on(found, 20.5)[0].requests_expected, rel=0.15)


# ---- labels of all kinds -------------------------------------------------------------------------------------------


FEW = 6000.0
"""Requests an hour, so few of them labelled that some hundred labels remain."""


def few(days: int, peak: float = FEW) -> Ranking:
    return Ranking.of(days, peak=peak).since(0, coverage=0.1)


def shaped(past: Ranking, factor: np.ndarray) -> Ranking:
    """With factors on the labels of each step."""
    return replace(past, coverage=past.coverage * factor[:, None])


def test_judging_step_by_step_matches_one_call_while_an_alarm_is_open() -> None:
    hours = few(40).since(31, mean=0.8).since(34, coverage=0.42).draw(counts_unlabelled=False)
    whole, state, found = judge_steps(SETTINGS, None, hours)[0], None, []
    for row in range(len(hours.starts)):
        some, state = judge_steps(SETTINGS, state, hours.rows(row, row + 1))
        found += some
    assert found == whole
    assert "labels_suspect" in kinds(on(found, 34))


@pytest.mark.parametrize("by", ["weekday", "workdays", "night", "every fourth hour", "chance"])
def test_labels_given_only_at_some_hours_are_usual(by: str) -> None:
    past = few(45)
    hour, weekday = past.starts % DAY // HOUR, past.starts // DAY % 7
    by_chance = np.random.default_rng(1).random(len(hour)) < 0.5
    factors = {
        "weekday": np.where(weekday < 2, 0.2, 1.0),
        "workdays": np.where(weekday < 2, 0.0, 1.0),
        "night": np.where((hour >= 8) & (hour < 20), 0.3, 1.0),
        "every fourth hour": (hour % 4 == 0) * 1.0,
        "chance": by_chance * 1.0,
    }
    assert not any(v.is_data for v in judged(shaped(past, factors[by])))


def test_widely_spread_labels_are_suspect_once_all_are_gone() -> None:
    past = few(45)
    spread = np.random.default_rng(5).lognormal(-0.045, 0.3, len(past.starts))
    found = judged(shaped(past, spread).since(31.5, 40, coverage=0.0))
    assert kinds(on(found, 20, 31.5)) == {"healthy"}
    assert kinds(on(found, 31.7, 40)) == {"labels_suspect", "labels_collapsed"}


def test_slices_with_next_to_no_labels_cause_no_mix_shift() -> None:
    """Counting in whole labels does not raise what is expected of them."""
    past = Ranking.of(60, slices=21, peak=600 * 21)
    rate, level = np.array([20.0] + [1.0] * 20) / 60, np.array([0.65] + [0.45] * 20) / np.linspace(0.5, 0.6, 21)
    found = judged(replace(past, rate=past.rate * rate, mean=past.mean * level, coverage=past.coverage / 9))
    assert kinds(on(found, 14)) == {"healthy"}
    assert not any(v.mix_shifted for v in found)


def test_a_new_level_with_fewer_labels_is_judged_after_two_days() -> None:
    settings = replace(SETTINGS, resets=(day(31.5),))
    found = verdicts(few(45).since(31.5, coverage=0.4).draw(counts_unlabelled=False), settings)
    assert kinds(on(found, 31.5, 34.0)) == {"not_enough_data"}
    assert kinds(on(found, 34.0)) == {"healthy"}


@pytest.mark.parametrize("left", [0.45, 0.5, 0.55, 0.6])
def test_losing_about_half_the_labels_soon_becomes_usual(left: float) -> None:
    found = judged(few(60, 1500.0).since(31.5, coverage=left))
    assert kinds(on(found, 36.5)) == {"healthy"}


def test_extra_requests_without_labels_do_not_count_as_lost_labels() -> None:
    found = judged(few(60).since(31, 36, rate=3.0, coverage=1 / 3))
    assert kinds(on(found, 20)) == {"healthy"}
    assert not any(v.mix_shifted for v in found)


@pytest.mark.parametrize("coverage", [0.003, 0.01])
def test_thin_labels_that_vanish_are_found_within_two_days(coverage: float) -> None:
    past = Ranking.of(45).since(0, coverage=coverage)
    found = judged(past.since(31.5, coverage=0.0))
    assert not any(v.is_data for v in judged(past))
    lost = [v.kind for v in on(found, 33)]
    assert "traffic_low" not in lost
    assert {v.lacks for v in on(found, 33) if v.kind == "not_enough_data"} <= {
        "labels: no request has had one for a day"
    }
    assert sum("labels" in kind for kind in lost) > 0.5 * len(lost)


def test_lists_short_at_night_are_not_suspect_where_labels_are_few() -> None:
    past = Ranking.of(45).since(0, coverage=0.01)
    short = replace(past, items=np.where(past.starts % DAY // HOUR < 5, 4.0, 10.0))
    assert "positions_suspect" not in kinds(on(judged(short), 16))


def test_a_slice_with_permanently_fewer_labels_is_judged_on_those() -> None:
    past = few(60).since(31.5, coverage=0.4, slices=[0])
    found = judged(past.since(45, mean=0.7, slices=[0]))
    assert kinds(on(found, 37, 45)) == {"healthy"}
    assert "slice 0" in {a.unit for v in on(found, 46) for a in v.alarms}


def test_hourly_request_counts_cover_a_new_level_and_slices_without_labels() -> None:
    settings = replace(SETTINGS, resets=(day(33.0),))
    past = few(45).since(0, coverage=0.0, slices=[2])
    by_day = np.where(past.starts % DAY // HOUR < 12, 1.0, 0.4)
    hours = shaped(past, by_day).draw(counts_unlabelled=False)
    found = verdicts(hours, settings)
    for verdict in on(found, 30, 33) + on(found, 33.125, 35) + on(found, 35.125):
        until = int(np.searchsorted(hours.starts, verdict.end))
        assert verdict.requests == hours.served[until - verdict.span // HOUR : until].sum()
        known = hours.served[until - verdict.span // HOUR : until, :2].sum()
        assert verdict.requests_expected == pytest.approx(known, rel=0.2)


@pytest.mark.parametrize("peak", [60.0, 600.0])
def test_a_third_fewer_labels_are_reported_while_the_rest_is_judged(peak: float) -> None:
    """For example the judgments of a third of the queries: no mean moves, and most labels remain."""
    past = Ranking.of(40, peak=peak)
    assert not any(v.fewer_labels for v in judged(past))
    found = judged(past.since(31.5, 34.5, coverage=0.67))
    assert kinds(on(found, 31.5, 34.5)) == {"healthy"}
    assert all(v.fewer_labels for v in on(found, 32.5, 34.5))
    assert not any(v.fewer_labels for v in on(found, 36))
    worse = judged(past.since(31.5, coverage=0.67).since(33, mean=0.8))
    assert kinds(on(worse, 35, 36)) == {"degraded"}
