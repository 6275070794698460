"""A slice or version that started recently is compared with what is served at the same time."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.causes.newcomers import newcomers
from monitor.messages.explanation import begun_lately
from monitor.units import DAY, HOUR, WEEK
from tests.causes.test_version_mix import END, FELL, WORSE, difference, log, stored

ALL = {"mobile": 0.1, "desktop": 0.1, "watch": 0.1}


def test_a_version_serving_a_tenth_is_reported_with_its_difference_and_interval() -> None:
    found = log(ALL)
    (one,) = newcomers(stored(found), "device", END)
    v2 = found[found["version"] == "v2"]
    rest = found[(found["at"] >= FELL) & (found["version"] == "v1")]
    assert (one.dimension, one.slice, one.since) == ("model_version", "v2", FELL)
    assert one.share == pytest.approx(len(v2) / (len(v2) + len(rest)))
    assert one.value == pytest.approx(v2["value"].mean(), abs=0.001)
    assert one.others == pytest.approx(rest["value"].mean(), abs=0.01)
    assert one.lower < WORSE < one.upper < 0
    assert begun_lately(one) == (
        f"model_version=v2, which began at 1970-02-05 00:00 UTC, is at {one.value:.3f} with 10 % of the requests, the "
        f"others in the same hours at {one.others:.3f}: {one.value - one.others:+.3f} "
        f"(95 %: {one.lower:+.3f} to {one.upper:+.3f})"
    )


def test_a_version_alone_in_a_slice_is_compared_with_that_slices_past() -> None:
    (one,) = newcomers(stored(log({"mobile": 1.0})), "device", END)
    assert (one.is_before, one.within) == (True, "device")
    assert one.lower < WORSE < one.upper < 0
    assert "; the device values that only it serves were at " in begun_lately(one)


def test_a_new_slice_is_compared_with_all_others_and_the_worst_comes_first() -> None:
    found = log(ALL, worse=0.1)
    is_late = (found["device"] == "watch") & (found["at"] < FELL)
    told = newcomers(stored(found[~is_late]), "device", END)
    assert [(one.dimension, one.slice, one.within) for one in told] == [
        ("device", "watch", ""),
        ("model_version", "v2", ""),
    ]
    lately = found[found["at"] >= FELL]
    assert told[0].value - told[0].others == pytest.approx(difference(lately, lately["device"] == "watch"))


@pytest.mark.parametrize(
    ("since", "until", "begin", "why"),
    [
        (FELL - 2 * WEEK, END, 0, "it started two weeks ago"),
        (END - HOUR, END, 0, "it has too few requests to compare"),
        (FELL, END, FELL - DAY, "the time before it is unknown"),
    ],
)
def test_old_thin_or_unknown_versions_are_not_newcomers(since: int, until: int, begin: int, why: str) -> None:
    history = stored(log(ALL, since=since)).between(begin, END)
    assert newcomers(history, "device", until) == [], why


def test_intervals_of_an_equal_version_contain_zero() -> None:
    hits = 0
    for seed in range(20):
        (one,) = newcomers(stored(log(ALL, worse=0.0, seed=seed)), "device", END)
        hits += one.lower < 0 < one.upper
    assert hits >= 17


def test_a_history_without_requests_has_no_newcomers() -> None:
    history = stored(log(ALL))
    empty = type(history)(history.starts, history.final, history.slices, np.zeros_like(history.sums))
    assert newcomers(empty, "device", END) == []
