"""A bounded sample of a period's requests: each one's part of a measure, its query and version. A hash of the ids
decides which are kept, so each look keeps the same ones, and samples of parts add up to the sample of the whole.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.measures.kernels import Scores, score
from monitor.measures.measure import Measure
from monitor.series.partials import admit, text_of
from monitor.series.readings import MICROS, Reading
from monitor.types import MIXED, NONE, Slice

K = TypeVar("K")

MOST_PIECES = 48
PIECE = 5_000
"""Requests read at once if their number is known."""

MOST_READ = 10
"""At most this many times the wanted requests are read if only one slice's are wanted."""

BLIND_PIECES = 24
"""Number of pieces in which a period is read if its number of requests is unknown."""

LONGEST_ID = 200
"""Characters of an id or a query that are kept."""


@dataclass(frozen=True)
class RequestSample:
    """n requests of one period.

    Attributes:
        served: (n,) seconds since 1970, of the earliest row.
        over, under: (n,) a request's value is over / under; `under` is above 0.
        queries: texts; None for a request without one.
        places: each request's value of one dimension, as in the partials.
        read: number of requests with a value that were read, kept or not.
        empty: version -> (requests read, kept or not; those of them with nothing relevant).
        bare: (n,) whether a request has nothing relevant; None: unknown.
    """

    ids: tuple[str, ...]
    served: Ints
    over: Floats
    under: Floats
    queries: tuple[str | None, ...]
    places: tuple[str, ...]
    versions: tuple[str, ...]
    read: int
    empty: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bare: Bools | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def values(self) -> Floats:
        """(n,) values of the measure."""
        return self.over / self.under

    @property
    def is_bare(self) -> Bools:
        """(n,) whether a request is known to have nothing relevant."""
        return np.zeros(len(self), bool) if self.bare is None else self.bare

    @property
    def mean(self) -> float | None:
        """The measure over all requests; None without any."""
        return float(self.over.sum() / self.under.sum()) if len(self) else None

    def where(self, wanted: Bools) -> RequestSample:
        """The requests at which (n,) `wanted` is true."""
        at = np.flatnonzero(wanted)
        rows = at.tolist()
        some: dict[str, Any] = {name: tuple(map(getattr(self, name).__getitem__, rows)) for name in _TEXTS}
        some |= {name: getattr(self, name)[at] for name in _ARRAYS}
        return replace(self, **some, bare=None if self.bare is None else self.bare[at])

    def of_version(self, version: str) -> RequestSample:
        return self.where(np.fromiter((v == version for v in self.versions), bool, len(self)))

    def in_places(self, places: Collection[str]) -> RequestSample:
        return self.where(np.fromiter((p in places for p in self.places), bool, len(self)))

    def of_place(self, place: str) -> RequestSample:
        """The requests of one slice, taken as all that were read; the number of empty ones is unknown."""
        found = self.in_places({place})
        return replace(found, read=len(found), empty={})

    def without_places(self, places: Collection[str]) -> RequestSample:
        """The requests of other slices, taken as all that were read; the number of empty ones is unknown."""
        if not places:
            return self
        found = self.in_places(set(self.places) - set(places))
        return replace(found, read=len(found), empty={})

    def __add__(self, other: RequestSample) -> RequestSample:
        """Both samples together; their requests must be disjoint."""
        both: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in (*_TEXTS, "read")}
        both |= {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in (*_ARRAYS, "is_bare")}
        return RequestSample(bare=both.pop("is_bare"), empty=_both(self.empty, other.empty), **both)

    def at_most(self, most: int) -> RequestSample:
        """At most this many requests, always the same ones."""
        if len(self) <= most:
            return self
        lowest = sorted(range(len(self)), key=lambda i: (_lot(self.ids[i]), self.ids[i]))[:most]
        wanted = np.zeros(len(self), bool)
        wanted[lowest] = True
        return self.where(wanted)


