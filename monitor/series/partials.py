"""Partials: the sums a bucket keeps of a measure, how they merge and become a value, and how a read becomes them.

Partials are arrays whose last axis is `FIELDS`; those of disjoint requests merge by `+`, and zeros change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial, reduce
from operator import add
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools as Bools
from monitor.arrays import Floats as Floats
from monitor.arrays import Ints as Ints
from monitor.measures.kernels import Scores, parts_of, score
from monitor.measures.measure import Aggregate, Empty, Measure
from monitor.series.readings import MICROS, SUMMED_AS_ONE, Aggregates, Answer, Reading, added_fingerprints
from monitor.types import EMPTY as EMPTY_VALUE
from monitor.types import MIXED, NONE, OTHER, OVERALL, Slice

FIELDS = (
    "requests",
    "empty",
    "total",
    "squares",
    "numerator",
    "denominator",
    "numerator_squares",
    "denominator_squares",
    "products",
)
"""Of one measure: requests with data, those of them without a value, sum and sum of squares of the other requests'
values, and sums, squares and cross products of numerator and denominator for the pooled reading."""

TRAFFIC_FIELDS = ("requests", "labelled", "impressions", "judged", "events", "unmatched", "no_results", "rank_one")
"""Of the traffic: requests, those with a label, items shown within the depth, those of them with a label, events that
count, events that match no impression (by their own time, overall only), requests without results, and items at
rank 1."""

REQUESTS, EMPTY, TOTAL, SQUARES, NUM, DEN, NUM2, DEN2, NUM_DEN = range(len(FIELDS))
_, LABELLED, IMPRESSIONS, JUDGED, EVENTS, UNMATCHED, NO_RESULTS, RANK_ONE = range(len(TRAFFIC_FIELDS))
"""Indexes into `FIELDS` and `TRAFFIC_FIELDS`; `REQUESTS` is 0 in both."""


def bucket_of(instant: int, width: int) -> int:
    """Start of the bucket that holds `instant`; both in seconds.

    >>> bucket_of(7199, 3600)
    3600
    """
    return instant - instant % width


def starts(since: int, until: int, width: int) -> range:
    """Starts of the whole buckets in [since, until).

    >>> list(starts(1, 10801, 3600))
    [3600, 7200]
    """
    return range(-(-since // width) * width, until - width + 1, width)


def sums(scores: Scores, sampled: Bools, cell: Ints, cells: int) -> Floats:
    """Partials of each cell, shape (cells, 9), of the requests in it.

    Args:
        scores: per request, shape (n,).
        sampled: (n,) requests that are data; others are left out.
        cell: (n,) from 0 to cells - 1.
    """
    kept = np.flatnonzero(sampled)
    value = np.where(scores.empty[kept], 0.0, scores.value[kept])
    num, den = scores.numerator[kept], scores.denominator[kept]
    columns = [None, scores.empty[kept], value, value**2, num, den, num**2, den**2, num * den]
    return np.stack([count(cell[kept], c, cells) for c in columns], axis=1)


def count(cell: Ints, weight: NDArray[np.generic] | None, cells: int) -> Floats:
    """Sum of `weight` (None: 1 each) over each cell, shape (cells,)."""
    weights = None if weight is None else weight.astype(np.float64, copy=False)
    return np.bincount(cell, weights=weights, minlength=cells).astype(np.float64, copy=False)


def value(partials: Floats, aggregate: Aggregate, empty: Empty) -> Floats:
    """The value of partials, shape (...,); nan without data.

    >>> p = np.array([4, 1, 1.5, 0, 3, 6, 0, 0, 0])
    >>> [float(value(p, "mean", e)) for e in ("skip", "zero", "one")] + [float(value(p, "pooled", "skip"))]
    [0.5, 0.375, 0.625, 0.5]
    """
    over, under = parts(partials, aggregate, empty)
    number: Floats = np.divide(over, under, out=np.full(over.shape, np.nan), where=under > 0)
    return number


def gain(partials: Floats) -> Floats:
    """What is found, shape (...,), of a measure that divides it by what could be; else 0."""
    return np.where(partials[..., DEN] > 0, partials[..., NUM], 0.0)


def effective(measure: Measure, partials: Floats) -> Floats:
    """Effective sample size of a measure corrected by examination, shape (...,); 0 without any gain.

    (sum of weights)^2 / sum of their squares (Kish 1965): as many of equal weight would tell as much. A weight is what
    an item adds, or, where sums of requests are divided, what a request adds to the divisor.
    """
    weights, squares = (DEN, DEN2) if measure.spec.aggregate == "pooled" else (TOTAL, NUM)
    under = partials[..., squares]
    return np.divide(partials[..., weights] ** 2, under, out=np.zeros_like(under), where=under > 0)


def parts(partials: Floats, aggregate: Aggregate, empty: Empty) -> tuple[Floats, Floats]:
    """(what is divided, what it is divided by) in this reading, shape (...,) each."""
    if aggregate == "pooled":
        return partials[..., NUM], partials[..., DEN]
    requests = partials[..., REQUESTS]
    if empty == "skip":
        return partials[..., TOTAL], requests - partials[..., EMPTY]
    return partials[..., TOTAL] + (partials[..., EMPTY] if empty == "one" else 0.0), requests


def sampling_variance(partials: Floats, aggregate: Aggregate, empty: Empty, level: Floats) -> Floats:
    """Variance of `parts`' numerator about `level` times its denominator if requests were independent, shape (...,).

    The sum over requests of (numerator - level * denominator)^2, linearised as for any ratio (Cochran 1977, 6.4).
    """
    if aggregate == "pooled":
        p = partials
        spread = p[..., NUM2] - 2 * level * p[..., NUM_DEN] + level**2 * p[..., DEN2]
    else:
        over, under = parts(partials, aggregate, empty)
        squares = partials[..., SQUARES] + (partials[..., EMPTY] if empty == "one" else 0.0)
        spread = squares - 2 * level * over + level**2 * under
    return np.maximum(spread, 0.0)


def read_as(measure: Measure, partials: Floats) -> Floats:
    """`value` in the measure's own reading."""
    return value(partials, measure.aggregate, measure.empty)


