"""Two versions in one period: paired by shared queries, with intervals that keep their promised coverage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.causes.sample import RequestSample
from monitor.causes.versions import FEWEST_PAIRS, SignCounts, by_place, compare, in_order, mean, names
from tests.causes.test_sample import requests

HOUR = 3600


def simulated(seed: int, effect: float, queries: int = 60, size: int = 1_500, shared: bool = True) -> RequestSample:
    """Queries differ far more than the versions do, and v2 gets a different mix of them."""
    rng = np.random.default_rng(seed)
    level = np.sort(rng.uniform(0.2, 0.8, queries))
    second = rng.random(size) < 0.4
    query = np.where(second, rng.integers(0, queries, size), rng.integers(0, queries, size) ** 2 // queries)
    value = level[query] + effect * second + rng.normal(0, 0.15, size)
    texts = [f"q{q}" if shared else f"q{q} {s}" for q, s in zip(query, second, strict=True)]
    found = requests(value.tolist(), texts, ["v2" if s else "v1" for s in second])  # type: ignore[arg-type]
    return replace(found, served=found.served // 10)


def test_pairing_sees_through_a_changed_query_mix() -> None:
    found = compare(simulated(1, effect=0.0), "v1", "v2", HOUR)
    assert found.by == "query"
    assert abs(found.second.value - found.first.value) > 0.05, "the naive difference must mislead"
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 0 < found.upper


def test_paired_intervals_cover_the_truth_in_95_percent() -> None:
    hits = 0
    for seed in range(200):
        found = compare(simulated(seed, effect=-0.03), "v1", "v2", HOUR)
        hits += (found.lower or 0.0) <= -0.03 <= (found.upper or 0.0)
    assert 181 <= hits <= 199


@pytest.mark.parametrize("steepness", [1.8, 2.0, 2.2])
def test_intervals_cover_the_truth_with_a_few_dominant_queries(steepness: float) -> None:
    hits, often = 0, 1 / np.arange(1, 201) ** steepness
    for seed in range(200):
        rng = np.random.default_rng(seed)
        query = rng.choice(200, 1_000, p=often / often.sum())
        second = rng.random(1_000) < 0.5
        value = rng.uniform(0.2, 0.8, 200)[query] + rng.normal(0, 0.15, 1_000)
        sample = requests(value.tolist(), [f"q{q}" for q in query], ["v2" if s else "v1" for s in second])
        found = compare(sample, "v1", "v2", HOUR)
        assert found.by == "query"
        assert found.lower is not None
        assert found.upper is not None
        hits += found.lower <= 0 <= found.upper
    assert hits >= 181


def test_unpaired_intervals_cover_the_truth() -> None:
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        hour = rng.integers(0, 48, 2_000)
        bump = rng.normal(0, 0.05, 48)[hour]
        second = rng.random(2_000) < 0.5
        value = 0.5 + bump - 0.02 * second + rng.normal(0, 0.2, 2_000)
        plain = requests(value.tolist(), None, ["v2" if s else "v1" for s in second])
        sample = RequestSample(
            plain.ids, hour * HOUR, plain.over, plain.under, plain.queries, plain.places, plain.versions, 0
        )
        found = compare(sample, "v1", "v2", HOUR)
        assert found.by == "request"
        hits += (found.lower or 0.0) <= -0.02 <= (found.upper or 0.0)
    assert 181 <= hits <= 199


@pytest.mark.parametrize("waves", [0.0, 0.05])
@pytest.mark.parametrize(("served", "share"), [(1, 1.0), (3, 1.0), (1, 0.5), (3, 0.1)])
def test_intervals_cover_the_truth_for_a_version_of_a_few_hours(served: int, share: float, waves: float) -> None:
    """Within a single hour, deviations from the mean sum to zero, so hours alone give such a version no error."""
    hits, rounds = 0, 100
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        hour = np.sort(rng.integers(0, 48, 2_000))
        second = (hour >= 48 - served) & (rng.random(2_000) < share)
        value = 0.5 + rng.normal(0, waves, 48)[hour] - 0.02 * second + rng.normal(0, 0.3, 2_000)
        plain = requests(value.tolist(), None, ["v2" if s else "v1" for s in second])
        sample = replace(plain, served=hour * HOUR)
        found = compare(sample, "v1", "v2", HOUR)
        hits += (found.lower or 0.0) <= -0.02 <= (found.upper or 0.0)
    assert hits >= 86


def test_few_requests_give_a_wide_interval_and_one_each_gives_none() -> None:
    rng = np.random.default_rng(1)
    usual, when = rng.uniform(0, 1, 500).tolist(), np.repeat(np.arange(50), 10) * HOUR
    for few in ([1.0], [1.0, 1.0], [0.2, 0.9]):
        plain = requests([*usual, *few], None, [*["v1"] * 500, *["v2"] * len(few)])
        found = compare(replace(plain, served=np.append(when, [when[-1]] * len(few))), "v1", "v2", HOUR)
        assert found.lower is not None
        assert found.upper is not None
        assert found.upper - found.lower > 0.8, "the spread of one request is known from the others"
    alone = compare(requests([0.3, 0.9], None, ["v1", "v2"]), "v1", "v2", HOUR)
    assert (alone.difference, alone.lower, alone.upper) == (pytest.approx(0.6), None, None)


def test_difference_and_signs_match_a_plain_loop() -> None:
    sample = simulated(3, effect=-0.05)
    found = compare(sample, "v1", "v2", HOUR)
    by_query: dict[str, dict[str, list[float]]] = {}
    for query, version, value in zip(sample.queries, sample.versions, sample.values, strict=True):
        by_query.setdefault(str(query), {}).setdefault(version, []).append(float(value))
    pairs = [(v["v1"], v["v2"]) for v in by_query.values() if len(v) == 2]
    weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in pairs]
    apart = [sum(b) / len(b) - sum(a) / len(a) for a, b in pairs]
    expected = sum(w * d for w, d in zip(weights, apart, strict=True)) / sum(weights)
    assert found.difference == pytest.approx(expected, abs=1e-12)
    assert (found.better, found.worse) == (sum(d > 0 for d in apart), sum(d < 0 for d in apart))
    assert found.better + found.worse + found.unchanged == found.shared == len(pairs)


def test_equal_queries_count_as_unchanged() -> None:
    queries = [f"q{i // 2}" for i in range(2 * FEWEST_PAIRS)]
    sample = requests([0.5] * len(queries), queries, ["v1", "v2"] * FEWEST_PAIRS)  # type: ignore[arg-type]
    found = compare(sample, "v1", "v2", HOUR)
    assert (found.better, found.worse, found.unchanged, found.difference) == (0, 0, FEWEST_PAIRS, 0.0)


def test_without_common_queries_all_requests_are_compared() -> None:
    sample = simulated(4, effect=0.0, shared=False)
    found = compare(sample, "v1", "v2", HOUR)
    assert (found.by, found.shared) == ("request", 0)
    assert found.better + found.worse + found.unchanged == found.second.requests
    assert found.difference == pytest.approx(found.second.value - found.first.value)


def test_without_queries_no_query_is_shared() -> None:
    found = compare(requests([0.1, 0.2, 0.9], None, ["v1", "v1", "v2"]), "v1", "v2", HOUR)
    assert found.shared is None
    assert (found.better, found.worse, found.unchanged) == (1, 0, 0)


def test_one_request_has_no_interval() -> None:
    found = mean(requests([0.3]), "v1", HOUR)
    assert (found.value, found.lower, found.upper) == (0.3, None, None)


def test_busiest_versions_come_first_and_the_older_leads_a_pair() -> None:
    sample = requests([0] * 6, None, ["new", "new", "old", "new", "odd", "odd"])
    assert names(sample) == ["new", "odd", "old"]
    assert in_order(sample, ["odd", "new"], HOUR, {}) == ["new", "odd"]


def test_the_version_stored_first_is_the_older_one() -> None:
    sample = requests([0] * 4, None, ["m8", "m7", "m8", "m7"])
    assert in_order(sample, ["m7", "m8"], HOUR, {"m7": 0, "m8": 50 * 24 * HOUR}) == ["m7", "m8"]
    assert in_order(sample, ["m7", "m8"], HOUR, {}) == ["m8", "m7"], "without stored times, the period decides"


def test_versions_first_seen_in_one_bucket_are_ordered_by_name() -> None:
    sample = requests([0] * 3, None, ["m10", "m9", "m9"])
    assert in_order(sample, ["m9", "m10"], 24 * HOUR, {}) == ["m9", "m10"]
    assert in_order(sample, ["m10", "m9"], HOUR, {"m9": HOUR, "m10": HOUR}) == ["m9", "m10"]
    assert in_order(sample, ["2", "x"], HOUR, {"2": 0, "x": 0}) == ["2", "x"]


# ---- serving times -------------------------------------------------------------------------------------------------


def served(seed: int, since: dict[str, float], until: dict[str, float], rates: dict[str, float]) -> RequestSample:
    """Two weeks of requests at random times, between each version's days and at its hourly rate; values near 0.5."""
    rng, times, versions = np.random.default_rng(seed), list[int](), list[str]()
    for version, rate in rates.items():
        size = rng.poisson(rate * 24 * (until[version] - since[version]))
        times += rng.uniform(since[version] * 24 * HOUR, until[version] * 24 * HOUR, size).astype(int).tolist()
        versions += [version] * size
    plain = requests(rng.normal(0.5, 0.1, len(times)).tolist(), None, versions)
    at = np.array(times, np.int64)
    return RequestSample(
        plain.ids, at, plain.over, plain.under, plain.queries, plain.places, plain.versions, plain.read
    )


