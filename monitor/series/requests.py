"""From one read of the source to partials per bucket and slice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from monitor.measures.kernels import Rankings, score
from monitor.measures.measure import Measure
from monitor.measures.relevance import Refusals
from monitor.series.partials import TRAFFIC_FIELDS, count, sums
from monitor.types import EMPTY, MIXED, NONE, OTHER, OVERALL, Slice

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MICROS = 1_000_000
LONGEST_VALUE = 120
RESERVED = {NONE, EMPTY, MIXED, OTHER}


@dataclass(frozen=True)
class Reading:
    """What the source held of the requests served in [since, until), R of them.

    Attributes:
        since, until: seconds.
        served: (R,) microseconds, time of each request's earliest row.
        rankings: the graded rows.
        limited: the same for the kernels that cannot take all of their grades.
        ids: (R,) of each request, as the source has it; empty where what read them tells none.
        impressions, judged, events: (R,) items shown within the depth, those with a label, events that count.
        labelled: (R,) whether the request has a label by the recipe's own meaning.
        no_results: (R,) whether its list was empty.
        slices: dimension -> (R,) value of each request.
        refusals: refused rows by reason and request.
        strays: reason -> microseconds of the refused rows that belong to no request.
        unmatched: microseconds of the events that match no impression.
        rows: how many rows the source sent.
        fingerprint: of the judgments that were used, sixteen hexadecimal digits; empty for other recipes.
    """

    since: int
    until: int
    served: Ints
    rankings: Rankings
    impressions: Ints
    judged: Ints
    events: Ints
    labelled: Bools
    no_results: Bools
    slices: Mapping[str, Sequence[object]]
    refusals: Refusals
    strays: Mapping[str, Ints] = field(default_factory=dict)
    unmatched: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    rows: int = 0
    fingerprint: str = ""
    limited: Mapping[Measure, Rankings] = field(default_factory=dict)
    ids: Sequence[object] = ()

    def taken_by(self, kernel: Measure) -> Rankings:
        """The graded rows that a kernel can take. What others can take does not matter to it."""
        return self.limited.get(kernel, self.rankings)


Cell = tuple[int, str, str]
"""(bucket start, dimension, value) of one row of partials."""


@dataclass
class Tally:
    """Partials of the buckets in [since, until).

    Attributes:
        traffic: cell -> (7,) as `buckets.TRAFFIC_FIELDS`. Every bucket has a row for overall, of zeros if need be.
        measures: kernel text -> cell -> (9,) as `buckets.FIELDS`.
        refused: (cell, reason) -> rows.
        admitted: slice values that are new, in the order in which they were admitted.
        rows, summed: how many rows the source sent, and how many more it went through to sum them up by itself.
    """

    since: int
    until: int
    traffic: dict[Cell, Floats] = field(default_factory=dict)
    measures: dict[str, dict[Cell, Floats]] = field(default_factory=dict)
    refused: dict[tuple[Cell, str], int] = field(default_factory=dict)
    admitted: list[tuple[str, str]] = field(default_factory=list)
    fingerprint: str = ""
    rows: int = 0
    summed: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Both together; their requests must be disjoint."""
        kernels = {k: merged(self.measures[k], other.measures[k]) for k in self.measures}
        refused = dict(self.refused)
        for key, rows in other.refused.items():
            refused[key] = refused.get(key, 0) + rows
        return Tally(
            min(self.since, other.since),
            max(self.until, other.until),
            merged(self.traffic, other.traffic),
            kernels,
            refused,
            list(dict.fromkeys(self.admitted + other.admitted)),
            added_fingerprints(self.fingerprint, other.fingerprint),
            self.rows + other.rows,
            self.summed + other.summed,
        )


def added_fingerprints(one: str, other: str) -> str:
    """The fingerprint of what both are of."""
    if not (one and other):
        return one or other
    return f"{(int(one, 16) + int(other, 16)) % 2**64:016x}"


def merged(one: Mapping[Cell, Floats], other: Mapping[Cell, Floats]) -> dict[Cell, Floats]:
    """Sums of both by cell."""
    both = dict(one)
    for cell, partial in other.items():
        both[cell] = both[cell] + partial if cell in both else partial
    return both


