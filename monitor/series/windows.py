"""Windows: merged buckets, read as one number with its basis."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.measures.measure import Measure
from monitor.series import partials as b
from monitor.series.intervals import with_basis
from monitor.series.partials import REQUESTS
from monitor.types import OVERALL

SliceKey = tuple[str, str]
Rows = slice
"""A range of rows."""


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
        """A history from columns of rows in any order: start, final, dimension, value, and the fields."""
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
        """(B, S) whether a bucket was read by each slice's dimension: all its requests have a value of it.

        Buckets without requests count as read. A slice without traffic has zeros, but buckets older than a dimension
        know nothing of it.
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
        """Range of the buckets that start in [since, until)."""
        lo, hi = np.searchsorted(self.starts, [since, until])
        return np.s_[int(lo) : int(hi)]

    def has_any(self, since: Ints, until: Ints) -> Bools:
        """(N,) whether any bucket starts in [since, until), for N spans."""
        found: Bools = np.searchsorted(self.starts, since) < np.searchsorted(self.starts, until)
        return found

    def between(self, since: int, until: int) -> History:
        """The buckets that start in [since, until)."""
        rows = self.rows(since, until)
        return History(self.starts[rows], self.final[rows], self.slices, self.sums[rows])

    def without(self, ends: Collection[int], step: int) -> History:
        """Without the buckets of the steps with these ends, seconds; a step has one or more buckets."""
        kept = ~np.isin(self.starts - self.starts % step + step, list(ends))
        return History(self.starts[kept], self.final[kept], self.slices, self.sums[kept])

    def spread(self, seconds: int, width: int) -> History:
        """Buckets of `seconds` as ones of `width`: the first of each holds everything, the others count as read.

        Windows that cut no long bucket stay the same, and so do intervals from whole days.
        """
        parts = seconds // width
        sums = np.zeros((len(self.starts) * parts, *self.sums.shape[1:]))
        sums[::parts] = self.sums
        starts = (self.starts[:, None] + np.arange(parts) * width).ravel()
        found = History(starts, np.repeat(self.final, parts), self.slices, sums)
        vars(found)["kept"] = np.repeat(self.kept, parts, axis=0)
        return found

    def after(self, earlier: History) -> History:
        """Both histories; `earlier` ends before this one begins."""
        return merged_in_time([earlier, self])

    def including(self, keys: Sequence[SliceKey]) -> History:
        """This history with these slices added, even if they had no request."""
        if set(keys) <= set(self.slices):
            return self
        nothing = np.zeros((0, 1 + len(keys), self.sums.shape[2]))
        return self.after(History(self.starts[:0], self.final[:0], (OVERALL, *keys), nothing))

    def columns(self, keys: Sequence[SliceKey]) -> Floats:
        """(B, K, F) sums of some slices; zeros for unknown ones."""
        if tuple(keys) == self.slices:
            return self.sums
        place = {key: i for i, key in enumerate(self.slices)}
        if len(keys) == 1 and keys[0] in place:
            return self.sums[:, place[keys[0]], None]
        found = np.zeros((len(self.starts), len(keys), self.sums.shape[2]))
        for to, key in enumerate(keys):
            if key in place:
                found[:, to] = self.sums[:, place[key]]
        return found

    def slice(self, key: SliceKey) -> Floats:
        """(B, F) sums of one slice; zeros if unknown."""
        if key not in self.slices:
            return np.zeros((len(self.starts), self.sums.shape[2]))
        return self.sums[:, self.slices.index(key)]

    def began(self, key: SliceKey) -> int | None:
        """Start of a slice's first bucket with requests, seconds; None if that is the oldest of all, or if unknown."""
        first = int(np.argmax(self.slice(key)[:, REQUESTS] > 0)) if len(self.starts) else 0
        return int(self.starts[first]) if first else None


def merged_in_time(parts: Sequence[History]) -> History:
    """Histories of different buckets of one series merged, each bucket read by the dimensions of its own history."""
    names = (OVERALL, *sorted({key for part in parts for key in part.slices} - {OVERALL}))
    order = np.argsort(starts := np.concatenate([part.starts for part in parts]), kind="stable")
    found = History(
        starts[order],
        np.concatenate([part.final for part in parts])[order],
        names,
        np.concatenate([part.columns(names) for part in parts])[order],
    )
    vars(found)["kept"] = np.concatenate([_kept_of(part, names) for part in parts])[order]
    return found


