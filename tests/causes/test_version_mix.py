"""Versions that serve different slices: how the page and single requests compare them, checked against pandas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from monitor.causes.losses import losses
from monitor.causes.newcomers import newcomers
from monitor.causes.sample import RequestSample
from monitor.causes.version_mix import shares_of, version_effect
from monitor.causes.versions import compare
from monitor.conditions.versions import served_until, weak
from monitor.messages.comparison import compared
from monitor.messages.explanation import weak_version
from monitor.messages.notification import notification
from monitor.series import partials as b
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL
from monitor.units import DAY, HOUR, WEEK
from tests.support.notices import ABOUT, DROP, INCIDENT, of_kind

FELL = 5 * WEEK
END = FELL + 2 * DAY
MEANS = {"mobile": 0.45, "desktop": 0.55, "watch": 0.35}
WORSE = -0.12

Shares = dict[str, float]


def log(
    shares: Shares, worse: float = WORSE, since: int = FELL, until: int = END, seed: int = 1, desktop: float = 0.0
) -> pd.DataFrame:
    """Requests of five weeks and two days; v2 gets these shares of each device between `since` and `until`.

    Args:
        worse: what v2 adds to a request's value.
        desktop: what the last two days add to the value of desktop requests.
    """
    rng = np.random.default_rng(seed)
    size = 110 * END // HOUR
    at = np.sort(rng.integers(0, END, size))
    device = rng.choice(list(MEANS), size, p=[0.4, 0.35, 0.25])
    chance = pd.Series(device).map(lambda one: shares.get(one, 0.0)).to_numpy()
    second = (at >= since) & (at < until) & (rng.random(size) < chance)
    mean = pd.Series(device).map(MEANS).to_numpy() + worse * second + desktop * ((device == "desktop") & (at >= FELL))
    value = np.clip(rng.normal(mean, 0.15), 0, 1)
    query = rng.integers(0, 40, size)
    return pd.DataFrame(
        {"at": at, "device": device, "version": np.where(second, "v2", "v1"), "value": value, "query": query}
    )


def difference(found: pd.DataFrame, is_it: pd.Series) -> float:
    """The difference of the two `means`."""
    it, others = means(found, is_it)
    return it - others


def means(found: pd.DataFrame, is_it: pd.Series) -> tuple[float, float]:
    """Means of some requests and of all others, hour by hour, weighted by n_v n_o / (n_v + n_o)."""
    by = found.groupby([found["at"] // HOUR, is_it])["value"].agg(["mean", "size"]).unstack(fill_value=0.0)
    number, mean = by["size"].to_numpy(), by["mean"].to_numpy()
    weight = number[:, 0] * number[:, 1] / number.sum(axis=1)
    others, it = (weight @ mean / weight.sum()).tolist()
    return it, others


def stored(found: pd.DataFrame) -> History:
    """The log as the store holds it: hourly sums by device and hourly sums by version."""
    starts = np.arange(0, END, HOUR)
    keys: list[SliceKey] = [OVERALL]
    keys += [("device", one) for one in MEANS] + [("model_version", one) for one in ("v1", "v2")]
    sums = np.zeros((len(starts), len(keys), len(b.FIELDS)))
    for i, (dimension, value) in enumerate(keys):
        of_it = found if not dimension else found[found[dimension.removeprefix("model_")] == value]
        by_hour = of_it.assign(square=of_it["value"] ** 2).groupby(of_it["at"] // HOUR)
        hours = np.array(list(by_hour.groups), dtype=np.int64)
        sums[hours, i, b.REQUESTS] = by_hour.size().to_numpy()
        sums[hours, i, b.TOTAL], sums[hours, i, b.SQUARES] = by_hour["value"].sum(), by_hour["square"].sum()
    return History(starts, np.ones(len(starts), bool), tuple(keys), sums)


def read(found: pd.DataFrame, with_queries: bool = True) -> RequestSample:
    """The log as a sample of single requests."""
    size = len(found)
    queries = tuple(f"q{one}" for one in found["query"]) if with_queries else (None,) * size
    served, values = found["at"].to_numpy(np.int64), found["value"].to_numpy(float)
    ids = tuple(f"r{one}" for one in found.index)
    return RequestSample(
        ids, served, values, np.ones(size), queries, tuple(found["device"]), tuple(found["version"]), size
    )


def lost(found: pd.DataFrame) -> float:
    means = found.groupby(found["at"] >= FELL)["value"].mean()
    return float(means[False] - means[True])


def named(found: pd.DataFrame, lost: float = 0.02, end: int = END) -> str | None:
    one = weak(stored(found), "model_version", (FELL, FELL), end, lost, "device")
    return None if one is None else one.version


# ---- on the page -----------------------------------------------------------------------------------------------------


def test_a_version_alone_in_a_slice_is_compared_with_that_slices_past() -> None:
    found = log({"mobile": 1.0})
    one = weak(stored(found), "model_version", (FELL, FELL), END, lost(found), "device")
    assert one is not None
    mobile = found[found["device"] == "mobile"]
    now, hours = mobile[mobile["at"] >= FELL], END - FELL
    weeks = range(1, 5)
    before = pd.concat([mobile[mobile["at"].between(FELL - w * WEEK, FELL - w * WEEK + hours - 1)] for w in weeks])
    assert (one.is_before, one.dimension) == (True, "device")
    assert one.value == pytest.approx(now["value"].mean(), abs=1e-12)
    assert one.others == pytest.approx(before["value"].mean(), abs=1e-12)
    assert one.lower < WORSE < one.upper
    assert one.part == pytest.approx(-lost(found), abs=0.01), "its contribution does not exceed the fall of the mean"


def test_a_version_sharing_one_slice_is_compared_with_the_others_there() -> None:
    found = log({"watch": 0.6}, worse=-0.2)
    one = weak(stored(found), "model_version", (FELL, FELL), END, 0.02, "device")
    assert one is not None
    watch = found[(found["device"] == "watch") & (found["at"] >= FELL)]
    it, others = means(watch, watch["version"] == "v2")
    assert (one.is_before, one.dimension) == (False, "device")
    assert (one.value, one.value - one.others) == (pytest.approx(it, abs=0.03), pytest.approx(it - others, abs=0.03))
    (told,) = weak_version(of_kind("degraded", DROP, weak_version=one))
    assert f"the others in the same device and hours at {one.others:.3f}: {one.value - one.others:+.3f}" in told


def test_a_version_sharing_every_slice_is_compared_with_all_others() -> None:
    found = log({"mobile": 0.2, "desktop": 0.2, "watch": 0.2}, worse=-0.2)
    one = weak(stored(found), "model_version", (FELL, FELL), END, 0.02, "device")
    assert one is not None
    lately = found[found["at"] >= FELL]
    is_it = lately["version"] == "v2"
    it, others = means(lately, is_it)
    assert (one.dimension, one.value) == ("", pytest.approx(it, abs=1e-4))
    assert one.others == pytest.approx(others, abs=0.002)


def test_both_means_leave_out_hours_a_version_served_alone() -> None:
    """Regression: the others' mean came from everything v2 served, so a bad day of v2 alone made them look worse."""
    found = log({"mobile": 0.2, "desktop": 0.2, "watch": 0.2}, worse=0.0)
    found = found.assign(version=np.where(found["at"] >= END - DAY, "v2", found["version"]))
    found = found.assign(value=np.where(found["at"] >= END - DAY, found["value"] / 2, found["value"]))
    (one,) = newcomers(stored(found), "", END)
    shared = found[(found["at"] >= FELL) & (found["at"] < END - DAY)]
    it, others = means(shared, shared["version"] == "v2")
    assert (one.value, one.others) == (pytest.approx(it, abs=0.001), pytest.approx(others, abs=0.001))


