"""`python -m tests.benchmarks.label_truth --seeds 301 302`: how close is the corrected DCG to the truth?

Scores rankmon on the shared click simulator, whose truth is known. Each log takes the product's own path: a log in
SQLite, one monitor, `rankmon examination fit --by device`, the measure that it prints, `backfill`, the stored series.
Where people look elsewhere from day 21 on, the fit of `--since` day 21 replaces the measure from that day.
`days covered`: the share of days whose interval in `rankmon series` (estimated with the days before) contains the
true value. `told`: what a daemon with verdicts on the plain NDCG reports, counted once a run: `degraded` within a day
of the change, `examination` within three; later ones end in `-late`.
`--write` keeps the table, here and in the docs.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

import monitor.cli as cli
from monitor.cli.commands.examination import ExaminationBySlice, FittedExamination, RequestLog, by_slice
from monitor.clock import ManualClock
from monitor.config import load
from monitor.service.app import App
from monitor.source.engine import Database
from monitor.store.alerts import Transition

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "label_truth"
RESULTS = Path(__file__).with_name("LABEL_TRUTH.md")
START, DAY, DEPTH, CHANGED = 1_767_225_600, 86_400, 10, 21
WITHIN = {"degraded": ("degraded", 1.0), "examination_changed": ("examination", 3.0)}
"""Condition -> (its name in the table, days after the change within which it is due)."""
PAGE = ROOT / "docs" / "explanation" / "position-bias.md"
WHAT = {
    "order": "another model fills its lists with good items",
    "better": "another model sorts a little better",
    "page": "people look further down, nothing is worse",
    "drop": "the model sorts worse",
    "both": "it sorts worse while people look at the top only",
    "trust": "as the first, and people trust the top",
    "cascade": "as the first, and people stop at a click",
}
HEAD = "| what happens | NDCG of clicks is off by | corrected DCG is off by | its direction is right | days covered |"
NAME = "search"
FEW = 50
"""A day and model with this many requests or fewer is not scored."""
LOOK_ELSEWHERE = ("page", "both")
TWO_MODELS = ("order", "trust", "cascade", "better")


def monitor(measure: str, *more: str) -> dict[str, Any]:
    """The configuration of a monitor, with verdicts on the first of several measures."""
    return {
        "name": NAME,
        "source": "log",
        "slices": ["device"],
        "rankings": {
            "table": "rankings",
            "request": "request_id",
            "item": "item_id",
            "position": "position",
            "time": {"column": "served_at", "format": "epoch_s"},
            "query": "query",
            "model_version": "model_version",
        },
        "relevance": {
            "events": {
                "table": "clicks",
                "request": "request_id",
                "item": "item_id",
                "time": {"column": "clicked_at", "format": "epoch_s"},
                "rules": [{"grade": 1}],
                "attribution": "1h",
            }
        },
        "measures": [measure, *more],
        "bucket": "24h",
        "windows": ["24h"],
        **({"drift": {}, "stale_after": "3d"} if more else {}),  # the log has less than an hour of each day
    }


def estimate(path: str, scenario: str) -> dict[str, Any]:
    """What `run.py` asks for: the corrected DCG of each day and model, and the examination of each device."""
    spans = [(0, 21), (21, 28)] if scenario in LOOK_ELSEWHERE else [(0, 28)]
    until = 28 if scenario in TWO_MODELS else 21
    found: dict[str, Any] = {"daily": {}}
    for since, end in spans:
        fit = (0, end) if len(spans) > 1 else (0, until)
        part = _of_span(path, fit, since, end, found.get("measure", ""))
        found = {**part, **found, "daily": {**found["daily"], **part["daily"]}}
    return found if scenario in TWO_MODELS else {**found, "told": told(path)}


def told(path: str) -> list[tuple[float, str]]:
    """(day, what) that a daemon reports on days 20 to 27 of the log, each the first time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure = _fitted(folder, path, CHANGED, CHANGED).measure
        config_path = _written(folder, path, monitor(f"ndcg@{DEPTH}", measure))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert cli.run(["backfill", "--from", "2026-01-01", "--to", "2026-01-21", "-c", str(config_path)]) == 0
        clock = ManualClock(START + (CHANGED - 1) * DAY)
        app = App(load(config_path, {}), clock)
        app.prepare()
        for hour in range((CHANGED - 1) * 24 + 5, 29 * 24, 6):
            clock.time = START + 3600 * hour + 1800.0
            assert app.runners[NAME].run().error is None
        found = list(_first(app.store.alerts.transitions(NAME)))
        app.close()
    return found


