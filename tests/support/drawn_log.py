"""A log of requests whose lists, clicks and examination are drawn day by day, as counts of (query, item) by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from monitor.measures.examination import ALL, ShownCounts
from monitor.units import DAY

DEPTH, QUERIES, ITEMS = 5, 40, 8
RANKS = np.arange(1, DEPTH + 1)


@dataclass(frozen=True)
class Log:
    """Arrays over requests: `day`, `query`, (n, DEPTH) `items` and `clicks`, and whether the order is random."""

    day: np.ndarray
    query: np.ndarray
    items: np.ndarray
    clicks: np.ndarray
    is_random: np.ndarray

    def where(self, kept: np.ndarray) -> Log:
        """Only some of the requests."""
        return Log(*(getattr(self, one.name)[kept] for one in fields(self)))

    def counts(self, since: int, until: int) -> dict[tuple[str, str], ShownCounts]:
        """Those of the days in [since, until) seconds, all in one part."""
        at = (self.day >= since // DAY) & (self.day < until // DAY)
        pair = (self.query[at, None] * ITEMS + self.items[at]).ravel()
        cell, place = np.unique(pair * DEPTH + np.tile(RANKS - 1, at.sum()), return_inverse=True)
        names, pairs = np.unique(cell // DEPTH, return_inverse=True)
        shown, clicked = np.bincount(place).astype(float), np.bincount(place, self.clicks[at].ravel())
        wanted = [divmod(name, ITEMS) for name in names.tolist()]
        return {ALL: ShownCounts(names[pairs] // ITEMS, pairs, cell % DEPTH + 1, shown, clicked, wanted)}


def by_device(logs: Mapping[str, Log]) -> Callable[[int, int], dict[tuple[str, str], ShownCounts]]:
    """The counts of logs, each of them of one device."""
    return lambda since, until: {("device", name): log.counts(since, until)[ALL] for name, log in logs.items()}


def draw(
    seed: int,
    days: int = 24,
    views: int | Mapping[int, int] = 700,
    steep: Mapping[int, float] | None = None,
    noise: Mapping[int, float] | None = None,
    lost: Mapping[int, float] | None = None,
    people: int = 0,
    shuffled: float = 0.0,
    trust: float = 0.0,
) -> Log:
    """Examination is rank^-steep; lists are sorted by the items' worth and `noise`; a share of the clicks is `lost`.

    Each is day -> value from that day on, by default 1, 0.1 and 0 from the beginning. Other `people` want the same
    items. A share of the lists is `shuffled`. Who does not want the first item clicks it by `trust`.
    """
    rng = np.random.default_rng(seed)
    worth, fixed = rng.beta(1, 3, (QUERIES, ITEMS)), rng.normal(0, 1, (QUERIES, ITEMS))
    rng = np.random.default_rng([seed, people]) if people else rng

    def by_day(first: float, of: Mapping[int, float] | None) -> np.ndarray:
        return np.array(
            [max(((d, v) for d, v in {0: first, **(of or {})}.items() if d <= one))[1] for one in range(days)]
        )

    day = np.repeat(np.arange(days), by_day(0, {0: views} if isinstance(views, int) else views))
    query = rng.integers(0, QUERIES, len(day))
    steeps, noises, losses = (by_day(first, of)[day, None] for first, of in ((1.0, steep), (0.1, noise), (0.0, lost)))
    jitter = rng.normal(0, 0.1, (len(day), ITEMS))
    items = np.argsort(-(worth[query] + noises * fixed[query] + jitter), axis=1)[:, :DEPTH]
    other = np.random.default_rng([seed, people, 1])
    is_random = other.random(len(day)) < shuffled
    items[is_random] = other.permuted(items[is_random], axis=1)
    wish = worth[query[:, None], items]
    likely = (wish + (1 - wish) * trust * (RANKS == 1)) * RANKS**-steeps * (1 - losses)
    return Log(day, query, items, rng.random(items.shape) < likely, is_random)
