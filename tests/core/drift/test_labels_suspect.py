"""Labels that are missing, told apart from people who leave fewer of them because they find less."""

from monitor.core.drift.series import HOUR
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
