"""A backfill from PostgreSQL against a COPY of the same rankings and against pandas; and its memory as the log grows.

`python -m tests.benchmarks.postgres WAY URL SINCE UNTIL STORE` does the job one way in its own process and prints the
peak megabytes; with SINCE = UNTIL it reads nothing.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import isclose
from pathlib import Path
from typing import Any

import pandas as pd
import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from monitor.source.dialects.postgresql import WORK_MEMORY
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.source.pushdown import PushDown
from monitor.types import Monitor
from tests.benchmarks.cycle import DENSITY, mean_by_apply
from tests.benchmarks.data import Log, write_log
from tests.benchmarks.memory import AIM as GROWTH_AIM
from tests.benchmarks.memory import peak_megabytes, printed
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved
from tests.benchmarks.ways import BARE, BARE_STATEMENTS, Place, backfill, native, section
from tests.support.postgres import PostgresServer, find_binaries, postgres_server

COPY_AIM, PANDAS_AIM, MEMORY_AIM = 2, 25, 15
TIMES = 10
"""Rows of the long log, as a multiple."""

_TABLES = (
    "CREATE TABLE rankings (request_id bigint, item_id bigint, position int, served_at timestamptz, device text)",
    "CREATE TABLE events (request_id bigint, item_id bigint, type text, occurred_at timestamptz)",
)
_INDEXES = (
    "CREATE INDEX ON rankings (served_at)",
    "CREATE INDEX ON rankings (request_id)",
    "CREATE INDEX ON events (occurred_at)",
)
_COPY = "COPY rankings TO {} (FORMAT binary)"

Way = Callable[[Monitor, Database], Pull | PushDown]
WAYS: dict[str, Way] = {"push-down": partial(PushDown, is_bound=True), "pull": Pull}


@dataclass(frozen=True)
class Copied:
    """A log in a PostgreSQL database."""

    url: str
    log: Log

    @property
    def plain(self) -> str:
        """The URL as libpq reads it."""
        return self.url.replace("+psycopg", "")

    @property
    def place(self) -> Place:
        """What rankmon reads."""
        return Place("PostgreSQL", self.url, native("postgresql"), floors(self), COPY_AIM)

    def backfill(self, store: Path, way: str = "push-down") -> float:
        """All of it into an empty store; the mean NDCG."""
        return backfill(self.place, self.log, store, WAYS[way])[1]


@contextmanager
def filled(folder: Path, requests: int) -> Iterator[Copied | None]:
    """A log in a server of its own; None where there is no PostgreSQL."""
    if find_binaries() is None:
        yield None
        return
    log = write_log(folder / "postgres.db", requests, round(requests / DENSITY), "number")
    with postgres_server() as server:
        yield fill(server.url(), log)


def sections(copied: Copied, folder: Path, rounds: int) -> Iterator[Section]:
    """Both ways against a COPY, and push-down against pandas."""
    yield section(copied.place, copied.log, folder, rounds)
    yield Section("The same, against pandas", _COLUMNS, list(_against_pandas(copied, folder)), _PANDAS)


def large(folder: Path, requests: int, times: int = TIMES) -> Iterator[Section]:
    """Memory where there are more rows of more weeks, or in the same week; nothing where there is no PostgreSQL."""
    if find_binaries() is None:
        return
    log = write_log(folder / "large.db", requests, round(requests / DENSITY), "number")
    with postgres_server() as server:
        lines = list(_as_it_grows(server, log, folder, times))
        title = f"Peak memory of a backfill from PostgreSQL, and of {times} times as much"
        yield Section(title, ("rows", "peak memory", "times", "aim", "met"), lines, _LARGE)


_COLUMNS = ("what", "figure", "times rankmon's", "aim", "met")
_PANDAS = """\
The job of the table above, and the same by pandas: read_sql of both tables through SQLAlchemy, merge, groupby.apply.
A check confirms that both give the same mean NDCG. Memory is the peak of a separate process, less that of one that
imports and opens the same but reads nothing. It leaves out PostgreSQL's own processes, which take up to 128 MB for each
step of a push-down statement."""
_LARGE = """\
Three logs: that of the tables above; one that repeats its requests in each of the following weeks, so that there are as
many times the buckets to store; and one that repeats them at the same times. Ratios are to the same way over the first
log: first of all memory of a process, then of what it takes beyond one that reads nothing."""


# ---- the log -------------------------------------------------------------------------------------------------------


def fill(url: str, log: Log) -> Copied:
    """The log's tables in an empty database, with indexes on times and requests."""
    copied = Copied(url, log)
    with psycopg.connect(copied.plain, autocommit=True) as connection, closing(sqlite3.connect(log.path)) as source:
        for statement in _TABLES:
            connection.execute(statement)
        for table in ("rankings", "events"):
            with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
                for row in source.execute(f"SELECT * FROM {table} ORDER BY rowid"):
                    copy.write_row(row)
        for statement in (*_INDEXES, "VACUUM ANALYZE"):
            connection.execute(statement)
    return copied


