"""Missing labels are told apart from people who leave fewer labels because they find less."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.arrays import Floats
from monitor.drift.data_checks import (
    EXPECTED,
    EXPECTED_LABELLED,
    EXPECTED_REQUESTS,
    FIELDS,
    JUDGED,
    LABELLED,
    REQUESTS,
    SERVED,
    TOTAL,
    Dispersion,
    Explanation,
    explanation,
    labels_suspect,
)
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.units import DAY, HOUR
from tests.support.drift import Ranking, day, on, verdicts


def test_fewer_labels_from_worse_lists_are_not_an_outage() -> None:
    worse = Ranking.of(38, peak=60.0).since(31, mean=0.85, coverage=0.7)
    found = on(verdicts(worse.draw()), 31)
    opened = next(v.end for v in found if v.is_degraded)
    later = [v for v in found if v.end >= opened]
    assert later
    assert {v.kind for v in later} == {"degraded"}


def test_a_label_outage_during_a_degradation_is_reported_as_an_outage() -> None:
    worse = Ranking.of(36, peak=100.0).since(31, mean=0.7).since(33.5, 34.5, coverage=0.0)
    found = verdicts(worse.draw())
    assert {v.kind for v in on(found, 33.75, 34.5)} == {"labels_suspect"}
    assert {v.kind for v in on(found, 34.75)} == {"degraded"}


def test_a_label_outage_on_thin_traffic_ends_soon_after_labels_return() -> None:
    thin = Ranking.of(36, peak=40.0, slices=2).since(31.5, 32.0, coverage=0.0)
    found = verdicts(thin.draw())
    lost = [v.end for v in found if v.is_data]
    assert {v.kind for v in on(found, 31.75, 32.0)} == {"labels_suspect"}
    ends = next(v.end for v in on(found, 32.0) if v.kind == "healthy")
    assert ends <= on(found, 32.0)[0].end + 6 * HOUR
    assert max(lost) < ends


def sums(requests: float, labelled: float, worth: float = 0.5) -> Floats:
    """A span in which nine of ten requests are expected to have a label, and each label to be worth .5."""
    found = np.zeros((FIELDS, 1))
    found[[REQUESTS, JUDGED, SERVED, EXPECTED_REQUESTS]] = requests
    found[EXPECTED_LABELLED], found[LABELLED] = 0.9 * requests, labelled
    found[EXPECTED], found[TOTAL] = 0.45 * requests, worth * labelled
    return found


@pytest.mark.parametrize(("lately", "is_suspect"), [(0, True), (26, True), (28, False), (36, False)])
def test_a_day_without_labels_on_thin_traffic_counts_only_while_they_stay_missing(
    lately: int, is_suspect: bool
) -> None:
    """Of 36 labels expected in the last three hours, nine must be missing: 1.5 standard errors."""
    spans = sums(10, lately / 4), sums(40, lately), sums(400, 180)
    assert labels_suspect(spans, Dispersion(0.02, 0.1)).tolist() == [is_suspect]


@pytest.mark.parametrize(
    ("requests", "worth", "is_suspect"),
    [(50, 0.5, True), (60, 0.473, True), (60, 0.457, False), (60, 0.44, False), (600, 0.44, True), (48, 0.5, False)],
    ids=["of few all", "of few 88 %", "of few 82 %", "of few most", "of many most", "of fewer"],
)
def test_a_third_of_few_labels_is_suspect_only_if_it_explains_nearly_all_of_the_fall(
    requests: int, worth: float, is_suspect: bool
) -> None:
    lately, nothing = sums(requests, 0.6 * requests, worth), sums(1, 1)
    assert labels_suspect((nothing, lately, nothing), Dispersion(0.02, 0.1)).tolist() == [is_suspect]


def test_a_night_in_which_some_labels_are_lost_is_reported_and_pages_nobody() -> None:
    thin = Ranking.of(33, peak=130.0, slices=1).since(30.375, 30.625, coverage=0.6)  # 25 to 40 requests an hour
    found = verdicts(thin.draw())
    assert {v.kind for v in on(found, 30.5, 30.625)} == {"labels_suspect"}
    assert not any(v.is_degraded for v in found)


@pytest.mark.parametrize(("peak", "left"), [(60.0, 0.65), (60.0, 0.75), (150.0, 0.7), (600.0, 0.8)])
def test_a_partial_label_loss_of_a_day_is_suspect_not_a_worse_model(peak: float, left: float) -> None:
    """On thin traffic, evidence of a fall gathers before the labels alone would be suspect."""
    for seed in range(4):
        lost = Ranking.of(36, peak=peak, seed=seed).since(31.4, 32.6, coverage=left)
        found = verdicts(lost.draw(seed))
        assert not any(v.is_degraded for v in found)
        during = [v for v in on(found, 31.4, 32.6) if v.is_data]
        assert len(during) >= 15
        assert {v.kind for v in during} <= {"labels_suspect", "labels_collapsed"}
        assert not any(v.is_data for v in on(found, 33.6)), "at most a day after they return"


def test_labels_that_explain_a_fall_are_suspect_since_it_began() -> None:
    held = 0
    for seed in range(6):
        found = verdicts(Ranking.of(36, peak=60.0, seed=seed).since(31.4, 32.6, coverage=0.75).draw(seed))
        first = next((v for v in found if v.labels is not None), None)
        if first is not None and first.labels is not None and first.labels.since < first.end:
            held += 1
            assert abs(first.labels.since - day(31.4)) < 12 * HOUR
            assert first.labels.span == first.end - first.labels.since + HOUR
    assert held >= 2


@pytest.mark.parametrize(("mean", "left"), [(0.9, 0.97), (0.8, 0.95), (0.7, 0.9), (0.85, 0.85)])
def test_a_model_that_costs_some_labels_too_is_still_degraded(mean: float, left: float) -> None:
    for seed in range(3):
        found = verdicts(Ranking.of(36, peak=150.0, seed=seed).since(31.4, mean=mean, coverage=left).draw(seed))
        assert not any(v.is_data for v in found)
        assert next(v.end for v in found if v.is_degraded) <= day(31.4) + 20 * HOUR


@pytest.mark.parametrize("peak", [150.0, 1500.0])
def test_fewer_labels_count_as_a_worse_model_only_after_a_large_rollout(peak: float) -> None:
    """People who find less click less. Whether the model has changed tells the two apart."""
    for seed in range(3):
        worse = Ranking.of(36, peak=peak, seed=seed).since(31.4, 33, mean=0.96, coverage=0.8).draw(seed)
        assert {v.kind for v in on(verdicts(worse), 31.6, 33)} >= {"labels_suspect"}
        new = DriftSettings(rollouts=((day(31.4) + HOUR, 0.9),))
        found = verdicts(worse, new)
        assert {v.kind for v in on(found, 31, 36)} == {"healthy", "degraded"}
        assert next(v.end for v in found if v.is_degraded) <= day(31.4) + 12 * HOUR
        assert not on(found, 34.5)[0].is_degraded
        small = DriftSettings(rollouts=((day(31.4) + HOUR, 0.05),))
        assert verdicts(worse, small) == verdicts(worse), "so small a rollout cannot have cost that many"
        lost = Ranking.of(36, peak=peak, seed=seed).since(31.4, 33, coverage=0.2).draw(seed)
        assert {v.kind for v in on(verdicts(lost, new), 31.6, 33)} <= {"labels_suspect", "labels_collapsed"}


@pytest.mark.parametrize(("peak", "left", "over"), [(60.0, 0.55, 15), (150.0, 0.7, 15), (600.0, 0.5, 7)])
def test_an_alarm_is_withdrawn_once_slowly_lost_labels_explain_it(peak: float, left: float, over: float) -> None:
    """The first few missing labels look like a worse model."""
    withdrawn = 0
    for seed in range(5):
        lost = Ranking.of(46, peak=peak, seed=seed).losing_labels(31, over, left)
        found = verdicts(lost.draw(seed))
        opened = [v.end for v in found if v.is_degraded]
        ends = [v.end for v in found for change in v.changes if not change.unit and change.became == "withdrawn"]
        assert len(ends) == bool(opened), "handed over once, and for good"
        withdrawn += len(ends)
        if ends:
            assert ends[0] - opened[0] <= 5 * DAY
            assert all(not v.alarms for v in found if v.end >= ends[0])
        assert {v.kind for v in on(found, 40)} <= {"labels_suspect", "labels_collapsed"}
    assert withdrawn


def test_lost_labels_and_a_worse_model_together_are_both_reported() -> None:
    """A somewhat worse model and lost labels look like lists so bad that people click less: the alarm stays open."""
    suspect = 0
    for seed in range(4):
        both = Ranking.of(42, peak=600.0, seed=seed).since(31, mean=0.96).since(37.4, coverage=0.8)
        found = verdicts(both.draw(seed))
        assert not any(not change.unit and change.became == "withdrawn" for v in found for change in v.changes)
        assert found[-1].is_degraded
        first = next((v for v in found if v.labels is not None), None)
        if first is not None and first.labels is not None:
            suspect += 1
            assert abs(first.labels.since - day(37.4)) <= 3 * HOUR
    assert suspect >= 2


@pytest.mark.parametrize(("peak", "left"), [(60.0, 0.9), (150.0, 0.8)])
def test_an_alarm_stays_open_while_some_labels_also_go_missing(peak: float, left: float) -> None:
    for seed in range(3):
        worse = Ranking.of(46, peak=peak, seed=seed).since(31, mean=0.8).losing_labels(33, 10, left)
        found = verdicts(worse.draw(seed))
        opened = next(v.end for v in found if v.is_degraded)
        assert opened <= day(33)
        assert not any(change.became == "withdrawn" for v in found for change in v.changes)
        assert found[-1].is_degraded


ERROR = np.array([0.02, 0.02])
"""Errors of the mean of the labelled requests."""


def fall(worth: float, lacking: tuple[float, ...], requests: float = 400) -> Floats:
    """Sums of a fall by slice: each keeps a share of its labels, and these keep the share `worth` of their value."""
    return np.concatenate([sums(requests, 0.9 * requests * left, 0.5 * worth) for left in lacking], axis=1)


@pytest.mark.parametrize(
    ("worth", "lacking", "unit", "expected"),
    [
        (1.0, (0.8, 0.8, 0.8), 0, "labels"),
        (1.0, (0.8, 0.8, 0.8), 2, "labels"),
        (0.95, (0.8, 0.8, 0.8), 0, "labels"),
        (0.925, (0.8, 0.8, 0.8), 0, "unclear"),
        (0.85, (0.8, 0.8, 0.8), 0, "model"),
        (1.0, (0.97, 0.97, 0.97), 0, "model"),
        (1.0, (1.0, 1.0, 0.4), 0, "model"),
        (1.0, (1.0, 1.0, 0.4), 3, "model"),
        (0.8, (0.7, 0.7, 1.0), 3, "model"),
    ],
    ids=["all", "a slice", "most", "perhaps", "not most", "few", "of one slice", "of that slice", "another slice"],
)
def test_labels_explain_a_fall_only_if_missing_everywhere_at_unchanged_value(
    worth: float, lacking: tuple[float, ...], unit: int, expected: Explanation
) -> None:
    assert explanation(fall(worth, lacking), unit, Dispersion(0.02, 0.1), ERROR) == expected


@pytest.mark.parametrize(("requests", "expected"), [(150, "labels"), (1500, "model")], ids=["by chance", "surely"])
def test_labels_are_missing_from_some_slices_alone_only_if_that_is_significant(
    requests: float, expected: Explanation
) -> None:
    """If all lose the same share, half of the slices may seem to have kept theirs."""
    lacking = (0.8, 0.88, 0.99, 1.0)
    assert explanation(fall(1.0, lacking, requests), 0, Dispersion(0.02, 0.1), ERROR) == expected


def test_labels_outside_the_measure_explain_no_fall() -> None:
    unseen = fall(1.0, (0.8, 0.8))
    unseen[JUDGED] = unseen[LABELLED]
    assert explanation(unseen, 0, Dispersion(0.02, 0.1), ERROR) == "model"


def clicks_alone(ranking: Ranking) -> Hours:
    """Lists of one item: a request is worth 1 if somebody clicked, else 0."""
    hours = ranking.draw()
    return replace(hours, total=hours.labelled, squares=hours.labelled)


@pytest.mark.parametrize("left", [0.6, 0.8, 0.9])
@pytest.mark.parametrize("slices", [None, [0]])
def test_fewer_clicks_are_a_worse_model_when_only_clicks_count(left: float, slices: list[int] | None) -> None:
    """Nothing tells the two apart, so on-call must hear of it."""
    found = verdicts(clicks_alone(Ranking.of(36).since(31, coverage=left, slices=slices)))
    assert {v.kind for v in on(found, 14, 31)} == {"healthy"}
    assert {v.kind for v in on(found, 31)} == {"healthy", "degraded"}
    assert {v.kind for v in on(found, 31.5)} == {"degraded"}


def test_mostly_missing_clicks_are_lost_labels_when_only_clicks_count() -> None:
    found = verdicts(clicks_alone(Ranking.of(36).since(31, coverage=0.2)))
    assert {v.kind for v in on(found, 31)} == {"labels_suspect", "labels_collapsed"}


@pytest.mark.parametrize("hours", [30, 36])
def test_labels_missing_with_unlogged_items_recover_with_them(hours: int) -> None:
    """Clicks on unlogged items match nothing until the lists are whole again."""
    until = 32 + hours / 24
    short = Ranking.of(38, peak=300.0).since(32, until, items=0.4, coverage=0.55)
    found = verdicts(short.draw())
    assert {v.kind for v in on(found, 32.1, until)} == {"positions_suspect"}
    assert {v.kind for v in on(found, until)} <= {"positions_suspect", "healthy"}
    assert {v.kind for v in on(found, until + 0.2)} == {"healthy"}


def test_labels_lost_before_lists_shorten_are_still_lost_after_them() -> None:
    lost = Ranking.of(36, peak=300.0).since(32, 34, coverage=0.2).since(32.5, 32.8, items=0.4)
    found = verdicts(lost.draw())
    assert {v.kind for v in on(found, 32.55, 32.8)} == {"positions_suspect"}
    assert {v.kind for v in on(found, 33.2, 34)} == {"labels_collapsed"}
