"""Whether one daemon keeps up with many monitors on one source: a run of each with a new bucket, and one without.

`python -m tests.benchmarks.many FOLDER NOW PACE` runs the daemon of FOLDER/many.yaml and prints its figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import sqlalchemy as sa
from apscheduler.events import EVENT_JOB_EXECUTED

from monitor.clock import ManualClock
from monitor.config import load
from monitor.config.values import Config
from monitor.errors import StoreError
from monitor.service.app import App
from monitor.store import Store
from monitor.store.schema import buckets, partials, series, slices, traffic
from monitor.types import Monitor
from tests.benchmarks.memory import peak_megabytes
from tests.benchmarks.report import Line, Section, duration
from tests.support.drift import Ranking, day
from tests.support.postgres import find_binaries, postgres_server
from tests.support.simulated import put

ROOT = Path(__file__).parents[2]
MONITORS, SLICES, DAYS, REQUESTS, LENGTH = 200, 20, 35, 100, 10
REFRESH = 300
"""Seconds between two runs of a monitor."""

PACE = 3.0
"""Times as often as REFRESH, in the phase that counts skipped runs."""

HOUR, LOGGED = 3600, 6
"""Hours of the log that are in the source; earlier ones are in the store."""

WAIT = 1800
"""Seconds after which a round of runs is given up."""

CONFIG = """\
store: {{url: "{store}"}}
web: {{listen: "127.0.0.1:0"}}
log: {{level: error}}
sources: {{shop: {{url: "{source}"}}}}
defaults: {{source: shop, windows: [24h, 7d, 28d], refresh: {refresh}s, lookback: {history}d}}
monitors:
"""
MONITOR = """\
  - name: search-{number}
    rankings:
      select: SELECT * FROM rankings WHERE surface = {number}
      request: request_id
      item: item_id
      position: position
      time: {{column: served_at, format: epoch_s}}
    relevance:
      events:
        select: SELECT * FROM events WHERE surface = {number}
        request: request_id
        item: item_id
        type: type
        time: {{column: occurred_at, format: epoch_s}}
        rules: [{{type: click, grade: 1}}]
        attribution: 1h
    slices: [device]
    measures: [ndcg@10]
    drift: {{}}
    alerts: [{{name: drop, measure: ndcg@10, window: 24h, drop: 20%, baseline: {{trailing: 7d}}, slices: [device]}}]
