"""NDCG@10 of all requests in PostgreSQL: rankmon against libraries that are fed from the same database.

Each library gets what it needs: pytrec_eval, ir_measures and ranx the lists and the relevant items by two queries,
Evidently one table with a grade in each row. PostgreSQL joins labels and rankings in all cases.
"""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from math import isclose
from pathlib import Path
from typing import IO, Any

import pandas as pd

from tests.benchmarks.cycle import NDCG
from tests.benchmarks.data import ATTRIBUTION
from tests.benchmarks.feeds import FEED_MODULES, FEEDS, Feed
from tests.benchmarks.memory import ROOT
from tests.benchmarks.postgres import WAYS, Copied
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved
from tests.benchmarks.ways import backfill

AIMS = {"pandas.read_sql": 7, "ADBC": 2}
"""Feed -> how many times rankmon's time the fastest library should take by it."""
TOLERANCE = 1e-9
WARM = 50
"""Requests of a warm-up run, which does all late imports and compiles."""
EVIDENTLY = ROOT / ".venv-evidently" / "bin" / "python"

_COUNTS = (
    "e.request_id = r.request_id AND e.item_id = r.item_id AND e.type = 'click' "
    f"AND e.occurred_at >= r.served_at AND e.occurred_at < r.served_at + interval '{ATTRIBUTION} seconds'"
)
_RUN = (
    "SELECT request_id::text AS query_id, item_id::text AS doc_id, -position::float8 AS score FROM rankings "
    "WHERE request_id <= {most}"
)
_QRELS = (
    "SELECT DISTINCT r.request_id::text AS query_id, r.item_id::text AS doc_id, 1 AS relevance "
    f"FROM rankings r JOIN events e ON {_COUNTS} WHERE r.request_id <= {{most}}"
)
_GRADED = (
    "SELECT r.request_id, r.item_id, r.position, (g.request_id IS NOT NULL)::int AS grade FROM rankings r LEFT JOIN "
    f"(SELECT DISTINCT r.request_id, r.item_id FROM rankings r JOIN events e ON {_COUNTS}) g "
    "ON g.request_id = r.request_id AND g.item_id = r.item_id WHERE r.request_id <= {most}"
)
_FIRST = " AND position <= 10"
SHORTENED = "fed the first 10 of each list"
"""In the names of those that get less than rankmon reads."""

Job = Callable[[Feed, int], float]
"""(feed, largest id) -> the mean NDCG of the requests up to that id."""


@dataclass(frozen=True)
class Peer:
    """A library. `module` is what must be installed."""

    name: str
    module: str
    job: Job


def _both(feed: Feed, most: int, run: str = _RUN) -> tuple[pd.DataFrame, pd.DataFrame]:
    return feed(_QRELS.format(most=most)), feed(run.format(most=most))


def _trec(feed: Feed, most: int, run: str = _RUN) -> float:
    import pytrec_eval

    relevant, lists = _both(feed, most, run)
    evaluator = pytrec_eval.RelevanceEvaluator(_nested(relevant, "relevance"), {"ndcg_cut.10"})
    found = [one["ndcg_cut_10"] for one in evaluator.evaluate(_nested(lists, "score")).values()]
    return float(sum(found) / len(found))


