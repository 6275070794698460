"""Partials: the sums that a bucket keeps of a measure, and how they merge and become a value.

Partials are arrays whose last axis is `FIELDS`; merging those of disjoint requests is `+`, and zeros change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from monitor.measures.kernels import Scores
from monitor.measures.measure import Aggregate, Empty, Measure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

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
"""Of one measure: requests with data, those of them without a value, sum and sum of squares of the per-request value
(of the others), and sums, squares and cross products of numerator and denominator for the pooled reading."""

TRAFFIC_FIELDS = ("requests", "labelled", "impressions", "judged", "events", "unmatched", "no_results")
"""Of the traffic: requests, those with a label, items shown within the depth and those of them with a label, events
that count, events that match no impression (these by their own time, for overall alone), and requests without
results."""

REQUESTS, EMPTY, TOTAL, SQUARES, NUM, DEN, NUM2, DEN2, NUM_DEN = range(len(FIELDS))
_OF_EVENTS = tuple(TRAFFIC_FIELDS.index(name) for name in ("events", "unmatched"))


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
    """Partials of each cell, shape (cells, 9), of the requests that fall into it.

    Args:
        scores: per request, shape (n,).
        sampled: (n,) requests that are data; the others are left out.
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
    """The number that partials read as, shape (...,); nan where there is no data.

    >>> p = np.array([4, 1, 1.5, 0, 3, 6, 0, 0, 0])
    >>> [float(value(p, "mean", e)) for e in ("skip", "zero", "one")] + [float(value(p, "pooled", "skip"))]
    [0.5, 0.375, 0.625, 0.5]
    """
    over, under = parts(partials, aggregate, empty)
    number: Floats = np.divide(over, under, out=np.full(over.shape, np.nan), where=under > 0)
    return number


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
    """`value` with the measure's own reading."""
    return value(partials, measure.aggregate, measure.empty)


def with_results(traffic: Floats) -> Floats:
    """Requests that showed something, of (..., 7) sums of the traffic, shape (...,): only these can get a label."""
    found: Floats = traffic[..., 0] - traffic[..., TRAFFIC_FIELDS.index("no_results")]
    return found


def without_results(traffic: Floats) -> float:
    """Share of the requests that showed nothing, by (7,) sums of the traffic; 0 without a request."""
    return float(1 - with_results(traffic) / traffic[0]) if traffic[0] else 0.0


def label_coverage(traffic: Floats, by_judgments: bool) -> tuple[Floats, Floats]:
    """(some, every) of (..., 7) sums of the traffic, shape (...,): label coverage is the one divided by the other.

    Args:
        by_judgments: it is the share of judged impressions, not of requests with a label.
    """
    labelled, impressions, judged = (traffic[..., i] for i in (1, 2, 3))
    return (judged, impressions) if by_judgments else (labelled, with_results(traffic))


def events_per_request(traffic: Floats) -> float | None:
    """Events that came for each request with results, by (7,) sums of the traffic: also those that match no impression.

    Of a slice they are those that match alone, for nothing tells whose the others were. None without a request.

    >>> events_per_request(np.array([12, 4, 50, 0, 6, 2, 2])), events_per_request(np.zeros(7))
    (0.8, None)
    """
    requests, (events, unmatched) = float(with_results(traffic)), (float(traffic[i]) for i in _OF_EVENTS)
    return (events + unmatched) / requests if requests else None


def unmatched_share(traffic: Floats) -> float | None:
    """Share of the events that match no impression, by (7,) sums of the traffic; None without an event."""
    events, unmatched = (float(traffic[i]) for i in _OF_EVENTS)
    return unmatched / (events + unmatched) if events + unmatched else None


def runs(instants: list[int], width: int, most: int) -> Iterator[tuple[int, int]]:
    """[start, end) of runs of neighbouring buckets, each of at most `most` buckets.

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
