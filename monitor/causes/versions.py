"""Compares two model versions over one period: by the queries that both served, otherwise all requests.

Always within the slices that both served, and only while both served if they did. After a rollout, version and time
cannot be separated.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Floats, Ints
from monitor.causes.sample import RequestSample, by_query_and_place
from monitor.series.confidence import WeightedMean, half_width
from monitor.series.intervals import student

FEWEST_PAIRS = 5
"""Least number of common queries for comparing two versions by them."""

SAME = 1e-12
"""Differences up to here are none."""


TOGETHER = 0.5
"""Least share of one version's requests while the other served, for both to count as simultaneous."""

ALL_THE_TIME = 0.9
"""Share `TOGETHER` of both versions above which all requests are compared: one is alone now and then by chance."""

MOST_PLACES = 20
"""Number of slices in which two versions are compared."""

FEWEST_OF_PLACE = 5
"""Least requests of each version for a common slice: one misrouted request makes none."""

NEAR = 600
SPACINGS = 3
"""A version serves within NEAR seconds, or SPACINGS median gaps if that is longer, of each of its requests."""


@dataclass(frozen=True)
class VersionMean:
    """One version's requests; `value` over all of them, with its 95 % interval from hour to hour.

    It served from `since` to `until`, seconds; `empty` of the `read` requests had nothing relevant. None: unknown.
    """

    version: str
    requests: int
    value: float
    lower: float | None
    upper: float | None
    since: int | None = None
    until: int | None = None
    read: int | None = None
    empty: int | None = None


@dataclass(frozen=True)
class SignCounts:
    """How many queries or requests are better, worse or the same with the second version."""

    better: int
    worse: int
    unchanged: int


@dataclass(frozen=True)
class VersionComparison:
    """The second version against the first.

    Attributes:
        by: what is better or worse: the mean of a query that both got in one slice; or a request of the second version,
            against the first's median request in its slice.
        difference, lower, upper: second minus first within common slices, with 95 % interval; None: too little data.
        shared, queries: queries that both got, counted per slice, and how many of them are better.
        at_one_time: they served together; otherwise the difference includes the effect of time.
        together, common: share of each one's requests while the other served, and in common slices.
        resolution: seconds to which serving times are known.
        dimension: whose slices are compared within; None without one, or with a single slice.
    """

    first: VersionMean
    second: VersionMean
    by: Literal["query", "request"]
    difference: float | None
    lower: float | None
    upper: float | None
    better: int
    worse: int
    unchanged: int
    shared: int | None = None
    queries: SignCounts | None = None
    at_one_time: bool = True
    together: tuple[float, float] = (1.0, 1.0)
    resolution: int = 1
    dimension: str | None = None
    common: tuple[float, float] = (1.0, 1.0)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def served(self, times: Mapping[str, tuple[int, int]], resolution: int) -> VersionComparison:
        """The comparison with serving times, [since, until) seconds, from another source."""
        known = (times.get(m.version, (None, None)) for m in (self.first, self.second))
        (since, until), (since2, until2) = known
        first, second = replace(self.first, since=since, until=until), replace(self.second, since=since2, until=until2)
        return replace(self, first=first, second=second, resolution=resolution)


def names(sample: RequestSample) -> list[str]:
    """The versions in a sample, busiest first."""
    found = Counter(sample.versions)
    return sorted(found, key=lambda version: (-found[version], version))


def in_order(sample: RequestSample, versions: Sequence[str], width: int, first: Mapping[str, int]) -> list[str]:
    """The versions, oldest first, by the bucket in which they first served, then by name (v9 before v10).

    `first` has the start of a version's first stored bucket, seconds; otherwise the sample's first is used.
    """

    def began(version: str) -> int:
        served = int(sample.of_version(version).served.min(initial=2**62))
        return first.get(version, served - served % max(width, 1))

    return sorted(versions, key=lambda version: (began(version), _natural(version)))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def mean(sample: RequestSample, version: str, width: int) -> VersionMean:
    """One version's figures. `width` of a bucket, seconds: requests in one move together."""
    part = sample.of_version(version)
    if not len(part):
        return VersionMean(version, 0, math.nan, None, None)
    level = float(part.over.sum() / part.under.sum())
    # Each request's part in the mean's error, linearised as for any ratio (Cochran 1977, 6.4).
    half = half_width(WeightedMean(part.under / part.under.sum(), part.values - level, _hours(part, width)))
    lower, upper = (None, None) if half is None else (level - half, level + half)
    read, empty = sample.empty.get(version, (None, None))
    return VersionMean(
        version, len(part), level, lower, upper, int(part.served.min()), int(part.served.max()), read, empty
    )  # fmt: skip


