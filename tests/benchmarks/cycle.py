"""The whole way from a SQLite log to stored partials, against one scan of the same rows and against pandas."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from sqlalchemy.engine import make_url

from monitor.database_url import parse_url
from monitor.measures.measure import parse
from monitor.series.partials import read_as
from monitor.service.cycle import BatchSize, run_backfill
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import OVERALL, EventRule, Events, Monitor, Position, Rankings, Relation, Slice, TimeColumn
from tests.benchmarks.data import ATTRIBUTION, LENGTH, Ids, Log, write_log
from tests.benchmarks.kernel import ndcg
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved, seconds

ISO = "%Y-%m-%dT%H:%M:%SZ"
DAY = 86_400
DENSITY = 595
"""Requests an hour: 100,000 in a week."""
AIM = 7.5
"""Scans. The statement of the requests and the join of events alone take 4.5 of them."""
NDCG = parse("ndcg@10")

_COLUMNS = "max(request_id), sum(item_id), sum(position), max(served_at), max(device), count(*)"
SCAN = f"SELECT {_COLUMNS} FROM rankings"
BOUNDED = f"{SCAN} INDEXED BY rankings_served_at WHERE served_at >= '2026'"

MONITOR = Monitor(
    name="log",
    source="log",
    rankings=Rankings(
        Relation(("rankings",)), "request_id", "item_id", Position("position"), TimeColumn("served_at", ISO)
    ),
    recipe=Events(
        Relation(("events",)),
        "request_id",
        "item_id",
        TimeColumn("occurred_at", ISO),
        (EventRule(1, "click"),),
        attribution=ATTRIBUTION,
        type="type",
    ),
    measures=(NDCG, parse("mrr@10")),
    slices=(Slice("device", "device"),),
)


@dataclass(frozen=True)
class Backfilled:
    """What a backfill left: rows that the source sent, buckets stored, and the mean NDCG of it all."""

    rows_sent: int
    buckets: int
    ndcg: float


def backfill(log: Log, store_path: Path) -> Backfilled:
    """All of a log into an empty store, by the code that the daemon and the command line run."""
    store = empty_store(store_path)
    database = Database("log", parse_url(f"sqlite:///{log.path}"), statement_timeout=600)
    span, now = (log.since, log.until), log.until + 2 * DAY
    with store.hold(MONITOR.name) as lease:
        *_, done = run_backfill(MONITOR, now, span, Pull(MONITOR, database), store, lease, BatchSize())
    history = store.history(MONITOR.definition(NDCG), *span)
    value = float(read_as(NDCG, history.slice(OVERALL).sum(axis=0)))
    database.close()
    store.close()
    return Backfilled(done.rows, done.stored, value)


def empty_store(path: Path) -> Store:
    """A new store, copied from one made before: creating a store is not part of a cycle."""
    path.write_bytes(_made_before())
    return Store(make_url(f"sqlite:///{path}"))


@cache
def _made_before() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = Store(make_url(f"sqlite:///{path}"))
        store.schema.migrate()
        store.close()
        return path.read_bytes()


def scan(log: Log, statement: str = SCAN) -> Any:
    """One SELECT over all rows and the columns that the job needs."""
    with closing(sqlite3.connect(log.path)) as connection:
        return connection.execute(statement).fetchone()


def by_pandas(log: Log) -> float:
    """The mean NDCG by the obvious pandas code: read all, merge, groupby.apply."""
    with closing(sqlite3.connect(log.path)) as connection:
        shown = pd.read_sql("SELECT * FROM rankings", connection)
        events = pd.read_sql("SELECT DISTINCT request_id, item_id, occurred_at FROM events", connection)
    shown["served_at"] = pd.to_datetime(shown["served_at"], format=ISO)
    events["occurred_at"] = pd.to_datetime(events["occurred_at"], format=ISO)
    return mean_by_apply(shown, events)


def mean_by_apply(shown: pd.DataFrame, events: pd.DataFrame) -> float:
    """The mean NDCG by merge and groupby.apply, after the sums that rankmon stores; times are times."""
    rows = shown.merge(events, "left", ["request_id", "item_id"])
    waited = (rows["occurred_at"] - rows["served_at"]).dt.total_seconds()
    grade = ((waited >= 0) & (waited < ATTRIBUTION)).astype(float)
    rows = rows.assign(grade=grade, hour=rows["served_at"].dt.floor("h"))
    requests = rows.groupby("request_id")
    lists = requests[["position", "grade"]]
    found = requests[["hour", "device"]].first().assign(ndcg=lists.apply(ndcg), mrr=lists.apply(reciprocal_rank))
    found = found[found["mrr"] > 0]
    for keys in (["hour"], ["hour", "device"]):
        found.groupby(keys)[["ndcg", "mrr"]].agg(["count", "sum"])
    return float(found["ndcg"].mean())


def reciprocal_rank(group: pd.DataFrame) -> float:
    """Of the whole list; 0 where nothing is relevant."""
    hits = group["position"].to_numpy()[group["grade"].to_numpy() > 0]
    return 1 / float(hits.min()) if len(hits) else 0.0


def sections(folder: Path, requests: int, rounds: int) -> Iterator[Section]:
    """A table for logs with whole numbers as request ids, and one with random text."""
    kinds: tuple[tuple[Ids, str], ...] = (("number", "rising whole numbers"), ("text", "random text of 32 characters"))
    for ids, described in kinds:
        log = write_log(folder / f"{ids}.db", requests, round(requests / DENSITY), ids)
        title = f"Backfill of {log.rows:,} rows in SQLite, request ids are {described}"
        lines = list(compare(log, folder, rounds, with_pandas=ids == "number"))
        yield Section(title, ("what", "time", "scans", "aim", "met"), lines, REMARKS)


REMARKS = f"""\
{DENSITY} requests of {LENGTH} items an hour, one item in ten clicked. The primary key is (request, position), and
each time has an index. rankmon computes ndcg@10 and mrr@10 of each hour, overall and by device, into an empty store
on SQLite that exists already. A scan is a single SELECT of sums and maxima over the columns that this needs, without
order or join. pandas reads both tables whole, merges them and scores each request with groupby.apply; a check
confirms that its mean NDCG is rankmon's."""


def compare(log: Log, folder: Path, rounds: int, with_pandas: bool) -> Iterator[Line]:
    """The lines of one table.

    Raises:
        RuntimeError: pandas gives another mean.
    """
    number = count()

    def job() -> Backfilled:
        return backfill(log, folder / f"{log.path.stem}-store-{next(number)}.db")

    done = job()  # also imports what is imported late
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("scan", partial(scan, log)),
        ("backfill", job),
        ("bounded", partial(scan, log, BOUNDED)),
        ("scan", partial(scan, log)),
    ]
    taken = interleaved(calls, rounds)
    floor = taken["scan"]
    yield Line("one scan", duration(floor), 1.0)
    yield Line("the same by the index on the time", duration(taken["bounded"]), taken["bounded"] / floor)
    yield Line(
        f"rankmon, {done.rows_sent:,} rows sent", duration(taken["backfill"]), taken["backfill"] / floor, AIM, "at most"
    )
    if with_pandas:
        long = seconds(lambda: _check(log, done))
        yield Line("pandas: read_sql, merge, groupby.apply", duration(long), long / floor)


def _check(log: Log, done: Backfilled) -> None:
    theirs = by_pandas(log)
    if not isclose(theirs, done.ndcg, rel_tol=1e-9):
        raise RuntimeError(f"pandas says {theirs}, rankmon says {done.ndcg}")
