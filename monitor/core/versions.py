"""Two model versions that served in one period, compared: by the queries that both got, else all against all.

The queries that people bring differ in how hard they are, far more than versions differ in how good they are. So where
both versions got a query, they are compared on that query, and the difference is averaged over the queries: n1 n2 /
(n1 + n2) is the weight of a query with n1 and n2 requests, by which the average is the least uncertain one if all
requests are equally so (Mantel and Haenszel 1959 weight tables this way). Its interval is from the spread of the
queries' differences. Without common queries, the difference of the means is taken, with the spread from hour to hour,
in which both versions share what the hour brings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from monitor.core.intervals import student
from monitor.core.sample import Sample, by_query

Floats = NDArray[np.float64]

FEWEST_PAIRS = 5
"""Common queries from which on two versions are compared by them."""

SAME = 1e-12
"""Differences up to here are none."""


@dataclass(frozen=True)
class Mean:
    """One version's requests; `value` over all of them, with its 95 % interval from hour to hour."""

    version: str
    requests: int
    value: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class Comparison:
    """The second version against the first.

    Attributes:
        by: what is counted as better or worse: a query that both got, by its means; or a request of the second
            version, against the median request of the first.
        difference, lower, upper: second minus first, with 95 % interval; None where there is too little to tell.
        shared: queries that both got; None where requests have no query.
    """

    first: Mean
    second: Mean
    by: Literal["query", "request"]
    difference: float
    lower: float | None
    upper: float | None
    better: int
    worse: int
    unchanged: int
    shared: int | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def names(sample: Sample) -> list[str]:
    """The versions in a sample, the one with the most requests first."""
    found: dict[str, int] = {}
    for version in sample.versions:
        found[version] = found.get(version, 0) + 1
    return sorted(found, key=lambda version: (-found[version], version))


def in_order(sample: Sample, versions: Sequence[str]) -> list[str]:
    """The versions by when they first served: what is older comes first."""
    first = {v: int(sample.of_version(v).served.min(initial=2**62)) for v in versions}
    return sorted(versions, key=lambda version: (first[version], version))


def mean(sample: Sample, version: str, width: int) -> Mean:
    """One version's own figures. `width` is that of a bucket, seconds; what falls into one moves together."""
    part = sample.of_version(version)
    if not len(part):
        return Mean(version, 0, math.nan, None, None)
    level = float(part.over.sum() / part.under.sum())
    lower, upper = _around(level, _residuals(part, level), _hours(part, width))
    return Mean(version, len(part), level, lower, upper)


def compare(sample: Sample, first: str, second: str, width: int) -> Comparison:
    """The second version against the first, both of which have requests in the sample.

    Raises:
        ValueError: one of them has none.
    """
    one, other = sample.of_version(first), sample.of_version(second)
    for version, part in ((first, one), (second, other)):
        if not len(part):
            raise ValueError(f"version {version} has no request in this period")
    means = mean(sample, first, width), mean(sample, second, width)
    has_queries = any(query is not None for query in sample.queries)
    shared = _pairs(one, other) if has_queries else []
    if len(shared) >= FEWEST_PAIRS:
        return _paired(*means, shared)
    return _unpaired(*means, one, other, width, len(shared) if has_queries else None)


# ---- by query ----------------------------------------------------------------------------------------------------


def _pairs(one: Sample, other: Sample) -> list[tuple[float, float]]:
    """(difference, weight) of each query that both got."""
    rows, others = by_query(one), by_query(other)
    found = []
    for query in sorted(rows.keys() & others.keys()):
        n1, n2 = float(one.under[rows[query]].sum()), float(other.under[others[query]].sum())
        m1, m2 = float(one.over[rows[query]].sum()) / n1, float(other.over[others[query]].sum()) / n2
        found.append((m2 - m1, n1 * n2 / (n1 + n2)))
    return found


def _paired(first: Mean, second: Mean, pairs: Sequence[tuple[float, float]]) -> Comparison:
    apart, weight = (np.array(column) for column in zip(*pairs, strict=True))
    difference = float((apart * weight).sum() / weight.sum())
    lower, upper = _around(difference, weight * (apart - difference) / weight.sum(), np.arange(len(apart)))
    return Comparison(first, second, "query", difference, lower, upper, *_signs(apart), len(pairs))


# ---- all against all ---------------------------------------------------------------------------------------------


def _unpaired(first: Mean, second: Mean, one: Sample, other: Sample, width: int, shared: int | None) -> Comparison:
    difference = second.value - first.value
    parts = np.concatenate([-_residuals(one, first.value), _residuals(other, second.value)])
    hours = np.concatenate([_hours(one, width), _hours(other, width)])
    lower, upper = _around(difference, parts, hours)
    apart = other.values - float(np.median(one.values))
    return Comparison(first, second, "request", difference, lower, upper, *_signs(apart), shared)


def _residuals(sample: Sample, level: float) -> Floats:
    """What each request adds to the error of the mean, linearised as for any ratio (Cochran 1977, 6.4)."""
    found: Floats = (sample.over - level * sample.under) / sample.under.sum()
    return found


def _hours(sample: Sample, width: int) -> NDArray[np.int64]:
    return sample.served // max(width, 1)


def _signs(apart: Floats) -> tuple[int, int, int]:
    better, worse = int((apart > SAME).sum()), int((apart < -SAME).sum())
    return better, worse, len(apart) - better - worse


def _around(level: float, residuals: Floats, group: NDArray[np.int64]) -> tuple[float | None, float | None]:
    """95 % interval of what is the sum of residuals off, where those of one group move together.

    Of a single group, its members are taken for groups of their own; of a single member there is no interval.
    """
    _, number = np.unique(group, return_inverse=True)
    sums = np.bincount(number, residuals) if number.max(initial=0) > 0 else residuals
    if len(sums) < 2:
        return None, None
    half = student(len(sums) - 1) * math.sqrt(float((sums**2).sum()) * len(sums) / (len(sums) - 1))
    return level - half, level + half
