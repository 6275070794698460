"""With judgments or a column of labels a request without a label is in no measure: labels that stop are not traffic."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.core.drift import gates as g
from monitor.core.drift.series import Floats
from monitor.core.drift.verdicts import Verdict
from tests.support.drift import Ranking, on, verdicts


def judged(ranking: Ranking, seed: int = 1) -> list[Verdict]:
    return verdicts(ranking.draw(seed, counts_unlabelled=False))


def kinds(found: list[Verdict]) -> set[str]:
    return {v.kind for v in found}


@pytest.mark.parametrize("coverage", [1.1, 1.0, 0.05], ids=["nearly all", "nine of ten", "few"])
@pytest.mark.parametrize("left", [0.0, 0.2])
def test_labels_that_stop_are_suspect_while_as_many_requests_come_as_ever(coverage: float, left: float) -> None:
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
    found[[g.SERVED, g.EXPECTED_REQUESTS]] = requests
    found[[g.REQUESTS, g.EXPECTED_LABELLED]] = 0.3 * requests
    found[[g.JUDGED, g.LABELLED]] = labelled
    found[[g.EXPECTED, g.TOTAL]] = 0.5 * labelled
    return found


@pytest.mark.parametrize(
    ("lately", "labelled", "is_suspect"),
    [(180, 0, True), (180, 40, False), (90, 0, True), (90, 18, False), (90, 10, True)],
    ids=["gone", "back", "thin and gone", "thin and back", "thin and hardly back"],
)
def test_a_day_with_an_outage_makes_nothing_suspect_once_labels_are_back(
    lately: int, labelled: int, is_suspect: bool
) -> None:
    """By chance, and by less than half: of the labels that so few requests usually have."""
    spans = sums(lately / 3, labelled / 3), sums(lately, labelled), sums(8 * lately, 0.8 * lately)
    assert g.labels_suspect(spans, g.Spread(0.02, 0.1)).tolist() == [is_suspect]


def test_requests_are_told_whether_they_have_a_label_or_not() -> None:
    past = Ranking.of(36, peak=6000.0).since(0, coverage=0.1)
    hours = past.draw(counts_unlabelled=False)
    found = verdicts(hours)
    assert on(found, 33)[0].requests == hours.served[33 * 24 - 2 : 33 * 24 + 1].sum()
    assert on(found, 33)[0].requests_expected == pytest.approx(on(found, 33)[0].requests, rel=0.1)
    assert on(found, 3)[0].coverage == pytest.approx(0.09, abs=0.03)
    assert on(found, 33)[0].coverage == pytest.approx(0.09, abs=0.005)
    assert on(found, 33)[0].coverage_expected == pytest.approx(0.09, abs=0.005)


@pytest.mark.parametrize("coverage", [1.0, 0.05])
def test_traffic_that_falls_is_low_and_its_labels_are_well(coverage: float) -> None:
    past = Ranking.of(36, peak=600.0 / coverage).since(0, coverage=coverage)
    found = judged(past.since(31.5, 32.0, rate=0.2))
    assert kinds(on(found, 31.65, 32.0)) == {"traffic_low"}
    last = on(found, 31.65, 32.0)[-1]
    assert last.requests == pytest.approx(0.2 * (last.requests_expected or 0), rel=0.1)
    assert kinds(on(found, 32.2)) == {"healthy"}


def test_a_fall_with_somewhat_fewer_labels_is_one_of_the_model() -> None:
    """What there is no label of cannot lower the mean, so it explains nothing."""
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


def test_fewer_labels_for_good_are_what_is_usual_after_four_whole_days() -> None:
    past = Ranking.of(50, peak=6000.0).since(31.5, coverage=0.3)
    found = judged(past.since(42.5, mean=0.9))
    assert kinds(on(found, 31.6, 36.0)) == {"labels_suspect", "labels_collapsed"}
    assert kinds(on(found, 36.3, 42.5)) == {"healthy"}
    assert kinds(on(found, 43.5)) == {"degraded"}
    assert on(found, 40)[0].requests_expected == pytest.approx(on(found, 40)[0].requests, rel=0.15)


def test_labels_that_stay_away_are_never_what_is_usual() -> None:
    found = judged(Ranking.of(60).since(31.5, coverage=0.0))
    assert kinds(on(found, 33)) == {"labels_collapsed"}


def test_a_slice_of_which_fewer_requests_have_a_label_shifts_no_mix() -> None:
    past = Ranking.of(40, peak=3000.0).since(0, coverage=0.1, slices=[0])
    found = judged(past)
    assert not any(v.mix_shifted for v in found)
    assert kinds(on(found, 20)) == {"healthy"}
    worse = on(judged(past.since(33, mean=0.8, slices=[0])), 33)
    (split,) = [v.split for v in worse if v.split is not None][:1]
    assert split.by_z[0].slice == "slice 0"
    assert abs(split.mix) < 0.02 * abs(split.value - split.before) + 0.002


@pytest.mark.parametrize("seed", range(3))
def test_of_thin_traffic_an_outage_of_labels_is_found(seed: int) -> None:
    past = Ranking.of(40, slices=1, peak=4.0).since(0, coverage=1.1)
    found = judged(past.since(33.0, 34.0, coverage=0.0), seed)
    lost = [v.kind for v in on(found, 33.1, 34.0)]
    assert set(lost) <= {"labels_suspect", "healthy"}  # the latter where next to nothing came for hours
    assert lost.count("labels_suspect") > 0.6 * len(lost)
    assert kinds(on(found, 20, 33)) == {"healthy"}


def test_an_outage_in_the_reference_makes_nothing_unusual_of_what_is_usual() -> None:
    found = judged(Ranking.of(40).since(6.0, 8.5, coverage=0.0))
    assert kinds(on(found, 15)) == {"healthy"}
    assert on(found, 15)[0].coverage_expected == pytest.approx(0.9, abs=0.02)
    assert on(found, 20.5)[0].requests == pytest.approx(on(found, 20.5)[0].requests_expected, rel=0.15)
