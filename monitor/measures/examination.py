"""How likely people are to look at each rank, estimated from clicks on the same item at different ranks.

Under the position-based model, people click an item if they look at its rank (examination) and if it appeals to them
(attractiveness, which depends on the query and item). If a (query, item) was shown at two ranks, the ratio of its click
rates is the ratio of the ranks' examination; versions, freshness and personalisation bring such swaps (Agarwal et al.
2019, "Estimating position bias without intrusive interventions"). Lists may be personalised, so requests of other
slices may have another attractiveness: a pair is of one query, item and slices. Given a pair's clicks, their shares of
the ranks depend on views and examination alone: the attractiveness drops out (the conditional likelihood of Poisson
counts: Hausman, Hall and Griliches, 1984). Standard errors are clustered by query, and never below those of independent
clicks, because few clusters understate them.

Where lists are in random order, each rank shows the same items on average: the query then stands for its items, and
none has to come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import NormalDist
from typing import Any, NamedTuple, TypeVar

import numpy as np

from monitor.arrays import Bools, Floats, Ints

STEPS, ENOUGH = 50, 1e-9
"""Newton steps at most, and the change of the logarithms at which they end; the likelihood is concave."""

_Part = TypeVar("_Part")

ALL = ("", "")
"""All requests, where parts are named by (dimension, value)."""

Z95 = 1.959964
"""Standard errors of a 95 % interval."""

UNSURE = 0.05
"""Chance of a difference at which examination counts as other: that of a 95 % interval."""

DEVIATIONS = np.geomspace(0.01, 1.0, 15)
"""Typical deviations of a rank that are weighed by `smoothed`, as logarithms: from 1 % to a factor of e."""

SURE = 0.1
"""Swaps are said to suffice where the interval of a rank's examination reaches up by this share."""