def tally(
    reading: Reading, width: int, kernels: Iterable[Measure], slices: Sequence[Slice], known: Mapping[str, set[str]]
) -> Tally:
    """Partials per bucket and slice of what was read.

    Args:
        width: of a bucket, in seconds. Buckets that `reading` covers in part are fine: partials add up.
        kernels: the measures to compute.
        slices: the dimensions, each with its cap.
        known: dimension -> values admitted before.
    """
    first = reading.since // width
    bucket = reading.served // (width * MICROS) - first
    total = -(-reading.until // width) - first
    result = Tally(reading.since, reading.until, fingerprint=reading.fingerprint, rows=reading.rows)
    cells = _Cells(first * width, width, total)
    groups = [(OVERALL[0], bucket, cells.of(OVERALL[0], [OVERALL[1]]))]
    for dimension in slices:
        values = reading.slices[dimension.dimension]
        names, code, new = admit(values, bucket, dimension, known.get(dimension.dimension, set()))
        result.admitted += [(dimension.dimension, v) for v in new]
        groups.append((dimension.dimension, bucket * len(names) + code, cells.of(dimension.dimension, names)))
    ranked = {k: reading.taken_by(k) for k in kernels}
    scores = {k: score(k, rankings) for k, rankings in ranked.items()}
    for dimension_name, cell, keys in groups:
        traffic = _traffic(reading, cell, len(keys))
        if dimension_name == OVERALL[0]:
            traffic[:, TRAFFIC_FIELDS.index("unmatched")] = _by_bucket(reading.unmatched, first, width, total)
        kept = np.flatnonzero((traffic[:, 0] > 0) | (dimension_name == OVERALL[0])).tolist()
        result.traffic |= {keys[i]: traffic[i] for i in kept}
        for kernel, scored in scores.items():
            partials = sums(scored, ranked[kernel].sampled, cell, len(keys))
            result.measures.setdefault(str(kernel), {}).update({keys[i]: partials[i] for i in kept})
        _count_refused(result, reading, cell, keys)
    _count_strays(result, reading, first, width, total)
    return result


@dataclass(frozen=True)
class _Cells:
    start: int
    width: int
    buckets: int

    def of(self, dimension: str, names: Sequence[str]) -> list[Cell]:
        starts = (self.start + i * self.width for i in range(self.buckets))
        return [(start, dimension, name) for start in starts for name in names]


def _traffic(reading: Reading, cell: Ints, cells: int) -> Floats:
    columns = [None, reading.labelled, reading.impressions, reading.judged, reading.events]
    counted = [count(cell, c, cells) for c in columns]
    return np.stack([*counted, np.zeros(cells), count(cell, reading.no_results, cells)], axis=1)


def _by_bucket(micros: Ints, first: int, width: int, total: int) -> Floats:
    return count(micros // (width * MICROS) - first, None, total)


def _count_refused(result: Tally, reading: Reading, cell: Ints, keys: Sequence[Cell]) -> None:
    for reason, rows in reading.refusals.counts.items():
        refused = count(cell, rows, len(keys))
        result.refused |= {(keys[i], reason): int(refused[i]) for i in np.flatnonzero(refused).tolist()}


def _count_strays(result: Tally, reading: Reading, first: int, width: int, total: int) -> None:
    for reason, micros in reading.strays.items():
        rows = _by_bucket(micros, first, width, total)
        for i in np.flatnonzero(rows):
            key = (((first + int(i)) * width, *OVERALL), reason)
            result.refused[key] = result.refused.get(key, 0) + int(rows[i])


def named(value: object) -> str:
    """A slice value as it is stored and shown: what no UTF-8 can hold is escaped, what is too long is among others."""
    if value is None:
        return NONE
    # As databases write it: Python has 0E-10 for a zero with ten decimals.
    text = format(value, "f") if isinstance(value, Decimal) else str(value) or EMPTY
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_VALUE and "\x00" not in text else OTHER


def admit(
    values: Sequence[object], bucket: Ints, dimension: Slice, known: set[str], requests: Floats | None = None
) -> tuple[list[str], Ints, list[str]]:
    """(names, code of each value's name, newly admitted names), of the requests of some buckets.

    Args:
        values, bucket: (n,) of each request, or of each group of requests.
        requests: (n,) how many there are of each; 1 without it.

    Values are admitted bucket by bucket, the busier first, so that the outcome does not depend on how many buckets
    were read at once. Missing, empty and mixed values have a name of their own, which takes nobody's place.
    """
    texts = [named(v) for v in values]
    names = sorted({*texts, OTHER})
    number = {name: i for i, name in enumerate(names)}
    code = np.fromiter((number[text] for text in texts), np.int64, len(texts))
    allowed, new = known | RESERVED, []
    for one in np.unique(bucket) if not allowed.issuperset(names) else ():
        here = bucket == one
        seen = np.bincount(code[here], None if requests is None else requests[here], minlength=len(names))
        for i in sorted(np.flatnonzero(seen), key=lambda i: (-seen[i], names[i])):
            if names[i] not in allowed and len(allowed - RESERVED) < dimension.max_values:
                allowed.add(names[i])
                new.append(names[i])
    final = [name for name in names if name in allowed]
    place = {name: i for i, name in enumerate(final)}
    return final, np.array([place.get(name, place[OTHER]) for name in names], np.int64)[code], new
