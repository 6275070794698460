"""NDCG@10 of many lists: rankmon's kernel against ranx, pytrec_eval and pandas, each from the same DataFrame."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import isclose
from typing import Any

import numpy as np
import pandas as pd

from monitor.measures.kernels import GradedRankings, score
from monitor.measures.measure import parse
from tests.benchmarks.data import LENGTH, Ids, lists
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved

MEASURE = parse("ndcg@10")
TOLERANCE = 1e-6

_DISCOUNTS = 1 / np.log2(np.arange(2, 12))


@dataclass(frozen=True)
class Contender:
    """One way to the mean NDCG@10: `convert` turns the DataFrame into what `mean` takes.

    Attributes:
        module: what must be installed.
        aim: how many times rankmon's time it should take.
        share: of the requests that are timed; the time is then scaled up.
    """

    name: str
    module: str
    aim: float
    share: float
    convert: Callable[[pd.DataFrame], Any]
    mean: Callable[[Any], float]

    @property
    def is_installed(self) -> bool:
        """Whether it can be timed here."""
        return find_spec(self.module) is not None

    def run(self, frame: pd.DataFrame) -> float:
        """The whole way."""
        return self.mean(self.convert(frame))


@dataclass(frozen=True)
class Variant:
    """What kind of lists."""

    title: str
    graded: bool
    ids: Ids


VARIANTS = (
    Variant("grades 0 and 1, request ids are text", False, "text"),
    Variant("grades 0 to 4, request ids are text", True, "text"),
    Variant("grades 0 and 1, request ids are numbers", False, "number"),
)


def rankings(frame: pd.DataFrame) -> GradedRankings:
    """Of a DataFrame with all rows, or with the relevant ones only."""
    request, names = pd.factorize(frame["request_id"])
    position, grade = frame["position"].to_numpy(), frame["grade"].to_numpy(np.float64)
    return GradedRankings(len(names), request, position, grade, np.ones(len(names), bool))


def mean(rows: GradedRankings, requests: int) -> float:
    """Over all requests; those without a row have nothing relevant and count 0."""
    return float(score(MEASURE, rows).value.sum()) / requests


def _ranx_convert(frame: pd.DataFrame) -> Any:
    from ranx import Qrels, Run

    text = {name: frame[name].astype(str).astype(object) for name in ("request_id", "item_id")}
    frame = frame.assign(**text, score=-frame["position"].astype(float))
    qrels = Qrels.from_df(frame, q_id_col="request_id", doc_id_col="item_id", score_col="grade")
    return qrels, Run.from_df(frame, q_id_col="request_id", doc_id_col="item_id", score_col="score")


def _ranx_mean(converted: Any) -> float:
    from ranx import evaluate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba on its own casts
        return float(evaluate(*converted, "ndcg@10"))


def _trec_convert(frame: pd.DataFrame) -> Any:
    judged: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    text = (frame[name].astype(str).tolist() for name in ("request_id", "item_id"))
    numbers = (frame["grade"].tolist(), (-frame["position"].astype(float)).tolist())
    for request, item, grade, worth in zip(*text, *numbers, strict=True):
        judged.setdefault(request, {})[item] = grade
        run.setdefault(request, {})[item] = worth
    return judged, run


def _trec_mean(converted: Any) -> float:
    import pytrec_eval

    judged, run = converted
    found = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(run)
    return float(np.mean([one["ndcg_cut_10"] for one in found.values()]))


def _apply_mean(frame: pd.DataFrame) -> float:
    return float(frame.groupby("request_id")[["position", "grade"]].apply(ndcg).mean())


def ndcg(group: pd.DataFrame) -> float:
    """Of one request, in NumPy."""
    grade = group["grade"].to_numpy()[np.argsort(group["position"].to_numpy())]
    best = -np.sort(-grade)[:10]
    ideal = best @ _DISCOUNTS[: len(best)]
    return float(grade[:10] @ _DISCOUNTS[: len(best)] / ideal) if ideal else 0.0


PEERS = (
    Contender("ranx", "ranx", 30, 0.1, _ranx_convert, _ranx_mean),
    Contender("pytrec_eval", "pytrec_eval", 60, 1.0, _trec_convert, _trec_mean),
    Contender("pandas groupby.apply", "pandas", 500, 0.2, lambda frame: frame, _apply_mean),
)


def sections(requests: int, rounds: int, peers: Sequence[Contender] = PEERS) -> Iterator[Section]:
    """One table for each of `VARIANTS`, and one of the scores alone.

    Raises:
        RuntimeError: a peer gives another mean.
    """
    for number, variant in enumerate(VARIANTS):
        frame = lists(requests, variant.graded, variant.ids)
        lines = compare(frame, requests, rounds, peers)
        columns = ("what", "time", "times rankmon's", "aim", "met")
        yield Section(f"NDCG@10 of {requests:,} lists of {LENGTH}: {variant.title}", columns, lines, REMARKS)
        if number == 0:
            alone = list(compare_scores_alone(frame, requests, rounds, peers))
            yield Section("The same, converted beforehand", columns, alone, REMARKS_ALONE)


REMARKS = """\
A tenth of the items is relevant. All use linear gain, log2 discount, the ideal over all listed items cut at 10, and the
mean over all requests, where a request without a relevant item counts 0. A check confirms that the means agree to 1e-6.
Each time includes the conversion from one DataFrame (request_id, item_id, position, grade): `factorize` for rankmon,
`from_df` for ranx (already compiled), dicts for pytrec_eval. rankmon gets the relevant rows, as its pull reads them,
and then all rows. A time marked "scaled" was measured on that many requests and scaled up to all."""

REMARKS_ALONE = "The first table's lists as each library's own objects; only the scoring is timed."


def compare(frame: pd.DataFrame, requests: int, rounds: int, peers: Sequence[Contender]) -> list[Line]:
    """The lines of one table."""
    installed = [peer for peer in peers if peer.is_installed]
    for peer in installed:
        check(peer, frame.head(_sample(peer, requests) * LENGTH))
    relevant = frame[frame["grade"] > 0].reset_index(drop=True)
    own = [
        ("relevant", lambda: mean(rankings(relevant), requests)),
        ("all", lambda: mean(rankings(frame), requests)),
    ]
    calls: list[tuple[str, Callable[[], Any]]] = [*own]
    for peer in installed:
        calls += [(peer.name, partial(peer.run, frame.head(_sample(peer, requests) * LENGTH))), *own]
    taken = interleaved(calls, rounds)
    lines = [
        Line("rankmon, relevant rows", duration(taken["relevant"])),
        Line("rankmon, all rows", duration(taken["all"])),
    ]
    for peer in peers:
        lines += _against(peer, requests, taken, {"relevant rows": taken["relevant"], "all rows": taken["all"]})
    return lines


def compare_scores_alone(frame: pd.DataFrame, requests: int, rounds: int, peers: Sequence[Contender]) -> Iterator[Line]:
    """The scores alone, with everything converted beforehand."""
    relevant = rankings(frame[frame["grade"] > 0])
    calls: list[tuple[str, Callable[[], Any]]] = [("own", lambda: mean(relevant, requests))] * 3
    peers = [p for p in peers if p.module != "pandas"]
    for peer in peers:
        if peer.is_installed:
            converted = peer.convert(frame.head(_sample(peer, requests) * LENGTH))
            calls.append((peer.name, partial(peer.mean, converted)))
    taken = interleaved(calls, rounds)
    yield Line("rankmon, relevant rows", duration(taken["own"]))
    for peer in peers:
        yield from _against(peer, requests, taken, {"relevant rows": taken["own"]}, aimed=False)


def _sample(peer: Contender, requests: int) -> int:
    return max(1, round(requests * peer.share))


def _against(
    peer: Contender, requests: int, taken: dict[str, float], own: dict[str, float], aimed: bool = True
) -> Iterator[Line]:
    for fed, seconds in own.items():
        what = f"{peer.name}, against rankmon on {fed}"
        if not peer.is_installed:
            yield Line(what, "not installed")
            continue
        whole = taken[peer.name] * requests / _sample(peer, requests)
        scaled = "" if peer.share == 1 else f" (scaled from {_sample(peer, requests):,})"
        yield Line(what, duration(whole) + scaled, whole / seconds, peer.aim if aimed else None)


def check(peer: Contender, frame: pd.DataFrame) -> None:
    """Run it once, which also compiles what it compiles.

    Raises:
        RuntimeError: its mean is not rankmon's, from the relevant rows or from all.
    """
    requests, theirs = len(frame) // LENGTH, peer.run(frame)
    for rows in (frame, frame[frame["grade"] > 0]):
        ours = mean(rankings(rows), requests)
        if not isclose(ours, theirs, rel_tol=TOLERANCE):
            raise RuntimeError(f"{peer.name} says {theirs}, rankmon says {ours}")


def linearity(requests: int, rounds: int, peers: Sequence[Contender] = PEERS) -> Section:
    """Whether a time may be scaled: how much longer the whole sample takes than half of it."""
    frame = lists(requests, VARIANTS[0].graded, VARIANTS[0].ids)
    lines = []
    for peer in peers:
        if peer.share == 1 or not peer.is_installed:
            continue
        whole, half = (_sample(peer, requests) // part for part in (1, 2))
        calls = [(str(n), partial(peer.run, frame.head(n * LENGTH))) for n in (whole, half)]
        taken = interleaved(calls, rounds)
        figure = f"{duration(taken[str(half)])}, then {duration(taken[str(whole)])}"
        lines.append(
            Line(f"{peer.name}, {half:,} and {whole:,} requests", figure, taken[str(whole)] / taken[str(half)])
        )
    columns = ("what", "times", "ratio", "aim", "met")
    remarks = "The scaled times above hold if twice the requests take about twice the time."
    return Section("Whether times may be scaled", columns, lines, remarks)