@dataclass(frozen=True)
class ShownCounts:
    """How often each (query, item) was shown and clicked at each rank; arrays are (n,), one entry per pair and rank.

    Attributes:
        query, pair: numbers from 0 of the query, and of the query with the item and the slices of the request.
        names: (query, item, *slices) of each pair, in the order of their numbers.
        shown_below, clicked_below: those of them with a click further up; empty if they were not asked for.
        rank: from 1.
        shown, clicked: requests.
    """

    query: Ints
    pair: Ints
    rank: Ints
    shown: Floats
    clicked: Floats
    names: Sequence[tuple[Any, ...]] = ()
    shown_below: Floats = field(default_factory=lambda: np.zeros(0))
    clicked_below: Floats = field(default_factory=lambda: np.zeros(0))

    def where(self, kept: Bools | Ints) -> ShownCounts:
        """Only some of the entries."""
        of = self.query[kept], self.pair[kept], self.rank[kept]
        return ShownCounts(*of, self.shown[kept], self.clicked[kept], self.names)

    @classmethod
    def joined(cls, parts: Sequence[ShownCounts]) -> ShownCounts:
        """Those of several kinds of requests together."""
        none, nothing = np.zeros(0, np.int64), np.zeros(0)
        parts = parts or [cls(none, none, none, nothing, nothing)]
        pairs: dict[tuple[Any, ...], int] = {}
        queries: dict[Any, int] = {}
        numbers = [np.array([pairs.setdefault(name, len(pairs)) for name in one.names], np.int64) for one in parts]
        query = np.array([queries.setdefault(name[0], len(queries)) for name in pairs], np.int64)
        pair = np.concatenate([number[one.pair] for number, one in zip(numbers, parts, strict=True)])
        rank, shown, clicked, *below = (
            np.concatenate([getattr(one, name) for one in parts])
            for name in ("rank", "shown", "clicked", "shown_below", "clicked_below")
        )
        return cls(query[pair], pair, rank, shown, clicked, list(pairs), *below)

    @property
    def across(self) -> ShownCounts:
        """Those of each query and item in all slices together."""
        pairs: dict[tuple[Any, ...], int] = {}
        number = np.array([pairs.setdefault(name[:2], len(pairs)) for name in self.names], np.int64)
        return replace(self, pair=number[self.pair], names=list(pairs))

    @property
    def by_query(self) -> ShownCounts:
        """Those of all items of each query and slices together; an item is None."""
        pairs: dict[tuple[Any, ...], int] = {}
        number = [pairs.setdefault((name[0], None, *name[2:]), len(pairs)) for name in self.names]
        return replace(self, pair=np.array(number, np.int64)[self.pair], names=list(pairs))

    def halves(self) -> tuple[ShownCounts, ShownCounts]:
        """Those of a random half of the requests, the same whatever their order, and those of the other."""
        texts = [str(name) for name in self.names] or [f"{n:9}" for n in range(self.pair.max(initial=0) + 1)]
        place = {text: number for number, text in enumerate(sorted(set(texts)))}
        order = np.lexsort((self.rank, np.array([place[text] for text in texts])[self.pair]))
        rng = np.random.default_rng(0)
        clicked, shown = np.zeros((2, len(order)))
        clicked[order] = rng.binomial(self.clicked[order].astype(np.int64), 0.5)
        shown[order] = rng.binomial((self.shown - self.clicked)[order].astype(np.int64), 0.5)
        half = replace(self, shown=shown + clicked, clicked=clicked)
        return half, replace(self, shown=self.shown - half.shown, clicked=self.clicked - clicked)

    def by_slices(self) -> list[ShownCounts]:
        """Those of each combination of slices; all of them if the pairs have no names."""
        number: dict[tuple[Any, ...], int] = {}
        of = np.array([number.setdefault(name[2:], len(number)) for name in self.names], np.int64)
        if not len(of):
            return [self]
        order = np.argsort(of[self.pair], kind="stable")
        bounds = np.searchsorted(of[self.pair][order], np.arange(1, len(number)))
        return [self.where(part) for part in np.split(order, bounds)]

    @property
    def lists(self) -> int:
        """Queries, each as often as there are slices in which it was asked."""
        return len({(name[0], *name[2:]) for name in self.names}) if self.names else len(np.unique(self.query))

    @property
    def requests(self) -> float:
        """Requests that showed an item at rank 1."""
        return float(self.shown[self.rank == 1].sum())

    @property
    def effective_queries(self) -> float:
        """As many queries of equal clicks would tell as much (Kish 1965); 0 without clicks."""
        clicks = np.bincount(self.query, self.clicked)
        return float(clicks.sum() ** 2 / (clicks**2).sum()) if clicks.any() else 0.0

    @property
    def clicks_per_request(self) -> float:
        """Clicks on all ranks by requests that showed an item at rank 1; nan without any."""
        return float(self.clicked.sum() / self.requests) if self.requests else np.nan


@dataclass(frozen=True, eq=False)
class Examination:
    """Chances that people look at ranks 1 to K, relative to rank 1; arrays are (K,).

    Attributes:
        parts: (dimension, value) -> the same of some of the requests, of those that have swaps enough.
        covariance: (K - 1, K - 1) of the errors of the logarithms past the first; (K, K) where rank 1 has one too.
        swaps: (query, item) shown at this rank and at another, and clicked at one of them.
        clicks: on all items of this rank, with the `requests` that showed one at rank 1.
    """

    value: Floats
    covariance: Floats
    swaps: Ints
    clicks: Floats
    requests: float
    parts: Mapping[tuple[str, str], Examination] = field(default_factory=dict)

    @property
    def error(self) -> Floats:
        """(K,) standard errors of the logarithms."""
        errors = np.sqrt(np.diag(self.covariance))
        return np.asarray(np.r_[np.zeros(len(self.value) - len(errors)), errors])

    @property
    def lower(self) -> Floats:
        """(K,) lower ends of the 95 % intervals."""
        return np.asarray(self.value * np.exp(-Z95 * self.error))

    @property
    def upper(self) -> Floats:
        """(K,) upper ends of the 95 % intervals."""
        return np.asarray(self.value * np.exp(Z95 * self.error))

    def plain(self) -> dict[str, Any]:
        """This estimate as JSON data."""
        own = {f.name: np.asarray(getattr(self, f.name)).tolist() for f in fields(self) if f.name != "parts"}
        return {**own, "parts": [[*key, one.plain()] for key, one in self.parts.items()]}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Examination:
        """The estimate that `plain` wrote."""
        parts = {(dimension, value): cls.of(one) for dimension, value, one in plain["parts"]}
        found: dict[str, Any] = {name: np.asarray(value) for name, value in plain.items()}
        return cls(**{**found, "requests": float(plain["requests"]), "parts": parts})


