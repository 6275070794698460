"""Which version of the model is named with a fall: one that began about then, and had enough requests to matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.core import buckets as b
from monitor.core.findings import NewVersion
from monitor.core.types import OVERALL, Drift
from monitor.core.verdict_evidence import Evidence
from monitor.core.verdict_versions import begun_with
from monitor.core.verdict_words import with_first_version
from monitor.core.windows import History
from tests.support.notices import DROP, SLICE

HOUR, DAY = 3600, 86_400
FELL, OPENED = 10 * DAY, 10 * DAY + 5 * HOUR


def served(shares: dict[str, list[tuple[int, float]]], until: int = OPENED, since: int = 0) -> History:
    """100 requests an hour, of which each version has a share from some moment on, until the next one."""
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


def test_one_that_takes_over_when_the_fall_begins_is_named_with_the_one_before() -> None:
    assert found(served({"v1": [(0, 1.0), (FELL, 0.0)], "v2": [(FELL, 1.0)]})) == NewVersion(
        "v2", "v1", FELL, FELL, HOUR, None, 1.0, 0.0
    )


def test_one_that_a_few_requests_tried_before_begins_when_all_get_it() -> None:
    tried = served({"v1": [(0, 0.99), (FELL, 0.0)], "v2": [(0, 0.01), (FELL, 1.0)]})
    one = found(tried)
    assert one is not None
    assert (one.version, one.since, one.share_before) == ("v2", FELL, pytest.approx(0.01))


def test_one_that_comes_back_is_a_beginning_too() -> None:
    back = served({"old": [(0, 1.0), (5 * DAY, 0.0), (FELL, 1.0)], "v2": [(0, 0.0), (5 * DAY, 1.0), (FELL, 0.0)]})
    one = found(back)
    assert one is not None
    assert (one.version, one.former, one.since) == ("old", "v2", FELL)


@pytest.mark.parametrize("apart", [-7, 8])
def test_one_that_began_at_another_time_is_not_named(apart: int) -> None:
    at = FELL + apart * HOUR
    assert (
        found(served({"v1": [(0, 1.0), (at, 0.0)], "v2": [(at, 1.0)]}, OPENED + DAY), opened_at=OPENED + 6 * HOUR)
        is None
    )


def test_the_longer_a_fall_took_to_be_found_the_less_is_known_of_when_it_began() -> None:
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


def test_where_versions_were_not_read_before_none_is_new() -> None:
    assert found(served({"v1": [(0, 1.0)]}, since=FELL)) is None


def test_after_a_gap_what_served_before_it_is_looked_at() -> None:
    log = served({"v1": [(0, 1.0), (FELL - 5 * DAY, 0.0)], "v2": [(FELL, 1.0)]})
    log.sums[(log.starts >= FELL - 5 * DAY) & (log.starts < FELL)] = 0.0
    one = found(log)
    assert one is not None
    assert (one.version, one.former, one.since) == ("v2", "v1", FELL)


def test_its_share_is_that_from_its_own_beginning() -> None:
    at = FELL + 3 * HOUR
    one = found(served({"v1": [(0, 1.0), (at, 0.0)], "v2": [(at, 1.0)]}))
    assert one is not None
    assert (one.since, one.share) == (at, 1.0)


NEW = NewVersion("v2", "v1", FELL, FELL, HOUR, None, 1.0, 0.0)
OF_ALL = replace(DROP, verdict="degraded", since=FELL + HOUR)
OF_SLICE = replace(SLICE, verdict="degraded", since=FELL + 9 * HOUR, new_version=NEW)


def test_of_several_falls_the_first_alone_names_a_version() -> None:
    assert [f.new_version for f in with_first_version([OF_SLICE, OF_ALL], OPENED)] == [None, None]
    named = replace(OF_ALL, new_version=NEW)
    assert [f.new_version for f in with_first_version([OF_SLICE, named], OPENED)] == [None, NEW]


def test_a_version_that_came_when_the_incident_was_open_is_named_by_no_fall() -> None:
    assert [f.new_version for f in with_first_version([OF_SLICE], OPENED)] == [None]
    assert [f.new_version for f in with_first_version([OF_SLICE], OF_SLICE.since)] == [NEW]


@pytest.mark.parametrize(("rest", "requests", "fell"), [(0.44, 90, True), (0.5, 90, False), (0.44, 1, False)])
def test_what_others_served_fell_as_well_or_it_did_not(rest: float, requests: int, fell: bool) -> None:
    """All had .5; then a version has .44, and what the others have is .44 as well, or as it was."""
    starts = np.arange(0, 10 * DAY, HOUR)
    sums = np.zeros((len(starts), 2, len(b.FIELDS)))
    later = starts >= 9 * DAY
    sums[~later, 0, b.REQUESTS], sums[~later, 0, b.TOTAL] = 100, 50
    sums[later, 1, b.REQUESTS], sums[later, 1, b.TOTAL] = 10, 4.4
    sums[later, 0, b.REQUESTS], sums[later, 0, b.TOTAL] = 10 + requests, 4.4 + requests * rest
    history = History(starts, np.ones(len(starts), bool), (OVERALL, ("model_version", "v2")), sums)
    seen = Evidence(Drift("ndcg@10"), HOUR, history, history)
    assert seen.others_fell(("model_version", "v2"), 9 * DAY, 10 * DAY, 0.06) is fell