def grow(copied: Copied, times: int, is_longer: bool) -> Copied:
    """The same database with `times` as many rows: the requests again under other ids, in later weeks or at once."""
    log = copied.log
    long = (log.until - log.since) * is_longer
    later, request = f"%(n)s * interval '{long} seconds'", f"request_id + %(n)s * {log.requests}"
    first = f"WHERE request_id <= {log.requests}"
    shown = f"SELECT {request}, item_id, position, served_at + {later}, device FROM rankings {first}"
    happened = f"SELECT {request}, item_id, type, occurred_at + {later} FROM events {first}"
    with psycopg.connect(copied.plain, autocommit=True) as connection:
        for n in range(1, times):
            connection.execute(f"INSERT INTO rankings {shown}", {"n": n})
            connection.execute(f"INSERT INTO events {happened}", {"n": n})
        connection.execute("VACUUM ANALYZE")
    return Copied(copied.url, replace(log, until=log.until + (times - 1) * long, requests=times * log.requests))


def floors(copied: Copied) -> dict[str, Callable[[], Any]]:
    """Ways of a COPY to nowhere. The aim is about the first: its rows are sent, and discarded unread."""
    binaries = find_binaries()
    assert binaries is not None

    def thrown_away() -> None:
        command: list[str | Path] = [binaries / "psql", "-X", "-q", "-d", copied.plain, "-c", _COPY.format("STDOUT")]
        environment = {"PATH": os.defpath, "LC_ALL": "C"}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)

    def to_this_process() -> int:
        with psycopg.connect(copied.plain) as reading, reading.cursor().copy(_COPY.format("STDOUT")) as copy:
            return sum(len(part) for part in copy)

    def on_the_server() -> None:
        with psycopg.connect(copied.plain) as reading:
            reading.execute(_COPY.format("'/dev/null'"))

    def bare() -> None:
        with psycopg.connect(copied.plain) as reading:
            reading.execute(f"SET work_mem = '{WORK_MEMORY}MB'")
            for statement in BARE_STATEMENTS:
                reading.execute(statement)

    return {
        "a binary COPY, thrown away by psql": thrown_away,
        "the same, row by row to Python (psycopg)": to_this_process,
        "the same, thrown away by the server": on_the_server,
        BARE: bare,
    }


# ---- pandas --------------------------------------------------------------------------------------------------------