def estimate(counts: ShownCounts, depth: int) -> Examination:
    """The examination of ranks 1 to `depth`.

    Raises:
        ValueError: too few swaps link a rank with rank 1, with how many there are.
    """
    return _estimate(counts, depth, _too_few)


def estimate_random(counts: ShownCounts, depth: int) -> Examination:
    """The examination of ranks 1 to `depth` of requests whose lists were in random order.

    Where all lists reach down to `depth` it is the ratio of the ranks' click rates; shorter ones are compared within
    their query. Its `swaps` are queries that show the rank and another.

    Raises:
        ValueError: too few clicks at a rank.
    """
    return _estimate(counts.by_query, depth, _too_few_clicks)


def requests_needed(found: Examination, within: float) -> Floats:
    """(K,) how many requests in random order each rank's 95 % interval takes to reach up by this share."""
    return np.asarray(found.requests * (found.error * Z95 / np.log1p(within)) ** 2)


def _estimate(counts: ShownCounts, depth: int, too_few: Callable[[ShownCounts, int, int, Ints], str]) -> Examination:
    shown, clicked, query, _ = _swapped(counts, depth)
    total = clicked.sum(axis=1, keepdims=True)
    swaps = np.count_nonzero(shown, axis=0)
    if unlinked := _unlinked(shown, clicked):
        raise ValueError(too_few(counts, depth, unlinked, swaps))
    looks = np.zeros(depth)  # logarithms
    for _ in range(STEPS):
        share, information = _expected(shown, total, looks)
        step = np.linalg.solve(information, (clicked - total * share).sum(axis=0)[1:])
        looks[1:] += np.clip(step, -1, 1)
        if np.abs(step).max(initial=0) < ENOUGH:
            break
    else:  # clicks of linked ranks may still agree with any examination at all
        raise ValueError(too_few(counts, depth, int(np.abs(looks).argmax()) + 1, swaps))
    share, information = _expected(shown, total, looks)
    scores = np.zeros((int(query.max()) + 1, depth))
    np.add.at(scores, query, clicked - total * share)
    bread = np.linalg.inv(information)
    clustered = bread @ (scores[:, 1:].T @ scores[:, 1:]) @ bread
    covariance = clustered + np.diag(np.maximum(np.diag(bread) - np.diag(clustered), 0))
    first = counts.rank <= depth
    clicks = np.bincount(counts.rank[first] - 1, counts.clicked[first], depth).astype(float)
    return Examination(np.exp(looks), covariance, swaps, clicks, counts.requests)


