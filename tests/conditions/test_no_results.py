"""Searches without results count as requests in measures, verdicts and rules, and reach the right people."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import monitor.cli as cli
from monitor.conditions.rules import Baseline, Drop, Floor, Rule
from monitor.conditions.thresholds import View, track_rule
from monitor.database_url import parse_url
from monitor.measures.measure import parse
from monitor.series import partials as b
from monitor.series.partials import TRAFFIC_FIELDS, Partials, read_as, to_partials
from monitor.series.windows import History
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.types import OVERALL, Monitor
from tests.support import logs
from tests.support.logs import START, Log, Row

MEASURES = ("ndcg@3", "precision@2", "mrr", "hit_rate", "ctr", "ctr(aggregate=mean)", "no_results")
HOUR, DAY = 3600, 86_400


def row(request: str, **values: Any) -> Row:
    return dict.fromkeys(logs.RANKINGS) | {
        "request": request,
        "at": (START + 10) * logs.MICROS,
        "device": "pc",
        **values,
    }


def read(tmp_path: Path, log: Log, watched: Monitor, way: str) -> Partials:
    """The partials of the first bucket, read by pull or by push-down."""
    url = f"sqlite:///{tmp_path}/log.db"
    logs.write(url, log, logs.styles(url)["epoch us"])
    database = Database("s", parse_url(url), 60)
    try:
        source = Pull(watched, database) if way == "pull" else PushDown(watched, database, is_bound=True)
        answer = source.read(START, START + logs.BUCKET)
        kernels = [m.kernel for m in watched.measures]
        return to_partials(answer, logs.BUCKET, kernels, watched.slices, {})
    finally:
        database.close()


def made(recipe: Any = None, results: str | None = None) -> Monitor:
    style = logs.styles("sqlite")["epoch us"]
    watched = logs.monitor(recipe or logs.events(style), style, MEASURES)
    return replace(watched, rankings=replace(watched.rankings, results=results))


def clicked(*empty: Row) -> Log:
    """One request with two items, the second of them clicked, and further rows `empty`."""
    log = Log()
    log.show("full", [1, 2], START + 5, device="tv")
    log.happen("full", 2, START + 8)
    log.rankings += empty
    return log


@pytest.mark.parametrize("way", ["pull", "pushdown"])
def test_an_empty_list_counts_as_a_request_of_its_slices_not_a_refused_row(tmp_path: Path, way: str) -> None:
    watched = made()
    found = read(tmp_path, clicked(row("none")), watched, way)
    cell = (START, *OVERALL)
    assert dict(zip(TRAFFIC_FIELDS, found.traffic[cell], strict=True)) | {"unmatched": 0} == {
        "requests": 2,
        "labelled": 1,
        "impressions": 2,
        "judged": 1,
        "events": 1,
        "no_results": 1,
        "rank_one": 1,
        "unmatched": 0,
    }
    assert found.refused == {}
    assert found.traffic[(START, "device", "pc")][0] == 1
    of = {str(m): found.measures[str(m.kernel)][cell] for m in watched.measures}
    values = {text: float(read_as(parse(text), of[str(parse(text))])) for text in MEASURES}
    zero = parse("ndcg(empty=zero)@3")
    assert float(read_as(zero, of["ndcg@3"])) == pytest.approx(values["ndcg@3"] / 2)
    assert {k: v for k, v in values.items() if k != "ndcg@3"} == {
        "precision@2": 0.25,
        "mrr": 0.25,
        "hit_rate": 0.5,
        "ctr": 0.5,  # nothing clickable was shown
        "ctr(aggregate=mean)": 0.5,
        "no_results": 0.5,
    }


EMPTY = pytest.mark.parametrize(
    ("results", "rows", "empty", "refused"),
    [
        (None, [{}], 1, {}),
        (None, [{}, {}], 1, {}),
        (None, [{"position": 1}], 0, {"null_item": 1}),  # an advert: an item is missing there
        (None, [{}, {"position": 1}], 1, {"null_item": 1}),
        (None, [{}, {"item": 3, "position": 1}], 0, {"null_item": 1, "null_position": 1}),
        ("grade", [{"grade": 0}], 1, {}),
        ("grade", [{"grade": 0, "position": 1}], 1, {}),  # as LEFT JOIN and coalesce write it
        ("grade", [{"grade": 0, "position": 0}], 1, {}),
        ("grade", [{"grade": 0, "item": 0, "position": 0}], 1, {}),  # as ClickHouse's LEFT ARRAY JOIN writes it
        ("grade", [{"grade": 0, "item": 3, "position": 1}], 0, {}),  # there is an item, whatever the count says
        ("grade", [{"grade": 7, "item": 3, "position": 0}], 0, {"bad_position": 1}),
        ("grade", [{"grade": 7}], 0, {"null_item": 1, "null_position": 1}),
        ("grade", [{}], 0, {"null_item": 1, "null_position": 1}),
    ],
)


@pytest.mark.parametrize("way", ["pull", "pushdown"])
@EMPTY
def test_rows_that_mark_an_empty_list_are_recognised(
    tmp_path: Path, way: str, results: str | None, rows: list[Row], empty: int, refused: dict[str, int]
) -> None:
    log = clicked(*(row("none", **one) for one in rows))
    found = read(tmp_path, log, made(results=results), way)
    assert found.traffic[(START, *OVERALL)][TRAFFIC_FIELDS.index("no_results")] == empty
    assert {reason: n for (cell, reason), n in found.refused.items() if cell[1:] == OVERALL} == refused


@pytest.mark.parametrize("way", ["pull", "pushdown"])
def test_an_empty_list_needs_no_label(tmp_path: Path, way: str) -> None:
    log = clicked(row("none"), row("unlabelled", item=4, position=1))
    for one in log.rankings[:2]:
        one["grade"] = 1
    found = read(tmp_path, log, made(logs.column(max_grade=1)), way)
    cell = (START, *OVERALL)
    assert found.measures["ndcg@3"][cell][[b.REQUESTS, b.EMPTY]].tolist() == [2, 1]
    assert found.measures["no_results"][cell][[b.REQUESTS, b.TOTAL]].tolist() == [3, 1]


# ---- rules at a rise ---------------------------------------------------------------------------------------------


def changes(measure: str, limit: Drop | Floor, values: np.ndarray) -> list[tuple[str, str, int]]:
    """The state changes of a rule on hourly values, over windows of six hours."""
    starts, hours = np.arange(len(values)) * HOUR, len(values)
    sums, traffic = np.zeros((hours, 1, len(b.FIELDS))), np.zeros((hours, 1, len(TRAFFIC_FIELDS)))
    sums[:, 0, b.REQUESTS], sums[:, 0, b.TOTAL], traffic[:, 0, 0] = 100, 100 * values, 100
    both = (History(starts, np.ones(hours, bool), (OVERALL,), some) for some in (sums, traffic))
    rule = Rule("r", parse(measure), 6 * HOUR, limit, 3 * HOUR, 3 * HOUR, min_requests=1)
    found = track_rule(rule, View(*both, HOUR, 0.9), [int(start) + HOUR for start in starts], {})[1]
    return [(change.was, change.became, change.at) for change in found]


@pytest.mark.parametrize("seed", range(20))
def test_a_rise_rule_mirrors_a_fall_rule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = np.repeat(rng.choice([0.05, 0.1, 0.3], 20), 12) + rng.uniform(0, 0.02, 240)
    change = Drop(0.1, 0.05, False, Baseline(trailing=2 * DAY))
    assert changes("no_results", change, share) == changes("mrr", change, 1 - share)
    assert changes("no_results", Floor(0.2, 0.15), share) == changes("mrr", Floor(0.8, 0.85), 1 - share)


def test_a_relative_rise_is_a_share_of_its_baseline() -> None:
    rise = Drop(0.5, 0.2, True, Baseline(trailing=2 * DAY))
    assert changes("no_results", rise, np.repeat([0.1, 0.14], [72, 24])) == []
    fired = changes("no_results", rise, np.repeat([0.1, 0.2, 0.1], [72, 12, 48]))
    assert [became for _, became, _ in fired] == ["pending", "firing", "ok"]


# ---- from the log to the page ------------------------------------------------------------------------------------

CONFIG = """\
store: {{url: "sqlite:///store.db"}}
sources: {{lake: {{url: "duckdb:///:memory:"}}}}
monitors:
  - name: shop
    source: lake
    rankings:
      select: |
        SELECT q.request, q.device, q.served, h.item, h.position
        FROM read_parquet('{folder}/searches.parquet') q LEFT JOIN LATERAL
          (SELECT unnest(q.hits) AS item, generate_subscripts(q.hits, 1) AS position) h ON true
      request: request
      item: item
      position: position
      time: served
    slices: [device]
    relevance:
      events:
        select: SELECT * FROM read_parquet('{folder}/events.parquet')
        request: request
        item: item
        time: happened
        rules: [{{grade: 1}}]
        attribution: 1h
    measures: [ndcg@10, no_results]
    windows: [24h]
    drift: {{}}
    retrain: {{notify: [log], after: 24h}}
    alerts:
      - {{name: labels, measure: label_coverage, drop: 15%, baseline: {{weeks: 2}}, for: 3h, severity: warning}}
      - {{name: no-results, measure: no_results, rise: 100%, baseline: {{weeks: 2}}, for: 3h, resolve: {{rise: 50%}}}}
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """28 days on which 5 % of the searches find nothing, then four days on which 35 % do."""
    pytest.importorskip("duckdb_engine")
    pytest.importorskip("pyarrow")
    folder, rng, days, each = tmp_path_factory.mktemp("empty"), np.random.default_rng(1), 32, 40
    number = days * 24 * each
    served = pd.Timestamp("2026-10-01", tz="UTC") + pd.to_timedelta(np.arange(number) * 3600 // each, unit="s")
    none = rng.random(number) < np.where(np.arange(number) < 28 * 24 * each, 0.05, 0.35)
    hits = [[] if empty else list(range(1, 9)) for empty in none.tolist()]
    names, device = [f"r{i}" for i in range(number)], np.where(rng.random(number) < 0.5, "web", "app")
    write = {"coerce_timestamps": "us", "allow_truncated_timestamps": True}
    searches = {"request": names, "device": device, "served": served, "hits": hits}
    pd.DataFrame(searches).to_parquet(folder / "searches.parquet", **write)
    at, item = np.nonzero((rng.random((number, 8)) < 0.5 / np.arange(1, 9)) & ~none[:, None])
    happened = served[at] + pd.Timedelta("20s")
    events = pd.DataFrame({"request": [names[i] for i in at], "item": item + 1, "happened": happened})
    events.to_parquet(folder / "events.parquet", **write)
    (folder / "rankmon.yaml").write_text(CONFIG.format(folder=folder), encoding="utf-8")
    assert run(folder, "backfill", "--from", "2026-10-01", "--to", "2026-11-02") == 0
    return folder


def run(folder: Path, *arguments: str) -> int:
    return cli.run([*arguments, "-c", str(folder / "rankmon.yaml")])


def test_a_rise_in_empty_lists_is_a_quality_incident_not_a_data_incident(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(filled, "replay", "--format", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    (incident,) = found["incidents"]
    assert (incident["matter"], incident["state"]) == ("quality", "firing")
    assert {"rule no-results", "verdict degraded"} <= set(incident["by"])
    assert run(filled, "incidents", "show", incident["id"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"no_results over 24h until [\d :-]+ UTC rose from 0\.0", shown)
    assert "Rule no-results fires above 0." in shown
    assert re.search(r"3\d\.\d % of requests have no results \(usually \d\.\d %\)\.", shown)
    assert "What to do: find out why searches return nothing" in shown
    assert run(filled, "status") == 0
    assert "retraining is not recommended now: more requests without results" in capsys.readouterr().out


def test_empty_lists_have_a_series_and_can_be_inspected(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(filled, "series", "--measure", "no_results", "--format", "json") == 0
    points = json.loads(capsys.readouterr().out)
    assert points[-1]["value"] == pytest.approx(0.35, abs=0.05)
    assert points[-1]["label_coverage"] == pytest.approx(points[3]["label_coverage"], abs=0.05)
    hits = pd.read_parquet(filled / "searches.parquet")
    (empty, *_) = hits.request[hits.hits.map(len) == 0]
    assert run(filled, "inspect", empty) == 0
    shown = capsys.readouterr().out
    assert "null_item" not in shown
    assert "no_results = 1 if the list is empty = 1.0" in shown
