"""`rankmon judgments`: made from a log, written in each format, read back, and used by a monitor."""

from __future__ import annotations

import csv
import json
import random
import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

import monitor.cli as cli
from tests.cli.test_examination import LOOKS, ON_PHONES, configured, fill, with_slices

TO = ["--days", "2", "--to", "2026-01-03", "--depth", "3"]
TABLE = f"dcg(examination={{1:1,2:{LOOKS[1]},3:{LOOKS[2]}}})@3"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a configuration whose measure has a table of examination."""
    monkeypatch.chdir(tmp_path)
    fill("sqlite:///shop.db")
    return configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", measure=json.dumps(TABLE))


def ratings(path: str) -> dict[tuple[str, str], int]:
    with Path(path).open(encoding="utf-8") as file:
        return {(row["query"], row["docid"]): int(row["rating"]) for row in csv.DictReader(file)}


def made(log: list[str], capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    capsys.readouterr()
    assert cli.run(["judgments", "search", *TO, *options, "--format", "json", *log]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_ratings_follow_clicks_over_expected_clicks(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(5)
    wishes = {(f"q{q}", f"i{i}"): chance.uniform(0.1, 0.9) for q in range(20) for i in range(3)}  # as `fill` drew them
    said = made(log, capsys, "-o", "a.csv")
    assert (said["judgments"], said["queries"]) == (60, 20)
    found, best = ratings("a.csv"), max(wishes.values())
    assert max(found.values()) == 100
    assert sum(abs(found[key] - 100 * wish / best) for key, wish in wishes.items()) / 60 < 6


def test_each_request_uses_the_table_of_its_own_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One item is shown on phones only, where people look less further down. The table of all rates it too low."""
    monkeypatch.chdir(tmp_path)
    fill("sqlite:///shop.db", phones=0.5)
    with sqlite3.connect("shop.db") as db:
        db.execute("DELETE FROM shown WHERE item = 'i0' AND (device = 'desk' OR place = 0)")
    every, desk, phone = (f"{{1:1,2:{two},3:{three}}}" for two, three in ((0.45, 0.19), LOOKS[1:], ON_PHONES[1:]))
    tables = f"dcg(examination={every},examination[device=desk]={desk},examination[device=phone]={phone})@3"
    chance = random.Random(5)
    wishes = {(f"q{q}", f"i{i}"): chance.uniform(0.1, 0.9) for q in range(20) for i in range(3)}  # as `fill` drew them
    truth, off = np.array([wishes[f"q{q}", "i0"] for q in range(20)]), {}
    for name, measure in (("own", tables), ("all", f"dcg(examination={every})@3")):
        given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", measure=json.dumps(measure))
        said = made(with_slices(given, "device"), capsys, "-o", "a.csv")
        assert ("rank and device alone" in str(said["assumed"])) == (name == "own")
        found = ratings("a.csv")
        scale = sum(found.values()) / sum(wishes.values())
        off[name] = np.mean([found[f"q{q}", "i0"] for q in range(20)]) / scale / truth.mean() - 1
    assert abs(off["own"]) < 0.05
    assert off["all"] < -0.1


