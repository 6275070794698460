"""Windows: merged buckets, read as one number with what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core import buckets as b
from monitor.core.buckets import REQUESTS
from monitor.core.intervals import interval
from monitor.core.measures import Measure
from monitor.core.types import OVERALL

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SliceKey = tuple[str, str]
Rows = slice
"""Rows of an array that follow each other."""


@dataclass(frozen=True)
class History:
    """The stored buckets of one series, oldest first: B buckets, S slices, F fields.

    Attributes:
        starts: (B,) seconds. A bucket that was not read is absent.
        final: (B,)
        slices: S pairs (dimension, value); the first is overall.
        sums: (B, S, F); zeros where a slice had no request.
    """

    starts: Ints
    final: Bools
    slices: tuple[SliceKey, ...]
    sums: Floats

    @classmethod
    def of(cls, columns: Sequence[Sequence[Any]], fields: int) -> History:
        """From columns of rows in any order: start, final, dimension, value, and the fields."""
        start, at = np.unique(np.array(columns[0], dtype=np.int64), return_inverse=True)
        keys = list(zip(columns[2], columns[3], strict=True))
        names: tuple[SliceKey, ...] = (OVERALL, *sorted(set(keys) - {OVERALL}))
        number = {name: i for i, name in enumerate(names)}
        which = np.fromiter((number[k] for k in keys), np.int64, len(keys))
        sums = np.zeros((len(start), len(names), fields))
        if len(keys):
            sums[at, which] = np.array(columns[4:], dtype=np.float64).T
        final = np.zeros(len(start), bool)
        overall = which == 0
        final[at[overall]] = np.array(columns[1], dtype=bool)[overall]
        return cls(start, final, names, sums)

    @cached_property
    def kept(self) -> Bools:
        """(B, S) whether a bucket was read by each slice's dimension: every request has a value of each of them.

        A bucket without requests says nothing against it. A slice that had no traffic in a bucket is kept there as
        zeros, but of a dimension that was added later, older buckets know nothing.
        """
        busy = self.sums[:, :, REQUESTS] > 0
        dimensions = [dimension for dimension, _ in self.slices]
        found = np.ones(busy.shape, bool)
        for dimension in set(dimensions):
            of_it = [i for i, other in enumerate(dimensions) if other == dimension]
            found[:, of_it] = (busy[:, of_it].any(axis=1) | ~busy[:, 0])[:, None]
        return found

    def shares(self, width: int, since: int, until: int) -> Floats:
        """(S,) share of the buckets in [since, until) that were read by each slice's dimension."""
        counts: Ints = self.kept[self.rows(since, until)].sum(axis=0)
        return counts * width / (until - since)

    def rows(self, since: int, until: int) -> Rows:
        """Where the buckets that start in [since, until) stand."""
        lo, hi = np.searchsorted(self.starts, [since, until])
        return np.s_[int(lo) : int(hi)]

    def between(self, since: int, until: int) -> History:
        """The buckets that start in [since, until)."""
        rows = self.rows(since, until)
        return History(self.starts[rows], self.final[rows], self.slices, self.sums[rows])

    def after(self, earlier: History) -> History:
        """Both together; `earlier` ends before this one begins."""
        names = (OVERALL, *sorted({*self.slices, *earlier.slices} - {OVERALL}))
        parts = []
        for part in (earlier, self):
            sums = np.zeros((len(part.starts), len(names), part.sums.shape[2]))
            sums[:, [names.index(key) for key in part.slices]] = part.sums
            parts.append(sums)
        return History(
            np.concatenate([earlier.starts, self.starts]),
            np.concatenate([earlier.final, self.final]),
            names,
            np.concatenate(parts),
        )

    def slice(self, key: SliceKey) -> Floats:
        """(B, F) sums of one slice; zeros if it is unknown."""
        if key not in self.slices:
            return np.zeros((len(self.starts), self.sums.shape[2]))
        return self.sums[:, self.slices.index(key)]


@dataclass(frozen=True, slots=True)
class Point:
    """One measure over one window and slice.

    Attributes:
        end, length: seconds; the window is [end - length, end).
        value: None where there is no data.
        lower, upper: 95 % interval; None where it cannot be given.
        method: how the interval came about; see `intervals`.
        requests: with data.
        empty_ratio: share of them without a value (nothing relevant); None without requests.
        label_coverage: by the recipe's meaning; None without traffic.
        completeness: share of the window's buckets that were read, for a slice by its dimension.
        final: every bucket that was read was final.
    """

    dimension: str
    slice: str
    end: int
    length: int
    value: float | None
    lower: float | None
    upper: float | None
    method: str
    requests: int
    empty_ratio: float | None
    label_coverage: float | None
    completeness: float
    final: bool


def points(
    measure: Measure,
    history: History,
    traffic: History,
    width: int,
    length: int,
    end: int,
    keys: Sequence[SliceKey] | None = None,
    by_judgments: bool = False,
) -> list[Point]:
    """The measure over [end - length, end), for overall and each slice that had traffic.

    Args:
        history: of the measure's kernel; what lies before the window serves the interval.
        traffic: of the same monitor.
        width: of a bucket, seconds.
        keys: slices wanted; None is all.
        by_judgments: coverage is the share of judged impressions, not of requests with a label.
    """
    window, seen = history.between(end - length, end), traffic.between(end - length, end)
    shares = dict(zip(history.slices, history.shares(width, end - length, end).tolist(), strict=True))
    final = bool(window.final.all()) and len(window.starts) > 0
    found = []
    for key in history.slices if keys is None else keys:
        merged, crowd = window.slice(key).sum(axis=0), seen.slice(key).sum(axis=0)
        requests = int(merged[b.REQUESTS])
        if key != OVERALL and not crowd[0] and not requests:
            continue
        lower, upper, method = interval(measure, history.starts, history.slice(key), width, length, end)
        value = None if np.isnan(read := b.read_as(measure, merged)) else float(read)
        empty = float(merged[b.EMPTY] / requests) if requests else None
        coverage = _coverage(crowd, by_judgments)
        completeness = shares.get(key, shares[OVERALL])
        found.append(
            Point(*key, end, length, value, lower, upper, method, requests, empty, coverage, completeness, final)
        )
    return found


def _coverage(crowd: Floats, by_judgments: bool) -> float | None:
    names = ("judged", "impressions") if by_judgments else ("labelled", "requests")
    some, every = (crowd[b.TRAFFIC_FIELDS.index(n)] for n in names)
    return float(some / every) if every else None


def latest_final_end(starts: Ints, final: Bools, width: int) -> int | None:
    """End of the newest bucket that is final with every older one that was read; None if there is none.

    >>> latest_final_end(np.array([0, 10, 20]), np.array([True, True, False]), 10)
    20
    """
    settled = int(np.argmin(final)) if len(final) and not final.all() else len(final)
    return int(starts[settled - 1]) + width if settled else None