def compare(
    sample: RequestSample, first: str, second: str, width: int, dimension: str | None = None
) -> VersionComparison:
    """The second version against the first, within the sample's places, which are of `dimension`.

    Both have requests. `width` of a bucket, seconds.
    """
    one, other = sample.of_version(first), sample.of_version(second)
    whole = mean(sample, first, width), mean(sample, second, width)
    both = _of_both(one, other)
    where = dimension if len({*one.places, *other.places}) > 1 else None
    if not both:
        return VersionComparison(*whole, "request", None, None, None, 0, 0, 0, dimension=where, common=(0.0, 0.0))
    inside = one.in_places(both), other.in_places(both)
    common = len(inside[0]) / len(one), len(inside[1]) / len(other)
    one, other = inside
    near = _near(one, other), _near(other, one)
    together = float(near[0].mean()), float(near[1].mean())
    is_one_time = max(together) >= TOGETHER
    if is_one_time and min(together) < ALL_THE_TIME:
        one, other = _at_one_time(one.where(near[0]), other.where(near[1])) or (one, other)
    means = _of_part(whole[0], one, width), _of_part(whole[1], other, width)
    found = _found(means, one, other, width)
    return replace(found, at_one_time=is_one_time, together=together, dimension=where, common=common)


def _of_both(one: RequestSample, other: RequestSample) -> set[str]:
    """The slices that both versions served; the only slice, if there is just one, however few its requests."""
    counts = Counter(one.places), Counter(other.places)
    if len(counts[0] | counts[1]) == 1:
        return set(counts[0])
    return {place for place in counts[0] if min(counts[0][place], counts[1][place]) >= FEWEST_OF_PLACE}


def _at_one_time(one: RequestSample, other: RequestSample) -> tuple[RequestSample, RequestSample] | None:
    """The requests of both versions while both served, in slices they still share; None without such a slice."""
    both = set(one.places) & set(other.places)
    return (one.in_places(both), other.in_places(both)) if both else None


def by_place(sample: RequestSample, first: str, second: str, width: int) -> list[dict[str, Any]]:
    """The comparison in each of the busiest common slices, as JSON data, largest fall first."""
    found = []
    for place, _ in Counter(sample.places).most_common(MOST_PLACES):
        part = sample.of_place(place)
        if {first, second} <= set(part.versions):
            found.append({"slice": place, **compare(part, first, second, width).plain()})
    return sorted(found, key=lambda one: (one["difference"], one["slice"]))


def _found(
    means: tuple[VersionMean, VersionMean], one: RequestSample, other: RequestSample, width: int
) -> VersionComparison:
    has_queries = any(query is not None for query in (*one.queries, *other.queries))
    shared = _pairs(one, other) if has_queries else []
    queries = SignCounts(*_signs(np.array([apart for apart, _ in shared]))) if shared else None
    if len(shared) >= FEWEST_PAIRS:
        return replace(_paired(*means, shared), queries=queries)
    return replace(_unpaired(*means, one, other, width, len(shared) if has_queries else None), queries=queries)


def _of_part(whole: VersionMean, part: RequestSample, width: int) -> VersionMean:
    if len(part) == whole.requests:
        return whole
    some = mean(part, whole.version, width)
    return replace(whole, requests=some.requests, value=some.value, lower=some.lower, upper=some.upper)


def _near(one: RequestSample, other: RequestSample) -> NDArray[np.bool_]:
    """(n,) whether the other version served at the time of each request of the first."""
    times: Ints = np.sort(other.served)
    reach = max(NEAR, SPACINGS * float(np.median(np.diff(times)))) if len(times) > 1 else NEAR
    after = np.searchsorted(times, one.served)
    gaps = [np.abs(times[np.clip(at, 0, len(times) - 1)] - one.served) for at in (after - 1, after)]
    return np.minimum(*gaps) <= reach


