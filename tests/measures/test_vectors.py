"""Values computed by others: our golden file, worked examples and the test suites of other libraries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.measures.kernels import score
from monitor.measures.measure import Measure, parse
from monitor.series.partials import read_as, sums
from tests.support.oracle import Request, listed, rankings

Case = dict[str, Any]

GOLDEN: list[Case] = json.loads((Path(__file__).parents[1] / "golden" / "measures.json").read_text())


def read(m: Measure, requests: Sequence[Request]) -> float:
    """The measure's value over all requests."""
    r = rankings(requests, sparse=m.is_sparse)
    return float(read_as(m, sums(score(m, r), r.sampled, np.zeros(r.size, int), 1))[0])


def text(name: str, k: int | None, **options: object) -> str:
    given = ",".join(f"{key}={_written(option)}" for key, option in options.items() if option is not None)
    return f"{name}({given})" + ("" if k is None else f"@{k}")


def _written(option: object) -> str:
    return json.dumps(option).replace('"', "") if isinstance(option, dict) else str(option)


def without(judged: Sequence[float], shown: Sequence[float | None]) -> list[float]:
    """Grades of judged items that were not shown."""
    return list((Counter(judged) - Counter(grade for grade in shown if grade is not None)).elements())


@pytest.mark.parametrize("case", GOLDEN, ids=[case["id"] for case in GOLDEN])
def test_golden_values_match(case: Case) -> None:
    unseen = case.get("unseen", [[]] * len(case["lists"]))
    requests = [listed(grades, more) for grades, more in zip(case["lists"], unseen, strict=True)]
    assert read(parse(case["measure"]), requests) == pytest.approx(case["expected"], rel=1e-12, abs=1e-12)


# The worked examples.


def test_worked_examples_match(shared: Path) -> None:
    seeds = json.loads((shared / "vectors" / "seeds.json").read_text())
    got = {case["id"]: read(parse(seed_measure(case)), seed_requests(case)) for case in seeds}
    assert got == pytest.approx({case["id"]: case["expected"] for case in seeds}, rel=1e-12, abs=1e-12)


def seed_measure(case: Case) -> str:
    keys = ["gain", "discount", "ideal", "aggregate", "empty"]
    keys += ["max_grade"] if case.get("ideal") == "max" else []
    return text(case["measure"], case["k"], **{key: case.get(key) for key in keys})


def seed_requests(case: Case) -> list[Request]:
    lists = case.get("queries") or [case["grades"]]
    return [listed(grades, without(case.get("judged", []), grades)) for grades in lists]


# The test suites of other libraries, each with its own conventions. All can be expressed in ours:
#
# - another base of the logarithm cancels in NDCG, and multiplies DCG by a constant;
# - an ideal cut at the number of returned items is a smaller k;
# - an unjudged item (null, or -1 in trec_eval) gives no row, so it has no gain even where grade 0 has one;
# - our gain tables cannot fall as grades rise, so such cases use the gains as labels;
# - a logged list has no ties, so the value of tied scores is the mean over every order they allow.

IDEALS = {"retrieved": "recall", "judged": "global", "judged_cut_at_num_retrieved": "global"}
DCG_FACTORS = {"log2": 1.0, "log10": log2(10)}


def test_test_suites_of_other_libraries_match(shared: Path) -> None:
    cases = [json.loads(line) for line in (shared / "vectors" / "peers.jsonl").read_text().splitlines()]
    assert len(cases) == 98
    assert [case for case in cases if abs(peer_value(case) - case["expected"]) > case["tolerance"]] == []


def peer_value(case: Case) -> float:
    name, requests = case.get("metric", "ndcg"), [*peer_requests(case)]
    gain = "linear" if isinstance(case["gain"], dict) else case["gain"]
    if name == "dcg":
        return DCG_FACTORS[case["discount"]] * read(parse(text("dcg", case["k"], gain=gain)), requests)
    options = {"gain": gain, "ideal": IDEALS[case["ideal"]], "empty": case.get("no_relevant")}
    return read(parse(text("ndcg", peer_cutoff(case), **options)), requests)


def peer_cutoff(case: Case) -> int | None:
    k: int | None = case["k"]
    if k is None or case["ideal"] != "judged_cut_at_num_retrieved":
        return k
    return min(k, max(1, len(case["grades_in_rank_order"])))


def peer_requests(case: Case) -> Iterator[Request]:
    for query in case.get("queries", [case]):
        for order in peer_orders(query):
            shown = [peer_grade(case, grade) for grade in order]
            judged = [peer_grade(case, grade) for grade in query.get("judged_grades", [])]
            yield listed(shown, without([grade for grade in judged if grade is not None], shown))


def peer_grade(case: Case, grade: float | None) -> float | None:
    """None if unjudged; with a gain table, the grade's gain (grades not in the table stay)."""
    if grade is None or grade < 0:
        return None
    return case["gain"].get(str(grade), grade) if isinstance(case["gain"], dict) else grade


def peer_orders(query: Case) -> Iterator[Sequence[float | None]]:
    """Every order of the items that is consistent with their scores."""
    grades = query["grades_in_rank_order"]
    if "scores" not in query:
        yield grades
        return
    for order in permutations(zip(query["scores"], grades, strict=True)):
        if all(before[0] >= after[0] for before, after in pairwise(order)):
            yield [grade for _, grade in order]
