"""The lists that all benchmarks score, as a DataFrame and as a log in SQLite. Seeds are fixed."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Ids = Literal["number", "text"]

SEED = 20_260_302
LENGTH = 20
"""Items in each list."""
SHARE = 0.1
"""Of the items, how many are relevant."""
ATTRIBUTION = 1800
START = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
DEVICES, DEVICE_SHARES = ("mobile", "desktop", "tablet"), (0.6, 0.35, 0.05)

_CATALOGUE = 999_983  # a prime, so that no list shows an item twice


def lists(requests: int, graded: bool, ids: Ids) -> pd.DataFrame:
    """One row an item: request_id, item_id, position from 1 on, grade (0 or 1; if `graded` 0 to 4)."""
    random = np.random.default_rng(SEED)
    rows = requests * LENGTH
    relevant = random.random(rows) < SHARE
    grade = np.where(relevant, random.integers(1, 5, rows) if graded else 1, 0)
    items = _items(random, requests).ravel()
    return pd.DataFrame(
        {
            "request_id": np.repeat(_names(random, requests, ids), LENGTH).tolist(),
            "item_id": [f"item-{item:06d}" for item in items.tolist()] if ids == "text" else items,
            "position": np.tile(np.arange(1, LENGTH + 1), requests),
            "grade": grade,
        }
    )


def _items(random: np.random.Generator, requests: int) -> Ints:
    """(requests, LENGTH) items, none twice in a list."""
    first, step = random.integers(1, _CATALOGUE, (2, requests, 1))
    found: Ints = (first + step * np.arange(LENGTH)) % _CATALOGUE
    return found


def _names(random: np.random.Generator, requests: int, ids: Ids) -> NDArray[Any]:
    """Distinct ids: rising numbers, or random text as of a UUID."""
    if ids == "number":
        return np.arange(1, requests + 1)
    return np.array([f"{high:016x}{low:016x}" for high, low in random.integers(0, 2**63, (requests, 2)).tolist()])


@dataclass(frozen=True)
class Log:
    """A SQLite file with `rows` rankings, served in [since, until) seconds."""

    path: Path
    since: int
    until: int
    requests: int

    @property
    def rows(self) -> int:
        """Items shown."""
        return self.requests * LENGTH


SCHEMA = """
CREATE TABLE rankings (
    request_id {id} NOT NULL, item_id INTEGER NOT NULL, position INTEGER NOT NULL,
    served_at TEXT NOT NULL, device TEXT NOT NULL, PRIMARY KEY (request_id, position));
CREATE TABLE events (request_id {id} NOT NULL, item_id INTEGER NOT NULL, type TEXT NOT NULL, occurred_at TEXT NOT NULL);
"""
INDEXES = """
CREATE INDEX rankings_served_at ON rankings (served_at);
CREATE INDEX events_occurred_at ON events (occurred_at);
"""


def write_log(path: Path, requests: int, hours: int, ids: Ids) -> Log:
    """Rankings spread over some hours and a click on every tenth item.

    One click in a hundred comes after the attribution time, and one in two hundred names an item that was not shown.
    """
    random = np.random.default_rng(SEED)
    until = START + hours * 3600
    served = np.sort(random.integers(START, until, requests))
    names, items = _names(random, requests, ids).tolist(), _items(random, requests)
    with sqlite3.connect(path) as connection:
        connection.executescript(SCHEMA.format(id="INTEGER" if ids == "number" else "TEXT"))
        shown = _shown(names, items, _iso(served), random.choice(DEVICES, requests, p=DEVICE_SHARES).tolist())
        connection.executemany("INSERT INTO rankings VALUES (?, ?, ?, ?, ?)", shown)
        clicks = _clicks(random, names, items, served)
        connection.executemany("INSERT INTO events VALUES (?, ?, 'click', ?)", clicks)
        connection.executescript(INDEXES)
    connection.close()
    return Log(path, START, until, requests)


def _shown(names: list[Any], items: Ints, served: list[str], devices: list[str]) -> Iterator[tuple[Any, ...]]:
    for name, row, time, device in zip(names, items.tolist(), served, devices, strict=True):
        for position, item in enumerate(row, 1):
            yield name, item, position, time, device


def _clicks(random: np.random.Generator, names: list[Any], items: Ints, served: Ints) -> Iterator[tuple[Any, int, str]]:
    """(request, item, time) in the order of time."""
    clicked = np.flatnonzero(random.random(items.size) < SHARE)
    request = clicked // LENGTH
    late = random.random(len(clicked)) < 0.01
    at = served[request] + random.integers(1, 600, len(clicked)) + late * ATTRIBUTION
    item = np.where(random.random(len(clicked)) < 0.005, _CATALOGUE + 1, items.ravel()[clicked])
    order = np.argsort(at, kind="stable")
    columns = (request[order].tolist(), item[order].tolist(), _iso(at[order]))
    return ((names[q], i, time) for q, i, time in zip(*columns, strict=True))


def _iso(instants: Ints) -> list[str]:
    text = np.datetime_as_string(instants.astype("datetime64[s]"))
    found: list[str] = np.char.add(text, "Z").tolist()
    return found
