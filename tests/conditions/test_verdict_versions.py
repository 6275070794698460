"""A fall names the model version that began about then and had enough requests to matter."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.conditions.assessment import with_first_version
from monitor.conditions.evidence import evidence_of
from monitor.conditions.observations import Observations
from monitor.conditions.versions import NewVersion, begun_with, rollouts, weak
from monitor.messages.explanation import new_version, weak_version
from monitor.messages.notification import notification
from monitor.series import partials as b
from monitor.series.windows import History
from monitor.types import OVERALL, Drift
from tests.support.notices import ABOUT, DROP, INCIDENT, SLICE, of_kind

HOUR, DAY = 3600, 86_400
FELL, OPENED = 10 * DAY, 10 * DAY + 5 * HOUR


def served(shares: dict[str, list[tuple[int, float]]], until: int = OPENED, since: int = 0) -> History:
    """100 requests an hour; each version has a share from a given moment until its next step."""
    starts = np.arange(0, until, HOUR)
    keys = (OVERALL, *(("model_version", version) for version in shares))
    sums = np.zeros((len(starts), len(keys), len(b.TRAFFIC_FIELDS)))
    sums[:, 0, 0] = 100
    for column, steps in enumerate(shares.values(), 1):
        for at, share in steps:
            sums[starts >= max(at, since), column, 0] = 100 * share
    return History(starts, np.ones(len(starts), bool), keys, sums)


def found(traffic: History, fell: float = 0.1, opened_at: int = OPENED) -> NewVersion | None:
    return begun_with(traffic, "model_version", FELL, opened_at, int(traffic.starts[-1]) + HOUR, HOUR, HOUR, fell)


def test_a_version_taking_over_as_the_fall_begins_is_named_with_its_predecessor() -> None:
    assert found(served({"v1": [(0, 1.0), (FELL, 0.0)], "v2": [(FELL, 1.0)]})) == NewVersion(
        "v2", "v1", FELL, FELL, HOUR, None, 1.0, 0.0
    )


@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (0.1, 1.0), (0.1, 0.5), (0.0, 0.05)])
def test_a_rollout_is_measured_by_its_gained_share_until_it_is_usual(before: float, after: float) -> None:
    traffic = served({"v1": [(0, 1 - before), (FELL, 1 - after)], "v2": [(0, before), (FELL, after)]})
    seen = dict(rollouts(traffic, "model_version", HOUR, FELL - DAY, FELL + 47 * HOUR))
    assert min(seen) > FELL
    assert max(seen) <= FELL + 30 * HOUR
    assert seen[FELL + 6 * HOUR] == pytest.approx(after - before, abs=0.05)


@pytest.mark.parametrize("shares", [{"v1": [(0, 0.5)], "v2": [(0, 0.5)]}, {"v1": [(FELL, 1.0)]}, {}])
def test_versions_always_served_or_not_logged_before_are_not_rollouts(
    shares: dict[str, list[tuple[int, float]]],
) -> None:
    assert rollouts(served(shares), "model_version", HOUR, FELL - DAY, FELL + 23 * HOUR) == ()


def test_a_single_request_shows_no_rollout() -> None:
    traffic = served({"v1": [(0, 1.0), (FELL, 0.0)], "v2": [(FELL, 1.0)]})
    traffic.sums[traffic.starts >= FELL] /= 100
    assert max(share for _, share in rollouts(traffic, "model_version", HOUR, FELL, FELL + 2 * HOUR)) < 0.15


@pytest.mark.parametrize("hours", [1, 3, 8, 12, 24])
def test_a_rollout_is_found_in_buckets_of_any_width(hours: int) -> None:
    step = hours * HOUR
    traffic = served({"v1": [(0, 1.0), (FELL, 0.0)], "v2": [(FELL, 1.0)]}, FELL + 2 * DAY)
    wide = History(
        traffic.starts[::hours],
        np.ones(len(traffic.starts[::hours]), bool),
        traffic.slices,
        np.add.reduceat(traffic.sums, np.arange(0, len(traffic.starts), hours)),
    )
    seen = dict(rollouts(wide, "model_version", step, FELL - DAY, FELL + 2 * DAY))
    assert seen[FELL + max(step, 6 * HOUR)] > 0.9


def test_steps_before_the_first_request_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run asks for everything since 1970; with one column per version, that took gigabytes."""
    traffic, sizes = served({"v1": [(0, 1.0), (FELL, 0.0)], "v2": [(FELL, 1.0)]}), list[int]()
    late = replace(traffic, starts=traffic.starts + 20_000 * DAY)
    real = np.searchsorted
    monkeypatch.setattr(np, "searchsorted", lambda a, v: sizes.append(len(v)) or real(a, v))
    assert rollouts(late, "model_version", HOUR, -DAY, OPENED + 20_000 * DAY)
    assert max(sizes) <= len(traffic.starts) + 1