def _both(one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    found = dict(one)
    for version, (read, empty) in other.items():
        was = found.get(version, (0, 0))
        found[version] = was[0] + read, was[1] + empty
    return found


_TEXTS, _ARRAYS = ("ids", "queries", "places", "versions"), ("served", "over", "under")
NO_REQUESTS = RequestSample((), np.empty(0, np.int64), np.empty(0), np.empty(0), (), (), (), 0)


def _lot(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).digest()


@dataclass(frozen=True)
class SampleQuery:
    """What is read from each request.

    Attributes:
        query, version: names of these columns in a reading; None without one.
        by: the dimension of `places`; None: no dimension.
        known: admitted values of `by`; others become `other`.
        only: the value of `by` to take; None: all.
        left_out: starts of the steps, `step` seconds each, to skip.
    """

    measure: Measure
    query: str | None
    version: str | None
    by: Slice | None
    known: frozenset[str] = frozenset()
    only: str | None = None
    left_out: frozenset[int] = frozenset()
    step: int = 1


@dataclass(frozen=True)
class RequestCounts:
    """A period's number of requests: all, and the wanted ones."""

    every: int
    wanted: int

    def to_read(self, most: int) -> int:
        """How many requests to read to get `most` wanted ones, or all of them if there are fewer.

        >>> [RequestCounts(100_000, wanted).to_read(1_000) for wanted in (100_000, 50_000, 10)]
        [1000, 2000, 10000]
        """
        enough = -(-most * self.every // max(self.wanted, 1))
        return min(self.every, enough, MOST_READ * most)


def sampled(reading: Reading, wanted: SampleQuery) -> RequestSample:
    """The requests of a reading that have a value. Raises ValueError if the measure cannot take the grades."""
    rankings = reading.taken_by(wanted.measure.kernel)
    scores = score(wanted.measure.kernel, rankings)
    over, under = weights(wanted.measure, scores)
    served = reading.served // MICROS
    taken = rankings.sampled & ~np.isin(served - served % wanted.step, list(wanted.left_out))
    kept = np.flatnonzero(taken & (under > 0))
    rows = kept.tolist()
    size = len(reading.served)
    places = _places(reading, wanted.by, wanted.known)
    queries = _column(reading, wanted.query)
    versions = [NONE if version is None else text(version) for version in _column(reading, wanted.version)]
    found = RequestSample(
        tuple(text(reading.ids[i] if len(reading.ids) == size else i) for i in rows),
        served[kept],
        over[kept],
        under[kept],
        tuple(None if queries[i] is None or queries[i] == MIXED else text(queries[i]) for i in rows),
        tuple(places[i] for i in rows),
        tuple(versions[i] for i in rows),
        len(rows),
        _empty(versions, taken, scores.empty),
        scores.empty[kept],
    )
    return found if wanted.only is None else found.of_place(wanted.only)


def _empty(versions: Sequence[str], sampled_: Bools, empty: Bools) -> dict[str, tuple[int, int]]:
    read, without = Counter[str](), Counter[str]()
    for i in np.flatnonzero(sampled_).tolist():
        read[versions[i]] += 1
        without[versions[i]] += bool(empty[i])
    return {version: (number, without[version]) for version, number in read.items()}


def weights(measure: Measure, scores: Scores) -> tuple[Floats, Floats]:
    """(over, under), (n,) each: the measure of any requests is sum of over / sum of under, as in `partials.parts`."""
    if measure.aggregate == "pooled":
        return scores.numerator, scores.denominator
    over = np.where(scores.empty, 1.0 if measure.empty == "one" else 0.0, scores.value)
    under = np.where(scores.empty & (measure.empty == "skip"), 0.0, 1.0)
    return over, under


def _places(reading: Reading, by: Slice | None, known: frozenset[str]) -> Sequence[str]:
    if by is None:
        return [""] * len(reading.served)
    one_bucket = np.zeros(len(reading.served), np.int64)
    names, code, _ = admit(reading.slices[by.dimension], one_bucket, by, set(known))
    return [names[i] for i in code.tolist()]


def _column(reading: Reading, name: str | None) -> Sequence[object]:
    return [None] * len(reading.served) if name is None else reading.slices[name]


def text(value: object) -> str:
    """An id, version or query as text that every store and terminal accepts, cut if very long."""
    found = text_of(value).encode("utf-8", "backslashreplace").decode()
    return found[:LONGEST_ID].replace("\x00", "")


def pieces(since: int, until: int, width: int, requests: int | None, most: int) -> Iterator[tuple[int, int]]:
    """[since, until) of each piece of a period to read: all of it, or an equal share of each part.

    `most` of the period's `requests` (None: unknown) are wanted; times are seconds, of whole buckets.

    >>> list(pieces(0, 7200, 3600, 20, 20)), [b - a for a, b in pieces(0, 7200, 3600, 40_000, 20_000)]
    ([(0, 7200)], [1800, 1800])
    """
    buckets = max(1, (until - since) // width)
    number = BLIND_PIECES if requests is None else -(-min(requests, 10 * most) // PIECE)
    step = -(-buckets // max(1, min(number, MOST_PIECES, buckets))) * width
    share = 1.0 if requests is None or requests <= most else most / requests
    for start in range(since, until, step):
        length = min(step, until - start)
        taken = max(1, round(length * share))
        # Not always the first seconds, which scheduled requests would dominate.
        spare = length - taken
        first = start + (int.from_bytes(_lot(str(start)), "big") % (spare + 1))
        yield first, first + taken


def by_query(sample: RequestSample) -> Mapping[str, Ints]:
    """Query -> indices of its requests, without those that have none."""
    return _rows_of((i, q) for i, q in enumerate(sample.queries) if q is not None)


def by_query_and_place(sample: RequestSample) -> Mapping[tuple[str, str], Ints]:
    """(query, slice) -> indices of its requests, without those that have no query."""
    both = enumerate(zip(sample.queries, sample.places, strict=True))
    return _rows_of((i, (query, place)) for i, (query, place) in both if query is not None)


def _rows_of(keys: Iterable[tuple[int, K]]) -> dict[K, Ints]:
    found: dict[K, list[int]] = {}
    for i, key in keys:
        found.setdefault(key, []).append(i)
    return {key: np.array(rows, dtype=np.int64) for key, rows in found.items()}