@pytest.mark.parametrize("rate", [0.5, 5.0, 200.0])
def test_consecutive_versions_count_as_different_times(rate: float) -> None:
    found = compare(served(0, {"v1": 0, "v2": 9}, {"v1": 9, "v2": 14}, {"v1": rate, "v2": rate}), "v1", "v2", HOUR)
    assert not found.at_one_time
    assert max(found.together) < 0.2
    assert found.first.until is not None
    assert found.second.since is not None
    assert found.first.until <= 9 * 24 * HOUR <= found.second.since


@pytest.mark.parametrize("rate", [0.5, 5.0, 200.0])
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_concurrent_versions_count_as_the_same_time(rate: float, share: float) -> None:
    rates = {"v1": rate * (1 - share), "v2": rate * share}
    sample = served(1, {"v1": 0, "v2": 0}, {"v1": 14, "v2": 14}, rates)
    found = compare(sample, "v1", "v2", HOUR)
    assert found.at_one_time
    assert found.first.requests + found.second.requests == len(sample), "all requests are compared"


def test_a_rolled_back_version_counts_as_a_different_time() -> None:
    both = served(2, {"v1": 0, "v2": 5}, {"v1": 5, "v2": 7}, {"v1": 60, "v2": 60})
    after = served(3, {"v1": 7}, {"v1": 14}, {"v1": 60})
    assert not compare(both + after, "v1", "v2", HOUR).at_one_time


