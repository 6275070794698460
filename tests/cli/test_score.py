"""`rankmon score`: files in, measures out; equal to trec_eval wherever trec_eval defines the measure."""

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from click.testing import CliRunner, Result

from monitor import scoring
from monitor.cli import cli
from monitor.errors import InputError
from monitor.measures.measure import parse

GOLDEN = Path(__file__).parents[1] / "golden" / "score"
TREC_EVAL = {
    "ndcg": "ndcg(ideal=global,empty=zero)",
    "ndcg_cut_1": "ndcg(ideal=global,empty=zero)@1",
    "ndcg_cut_5": "ndcg(ideal=global,empty=zero)@5",
    "ndcg_cut_10": "ndcg(ideal=global,empty=zero)@10",
    "map": "map(ideal=global,empty=zero)",
    "recip_rank": "mrr",
    "P_5": "precision@5",
    "P_20": "precision@20",
    "recall_5": "recall(ideal=global,empty=zero)@5",
    "recall_20": "recall(ideal=global,empty=zero)@20",
}
Run = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that messages name files by their bare names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(GOLDEN)
    return GOLDEN


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["score", *arguments])


def values(*arguments: str) -> dict[str, float | None]:
    """Measure -> value."""
    result = invoke(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output or result.exception
    return {m["measure"]: m["value"] for m in json.loads(result.output)["measures"]}


def requests(*arguments: str) -> dict[str, float | None]:
    """Request -> value of the one measure, in the order of the output."""
    result = invoke(*arguments, "--per-request", "--format", "json")
    assert result.exit_code == 0, result.output or result.exception
    return {line["request"]: line["value"] for line in json.loads(result.output)["per_request"]}


def refusal(*arguments: str) -> str:
    """The message of the InputError that the command lets through."""
    result = invoke(*arguments)
    assert isinstance(result.exception, InputError), result.output or result.exception
    return str(result.exception)


# trec_eval


def random_run(seed: int) -> tuple[Run, Qrels]:
    """A run and qrels with ties, 32-bit ties, unjudged items, negative grades, and missing and extra queries."""
    rng = np.random.default_rng(seed)
    names = [*(f"d{i}" for i in range(60)), "é", "Z", "z", "\uffff", "\U0001f600", "a#b", "#"]
    run: Run = {}
    qrels: Qrels = {}
    for q in range(40):
        listed = rng.choice(names, rng.integers(1, 50), replace=False)
        coarse = rng.choice([0.0, -0.0, 1.5, -2.0, 16777216.0], len(listed))
        run[f"q{q}"] = dict(zip(listed, (coarse + rng.choice([0, 0, 1e-9, 1], len(listed))).tolist(), strict=True))
    for q in range(3, 45):
        judged = rng.choice(names, rng.integers(2, 60), replace=False)
        grades = rng.choice([-2, -1, 0, 0, 0, 1, 2, 5], len(judged))
        grades[0] = 0  # pytrec_eval reads uninitialised memory if every judgment is negative
        qrels[f"q{q}"] = dict(zip(judged, grades.tolist(), strict=True))
    return run, qrels


def write_trec(folder: Path, run: Run, qrels: Qrels) -> tuple[Path, Path]:
    lines = [f"{q} Q0 {d} 7 {s!r} tag" for q, items in run.items() for d, s in items.items()]
    judgments = [f"{q}\t0\t{d}\t{g}" for q, items in qrels.items() for d, g in items.items()]
    paths = folder / "a.run", folder / "a.qrels"
    for path, text in zip(paths, (lines, judgments), strict=True):
        path.write_text("".join(line + "\n" for line in text), encoding="utf-8")
    return paths


def by_trec_eval(run: Run, qrels: Qrels) -> dict[str, dict[str, float]]:
    wanted = {"ndcg", "ndcg_cut.1,5,10", "map", "recip_rank", "P.5,20", "recall.5,20"}
    return dict(pytrec_eval.RelevanceEvaluator(qrels, wanted).evaluate(run))


@pytest.mark.parametrize("seed", range(5))
def test_a_run_scores_the_same_as_in_trec_eval(tmp_path: Path, seed: int) -> None:
    run, qrels = random_run(seed)
    paths = write_trec(tmp_path, run, qrels)
    expected = by_trec_eval(run, qrels)
    measures = [parse(text) for text in TREC_EVAL.values()]
    report = scoring.evaluate(scoring.read(paths[0], qrels=paths[1]), measures)
    assert report.requests == [q for q in run if q in expected]
    assert report.unlabelled == 3
    for theirs, ours in zip(TREC_EVAL, report.results, strict=True):
        each = [expected[q][theirs] for q in report.requests]
        assert ours.values == pytest.approx(each, abs=1e-9), theirs
        assert ours.value == pytest.approx(fmean(each), abs=1e-9), theirs


def test_complete_divides_by_all_judged_queries_like_trec_eval_c(tmp_path: Path) -> None:
    run, qrels = random_run(5)
    paths = write_trec(tmp_path, run, qrels)
    expected = by_trec_eval(run, qrels)
    options = [argument for text in TREC_EVAL.values() for argument in ("-m", text)]
    found = values(str(paths[0]), "--qrels", str(paths[1]), "--complete", *options)
    for theirs, ours in TREC_EVAL.items():
        total = sum(each[theirs] for each in expected.values())
        assert found[str(parse(ours))] == pytest.approx(total / len(qrels), abs=1e-9), theirs


def test_comments_and_columns_that_trec_eval_ignores_change_nothing(here: Path) -> None:
    run, qrels = random_run(6)
    write_trec(here, run, qrels)
    plain = requests("a.run", "--qrels", "a.qrels")
    for name in ("a.run", "a.qrels"):
        text = Path(name).read_text(encoding="utf-8")
        odd = "\n".join(f"  {line.replace(' ', '  ')}" for line in text.splitlines())
        Path(f"odd-{name}").write_text(f"\ufeff# by hand\n\n{odd}", encoding="utf-8")
    text = Path("odd-a.run").read_text(encoding="utf-8")
    Path("odd-a.run").write_text(text.replace("tag", "tag and more", 3), encoding="utf-8")
    assert requests("odd-a.run", "--qrels", "odd-a.qrels") == plain


def test_a_clean_trec_file_is_not_read_line_by_line(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.scoring.readers.trec_lines", None)
    assert values("web.run", "--qrels", "web.qrels") == {"ndcg(ideal=global)@10": pytest.approx(0.5181878419611321)}


def test_scores_equal_in_32_bits_tie_unless_file_order_counts(here: Path) -> None:
    Path("a.run").write_text("q 0 a 1 1.00000001 t\nq 0 c 2 1 t\nq 0 b 3 1 t\n")
    Path("a.qrels").write_text("q 0 a 1\n")
    assert values("a.run", "--qrels", "a.qrels", "-m", "mrr") == {"mrr": pytest.approx(1 / 3)}
    assert values("a.run", "--qrels", "a.qrels", "-m", "mrr", "--ties", "trec") == {"mrr": pytest.approx(1 / 3)}
    assert values("a.run", "--qrels", "a.qrels", "-m", "mrr", "--ties", "file") == {"mrr": 1.0}


def test_scores_beyond_32_bits_are_infinite_and_tie(here: Path) -> None:
    Path("a.run").write_text("q 0 a 1 1e40 t\nq 0 b 2 1e39 t\nq 0 c 3 -inf t\n")
    Path("a.qrels").write_text("q 0 a 1\n")
    assert values("a.run", "--qrels", "a.qrels", "-m", "mrr") == {"mrr": 0.5}


def test_ndcg_defaults_to_the_ideal_of_the_listed_items(golden: Path) -> None:
    found = values("web.run", "--qrels", "web.qrels", "-m", "ndcg@10", "-m", "ndcg(ideal=global)@10")
    assert found == {"ndcg@10": pytest.approx(0.5813301907833818), "ndcg(ideal=global)@10": pytest.approx(0.5181878419)}


def test_a_missing_query_scores_zero_or_is_empty_if_nothing_is_relevant(here: Path) -> None:
    Path("a.run").write_text("q1 0 a 1 1 t\n")
    Path("a.qrels").write_text("q1 0 a 1\nq2 0 a 2\nq3 0 a 0\nq4 0 a -1\n")
    for measure in ("ndcg@5", "ndcg(ideal=local)@5", "ndcg(gain={0:0,1:1,2:3})", "map", "recall", "mrr(empty=skip)"):
        found = requests("a.run", "--qrels", "a.qrels", "--complete", "-m", measure)
        assert found == {"q1": 1.0, "q2": 0.0, "q3": None, "q4": None}, measure
    assert requests("a.run", "--qrels", "a.qrels", "--complete", "-m", "recall(rel=2)")["q2"] == 0.0
    assert requests("a.run", "--qrels", "a.qrels", "--complete", "-m", "click_position")["q2"] is None
    top = "ndcg(ideal=max,max_grade=2)@1"
    assert requests("a.run", "--qrels", "a.qrels", "--complete", "-m", top) == {"q1": 0.5, "q2": 0, "q3": 0, "q4": 0}


# Formats


def as_parquet(source: Path, target: Path) -> None:
    import pandas as pd

    frame = pd.read_csv(source)
    frame["grade"] = frame["grade"].astype("Int64")
    frame["request_id"] = frame["request_id"].astype("category")
    frame.to_parquet(target)


def test_every_format_gives_the_same_values(golden: Path, tmp_path: Path) -> None:
    as_parquet(golden / "shown.csv", tmp_path / "shown.parquet")
    (tmp_path / "shown.ndjson").write_bytes((golden / "shown.jsonl").read_bytes())
    for name in ("shown.csv", "shown.tsv", "shown.jsonl"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((golden / name).read_bytes()))
    files = [golden / "shown.tsv", golden / "shown.jsonl", *tmp_path.iterdir()]
    assert len(files) == 7
    expected = requests("shown.csv")
    assert list(expected) == ["r1", "r2", "r3"]
    for file in files:
        assert requests(str(file)) == expected, file.name
        assert requests(str(file), "--score", "score") == expected, file.name


def test_gzipped_runs_and_unusual_endings_are_read_as_trec(golden: Path, tmp_path: Path) -> None:
    expected = requests("web.run", "--qrels", "web.qrels")
    run, qrels = tmp_path / "web.run.gz", tmp_path / "qrels.web-2024"
    run.write_bytes(gzip.compress(Path("web.run").read_bytes()))
    qrels.write_bytes(Path("web.qrels").read_bytes())
    assert requests(str(run), "--qrels", str(qrels)) == expected


@pytest.mark.parametrize("name", ["a.run", "bm25", "results.eval-2024"])
def test_a_run_with_extra_fields_is_a_trec_run_under_any_name(here: Path, name: str) -> None:
    (here / name).write_text("q1 Q0 a 1 3.5 tag of more words\nq1 Q0 b 2 2.5 tag\n")
    (here / "qrels").write_text("q1 0 b 1\n")
    assert values(name, "--qrels", "qrels", "-m", "mrr") == {"mrr": 0.5}


def test_single_item_lists_and_unjudged_queries_do_not_change_others(here: Path) -> None:
    rows = "one,a,1,1\nnone,a,1,\nnone,b,2,\nnot,a,1,0\ntwo,c,1,0\ntwo,d,2,1\n"
    (here / "a.csv").write_text("request,item,rank,grade\n" + rows)
    assert requests("a.csv", "-m", "ndcg@10") == {"one": 1.0, "not": None, "two": pytest.approx(0.6309, abs=1e-4)}


def test_judged_queries_without_a_ranking_are_reported(here: Path) -> None:
    (here / "a.run").write_text("q1 Q0 a 1 3 x\n")
    (here / "qrels").write_text("q1 0 a 1\nq2 0 b 1\nq3 0 c 0\n")
    options = ("a.run", "--qrels", "qrels", "-m", "mrr")
    said = "2 judged queries without a ranking, left out; --complete counts them as 0 (trec_eval -c)"
    assert said in invoke(*options).stdout
    assert json.loads(invoke(*options, "--format", "json").stdout)["unranked"] == 2
    by_csv = invoke(*options, "--format", "csv")
    assert (said in by_csv.stderr, said in by_csv.stdout) == (True, False)
    complete = invoke(*options, "--complete")
    assert "left out" not in complete.output
    assert values(*options, "--complete") == {"mrr": pytest.approx(1 / 3)}


@pytest.mark.parametrize("name", ["web.run", "shown.csv", "shown.tsv", "shown.jsonl"])
@pytest.mark.parametrize("zipped", [False, True])
def test_standard_input_is_read_in_any_format(golden: Path, name: str, zipped: bool) -> None:
    path = golden / name
    judged = ("--qrels", "web.qrels") if name == "web.run" else ()
    content = gzip.compress(path.read_bytes()) if zipped else path.read_bytes()
    piped = CliRunner().invoke(cli, ["score", "-", *judged, "--format", "json"], input=content)
    named = json.loads(invoke(str(path), *judged, "--format", "json").stdout)
    assert json.loads(piped.stdout) == {**named, "rankings": "-"}
    if judged:
        judgments = (golden / "web.qrels").read_bytes().replace(b" ", b"\t")
        piped = CliRunner().invoke(cli, ["score", str(path), "--qrels", "-", "--format", "json"], input=judgments)
        assert json.loads(piped.stdout) == named
        twice = CliRunner().invoke(cli, ["score", "-", "--qrels", "-"], input=content)
        assert "only one of the files can be standard input (-)" in twice.output
    header = CliRunner().invoke(cli, ["score", "-"], input=b"request,item,rank,grade\nr,a,first,1\n")
    assert str(header.exception) == "standard input:2: rank 'first' is not a number; correct it"


def test_runs_and_tables_accept_judgments_as_tables(here: Path) -> None:
    Path("a.run").write_text("7 0 a 1 2 t\n7 0 b 2 1 t\n8 0 a 1 1 t\n")
    Path("a.csv").write_text("qid,docno,score\n7,a,2\n7,b,1\n8,a,1\n")
    Path("qrels.csv").write_text("qid,docno,rel\n7,b,2\n7,c,1.5\n8,b,\n")
    Path("qrels.jsonl").write_text('{"query":7,"item":"b","grade":2}\n\n{"query":7,"item":"c","grade":1.5}\n')
    expected = {"7": pytest.approx(2 / np.log2(3) / (2 + 1.5 / np.log2(3)))}
    assert requests("a.run", "--qrels", "qrels.jsonl") == expected
    assert requests("a.csv", "--qrels", "qrels.jsonl") == expected
    assert requests("a.csv", "--qrels", "qrels.csv") == expected | {"8": None}


def test_ids_are_text_in_every_format(here: Path) -> None:
    Path("a.csv").write_text("request,item,position,grade\n007,1,1,1\n7,1,1,0\n")
    assert requests("a.csv", "-m", "mrr") == {"007": 1.0, "7": 0.0}
    Path("a.jsonl").write_text('{"request":7,"item":1,"position":1,"grade":true}\n')
    assert requests("a.jsonl", "-m", "mrr") == {"7": 1.0}


def test_odd_but_valid_text_is_read_correctly(here: Path) -> None:
    text = (
        '\ufeffrequest,item,position,grade\n\n"a, ""b""\nc",x,1,\n  \nNULL,y,1,1\n"a, ""b""\nc",z,2,NULL\nq,x,1,\\N\n'
    )
    Path("a.csv").write_text(text.replace("\n\n", "\r\n\r\n"), encoding="utf-8", newline="")
    assert requests("a.csv", "-m", "mrr") == {"NULL": 1.0}
    lines = ['{"request":"q","position":2}', "", '{"request":"q","position":1,"grade":1}']
    Path("a.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert requests("a.jsonl", "-m", "mrr") == {"q": 1.0}


def test_late_json_columns_are_null_in_earlier_rows(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor.scoring.readers.JSON_ROWS", 2)
    rows = [{"request": "a", "rank": i} for i in (1, 2, 3)] + [{"request": "a", "rank": 4, "grade": 1}]
    lines = list(map(json.dumps, rows))
    Path("a.jsonl").write_text("\n".join(lines))
    assert requests("a.jsonl", "-m", "mrr") == {"a": 0.25}
    Path("a.jsonl").write_text("\n".join([*lines[:3], "", lines[3]]))  # a blank line in the second batch
    assert requests("a.jsonl", "-m", "mrr") == {"a": 0.25}


# What counts


def test_a_null_grade_is_unjudged_and_unlabelled_requests_are_left_out(golden: Path) -> None:
    report = scoring.evaluate(scoring.read(Path("shown.csv")), [parse("ndcg@10"), parse("ctr@2"), parse("mrr")])
    assert report.requests == ["r1", "r2", "r3"]
    assert report.unlabelled == 1
    ndcg, ctr, mrr = report.results
    second = 1 / np.log2(3)
    assert ndcg.values == pytest.approx([4 / (3 + 2 * second), (second + 1) / (2 + second), np.nan], nan_ok=True)
    assert ctr.values.tolist() == [0.5, 0.5, 0.0]  # an unjudged item still counts as an impression
    assert mrr.values.tolist() == [1.0, 0.5, 0.0]
    assert [r.empty for r in report.results] == [1, 0, 1]


def test_empty_and_aggregate_options_aggregate_as_named(golden: Path) -> None:
    r1, r2 = 4 / (3 + 2 / np.log2(3)), (1 / np.log2(3) + 1) / (2 + 1 / np.log2(3))
    dcg, ideal = 4 + 1 / np.log2(3) + 1, 3 + 2 / np.log2(3) + 2 + 1 / np.log2(3)
    expected = {"skip": (r1 + r2) / 2, "zero": (r1 + r2) / 3, "one": (r1 + r2 + 1) / 3}
    for empty, value in expected.items():
        assert list(values("shown.csv", "-m", f"ndcg(empty={empty})@10").values()) == [pytest.approx(value)]
    assert values("shown.csv", "-m", "ndcg(aggregate=pooled)@10") == {
        "ndcg(aggregate=pooled)@10": pytest.approx(dcg / ideal)
    }


def test_a_measure_without_data_has_no_value(here: Path) -> None:
    Path("a.csv").write_text("request,position,grade\nq,1,\n")
    assert values("a.csv") == {"ndcg@10": None}
    assert invoke("a.csv", "--format", "csv").output == "measure,value,requests,empty,judged\nndcg@10,,0,0,\n"
    assert invoke("a.csv").output.splitlines()[1].split() == ["ndcg@10", "-", "0", "0", "-"]


def test_measures_are_named_canonically_and_listed_once(golden: Path) -> None:
    options = ("-m", "ndcg( gain=linear )@3", "-m", "ndcg@3", "-m", "err@3", "--max-grade", "4")
    assert list(values("shown.csv", *options)) == ["ndcg@3", "err(max_grade=4)@3"]


def test_rankers_are_compared_against_one_ideal_per_query(golden: Path) -> None:
    first, second = 1 / np.log2(3), 0.5
    shoes, hats = 3 + 2 * first + second, 1.0
    options = ("--ideal-from", "judged.csv", "-m", "ndcg(ideal=global)@10")
    old = {"s1": (1 + 3 * first) / shoes, "s2": 2 / shoes, "s3": 0.0}
    new = {"s1": (3 + 2 * first) / shoes, "s2": 3 / shoes, "s3": 1 / hats}
    assert requests("old.csv", *options) == pytest.approx(old)
    assert requests("new.csv", *options) == pytest.approx(new)
    assert requests("new.csv", "--ideal-from", "judged.csv") == pytest.approx(new)  # the default with --ideal-from
    assert requests("new.csv")["s2"] == 1.0


def test_grades_and_the_ideal_can_come_from_different_files(here: Path) -> None:
    Path("a.run").write_text("q 0 a 1 1 t\n")
    Path("a.qrels").write_text("q 0 a 1\n")
    Path("pool.qrels").write_text("q 0 a 1\nq 0 b 3\n")
    found = requests("a.run", "--qrels", "a.qrels", "--ideal-from", "pool.qrels")
    assert found == {"q": pytest.approx(1 / (3 + 1 / np.log2(3)))}


def test_columns_can_be_named_for_rankings_and_judgments(here: Path) -> None:
    Path("a.csv").write_text("list,search,thing,place,model,clicked\nl1,s,b,1,.2,0\nl1,s,a,2,.9,1\nl2,s,a,1,.5,1\n")
    names = ("--request", "list", "--item", "thing", "--position", "place")
    assert requests("a.csv", *names, "--grade", "clicked", "-m", "mrr") == {"l1": 0.5, "l2": 1.0}
    by_model = ("--request", "list", "--item", "thing", "--score", "model", "--grade", "clicked")
    assert requests("a.csv", *by_model, "-m", "mrr") == {"l1": 1.0, "l2": 1.0}
    Path("same.csv").write_text("search,thing,grade\ns,b,1\n")
    Path("usual.csv").write_text("query,item,grade\ns,b,1\n")
    for judgments in ("same.csv", "usual.csv"):
        found = requests("a.csv", *names, "--query", "search", "--qrels", judgments, "-m", "mrr")
        assert found == {"l1": 1.0, "l2": 0.0}
    Path("by-list.csv").write_text("list,thing,grade\nl2,a,1\n")
    assert requests("a.csv", *names, "--qrels", "by-list.csv", "-m", "mrr") == {"l2": 1.0}


def test_equal_scores_in_a_table_keep_file_order_by_default(here: Path) -> None:
    Path("a.csv").write_text("request,item,score,grade\nq,a,1,1\nq,b,1,0\n")
    assert values("a.csv", "-m", "mrr") == {"mrr": 1.0}
    assert values("a.csv", "-m", "mrr", "--ties", "trec") == {"mrr": 0.5}


def test_base_0_reads_positions_from_0(here: Path) -> None:
    Path("a.csv").write_text("request,item,position,grade\nr,a,0,0\nr,b,1,1\n")
    assert values("a.csv", "--base", "0", "-m", "mrr") == {"mrr": 0.5}


def test_positions_with_gaps_keep_their_discount(here: Path) -> None:
    Path("a.csv").write_text("request,position,grade\nq,7,1\nq,3,0\n")
    assert values("a.csv", "-m", "mrr", "-m", "dcg") == {"mrr": pytest.approx(1 / 7), "dcg": pytest.approx(1 / 3)}


def test_items_without_a_name_are_not_duplicates(here: Path) -> None:
    Path("a.csv").write_text("request,item,position,grade\nq,,1,1\nq,,2,\nq,a,3,0\n")
    assert values("a.csv", "-m", "mrr") == {"mrr": 1.0}
    Path("a.jsonl").write_text('{"request":1,"item":null,"rank":1,"grade":1}\n{"request":1,"rank":2}\n')
    assert values("a.jsonl", "-m", "mrr") == {"mrr": 1.0}


# Dirt: (files, arguments, message)

HEAD = "request,item,position,grade\n"
RUN = "q1 Q0 a 1 2.0 t\n"
DIRT = {
    "missing file": ({}, "no.csv", "no.csv: cannot be read: No such file or directory; check the file and its name"),
    "folder": ({"d.csv/x": ""}, "d.csv", "d.csv: cannot be read: Is a directory; check the file and its name"),
    "empty file": ({"a.csv": ""}, "a.csv", "a.csv: has no rows; give a file with one row per item"),
    "only a header": ({"a.csv": HEAD}, "a.csv", "a.csv: has no rows; give a file with one row per item"),
    "empty run": (
        {"a.run": "\n# nothing\n", "q": "q1 0 a 1\n"},
        "a.run --qrels q",
        "a.run: has no rows; give a file with one row per item",
    ),
    "empty json": ({"a.jsonl": "\n"}, "a.jsonl", "a.jsonl: has no rows; give a file with one row per item"),
    "unknown ending": (
        {"a.xls": "x"},
        "a.xls",
        "a.xls: unknown ending, and not a TREC run; known are .csv, .tsv, .jsonl or .ndjson (also with .gz), .parquet, "
        ".json of judgments; convert or rename it",
    ),
    "no zip file": (
        {"a.csv.gz": HEAD},
        "a.csv.gz",
        "a.csv.gz: cannot be read: Not a gzipped file (b're'); check the file and its name",
    ),
    "not UTF-8": (
        {"a.csv": HEAD + "q,a,1,1\nq,\udce9,2,1\n"},
        "a.csv",
        "a.csv:3: this line is not UTF-8; convert the file, e.g. with iconv",
    ),
    "run not UTF-8": (
        {"a.run": RUN + "q1 Q0 \udce9 1 2.0 t\n"},
        "a.run",
        "a.run:2: this line is not UTF-8; convert the file, e.g. with iconv",
    ),
    "no request column": (
        {"a.csv": "user,item,position,grade\nq,a,1,1\n"},
        "a.csv",
        "a.csv: no column for the request; it has user, item, position, grade; name one with --request",
    ),
    "no item column": (
        {"a.csv": "request,score,grade\nq,1,1\n"},
        "a.csv --ties trec",
        "a.csv: no column for the item; it has request, score, grade; name one with --item",
    ),
    "no order": (
        {"a.csv": "request,item,grade\nq,a,1\n"},
        "a.csv",
        "a.csv: no column for the position; it has request, item, grade; name one with --position or --score",
    ),
    "no grade column": (
        {"a.csv": "request,item,position,clicks\nq,a,1,1\n"},
        "a.csv",
        "a.csv: no column for the grade; it has request, item, position, clicks; name one with --grade, "
        "or give judgments with --qrels",
    ),
    "named column missing": (
        {"a.csv": HEAD + "q,a,1,1\n"},
        "a.csv --grade clicks",
        "a.csv: no column 'clicks' (--grade); it has request, item, position, grade",
    ),
    "column twice": (
        {"a.csv": "request,item,position,grade,grade\nq,a,1,1,2\n"},
        "a.csv",
        "a.csv:1: a column appears twice; rename one of them: request, item, position, grade, grade",
    ),
    "short line": (
        {"a.csv": HEAD + "q,a,1,1\n\nq,b,2\n"},
        "a.csv",
        "a.csv:4: 3 fields where the header has 4; correct the line",
    ),
    "long line": (
        {"a.csv": HEAD + "q,a,1,1,5\nq,b,2,1,5\n"},
        "a.csv",
        "a.csv:2: 5 fields where the header has 4; correct the line",
    ),
    "open quote": (
        {"a.csv": HEAD + 'q,a,1,1\nq,"b,2,1\n'},
        "a.csv",
        "a.csv:3: unexpected end of data; correct the line",
    ),
    "short run line": (
        {"a.run": RUN + "\n# note\nq1 Q0 b 2 1.0\n", "q": "q1 0 a 1\n"},
        "a.run --qrels q",
        "a.run:4: 5 columns where a TREC run has 6 (qid Q0 docno rank score tag); correct the line",
    ),
    "short run": (
        {"a.run": "q1 Q0 b 2 1.0\n", "q": "q1 0 a 1\n"},
        "a.run --qrels q",
        "a.run:1: 5 columns where a TREC run has 6 (qid Q0 docno rank score tag); correct the line",
    ),
    "run for qrels": (
        {"a.run": RUN},
        "a.run --qrels a.run",
        "a.run:1: 6 columns where TREC qrels has 4 (qid iter docno rel); correct the line",
    ),
    "long qrels line": (
        {"a.run": RUN, "q": "q1 0 a 1\nq1 0 b 1 5\n"},
        "a.run --qrels q",
        "q:2: 5 columns where TREC qrels has 4 (qid iter docno rel); correct the line",
    ),
    "broken json": (
        {"a.jsonl": '{"request":1,"position":1,"grade":1}\n{"request":1,\n'},
        "a.jsonl",
        "a.jsonl:2: not JSON: Expecting property name enclosed in double quotes: line 1 column 14 (char 13); "
        "each line is one object",
    ),
    "json list": (
        {"a.jsonl": '[{"request":1,"position":1,"grade":1}]\n'},
        "a.jsonl",
        'a.jsonl:1: [{"request":1,"position":1,"grade":1}] is not a JSON object; each line is one object',
    ),
    "two objects in a line": (
        {"a.jsonl": '{"request":1}, {"request":2}\n'},
        "a.jsonl",
        "a.jsonl:1: not JSON: Extra data: line 1 column 14 (char 13); each line is one object",
    ),
    "request empty": (
        {"a.csv": HEAD + "q,a,1,1\n,b,2,1\n"},
        "a.csv",
        "a.csv:3: column 'request' is empty; every row needs it",
    ),
    "item empty but needed": (
        {"a.csv": HEAD + "q1,,1,1\n", "q": "q1 0 a 1\n"},
        "a.csv --qrels q",
        "a.csv:2: column 'item' is empty; every row needs it",
    ),
    "item twice": (
        {"a.csv": HEAD + "q,a,1,1\np,a,1,1\nq,b,2,1\nq,a,3,1\n"},
        "a.csv",
        "a.csv:5: request 'q' has item 'a' twice, first at a.csv:2; keep one of them",
    ),
    "item twice in a run": (
        {"a.run": RUN + "# again\n" + RUN, "q": "q1 0 a 1\n"},
        "a.run --qrels q",
        "a.run:3: request 'q1' has item 'a' twice, first at a.run:1; keep one of them",
    ),
    "position twice": (
        {"a.csv": HEAD + "q,a,1,1\nq,b,2,1\nq,c,2,1\n"},
        "a.csv",
        "a.csv:4: request 'q' has position 2 twice, first at a.csv:3; keep one of them",
    ),
    "judged twice": (
        {"a.run": RUN, "q": "q1 0 a 1\nq2 0 a 1\nq1 0 a 1\n"},
        "a.run --qrels q",
        "q:3: query 'q1' has item 'a' twice, first at q:1; keep one of them",
    ),
    "negative grade": (
        {"a.csv": HEAD + "q,a,1,-1\n"},
        "a.csv",
        "a.csv:2: grade '-1' is not a grade; they are 0 or more, and empty if an item is unjudged",
    ),
    "infinite grade": (
        {"a.jsonl": '{"request":1,"position":1,"grade":1e999}\n'},
        "a.jsonl",
        "a.jsonl:1: grade inf is not a grade; they are 0 or more, and empty if an item is unjudged",
    ),
    "grade in words": (
        {"a.csv": HEAD + 'q,a,1,1\n"q\nr",b,1,\nq,c,3,good\n'},
        "a.csv",
        "a.csv:5: grade 'good' is not a number; correct it, or leave it empty if there is none",
    ),
    "grade in a record of two lines": (
        {"a.csv": HEAD + 'q,a,1,1\n"q\nr",b,1,good\n'},
        "a.csv",
        "a.csv:3: grade 'good' is not a number; correct it, or leave it empty if there is none",
    ),
    "grade NaN": (
        {"a.csv": HEAD + "q,a,1,NaN\n"},
        "a.csv",
        "a.csv:2: grade 'NaN' is not a number; correct it, or leave it empty if there is none",
    ),
    "grade NaN in json": (
        {"a.jsonl": '{"request":1,"position":1,"grade":NaN}\n'},
        "a.jsonl",
        "a.jsonl:1: grade nan is not a number; correct it, or leave it empty if there is none",
    ),
    "grade a list": (
        {"a.jsonl": '{"request":1,"position":1,"grade":[1]}\n'},
        "a.jsonl",
        "a.jsonl:1: grade [1] is not a number; correct it, or leave it empty if there is none",
    ),
    "fraction in qrels": (
        {"a.run": RUN, "q": "q1 0 a 1.5\n"},
        "a.run --qrels q",
        "q:1: rel '1.5' is not a whole number; put fractions into a CSV file of query, item, grade",
    ),
    "words in qrels": (
        {"a.run": RUN, "q": "q1 0 a NULL\n"},
        "a.run --qrels q",
        "q:1: rel 'NULL' is not a whole number; put fractions into a CSV file of query, item, grade",
    ),
    "position zero": (
        {"a.csv": HEAD + "q,a,0,1\n"},
        "a.csv",
        "a.csv:2: position '0' is not a position; they are whole numbers from 1 on (--base 0 if they start at 0)",
    ),
    "position with a fraction": (
        {"a.csv": HEAD + "q,a,1,1\nq,b,2.5,1\n"},
        "a.csv",
        "a.csv:3: position '2.5' is not a position; they are whole numbers from 1 on (for scores there is --score)",
    ),
    "position empty": (
        {"a.csv": HEAD + "q,a,,1\n"},
        "a.csv",
        "a.csv:2: position (empty) is not a position; they are whole numbers from 1 on (for scores there is --score)",
    ),
    "position far off": (
        {"a.jsonl": '{"request":1,"position":1' + "0" * 400 + ',"grade":1}\n'},
        "a.jsonl",
        f"a.jsonl:1: position 1{'0' * 400} is not a number; correct it",
    ),
    "score in words": (
        {"a.run": RUN + "q1 Q0 b 2 high t\n", "q": "q1 0 a 1\n"},
        "a.run --qrels q",
        "a.run:2: score 'high' is not a number; correct it",
    ),
    "score empty": (
        {"a.csv": "request,item,score,grade\nq,a,,1\n"},
        "a.csv",
        "a.csv:2: score (empty) cannot order items; every row needs a number",
    ),
    "run without qrels": (
        {"a.run": RUN},
        "a.run",
        "a.run: a TREC run has no grades; give its judgments with --qrels",
    ),
    "qrels of another run": (
        {"a.run": RUN, "q": "301 0 a 1\n"},
        "a.run --qrels q",
        "a.run: no query of it is judged in q, which has '301' where this has 'q1'; "
        "give the judgments that belong to it",
    ),
    "ties of positions": (
        {"a.csv": HEAD + "q,a,1,1\n"},
        "a.csv --ties trec",
        "a.csv: the order comes from column 'position', which has no ties; remove --ties, or use --score",
    ),
    "two queries in a request": (
        {"a.csv": "request,query,item,rank,grade\nr,x,a,1,1\nr,y,b,2,1\n", "q": "x 0 a 1\n"},
        "a.csv --qrels q",
        "a.csv:3: request 'r' has a second query, 'y'; a request belongs to one",
    ),
    "ideal without an item": (
        {"a.csv": HEAD + "q,a,1,0\nq,b,2,3\n", "i.csv": "request,item,grade\nq,a,1\n"},
        "a.csv --ideal-from i.csv",
        "a.csv:3: item 'b' of request 'q' has grade 3 here and none in i.csv; "
        "the ideal must include every graded item, with the same grade",
    ),
    "ideal with another grade": (
        {"a.csv": HEAD + "q,a,1,2\n", "i.csv": "request,item,grade\nq,a,1\n"},
        "a.csv --ideal-from i.csv",
        "a.csv:2: item 'a' of request 'q' has grade 2 here and grade 1 in i.csv; "
        "the ideal must include every graded item, with the same grade",
    ),
    "no judgments": (
        {"a.csv": HEAD + "q,a,1,1\n"},
        "a.csv -m ndcg(ideal=global)@5",
        "ndcg(ideal=global)@5 needs all judgments of each query; give them with --qrels or --ideal-from",
    ),
    "grade above the highest": (
        {"a.csv": HEAD + "q,a,1,1\nq,b,2,5\n"},
        "a.csv -m err@5 --max-grade 4",
        "a.csv:3: grade 5 is above the max_grade of err(max_grade=4)@5; give the highest possible grade",
    ),
    "grade above the highest, though no measure needs it": (
        {"a.csv": HEAD + "q,a,1,1\nq,b,2,2\n"},
        "a.csv --max-grade 1",
        "a.csv:3: grade 2 is above --max-grade; give the highest possible grade",
    ),
    "grade without a gain": (
        {"a.csv": HEAD + "q,a,1,2\n"},
        "a.csv -m ndcg(gain={1:1})@5",
        "a.csv: grade 2 is not in the gain table of ndcg(gain={1:1})@5",
    ),
}


@pytest.mark.parametrize("case", DIRT)
def test_bad_input_is_refused_with_file_line_and_remedy(here: Path, case: str) -> None:
    files, arguments, message = DIRT[case]
    for name, text in files.items():
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert refusal(*arguments.split()) == message


def test_parquet_distinguishes_nan_from_null_and_counts_rows_from_1(here: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"request": [1, 1, None], "position": [1, 2, 1], "grade": [1.0, None, 0.0]}
    parquet.write_table(pa.table(columns).slice(0, 2), "a.parquet")
    assert values("a.parquet", "-m", "mrr") == {"mrr": 1.0}
    parquet.write_table(pa.table(columns), "a.parquet")
    assert refusal("a.parquet") == "a.parquet: row 3: column 'request' is empty; every row needs it"
    parquet.write_table(pa.table(columns | {"request": [1, 1, 2], "grade": [1.0, float("nan"), 0.0]}), "a.parquet")
    message = "a.parquet: row 2: grade nan is not a number; correct it, or leave it empty if there is none"
    assert refusal("a.parquet") == message
    parquet.write_table(pa.table({"x": [1]}), "b.parquet")
    assert refusal("b.parquet") == "b.parquet: no column for the request; it has x; name one with --request"
    Path("c.parquet").write_bytes(b"PAR1 no more")
    assert refusal("c.parquet").startswith("c.parquet: cannot be read: ")


def test_parquet_without_pyarrow_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refusal("a.parquet")
    assert said == f"a.parquet: Parquet needs pyarrow; {sys.executable} -m pip install 'rankmon[parquet]'"


def test_a_permission_error_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")  # CI runs the tests as root, who may read everything

    monkeypatch.setattr("monitor.scoring.readers.open_bytes", denied)
    assert refusal("a.csv") == "a.csv: cannot be read: Permission denied; check the file and its name"


def test_a_truncated_gzip_file_is_refused(here: Path) -> None:
    whole = gzip.compress((HEAD + "q,a,1,1\n" * 1000).encode())
    Path("a.csv.gz").write_bytes(whole[:-12])
    message = "Compressed file ended before the end-of-stream marker was reached"
    assert refusal("a.csv.gz") == f"a.csv.gz: cannot be read: {message}; check the file and its name"


# The command

WEB = (
    *("web.run", "--qrels", "web.qrels", "-m", "ndcg@10", "-m", "ndcg(ideal=global)@10"),
    *("-m", "ndcg(ideal=global,empty=zero)@10", "-m", "recall(ideal=global,aggregate=pooled)"),
    *("-m", "map(ideal=global,empty=one)"),
)
VARIANTS = {"web": (), "web-per-request": ("--per-request", "--complete")}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_table_matches_the_golden_file(golden: Path, variant: str) -> None:
    result = invoke(*WEB, *VARIANTS[variant])
    assert result.exit_code == 0
    expected = (golden / "expected" / f"{variant}.txt").read_text(encoding="utf-8")
    assert [line.rstrip() for line in result.output.splitlines()] == expected.splitlines()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_json_matches_the_golden_file(golden: Path, variant: str) -> None:
    found = json.loads(invoke(*WEB, *VARIANTS[variant], "--format", "json").output)
    expected = json.loads((golden / "expected" / f"{variant}.json").read_text(encoding="utf-8"))
    assert list(found) == list(expected)
    for key in ("measures", "per_request"):
        assert_same_but_for_the_last_digit(found.pop(key, []), expected.pop(key, []))
    assert found == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_csv_matches_the_golden_file(golden: Path, variant: str) -> None:
    found = invoke(*WEB, *VARIANTS[variant], "--format", "csv").stdout
    expected = (golden / "expected" / f"{variant}.csv").read_text(encoding="utf-8")
    assert_same_but_for_the_last_digit(*(list(csv.DictReader(io.StringIO(text))) for text in (found, expected)))


def assert_same_but_for_the_last_digit(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """log2 may differ in the last bit between processors."""
    assert [list(line) for line in found] == [list(line) for line in expected]
    ours, theirs = ([line.pop("value") for line in lines] for lines in (found, expected))
    assert found == expected
    assert [v in (None, "") for v in ours] == [v in (None, "") for v in theirs]
    assert [float(v or 0) for v in ours] == pytest.approx([float(v or 0) for v in theirs], rel=1e-12)


def test_json_and_csv_carry_every_digit(golden: Path) -> None:
    exact = scoring.evaluate(scoring.read(Path("shown.csv")), [parse("ndcg@10")]).results[0].value
    assert values("shown.csv") == {"ndcg@10": exact}
    assert invoke("shown.csv", "--format", "csv").output.splitlines()[1] == f"ndcg@10,{exact!r},3,1,0.75"


def test_control_characters_and_markup_in_names_are_not_interpreted(here: Path) -> None:
    Path("a.csv").write_text("request,position,grade\n[red]\x1b[2J,1,1\n")
    assert "[red]\\u001b[2J" in invoke("a.csv", "--per-request").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "ndgc@10"), "'ndgc@10' is not a measure"),
        (("-m", "err@10"), "err needs the highest possible grade"),
        (("--max-grade", "0"), "0.0 is not in the range x>0"),
        (("--ties", "random"), "'random' is not one of 'trec', 'file'"),
        (("--format", "xml"), "'xml' is not one of 'table', 'json', 'csv'"),
        (("--complete",), "--complete counts the queries of the qrels; give --qrels"),
        (("--ideal-from", "j", "-m", "ndcg@10"), "--ideal-from has no effect: no measure has ideal=global"),
        (("--grade", "g", "--qrels", "q"), "--grade and --qrels both give the grades; remove one of them"),
        (("--position", "p", "--score", "s"), "--position and --score both order the items; remove one of them"),
    ],
)
def test_wrong_arguments_exit_with_2(golden: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke("shown.csv", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_help_names_every_recognised_column() -> None:
    text = " ".join(invoke("--help").output.split())
    for names in scoring.ALIASES.values():
        for name in names:
            assert f" {name}" in text


def test_help_names_the_tested_trec_eval_measures() -> None:
    text = invoke("--help").output
    for theirs in ("ndcg_cut_10", "map", "recip_rank", "ndcg"):
        assert f"  {theirs}  " in text
        assert TREC_EVAL[theirs] in text


def test_importing_the_command_loads_no_pandas_numpy_or_rich() -> None:
    code = "import sys, monitor.cli.commands.score; print(sorted({'pandas', 'numpy', 'rich'} & set(sys.modules)))"
    root = Path(scoring.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