def _too_few(counts: ShownCounts, depth: int, rank: int, swaps: Ints) -> str:
    """That swaps are too few at a rank: how many there are and how many are needed."""
    shown, take = counts.shown[counts.rank == rank].sum(), "use fewer ranks or more days"
    if not shown:
        return f"no items were shown at rank {rank}; {take}"
    if not counts.clicked[counts.rank == rank].sum():
        return (
            f"no clicks on the {shown:,.0f} items shown at rank {rank}; check that clicks there are logged, or {take}"
        )
    told = f"not enough swaps at rank {rank}: {swaps[rank - 1]:,} items were shown for a query both there and elsewhere"
    told += " in the same slices" if any(len(name) > len(("query", "item")) for name in counts.names[:1]) else ""
    needed = swaps_needed(counts, depth, SURE)[rank - 1]
    if not np.isfinite(needed):
        rarely = "queries repeat too rarely for any number of swaps to be enough"
        shuffle = "show some lists in random order (see `rankmon examination fit --random`), or"
        return f"{told} and clicked, and {rarely}; {shuffle} {take}"
    otherwise = f"or {take}" if swaps.any() else "the log has no swaps, so more days do not help"
    return (
        f"{told} and clicked; to know it to within {100 * SURE:.0f} %, {np.ceil(needed):,.0f} of these "
        f"{counts.requests:,.0f} requests would have to swap two neighbours drawn from the first {depth} (see `rankmon "
        f"power --swapped`); {otherwise}"
    )


def _too_few_clicks(counts: ShownCounts, depth: int, rank: int, swaps: Ints) -> str:
    """That clicks are too few at a rank of lists in random order: how many there are and how many are needed."""
    clicks, shown = (part[counts.rank == rank].sum() for part in (counts.clicked, counts.shown))
    needed = np.ceil((Z95 / np.log1p(SURE)) ** 2)
    return (
        f"not enough clicks at rank {rank} in {counts.requests:,.0f} requests in random order: {clicks:,.0f} on "
        f"{shown:,.0f} items shown there; to know it to within {100 * SURE:.0f} %, more than {needed:,.0f} are needed; "
        "rank more requests at random, or use fewer ranks or more days"
    )


class ExaminationShift(NamedTuple):
    """Where examination differs most significantly.

    Attributes:
        part: (dimension, value) of those who look elsewhere; `ALL` if it is common to all parts.
        rank: from 1.
        chance: probability that chance alone differs as much anywhere (Bonferroni over ranks and parts).
    """

    part: tuple[str, str]
    rank: int
    chance: float


def estimate_parts(parts: Mapping[tuple[str, str], ShownCounts], depth: int) -> Examination:
    """`estimate` by the counts of all parts, with that of each part. Raises ValueError: too few swaps in all."""
    every = estimate(ShownCounts.joined(list(parts.values())), depth)
    own = {key: counts for key, counts in parts.items() if key != ALL}
    return replace(every, parts=estimates(own, lambda _, counts: estimate(counts, depth))[0])


def most_changed(before: Examination, now: Examination) -> ExaminationShift:
    """The surest change of examination, of one part or of all: parts that merely became larger or smaller are none."""
    pairs = _in_both(before, now)
    found = {key: _changes([pair]) for key, pair in pairs.items()}
    if len(found) > 1:
        found[ALL] = _changes(list(pairs.values()))
    part = max(found, key=lambda key: float(found[key].max()))
    tests = len(found) * max(len(now.value) - 1, 1)
    chance = 2 * NormalDist().cdf(-float(found[part].max())) * tests
    return ExaminationShift(part, int(np.argmax(found[part])) + 1, min(1.0, chance))


def _in_both(before: Examination, now: Examination) -> dict[tuple[str, str], tuple[Examination, Examination]]:
    """(dimension, value) -> its two fits, of the parts that both have; `ALL` -> the whole if there are none."""
    pairs = {key: (before.parts[key], one) for key, one in now.parts.items() if key in before.parts}
    return pairs or {ALL: (before, now)}


def _changes(pairs: Sequence[tuple[Examination, Examination]]) -> Floats:
    """(K,) sizes of the change of the logarithms that pairs of independent fits share, in standard errors."""
    weight = np.stack([1 / (was.error[1:] ** 2 + one.error[1:] ** 2) for was, one in pairs])
    moved = np.stack([np.log(one.value / was.value)[1:] for was, one in pairs])
    return np.asarray(np.r_[0.0, np.abs((weight * moved).sum(axis=0)) / np.sqrt(weight.sum(axis=0))])