def test_a_version_on_trial_begins_when_all_requests_get_it() -> None:
    tried = served({"v1": [(0, 0.99), (FELL, 0.0)], "v2": [(0, 0.01), (FELL, 1.0)]})
    one = found(tried)
    assert one is not None
    assert (one.version, one.since, one.share_before) == ("v2", FELL, pytest.approx(0.01))


@pytest.mark.parametrize(("before", "after"), [(0.1, 0.5), (0.5, 1.0), (0.2, 0.45)])
def test_a_rollout_step_at_the_fall_is_named_as_a_larger_share(before: float, after: float) -> None:
    one = found(served({"v1": [(0, 1 - before), (FELL, 1 - after)], "v2": [(0, before), (FELL, after)]}))
    assert one is not None
    assert (one.version, one.former, one.since) == ("v2", "v1", FELL)
    assert (one.share, one.share_before) == (pytest.approx(after), pytest.approx(before))
    told, *more = new_version(of_kind("degraded", DROP, new_version=one))
    assert told.startswith("Model version v2 got a larger share of requests at 1970-01-11 00:00 UTC, in the hour when")
    share = f"Version v2 had {100 * after:.0f} % of the requests over the last day"
    assert f"{share}, {100 * before:.0f} % in the day before 1970-01-11 00:00 UTC." in more[0]


def test_a_versions_share_is_that_of_the_last_day_however_slow_the_rollout() -> None:
    steps = [(FELL, 0.3), (FELL + 4 * HOUR, 0.6), (FELL + 10 * HOUR, 1.0)]
    rest = [(0, 1.0), *((at, 1 - share) for at, share in steps)]
    one = found(served({"v1": rest, "v2": steps}, FELL + 36 * HOUR), opened_at=FELL + 12 * HOUR)
    assert one is not None
    assert one.share == 1.0
    at = of_kind("degraded", DROP, end=FELL + 36 * HOUR, new_version=one)
    assert "Version v2 had 100 % of the requests over the last day." in new_version(at)[1]
    over = served({"v1": [*rest, (FELL + 40 * HOUR, 1.0)], "v2": [*steps, (FELL + 40 * HOUR, 0.0)]}, FELL + 50 * HOUR)
    gone = found(over, opened_at=FELL + 12 * HOUR)
    assert gone is not None
    assert (gone.until, gone.share) == (FELL + 40 * HOUR, 1.0)
    said = new_version(replace(at, end=FELL + 50 * HOUR, new_version=gone))
    assert "Version v2 had 100 % of the requests in the last day that it served." in said[1]


@pytest.mark.parametrize(
    ("before", "after", "fell", "why"),
    [
        (0.3, 0.5, 0.1, "not much more than it had"),
        (0.03, 0.07, 0.03, "the gain is tiny"),
        (0.05, 0.13, 0.09, "the mean fell by more than its gained share"),
        (0.06, 0.115, 0.03, "the gain may be chance"),
    ],
)
def test_a_small_or_uncertain_rollout_step_is_not_named(before: float, after: float, fell: float, why: str) -> None:
    log = served({"v1": [(0, 1 - before), (FELL, 1 - after)], "v2": [(0, before), (FELL, after)]})
    assert found(log, fell) is None, why


def test_an_old_version_that_returns_counts_as_new() -> None:
    back = served({"old": [(0, 1.0), (5 * DAY, 0.0), (FELL, 1.0)], "v2": [(0, 0.0), (5 * DAY, 1.0), (FELL, 0.0)]})
    one = found(back)
    assert one is not None
    assert (one.version, one.former, one.since) == ("old", "v2", FELL)


