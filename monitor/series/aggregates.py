"""Sums that a database made by itself, and how they become partials: the same as if the requests had been read."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monitor.measures.measure import Measure
from monitor.series.partials import FIELDS, TRAFFIC_FIELDS
from monitor.series.requests import Reading, Tally, admit, tally
from monitor.types import OVERALL, Slice

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Summed:
    """What a database summed up of the requests served in [since, until) seconds, in C joint cells.

    A joint cell is one bucket and one value of every dimension. No bucket of `read` has a cell.

    Attributes:
        bucket: (C,) start of each cell's bucket, seconds.
        slices: dimension -> (C,) value of each cell.
        traffic: (C, 7) as `buckets.TRAFFIC_FIELDS`; `unmatched` is left at 0.
        measures: kernel -> (C, 9) as `buckets.FIELDS`.
        refused: reason -> (C,) rows refused.
        strays: (bucket start, reason) -> refused rows that belong to no request.
        unmatched: bucket start -> events that match no impression.
        read: stretches that were read row by row instead, in the order of time.
        rows: how many rows the source sent, those of `read` aside.
        summed: how many rows the source went through, for it is they that take the time.
    """

    since: int
    until: int
    bucket: Ints
    slices: Mapping[str, Sequence[object]]
    traffic: Floats
    measures: Mapping[Measure, Floats]
    refused: Mapping[str, Ints]
    strays: Mapping[tuple[int, str], int] = field(default_factory=dict)
    unmatched: Mapping[int, int] = field(default_factory=dict)
    read: Sequence[Reading] = ()
    rows: int = 0
    summed: int = 0


Part = Reading | Summed
"""What one read of a source says of a stretch of time."""

Answer = Part | tuple[Part, ...]
"""What a source says of a stretch of time, or of its parts one after the other."""

SUMMED_AS_ONE = 20
"""Rows that a source sums up by itself take about as long as one that it sends."""


def effort(answer: Answer | Tally) -> int:
    """What it took to read this, in rows that were sent."""
    if isinstance(answer, tuple):
        return sum(map(effort, answer))
    read = answer.read if isinstance(answer, Summed) else ()
    summed = 0 if isinstance(answer, Reading) else answer.summed
    return answer.rows + summed // SUMMED_AS_ONE + sum(map(effort, read))


def tallied(
    answer: Answer, width: int, kernels: Iterable[Measure], slices: Sequence[Slice], known: Mapping[str, set[str]]
) -> Tally:
    """Partials per bucket and slice of what a source said; see `tally`."""
    if isinstance(answer, Reading):
        return tally(answer, width, kernels, slices, known)
    kernels, admitted = list(kernels), {d: set(values) for d, values in known.items()}
    if isinstance(answer, tuple):
        parts = (_learned(tallied(part, width, kernels, slices, admitted), admitted) for part in answer)
        return functools.reduce(operator.add, parts)
    found = Tally(answer.since, answer.since, measures={str(k): {} for k in kernels})
    edge = answer.since
    for reading in (*answer.read, None):
        until = answer.until if reading is None else reading.since
        if edge < until:
            found += _learned(_tally_cells(answer, edge, until, width, slices, admitted), admitted)
        if reading is not None:
            found += _learned(tally(reading, width, kernels, slices, admitted), admitted)
            edge = reading.until
    found.rows += answer.rows
    found.summed = answer.summed
    return found


def _learned(part: Tally, admitted: dict[str, set[str]]) -> Tally:
    """The same; what it admitted is known from here on."""
    for dimension, value in part.admitted:
        admitted.setdefault(dimension, set()).add(value)
    return part


def _tally_cells(
    answer: Summed, since: int, until: int, width: int, slices: Sequence[Slice], known: Mapping[str, set[str]]
) -> Tally:
    """Partials of the cells in [since, until)."""
    result = Tally(since, until, measures={str(k): {} for k in answer.measures})
    starts = range(since - since % width, until, width)
    for start in starts:
        result.traffic[(start, *OVERALL)] = np.zeros(len(TRAFFIC_FIELDS))
        for cells in result.measures.values():
            cells[(start, *OVERALL)] = np.zeros(len(FIELDS))
    here = np.flatnonzero((answer.bucket >= starts.start) & (answer.bucket < until))
    bucket = answer.bucket[here]
    _add(result, answer, here, OVERALL[0], [OVERALL[1]], np.zeros(len(here), np.int64))
    for dimension in slices:
        values = [answer.slices[dimension.dimension][i] for i in here.tolist()]
        requests = answer.traffic[here, 0]
        names, code, new = admit(values, bucket, dimension, known.get(dimension.dimension, set()), requests)
        result.admitted += [(dimension.dimension, name) for name in new]
        _add(result, answer, here, dimension.dimension, names, code)
    for start in starts:
        result.traffic[(start, *OVERALL)][TRAFFIC_FIELDS.index("unmatched")] = answer.unmatched.get(start, 0)
    for (start, reason), rows in answer.strays.items():
        if start in starts:
            key = ((start, *OVERALL), reason)
            result.refused[key] = result.refused.get(key, 0) + rows
    return result


def _add(result: Tally, answer: Summed, here: Ints, dimension: str, names: Sequence[str], code: Ints) -> None:
    """Add the joint cells `here`, each to its cell of one dimension."""
    pairs, place = np.unique(np.stack([answer.bucket[here], code]), axis=1, return_inverse=True)
    keys = [(int(start), dimension, names[number]) for start, number in pairs.T.tolist()]
    place = place.reshape(-1)
    result.traffic |= dict(zip(keys, _folded(answer.traffic[here], place, len(keys)), strict=True))
    for kernel, sums in answer.measures.items():
        result.measures[str(kernel)] |= dict(zip(keys, _folded(sums[here], place, len(keys)), strict=True))
    for reason, rows in answer.refused.items():
        counts = _folded(rows[here, None].astype(np.float64), place, len(keys))[:, 0]
        result.refused |= {(keys[i], reason): int(counts[i]) for i in np.flatnonzero(counts).tolist()}


def _folded(sums: Floats, place: Ints, size: int) -> Floats:
    """Sums of the rows that go to each place, shape (size, columns)."""
    found = np.zeros((size, sums.shape[1]))
    np.add.at(found, place, sums)
    return found