def smoothed(one: Examination) -> Examination:
    """It by what its ranks have in common, which few swaps tell better than each rank alone.

    Examination falls as a power of the rank (Joachims et al. 2017) times a constant from rank to rank (as in RBP,
    Moffat and Zobel 2008), but for a deviation of each rank's own. Both factors are unknown, and so is how large
    deviations are: each of `DEVIATIONS` counts by how likely it makes the estimate. Ranks that stand out, or are well
    known, stay.
    """
    ranks = np.arange(2.0, len(one.value) + 1)
    shape, own = -np.stack([np.log(ranks), ranks - 1], axis=1), np.eye(len(ranks)) + 1  # rank 1 deviates too
    if len(ranks) <= shape.shape[1] or len(one.covariance) > len(ranks):  # nothing in common, or known by other items
        return one
    found, fits = np.log(one.value[1:]), []
    for size in DEVIATIONS**2:
        weight = np.linalg.inv(one.covariance + size * own)
        spread = np.linalg.inv(shape.T @ weight @ shape)
        common = shape @ (spread @ shape.T @ weight @ found)
        left, kept = found - common, size * own @ weight
        odds = (np.linalg.slogdet(weight)[1] + np.linalg.slogdet(spread)[1] - left @ weight @ left) / 2
        unsure = shape - kept @ shape
        fits.append((odds, common + kept @ left, size * (own - kept @ own) + unsure @ spread @ unsure.T))
    weights = np.exp([odds - max(odds for odds, *_ in fits) for odds, *_ in fits])
    weights /= weights.sum()
    means, errors = np.stack([mean for _, mean, _ in fits]), np.stack([error for *_, error in fits])
    mean = weights @ means
    apart = means - mean
    covariance = np.tensordot(weights, errors, 1) + (weights * apart.T) @ apart
    return replace(one, value=np.exp(np.r_[0.0, mean]), covariance=covariance)


def estimate_since(before: ShownCounts, examination: Floats, now: ShownCounts) -> Examination:
    """The examination of ranks 1 to K now, relative to rank 1 before, by clicks on the same items before.

    Each item's attractiveness is taken to be the same: all that was shown of it before, each time by the examination of
    its rank, is one more rank whose examination is 1. Where another page shows the same items, this tells far more than
    swaps of few days.

    Args:
        examination: (K,) of the ranks before, by which clicks of that time are corrected.

    Raises:
        ValueError: too few items were clicked at both times.
    """
    place, query = {name: number for number, name in enumerate(before.names)}, dict[Any, int]()
    pair = np.array([place.setdefault(name, len(place)) for name in now.names], np.int64)[now.pair]
    within = before.rank <= len(examination)
    of = before.pair[within], before.rank[within] - 1
    seen = np.bincount(of[0], before.shown[within] * examination[of[1]], len(place))
    clicked = np.bincount(of[0], before.clicked[within], len(place))
    (some,) = np.nonzero(seen)
    queries = np.array([query.setdefault(str(name[0]), len(query)) for name in place], np.int64)
    pairs = np.r_[some, pair]
    ranks, shown = np.r_[np.ones(len(some), np.int64), now.rank + 1], np.r_[seen[some], now.shown]
    both = ShownCounts(queries[pairs], pairs, ranks, shown, np.r_[clicked[some], now.clicked])
    try:
        one = estimate(both, len(examination) + 1)
    except ValueError as error:
        told = "too few of the items now shown at each rank were clicked both now and before; use more days"
        raise ValueError(told) from error
    return Examination(one.value[1:], one.covariance, one.swaps[1:], one.clicks[1:], now.requests)


def estimates(
    counts: Mapping[_Part, ShownCounts], fit: Callable[[_Part, ShownCounts], Examination]
) -> tuple[dict[_Part, Examination], dict[_Part, str]]:
    """(name of a part -> its examination, name -> why it is not known)."""
    found, why = dict[_Part, Examination](), dict[_Part, str]()
    for value, of_it in counts.items():
        try:
            found[value] = fit(value, of_it)
        except ValueError as error:
            why[value] = str(error)
    return found, why