def with_results(traffic: Floats) -> Floats:
    """Requests that showed something, of (..., 8) traffic sums, shape (...,): only these can get a label."""
    found: Floats = traffic[..., REQUESTS] - traffic[..., NO_RESULTS]
    return found


def without_rank_one(traffic: Floats) -> int:
    """Requests that showed something, but nothing at rank 1, by (8,) traffic sums."""
    return max(0, round(float(with_results(traffic) - traffic[RANK_ONE])))


def without_results(traffic: Floats) -> float:
    """Share of requests that showed nothing, by (8,) traffic sums; 0 without requests."""
    return float(1 - with_results(traffic) / traffic[REQUESTS]) if traffic[REQUESTS] else 0.0


def label_coverage(traffic: Floats, by_judgments: bool) -> tuple[Floats, Floats]:
    """(numerator, denominator) of the label coverage, of (..., 8) traffic sums, shape (...,).

    Args:
        by_judgments: the share of judged impressions, not of requests with a label.
    """
    labelled, impressions, judged = (traffic[..., i] for i in (LABELLED, IMPRESSIONS, JUDGED))
    return (judged, impressions) if by_judgments else (labelled, with_results(traffic))


def events_per_request(traffic: Floats) -> float | None:
    """Events per request with results, by (8,) traffic sums, unmatched ones included; None without requests.

    For a slice only matched events count: the others cannot be assigned.

    >>> events_per_request(np.array([12, 4, 50, 0, 6, 2, 2, 10])), events_per_request(np.zeros(8))
    (0.8, None)
    """
    requests, (events, unmatched) = float(with_results(traffic)), map(float, traffic[[EVENTS, UNMATCHED]])
    return (events + unmatched) / requests if requests else None


def unmatched_share(traffic: Floats) -> float | None:
    """Share of events that match no impression, by (8,) traffic sums; None without events."""
    events, unmatched = map(float, traffic[[EVENTS, UNMATCHED]])
    return unmatched / (events + unmatched) if events + unmatched else None


def runs(instants: list[int], width: int, most: int) -> Iterator[tuple[int, int]]:
    """[start, end) of runs of adjacent buckets, at most `most` buckets each.

    >>> list(runs([0, 10, 20, 50], 10, 2))
    [(0, 20), (20, 30), (50, 60)]
    """
    start = end = None
    for instant in instants:
        if end == instant and start is not None and instant - start < most * width:
            end = instant + width
            continue
        if start is not None and end is not None:
            yield start, end
        start, end = instant, instant + width
    if start is not None and end is not None:
        yield start, end


Cell = tuple[int, str, str]
"""(bucket start, dimension, value) of one row of partials."""

LONGEST_VALUE = 120
RESERVED = {NONE, EMPTY_VALUE, MIXED, OTHER}


