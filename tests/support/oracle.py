"""Every measure of one request as a plain loop over its definition, and random requests to hold against it.

Each function gives (numerator, denominator); the value is their quotient and undefined where the latter is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any

import numpy as np
from hypothesis import strategies as st

from monitor.measures.kernels import GradedRankings, JudgedItems
from monitor.measures.measure import SPECS, Measure


@dataclass(frozen=True)
class Request:
    """What was shown at which rank, with its grade, and the grades of judged items that were not shown."""

    shown: dict[int, float]
    unseen: list[float] = field(default_factory=list)
    sampled: bool = True


Part = tuple[float, float]


def gain(m: Measure, grade: float) -> float:
    """The grade itself, 2^grade - 1 (Burges et al. 2005), or what the table says; grade 0 may be missing there."""
    if isinstance(m.gain, tuple):
        return {0.0: 0.0, **dict(m.gain)}[grade]
    return 2.0**grade - 1 if m.gain == "exp2" else grade


def discount(m: Measure, rank: int) -> float:
    """1/log2(rank + 1); or 1 at ranks 1 and 2, then 1/log2(rank) (Jarvelin and Kekalainen 2002); or 1/rank.

    Divided by the examination of its rank.
    """
    looks = dict(m.examination).get(rank, 1.0)
    if m.discount == "log2":
        return 1 / log2(rank + 1) / looks
    return 1 / rank / looks if m.discount == "reciprocal" else 1 / max(1.0, log2(rank)) / looks


def top(m: Measure, q: Request) -> dict[int, float]:
    """The first k ranks of the list."""
    return {rank: grade for rank, grade in q.shown.items() if m.k is None or rank <= m.k}


def best(m: Measure, q: Request) -> list[float]:
    """The grades that the ideal list is made of, in any order."""
    return {
        "local": list(top(m, q).values()),
        "recall": list(q.shown.values()),
        "global": list(q.shown.values()) + q.unseen,
        "max": [m.max_grade or 0.0] * (m.k or 0),
    }[m.ideal]


def is_relevant(m: Measure, grade: float) -> bool:
    """At or above the threshold; without one, above 0."""
    return grade > 0 if m.rel is None else grade >= m.rel


def hits(m: Measure, q: Request) -> list[int]:
    """Ranks of the relevant items within k, in order."""
    return sorted(rank for rank, grade in top(m, q).items() if is_relevant(m, grade))


def cg(m: Measure, q: Request) -> Part:
    """Sum of the gains, each by the examination of its rank."""
    looks = dict(m.examination)
    return sum(gain(m, grade) / looks.get(rank, 1.0) for rank, grade in top(m, q).items()), 1


def dcg(m: Measure, q: Request) -> Part:
    """Sum of gain times discount."""
    return sum(gain(m, grade) * discount(m, rank) for rank, grade in top(m, q).items()), 1


def squares(m: Measure, q: Request) -> float:
    """Sum of the squares of what DCG or CG adds."""
    part = cg if m.name == "cg" else dcg
    return sum(part(m, Request({rank: grade}, q.unseen))[0] ** 2 for rank, grade in top(m, q).items())


def snips(m: Measure, q: Request) -> Part:
    """DCG by CG (Swaminathan and Joachims 2015)."""
    return dcg(m, q)[0], cg(m, q)[0]


def ndcg(m: Measure, q: Request) -> Part:
    """DCG by the DCG of the best list there could be."""
    ideal = sorted((gain(m, grade) for grade in best(m, q)), reverse=True)[: m.k]
    return dcg(m, q)[0], sum(g * discount(m, rank) for rank, g in enumerate(ideal, 1))


def precision(m: Measure, q: Request) -> Part:
    """Relevant items by k, however few were shown; of a whole list by its length."""
    return len(hits(m, q)), len(q.shown) if m.k is None else m.k


def found(m: Measure, q: Request) -> int:
    """Relevant items that there are to be found."""
    return sum(is_relevant(m, grade) for grade in best(m, q))


def recall(m: Measure, q: Request) -> Part:
    """Relevant items within k by those to be found."""
    return len(hits(m, q)), found(m, q)


def average_precision(m: Measure, q: Request) -> Part:
    """Sum of the precision at the rank of each relevant item within k, by those to be found."""
    return sum(nth / rank for nth, rank in enumerate(hits(m, q), 1)), found(m, q)


def reciprocal_rank(m: Measure, q: Request) -> Part:
    """1 by the rank of the first relevant item, 0 where there is none."""
    return sum(1 / rank for rank in hits(m, q)[:1]), 1


def hit_rate(m: Measure, q: Request) -> Part:
    """1 where something relevant was within k."""
    return float(len(hits(m, q)) > 0), 1


def expected_reciprocal_rank(m: Measure, q: Request) -> Part:
    """Chapelle et al. (2009): 1/rank of where a person stops, who stops with (2^grade - 1) / 2^max_grade."""
    value, reached = 0.0, 1.0
    for rank, grade in sorted(top(m, q).items()):
        stops = (2.0**grade - 1) / 2.0 ** (m.max_grade or 0)
        value += reached * stops / rank
        reached *= 1 - stops
    return value, 1


def rank_biased_precision(m: Measure, q: Request) -> Part:
    """Moffat and Zobel (2008): (1 - p) times the sum of p^(rank - 1) over the relevant items."""
    p = m.p or 0.0
    return (1 - p) * sum(p ** (rank - 1) for rank in hits(m, q)), 1


def click_through_rate(m: Measure, q: Request) -> Part:
    """Relevant items by shown items, within k."""
    return len(hits(m, q)), len(top(m, q))


def clicks_over_expected(m: Measure, q: Request) -> Part:
    """Relevant items by the examination of the ranks that show an item, within k."""
    return len(hits(m, q)), sum(dict(m.examination).get(rank, 1.0) for rank in top(m, q))


def click_position(m: Measure, q: Request) -> Part:
    """Sum of the ranks of the relevant items by their number, within k."""
    return sum(hits(m, q)), len(hits(m, q))


ORACLE: dict[str, Callable[[Measure, Request], Part]] = {
    "ndcg": ndcg,
    "dcg": dcg,
    "snips": snips,
    "cg": cg,
    "precision": precision,
    "recall": recall,
    "map": average_precision,
    "mrr": reciprocal_rank,
    "hit_rate": hit_rate,
    "err": expected_reciprocal_rank,
    "rbp": rank_biased_precision,
    "ctr": click_through_rate,
    "coec": clicks_over_expected,
    "click_position": click_position,
}


def is_empty(m: Measure, q: Request) -> bool:
    """Whether the value is undefined or, where the formula gives 0, nothing in the whole list is relevant."""
    if m.name in ("cg", "dcg"):
        return sum(gain(m, grade) for grade in q.shown.values()) == 0
    if m.name in ("precision", "mrr", "hit_rate", "err", "rbp"):
        return not any(is_relevant(m, grade) for grade in q.shown.values())
    if m.ideal == "max" and sum(gain(m, grade) for grade in q.shown.values()) == 0:
        return True
    return ORACLE[m.name](m, q)[1] == 0


def rankings(requests: Sequence[Request], sparse: bool = False) -> GradedRankings:
    """The columns of some requests, with their rows of grade 0 or, sparse, without them."""
    cells = [(n, rank, g) for n, q in enumerate(requests) for rank, g in q.shown.items() if g > 0 or not sparse]
    pools = [Counter(g for g in [*q.shown.values(), *q.unseen] if g > 0 or not sparse) for q in requests]
    judged = [(n, grade, count) for n, pool in enumerate(pools) for grade, count in pool.items()]
    return GradedRankings(
        size=len(requests),
        request=np.array([n for n, _, _ in cells], int),
        rank=np.array([rank for _, rank, _ in cells], int),
        grade=np.array([grade for _, _, grade in cells], float),
        sampled=np.array([q.sampled for q in requests], bool),
        shown=_Shown(requests),
        judged=JudgedItems(
            np.array([n for n, _, _ in judged], int),
            np.array([grade for _, grade, _ in judged], float),
            np.array([count for _, _, count in judged], int),
        ),
    )


class _Shown(dict[Any, np.typing.NDArray[Any]]):
    """Depth -> items shown, or the sum of a table over their ranks, of each request."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    def __missing__(self, depth: Any) -> np.typing.NDArray[Any]:
        table = dict(depth) if isinstance(depth, tuple) else None
        within = [[rank for rank in q.shown if table or depth is None or rank <= depth] for q in self._requests]
        if table is None:
            return np.array([len(ranks) for ranks in within], int)
        return np.array([sum(table.get(rank, 0) for rank in ranks) for ranks in within], float)


