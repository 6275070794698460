"""One read of a source over a period: requests with their rows, or sums computed by the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools, Floats, Ints
from monitor.measures.kernels import GradedRankings, JudgedItems
from monitor.measures.measure import Measure
from monitor.measures.relevance import Refusals

MICROS = 1_000_000

SUMMED_AS_ONE = 20
"""Rows that a source aggregates in about the time it takes to send one."""


@dataclass(frozen=True)
class Reading:
    """The source's requests served in [since, until) seconds, R of them.

    Attributes:
        served: (R,) microseconds, time of each request's earliest row.
        limited: `rankings` for the kernels that cannot take all of their grades.
        ids: (R,) as in the source; empty if not read.
        impressions, judged, events: (R,) items shown within the depth, those with a label, events that count.
        rank_one: (R,) items at rank 1.
        labelled, no_results: (R,) whether it has a label by the recipe's own meaning, whether its list was empty.
        slices: dimension -> (R,) value.
        strays: reason -> microseconds of the refused rows that belong to no request.
        unmatched: microseconds of the events that match no impression.
        fingerprint: of the judgments used, sixteen hexadecimal digits; empty for other recipes.
    """

    since: int
    until: int
    served: Ints
    rankings: GradedRankings
    impressions: Ints
    judged: Ints
    events: Ints
    labelled: Bools
    no_results: Bools
    rank_one: Ints
    slices: Mapping[str, Sequence[object]]
    refusals: Refusals
    strays: Mapping[str, Ints] = field(default_factory=dict)
    unmatched: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    rows: int = 0
    fingerprint: str = ""
    limited: Mapping[Measure, GradedRankings] = field(default_factory=dict)
    ids: Sequence[object] = ()

    def taken_by(self, kernel: Measure) -> GradedRankings:
        """The graded rows that a kernel can take."""
        return self.limited.get(kernel, self.rankings)


@dataclass(frozen=True)
class Aggregates:
    """Database sums of the requests served in [since, until) seconds, in C joint cells.

    A joint cell is one bucket and one value of every dimension. No bucket of `read` has a cell.

    Attributes:
        bucket: (C,) bucket start, seconds.
        slices: dimension -> (C,) value.
        traffic: (C, 8) as `partials.TRAFFIC_FIELDS`; `unmatched` is left at 0.
        measures: kernel, or each part of one with an examination by slice -> (C, 9) as `partials.FIELDS`.
        refused: reason -> (C,) rows.
        strays: (bucket start, reason) -> refused rows that belong to no request.
        unmatched: bucket start -> events that match no impression.
        read: stretches read row by row instead, in order of time.
        rows: rows sent by the source, without those of `read`.
        summed: rows the source aggregated.
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


Part = Reading | Aggregates
"""One read of a source over a stretch of time."""

Answer = Part | tuple[Part, ...]
"""A source's answer for a stretch of time, or for its parts in order."""


def joined(readings: Sequence[Reading]) -> Reading:
    """Consecutive readings as one; each request is in one of them."""
    if len(readings) == 1:
        return readings[0]

    def chained(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(r, name) for r in readings])

    kernels = dict.fromkeys(kernel for r in readings for kernel in r.limited)
    columns = ("served", "impressions", "judged", "events", "labelled", "no_results", "rank_one", "unmatched")
    reasons = dict.fromkeys(reason for r in readings for reason in r.strays)
    return Reading(
        readings[0].since,
        readings[-1].until,
        **{name: chained(name) for name in columns},
        rankings=_joined_rankings([r.rankings for r in readings]),
        slices={d: [value for r in readings for value in r.slices[d]] for d in readings[0].slices},
        refusals=_joined_refusals([r.refusals for r in readings]),
        strays={w: np.concatenate([r.strays[w] for r in readings if w in r.strays]) for w in reasons},
        rows=sum(r.rows for r in readings),
        fingerprint=added_fingerprints(*(r.fingerprint for r in readings)),
        limited={kernel: _joined_rankings([r.taken_by(kernel) for r in readings]) for kernel in kernels},
        ids=[i for r in readings for i in r.ids],
    )


def added_fingerprints(*parts: str) -> str:
    """The combined fingerprint."""
    known = [part for part in parts if part]
    return known[0] if len(known) == 1 else f"{sum(int(p, 16) for p in known) % 2**64:016x}" if known else ""


def _joined_rankings(parts: Sequence[GradedRankings]) -> GradedRankings:
    sizes = [part.size for part in parts]
    before = np.cumsum([0, *sizes[:-1]]).tolist()
    pools = [part.judged for part in parts if part.judged is not None]
    return GradedRankings(
        sum(sizes),
        _numbered([part.request for part in parts], before),
        np.concatenate([part.rank for part in parts]),
        np.concatenate([part.grade for part in parts]),
        np.concatenate([part.sampled for part in parts]),
        {k: np.concatenate([part.shown[k] for part in parts]) for k in parts[0].shown},
        _joined_pools(pools, before) if pools else None,
        {dimension: [value for part in parts for value in part.slices[dimension]] for dimension in parts[0].slices},
    )


def _joined_pools(parts: Sequence[JudgedItems], before: Sequence[int]) -> JudgedItems:
    grade, count = (np.concatenate([getattr(part, name) for part in parts]) for name in ("grade", "count"))
    return JudgedItems(_numbered([part.request for part in parts], before), grade, count)


def _numbered(columns: Sequence[Ints], before: Sequence[int]) -> Ints:
    """Request numbers, each offset by the readings before."""
    return np.concatenate([column + start for column, start in zip(columns, before, strict=True)])


def _joined_refusals(parts: Sequence[Refusals]) -> Refusals:
    found = Refusals(sum(part.size for part in parts))
    for reason in dict.fromkeys(reason for part in parts for reason in part.counts):
        counts = [part.counts.get(reason, np.zeros(part.size, np.int64)) for part in parts]
        found.add_counts(reason, np.concatenate(counts))
    return found