def _kept_of(part: History, names: Sequence[SliceKey]) -> Bools:
    """(B, S) whether a bucket was read by each slice's dimension, unknown dimensions as without them."""
    place = {key: i for i, key in enumerate(part.slices)}
    of_dimension = {key[0]: i for i, key in enumerate(part.slices)}
    idle = part.sums[:, 0, REQUESTS] <= 0
    columns = [part.kept[:, at] if (at := place.get(n, of_dimension.get(n[0]))) is not None else idle for n in names]
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class Point:
    """One measure over one window and slice.

    Attributes:
        end, length: seconds; the window is [end - length, end).
        value: None without data.
        lower, upper: 95 % interval; None if unknown.
        method: how the interval was made; see `intervals`.
        empty_ratio: share of the requests with data in which nothing was relevant; None without any, and of measures
            that do not tell this, such as ctr.
        label_coverage: by the recipe's meaning; None without traffic.
        completeness: share of the window's buckets that were read, for a slice by its dimension.
        final: whether all read buckets were final.
        effective: effective sample size, of a measure corrected by examination; see `partials.effective`.
        basis: what the interval rests on: days of the window, windows before it, or requests; see `intervals`.
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
    basis: int = 0
    effective: float | None = None


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
    """The measure over [end - length, end), for overall and each slice with traffic.

    Args:
        history: of the measure's kernel; buckets before the window serve the interval.
        width: of a bucket, seconds.
        keys: slices wanted; None is all.
        by_judgments: coverage is the share of judged impressions, not of requests with a label.
    """
    window, seen = history.between(end - length, end), traffic.between(end - length, end)
    shares = dict(zip(history.slices, history.shares(width, end - length, end).tolist(), strict=True))
    final = bool(window.final.all()) and len(window.starts) > 0
    inside, crowd = window.sums.sum(axis=0), dict(zip(seen.slices, seen.sums.sum(axis=0), strict=True))
    merged = dict(zip(window.slices, inside, strict=True))
    none, no_traffic = np.zeros(history.sums.shape[2]), np.zeros(traffic.sums.shape[2])
    asked = [
        key
        for key in (history.slices if keys is None else keys)
        if key == OVERALL or crowd.get(key, no_traffic)[0] or merged.get(key, none)[b.REQUESTS]
    ]
    columns = history.columns(asked)
    bounds = with_basis(measure, history.starts, columns, width, length, end)
    has_weights = measure.is_corrected and measure.aggregate == measure.spec.aggregate
    values = b.read_as(measure, np.array([merged.get(key, none) for key in asked]).reshape(len(asked), len(none)))
    shown = []
    for key, value, ((lower, upper, method), basis) in zip(asked, values.tolist(), bounds, strict=True):
        requests, empty = (int(number) for number in merged.get(key, none)[[b.REQUESTS, b.EMPTY]])
        shown.append(
            Point(
                *key,
                end,
                length,
                None if np.isnan(value) else value,
                lower,
                upper,
                method,
                requests,
                empty / requests if requests and measure.tells_irrelevant else None,
                _coverage(crowd.get(key, no_traffic), by_judgments),
                shares.get(key, shares[OVERALL]),
                final,
                basis,
                float(b.effective(measure, merged.get(key, none))) if has_weights else None,
            )
        )
    return shown


def _coverage(crowd: Floats, by_judgments: bool) -> float | None:
    some, every = b.label_coverage(crowd, by_judgments)
    return float(some / every) if every else None


def latest_final_end(starts: Ints, final: Bools, width: int) -> int | None:
    """End of the newest bucket that is final along with all older ones; None without one.

    >>> latest_final_end(np.array([0, 10, 20]), np.array([True, True, False]), 10)
    20
    """
    settled = int(np.argmin(final)) if len(final) and not final.all() else len(final)
    return int(starts[settled - 1]) + width if settled else None
