"""Several readings, one after the other, as one."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.measures.kernels import Judged, Rankings
from monitor.measures.relevance import Refusals
from monitor.series.requests import Reading, added_fingerprints

Ints = NDArray[np.int64]


def joined(readings: Sequence[Reading]) -> Reading:
    """What they say together. They follow each other in time, and each request is in one of them."""
    if len(readings) == 1:
        return readings[0]
    first, last = readings[0], readings[-1]
    kernels = dict.fromkeys(kernel for r in readings for kernel in r.limited)
    dimensions = first.slices
    return Reading(
        first.since,
        last.until,
        served=_chained([r.served for r in readings]),
        rankings=_rankings([r.rankings for r in readings]),
        impressions=_chained([r.impressions for r in readings]),
        judged=_chained([r.judged for r in readings]),
        events=_chained([r.events for r in readings]),
        labelled=_chained([r.labelled for r in readings]),
        no_results=_chained([r.no_results for r in readings]),
        slices={d: [value for r in readings for value in r.slices[d]] for d in dimensions},
        refusals=_refusals([r.refusals for r in readings]),
        strays=_times([r.strays for r in readings]),
        unmatched=_chained([r.unmatched for r in readings]),
        rows=sum(r.rows for r in readings),
        fingerprint=functools.reduce(added_fingerprints, (r.fingerprint for r in readings)),
        limited={kernel: _rankings([r.taken_by(kernel) for r in readings]) for kernel in kernels},
        ids=[i for r in readings for i in r.ids],
    )


def _chained(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(columns)


def _numbered(columns: Sequence[Ints], sizes: Sequence[int]) -> Ints:
    """Numbers of requests, each counted on from those of the readings before."""
    before = np.cumsum([0, *sizes[:-1]])
    return _chained([column + start for column, start in zip(columns, before.tolist(), strict=True)])


def _rankings(parts: Sequence[Rankings]) -> Rankings:
    sizes = [part.size for part in parts]
    return Rankings(
        sum(sizes),
        _numbered([part.request for part in parts], sizes),
        _chained([part.rank for part in parts]),
        _chained([part.grade for part in parts]),
        _chained([part.sampled for part in parts]),
        {k: _chained([part.shown[k] for part in parts]) for k in parts[0].shown},
        _judged([part.judged for part in parts if part.judged is not None], sizes),
    )


def _judged(parts: Sequence[Judged], sizes: Sequence[int]) -> Judged | None:
    """None where no measure needs it, which is so of all the parts alike."""
    if not parts:
        return None
    return Judged(
        _numbered([part.request for part in parts], sizes),
        _chained([part.grade for part in parts]),
        _chained([part.count for part in parts]),
    )


def _refusals(parts: Sequence[Refusals]) -> Refusals:
    found = Refusals(sum(part.size for part in parts))
    for reason in dict.fromkeys(reason for part in parts for reason in part.counts):
        none = (np.zeros(part.size, np.int64) for part in parts)
        found.add_counts(reason, _chained([p.counts.get(reason, z) for p, z in zip(parts, none, strict=True)]))
    return found


def _times(parts: Sequence[Mapping[str, Ints]]) -> dict[str, Ints]:
    """Reason -> microseconds of refused rows."""
    reasons = dict.fromkeys(reason for part in parts for reason in part)
    return {reason: _chained([part[reason] for part in parts if reason in part]) for reason in reasons}
