"""A monitor and tallies made by hand, whole stores as plain rows, and Python in a process of its own."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.measures.measure import parse
from monitor.series.partials import Cell, Partials
from monitor.store import Lease, Store, Written
from monitor.store.schema import buckets, metadata
from monitor.types import OVERALL, Column, Definition, Monitor, Position, Rankings, Relation, Slice, TimeColumn

ROOT = Path(__file__).parent.parent.parent
HOUR = 3600
RANKINGS = Rankings(Relation(("rankings",)), "request", "item", Position("position"), TimeColumn("time"))


def watched(name: str = "search", grade: str = "grade") -> Monitor:
    """A monitor of two measures; another `grade` column is another definition."""
    measures = (parse("ndcg@10"), parse("mrr@10"))
    return Monitor(name, "shop", RANKINGS, Column(grade), measures, (Slice("device", "device"),))


def tally(
    monitor: Monitor,
    requests: Mapping[int, Mapping[str, int]],
    labelled: float = 1.0,
    refused: Mapping[tuple[int, str], int] | None = None,
    fingerprint: str = "",
) -> Partials:
    """Bucket start -> device -> requests, as partials of numbers that no float holds exactly.

    `refused` is (start, reason) -> rows, all of overall.
    """
    found = Partials(min(requests), max(requests) + HOUR, fingerprint=fingerprint)
    for start, devices in requests.items():
        counts = {OVERALL: sum(devices.values())} | {("device", d): n for d, n in devices.items() if n}
        for key, count in counts.items():
            cell: Cell = (start, *key)
            crowd = [count, int(count * labelled), 10 * count, 7 * count, count, 0, 0, count]
            found.traffic[cell] = np.array(crowd, dtype=float)
            for number, measure in enumerate(monitor.measures, start=1):
                sums = np.array([count, 0, *(count * number / d for d in (3, 7, 9, 11, 13, 17, 19))])
                found.measures.setdefault(str(measure.kernel), {})[cell] = sums
    found.admitted = [("device", d) for d in dict.fromkeys(d for devices in requests.values() for d in devices)]
    found.refused = {((start, *OVERALL), reason): rows for (start, reason), rows in (refused or {}).items()}
    return found


def write(
    store: Store, lease: Lease, monitor: Monitor, tallied: Partials, read_at: float = 1e6, **more: Any
) -> Written:
    """Store all of a tally for all of the monitor's series; final unless `finals` says otherwise."""
    starts = range(tallied.since, tallied.until, HOUR)
    targets: Mapping[Definition, Sequence[int]] = dict.fromkeys(monitor.definitions, starts)
    return store.write(lease, monitor, tallied, targets, read_at, **({"finals": starts} | more))


def bear_out(store: Store, until: float, monitor: Monitor | None = None) -> None:
    """Store an hour of requests of each of the last seven days: by less nothing is old enough to be forgotten."""
    monitor, end = monitor or watched(), int(until) // HOUR * HOUR
    with store.hold(monitor.name) as lease:
        for day in range(7):
            start = end - HOUR - day * 24 * HOUR
            write(store, lease, monitor, tally(monitor, {start: {"mobile": 1}}))


def rows(store: Store, *leave_out: str) -> dict[str, list[tuple[Any, ...]]]:
    """Table -> all of its rows, sorted; leases aside, which every write renews."""
    found = {}
    with store.reading() as connection:
        for table in metadata.sorted_tables:
            if table.name in ("leases", *leave_out):
                continue
            columns = [column for column in table.c if column is not buckets.c.id]
            query = sa.select(*columns)
            if "bucket_id" in table.c:  # by what the bucket is of: its number is another each time it is replaced
                columns[0:1] = buckets.c.series_id, buckets.c.bucket_start, buckets.c.seconds
                query = sa.select(*columns).select_from(table).join(buckets)
            found[table.name] = sorted(map(tuple, connection.execute(query)), key=repr)
    return found


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a script beside this process; it can be talked to."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def line(process: subprocess.Popen[str]) -> str:
    """The next line that the process says; fails with its errors if it says none."""
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said, process.communicate()[1]
    return said


def let_on(process: subprocess.Popen[str]) -> None:
    """Let a process go on that waits for a line."""
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