def _fitted(folder: Path, path: str, until: int, days: int, measure: str = "") -> ExaminationBySlice:
    """What `rankmon examination fit --by device` says at the start of day `until`; with a measure, `--since` day 21."""
    config = load(_written(folder, path, monitor(measure or f"dcg@{DEPTH}")), {})
    database = Database("log", config.source("log").url, 60)
    since = START + CHANGED * DAY if measure else None
    found = by_slice(RequestLog(config.monitor(NAME), database, START + until * DAY, days, DEPTH, since), "device")
    database.close()
    return found


def _first(steps: Sequence[Transition]) -> Iterator[tuple[float, str]]:
    fired = {step.rule: (step.at - START) / DAY - CHANGED for step in reversed(steps) if step.became == "firing"}
    for rule, after in fired.items():
        name, most = WITHIN.get(rule, (rule, 0.0))
        yield CHANGED + after, name if after <= most or rule not in WITHIN else f"{name}-late"


def _of_span(path: str, fit: tuple[int, int], since: int, end: int, measure: str) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    try:
        found = _fitted(folder, path, fit[1], fit[1] - fit[0], measure)
        fits = (one for one in found.slices if isinstance(one, FittedExamination))
        looks = {one.slice.removeprefix("device="): [rank.value for rank in one.ranks] for one in fits}
        first, last = (f"2026-01-{1 + day:02}" for day in (since, end))
        config_path = str(_written(folder, path, monitor(found.measure)))
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert cli.run(["backfill", "--from", first, "--to", last, "-c", config_path]) == 0
        return {"examination": looks, "measure": found.measure, "daily": _daily(config_path)}
    finally:
        shutil.rmtree(folder)


def _written(folder: Path, log: str, one: dict[str, Any]) -> Path:
    path = folder / "rankmon.yaml"
    sources = {"log": {"url": f"sqlite:///{log}"}}
    config = {"store": {"url": f"sqlite:///{folder}/store.db"}, "sources": sources, "monitors": [one]}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def _daily(config_path: str) -> dict[tuple[int, str], tuple[float, float, float]]:
    """(day, model) -> mean of the requests and its 95 % interval, as `rankmon series` shows them."""
    asked = ["series", "--slices", "--window", "24h", "--format", "csv", "-c", config_path]
    with redirect_stdout(io.StringIO()) as said, redirect_stderr(io.StringIO()):
        assert cli.run(asked) == 0
    found = {}
    for row in csv.DictReader(io.StringIO(said.getvalue())):
        if row["dimension"] == "model_version" and int(row["requests"]) > FEW:
            day = (int(datetime.fromisoformat(row["end"]).timestamp()) - START) // DAY - 1
            found[day, row["slice"]] = (float(row["value"]), float(row["lower"]), float(row["upper"]))
    return found


def documented(said: str) -> str:
    """The page for owners of models, with what was `said` as its table."""
    rows = []
    for line in said.splitlines():
        figures = dict(re.findall(r"(error|naive|right|covered) (\d\.\d+)", line))
        cells = WHAT[line.split()[0]], *(figures.get(name, "") for name in ("naive", "error", "right", "covered"))
        rows.append(f"| {' | '.join(cells)} |")
    before, _, after = PAGE.read_text(encoding="utf-8").partition(HEAD)
    return "\n".join([before + HEAD, "|---|---|---|---|---|", *rows, "", after.partition("\n\n")[2]])


def main() -> None:
    """Score the seeds and print, or keep, the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.label_truth", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True, help="those below 100 were used for the design")
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULTS.name}")
    given = parser.parse_args()
    if not SHARED.is_dir():
        parser.error("needs the shared simulator next to the checkout")
    seeds = list(map(str, given.seeds))
    command = [sys.executable, str(SHARED / "run.py"), f"{__spec__.name}:estimate", "--seeds", *seeds]
    environment = {**os.environ, "PYTHONPATH": f"{SHARED}{os.pathsep}{ROOT}"}
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    print(said)
    if given.write:
        about = f"# Label truth\n\n{__doc__.partition(chr(10) * 2)[2].strip()}\n\nSeeds {', '.join(seeds)}.\n"
        RESULTS.write_text(f"{about}\n```text\n{said}```\n", encoding="utf-8")
        PAGE.write_text(documented(said), encoding="utf-8")


if __name__ == "__main__":
    main()
