"""Both ways of reading against each other and against each database's own floor, over the same log."""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy as sa

from monitor.database_url import parse_url
from monitor.series.partials import read_as
from monitor.service.cycle import BatchSize, run_backfill
from monitor.source.choice import choose
from monitor.source.engine import Database
from monitor.source.parallel import ParallelReader
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.types import OVERALL, Events, Monitor, TimeColumn
from tests.benchmarks.cycle import BOUNDED, DAY, DENSITY, ISO, MONITOR, NDCG, SCAN, empty_store, scan
from tests.benchmarks.data import Log, write_log
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved

AIM = 7.5

BARE = "bare sums by request, and of events on their rows"
_SUMS = (
    "count(*) AS n, count(CASE WHEN position <= 10 THEN item_id END) AS shown, min(served_at) AS a, "
    "max(served_at) AS b, min(device) AS c, max(device) AS d"
)
BARE_STATEMENTS = (
    "SELECT count(*), sum(n), sum(shown), max(a), max(b), max(c), max(d) "
    f"FROM (SELECT {_SUMS} FROM rankings GROUP BY request_id) AS q",
    "SELECT count(*), sum(n), sum(gain) FROM (SELECT count(*) AS n, sum(1.0 / (r.position + 1)) AS gain "
    "FROM events AS e CROSS JOIN rankings AS r WHERE r.request_id = e.request_id AND r.item_id = e.item_id "
    "AND e.occurred_at >= r.served_at GROUP BY r.request_id) AS p",
)
"""When each request was served, in which slice, and whether its rows agree on that; and its events on their rows."""


@dataclass(frozen=True)
class Place:
    """A log in a database.

    Attributes:
        url: how rankmon reaches it.
        floors: name -> the least that the database needs; the first is what the aim is about.
        aim: of the way that `engine: auto` takes there, in multiples of that floor.
    """

    title: str
    url: str
    monitor: Monitor
    floors: Mapping[str, Callable[[], Any]]
    aim: float


def sections(folder: Path, requests: int, rounds: int) -> Iterator[Section]:
    """A table for SQLite and one for DuckDB; see `postgres` for the third."""
    log = write_log(folder / "ways.db", requests, round(requests / DENSITY), "number")
    yield section(_sqlite(log), log, folder, rounds)
    yield section(_duckdb(log, folder), log, folder, rounds)


def section(place: Place, log: Log, folder: Path, rounds: int) -> Section:
    """Both ways against the floors of one database."""
    title = f"Both ways over {log.rows:,} rows in {place.title}"
    return Section(title, ("what", "time", "ratio", "aim", "met"), list(_lines(place, log, folder, rounds)), REMARKS)


REMARKS = """\
The whole backfill of the tables above, by the pull and by push-down. Ratios are to the first line. A check confirms
that both give the same mean NDCG. The bare sums are two plain statements: the rows, times and slice of each request,
and the events on its rows. They check no data, compute no measure, group nothing by hour and store nothing."""


def _lines(place: Place, log: Log, folder: Path, rounds: int) -> Iterator[Line]:
    number = count()

    def job(way: Callable[[Monitor, Database], Pull | PushDown]) -> tuple[int, float]:
        return backfill(place, log, folder / f"ways-{place.monitor.name}-{next(number)}.db", way)

    ways = {"pull": partial(job, Pull), "pushdown": partial(job, partial(PushDown, is_bound=True))}
    chosen = choose(place.monitor, parse_url(place.url).get_backend_name()).way
    done = {name: way() for name, way in ways.items()}
    if abs(done["pull"][1] - done["pushdown"][1]) > 1e-12:
        raise RuntimeError(f"the two ways disagree: {done}")
    taken = interleaved([*place.floors.items(), *ways.items()], rounds)
    floor = taken[next(iter(place.floors))]
    for name in place.floors:
        yield Line(name, duration(taken[name]), taken[name] / floor)
    for name, (rows, _) in done.items():
        aim = place.aim if name == chosen else None
        yield Line(f"{name}, {rows:,} rows sent", duration(taken[name]), taken[name] / floor, aim, "at most")


def backfill(
    place: Place, log: Log, store_path: Path, way: Callable[[Monitor, Database], Pull | PushDown]
) -> tuple[int, float]:
    """(rows sent, mean NDCG) of a backfill of all into an empty store."""
    store = empty_store(store_path)
    database = Database("log", parse_url(place.url), statement_timeout=600)
    span, now = (log.since, log.until), log.until + 2 * DAY
    with store.hold(place.monitor.name) as lease:
        source = way(place.monitor, database)
        reader = ParallelReader(source) if isinstance(source, PushDown) else source
        *_, done = run_backfill(place.monitor, now, span, reader, store, lease, BatchSize())
    history = store.history(place.monitor.definition(NDCG), *span)
    value = float(read_as(NDCG, history.slice(OVERALL).sum(axis=0)))
    database.close()
    store.close()
    return done.rows, value


def _sqlite(log: Log) -> Place:
    floors: dict[str, Callable[[], Any]] = {
        "one scan": partial(scan, log),
        "the same by the index on the time": partial(scan, log, BOUNDED),
        "the same rows, one by one to Python (sqlite3)": partial(_fetch, log),
        BARE: lambda: [scan(log, statement) for statement in BARE_STATEMENTS],
    }
    return Place("SQLite", f"sqlite:///{log.path}", MONITOR, floors, AIM)


def _fetch(log: Log) -> None:
    """All rankings as Python has them, and thrown away: what any program pays that looks at each row by itself."""
    with closing(sqlite3.connect(log.path)) as connection:
        deque(connection.execute("SELECT * FROM rankings"), maxlen=0)


def native(name: str) -> Monitor:
    """The monitor, of columns with times of the database's own type."""
    assert isinstance(MONITOR.recipe, Events)
    recipe = replace(MONITOR.recipe, time=TimeColumn("occurred_at"))
    return replace(MONITOR, name=name, rankings=replace(MONITOR.rankings, time=TimeColumn("served_at")), recipe=recipe)


def _duckdb(log: Log, folder: Path) -> Place:
    url = f"duckdb:///{folder / 'ways.duckdb'}"
    with closing(sqlite3.connect(log.path)) as source:
        for table, time in (("rankings", "served_at"), ("events", "occurred_at")):
            frame = pd.read_sql(f"SELECT * FROM {table}", source)
            frame[time] = pd.to_datetime(frame[time], format=ISO, utc=True)
            frame.to_parquet(folder / f"{table}.parquet", index=False)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in ("rankings", "events"):
            path = folder / f"{table}.parquet"
            connection.exec_driver_sql(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{path}')")
    engine.dispose()

    def ask(*statements: str) -> None:
        reading = sa.create_engine(url, connect_args={"read_only": True})
        with reading.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement).fetchall()
        reading.dispose()

    floors = {"one scan": partial(ask, SCAN), BARE: partial(ask, *BARE_STATEMENTS)}
    return Place("Parquet files, by DuckDB", url, native("duckdb"), floors, AIM)