def listed(grades: Sequence[float | None], unseen: Sequence[float] = ()) -> Request:
    """The request that showed `grades` in this order; None is an item that nobody judged, and gives no row."""
    return Request({rank: grade for rank, grade in enumerate(grades, 1) if grade is not None}, list(unseen))


Table = tuple[tuple[float, float], ...]

TABLES: list[Table] = [
    ((1.0, 1.0), (2.0, 3.0)),
    ((0.0, 0.0), (0.5, 0.25), (1.0, 1.0), (3.0, 1.0)),
    ((0.0, 1.0), (1.0, 4.0), (2.0, 5.5)),
]
LOOKS: Table = tuple((float(rank), 1 / rank) for rank in range(1, 13))
TOP_GRADES = [2.0, 3.0, 4.5]
GRADES = [0.0, 1.0, 2.0] * 5 + [n / 7 for n in range(32)]


OF_LABELS = sorted(name for name, spec in SPECS.items() if not spec.is_of_lists)
"""The kinds that are of grades; `no_results` needs none."""


@st.composite
def measures(draw: st.DrawFn, name: str | None = None, ideal: str | None = None) -> Measure:
    """Any measure that `parse` can give."""
    name = draw(st.sampled_from(OF_LABELS)) if name is None else name
    spec = SPECS[name]
    choices: dict[str, st.SearchStrategy[object]] = {
        "gain": st.sampled_from(["linear", "exp2", *TABLES]),
        "discount": st.sampled_from(["log2", "jarvelin", "reciprocal"]),
        "ideal": st.sampled_from(spec.ideals or ("recall",)) if ideal is None else st.just(ideal),
        "rel": st.sampled_from([None, 0.5, 2.0]),
        "p": st.sampled_from([0.5, 0.8, 0.95]),
        "aggregate": st.sampled_from(["mean", "pooled"]),
        "empty": st.sampled_from(spec.empties),
        "examination": st.sampled_from([(), LOOKS]),
    }
    given = {option: draw(choices[option]) for option in sorted(spec.options - {"max_grade"})}
    options = {"aggregate": spec.aggregate, "empty": spec.empty, **given}
    if options["aggregate"] == "pooled":
        options["empty"] = "zero" if options.get("ideal") == "max" else spec.empty
    needs_top = name == "err" or options.get("ideal") == "max"
    if needs_top:
        table = options.get("gain")
        tops = [g for g in _tabled(table) if g > 0] if isinstance(table, tuple) else TOP_GRADES
        options["max_grade"] = draw(st.sampled_from(tops))
    cutoff = st.integers(1, 12) | st.just(100)
    if options.get("examination"):
        cutoff, needs_k = st.integers(1, 12), True
    else:
        needs_k = options.get("ideal") == "max"
    k = draw(cutoff if needs_k else st.none() | cutoff | st.just(999_999))
    return Measure(name, k, **options)  # type: ignore[arg-type]


def _tabled(table: Table) -> list[float]:
    return sorted({0.0} | {grade for grade, _ in table})


def requests_for(m: Measure) -> st.SearchStrategy[list[Request]]:
    """Some requests that `m` can score: none at all, without rows, with gaps, with ranks up to a million."""
    limit = 99.0 if m.max_grade is None else m.max_grade
    known = _tabled(m.gain) if isinstance(m.gain, tuple) else GRADES
    grades = st.sampled_from([grade for grade in known if grade <= limit])
    rank = st.integers(1, 12) | st.integers(1, 1_000_000)
    request = st.builds(
        Request, st.dictionaries(rank, grades, max_size=10), st.lists(grades, max_size=4), st.booleans()
    )
    return st.lists(request, max_size=6)


@st.composite
def cases(draw: st.DrawFn, name: str | None = None, ideal: str | None = None) -> tuple[Measure, list[Request]]:
    """Any measure with requests that it can score."""
    m = draw(measures(name, ideal))
    return m, draw(requests_for(m))
