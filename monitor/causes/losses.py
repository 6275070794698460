"""Who lost in a fall: the requests and queries that lost most against the time before."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.causes.sample import RequestSample, by_query
from monitor.causes.versions import SAME, VersionComparison, compare, in_order, mean, names

MOST = 20
"""Number of requests and queries listed."""


def query_id(query: str) -> str:
    """Short hash of a query, twelve hexadecimal digits. Not secret: a guessed text can be checked against it."""
    return hashlib.sha256(query.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def lost_requests(now: RequestSample, before: RequestSample) -> list[dict[str, Any]]:
    """The requests that lost most against their expectation, their query's mean before, as JSON data.

    For a new query the slice's mean is expected, for a new slice the overall mean. `bare` requests have nothing
    relevant: if few have anything, they lose most without their lists being at fault.
    """
    if not len(now) or before.mean is None:
        return []
    by_text, of_place = _means(before, by_query(before)), _means(before, _by_place(before))
    whole, values = before.mean, now.values
    seen = [(by_text.get(q) if q is not None else None) for q in now.queries]
    expected = [of_place.get(p, whole) if e is None else e for e, p in zip(seen, now.places, strict=True)]
    lost = np.array(expected) - values
    order = sorted(np.flatnonzero(lost > 0).tolist(), key=lambda i: (-lost[i], now.ids[i]))[:MOST]
    return [
        {
            "request": now.ids[i],
            "served_at": int(now.served[i]),
            "value": float(values[i]),
            "expected": float(expected[i]),
            "by_query": seen[i] is not None,
            "slice": now.places[i],
            "version": now.versions[i],
            "bare": bool(now.is_bare[i]),
        }
        for i in order
    ]


def lost_by_slice(now: RequestSample, before: RequestSample, fallen: Collection[str] | None) -> dict[str, Any]:
    """The requests that lost most, without queries, as JSON data: `requests`, `why` there are none, and the share
    `left_out` (`of_fallen`: of slices that fell).

    Requests differ in difficulty, and without queries that cannot be separated. So only requests of slices that fell
    (None: there is one slice) can have lost, and those with nothing relevant are left out.
    """
    if fallen is not None:
        now, before = now.in_places(fallen), before.in_places(fallen)
    left_out = [float(s.is_bare.mean()) if len(s) else None for s in (now, before)]
    now, before = now.where(~now.is_bare), before.where(~before.is_bare)
    means, past = _means(now, _by_place(now)), _means(before, _by_place(before))
    fell = [place for place, value in means.items() if place in past and value < past[place] - SAME]
    why = ""
    if fallen is not None and not fallen:
        why = "no slice fell significantly, and without queries it is unknown who lost"
    elif means and past and not fell:
        why = "requests with something relevant are ranked no worse than before; more of them have nothing relevant"
    requests = lost_requests(now.in_places(fell), before)
    return {"requests": requests, "why": why, "left_out": left_out, "of_fallen": fallen is not None}


def by_version(now: RequestSample, before: RequestSample, width: int) -> list[dict[str, Any]]:
    """Each version's requests in the window and before, as JSON data, busiest first."""
    rows = []
    for version in names(now + before)[:MOST]:
        one, past = mean(now, version, width), mean(before, version, width)
        rows.append(
            {
                "version": version,
                "requests": one.requests,
                "value": one.value if one.requests else None,
                "lower": one.lower,
                "upper": one.upper,
                "requests_before": past.requests,
                "before": past.value if past.requests else None,
            }
        )
    return rows


def _by_place(sample: RequestSample) -> dict[str, NDArray[np.int64]]:
    places = np.array(sample.places, dtype=object)
    return {place: np.flatnonzero(places == place) for place in dict.fromkeys(sample.places)}


