"""NDCG@10 by other tools: `python -m tests.benchmarks.tools_peer TOOL < lists.json` prints the mean over the lists.

Run by the Python of the environment that `tools.txt` makes where a tool is not among the development's own packages.
Each list is `[grades by rank, grades of items that are judged and were not shown]`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence

K = 10
Lists = Sequence[tuple[Sequence[int], Sequence[int]]]
Trec = tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]


def _trec(lists: Lists) -> Trec:
    """(judgments, run) with items named by their places."""
    judged = {f"q{n}": {f"d{i}": g for i, g in enumerate([*shown, *more])} for n, (shown, more) in enumerate(lists)}
    run = {f"q{n}": {f"d{i}": 100.0 - i for i in range(len(shown))} for n, (shown, _) in enumerate(lists)}
    return judged, run


def scikit_learn(lists: Lists) -> float:
    """`ndcg_score` of each list."""
    from sklearn.metrics import ndcg_score

    return _mean([ndcg_score([shown], [range(len(shown), 0, -1)], k=K) for shown, _ in lists])


def pytrec_eval(lists: Lists) -> float:
    """trec_eval's `ndcg_cut_10`, which ir_measures calls too."""
    from pytrec_eval import RelevanceEvaluator

    judged, run = _trec(lists)
    return _mean([found["ndcg_cut_10"] for found in RelevanceEvaluator(judged, {"ndcg_cut.10"}).evaluate(run).values()])


def ir_measures(lists: Lists) -> float:
    """`nDCG@10`."""
    import ir_measures as tool

    judged, run = _trec(lists)
    return float(tool.calc_aggregate([tool.nDCG @ K], judged, run)[tool.nDCG @ K])


def ranx(lists: Lists, metric: str = "ndcg@10") -> float:
    """One metric of ranx."""
    from ranx import Qrels, Run, evaluate

    judged, run = _trec(lists)
    return float(evaluate(Qrels(judged), Run(run), metric))


def ranx_burges(lists: Lists) -> float:
    """`ndcg_burges@10`."""
    return ranx(lists, "ndcg_burges@10")


def xgboost(lists: Lists) -> float:
    """The metric `ndcg@10` of a booster that predicts what is its only feature."""
    import numpy as np
    import xgboost as tool

    matrix = tool.DMatrix(np.zeros((sum(len(s) for s, _ in lists), 1)), [g for shown, _ in lists for g in shown])
    matrix.set_group([len(shown) for shown, _ in lists])
    matrix.set_base_margin([-float(i) for shown, _ in lists for i in range(len(shown))])
    settings = {"objective": "rank:ndcg", "eval_metric": f"ndcg@{K}", "eta": 0, "lambdarank_pair_method": "topk"}
    booster = tool.train(settings, matrix, num_boost_round=1)
    return float(booster.eval(matrix).split(":")[-1])


def lightgbm(lists: Lists) -> float:
    """The metric `ndcg@10` of a model that learns nothing, on scores that are set."""
    import lightgbm as tool
    import numpy as np

    rows, scores = sum(len(s) for s, _ in lists), [-float(i) for shown, _ in lists for i in range(len(shown))]
    grades, groups = [g for shown, _ in lists for g in shown], [len(shown) for shown, _ in lists]
    data = tool.Dataset(np.arange(rows)[:, None], grades, group=groups, init_score=scores, free_raw_data=False)
    settings = {"objective": "lambdarank", "metric": "ndcg", "eval_at": [K], "learning_rate": 1e-12, "verbose": -1}
    model = tool.train(settings, data, num_boost_round=1, valid_sets=[data], keep_training_booster=True)
    return float(model.eval_train()[0][2])


def catboost(lists: Lists) -> float:
    """`NDCG:top=10`, by the utility that evaluates given scores."""
    from catboost.utils import eval_metric

    grades, scores = ([x for one in found for x in one] for found in zip(*_scored(lists), strict=True))
    groups = [n for n, (shown, _) in enumerate(lists) for _ in shown]
    return float(eval_metric(grades, scores, f"NDCG:top={K}", group_id=groups)[0])


def gdeval(lists: Lists) -> float:
    """The formula of gdeval.pl: 2^grade - 1 over log2(rank + 1), the ideal of all judgments, 0 without one."""
    return _mean([_over(_dcg(shown), _dcg(sorted([*shown, *more], reverse=True))) for shown, more in lists])


def elasticsearch(lists: Lists) -> float:
    """`dcg` with `normalize`, by the formula of Elasticsearch: its ideal is cut to the number of hits."""
    found = []
    for shown, more in lists:
        best = sorted([*shown, *more], reverse=True)[: min(len(shown), K)]
        found.append(_over(_dcg(shown), _dcg(best)))
    return _mean(found)


def evidently(lists: Lists) -> float:
    """The formula of `NDCGKMetric`: binary, of the given items, users without a hit left out."""
    found = []
    for shown, _ in lists:
        hits = [int(g > 0) for g in shown]
        if any(hits):
            found.append(_dcg(hits) / _dcg(sorted(hits, reverse=True)))
    return _mean(found)


def jarvelin(lists: Lists) -> float:
    """Jarvelin and Kekalainen (2002), equations 2 and 6, with base 2; lists without anything relevant left out."""
    found = []
    for shown, _ in lists:
        ideal = _jarvelin_dcg(sorted(shown, reverse=True))
        found += [_jarvelin_dcg(shown) / ideal] if ideal else []
    return _mean(found)


def _jarvelin_dcg(grades: Sequence[int]) -> float:
    return sum(g / max(1.0, math.log2(rank)) for rank, g in enumerate(grades[:K], 1))


def _scored(lists: Lists) -> list[tuple[Sequence[int], list[float]]]:
    return [(shown, [-float(i) for i in range(len(shown))]) for shown, _ in lists]


def _dcg(grades: Sequence[int]) -> float:
    return sum((2**g - 1) / math.log2(rank + 1) for rank, g in enumerate(grades[:K], 1))


def _over(some: float, every: float) -> float:
    return some / every if every else 0.0


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))


TOOLS: dict[str, Callable[[Lists], float]] = {
    one.__name__: one
    for one in (
        scikit_learn, pytrec_eval, ir_measures, ranx, ranx_burges, gdeval, xgboost, lightgbm, catboost, elasticsearch,
        evidently, jarvelin,
    )
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps(TOOLS[sys.argv[1]](json.load(sys.stdin))))