def read_frames(url: str, since: int, until: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(rankings, distinct events) of [since, until) seconds, by pandas.read_sql."""
    engine = sa.create_engine(make_url(url))
    bounds = {"since": pd.Timestamp(since, unit="s", tz="UTC"), "until": pd.Timestamp(until, unit="s", tz="UTC")}
    shown = "SELECT * FROM rankings WHERE served_at >= :since AND served_at < :until"
    events = "SELECT DISTINCT request_id, item_id, occurred_at FROM events WHERE occurred_at >= :since"
    with engine.connect() as connection:
        found = [pd.read_sql(sa.text(query), connection, params=bounds) for query in (shown, events)]
    engine.dispose()
    return found[0], found[1]


def by_pandas(url: str, since: int, until: int) -> float:
    """The mean NDCG of what was served in [since, until) seconds."""
    return mean_by_apply(*read_frames(url, since, until))


def _against_pandas(copied: Copied, folder: Path) -> Iterator[Line]:
    log, number = copied.log, count()
    found: dict[str, float] = {}

    def ours() -> None:
        found["rankmon"] = copied.backfill(folder / f"postgres-pandas-{next(number)}.db")

    def theirs() -> None:
        found["pandas"] = by_pandas(copied.url, log.since, log.until)

    taken = interleaved([("rankmon", ours), ("rankmon", ours), ("pandas", theirs), ("rankmon", ours)], 1)
    if not isclose(found["pandas"], found["rankmon"], rel_tol=1e-9):
        raise RuntimeError(f"the means differ: {found}")
    yield Line("rankmon, push-down: time", duration(taken["rankmon"]))
    yield Line("pandas: time", duration(taken["pandas"]), taken["pandas"] / taken["rankmon"], PANDAS_AIM)
    if not Path("/proc/self/status").exists():
        yield Line("peak memory", "only measured on Linux")
        return
    peaks = {way: _above_idle(copied, way, folder) for way in (*WAYS, "pandas")}
    yield Line("rankmon, push-down: memory", f"{peaks['push-down']:.0f} MB")
    yield Line("rankmon, pull: memory", f"{peaks['pull']:.0f} MB", peaks["pull"] / peaks["push-down"])
    yield Line("pandas: memory", f"{peaks['pandas']:.0f} MB", peaks["pandas"] / peaks["push-down"], MEMORY_AIM)


# ---- memory --------------------------------------------------------------------------------------------------------


def _above_idle(copied: Copied, way: str, folder: Path) -> float:
    """Peak megabytes of one way, less those of a process that does the same over an empty span."""
    idle, peak = _peaks(copied, way, folder)
    return peak - idle


def _peaks(copied: Copied, way: str, folder: Path) -> tuple[float, float]:
    """Peak megabytes of a process that does the job over an empty span, and over the whole log."""
    log = copied.log
    idle, peak = (
        printed(
            "tests.benchmarks.postgres",
            way,
            copied.url,
            log.since,
            until,
            folder / f"{way}-{log.rows}-{until}-{log.until}.db",
        )
        for until in (log.since, log.until)
    )
    return idle, peak


def _as_it_grows(server: PostgresServer, log: Log, folder: Path, times: int) -> Iterator[Line]:
    if not Path("/proc/self/status").exists():
        yield Line("peak memory", "only measured on Linux")
        return
    base: dict[str, tuple[float, float]] = {}
    for is_longer, more in ((True, "of more weeks"), (False, "of the same week")):
        url = server.create_database()
        copied = fill(url, log)
        if not base:
            base = {way: _peaks(copied, way, folder) for way in WAYS}
            for way, (idle, peak) in base.items():
                yield Line(f"{log.rows:,}, {way}", f"{peak:.0f} MB", 1.0)
                yield Line("beyond one that reads nothing", f"{peak - idle:.1f} MB", 1.0)
        grown = grow(copied, times, is_longer)
        for way in WAYS:
            (first_idle, first_peak), (idle, peak) = base[way], _peaks(grown, way, folder)
            what, beyond = f"{grown.log.rows:,} {more}, {way}", (peak - idle) / (first_peak - first_idle)
            yield Line(what, f"{peak:.0f} MB", peak / first_peak, GROWTH_AIM, "at most")
            yield Line("beyond one that reads nothing", f"{peak - idle:.1f} MB", beyond)
        server.drop_database(url)


def main(way: str, url: str, since: int, until: int, store: Path) -> None:
    """One way over [since, until) seconds; prints the megabytes it took."""
    if way != "pandas":
        Copied(url, Log(Path(), since, until, 0)).backfill(store, way)
    elif since < until:
        by_pandas(url, since, until)
    else:
        read_frames(url, since, until)
    print(peak_megabytes())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