@pytest.mark.parametrize("apart", [-7, 8])
def test_a_version_that_began_at_another_time_is_not_named(apart: int) -> None:
    at = FELL + apart * HOUR
    assert (
        found(served({"v1": [(0, 1.0), (at, 0.0)], "v2": [(at, 1.0)]}, OPENED + DAY), opened_at=OPENED + 6 * HOUR)
        is None
    )


def test_a_fall_found_late_may_name_a_version_that_began_long_before() -> None:
    at = FELL - 30 * HOUR
    traffic = served({"v1": [(0, 1.0), (at, 0.0)], "v2": [(at, 1.0)]}, FELL + 8 * DAY)
    assert found(traffic) is None
    one = found(traffic, opened_at=FELL + 8 * DAY)
    assert one is not None
    assert one.since == at


def test_a_version_lowers_the_mean_by_no_more_than_its_share() -> None:
    some = served({"v1": [(0, 1.0), (FELL, 0.92)], "v2": [(FELL, 0.08)]})
    assert found(some, fell=0.1) is None
    assert found(some, fell=0.05) is not None


def test_no_version_is_new_where_versions_were_not_read_before() -> None:
    assert found(served({"v1": [(0, 1.0)]}, since=FELL)) is None


def test_after_a_gap_the_former_version_is_the_one_before_the_gap() -> None:
    log = served({"v1": [(0, 1.0), (FELL - 5 * DAY, 0.0)], "v2": [(FELL, 1.0)]})
    log.sums[(log.starts >= FELL - 5 * DAY) & (log.starts < FELL)] = 0.0
    one = found(log)
    assert one is not None
    assert (one.version, one.former, one.since) == ("v2", "v1", FELL)


def test_a_versions_share_is_counted_from_its_own_start() -> None:
    at = FELL + 3 * HOUR
    one = found(served({"v1": [(0, 1.0), (at, 0.0)], "v2": [(at, 1.0)]}))
    assert one is not None
    assert (one.since, one.share) == (at, 1.0)


NEW = NewVersion("v2", "v1", FELL, FELL, HOUR, None, 1.0, 0.0)
OF_ALL = of_kind("degraded", DROP, since=FELL + HOUR)
OF_SLICE = of_kind("degraded", SLICE, since=FELL + 9 * HOUR, new_version=NEW)


def test_only_the_first_of_several_falls_names_a_version() -> None:
    assert [f.new_version for f in with_first_version([OF_SLICE, OF_ALL], OPENED)] == [None, None]
    named = replace(OF_ALL, new_version=NEW)
    assert [f.new_version for f in with_first_version([OF_SLICE, named], OPENED)] == [None, NEW]


def test_a_version_that_came_after_the_incident_opened_is_not_named() -> None:
    assert [f.new_version for f in with_first_version([OF_SLICE], OPENED)] == [None]
    assert [f.new_version for f in with_first_version([OF_SLICE], OF_SLICE.since)] == [NEW]


@pytest.mark.parametrize(("rest", "requests", "fell"), [(0.44, 90, True), (0.5, 90, False), (0.44, 1, False)])
def test_others_fell_only_if_enough_of_their_requests_are_as_low(rest: float, requests: int, fell: bool) -> None:
    """All were at .5. Then one version is at .44, and the others are at .44 as well or stay at .5."""
    starts = np.arange(0, 10 * DAY, HOUR)
    sums = np.zeros((len(starts), 2, len(b.FIELDS)))
    later = starts >= 9 * DAY
    sums[~later, 0, b.REQUESTS], sums[~later, 0, b.TOTAL] = 100, 50
    sums[later, 1, b.REQUESTS], sums[later, 1, b.TOTAL] = 10, 4.4
    sums[later, 0, b.REQUESTS], sums[later, 0, b.TOTAL] = 10 + requests, 4.4 + requests * rest
    history = History(starts, np.ones(len(starts), bool), (OVERALL, ("model_version", "v2")), sums)
    seen = Observations(Drift("ndcg@10"), HOUR, history, history)
    assert seen.others_fell(("model_version", "v2"), 9 * DAY, 10 * DAY, 0.06) is fell


