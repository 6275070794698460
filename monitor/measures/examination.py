"""How likely people are to look at each rank, estimated from clicks on the same item at different ranks.

Under the position-based model a click needs a look and a wish: the wish belongs to the query and item, the look to the
rank. Where a (query, item) was shown at two ranks, the ratio of its click rates is the ratio of the looks; versions,
freshness and personalisation bring such swaps (Agarwal et al. 2019, "Estimating position bias without intrusive
interventions"). Given a pair's clicks, their shares of the ranks depend on views and looks alone: the wishes drop out
(the conditional likelihood of Poisson counts: Hausman, Hall and Griliches, 1984). Its errors are clustered by query,
and no smaller than those of Poisson counts: few queries agree by chance, and one always does with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monitor.arrays import Floats, Ints

STEPS, ENOUGH = 50, 1e-9
"""Newton steps at most, and the change of the logarithms at which they end; the likelihood is concave."""

Z95 = 1.959964
"""Standard errors of a 95 % interval."""


@dataclass(frozen=True)
class ShownCounts:
    """How often each (query, item) was shown and clicked at each rank; arrays are (n,), one entry per pair and rank.

    Attributes:
        query, pair: numbers from 0 of the query, and of the query with the item.
        rank: from 1.
        shown, clicked: requests.
        names: query and item of each pair, as the database gives them.
    """

    query: Ints
    pair: Ints
    rank: Ints
    shown: Floats
    clicked: Floats
    names: Sequence[tuple[Any, Any]] = ()


@dataclass(frozen=True)
class Examination:
    """Chances that people look at ranks 1 to K, relative to rank 1; arrays are (K,).

    Attributes:
        lower, upper: 95 % intervals.
        swaps: (query, item) shown at this rank and at another, and clicked at one of them.
    """

    value: Floats
    lower: Floats
    upper: Floats
    swaps: Ints


def estimate(counts: ShownCounts, depth: int) -> Examination:
    """The examination of ranks 1 to `depth`.

    Raises:
        ValueError: too few swaps link a rank with rank 1, with how many there are.
    """
    shown, clicked, query = _swapped(counts, depth)
    total = clicked.sum(axis=1, keepdims=True)
    swaps = np.count_nonzero(shown, axis=0)
    if unlinked := _unlinked(shown, clicked):
        raise ValueError(
            f"nothing tells how often people look at rank {unlinked}: {swaps[unlinked - 1]} items were shown for a "
            "query both there and at another rank and clicked, too few of them there; take more days or fewer ranks, "
            "or let some requests swap neighbours"
        )
    looks = np.zeros(depth)  # logarithms
    for _ in range(STEPS):
        share, information = _expected(shown, total, looks)
        step = np.linalg.solve(information, (clicked - total * share).sum(axis=0)[1:])
        looks[1:] += np.clip(step, -1, 1)
        if np.abs(step).max(initial=0) < ENOUGH:
            break
    share, information = _expected(shown, total, looks)
    scores = np.zeros((int(query.max()) + 1, depth))
    np.add.at(scores, query, clicked - total * share)
    bread = np.linalg.inv(information)
    clustered = np.diag(bread @ (scores[:, 1:].T @ scores[:, 1:]) @ bread)
    error = np.r_[0.0, np.sqrt(np.maximum(clustered, np.diag(bread)))]
    return Examination(np.exp(looks), np.exp(looks - Z95 * error), np.exp(looks + Z95 * error), swaps)


def swap_errors(counts: ShownCounts, depth: int, swapped: float) -> Floats:
    """(depth,) the standard error of each rank's logarithm, were `swapped` of the requests to swap two neighbours.

    The neighbours are drawn at random from the first `depth` ranks, and other swaps do not count. Of a pair seen n
    times, a share s swapped, (n - 1) s (1 - s) swaps can be compared with the rest; the error of a ratio of clicks is
    that of Poisson counts; and each rank is compared with the one above it.

    Raises:
        ValueError: a rank was never shown, more are to be swapped than there are, or no query comes twice.
    """
    shown = np.bincount(counts.rank, counts.shown, depth + 1)[1 : depth + 1]
    clicked = np.bincount(counts.rank, counts.clicked, depth + 1)[1 : depth + 1]
    requests = float(shown[0])
    if not shown.all() or not 0 < swapped <= requests:
        raise ValueError(f"swap from 1 to {requests:.0f} requests, as many as show rank 1, of {depth} ranks all shown")
    rate, share = clicked / shown, swapped / requests / (depth - 1)
    compared = (requests - len(np.unique(counts.query))) * share * (1 - share)
    with np.errstate(divide="ignore"):
        return np.asarray(np.sqrt(np.cumsum(np.r_[0.0, 1 / (compared * (rate[:-1] + rate[1:]))])))


def _swapped(counts: ShownCounts, depth: int) -> tuple[Floats, Floats, Ints]:
    """(views, clicks, query) of the P pairs shown at several ranks and clicked; (P, depth), (P, depth), (P,)."""
    kept = counts.rank <= depth
    names, pair = np.unique(counts.pair[kept], return_inverse=True)
    shown, clicked, query = np.zeros((len(names), depth)), np.zeros((len(names), depth)), np.zeros(len(names), np.int64)
    where = pair, counts.rank[kept] - 1
    shown[where], clicked[where], query[pair] = counts.shown[kept], counts.clicked[kept], counts.query[kept]
    tells = ((shown > 0).sum(axis=1) > 1) & (clicked.sum(axis=1) > 0)
    return shown[tells], clicked[tells], query[tells]


def _unlinked(shown: Floats, clicked: Floats) -> int:
    """The first rank without clicks, or that no chain of pairs links with rank 1; 0 if there is none."""
    has = shown > 0
    linked = np.arange(shown.shape[1]) == 0
    for _ in linked:
        linked = linked | has[(has & linked).any(axis=1)].any(axis=0)
    known = linked & (clicked.sum(axis=0) > 0)
    return next((rank for rank in (*range(2, len(known) + 1), 1) if not known[rank - 1]), 0)


def _expected(shown: Floats, total: Floats, looks: Floats) -> tuple[Floats, Floats]:
    """((P, K) shares of a pair's clicks by rank, (K - 1, K - 1) information on the logarithms past the first)."""
    weight = shown * np.exp(looks)
    share = weight / weight.sum(axis=1, keepdims=True)
    information = np.diag((total * share).sum(axis=0)) - (total * share).T @ share
    return share, information[1:, 1:]
