"""`rankmon init` on logs that it was not written for: most need no answer, none needs more than three."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import monitor.cli as cli
from tests.support import hackernews
from tests.support.unseen_logs import Unseen, fill, unseen_logs

LOGS = unseen_logs()
MOST_ASKED = 3
ASKS = ("examples/recommendations", "examples/label-column", "examples/parquet", "names in French", "two tables")
"""Logs whose values leave something open: a zone, which of two lists, what a word means, whether both tables count."""


def asked(url: str, files: list[str], output: Path, answers: Mapping[str, str], capsys: Any) -> tuple[list[str], str]:
    """(questions asked until a file is written or the log is refused, last error)."""
    given: list[str] = []
    while True:
        arguments = [part for key in given for part in ("--answer", f"{key}={answers[key]}")]
        cli.run(["init", url, "-o", str(output), *files, *arguments])
        error = capsys.readouterr().err
        questions = re.findall(r"^    --answer '?([\w.]+)=", error, re.MULTILINE)
        if not questions:
            return given, error
        assert set(questions) <= set(answers), error
        given += questions


def holds(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Asserts that a mapping has the wanted values; a table may be named with its schema."""
    for key, value in wanted.items():
        found = made.get(key)
        if key == "table":
            found = str(found).rpartition(".")[2]
        if key == "time" and isinstance(value, str) and isinstance(found, dict):
            found = found["column"] if set(found) == {"column"} else found
        assert found == value, f"{key}: {found}"


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.name)
def test_a_log_is_mapped_as_its_owner_would(
    log: Unseen, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if log.engine == "parquet":
        pytest.importorskip("duckdb_engine")
    given = request.getfixturevalue("postgres_url") if log.engine == "postgresql" else f"sqlite:///{tmp_path}/log.db"
    url, files = fill(log, given, tmp_path)
    output = tmp_path / "rankmon.yaml"
    questions, error = asked(url, files, output, log.answers, capsys)
    if log.refused:
        assert log.refused in error
        assert not output.exists()
        return
    assert output.exists(), error
    (made,) = yaml.safe_load(output.read_text(encoding="utf-8"))["monitors"]
    holds(made["rankings"], log.rankings)
    ((kind, wanted),) = log.relevance.items()
    assert set(made["relevance"]) == {kind}
    holds(made["relevance"][kind], wanted)
    assert len(questions) <= MOST_ASKED
    assert bool(questions) == log.name.startswith(ASKS), questions


def test_hacker_news_needs_no_answer(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (csv,) = (shared / "data" / "hn-frontpage").glob("*.csv.gz")
    hackernews.fill(f"sqlite:///{tmp_path}/log.db", csv)
    questions, error = asked(f"sqlite:///{tmp_path}/log.db", [], tmp_path / "rankmon.yaml", {}, capsys)
    assert (questions, error) == ([], "")


def test_most_unseen_logs_need_no_answer() -> None:
    assert len(LOGS) >= 10
    assert len(LOGS) - len(ASKS) >= 6, "and Hacker News"
