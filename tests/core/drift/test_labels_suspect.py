"""Labels that are missing, told apart from people who leave fewer of them because they find less."""

import numpy as np
import pytest

from monitor.core.drift.gates import (
    EXPECTED,
    EXPECTED_LABELLED,
    EXPECTED_REQUESTS,
    FIELDS,
    JUDGED,
    LABELLED,
    REQUESTS,
    SERVED,
    TOTAL,
    Spread,
    labels_suspect,
)
from monitor.core.drift.series import HOUR, Floats
from tests.support.drift import Ranking, on, verdicts


def test_fewer_labels_of_worse_lists_are_no_outage() -> None:
    worse = Ranking.of(38, peak=60.0).since(31, mean=0.85, coverage=0.7)
    found = on(verdicts(worse.draw()), 31)
    opened = next(v.end for v in found if v.is_degraded)
    later = [v for v in found if v.end >= opened]
    assert later
    assert {v.kind for v in later} == {"degraded"}


def test_an_outage_in_the_middle_of_a_degradation_is_told_as_one() -> None:
    worse = Ranking.of(36, peak=100.0).since(31, mean=0.7).since(33.5, 34.5, coverage=0.0)
    found = verdicts(worse.draw())
    assert {v.kind for v in on(found, 33.75, 34.5)} == {"labels_suspect"}
    assert {v.kind for v in on(found, 34.75)} == {"degraded"}


def test_on_thin_traffic_an_outage_ends_soon_after_its_labels_are_back() -> None:
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
def test_on_thin_traffic_a_day_without_labels_counts_only_while_they_are_missing_still(
    lately: int, is_suspect: bool
) -> None:
    """Of 36 labels expected in the last three hours 1.5 standard errors, nine, must be missing."""
    spans = sums(10, lately / 4), sums(40, lately), sums(400, 180)
    assert labels_suspect(spans, Spread(0.02, 0.1)).tolist() == [is_suspect]


@pytest.mark.parametrize(
    ("requests", "worth", "is_suspect"),
    [(50, 0.5, True), (60, 0.473, True), (60, 0.457, False), (60, 0.44, False), (600, 0.44, True), (48, 0.5, False)],
    ids=["of few all", "of few 88 %", "of few 82 %", "of few most", "of many most", "of fewer"],
)
def test_a_third_of_few_labels_is_missing_only_if_that_explains_as_good_as_all_of_the_fall(
    requests: int, worth: float, is_suspect: bool
) -> None:
    lately, nothing = sums(requests, 0.6 * requests, worth), sums(1, 1)
    assert labels_suspect((nothing, lately, nothing), Spread(0.02, 0.1)).tolist() == [is_suspect]


def test_a_night_in_which_some_labels_are_lost_is_told_before_anybody_is_paged() -> None:
    thin = Ranking.of(33, peak=130.0, slices=1).since(30.375, 30.625, coverage=0.6)  # 25 to 40 requests an hour
    found = verdicts(thin.draw())
    assert {v.kind for v in on(found, 30.5, 30.625)} == {"labels_suspect"}
    assert not any(v.is_degraded for v in found)
