"""`check-config --connect` on grades of a column or of judgments: many refused grades are reported by reason."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

import monitor.cli as cli

CONFIG = """\
store: {{url: "sqlite:///{folder}/store.db"}}
sources:
  shop: {{url: "sqlite:///{folder}/shop.db"}}
monitors:
  - name: search
    source: shop
    rankings:
      table: search_log
      request: request_id
      item: item_id
      position: position
      time: {{column: served_at, format: epoch_s}}
      query: query
    relevance: {recipe}
    measures: [ndcg@5]
"""
COLUMN = "{column: {grade: grade, max_grade: 3}}"
JUDGMENTS = "{judgments: {table: judgments, query: query, item: item_id, grade: grade, max_grade: 3}}"


def checked(folder: Path, grades: list[object], recipe: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Output and warnings for 400 requests of five items, where every fourth request has grades."""
    rng, now = random.Random(3), int(time.time())
    engine = sa.create_engine(f"sqlite:///{folder}/shop.db")
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE search_log (request_id TEXT, item_id TEXT, position INT, served_at INT, query TEXT, grade)"
        )
        connection.exec_driver_sql("CREATE TABLE judgments (query TEXT, item_id TEXT, grade)")
        for n in range(400):
            for place in range(1, 6):
                grade = rng.choice(grades) if n % 4 == 0 else None
                row = (f"r{n}", f"i{place}", place, now - 60 * n - 4000, f"q{n}", grade)
                connection.exec_driver_sql("INSERT INTO search_log VALUES (?, ?, ?, ?, ?, ?)", row)
                if grade is not None:
                    row = (f"q{n}", f"i{place}", grade)
                    connection.exec_driver_sql("INSERT INTO judgments VALUES (?, ?, ?)", row)
    engine.dispose()
    path = folder / "rankmon.yaml"
    path.write_text(CONFIG.format(folder=folder, recipe=recipe), encoding="utf-8")
    cli.run(["check-config", "--connect", "--config", str(path)])
    said = capsys.readouterr()
    return said.out, said.err


@pytest.mark.parametrize("recipe", [COLUMN, JUDGMENTS])
@pytest.mark.parametrize(
    ("grades", "reason", "remedy"),
    [
        ([0, 1, 2, 4], "grade_above_max", "is `max_grade` the highest possible grade?"),
        ([0, 1, "good"], "bad_grade", "they are not numbers; name a numeric column"),
        ([0, 1, 2, -1], "negative_grade", "a grade is 0 or more, and NULL if nobody has rated"),
        ([0, 1, 2, 3] * 5 + [4], "grade_above_max", "they are above 3; is `max_grade` the highest possible grade?"),
    ],
)
def test_many_refused_grades_are_reported_as_a_share_of_the_grades(
    tmp_path: Path,
    recipe: str,
    grades: list[object],
    reason: str,
    remedy: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, warned = checked(tmp_path, grades, recipe, capsys)
    told = rf"(\d+) of the (\d+) grades .*refused as {reason}: .*{re.escape(remedy)}"
    found = re.search(told, warned.replace("\n", " "))
    assert found is not None, warned
    assert int(found[2]) == 500
    assert int(found[1]) == pytest.approx(500 / len(grades), rel=0.25)


@pytest.mark.parametrize("recipe", [COLUMN, JUDGMENTS])
def test_words_as_grades_are_not_reported_as_missing(
    tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, warned = checked(tmp_path, ["good", "bad"], recipe, capsys)
    assert "500 of the 500 grades of shown items (100 %) are refused as bad_grade: they are not numbers" in warned
    assert "NULL" not in warned
    assert "none of the" not in warned


@pytest.mark.parametrize("recipe", [COLUMN, JUDGMENTS])
def test_sound_grades_raise_no_warning(tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    said, warned = checked(tmp_path, [0, 1, 2, 3], recipe, capsys)
    assert "sampled 400 requests from 24h, 25 % with a label" in said
    assert "configuration is valid and all databases answer" in said
    assert "refused" not in warned


@pytest.mark.parametrize("recipe", [COLUMN, JUDGMENTS])
def test_a_refused_top_grade_is_reported_even_if_rare_among_zeros(
    tmp_path: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grades: list[object] = [*[0] * 140, *[1] * 12, *[2] * 6, *[3] * 2]
    _, warned = checked(tmp_path, grades, recipe.replace("max_grade: 3", "max_grade: 2"), capsys)
    told = (
        r"(\d+) of the (\d+) grades of shown items \((\d) %\), and of the (\d+) that are not 0 \((\d+) %\), are refused"
    )
    found = re.search(told, warned)
    assert found is not None, warned
    refused, every, share, telling, of_telling = map(int, found.groups())
    assert (every, share) == (500, round(100 * refused / 500))
    assert refused < 0.02 * every, "too few with this seed to be reported if zeros counted"
    assert telling < 100
    assert of_telling == round(100 * refused / telling)


def test_a_few_bad_grades_raise_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, warned = checked(tmp_path, [*[1, 2, 3] * 50, -1], COLUMN, capsys)
    assert "negative_grade" not in warned
