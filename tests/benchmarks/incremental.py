"""A cycle with one new bucket after a long history and with long windows, against one after a day of history."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from monitor.database_url import parse_url
from monitor.drift.series import Hours
from monitor.evaluation.notices import Recipients
from monitor.service.runner import Runner
from monitor.service.snapshot import Board, MonitorSnapshot
from monitor.service.telemetry import Telemetry
from monitor.source.engine import Database
from monitor.source.pull import Pull
from monitor.store import Store
from monitor.types import Monitor, TimeColumn
from monitor.units import DAY, HOUR
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved, seconds
from tests.support.drift import HIGH, LOW, Ranking, day
from tests.support.monitors import new_store
from tests.support.simulated import configured, put

SLICES, REQUESTS, ITEMS = 20, 200, 10
HISTORY_DAYS, ROUNDS, WARM, STARTS = 90, 50, 30, 5
"""Days of history; timed cycles, cycles of warm-up before them, and starts."""
AIM, IDLE_AIM = 1.3, 0.3
AT_FOURTH = 0.3
"""Share of fourth among fourth and fifth positions, by which their mean is LOW."""

SETTINGS = """\
    windows: [24h, 7d, 90d]
    drift: {}
    alerts:
      - name: quality
        measure: ndcg@10
        window: 24h
        drop: 5%
        baseline: {trailing: 21d}
"""
REMARKS = f"""\
Processor time of cycles, the two daemons in turn, after {WARM} cycles of each. A cycle reads, stores, judges by an
alert rule and by verdicts, and makes the new snapshot and the page's curves. Source and store are SQLite; an hour has
{REQUESTS} requests of {ITEMS} items in {SLICES} slices. Both daemons have windows of 1, 7 and 90 days. One has
{HISTORY_DAYS} days of hourly history; the other has one day, so its baselines are empty. The first cycle after a
start also reads the history that the windows need and draws the curves; later ones read what is new. The cycle with
nothing new is compared with the one that has a new bucket."""


def sections(folder: Path, days: int = HISTORY_DAYS, rounds: int = ROUNDS) -> Iterator[Section]:
    """The table."""
    warm = min(WARM, rounds)
    log = folder / "incremental-log.db"
    drawn = Ranking.of(days + -(-(warm + rounds + STARTS + 2) // 24), slices=SLICES, peak=REQUESTS).draw()
    write_log(log, drawn.rows(days * 24, days * 24 + warm + rounds + STARTS + 2))
    short, long = (Daemon.after(past, drawn, days, folder / str(past), log) for past in (1, days))
    for _ in range(warm):
        short.cycle(), long.cycle()
    calls = [("short", short.cycle), ("long", long.cycle), ("idle", long.idle)]
    taken = interleaved(calls, rounds, time.process_time)
    first: dict[str, list[float]] = {"short": [], "long": []}
    for _ in range(STARTS):
        for name, one in (("short", short), ("long", long)):
            one.restart()
            first[name].append(seconds(one.cycle, time.process_time))
    floor, full, kind = taken["short"], taken["long"], long.kind
    begun = {name: median(times) for name, times in first.items()}
    for one in (long, short):
        one.close()
    yield Section(
        f"A cycle with one new bucket after {days} days of {SLICES + 1} series",
        ("what", "time", "ratio", "aim", "met"),
        [
            Line("after a day of history", duration(floor), 1.0),
            Line(f"after {days} days of history, {kind}", duration(full), full / floor, AIM, "at most"),
            Line("the same with nothing new", duration(taken["idle"]), taken["idle"] / full, IDLE_AIM, "at most"),
            Line("the first after a start, a day of history", duration(begun["short"]), begun["short"] / floor),
            Line(f"the first after a start, {days} days", duration(begun["long"]), begun["long"] / floor),
        ],
        REMARKS,
    )


@dataclass
class Daemon:
    """One monitor's job as a daemon runs it; each cycle is one hour of the data."""

    runner: Runner
    board: Board
    store: Store
    database: Database
    clock: Clock

    @classmethod
    def after(cls, days: int, drawn: Hours, end: int, folder: Path, log: Path) -> Daemon:
        """With so many days of history, the last of which ends at day `end`."""
        folder.mkdir()
        config = configured(folder, SETTINGS)
        # lookback ends where the history does: else the daemon would fill the time before it with empty buckets.
        (monitor,) = config.monitors
        rankings = replace(monitor.rankings, time=TimeColumn("time", "epoch_s"))
        monitor = replace(monitor, rankings=rankings, lookback=min(monitor.lookback, days * DAY))
        store = new_store(config.store.url)
        nothing = np.zeros(len(drawn.starts))
        known = replace(drawn, events=nothing, unmatched=nothing)
        put(store, monitor, known.rows((end - days) * 24, end * 24))
        database = Database("shop", parse_url(f"sqlite:///{log}"), 60)
        clock = Clock(day(end) + monitor.ingest_delay + 60.0)
        board = Board()
        return cls(_runner(monitor, store, board, database, clock), board, store, database, clock)

    def restart(self) -> None:
        """As a new process, which knows only what is stored."""
        self.runner = _runner(self.monitor, self.store, self.board, self.database, self.clock)

    @property
    def monitor(self) -> Monitor:
        """What it watches."""
        return self.runner.monitor

    def cycle(self) -> None:
        """An hour later, a cycle.

        Raises:
            RuntimeError: it did not store just the one new bucket.
        """
        self.clock.at += HOUR
        outcome = self.runner.run().outcome
        if outcome is None or outcome.stored != 1 or outcome.left:
            raise RuntimeError(f"not a cycle with one new bucket: {outcome}")

    def idle(self) -> None:
        """A second later, a cycle.

        Raises:
            RuntimeError: it stored something.
        """
        self.clock.at += 1
        outcome = self.runner.run().outcome
        if outcome is None or outcome.stored:
            raise RuntimeError(f"not a cycle with nothing new: {outcome}")
        self.clock.at -= 1

    def monitor_with(self, **changes: object) -> None:
        """Restart with another configuration of the same series."""
        changed = replace(self.monitor, **changes)  # type: ignore[arg-type]
        self.runner = _runner(changed, self.store, self.board, self.database, self.clock)

    @property
    def shown(self) -> MonitorSnapshot:
        """What it shows of the monitor."""
        return self.board.snapshots[self.monitor.name]

    @property
    def kind(self) -> str:
        """The newest verdict."""
        newest = self.store.verdicts.newest(self.monitor.name)
        return "none" if newest is None else newest.kind

    def close(self) -> None:
        """Give the connections back."""
        self.database.close()
        self.store.close()