def test_a_late_version_is_compared_only_over_the_common_time() -> None:
    """Everything improved on day 10, when the second version started; the version did not cause it."""
    sample = served(4, {"v1": 0, "v2": 10}, {"v1": 14, "v2": 14}, {"v1": 100, "v2": 100})
    sample = RequestSample(
        sample.ids, sample.served, sample.over + 0.2 * (sample.served >= 10 * 24 * HOUR), sample.under,
        sample.queries, sample.places, sample.versions, sample.read,
    )  # fmt: skip
    found = compare(sample, "v1", "v2", HOUR)
    assert found.at_one_time
    assert found.together == (pytest.approx(4 / 14, abs=0.03), pytest.approx(1.0, abs=0.01))
    assert abs(found.difference) < 0.01
    assert found.first.requests == round(found.together[0] * len(sample.of_version("v1")))
    assert found.first.since is not None
    assert found.first.since < HOUR, "the serving time covers the whole period"


def test_requests_with_nothing_relevant_are_counted_by_version() -> None:
    sample = requests([0.5, 0.6] * 4, None, ["v1", "v2"] * 4)
    counted = replace(sample, empty={"v1": (9, 5), "v2": (4, 0)})
    found = compare(counted + counted, "v1", "v2", HOUR)
    assert (found.first.read, found.first.empty, found.second.read, found.second.empty) == (18, 10, 8, 0)
    assert compare(sample, "v1", "v2", HOUR).first.empty is None


def test_shared_queries_are_counted_even_when_too_few_to_pair() -> None:
    queries = ["a", "a", "b", "b", "c", "d"]
    found = compare(requests([0.5, 0.9, 0.5, 0.1, 0.2, 0.3], queries, ["v1", "v2"] * 3), "v1", "v2", HOUR)  # type: ignore[arg-type]
    assert (found.by, found.shared) == ("request", 2)
    assert found.queries == SignCounts(1, 1, 0)


# ---- in slices -----------------------------------------------------------------------------------------------------


def test_the_slice_in_which_a_version_is_worse_comes_first() -> None:
    rng = np.random.default_rng(7)
    place = rng.choice(["android", "ios", "web"], 3_000)
    version = rng.choice(["v1", "v2"], 3_000)
    value = 0.5 - 0.1 * ((place == "ios") & (version == "v2")) + rng.normal(0, 0.1, 3_000)
    every = requests(value.tolist(), None, version.tolist(), places=place.tolist()) + requests(
        [0.1], None, ["v2"], first=3_000, places=["tv"]
    )
    found = by_place(every, "v1", "v2", 24 * HOUR)
    assert found[0]["slice"] == "ios", "a slice served by one version alone is left out"
    assert {one["slice"] for one in found} == {"android", "ios", "web"}
    assert found[0]["upper"] < -0.05
    assert all(abs(one["difference"]) < 0.03 for one in found[1:])


def test_serving_times_can_be_replaced_by_stored_ones() -> None:
    sample = requests([0.5, 0.6] * 4, None, ["v1", "v2"] * 4)
    found = compare(sample, "v1", "v2", HOUR)
    assert (found.first.since, found.first.until, found.resolution) == (0, 6 * HOUR, 1)
    found = found.served({"v2": (9, 99)}, 60)
    assert (found.first.since, found.first.until) == (None, None)
    assert (found.second.since, found.second.until, found.resolution) == (9, 99, 60)
