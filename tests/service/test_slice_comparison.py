"""The slices of the newest window against the past, up to the largest number of slices."""

import time

import numpy as np
import pytest

from monitor.measures.measure import parse
from monitor.series.partials import REQUESTS, TOTAL, TRAFFIC_FIELDS
from monitor.series.windows import History
from monitor.service.slice_comparison import compare
from monitor.types import OVERALL
from tests.support.monitors import shop

HOUR, HOURS, SLICES = 3600, 48, 1000
MEASURE = parse("ndcg@10")


def log_of(fields: int) -> History:
    """Each slice has 10 requests an hour from its own hour on: `0000` from the start, `0030` from hour 30."""
    sums = np.zeros((HOURS, 1 + SLICES, fields))
    for place in range(SLICES):
        sums[place % HOURS :, 1 + place, REQUESTS] = 10.0
        sums[place % HOURS :, 1 + place, TOTAL] = place / 100
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    keys = (OVERALL, *(("device", f"{place:04}") for place in range(SLICES)))
    return History(np.arange(HOURS) * HOUR, np.ones(HOURS, bool), keys, sums)


def test_a_thousand_new_slices_are_compared_quickly() -> None:
    history = log_of(9)
    began = time.perf_counter()
    found = compare(shop(), MEASURE, 24 * HOUR, history, log_of(len(TRAFFIC_FIELDS)), HOURS * HOUR)
    assert time.perf_counter() - began < 2.0, "the cost grows with the slices, not with their cube"
    assert len(found.slices) == SLICES
    by_name = {one.key[1]: one for one in found.slices}
    window = history.sums[24:].sum(axis=0)
    for name, hour in (("0030", 30), ("0130", 34), ("0999", 39)):
        others = np.delete(window, [0, 1 + int(name)], axis=0).sum(axis=0)
        assert by_name[name].since == hour * HOUR
        assert by_name[name].others == pytest.approx(others[TOTAL] / others[REQUESTS])
    assert by_name["0000"].since is None, "it was there when the dimension began"
    assert by_name["0009"].since is None, "it has a window before"


@pytest.mark.parametrize(("hours", "is_new"), [(13, True), (167, True), (168, False)])
def test_a_slice_newer_than_the_window_is_compared_with_the_others(hours: int, is_new: bool) -> None:
    """The few requests of a canary's first hours once counted as the past of its whole week."""
    week = 7 * 24
    served = {"v1": (0, 0.4), "v2": (2 * week - hours, 0.3)}
    sums = np.zeros((3 * week, 3, 9))
    for place, (begin, mean) in enumerate(served.values(), 1):
        sums[begin:, place, REQUESTS], sums[begin:, place, TOTAL] = 10.0, 10.0 * mean
    sums[:, 0] = sums[:, 1:].sum(axis=1)
    keys = (OVERALL, *(("model_version", name) for name in served))
    history = History(np.arange(3 * week) * HOUR, np.ones(3 * week, bool), keys, sums)
    traffic = History(history.starts, history.final, keys, np.repeat(sums[:, :, :1], len(TRAFFIC_FIELDS), axis=2))
    found = {one.key[1]: one for one in compare(shop(), MEASURE, week * HOUR, history, traffic, 3 * week * HOUR).slices}
    assert (found["v2"].before, found["v2"].others) == ((None, 0.4) if is_new else (0.3, None))
    assert found["v1"].since is None