def test_all_formats_hold_the_same_ratings_and_score_reads_them(
    log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = [made(log, capsys, "-o", name) for name in ("a.csv", "a.json", "a.qrels")]
    assert len({one["version"] for one in said}) == 1
    body = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert body["type"] == "IMPORT_JUDGMENT"
    assert body["name"] == f"rankmon search {said[0]['version']}"
    each = [(one["query"], rating) for one in body["judgmentRatings"] for rating in one["ratings"]]
    assert {(query, one["docId"]): int(one["rating"]) for query, one in each} == ratings("a.csv")
    Path("got.json").write_text(json.dumps({"hits": {"hits": [{"_source": body}]}}), encoding="utf-8")
    Path("a.run").write_text("q1 Q0 i0 1 3 x\nq1 Q0 i1 2 2 x\nq1 Q0 never 3 1 x\n", encoding="utf-8")
    scores = []
    for name in ("a.csv", "a.json", "a.qrels", "got.json"):
        capsys.readouterr()
        assert cli.run(["score", "a.run", "--qrels", name, "--format", "json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["measures"])
    assert scores[0][0]["judged"] == pytest.approx(2 / 3)
    assert scores == [scores[0]] * 4


def test_the_prior_option_is_applied(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    drawn = made(log, capsys, "-o", "drawn.csv", "--prior", "1000000")
    plain = made(log, capsys, "-o", "plain.csv", "--prior", "0")
    assert (drawn["strength"], plain["strength"]) == (1000000, 0)
    assert (min(ratings("drawn.csv").values()), min(ratings("plain.csv").values()) < 40) == (100, True)


def test_only_the_same_period_gives_the_same_version(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (made(log, capsys, "-o", name)["version"] for name in ("a.csv", "b.csv"))
    assert first == again != made(log, capsys, "-o", "c.csv", "--days", "1", "--to", "2026-01-01T12:00Z")["version"]


def test_a_depth_beyond_the_table_changes_nothing(log: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few, more = (made(log, capsys, "-o", f"{depth}.csv", "--depth", depth) for depth in ("3", "10"))
    assert few["version"] == more["version"]


def test_examination_is_estimated_if_no_measure_has_a_table(
    tmp_path: Path, log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made(log, capsys, "-o", "given.csv")
    made(configured(tmp_path, f"sqlite:///{tmp_path}/shop.db"), capsys, "-o", "own.csv")
    given, own = ratings("given.csv"), ratings("own.csv")
    assert given != own
    assert max(abs(given[key] - own[key]) for key in given) < 10
    rates = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", measure="'coec(examination={1:0.3,2:0.28,3:0.2})@3'")
    made(rates, capsys, "-o", "rates.csv")
    assert ratings("rates.csv") == own  # click rates by rank are not examination


def test_series_scores_by_judgments_and_reports_their_coverage(
    tmp_path: Path, log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    made(log, capsys, "-o", "a.csv")
    rows = [{"query": q, "docid": i, "rating": g} for (q, i), g in ratings("a.csv").items() if i != "i2"]
    engine = sa.create_engine("sqlite:///shop.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE judgments (query TEXT, docid TEXT, rating INTEGER)")
        names = sa.table("judgments", *map(sa.column, ("query", "docid", "rating")))
        connection.execute(names.insert(), rows)
    engine.dispose()
    recipe = "judgments: {table: judgments, query: query, item: docid, grade: rating, max_grade: 100}"
    given = configured(tmp_path, f"sqlite:///{tmp_path}/shop.db", recipe, "ndcg(ideal=global)@3")
    assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-02", *given]) == 0
    capsys.readouterr()
    assert cli.run(["series", "--from", "2026-01-01", "--format", "json", *given]) == 0
    *_, point = json.loads(capsys.readouterr().out)
    assert point["label_coverage"] == pytest.approx(2 / 3)
    assert 0.5 < point["value"] < 1


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        ("", ["--to", "2025-01-01"], "no request with a query in these 2 days; change --to or --days"),
        ("UPDATE shown SET query = 'red dress'", ["-o", "a.qrels"], "'red dress' has a space or is empty"),
        ("DELETE FROM clicks", [], "nothing was clicked at these ranks"),
        ("", ["-o", "nowhere/a.csv"], "cannot write nowhere/a.csv"),
    ],
)
def test_judgments_refuses_unusable_logs_and_outputs(
    log: list[str], capsys: pytest.CaptureFixture[str], change: str, arguments: list[str], said: str
) -> None:
    if change:
        engine = sa.create_engine("sqlite:///shop.db")
        with engine.begin() as connection:
            connection.exec_driver_sql(change)
        engine.dispose()
    assert cli.run(["judgments", "search", "-o", "a.csv", *TO, *arguments, *log]) == 2
    assert re.search(said, capsys.readouterr().err)


def test_score_refuses_json_without_judgments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.run").write_text("q1 Q0 i0 1 3 x\n", encoding="utf-8")
    for text in ('{"a": 1}', "[1]", "no", '{"hits": {"hits": []}}', '{"judgmentRatings": [{"query": "q"}]}'):
        Path("a.json").write_text(text, encoding="utf-8")
        assert cli.run(["score", "a.run", "--qrels", "a.json"]) == 2
        assert "no judgmentRatings of query, docId and rating" in capsys.readouterr().err
