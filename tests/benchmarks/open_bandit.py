"""`python -m tests.benchmarks.open_bandit`: examination on real clicks, with and without randomised positions.

ZOZO's Open Bandit data (Saito et al. 2021; CC BY 4.0) shows fashion items at three places of a page: chosen at random
in one part, by a learning policy in the other. Clicks by place of the random part measure how often people look there;
`rankmon examination fit` estimates it from the other part alone, by items that the policy showed at several places. A
sample of 30,000 rows of each part comes with the package obp, with some 150 clicks in each: both intervals are wide.

    pip download obp==0.5.7 --no-deps --no-binary obp --ignore-requires-python -d .cache
    tar xzf .cache/obp-0.5.7.tar.gz -C .cache
"""

from __future__ import annotations

import argparse
import csv
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np

from monitor.cli.commands.examination import FittedExamination, RequestLog, fitted
from monitor.config import load
from monitor.measures.examination import Z95
from monitor.source.engine import Database

ROOT = Path(__file__).parents[2]
DATA = ROOT / ".cache" / "obp-0.5.7" / "obp" / "dataset" / "obd"
RESULTS = Path(__file__).with_name("OPEN_BANDIT.md")
POLICY, RANDOM = "bts", "random"
UNTIL, DAYS, PLACES = 1_575_158_400, 8, 3  # 2019-12-01, after the last row

CONFIG = """
store: {{url: "sqlite:///{folder}/store.db"}}
sources: {{log: {{url: "sqlite:///{folder}/log.db"}}}}
monitors:
  - name: bts
    source: log
    rankings:
      select: SELECT * FROM shown WHERE policy = 'bts'
      request: request
      item: item
      position: position
      query: context
      time: {{column: at, format: "%Y-%m-%dT%H:%M:%S.%fZ"}}
    relevance: {{column: {{grade: click, max_grade: 1}}}}
    measures: [ctr@3]
    windows: [24h]
"""


def fill(path: Path, data: Path) -> None:
    """The rows as a log: each is a request, and the item of a campaign is a context of its own."""
    with closing(sqlite3.connect(path)) as log, log:
        log.execute("CREATE TABLE shown (policy, request, context, item, position INTEGER, click INTEGER, at TEXT)")
        for file in sorted(data.glob("*/*/*.csv")):
            policy, campaign = file.parts[-3:-1]
            if file.stem == campaign:
                log.executemany("INSERT INTO shown VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(file, policy, campaign))


def _rows(file: Path, policy: str, campaign: str) -> list[tuple[object, ...]]:
    with file.open(encoding="utf-8") as opened:
        return [
            (
                *(policy, f"{policy}-{campaign}-{n}", f"{campaign}-{row['item_id']}", row["item_id"]),
                *(int(row["position"]), int(row["click"]), row["timestamp"].replace(" ", "T").replace("+00:00", "Z")),
            )
            for n, row in enumerate(csv.DictReader(opened))
        ]


def measured(path: Path) -> list[tuple[float, float, float]]:
    """Click rate by place of the random part, relative to the first, with a 95 % interval of Poisson counts."""
    with closing(sqlite3.connect(path)) as log:
        found = log.execute(
            "SELECT SUM(click), COUNT(*) FROM shown WHERE policy = ? GROUP BY position ORDER BY position", (RANDOM,)
        ).fetchall()
    clicks, shown = np.array(found, float).T
    rate, error = clicks / shown, np.sqrt(1 / clicks + 1 / clicks[0])
    error[0] = 0
    value = rate / rate[0]
    low, high = value * np.exp(-Z95 * error), value * np.exp(Z95 * error)
    return list(zip(value.tolist(), low.tolist(), high.tolist(), strict=True))


def compare(data: Path) -> tuple[FittedExamination, list[tuple[float, float, float]]]:
    """(what is estimated without the random part, what is measured on it)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "log.db", data)
        path = folder / "rankmon.yaml"
        path.write_text(CONFIG.format(folder=folder), encoding="utf-8")
        config = load(path, {})
        database = Database("log", config.source("log").url, 60)
        try:
            return fitted(RequestLog(config.monitor(POLICY), database, UNTIL, DAYS, PLACES)), measured(
                folder / "log.db"
            )
        finally:
            database.close()


def main() -> None:
    """Compare and print, or keep, the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.open_bandit", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULTS.name}")
    given = parser.parse_args()
    if not DATA.is_dir():
        parser.error(f"needs {DATA.relative_to(ROOT)}; see --help")
    estimate, truth = compare(DATA)
    lines = ["place  estimated without it (95 %)  measured on the random part (95 %)"]
    for rank, (value, low, high) in zip(estimate.ranks, truth, strict=True):
        ours = f"{rank.value:.2f} ({rank.lower:.2f} to {rank.upper:.2f})"
        lines.append(f"{rank.rank:5}  {ours:>27}  {f'{value:.2f} ({low:.2f} to {high:.2f})':>34}")
    said = "\n".join(lines)
    print(said)
    if given.write:
        about = f"# Examination on real clicks\n\n{__doc__.partition(chr(10) * 2)[2].strip()}\n"
        RESULTS.write_text(f"{about}\n```text\n{said}\n```\n", encoding="utf-8")


if __name__ == "__main__":
    main()