def test_both_means_cover_only_shared_slices() -> None:
    """Regression: a slice it serves alone went into its mean, and so into the others'."""
    (one,) = newcomers(stored(log({"mobile": 1.0, "desktop": 0.3}, worse=0.0)), "device", END)
    assert (one.value, one.others) == (pytest.approx(MEANS["desktop"], abs=0.03),) * 2


def test_a_common_loss_during_a_rollout_is_not_blamed_on_the_version() -> None:
    """v2 is the same model. Its share grows from a tenth to a half while every request gets worse."""
    few, half = (log(dict.fromkeys(MEANS, share), worse=0.0) for share in (0.1, 0.5))
    found = pd.concat([few[few["at"] < FELL + DAY], half[half["at"] >= FELL + DAY]])
    found.loc[found["at"] >= FELL + DAY, "value"] -= 0.1
    lately = found[found["at"] >= FELL].groupby("version")["value"].mean()
    assert lately["v2"] < lately["v1"] - 0.02, "the naive difference must mislead"
    one = version_effect(stored(found), ("model_version", "v2"), "", (FELL, END), FELL)
    assert one is not None
    assert one.interval[0] < 0 < one.interval[1]


@pytest.mark.parametrize("wave", [0.0, 0.3])
def test_intervals_cover_variation_between_hours(wave: float) -> None:
    """`wave`: variation shared by the requests of one hour and version. In 200 logs, 95 % of intervals contain 0."""
    rng, hours, inside = np.random.default_rng(5), np.arange(0, 200 * HOUR, HOUR), 0
    for _ in range(200):
        sums = np.zeros((len(hours), 3, len(b.FIELDS)))
        for column in (1, 2):
            mean = rng.normal(0.5, wave, len(hours))[:, None]
            values = rng.normal(mean, 0.3, (len(hours), 20))
            sums[:, column, b.REQUESTS], sums[:, column, b.TOTAL] = 20, values.sum(axis=1)
            sums[:, column, b.SQUARES] = (values**2).sum(axis=1)
        sums[:, 0] = sums[:, 1:].sum(axis=1)
        history = History(hours, np.ones(len(hours), bool), (OVERALL, ("v", "v1"), ("v", "v2")), sums)
        one = version_effect(history, ("v", "v2"), "", (0, 200 * HOUR), 0)
        assert one is not None
        inside += one.interval[0] <= 0 <= one.interval[1]
    assert 180 <= inside <= 199