def misfit(table: Floats, one: Examination) -> int | None:
    """The rank, from 1, at which a table is surely off by more than `SURE` (Bonferroni over ranks); None if at none.

    The table has errors of its own, and what it is off by less than that moves the measure little.

    Args:
        table: (K,) examination relative to rank 1.
    """
    depth = min(len(table), len(one.value))
    apart = np.abs(np.log(one.value[1:depth] / table[1:depth]))
    quantile = NormalDist().inv_cdf(1 - UNSURE / 2 / max(depth - 1, 1))
    beyond = np.r_[0.0, apart - quantile * one.error[1:depth] - np.log1p(SURE)]
    return int(beyond.argmax()) + 1 if beyond.max() > 0 else None


def differing_slices(every: Examination, by_slice: Mapping[str, Examination]) -> list[str]:
    """The slices whose examination differs from that of all requests by more than chance (Bonferroni over them).

    A slice is part of all, so that the two errors are not independent: a difference is surer than it is taken for.
    """
    return [value for value, one in by_slice.items() if most_changed(every, one).chance * len(by_slice) < UNSURE]


def corrected_change(before: Examination, now: Examination) -> tuple[float, float, float]:
    """Relative change of DCG@K with each fit's own correction, grade 1 for a click, and its 95 % interval.

    Clicks of parts are corrected by the examination of their part. By the delta method, with Poisson counts of clicks;
    (nan, nan, nan) without any.
    """
    firsts, seconds = zip(*_in_both(before, now).values(), strict=True)
    (was, error), (value, other) = _corrected(firsts), _corrected(seconds)
    if not (was and value):
        return np.nan, np.nan, np.nan
    moved, wide = np.log(value / was), Z95 * float(np.hypot(error, other))
    low, high = np.expm1([moved - wide, moved + wide])
    return float(np.expm1(moved)), float(low), float(high)


def clicked_again(before: ShownCounts, now: ShownCounts, examination: Floats) -> tuple[float, float, float]:
    """How often items at rank 1 are clicked now, relative to clicks before on the same items, and its 95 % interval.

    It is 1 while labels are complete and people look at rank 1 as often, whatever is ranked, and wherever else people
    look. Only clicks of (query, item) shown at both times count, given how many they are together.

    Args:
        examination: (K,) of the ranks before, relative to rank 1.
    """
    place = {name: number for number, name in enumerate(before.names)}
    same = np.array([place.get(name, -1) for name in now.names], np.int64)[now.pair]
    first, within = (now.rank == 1) & (same >= 0), before.rank <= len(examination)
    size = len(before.names)
    pair = before.pair[within]
    seen = np.bincount(pair, before.shown[within] * examination[before.rank[within] - 1], size)
    clicked = np.bincount(pair, before.clicked[within], size)
    seen_now, clicked_now = (np.bincount(same[first], part[first], size) for part in (now.shown, now.clicked))
    some = (seen > 0) & (seen_now > 0)
    query = np.zeros(size, np.int64)
    query[before.pair] = before.query
    total, ratio = (clicked + clicked_now)[some], 1.0
    if not clicked[some].sum() or not clicked_now.sum():
        return np.nan, 0.0, np.inf
    for _ in range(STEPS):
        share = ratio * seen_now[some] / (seen[some] + ratio * seen_now[some])
        left, information = clicked_now[some] - total * share, (total * share * (1 - share)).sum()
        step = left.sum() / information
        ratio *= np.exp(np.clip(step, -1, 1))
        if abs(step) < ENOUGH:
            break
    clustered = (np.bincount(query[some], left) ** 2).sum() / information**2
    wide = np.exp(Z95 * np.sqrt(max(clustered, 1 / information)))
    return float(ratio), float(ratio / wide), float(ratio * wide)


