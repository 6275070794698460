"""A measure takes one file: configuration, reference, metrics, pull, push-down and explanation find it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli import run
from monitor.config import load
from monitor.measures import kinds
from monitor.measures.measure import SPECS, parse
from monitor.measures.summable import obstacle
from monitor.service.snapshot import Board, take_snapshot
from monitor.service.telemetry import Telemetry
from monitor.store import Store
from tests.support import references
from tests.support.metrics import registry

TOY = '''"""A test's."""

import numpy as np

from monitor.measures.kernels import as_ratio, count_hits, is_relevant, plain_scores
from monitor.measures.measure import Spec
from monitor.measures.sql import Formula


def score(m, rankings):
    return plain_scores(m.k - count_hits(m, rankings), np.zeros(rankings.size, bool))


def terms(m, rank, grade):
    return is_relevant(m, grade).astype(float), -np.ones(len(rank))


MISSES = Spec(
    name="misses", title="places without a relevant item", unit="gain", option_names="rel", score=score,
    sql=lambda m, s: Formula(s.never(), s.number(m.k) + s.number(-1) * s.hits(m)), terms=terms,
    words=("relevant", "takes", "misses", ""), empties=("zero",),
)
UNSUMMED = Spec(
    name="unsummed", title="the same, row by row", unit="gain", option_names="rel", score=score,
    sql="a toy has no sums", terms=terms, words=("", "", "", ""), empties=("zero",),
)
'''

CONFIG = """
store: {{url: "sqlite:///store.db"}}
sources: {{shop: {{url: "sqlite:///shop.db"}}}}
monitors:
  - name: shop
    source: shop
    rankings:
      {{table: rankings, request: request, item: item, position: position, time: {{column: time, format: epoch_s}}}}
    relevance: {{column: {{grade: grade, max_grade: 1}}}}
    measures: [misses@3]
    windows: [1h]
    engine: {engine}
"""
HOUR = 3600
START = 1_767_225_600


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a log of three requests of three items each: one, none and all of them relevant."""
    (tmp_path / "toy.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(kinds, "__path__", [*kinds.__path__, str(tmp_path)])
    monkeypatch.setattr(SPECS, "_is_loaded", False)
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as log:
        log.execute("CREATE TABLE rankings (request TEXT, item TEXT, position INTEGER, time INTEGER, grade INTEGER)")
        grades = {"a": (0, 1, 0), "b": (0, 0, 0), "c": (1, 1, 1)}
        rows = [(r, f"i{n}", n + 1, START + 60, g) for r, of in grades.items() for n, g in enumerate(of)]
        log.executemany("INSERT INTO rankings VALUES (?, ?, ?, ?, ?)", rows)
    log.close()
    yield tmp_path
    for name in ("misses", "unsummed"):
        SPECS.remove(name)


@pytest.mark.parametrize("engine", ["pull", "pushdown"])
def test_a_new_measure_is_read_by_both_engines_shown_and_explained(
    toy: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = toy / "rankmon.yaml"
    config.write_text(CONFIG.format(engine=engine), encoding="utf-8")
    assert run(["backfill", "-c", str(config), "--from", "2026-01-01", "--to", "2026-01-01T01:00Z"]) == 0
    (monitor,), store = load(config, {}).monitors, Store(load(config, {}).store.url)
    history = store.history(monitor.definition(parse("misses@3")), 0, START + HOUR)
    assert history.sums[0, 0, :3].tolist() == [3, 0, 2 + 3 + 0]
    board = Board()
    board.publish(take_snapshot(monitor, store, START + HOUR))
    store.close()
    families = {family.name: family.documentation for family in registry(board, Telemetry()).collect()}
    assert "places without a relevant item" in families["rankmon_misses"]
    capsys.readouterr()
    assert run(["inspect", "a", "-c", str(config)]) == 0
    said = capsys.readouterr().out
    assert "misses@3 = misses = 2.0" in said
    assert "takes" in said


@pytest.mark.usefixtures("toy")
def test_a_new_measure_is_in_the_reference_and_the_error_for_unknown_ones() -> None:
    assert "| `misses@10` | places without a relevant item | `rel` |" in references.measures()
    assert str(parse("misses(rel=2)@3")) == "misses(rel=2)@3"
    with pytest.raises(ValueError, match=r"known are .*misses"):
        parse("quality!")


def test_a_measure_without_sums_names_its_obstacle_to_push_down(toy: Path) -> None:
    config = toy / "rankmon.yaml"
    config.write_text(CONFIG.format(engine="auto").replace("misses@3", "unsummed@3"), encoding="utf-8")
    (monitor,) = load(config, {}).monitors
    assert obstacle(monitor) == "unsummed@3: a toy has no sums"