# ---- by query ----------------------------------------------------------------------------------------------------


def _pairs(one: RequestSample, other: RequestSample) -> list[tuple[float, float]]:
    """(difference, weight) of each query that both got, per slice: queries differ far more than versions do."""
    rows, others = by_query_and_place(one), by_query_and_place(other)
    found = []
    for key in sorted(rows.keys() & others.keys()):
        n1, n2 = float(one.under[rows[key]].sum()), float(other.under[others[key]].sum())
        m1, m2 = float(one.over[rows[key]].sum()) / n1, float(other.over[others[key]].sum()) / n2
        # The most precise weight if requests are equally uncertain (as in Mantel and Haenszel 1959).
        found.append((m2 - m1, n1 * n2 / (n1 + n2)))
    return found


def _paired(first: VersionMean, second: VersionMean, pairs: Sequence[tuple[float, float]]) -> VersionComparison:
    apart, weight = (np.array(column) for column in zip(*pairs, strict=True))
    share = weight / weight.sum()
    difference = float((apart * share).sum())
    half = _between(apart - difference, share)
    return VersionComparison(
        first, second, "query", difference, difference - half, difference + half, *_signs(apart), len(pairs)
    )


def _between(off: Floats, share: Floats) -> float:
    """Half the 95 % interval of a weighted mean, from each query's deviation.

    A query with most of the requests hardly deviates from the mean; its square is divided by the weight left to the
    others (HC2, MacKinnon and White 1985), with fewer degrees of freedom than queries (Bell and McCaffrey 2002).

    >>> even, head = np.full(5, 0.2), np.array([0.8, 0.05, 0.05, 0.05, 0.05])
    >>> [round(_between(np.array([0.01, 0.05, -0.05, 0.05, -0.05]), share), 3) for share in (even, head)]
    [0.062, 0.236]
    """
    own = share**2 / (1 - share)
    freedom = 1 / float((share**2).sum() + own.sum() ** 2 - (own**2).sum())
    return student(freedom + 1e-9) * math.sqrt(float((own * off**2).sum()))


# ---- all against all ---------------------------------------------------------------------------------------------


def _unpaired(
    first: VersionMean, second: VersionMean, one: RequestSample, other: RequestSample, width: int, shared: int | None
) -> VersionComparison:
    places, others = np.array(one.places, object), np.array(other.places, object)
    every = float(other.under.sum())
    difference, apart = 0.0, np.zeros(len(other))
    weights, off = (np.zeros(len(one)), np.zeros(len(other))), (np.zeros(len(one)), np.zeros(len(other)))
    of_both = sorted(set(other.places))
    for place in of_both:
        at = np.flatnonzero(places == place), np.flatnonzero(others == place)
        a, b = one.where(places == place), other.where(others == place)
        levels = float(a.over.sum() / a.under.sum()), float(b.over.sum() / b.under.sum())
        # Direct standardisation: slices weigh as the second version serves them.
        share = float(b.under.sum()) / every
        difference += share * (levels[1] - levels[0])
        for i, part in enumerate((a, b)):
            weights[i][at[i]], off[i][at[i]] = share * part.under / part.under.sum(), part.values - levels[i]
        apart[at[1]] = b.values - float(np.median(a.values))
    parts = [WeightedMean(weights[i], off[i], _hours(s, width), len(of_both)) for i, s in enumerate((one, other))]
    half = half_width(parts[1], parts[0])
    lower, upper = (None, None) if half is None else (difference - half, difference + half)
    return VersionComparison(first, second, "request", difference, lower, upper, *_signs(apart), shared)


def _hours(sample: RequestSample, width: int) -> NDArray[np.int64]:
    return sample.served // max(width, 1)


def _signs(apart: Floats) -> tuple[int, int, int]:
    better, worse = int((apart > SAME).sum()), int((apart < -SAME).sum())
    return better, worse, len(apart) - better - worse