def _nested(frame: pd.DataFrame, value: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    columns = (frame[name].tolist() for name in ("query_id", "doc_id", value))
    for query, doc, number in zip(*columns, strict=True):
        found.setdefault(query, {})[doc] = number
    return found


def _ir_measures(feed: Feed, most: int) -> float:
    import ir_measures

    measure = ir_measures.nDCG @ 10
    return float(ir_measures.calc_aggregate([measure], *_both(feed, most))[measure])


def _ranx(feed: Feed, most: int) -> float:
    from ranx import Qrels, Run, evaluate

    relevant, lists = _both(feed, most)
    text, names = {"query_id": object, "doc_id": object}, {"q_id_col": "query_id", "doc_id_col": "doc_id"}
    qrels = Qrels.from_df(relevant.astype({**text, "relevance": "int64"}), score_col="relevance", **names)
    run = Run.from_df(lists.astype(text), score_col="score", **names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba on its own casts
        return float(evaluate(qrels, run, "ndcg@10", make_comparable=True))


PEERS = (
    Peer("pytrec_eval", "pytrec_eval", _trec),
    Peer(f"pytrec_eval, {SHORTENED}", "pytrec_eval", partial(_trec, run=_RUN + _FIRST)),
    Peer("ir_measures", "ir_measures", _ir_measures),
    Peer("ranx", "ranx", _ranx),
)
REMARKS = """\
A tenth of the items is relevant. All compute the mean NDCG@10 over the requests with a relevant item; a check confirms
that they agree to 1e-9. rankmon runs its whole cycle by push-down, ndcg@10 by the hour without slices, into an empty
store. pytrec_eval (dicts), ir_measures (DataFrames) and ranx (`from_df`, already compiled) get the lists and the
relevant items by two queries, with ids as text, as they require. NDCG@10 needs only the first ten items of a list; the
fastest of them also runs on those alone. Evidently gets one table with a grade in each row, in its own process and
environment (it cannot be imported with pandas 3), and also computes NDCG at 1 to 9. The aims are for the fastest by
each feed: among those fed what rankmon reads, and among all."""


class Evidently:
    """Evidently in its own process, kept while the benchmark runs."""

    def __init__(self, url: str) -> None:
        """Start it; the first answer waits for its imports."""
        command: list[str | Path] = [EVIDENTLY, "-m", "tests.benchmarks.evidently_peer", url]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def __enter__(self) -> Evidently:
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def mean(self, feed: str, most: int) -> float:
        """The mean NDCG as Evidently computes it.

        Raises:
            RuntimeError: it ended instead.
        """
        asked: IO[str] | None = self._process.stdin
        said: IO[str] | None = self._process.stdout
        assert asked is not None
        assert said is not None
        asked.write(f"{feed}\t{_GRADED.format(most=most)}\n")
        asked.flush()
        answer = said.readline()
        if not answer:
            raise RuntimeError(f"Evidently ended with {self._process.wait()}")
        return float(answer)


def section(copied: Copied, folder: Path, rounds: int, is_quick: bool = False) -> Section:
    """The table; Evidently is in it where its environment was made.

    Args:
        is_quick: without Evidently, which takes long to start, and without ranx, which compiles for a minute.

    Raises:
        RuntimeError: one gives another mean.
    """
    with ExitStack() as stack:
        evidently = stack.enter_context(Evidently(copied.url)) if EVIDENTLY.exists() and not is_quick else None
        peers = [peer for peer in PEERS if not (is_quick and peer.module == "ranx")]
        lines = list(_lines(copied, folder, rounds, peers, evidently))
    title = f"NDCG@10 of {copied.log.requests:,} requests in PostgreSQL, against libraries fed from it"
    return Section(title, ("what", "time", "times rankmon's", "aim", "met"), lines, REMARKS)


def _lines(
    copied: Copied, folder: Path, rounds: int, peers: Sequence[Peer], evidently: Evidently | None
) -> Iterator[Line]:
    jobs: dict[tuple[str, str], Callable[[int], float]] = {}
    for feed, make in FEEDS.items():
        if not _is_there(FEED_MODULES[feed]):
            continue
        fed = make(copied.url)
        jobs |= {(peer.name, feed): partial(peer.job, fed) for peer in peers if _is_there(peer.module)}
        if evidently is not None:
            jobs["Evidently", feed] = partial(evidently.mean, feed)
    for job in jobs.values():
        job(WARM)
    place, number, means = copied.place, count(), dict[str, float]()
    place = replace(place, monitor=replace(place.monitor, measures=(NDCG,), slices=()))

    def ours() -> None:
        store = folder / f"peers-{next(number)}.db"
        means["rankmon"] = backfill(place, copied.log, store, WAYS["push-down"])[1]

    def theirs(name: str, job: Callable[[int], float]) -> None:
        means[name] = job(copied.log.requests)

    calls: list[tuple[str, Callable[[], None]]] = [("rankmon", ours)]
    for (name, feed), job in jobs.items():
        what = f"{name}, by {feed}"
        calls += [(what, partial(theirs, what, job)), ("rankmon", ours)]
    taken = interleaved(calls, rounds)
    _check(means)
    yield Line("rankmon", duration(taken["rankmon"]))
    yield from (_against(what, taken, what) for what in means if what != "rankmon")
    for feed, aim in AIMS.items():
        by_feed = [what for what in means if what.endswith(f", by {feed}")]
        whole = [what for what in by_feed if SHORTENED not in what]
        for which, names in ((", fed whole lists", whole), ("", by_feed)):
            if names:
                yield _against(f"the fastest of them{which}, by {feed}", taken, min(names, key=taken.__getitem__), aim)
    for name in [peer.name for peer in peers if not _is_there(peer.module)] + ["Evidently"] * (evidently is None):
        yield Line(name, "not installed")


def _against(what: str, taken: dict[str, float], name: str, aim: float | None = None) -> Line:
    return Line(what, duration(taken[name]), taken[name] / taken["rankmon"], aim)


def _check(means: dict[str, float]) -> None:
    wrong = {name: mean for name, mean in means.items() if not isclose(mean, means["rankmon"], rel_tol=TOLERANCE)}
    if wrong:
        raise RuntimeError(f"rankmon says {means['rankmon']}, but {wrong}")


def _is_there(module: str) -> bool:
    return find_spec(module) is not None
