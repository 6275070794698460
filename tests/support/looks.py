"""A log of requests whose lists, clicks and looks are drawn day by day, as counts of (query, item) by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monitor.drift.series import DAY
from monitor.measures.examination import ShownCounts

DEPTH, QUERIES, ITEMS = 5, 40, 8
RANKS = np.arange(1, DEPTH + 1)


@dataclass(frozen=True)
class Log:
    """Arrays over requests: `day`, `query`, and (n, DEPTH) `items` and `clicks`."""

    day: np.ndarray
    query: np.ndarray
    items: np.ndarray
    clicks: np.ndarray

    def counts(self, since: int, until: int) -> ShownCounts:
        """Those of the days in [since, until) seconds."""
        at = (self.day >= since // DAY) & (self.day < until // DAY)
        pair = (self.query[at, None] * ITEMS + self.items[at]).ravel()
        cell, place = np.unique(pair * DEPTH + np.tile(RANKS - 1, at.sum()), return_inverse=True)
        names, pairs = np.unique(cell // DEPTH, return_inverse=True)
        shown, clicked = np.bincount(place).astype(float), np.bincount(place, self.clicks[at].ravel())
        return ShownCounts(names[pairs] // ITEMS, pairs, cell % DEPTH + 1, shown, clicked, names.tolist())


def draw(
    seed: int,
    days: int = 24,
    views: int = 700,
    steep: Mapping[int, float] | None = None,
    noise: Mapping[int, float] | None = None,
    lost: Mapping[int, float] | None = None,
) -> Log:
    """Looks are rank^-steep; lists are sorted by the items' worth and `noise`; a share of the clicks is `lost`.

    Each is day -> value from that day on, by default 1, 0.1 and 0 from the beginning.
    """
    rng = np.random.default_rng(seed)
    worth, fixed = rng.beta(1, 3, (QUERIES, ITEMS)), rng.normal(0, 1, (QUERIES, ITEMS))
    day, query = np.repeat(np.arange(days), views), rng.integers(0, QUERIES, days * views)
    steeps, noises, losses = (
        np.array([max(((d, v) for d, v in {0: first, **(of or {})}.items() if d <= one))[1] for one in range(days)])[
            day, None
        ]
        for first, of in ((1.0, steep), (0.1, noise), (0.0, lost))
    )
    jitter = rng.normal(0, 0.1, (len(day), ITEMS))
    items = np.argsort(-(worth[query] + noises * fixed[query] + jitter), axis=1)[:, :DEPTH]
    likely = worth[query[:, None], items] * RANKS**-steeps * (1 - losses)
    return Log(day, query, items, rng.random(items.shape) < likely)