@pytest.mark.parametrize("seed", range(8))
def test_an_innocent_version_in_the_worst_slice_is_not_blamed(seed: int) -> None:
    for shares in ({"watch": 1.0}, {"watch": 0.5}, {"watch": 1.0, "mobile": 0.5}):
        found = log(shares, worse=0.0, since=FELL - 4 * DAY, desktop=-0.15, seed=seed)
        of = found[found["at"] >= FELL].groupby("version")["value"].mean()
        assert of["v2"] < of["v1"] - 0.01, "the naive difference must mislead"
        assert named(found, lost(found)) is None


def test_a_version_equally_bad_long_before_the_fall_is_not_blamed() -> None:
    early, late = (log({"mobile": 0.3, "desktop": 0.3, "watch": 0.3}, since=FELL - days * DAY) for days in (6, 1))
    assert (named(early, 0.036), named(late, 0.036)) == (None, "v2")


def test_a_version_that_stopped_serving_gets_no_rollback_advice() -> None:
    found = log({"mobile": 1.0}, until=END - 6 * HOUR)
    history = stored(found)
    one = weak(history, "model_version", (FELL, FELL), END, lost(found), "device")
    assert one is not None
    until = served_until(history, ("model_version", "v2"), one.since, END, HOUR, HOUR)
    assert until == END - 6 * HOUR
    standing, gone = (
        of_kind("degraded", DROP, since=FELL + HOUR, weak_version=replace(one, until=when)) for when in (None, until)
    )
    assert (
        "roll model version v2 back if nothing else changed for the device values only it serves"
        in notification("firing", ABOUT, INCIDENT, [standing], 0).full_text
    )
    said = notification("firing", ABOUT, INCIDENT, [gone], 0).full_text
    assert "It has served no requests since 1970-02-06 18:00 UTC." in said
    assert "wait; model version v2 has not served since" in said
    assert "roll model version v2 back" not in said


def test_without_earlier_weeks_no_version_is_blamed() -> None:
    found = log({"mobile": 1.0})
    assert named(found[found["at"] >= FELL - 3 * DAY], 0.03) is None


def test_slice_shares_are_fitted_from_enough_hours() -> None:
    rng = np.random.default_rng(3)
    slices = rng.poisson([40.0, 30.0, 10.0], (72, 3)).astype(float)
    for shares in ([1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.8, 0.0, 0.0]):
        theirs = rng.binomial(slices.astype(int), shares).sum(axis=1).astype(float)
        assert shares_of(theirs, slices)[0] == pytest.approx(np.array(shares), abs=0.12)
    assert shares_of(slices[:4, 0], slices[:4])[0] == pytest.approx(np.full(3, slices[:4, 0].sum() / slices[:4].sum()))


def test_intervals_cover_the_truth_for_a_version_alone_in_a_slice_or_sharing_slices() -> None:
    for shares in ({"mobile": 1.0}, {"mobile": 0.3, "desktop": 0.3, "watch": 0.3}, {"watch": 0.6}):
        hits = 0
        for seed in range(15):
            seen = version_effect(stored(log(shares, seed=seed)), ("model_version", "v2"), "device", (FELL, END), FELL)
            assert seen is not None
            hits += abs(seen.difference - WORSE) <= 1.96 * seen.error
        assert hits >= 13


