"""What is judged: the partials of one measure by slice, step after step, with the traffic beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOUR, DAY, WEEK = 3600, 86_400, 604_800
GAP = 6 * HOUR
"""A pause after which the hours before are not the last hours any more."""


def some(flags: Bools) -> bool:
    """Whether any is true: as `any`, which for a few flags takes ten times as long."""
    return 1 in flags.tobytes()


def all_of(flags: Bools) -> bool:
    """Whether all are true: as `all`, which for a few flags takes ten times as long."""
    return 0 not in flags.tobytes()


def some_of(numbers: Ints | Floats) -> bool:
    """Whether any is other than 0."""
    return bool(np.count_nonzero(numbers))


def ratio(over: float, under: float) -> float | None:
    """One number over another; None where there is nothing to divide by."""
    return float(over / under) if under > 0 else None


@dataclass(frozen=True)
class Hours:
    """T final steps of one monitor by S slices, oldest first. A step that is not known is left out.

    The measure is read as `zero`: a request without anything relevant counts 0. Its values lie in [0, 1].

    Attributes:
        starts: (T,) rising seconds, multiples of the step.
        slices: S values of one dimension, of which each request has just one; a single one where there is no dimension.
        requests, total, squares: (T, S) requests, the sum of their values, and of the squares of these.
        labelled: (T, S) requests with a label.
        unlabelled: (T, S) requests that are not in the measure, for they have no label; 0 where these count 0.
        events, unmatched, refused: (T,) of all slices: events, those that match no impression, rows that were refused.
        shown: (T,) of all slices: items shown, down to the rank that the monitor looks at.
    """

    starts: Ints
    slices: tuple[str, ...]
    requests: Floats
    total: Floats
    squares: Floats
    labelled: Floats
    unlabelled: Floats
    events: Floats
    unmatched: Floats
    refused: Floats
    shown: Floats

    def __post_init__(self) -> None:
        """Check the shapes.

        Raises:
            ValueError: they do not fit each other, or the steps do not rise.
        """
        shape, flat = (len(self.starts), len(self.slices)), (len(self.starts),)
        by_slice = (self.requests, self.total, self.squares, self.labelled, self.unlabelled)
        if {a.shape for a in by_slice} != {shape} or {a.shape for a in self.crowd} != {flat}:
            raise ValueError(f"all sums of {shape[0]} steps by {shape[1]} slices need that shape")
        if (self.starts[1:] <= self.starts[:-1]).any():
            raise ValueError("the steps must rise")

    @property
    def served(self) -> Floats:
        """(T, S) requests that came, in the measure or not."""
        return self.requests + self.unlabelled

    @property
    def crowd(self) -> tuple[Floats, Floats, Floats, Floats]:
        """(T,) each: what is known of all slices together."""
        return self.events, self.unmatched, self.refused, self.shown

    def rows(self, since: int, until: int) -> Hours:
        """The steps with these numbers, `until` excluded."""
        at = slice(since, until)
        return Hours(
            self.starts[at],
            self.slices,
            self.requests[at],
            self.total[at],
            self.squares[at],
            self.labelled[at],
            self.unlabelled[at],
            *(a[at] for a in self.crowd),
        )

    def columns(self, names: tuple[str, ...]) -> Hours:
        """The same steps by other slices; those that are not there are zeros."""
        if names == self.slices:
            return self
        place = {name: i for i, name in enumerate(self.slices)}
        pairs = [(to, place[name]) for to, name in enumerate(names) if name in place]
        to, of = [p[0] for p in pairs], [p[1] for p in pairs]

        def picked(sums: Floats) -> Floats:
            found = np.zeros((len(self.starts), len(names)))
            found[:, to] = sums[:, of]
            return found

        return Hours(
            self.starts,
            names,
            picked(self.requests),
            picked(self.total),
            picked(self.squares),
            picked(self.labelled),
            picked(self.unlabelled),
            *self.crowd,
        )

    def blocks(self, known: tuple[str, ...], cuts: Sequence[int] = ()) -> Iterator[tuple[tuple[str, ...], Hours]]:
        """Steps of one UTC day each, cut again at gaps, at `cuts` and where a slice has its first request.

        With each of them the slices that were seen by then: however the steps are handed over, a slice is taken in by
        the same step and in the same order.
        """
        if len(self.starts) == 1 and self.slices == known:
            yield known, self
            return
        seen = known
        first = self._first_requests(known)
        apart = (np.diff(self.starts // DAY) > 0) | (np.diff(self.starts) > GAP)
        wished = np.searchsorted(self.starts, cuts).astype(int).tolist() if cuts else []
        ordered = sorted({0, len(self.starts), *wished, *(np.flatnonzero(apart) + 1).tolist(), *first.values()})
        for since, until in pairwise(ordered):
            seen += tuple(sorted(name for name, row in first.items() if row == since))
            yield seen, self.rows(since, until).columns(seen)

    def _first_requests(self, known: tuple[str, ...]) -> dict[str, int]:
        """Row of the first request of each slice that is new."""
        busy = self.served > 0
        new = [i for i, name in enumerate(self.slices) if name not in known and busy[:, i].any()]
        return {self.slices[i]: int(busy[:, i].argmax()) for i in new}
