"""Both ways of reading beside each other and beside each database's own floor, over the same log."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.core.buckets import read_as
from monitor.core.types import OVERALL, Events, Monitor, TimeColumn
from monitor.cycle import Stride, run_backfill
from monitor.database_url import parse_url
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.store import Store
from tests.benchmarks.cycle import BOUNDED, DAY, DENSITY, ISO, MONITOR, NDCG, SCAN, scan
from tests.benchmarks.data import Log, write_log
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved
from tests.support.postgres import find_binaries, postgres_server

POSTGRES_AIM, SQLITE_AIM, DUCKDB_AIM = 2, 4, 5

_TABLES = (
    "CREATE TABLE rankings (request_id bigint, item_id bigint, position int, served_at timestamptz, device text)",
    "CREATE TABLE events (request_id bigint, item_id bigint, type text, occurred_at timestamptz)",
)
_INDEXES = (
    "CREATE INDEX ON rankings (served_at)",
    "CREATE INDEX ON rankings (request_id)",
    "CREATE INDEX ON events (occurred_at)",
    "VACUUM ANALYZE",
)


@dataclass(frozen=True)
class Place:
    """A log in a database.

    Attributes:
        url: how rankmon reaches it.
        floors: name -> what the database needs at the least; the first is what the aim is about.
    """

    title: str
    url: str
    monitor: Monitor
    floors: dict[str, Callable[[], Any]]
    aim: float


def sections(folder: Path, requests: int, rounds: int) -> Iterator[Section]:
    """A table for each database that is there."""
    log = write_log(folder / "ways.db", requests, round(requests / DENSITY), "number")
    yield _section(_sqlite(log), log, folder, rounds)
    yield _section(_duckdb(log, folder), log, folder, rounds)
    if find_binaries() is not None:
        with postgres_server() as server:
            yield _section(_postgres(log, server.url()), log, folder, rounds)


def _section(place: Place, log: Log, folder: Path, rounds: int) -> Section:
    title = f"Both ways over {log.rows:,} rows in {place.title}"
    return Section(title, ("what", "time", "ratio", "aim", "met"), list(_lines(place, log, folder, rounds)), REMARKS)


REMARKS = """\
The whole backfill of the tables above, by the pull and by push-down; ratios are to the first line. That both come to
the same mean NDCG is checked."""


def _lines(place: Place, log: Log, folder: Path, rounds: int) -> Iterator[Line]:
    number = count()

    def job(way: Callable[[Monitor, Database], Pull | PushDown]) -> tuple[int, float]:
        return backfill(place, log, folder / f"ways-{place.monitor.name}-{next(number)}.db", way)

    ways = {"pull": partial(job, Pull), "push-down": partial(job, partial(PushDown, is_bound=True))}
    done = {name: way() for name, way in ways.items()}
    if abs(done["pull"][1] - done["push-down"][1]) > 1e-12:
        raise RuntimeError(f"the two ways disagree: {done}")
    taken = interleaved([*place.floors.items(), *ways.items()], rounds)
    floor = taken[next(iter(place.floors))]
    for name in place.floors:
        yield Line(name, duration(taken[name]), taken[name] / floor)
    for name, (rows, _) in done.items():
        aim = place.aim if name == "push-down" else None
        yield Line(f"{name}, {rows:,} rows sent", duration(taken[name]), taken[name] / floor, aim, "at most")


def backfill(
    place: Place, log: Log, store_path: Path, way: Callable[[Monitor, Database], Pull | PushDown]
) -> tuple[int, float]:
    """(rows sent, mean NDCG) of a backfill of all into a fresh store."""
    store = Store(make_url(f"sqlite:///{store_path}"))
    store.schema.migrate()
    database = Database("log", parse_url(place.url, None), statement_timeout=600)
    span, now = (log.since, log.until), log.until + 2 * DAY
    with store.hold(place.monitor.name) as lease:
        *_, done = run_backfill(place.monitor, now, span, way(place.monitor, database), store, lease, Stride())
    history = store.history(place.monitor.definition(NDCG), *span)
    value = float(read_as(NDCG, history.slice(OVERALL).sum(axis=0)))
    database.close()
    store.close()
    return done.rows, value


def _sqlite(log: Log) -> Place:
    floors = {"one scan": partial(scan, log), "the same by the index on the time": partial(scan, log, BOUNDED)}
    return Place("SQLite", f"sqlite:///{log.path}", MONITOR, floors, SQLITE_AIM)


def _native(name: str) -> Monitor:
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

    def one_scan() -> None:
        reading = sa.create_engine(url, connect_args={"read_only": True})
        with reading.connect() as connection:
            connection.exec_driver_sql(SCAN).fetchall()
        reading.dispose()

    return Place("Parquet files, by DuckDB", url, _native("duckdb"), {"one scan": one_scan}, DUCKDB_AIM)


def _postgres(log: Log, url: str) -> Place:
    import psycopg

    plain = url.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection, closing(sqlite3.connect(log.path)) as source:
        for statement in _TABLES:
            connection.execute(statement)
        for table in ("rankings", "events"):
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for row in source.execute(f"SELECT * FROM {table} ORDER BY rowid"):
                    copy.write_row(row)
        for statement in _INDEXES:
            connection.execute(statement)

    def copied() -> int:
        statement = "COPY rankings TO STDOUT (FORMAT binary)"
        with psycopg.connect(plain) as reading, reading.cursor() as cursor, cursor.copy(statement) as copy:
            return sum(len(part) for part in copy)

    def written() -> None:
        with psycopg.connect(plain) as reading:
            reading.execute("COPY rankings TO '/dev/null' (FORMAT binary)")

    floors = {"a binary COPY to this process": copied, "the same to the server's /dev/null": written}
    return Place("PostgreSQL", url, _native("postgresql"), floors, POSTGRES_AIM)