def test_events_before_cover_more_than_the_same_hour_of_a_thin_slice() -> None:
    starts, key = np.arange(0, 10 * DAY, HOUR), ("device", "tablet")
    sums = np.zeros((len(starts), 2, len(b.TRAFFIC_FIELDS)))
    sums[..., b.TRAFFIC_FIELDS.index("requests")] = 1
    events = b.TRAFFIC_FIELDS.index("events")
    sums[:-1, 1, events] = 2
    sums[-1 - 7 * 24, 1, events] = 0
    history = History(starts, np.ones(len(starts), bool), (OVERALL, key), sums)
    found = Observations(Drift("ndcg@10"), HOUR, history, history).events([key], 10 * DAY, 10 * DAY)
    assert (found.events, found.events_before) == (0.0, pytest.approx(2.0, rel=0.01))


# ---- a version that is worse than the others -------------------------------------------------------------------------

LATER = 100 * DAY
"""When the overall mean falls."""


def on_trial(
    value: float, share: float = 0.1, since: int = LATER - 3 * DAY, hourly: int = 100, others: float = 0.5
) -> History:
    """0/1 requests of v1, and of v2 from `since` on, with these means, up to a day after a fall."""
    starts = np.arange(LATER - 30 * DAY, LATER + DAY, HOUR)
    sums = np.zeros((len(starts), 3, len(b.FIELDS)))
    size = np.where(starts >= since, share * hourly, 0.0)
    for column, (requests, mean) in enumerate(((hourly - size, others), (size, value)), 1):
        sums[:, column, b.REQUESTS] = requests
        sums[:, column, b.TOTAL] = sums[:, column, b.SQUARES] = requests * mean
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    keys = (OVERALL, ("model_version", "v1"), ("model_version", "v2"))
    return History(starts, np.ones(len(starts), bool), keys, sums)


def blamed(history: History, lost: float) -> str | None:
    one = weak(history, "model_version", (LATER - DAY, LATER), LATER + DAY, lost)
    return None if one is None else one.version


def test_a_clearly_worse_version_on_trial_is_named_even_if_it_began_days_before() -> None:
    one = weak(on_trial(0.2), "model_version", (LATER - DAY, LATER), LATER + DAY, 0.03)
    assert one is not None
    assert (one.version, one.since) == ("v2", LATER - 3 * DAY)
    assert (one.value, one.others, one.share) == (pytest.approx(0.2), pytest.approx(0.5), pytest.approx(0.1))
    assert one.part == pytest.approx(-0.03)
    error = np.sqrt(0.2 * 0.8 / 960 + 0.5 * 0.5 / 8640)  # over the four days that it served
    assert (one.lower, one.upper) == (pytest.approx(-0.3 - 1.96 * error), pytest.approx(-0.3 + 1.96 * error))
    told = of_kind("degraded", DROP, since=FELL + HOUR, weak_version=one)
    assert weak_version(told) == [
        "Model version v2, which began at 1970-04-08 00:00 UTC, is at 0.200 with 10 % of the requests, the "
        f"others in the same hours at 0.500: -0.300 (95 %: {one.lower:+.3f} to {one.upper:+.3f}), which lowers the "
        "overall mean by 0.030."
    ]
    assert weak_version(replace(told, new_version=NEW)) == [], (
        "it is already named as the version that began with the fall"
    )
    assert evidence_of(json.loads(json.dumps(told.plain()))) == told
    said = notification("firing", ABOUT, INCIDENT, [told], 0).full_text
    assert "roll model version v2 back if it serves the same people" in said


@pytest.mark.parametrize(
    ("history", "lost", "why"),
    [
        (on_trial(0.45), 0.03, "it may be worse by chance"),
        (on_trial(0.2), 0.2, "it causes a small part of the fall"),
        (on_trial(0.2, since=LATER - 20 * DAY), 0.03, "it already counts as usual"),
        (on_trial(0.2, since=0), 0.03, "it was always there"),
        (on_trial(0.2, share=0.04), 0.01, "it has hardly any requests"),
        (on_trial(0.2, hourly=3), 0.03, "it has too few requests to tell"),
        (on_trial(0.8), 0.03, "it is better"),
    ],
)
def test_unclear_small_usual_or_better_versions_are_not_blamed(history: History, lost: float, why: str) -> None:
    assert blamed(history, lost) is None, why


def test_the_older_of_two_versions_is_never_blamed() -> None:
    assert blamed(on_trial(0.9, others=0.4), 0.03) is None
