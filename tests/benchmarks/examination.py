"""`python -m tests.benchmarks.examination`: what corrected measures cost, on 2 million rows of a simulated log.

Times fits of examination (of all requests, and by device) and reads with a corrected measure (one table, and a table
for each device). The ratio of a read is to the same read without a corrected measure, that of a fit to the push-down
read without one. Times are processor time of this process, which includes SQLite and DuckDB: a busy machine disturbs
it least. `--write` keeps the table.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from sqlalchemy.engine import make_url

from monitor.measures.examination import ShownCounts, estimate
from monitor.measures.measure import parse
from monitor.series.partials import to_partials
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.source.swaps import counts_by_slice, shown_counts
from monitor.types import EventRule, Events, Monitor, Position, Rankings, Relation, Slice, TimeColumn
from tests.benchmarks.timing import interleaved

RESULTS = Path(__file__).with_name("EXAMINATION.md")
START, DAY, HOUR, DAYS = 1_767_225_600, 86_400, 3_600, 4
REQUESTS, DEPTH, QUERIES, ITEMS = 200_000, 10, 400, 30
TABLE = "{" + ",".join(f"{rank}:{1 / rank:.4f}" for rank in range(1, DEPTH + 1)) + "}"
MEASURES = {
    "without": (),
    "with one table": (f"dcg(examination={TABLE})@10",),
    "with a table for each device": (
        f"dcg(examination={TABLE},examination[device=desktop]={TABLE},examination[device=mobile]={TABLE})@10",
    ),
}


def log() -> dict[str, pd.DataFrame]:
    """Rankings and clicks whose lists differ a little from request to request."""
    rng, requests = np.random.default_rng(1), np.arange(REQUESTS)
    query = np.minimum((3 * rng.pareto(0.9, REQUESTS)).astype(int), QUERIES - 1)
    at = START + np.sort(rng.integers(0, DAYS * DAY, REQUESTS))
    wish = rng.beta(0.35, 1.6, (QUERIES, ITEMS))
    items = np.argsort(-(wish[query] + 0.1 * rng.standard_normal((REQUESTS, ITEMS))), axis=1)[:, :DEPTH]
    (clicked,) = np.nonzero((rng.random(items.shape) < wish[query[:, None], items] / np.arange(1, DEPTH + 1)).ravel())
    row = np.repeat(requests, DEPTH)
    shown = {
        "request": row,
        "item": query[row] * ITEMS + items.ravel(),
        "position": np.tile(np.arange(DEPTH), REQUESTS),
    }
    device = np.where(rng.random(REQUESTS) < 0.6, "mobile", "desktop")
    rankings = pd.DataFrame({**shown, "at": at[row], "query": query[row], "device": device[row]})
    clicks = rankings.loc[clicked, ["request", "item"]].assign(at=at[row[clicked]] + 20)
    return {"shown": rankings, "clicks": clicks}


def filled(kind: str, path: Path) -> None:
    """Write the log as a database."""
    if kind == "sqlite":
        with sqlite3.connect(path) as db:
            for name, frame in log().items():
                frame.to_sql(name, db, index=False)
                db.execute(f"CREATE INDEX {name}_at ON {name} (at)")
            db.execute("CREATE INDEX clicks_of ON clicks (request, item)")
        return
    import duckdb

    with duckdb.connect(str(path)) as db:
        for name, frame in log().items():
            db.register("frame", frame)
            db.execute(f"CREATE TABLE {name} AS SELECT * FROM frame")
            db.unregister("frame")


def monitor(*measures: str) -> Monitor:
    """The monitor of the log, by hours and devices."""
    at, of = TimeColumn("at", format="epoch_s"), ("request", "item")
    rankings = Rankings(Relation(("shown",)), *of, Position("position", 0), at, query="query")
    recipe = Events(Relation(("clicks",)), *of, at, (EventRule(1.0),), attribution=HOUR)
    return Monitor("m", "log", rankings, recipe, tuple(map(parse, measures)), (Slice("device", "device"),), bucket=HOUR)


def reading(source: Pull | PushDown, until: int, step: int) -> Callable[[], object]:
    """Reads the log as a cycle does, to partials."""
    of = source.monitor
    kernels = [measure.kernel for measure in of.measures]

    def call() -> object:
        parts = tuple(source.read(since, since + step) for since in range(START, until, step))
        return to_partials(parts, HOUR, kernels, of.slices, {})

    return call


def fitting(source: Pull, is_by_device: bool) -> Callable[[], object]:
    """Fits examination on all of the log."""
    span = START, START + DAYS * DAY, DEPTH

    def counts() -> Sequence[ShownCounts]:
        found = counts_by_slice(source, *span, "device") if is_by_device else {"": shown_counts(source, *span)}
        return list(found.values())

    return lambda: [estimate(one, DEPTH) for one in counts()]


def measured(kind: str, rounds: int) -> dict[str, float]:
    """What is done -> processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"log.{kind}"
        filled(kind, path)
        database = Database("log", make_url(f"{kind}:///{path}"), 600)
        calls: list[tuple[str, Callable[[], object]]] = []
        for name, more in MEASURES.items():
            one = monitor("ndcg@10", *more)
            calls.append((f"push-down {name}", reading(PushDown(one, database, True), START + DAYS * DAY, DAY)))
            calls.append((f"pull of a day {name}", reading(Pull(one, database), START + DAY, DAY // 4)))
        source = Pull(monitor("ndcg@10"), database)
        calls += [("fit", fitting(source, False)), ("fit by device", fitting(source, True))]
        found = interleaved(calls, rounds, time.process_time)
        database.close()
        return found


def lines(kind: str, found: dict[str, float]) -> list[str]:
    """Rows of the table."""
    rows = []
    for name, seconds in found.items():
        other = "pull of a day without" if name.startswith("pull") else "push-down without"
        rows.append(f"| {kind} | {name} | {seconds:.2f} s | {seconds / found[other]:.2f} |")
    return rows


def main() -> None:
    """Measure and print, or keep, the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.examination", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"keep the table in {RESULTS.name}")
    given = parser.parse_args()
    table = ["| database | what | processor time | to push-down, or pull, without |", "|---|---|---|---|"]
    for kind in ("sqlite", "duckdb"):
        table += lines(kind, measured(kind, given.rounds))
    said = "\n".join(table)
    print(said)
    if given.write:
        about = (__doc__ or "").partition("\n\n")[2].strip()
        RESULTS.write_text(f"# What corrected measures cost\n\n{about}\n\n{said}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
