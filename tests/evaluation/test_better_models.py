"""A better model never pages and never asks to retrain, by the examples' rules and by verdicts; a worse one does.

The logs are simulated: four weeks of one model, then six days of another. People look at rank k with probability 1/k
and click what they see by its relevance. The logs go through the real backfill, and `replay` gives the incidents.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import monitor.cli as cli
from tests.support.processes import ROOT

DAYS, NEW_FROM, SINCE = 34, 28, "2026-10-01"
CONFIG: dict[str, Any] = {
    "store": {"url": "sqlite:///store.db"},
    "sources": {"lake": {"url": "duckdb:///:memory:"}},
}
MONITOR: dict[str, Any] = {
    "name": "shop",
    "source": "lake",
    "rankings": {
        "select": "SELECT * FROM read_parquet('{folder}/rankings.parquet')",
        "request": "request",
        "item": "item",
        "position": "position",
        "time": "served",
        "model_version": "model",
    },
    "slices": ["device"],
    "relevance": {
        "events": {
            "select": "SELECT * FROM read_parquet('{folder}/events.parquet')",
            "request": "request",
            "item": "item",
            "type": "type",
            "time": "happened",
            "rules": [{"type": "click", "grade": 1}],
            "attribution": "1h",
        }
    },
    "measures": ["ndcg@10", "mrr@10"],
    "windows": ["6h", "24h"],
    "drift": {},
    "retrain": {"notify": ["log"], "after": "24h"},
}


@dataclass(frozen=True)
class Model:
    """How good the items are at rank 1, ranks 2 to 4 and from 5 on; how many are shown; how people look and come."""

    head: float = 0.65
    middle: float = 0.05
    tail: float = 0.05
    items: int = 10
    looks: float = 1.0
    hourly: int = 80


OLD = Model(looks=0.9)
FULL = Model(head=0.92, middle=0.5, tail=0.2)
"""Nearly every list is clicked, so more clicks only raise the divisor of a value."""
BETTER = {
    "a better tail": (OLD, replace(OLD, tail=0.35)),
    "a better head": (OLD, replace(OLD, head=0.85)),
    "more results": (OLD, replace(OLD, items=20)),
    "a faster page": (OLD, replace(OLD, looks=1.0)),
    "more traffic": (OLD, replace(OLD, hourly=120)),
    "a better tail where nearly all click": (FULL, replace(FULL, tail=0.5)),
    "more results where nearly all click": (FULL, replace(FULL, items=20)),
}
WORSE = {
    "a worse head": (OLD, replace(OLD, head=0.5)),
    "all half as good": (OLD, replace(OLD, head=0.32, middle=0.025, tail=0.025)),
    "head and middle swapped": (OLD, replace(OLD, head=0.05, middle=0.2)),
    "a worse head where nearly all click": (FULL, replace(FULL, head=0.6)),
}
SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.engines) for seed in (2, 3)))


def log(folder: Path, old: Model, new: Model, seed: int) -> None:
    """Write the log of the old model and then the new one as Parquet files."""
    pytest.importorskip("duckdb_engine")
    pytest.importorskip("pyarrow")
    rng, rankings, events, start = np.random.default_rng(seed), [], [], pd.Timestamp(SINCE, tz="UTC")
    for name, model, begin, days in (("v1", old, 0, NEW_FROM), ("v2", new, NEW_FROM, DAYS - NEW_FROM)):
        number, rank = days * 24 * model.hourly, np.arange(1, model.items + 1)
        served = start + pd.to_timedelta(begin * 86_400 + np.sort(rng.random(number)) * days * 86_400, unit="s")
        good = np.where(rank == 1, model.head, np.where(rank < 5, model.middle, model.tail))
        clicked = rng.random((number, model.items)) < good * model.looks / rank
        device = np.where(rng.random(number) < 0.5, "mobile", "desktop")
        request, shown = np.repeat(np.arange(number), model.items), np.tile(rank, number)
        rows = {"request": request, "item": shown, "position": shown, "served": served[request]}
        rankings.append(pd.DataFrame({**rows, "device": device[request], "model": name}))
        at, item = np.nonzero(clicked)
        found = {"request": at, "item": item + 1, "type": "click", "happened": served[at] + pd.Timedelta("20s")}
        events.append(pd.DataFrame(found))
    for kind, frames in (("rankings", rankings), ("events", events)):
        whole = pd.concat([f.assign(request=n + f["request"].astype(str)) for n, f in zip("ab", frames, strict=True)])
        whole.to_parquet(folder / f"{kind}.parquet", coerce_timestamps="us", allow_truncated_timestamps=True)


def rules() -> list[dict[str, Any]]:
    """The alert rules of the example and of deploy, unchanged but for unique names."""
    found = {}
    for file in ("config/examples/search-events.yaml", "deploy/rankmon.yaml"):
        for monitor in yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["monitors"]:
            for rule in monitor.get("alerts", []):
                found[f"{rule['name']}-{len(found)}"] = {**rule, "name": f"{rule['name']}-{len(found)}"}
    return [*found.values()]


def filled(folder: Path, old: Model, new: Model, seed: int, alerts: list[dict[str, Any]], more: int = 0) -> Path:
    """The configuration of a monitor backfilled from that log and `more` days without requests."""
    log(folder, old, new, seed)
    path = folder / "rankmon.yaml"
    text = yaml.safe_dump({**CONFIG, "monitors": [{**MONITOR, "alerts": alerts}]})
    path.write_text(text.replace("{folder}", str(folder)), encoding="utf-8")
    until = (pd.Timestamp(SINCE) + pd.Timedelta(days=DAYS + more)).strftime("%Y-%m-%d")
    assert cli.run(["backfill", "--from", SINCE, "--to", until, "-c", str(path)]) == 0
    return path


def told(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The incidents that replay finds."""
    capsys.readouterr()
    assert cli.run(["replay", "--format", "json", "-c", str(path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    return [*found["incidents"]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("old", "new"), BETTER.values(), ids=BETTER)
def test_a_better_model_pages_nobody(
    old: Model, new: Model, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(filled(tmp_path, old, new, seed, rules()), capsys) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("old", "new"), WORSE.values(), ids=WORSE)
def test_a_worse_model_pages(
    old: Model, new: Model, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(filled(tmp_path, old, new, seed, rules()), capsys)
    by = " ".join(by for one in found if one["matter"] == "quality" for by in one["by"])
    assert "quality-drop" in by
    assert old is OLD or "verdict degraded" in by, "with few clicks, lost labels may be the cause instead"


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_explained_by_a_fall_are_not_reported_lost(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(filled(tmp_path, *WORSE["head and middle swapped"], seed, []), capsys)
    (fall,) = (one for one in found if one["matter"] == "quality")
    assert fall["state"] == "firing"
    assert [one["by"] for one in found if one["matter"] == "data" and one["opened_at"] > fall["opened_at"]] == []


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rule_on_clicked_lists_only_says_that_people_find_more(
    silent: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after a day without requests: the last judged window has some hundred, too few to be significant."""
    old = Model(head=0.5, hourly=60)
    rule = {**rules()[0], "measure": "ndcg(empty=skip)@10", "for": "6h", "min_requests": 100}
    path = filled(tmp_path, old, replace(old, tail=0.35), 1, [rule], silent)
    assert cli.run(["check-config", "-c", str(path)]) == 0
    assert "falls when better lists bring clicks further down" in capsys.readouterr().err
    (incident,) = (one for one in told(path, capsys) if one["matter"] == "quality")
    assert cli.run(["incidents", "show", incident["id"], "-c", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"More requests.* have something relevant: \d\d\.\d %, 5\d\.\d % before\.", shown)
    assert "do not retrain for this" in shown
    assert "or retrain" not in shown
    assert cli.run(["status", "-c", str(path)]) == 0
    said = capsys.readouterr().out
    assert silent or "retraining is not recommended now: more requests with something relevant" in said