def after_a_click(counts: ShownCounts, tests: int = 1) -> tuple[float, float, float]:
    """How often people click below a click, relative to the same items and ranks without one, and its 95 % interval.

    The interval holds for all `tests` at once (Bonferroni).
    It is 1 if examination depends on the rank alone, and below it if people stop at a click. The ratio of Mantel and
    Haenszel over all (query, item, rank), with the errors of Greenland and Robins (1985); (nan, 0, inf) if nothing
    tells.
    """
    below, clicked = counts.shown_below, counts.clicked_below
    others, without, every = counts.shown - below, counts.clicked - clicked, counts.shown
    over, under = (clicked * others / every).sum(), (without * below / every).sum()
    if not (over and under):
        few = not below.sum() or not counts.clicked.sum() or not under
        return (np.nan, 0.0, np.inf) if few else (0.0, 0.0, float(-np.log(UNSURE / tests) / under))  # the rule of three
    variance = ((counts.clicked * below * others - clicked * without * every) / every**2).sum() / (over * under)
    ratio, wide = over / under, np.exp(NormalDist().inv_cdf(1 - UNSURE / 2 / tests) * np.sqrt(variance))
    return float(ratio), float(ratio / wide), float(ratio * wide)


def trusts_first(counts: ShownCounts, depth: int, tests: int = 1) -> bool:
    """Whether rank 1 gains attractive items significantly less than others (Bonferroni over `tests`).

    If examination alone brings clicks, it gains all alike. Whoever trusts it also clicks there what they do not want
    (Agarwal et al. 2019, "Addressing trust bias for unbiased learning-to-rank"). The attractiveness comes from one half
    of the requests and the gain from the other, both ways: the same chance would be in both.
    """
    scores = variance = 0.0
    for first, second in zip(*(half.by_slices() for half in counts.halves()), strict=True):
        for half, other in ((first, second), (second, first)):
            try:
                score, spread = _gain_by_attractiveness(half, other, depth)
            except ValueError:  # too few swaps
                continue
            scores, variance = scores + score, variance + spread
    return bool(scores < NormalDist().inv_cdf(UNSURE / 2 / tests) * variance**0.5)


def _gain_by_attractiveness(counts: ShownCounts, other: ShownCounts, depth: int) -> tuple[float, float]:
    """(score of the effect of attractiveness on the gain of rank 1, its variance).

    The attractiveness is the clicks over expected clicks of the `other` requests, with one click at the mean rate
    added. Raises ValueError: too few swaps.
    """
    looks = estimate(other, depth).value
    within, size = other.rank <= depth, len(other.names)
    clicks = np.bincount(other.pair[within], other.clicked[within], size)
    seen = np.bincount(other.pair[within], other.shown[within] * looks[other.rank[within] - 1], size)
    attractiveness = (clicks + 1) / (seen + seen.sum() / clicks.sum())
    shown, clicked, query, pair = _swapped(counts, depth)
    total, z = clicked.sum(axis=1, keepdims=True), attractiveness[pair]
    share, information = _expected(shown, total, np.log(estimate(counts, depth).value))
    left, first = clicked - total * share, total[:, 0] * share[:, 0]
    mixed = -(share * (z * first)[:, None]).sum(axis=0)[1:]
    score = z * left[:, 0] - left[:, 1:] @ np.linalg.solve(information, mixed)
    alone = (z**2 * first * (1 - share[:, 0])).sum() - mixed @ np.linalg.solve(information, mixed)
    return float(score.sum()), float(max((np.bincount(query, score) ** 2).sum(), alone))


def by_frequency(counts: ShownCounts, depth: int) -> tuple[Examination, Examination]:
    """The examination of the most frequent queries, with half of the clicks, and of all others.

    Raises:
        ValueError: too few swaps.
    """
    shown, clicked = (np.bincount(counts.query, part) for part in (counts.shown, counts.clicked))
    order = np.argsort(-shown, kind="stable")
    is_frequent = np.zeros(len(shown), bool)
    is_frequent[order] = np.cumsum(clicked[order]) <= clicked.sum() / 2
    frequent = is_frequent[counts.query]
    return estimate(counts.where(frequent), depth), estimate(counts.where(~frequent), depth)