# ---- from single requests --------------------------------------------------------------------------------------------


def test_paired_queries_within_slices_match_pandas() -> None:
    found = log({"mobile": 0.7, "desktop": 0.1}, since=0)
    seen = compare(read(found), "v1", "v2", HOUR, "device")
    both = found[found["device"] != "watch"]
    pairs = both.pivot_table("value", ["query", "device"], "version", ["mean", "size"]).dropna()
    weight = pairs["size"]["v1"] * pairs["size"]["v2"] / pairs["size"].sum(axis=1)
    expected = ((pairs["mean"]["v2"] - pairs["mean"]["v1"]) * weight).sum() / weight.sum()
    assert (seen.by, seen.dimension, seen.shared) == ("query", "device", len(pairs))
    assert seen.difference == pytest.approx(expected, abs=1e-12)
    assert seen.difference == pytest.approx(WORSE, abs=0.02)
    assert seen.second.value - seen.first.value < WORSE - 0.02, "comparing all requests gives another number"
    assert seen.common == (pytest.approx((both["version"] == "v1").sum() / (found["version"] == "v1").sum()), 1.0)


def test_without_queries_slice_differences_are_weighted_by_the_versions_requests() -> None:
    found = log({"mobile": 0.7, "desktop": 0.1}, since=0)
    seen = compare(read(found, with_queries=False), "v1", "v2", HOUR, "device")
    both = found[found["device"] != "watch"].groupby(["device", "version"])["value"]
    means, own = both.mean().unstack(), both.size().unstack()["v2"]
    expected = ((means["v2"] - means["v1"]) * own).sum() / own.sum()
    assert (seen.by, seen.difference) == ("request", pytest.approx(expected, abs=1e-12))
    assert seen.lower is not None
    assert seen.upper is not None
    assert seen.lower < WORSE < seen.upper
    other = compare(read(found, with_queries=False), "v2", "v1", HOUR, "device")
    assert (other.better > other.worse, seen.better < seen.worse) == (True, True)


def test_versions_without_a_common_slice_are_not_compared() -> None:
    found = log({"watch": 1.0}, worse=0.0)
    stray = found.index[(found["at"] >= FELL) & (found["device"] == "watch")][:3]
    found.loc[stray, "version"] = "v1"
    seen = compare(read(found[found["at"] >= FELL]), "v1", "v2", HOUR, "device")
    assert (seen.difference, seen.lower, seen.better, seen.worse, seen.common) == (None, None, 0, 0, (0.0, 0.0))
    said = "\n".join(compared(seen.plain()))
    assert "share no device slice with 5 requests from each: the difference may come from their slices." in said
    assert "against" not in said


def test_page_and_captured_requests_agree_on_a_version_alone_in_a_slice() -> None:
    found = log({"mobile": 1.0})
    page = weak(stored(found), "model_version", (FELL, FELL), END, lost(found), "device")
    assert page is not None
    at = found["at"].to_numpy()
    before = sum(((at >= FELL - w * WEEK) & (at < END - w * WEEK)).astype(int) for w in range(1, 5)) > 0
    now, past = read(found[at >= FELL], with_queries=False), read(found[before], with_queries=False)
    one = losses(now, past, HOUR, False, dimension="device")["comparison"]
    assert one["difference"] == pytest.approx(page.value - page.others, abs=1e-9)
    assert not one["at_one_time"]
    said = "\n".join(compared(one))
    assert said.startswith("\nAt different times: ")
    assert "v2 against v1, all requests within one device, not paired, where both served (" in said


@pytest.mark.parametrize(
    ("began", "dimension", "said"),
    [
        (
            7200,
            "app",
            "\nAt different times: r1 until 1970-01-01 02:00 UTC, r2 from 1970-01-01 02:00 UTC; the difference",
        ),
        (3600, "app", "\nNever at the same time within one app: the difference may be due to time."),
        (3600, None, "\nAt different times: r1 from 1970-01-01 00:00 UTC to 1970-01-01 02:00 UTC, r2 from "),
    ],
)
def test_versions_on_separate_slices_are_not_said_to_serve_at_different_times(
    began: int, dimension: str | None, said: str
) -> None:
    first, second = ({"version": name, "since": at, "until": at + 7200} for name, at in (("r1", 0), ("r2", began)))
    figures = {"by": "request", "shared": 0, "difference": -0.1, "lower": -0.2, "upper": 0.0, "resolution": 1}
    found = {"first": first, "second": second, "dimension": dimension, "at_one_time": False, **figures}
    assert next(compared(found)).startswith(said)
