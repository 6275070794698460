"""The Hacker News front page of `shared/data/hn-frontpage`, as the rankings and events of a user's database.

A request is a snapshot; a label is the upvotes that a shown story gained until the first later snapshot that
is 55 minutes to just under 120 minutes away, so an attribution of 2 hours keeps every one. Adverts keep their
place and have no label.
"""

import atexit
import csv
import gzip
import shutil
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from itertools import groupby
from math import fsum, log2
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import sqlalchemy as sa

FILE = "data/hn-frontpage/frontpage_2022-01-31_2022-03-13.csv.gz"
EARLIEST, LATEST = timedelta(minutes=55), timedelta(minutes=120)

# SQLite has no time type; text is what its users keep.
_TIME = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")

METADATA = sa.MetaData()
RANKINGS = sa.Table(
    "rankings",
    METADATA,
    sa.Column("snapshot_id", sa.Text, nullable=False, index=True),
    sa.Column("served_at", _TIME, nullable=False, index=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("item_id", sa.BigInteger),
    sa.Column("points", sa.Integer),
    sa.Column("comments", sa.Integer),
)
UPVOTES = sa.Table(
    "upvotes",
    METADATA,
    sa.Column("snapshot_id", sa.Text, nullable=False),
    sa.Column("item_id", sa.BigInteger, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("occurred_at", _TIME, nullable=False, index=True),
    sa.Column("gained", sa.REAL, nullable=False),
    sa.Index("ix_upvotes_snapshot_id_item_id", "snapshot_id", "item_id"),
)


class Shown(NamedTuple):
    """One line of the file: an item at a position of a snapshot."""

    snapshot_id: str
    served_at: datetime
    position: int
    item_id: int | None
    points: int | None
    comments: int | None


class Upvotes(NamedTuple):
    """The label of one shown story."""

    snapshot_id: str
    item_id: int
    type: str
    occurred_at: datetime
    gained: float


class Loaded(NamedTuple):
    """How many rows went into each table."""

    rankings: int
    upvotes: int


def read(csv_path: Path) -> list[Shown]:
    """Every line of the file, in its order: by time, then by position."""
    with gzip.open(csv_path, "rt", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        return [
            Shown(id_, datetime.fromisoformat(time), int(position), _int(item), _int(points), _int(comments))
            for id_, time, position, item, points, comments in lines
        ]


def labels(shown: Iterable[Shown]) -> Iterator[Upvotes]:
    """The upvotes gained by each story that has a label; the few losses count as 0."""
    snapshots = {time: list(rows) for time, rows in groupby(shown, key=attrgetter("served_at"))}
    times = sorted(snapshots)
    for time, later in _pairs(times):
        points = {row.item_id: row.points for row in snapshots[later] if row.points is not None}
        for row in snapshots[time]:
            if row.item_id is not None and row.points is not None and row.item_id in points:
                gained = float(max(points[row.item_id] - row.points, 0))
                yield Upvotes(row.snapshot_id, row.item_id, "upvotes", later, gained)


def load(engine: sa.Engine, csv_path: Path) -> Loaded:
    """Create and fill both tables in an empty database."""
    shown = read(csv_path)
    upvotes = list(labels(shown))
    with engine.begin() as connection:
        METADATA.create_all(connection)
        _insert(connection, RANKINGS, shown)
        _insert(connection, UPVOTES, upvotes)
    return Loaded(len(shown), len(upvotes))


def fill(url: str, csv_path: Path) -> None:
    """The same by URL; a file of SQLite is copied from one that this process has loaded once."""
    url_ = sa.make_url(url)
    if url_.drivername == "sqlite" and url_.database:
        shutil.copyfile(_loaded(csv_path), url_.database)
        return
    engine = sa.create_engine(url)
    load(engine, csv_path)
    engine.dispose()


@cache
def _loaded(csv_path: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rankmon-front-pages-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    engine = sa.create_engine(f"sqlite:///{folder}/hn.db")
    load(engine, csv_path)
    engine.dispose()
    return folder / "hn.db"


@cache
def daily_ndcg(csv_path: Path, k: int = 10) -> dict[date, float]:
    """Mean NDCG@k per UTC day of serving, in plain Python: a reference that shares no code with rankmon.

    Linear gain on upvotes gained, log2 discount on the logged position, ideal over all shown items cut at k;
    snapshots in which nothing gained are left out.
    """
    shown = read(csv_path)
    grades: dict[tuple[str, int | None], float] = {label[:2]: label.gained for label in labels(shown)}
    days: defaultdict[date, list[float]] = defaultdict(list)
    for (snapshot_id, time), rows in groupby(shown, key=attrgetter("snapshot_id", "served_at")):
        graded = [(row.position, grades.get((snapshot_id, row.item_id), 0.0)) for row in rows]
        best = sorted((grade for _, grade in graded), reverse=True)[:k]
        ideal = fsum(grade / log2(rank + 1) for rank, grade in enumerate(best, start=1))
        actual = fsum(grade / log2(position + 1) for position, grade in graded if position <= k)
        if ideal > 0:
            days[time.date()].append(actual / ideal)
    return {day: fmean(values) for day, values in days.items()}


def _pairs(times: Sequence[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """Each time with the first later one that is EARLIEST to LATEST (excluded) away, where there is one."""
    for time in times:
        later = bisect_left(times, time + EARLIEST)
        if later < len(times) and times[later] < time + LATEST:
            yield time, times[later]


def _int(text: str) -> int | None:
    return int(text) if text else None


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[NamedTuple]) -> None:
    """All rows at once: by COPY where the driver has it, else by one executemany."""
    if connection.dialect.driver == "psycopg":
        _copy(connection, table, rows)
        return
    native = connection.dialect.name != "sqlite"
    values = [row._asdict() if native else _as_text(row._asdict()) for row in rows]
    connection.execute(table.insert(), values)


def _copy(connection: sa.Connection, table: sa.Table, rows: Iterable[NamedTuple]) -> None:
    with (
        connection.connection.driver_connection.cursor() as cursor,  # type: ignore[union-attr]
        cursor.copy(f"COPY {table.name} FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(row)


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: f"{value:%Y-%m-%dT%H:%M:%SZ}" for name, value in row.items() if isinstance(value, datetime)}
    return row | times