@dataclass
class Partials:
    """Partials of the buckets in [since, until).

    Attributes:
        traffic: cell -> (8,) as `TRAFFIC_FIELDS`. Every bucket has a row for overall, zeros if need be.
        measures: kernel text -> cell -> (9,) as `FIELDS`.
        refused: (cell, reason) -> rows.
        admitted: new slice values, in order of admission.
        rows, summed: rows the source sent, and rows it aggregated itself.
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

    def __add__(self, other: Partials) -> Partials:
        """The sum of both; their requests must be disjoint."""
        return Partials(
            min(self.since, other.since),
            max(self.until, other.until),
            _merged(self.traffic, other.traffic),
            {k: _merged(self.measures[k], other.measures[k]) for k in self.measures},
            _merged(self.refused, other.refused),
            list(dict.fromkeys(self.admitted + other.admitted)),
            added_fingerprints(self.fingerprint, other.fingerprint),
            self.rows + other.rows,
            self.summed + other.summed,
        )


def _merged(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    return {**one, **{key: one[key] + more if key in one else more for key, more in other.items()}}


def effort(answer: Answer | Partials) -> int:
    """The cost of a read, in rows sent."""
    if isinstance(answer, tuple):
        return sum(map(effort, answer))
    read = answer.read if isinstance(answer, Aggregates) else ()
    summed = 0 if isinstance(answer, Reading) else answer.summed
    return answer.rows + summed // SUMMED_AS_ONE + sum(map(effort, read))


def to_partials(
    answer: Answer, width: int, kernels: Iterable[Measure], slices: Sequence[Slice], known: Mapping[str, set[str]]
) -> Partials:
    """Partials per bucket and slice of a source's answer.

    Args:
        width: of a bucket, in seconds. Partly covered buckets are fine: partials add up.
        slices: the dimensions, each with its cap.
        known: dimension -> values admitted before.
    """
    kernels, admitted = list(kernels), {d: set(values) for d, values in known.items()}

    def folded(read: _Read, since: int, until: int) -> Partials:
        part = _fold(read, since, until, width, slices, admitted)
        for dimension, value in part.admitted:
            admitted.setdefault(dimension, set()).add(value)
        return part

    def to_parts(one: Answer) -> Iterator[Partials]:
        if isinstance(one, tuple):
            for part in one:
                yield from to_parts(part)
        elif isinstance(one, Reading):
            yield folded(_read_of_requests(one, width, kernels), one.since, one.until)
        else:
            edge = one.since
            for reading in one.read:
                if edge < reading.since:
                    yield folded(_read_of_cells(one, kernels, edge, reading.since, width), edge, reading.since)
                yield from to_parts(reading)
                edge = reading.until
            if edge < one.until:
                yield folded(_read_of_cells(one, kernels, edge, one.until, width), edge, one.until)
            yield Partials(one.since, one.since, {}, {str(k): {} for k in kernels}, rows=one.rows, summed=one.summed)

    return reduce(add, to_parts(answer))


@dataclass(frozen=True)
class _Read:
    """N requests, or joint cells of them, to fold into cells: (N,) bucket starts (seconds), counts and refused rows."""

    start: Ints
    requests: Floats | None
    slices: Mapping[str, Sequence[object]]
    traffic: Callable[[Ints, int], Floats]
    measures: Mapping[str, Callable[[Ints, int], Floats]]
    refused: Mapping[str, Ints]
    strays: Mapping[tuple[int, str], int]
    unmatched: Mapping[int, int]
    fingerprint: str = ""
    rows: int = 0


def _read_of_requests(reading: Reading, width: int, kernels: Sequence[Measure]) -> _Read:
    def by_start(micros: Ints) -> dict[int, int]:
        starts, numbers = np.unique(micros // (width * MICROS) * width, return_counts=True)
        return dict(zip(starts.tolist(), numbers.tolist(), strict=True))

    def traffic(cell: Ints, cells: int) -> Floats:
        columns = [None, reading.labelled, reading.impressions, reading.judged, reading.events]
        counted = [count(cell, c, cells) for c in columns]
        more = [count(cell, c, cells) for c in (reading.no_results, reading.rank_one)]
        return np.stack([*counted, np.zeros(cells), *more], axis=1)

    ranked = {k: reading.taken_by(k) for k in kernels}
    return _Read(
        reading.served // (width * MICROS) * width,
        None,
        reading.slices,
        traffic,
        {str(k): partial(sums, score(k, rankings), rankings.sampled) for k, rankings in ranked.items()},
        reading.refusals.counts,
        {(start, reason): n for reason, at in reading.strays.items() for start, n in by_start(at).items()},
        by_start(reading.unmatched),
        reading.fingerprint,
        reading.rows,
    )


def _read_of_cells(answer: Aggregates, kernels: Sequence[Measure], since: int, until: int, width: int) -> _Read:
    starts = range(since - since % width, until, width)
    here = np.flatnonzero((answer.bucket >= starts.start) & (answer.bucket < until))

    def folding(columns: Floats) -> Callable[[Ints, int], Floats]:
        return lambda cell, cells: np.stack([count(cell, column, cells) for column in columns[here].T], axis=1)

    return _Read(
        answer.bucket[here],
        answer.traffic[here, 0],
        {dimension: [values[i] for i in here.tolist()] for dimension, values in answer.slices.items()},
        folding(answer.traffic),
        {str(k): folding(_by_slice(answer, k) if k.by_slice else answer.measures[k]) for k in kernels},
        {reason: rows[here] for reason, rows in answer.refused.items()},
        {key: rows for key, rows in answer.strays.items() if key[0] in starts},
        {start: rows for start, rows in answer.unmatched.items() if start in starts},
    )


def _by_slice(answer: Aggregates, kernel: Measure) -> Floats:
    """(C, 9) sums of a measure with an examination by slice: a cell has one value of each dimension."""
    slices = {kernel.dimension: stored_names(answer.slices[kernel.dimension])}
    parts, place = np.stack([answer.measures[part] for part in kernel.parts]), parts_of(kernel, slices)
    return np.asarray(parts[place, np.arange(len(place))])


def _fold(
    read: _Read, since: int, until: int, width: int, slices: Sequence[Slice], known: Mapping[str, set[str]]
) -> Partials:
    starts = range(since - since % width, until, width)
    bucket = (read.start - starts.start) // width
    result = Partials(since, until, {}, {k: {} for k in read.measures}, fingerprint=read.fingerprint, rows=read.rows)
    groups = [(*OVERALL, [OVERALL[1]], np.zeros(len(bucket), np.int64))]
    for dimension in slices:
        values, seen = read.slices[dimension.dimension], known.get(dimension.dimension, set())
        names, code, new = admit(values, bucket, dimension, seen, read.requests)
        result.admitted += [(dimension.dimension, value) for value in new]
        groups.append((dimension.dimension, "", names, code))
    for name, _, names, code in groups:
        keys, cell = [(start, name, value) for start in starts for value in names], bucket * len(names) + code
        traffic = read.traffic(cell, len(keys))
        kept = np.flatnonzero((traffic[:, 0] > 0) | (name == OVERALL[0])).tolist()
        result.traffic |= {keys[i]: traffic[i] for i in kept}
        for kernel, folded in read.measures.items():
            partials = folded(cell, len(keys))
            result.measures[kernel] |= {keys[i]: partials[i] for i in kept}
        for reason, rows in read.refused.items():
            refused = count(cell, rows, len(keys))
            result.refused |= {(keys[i], reason): int(refused[i]) for i in np.flatnonzero(refused).tolist()}
    for start, number in read.unmatched.items():
        result.traffic[start, *OVERALL][UNMATCHED] = number
    strays = {((start, *OVERALL), reason): number for (start, reason), number in read.strays.items()}
    result.refused = _merged(result.refused, strays)
    return result


def text_of(value: object) -> str:
    """A value from the source as text: bytes as what they spell, without the zeros that fill up a fixed length."""
    if not isinstance(value, bytes):
        return str(value)
    return value.rstrip(b"\0").decode("utf-8", "backslashreplace").replace("\0", r"\x00")


def stored_name(value: object) -> str:
    """A slice value as stored and shown: what UTF-8 cannot hold is escaped, long values share one name."""
    if value is None:
        return NONE
    # As databases write it: Python has 0E-10 for a zero with ten decimals.
    text = format(value, "f") if isinstance(value, Decimal) else text_of(value) or EMPTY_VALUE
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_VALUE and "\x00" not in text else OTHER


def stored_names(values: Sequence[object]) -> list[str]:
    """`stored_name` of each value; texts, of which most repeat, are looked at once."""
    if not {*map(type, values)} <= {str, NoneType}:
        return list(map(stored_name, values))
    known = {value: stored_name(value) for value in {*values}}
    return list(map(known.__getitem__, values))


def admit(
    values: Sequence[object], bucket: Ints, dimension: Slice, known: set[str], requests: Floats | None = None
) -> tuple[list[str], Ints, list[str]]:
    """(names, code of each value's name, newly admitted names) for the requests of some buckets.

    Admits bucket by bucket, busier values first, so the result does not depend on how many buckets were read at once.
    Missing, empty and mixed values have reserved names, which take no place.

    Args:
        values, bucket: (n,) of each request, or of each group of `requests`.
    """
    texts = stored_names(values)
    names = sorted({*texts, OTHER})
    number = {name: i for i, name in enumerate(names)}
    code = np.fromiter(map(number.__getitem__, texts), np.int64, len(texts))
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