@dataclass
class Clock:
    """A clock that stands still; seconds."""

    at: float
    speed: float = 1.0

    def now(self) -> float:
        """Seconds since 1970."""
        return self.at


class Nobody:
    """Notifies nobody."""

    def recipients(self) -> Recipients:
        """No receivers."""
        return Recipients()

    def wake(self) -> None:
        """Nothing to send."""


def _runner(monitor: Monitor, store: Store, board: Board, database: Database, clock: Clock) -> Runner:
    parts = (Pull(monitor, database), store, board, Telemetry(), clock, threading.Event(), Nobody())
    return Runner(monitor, *parts)


def write_log(path: Path, hours: Hours) -> None:
    """Requests that add up to these steps: each has one relevant item, whose position gives HIGH or nearly LOW."""
    rng, rows = np.random.default_rng(7), []
    for row, start in enumerate(hours.starts.tolist()):
        for column, name in enumerate(hours.slices):
            size, labelled = int(hours.requests[row, column]), int(hours.labelled[row, column])
            high = round((hours.total[row, column] - LOW * labelled) / (HIGH - LOW))
            at = rng.integers(start, start + HOUR, size).tolist()
            for number in range(size):
                best = 1 if number < high else 4 if rng.random() < AT_FOURTH else 5
                grades = [None if number >= labelled else int(position == best) for position in range(1, ITEMS + 1)]
                request = f"{start}-{column}-{number}"
                rows += [(request, i, i + 1, at[number], name, grade) for i, grade in enumerate(grades)]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rankings (request, item, position, time, device, grade)")
        connection.executemany("INSERT INTO rankings VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("CREATE INDEX rankings_time ON rankings (time)")