"""
TABLES = (
    "CREATE TABLE rankings (surface integer, request_id bigint, item_id bigint, position integer, served_at bigint, "
    "device text)",
    "CREATE TABLE events (surface integer, request_id bigint, item_id bigint, type text, occurred_at bigint)",
)
INDEXES = (
    "CREATE INDEX rankings_served_at ON rankings (surface, served_at)",
    "CREATE INDEX events_occurred_at ON events (surface, occurred_at)",
)

REMARKS = """\
One daemon in its own process with 4 workers: {monitors} monitors of one source with {slices} slices, 3 windows, an
alert rule on every slice and verdicts. Each has {days} days of hourly buckets stored and {requests} requests of
{length} items an hour. All are asked to run at once: with one new hour to read, judge and show, and again with
nothing new. Ratios are to the {refresh} s between two runs of a monitor. Then one more hour arrives, and for a while
each monitor runs {pace:g} times as often. Skipped runs are counted by the scheduler, except those that fell due while
all monitors were asked to run at once."""


@dataclass(frozen=True)
class Done:
    """What a daemon took.

    Attributes:
        answers, start, first, new, idle: seconds until `/-/healthy` and `/metrics` had answered, until everything was
            shown, until all had run for the first time, and of a round of runs with a new bucket and of one without.
        new_processor, idle_processor: seconds of the processor for these rounds.
        stored: monitors that have stored a bucket in the round with a new one.
        skipped, failed: runs, the faster turns among them.
        peak: megabytes.
    """

    answers: float
    start: float
    first: float
    new: float
    idle: float
    new_processor: float
    idle_processor: float
    stored: int
    skipped: int
    failed: int
    peak: float


def sections(
    folder: Path,
    monitors: int = MONITORS,
    days: int = DAYS,
    requests: int = REQUESTS,
    slices_: int = SLICES,
    pace: float = PACE,
) -> Iterator[Section]:
    """A table for SQLite, and one for PostgreSQL where it is there; source and store are of the same kind."""
    size = _Size(monitors, slices_, days, requests, pace)
    yield _section("SQLite", f"sqlite:///{folder}/many-log.db", f"sqlite:///{folder}/many-store.db", folder, size)
    if find_binaries() is not None:
        with postgres_server() as server:
            yield _section("PostgreSQL", server.create_database(), server.create_database(), folder, size)


@dataclass(frozen=True)
class _Size:
    monitors: int
    slices: int
    days: int
    requests: int
    pace: float


def _section(kind: str, source: str, store: str, folder: Path, size: _Size) -> Section:
    config = _configured(folder, source, store, size)
    names = _stock(config, size)
    _write_log(source, names, size)
    done = _daemon(folder, day(size.days) + HOUR + 600, size.pace)
    remarks = REMARKS.format(**asdict(size), length=LENGTH, refresh=REFRESH)
    title = f"{size.monitors} monitors in one daemon, source and store in {kind}"
    return Section(title, ("what", "figure", "ratio", "aim", "met"), list(_lines(done, size.monitors)), remarks)


def _lines(done: Done, monitors: int) -> Iterator[Line]:
    yield Line("health and metrics answer after a start", duration(done.answers), done.answers / REFRESH)
    yield Line("everything shown after it", duration(done.start), done.start / REFRESH)
    yield Line("first run of all, the whole past judged", duration(done.first), done.first / REFRESH)
    yield Line("one bucket more of each", duration(done.new), done.new / REFRESH, 1, "at most")
    yield Line("the same, processor", duration(done.new_processor), done.new_processor / REFRESH)
    yield Line("monitors that stored it", f"{done.stored} of {monitors}", done.stored / monitors, 1, "at least")
    yield Line("nothing new", duration(done.idle), done.idle / REFRESH, 1, "at most")
    yield Line("the same, processor", duration(done.idle_processor), done.idle_processor / REFRESH)
    yield Line("runs skipped, at a faster pace too", str(done.skipped), float(done.skipped), 0, "at most")
    yield Line("runs failed", str(done.failed), float(done.failed), 0, "at most")
    yield Line("peak memory", f"{done.peak:.0f} MB")


# ---- the set-up ------------------------------------------------------------------------------------------------------


def _configured(folder: Path, source: str, store: str, size: _Size) -> Config:
    path = folder / "many.yaml"
    head = CONFIG.format(store=store, source=source, refresh=REFRESH, history=max(size.days, 28))
    path.write_text(head + "".join(MONITOR.format(number=n) for n in range(size.monitors)), encoding="utf-8")
    return load(path, {})


def _stock(config: Config, size: _Size) -> tuple[str, ...]:
    """Fill the store with the same past for each monitor; returns the names of the slices."""
    store, (first, *others) = Store(config.store.url), config.monitors
    store.schema.migrate()
    hours = Ranking.of(size.days, slices=size.slices, peak=4000).draw()
    put(store, first, hours)
    with store.writing() as connection:
        for monitor in others:
            _copy(connection, first, monitor)
    with store.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE")
    store.close()
    return tuple(hours.slices)


def _copy(connection: sa.Connection, first: Monitor, monitor: Monitor) -> None:
    """Give a monitor the same slices and buckets as the first one has."""
    c = slices.c
    named = sa.select(sa.literal(monitor.name), c.dimension, c.value).where(c.monitor == first.name)
    connection.execute(slices.insert().from_select(["monitor", "dimension", "value"], named))
    theirs, ours = slices.alias(), slices.alias()
    same = sa.and_(ours.c.dimension == theirs.c.dimension, ours.c.value == theirs.c.value)
    for was, now in zip(first.definitions, monitor.definitions, strict=True):
        row = {"monitor": now.monitor, "kernel": now.kernel, "definition": now.id, "defined_as": now.text}
        number = connection.execute(series.insert().values(**row, bucket_seconds=monitor.bucket)).inserted_primary_key
        new = number[0] if number else 0
        known = sa.select(series.c.id).where(series.c.monitor == was.monitor, series.c.kernel == was.kernel)
        rest = [column for column in buckets.columns if column.name not in ("id", "series_id")]
        read = sa.select(sa.literal(new), *rest).where(buckets.c.series_id == known.scalar_subquery())
        connection.execute(buckets.insert().from_select(["series_id", *(column.name for column in rest)], read))
        old, copied = buckets.alias(), buckets.alias()
        at_once = sa.and_(copied.c.bucket_start == old.c.bucket_start, copied.c.seconds == old.c.seconds)
        for table in (partials, traffic):
            values = [column for column in table.columns if column.name not in ("bucket_id", "slice_id")]
            both = table.join(old, table.c.bucket_id == old.c.id).join(copied, at_once)
            both = both.join(theirs, table.c.slice_id == theirs.c.id).join(ours, same)
            rows = sa.select(copied.c.id, ours.c.id, *values).select_from(both)
            rows = rows.where(old.c.series_id == known.scalar_subquery(), copied.c.series_id == new)
            rows = rows.where(theirs.c.monitor == first.name, ours.c.monitor == monitor.name)
            names = ["bucket_id", "slice_id", *(column.name for column in values)]
            connection.execute(table.insert().from_select(names, rows))


def _write_log(url: str, names: Sequence[str], size: _Size) -> None:
    """The last hours of what was shown and clicked, of all monitors in the same two tables."""
    random, since = np.random.default_rng(7), day(size.days) - 2 * HOUR
    number = size.requests * LOGGED
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.exec_driver_sql(statement)
        for surface in range(size.monitors):
            served = np.sort(random.integers(since, since + LOGGED * HOUR, number)).tolist()
            device = [names[i] for i in random.integers(0, len(names), number).tolist()]
            shown = [
                (surface, surface * number + r, 1 + i, 1 + i, served[r], device[r])
                for r in range(number)
                for i in range(LENGTH)
            ]
            clicked = np.flatnonzero(random.random(len(shown)) < 0.1).tolist()
            clicks = [(surface, shown[i][1], shown[i][2], "click", shown[i][4] + 30) for i in clicked]
            _insert(connection, "rankings", shown)
            _insert(connection, "events", clicks)
        for statement in INDEXES:
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()


def _insert(connection: sa.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        with driver.cursor().copy(f"COPY {table} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        return
    places = ", ".join("?" * len(rows[0]))
    driver.executemany(f"INSERT INTO {table} VALUES ({places})", rows)


# ---- the daemon ------------------------------------------------------------------------------------------------------


def _daemon(folder: Path, now: int, pace: float) -> Done:
    command = [sys.executable, "-m", "tests.benchmarks.many", str(folder), str(now), str(pace)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the daemon ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Done(**json.loads(done.stdout.splitlines()[-1]))


@dataclass
class _Daemon:
    """A daemon, its clock, and how its rounds went."""

    app: App
    clock: ManualClock
    ended: Counter[str] = field(default_factory=Counter)

    def counted(self, name: str, monitor: str = "") -> int:
        """Of one monitor, or of all."""
        counts = self.app.telemetry.counts().items()
        return int(sum(n for (key, labels), n in counts if key == name and monitor in ("", labels[0])))

    def listen(self) -> None:
        """Count the runs that have ended, with all that they show."""
        self.app.scheduler._scheduler.add_listener(lambda event: self.ended.update([event.job_id]), EVENT_JOB_EXECUTED)

    def round(self, ask: Callable[[], None]) -> tuple[float, float]:
        """(seconds, seconds of the processor) until every monitor has run once more since it was asked."""
        before, jobs = self.ended.copy(), [f"monitor:{name}" for name in self.app.runners]
        began, worked = time.perf_counter(), time.process_time()
        ask()
        while any(self.ended[job] <= before[job] for job in jobs):
            if time.perf_counter() - began > WAIT:
                raise StoreError(f"not all monitors have run within {WAIT} s")
            time.sleep(0.1)
        return time.perf_counter() - began, time.process_time() - worked

    def begin(self) -> Iterator[float]:
        """Start, and say when the web has answered, and when all monitors are shown; seconds of the counter."""
        self.app.start()
        for path in ("-/healthy", "metrics"):
            urlopen(f"{self.app.web.url}{path}", timeout=60).read()
        yield time.perf_counter()
        while len(self.app.board.snapshots) < len(self.app.runners):
            time.sleep(0.01)
        yield time.perf_counter()

    def hurry(self, pace: float) -> None:
        """Have all monitors run now, and then so many times as often as they are configured to."""
        self.clock.speed = pace
        for name in self.app.runners:
            self.app._schedule(name)

    def ask_all(self) -> None:
        """Have all monitors run now."""
        for name in self.app.runners:
            self.app.scheduler.retry_in(name, 0)


def main(folder: Path, now: int, pace: float) -> Done:
    """Run the daemon: all for the first time, all with a new bucket, all without one, then for a while by itself."""
    clock, began = ManualClock(now), time.perf_counter()
    app = App(load(folder / "many.yaml", {}), clock)
    daemon = _Daemon(app, clock)
    daemon.listen()
    app.prepare()
    try:
        reached = list[float]()
        first, _ = daemon.round(lambda: reached.extend(at - began for at in daemon.begin()))
        stored = {name: daemon.counted("rankmon_buckets_stored", name) for name in app.runners}
        clock.time += HOUR
        new = daemon.round(daemon.ask_all)
        grown = sum(daemon.counted("rankmon_buckets_stored", name) > stored[name] for name in app.runners)
        clock.time += 1
        idle = daemon.round(daemon.ask_all)
        clock.time += HOUR
        skipped = daemon.counted("rankmon_skipped_runs")
        daemon.round(lambda: daemon.hurry(pace))
        skipped -= daemon.counted("rankmon_skipped_runs")  # turns that came while all of them were waiting at once
        time.sleep(1.2 * REFRESH / pace)
    finally:
        app.stop()
    skipped += daemon.counted("rankmon_skipped_runs")
    failed = daemon.counted("rankmon_evaluation_failures")
    return Done(*reached, first, new[0], idle[0], new[1], idle[1], grown, skipped, failed, peak_megabytes())


if __name__ == "__main__":
    print(json.dumps(asdict(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))))