def _corrected(parts: Iterable[Examination]) -> tuple[float, float]:
    """(corrected DCG, its relative standard error)."""
    whole = variance = requests = 0.0
    for one in parts:
        weight = 1 / np.log2(np.arange(len(one.value)) + 2) / one.value
        adds = one.clicks * weight
        whole += float(adds.sum())
        variance += float((adds * weight).sum() + adds[1:] @ one.covariance @ adds[1:])
        requests += one.requests
    return whole / max(requests, 1), variance**0.5 / whole if whole else 0.0


def swap_errors(counts: ShownCounts, depth: int, swapped: float) -> Floats:
    """(depth,) the standard error of each rank's logarithm, were `swapped` of the requests to swap two neighbours.

    The neighbours are drawn at random from the first `depth` ranks, and other swaps do not count. Of a pair seen n
    times, a share s swapped, (n - 1) s (1 - s) swaps can be compared with the rest; the error of a ratio of clicks is
    that of Poisson counts; and each rank is compared with the one above it.

    Raises:
        ValueError: a rank was never shown, more are to be swapped than there are, or no query comes twice.
    """
    requests, again, variance = _of_one_swap(counts, depth)
    if np.isnan(variance).any():
        raise ValueError(f"no item was shown at rank {int(np.isnan(variance).argmax()) + 1}; use fewer ranks")
    if not 0 < swapped <= requests:
        raise ValueError(f"{swapped:,.0f} requests cannot swap: {requests:,.0f} show an item at rank 1")
    share = swapped / requests / (depth - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt(np.r_[0.0, variance[1:] / (again * share * (1 - share))]))


def swaps_needed(counts: ShownCounts, depth: int, within: float) -> Floats:
    """(depth,) how many requests must swap two neighbours for each rank's 95 % interval to reach up by this share.

    As by `swap_errors`; inf where all of them would be too few.
    """
    requests, again, variance = _of_one_swap(counts, depth)
    compared = variance * (Z95 / np.log1p(within)) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        left = 0.25 - compared / again  # of s (1 - s)
    needed = (0.5 - np.sqrt(np.fmax(left, 0))) * requests * (depth - 1)
    return np.where((left >= 0) & (needed <= requests), needed, np.inf)


def _of_one_swap(counts: ShownCounts, depth: int) -> tuple[float, float, Floats]:
    """(requests, those whose query came before, (depth,) variances of logarithms by one swap of each neighbours).

    A variance is nan for ranks that were not shown, and inf past one that was not clicked.
    """
    shown = np.bincount(counts.rank, counts.shown, depth + 1)[1 : depth + 1]
    clicked = np.bincount(counts.rank, counts.clicked, depth + 1)[1 : depth + 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = clicked / shown
        one = np.where(rate[1:] * rate[:-1] == 0, np.inf, 1 / (rate[:-1] + rate[1:]))
    again = counts.requests - counts.lists
    return counts.requests, again, np.cumsum(np.r_[0.0, one])


def _swapped(counts: ShownCounts, depth: int) -> tuple[Floats, Floats, Ints, Ints]:
    """(views, clicks, query, pair) of the P pairs shown at several ranks and clicked; twice (P, depth), twice (P,)."""
    kept = counts.rank <= depth
    names, pair = np.unique(counts.pair[kept], return_inverse=True)
    shown, clicked, query = np.zeros((len(names), depth)), np.zeros((len(names), depth)), np.zeros(len(names), np.int64)
    where = pair, counts.rank[kept] - 1
    np.add.at(shown, where, counts.shown[kept])
    np.add.at(clicked, where, counts.clicked[kept])
    query[pair] = counts.query[kept]
    tells = ((shown > 0).sum(axis=1) > 1) & (clicked.sum(axis=1) > 0)
    return shown[tells], clicked[tells], query[tells], names[tells]


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