def _means(sample: RequestSample, rows: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    return {name: float(sample.over[at].sum() / sample.under[at].sum()) for name, at in rows.items()}


def lost_queries(now: RequestSample, before: RequestSample, with_text: bool) -> dict[str, Any] | None:
    """The queries that contributed most to the drop, as JSON data; None without queries."""
    if all(query is None for query in now.queries):
        return None
    rows, past = by_query(now), by_query(before)
    common = sorted(rows.keys() & past.keys())
    total, total0 = float(now.under.sum()), float(before.under.sum())
    here = {query: _part(now, rows[query]) for query in common}
    there = {query: _part(before, past[query]) for query in common}
    # One query has too few requests to estimate its spread, so all are pooled.
    parts = [*here.values(), *there.values()]
    freedom = sum(part.requests - 1 for part in parts)
    spread = sum(part.squares for part in parts) / freedom if freedom else 0.0
    changes: list[dict[str, Any]] = []
    for query in common:
        one, other = here[query], there[query]
        error = math.sqrt(spread * (one.requests / one.weight**2 + other.requests / other.weight**2))
        changes.append(
            {
                "query": query_id(query),
                "requests": one.requests,
                "requests_before": other.requests,
                "value": one.mean,
                "before": other.mean,
                "within": (one.mean - other.mean) * (one.weight / total + other.weight / total0) / 2,
                "z": (one.mean - other.mean) / error if error > 0 else None,
                **({"text": query} if with_text else {}),
            }
        )
    worst = sorted((q for q in changes if q["within"] < 0), key=lambda q: (q["within"], q["query"]))
    share = sum(float(now.under[rows[q]].sum()) for q in common) / total
    return {"seen": len(rows), "common": len(common), "common_share": share, "worst": worst[:MOST]}


@dataclass(frozen=True)
class _QueryMean:
    """A group of requests: their number, weight and mean, and the sum of squares around it."""

    requests: int
    weight: float
    mean: float
    squares: float


def _part(sample: RequestSample, at: NDArray[np.int64]) -> _QueryMean:
    over, under = sample.over[at], sample.under[at]
    weight = float(under.sum())
    mean = float(over.sum()) / weight
    return _QueryMean(len(at), weight, mean, float(((over - mean * under) ** 2).sum()))


def losses(
    now: RequestSample,
    before: RequestSample,
    width: int,
    with_text: bool,
    served: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    fallen: Collection[str] | None = None,
    dimension: str | None = None,
) -> dict[str, Any]:
    """What single requests show of a fall, as JSON data.

    Compares the window's two busiest versions, the newer against the older. A single version is compared with the one
    before it; two without a common slice are compared over both periods.

    Args:
        width: of a bucket, seconds.
        with_text: include the texts of queries, not only their ids.
        served: version -> [since, until) seconds by stored buckets; samples cover only some hours.
        fallen: as for `lost_by_slice`.
        dimension: of the samples' places.
    """
    sample = now if len(names(now)) > 1 else now + before
    first = {version: since for version, (since, _) in served.items()}
    both = in_order(sample, names(sample)[:2], width, first)
    compared = _versions(sample, now + before, both, width, dimension) if both[1:] else None
    queries = lost_queries(now, before, with_text)
    lost = {"requests": lost_requests(now, before)} if queries else lost_by_slice(now, before, fallen)
    return {
        "value": now.mean,
        "before": before.mean,
        **lost,
        "bare": [float(s.is_bare.mean()) if len(s) else None for s in (now, before)],
        "queries": queries,
        "comparison": None if compared is None else compared.served(served, width).plain(),
        "versions": by_version(now, before, width),
    }


def _versions(
    sample: RequestSample, every: RequestSample, both: Sequence[str], width: int, dimension: str | None
) -> VersionComparison:
    """Compares two versions of a sample; over both periods if they have a common slice only there."""
    found = compare(sample, both[0], both[1], width, dimension)
    if found.difference is not None:
        return found
    longer = compare(every, both[0], both[1], width, dimension)
    return found if longer.difference is None else longer
