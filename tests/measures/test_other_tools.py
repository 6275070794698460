"""The table of other tools in the measures reference: each row equals the value of the tool or its formula."""

from __future__ import annotations

import json
import random
import re
import subprocess

import numpy as np
import pytest

from monitor.measures.kernels import GradedRankings, JudgedItems, score
from monitor.measures.measure import Measure, parse
from monitor.series import partials as b
from tests.benchmarks.tools_peer import TOOLS
from tests.support.processes import ROOT
from tests.support.requirements import missing

PYTHON = ROOT / ".venv-tools" / "bin" / "python"
PAGE = (ROOT / "docs" / "reference" / "measures.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Match other tools")[2].partition("\n\n`rankmon")[0]
ROWS = dict(re.findall(r"^\| (.*?) \|.*\| `(ndcg.*?)`[^|]*\|$", TABLE, re.MULTILINE))
BY = {
    "scikit-learn `ndcg_score(k=10)`": ["scikit_learn"],
    "trec_eval, pytrec_eval, ir_measures `ndcg_cut_10`": ["pytrec_eval", "ir_measures"],
    "ranx `ndcg@10`": ["ranx"],
    "ranx `ndcg_burges@10`, gdeval": ["ranx_burges", "gdeval"],
    "XGBoost, LightGBM `ndcg@10`": ["xgboost", "lightgbm"],
    "CatBoost `NDCG:top=10`": ["catboost"],
    "Elasticsearch, OpenSearch `_rank_eval` DCG, `normalize`": ["elasticsearch"],
    "Evidently `NDCGKMetric(k=10)`": ["evidently"],
    "Jarvelin and Kekalainen (2002)": ["jarvelin"],
}
"""Tool as the table names it -> the entries of `TOOLS` that compute its value."""
APART = {"ir_measures", "ranx", "ranx_burges", "xgboost", "lightgbm", "catboost"}
Lists = list[tuple[list[int], list[int]]]


def lists(tool: str, seed: int) -> Lists:
    """(grades by rank, grades of items not shown); one list in five has nothing relevant."""
    rng, found = random.Random(seed), []
    grades = [0, 0, 0, 1] if tool == "evidently" else [0, 0, 0, 1, 2, 3]
    fewest = 10 if tool == "elasticsearch" else 2  # its ideal has at most as many items as there are hits
    for number in range(80):
        shown = [rng.choice(grades) if number % 5 else 0 for _ in range(rng.randint(fewest, 15))]
        found.append((shown, [rng.choice(grades) if number % 5 else 0 for _ in range(rng.randint(0, 4))]))
    return found


def ours(measure: Measure, given: Lists) -> float:
    """The mean by rankmon's kernels."""
    shown = [(n, rank, g) for n, (row, _) in enumerate(given) for rank, g in enumerate(row, 1)]
    pool = [(n, g) for n, both in enumerate(given) for part in both for g in part]
    request, rank, grade = (np.array(column) for column in zip(*shown, strict=True))
    of, worth = (np.array(column) for column in zip(*pool, strict=True))
    judged, every = JudgedItems(of, worth.astype(float), np.ones(len(of), np.int64)), np.ones(len(given), bool)
    scores = score(measure.kernel, GradedRankings(len(given), request, rank, grade.astype(float), every, judged=judged))
    return float(b.read_as(measure, b.sums(scores, every, np.zeros(len(given), np.int64), 1))[0])


def test_every_row_of_the_table_is_tested() -> None:
    assert list(ROWS) == list(BY)
    assert {tool for tools in BY.values() for tool in tools} == set(TOOLS)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("row", "tool"),
    [
        pytest.param(row, tool, marks=[pytest.mark.engines] if tool in APART else [])
        for row, tools in BY.items()
        for tool in tools
    ],
)
def test_the_measure_of_a_row_equals_the_tools_value(row: str, tool: str, seed: int) -> None:
    given = lists(tool, seed)
    expected = apart(tool, given) if tool in APART else TOOLS[tool](given)
    assert ours(parse(ROWS[row]), given) == pytest.approx(expected, abs=1e-6 if tool == "xgboost" else 1e-9)


def apart(tool: str, given: Lists) -> float:
    """The value of a tool that runs in a separate environment."""
    if not PYTHON.exists():
        missing("no environment with the other tools: make tools")
    command = [PYTHON, "-m", "tests.benchmarks.tools_peer", tool]
    done = subprocess.run(command, input=json.dumps(given), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])
