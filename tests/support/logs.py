"""Random logs of rankings, events and judgments, full of dirt, as rows of plain values and as tables.

Times are microseconds since 1970, whole quarters of a second, so that every way of writing them holds them exactly;
a text in their place is one that no format can read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from monitor.measures.measure import parse
from monitor.types import (
    Column,
    EventRule,
    Events,
    Judgments,
    Monitor,
    Position,
    Rankings,
    Recipe,
    Relation,
    Slice,
    TimeColumn,
)

START = 1_767_268_800  # 2026-01-01 12:00 UTC, an edge of buckets
BUCKET, BUCKETS, SPAN, ATTRIBUTION = 600, 4, 60, 900
END = START + BUCKETS * BUCKET
MICROS = 1_000_000

Row = dict[str, Any]

RANKINGS = ("request", "item", "position", "at", "query", "device", "country", "grade")
EVENTS = ("request", "item", "at", "type", "value")
JUDGMENTS = ("query", "item", "grade")


@dataclass
class Log:
    """Rows as dicts of column to value."""

    rankings: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    judgments: list[Row] = field(default_factory=list)

    def show(self, request: Any, items: Sequence[Any], at: float, first: int = 1, **more: Any) -> None:
        """Log a clean request at `at` seconds; a list in `more` has one value an item."""
        for i, item in enumerate(items):
            others = {k: v[i] if isinstance(v, list) else v for k, v in more.items()}
            micros = round(at * MICROS)
            row = {"request": request, "item": item, "position": first + i, "at": micros, **others}
            self.rankings.append(dict.fromkeys(RANKINGS) | row)

    def happen(self, request: Any, item: Any, at: float, kind: str | None = "click", value: Any = None) -> None:
        """Log an event at `at` seconds."""
        self.events.append({"request": request, "item": item, "at": round(at * MICROS), "type": kind, "value": value})

    def judge(self, query: Any, item: Any, grade: Any) -> None:
        """Log a judgment."""
        self.judgments.append({"query": query, "item": item, "grade": grade})


# ---- ways of writing a time --------------------------------------------------------------------------------------


class Style(NamedTuple):
    """A way of writing a time: the column's type, how it is declared, and the value of an instant in microseconds."""

    sql: str
    form: str
    zone: str | None
    write: Callable[[int], Any]

    def column(self, name: str = "at") -> TimeColumn:
        """The declared column."""
        return TimeColumn(name, self.form, self.zone)


def moment(micros: int) -> datetime:
    """The instant, in UTC."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def _text(between: str, tail: str, zone: str = "UTC") -> Callable[[int], str]:
    """Text to the second, and with a fraction where there is one."""

    def write(micros: int) -> str:
        local = moment(micros).astimezone(ZoneInfo(zone))
        fraction = f".{local.microsecond // 10_000}" if local.microsecond else ""
        return local.strftime(f"%Y-%m-%d{between}%H:%M:%S") + fraction + tail

    return write


def local(zone: str) -> Callable[[int], datetime]:
    """Writes an instant as the clocks of a zone show it."""
    return lambda micros: moment(micros).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


_WRITTEN = {
    "text Z": Style("text", "%Y-%m-%dT%H:%M:%SZ", None, _text("T", "Z")),
    "text UTC": Style("text", "%Y-%m-%d %H:%M:%S", "UTC", _text(" ", "")),
    "text local": Style("text", "%Y-%m-%d %H:%M:%S.%f", "America/New_York", _text(" ", "", "America/New_York")),
    "epoch s": Style("double precision", "epoch_s", None, lambda micros: micros / MICROS),
    "epoch ms": Style("bigint", "epoch_ms", None, lambda micros: micros // 1000),
    "epoch us": Style("bigint", "epoch_us", None, lambda micros: micros),
}
_NATIVE = {
    "timestamptz": Style("timestamptz", "native", None, moment),
    "timestamp UTC": Style("timestamp", "native", "UTC", local("UTC")),
    "timestamp local": Style("timestamp", "native", "Europe/Berlin", local("Europe/Berlin")),
}


def styles(url: str) -> dict[str, Style]:
    """The ways of writing a time that an engine has, by name."""
    return _WRITTEN if url.startswith("sqlite") else _WRITTEN | _NATIVE


# ---- tables ------------------------------------------------------------------------------------------------------


def write(
    url: str, log: Log, style: Style, position: str = "integer", grade: str = "double precision", index: bool = False
) -> None:
    """Fill the tables `rankings`, `events` and `judgments`, made anew. `position` and `grade` are types.

    SQLite's columns get no types, so that they keep whatever they are given.
    """
    types = {"at": style.sql, "position": position, "grade": grade, "value": "double precision", "item": "bigint"}
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name, columns, rows in (
            ("rankings", RANKINGS, log.rankings),
            ("events", EVENTS, log.events),
            ("judgments", JUDGMENTS, log.judgments),
        ):
            kinds = [f'"{c}" {types.get(c, "text") if url.startswith("postgres") else ""}' for c in columns]
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
            connection.exec_driver_sql(f"CREATE TABLE {name} ({', '.join(kinds)})")
            if index and "at" in columns:
                connection.exec_driver_sql(f'CREATE INDEX {name}_at ON {name} ("at")')
            written = [{c: _written(row[c], c, style) for c in columns} for row in rows]
            if written:
                connection.execute(sa.table(name, *map(sa.column, columns)).insert(), written)
    engine.dispose()


def _written(value: Any, column: str, style: Style) -> Any:
    return style.write(value) if column == "at" and isinstance(value, int) else value


# ---- monitors ----------------------------------------------------------------------------------------------------

CLICKS = (EventRule(1, "click"), EventRule(3, "purchase"), EventRule(2, "dwell", 30))


def events(style: Style, **changes: Any) -> Events:
    """The recipe by clicks, purchases and dwell times."""
    settings: dict[str, Any] = {"rules": CLICKS, "attribution": ATTRIBUTION, "type": "type", "value": "value"}
    return Events(Relation(("events",)), "request", "item", style.column(), **(settings | changes))


def judgments(**changes: Any) -> Judgments:
    """The recipe by judgments."""
    return Judgments(Relation(("judgments",)), "query", "item", "grade", **changes)


def column(**changes: Any) -> Column:
    """The recipe by the column `grade`."""
    return Column("grade", **changes)


def monitor(
    recipe: Recipe, style: Style, measures: Sequence[str] = ("ndcg@3",), first: int = 1, **changes: Any
) -> Monitor:
    """A monitor of these tables."""
    rankings = Rankings(
        Relation(("rankings",)), "request", "item", Position("position", first), style.column(), "query"
    )
    settings: dict[str, Any] = {
        "slices": (Slice("device", "device"), Slice("land", "country")),
        "bucket": BUCKET,
        "max_request_span": SPAN,
        "rankings": rankings,
    }
    parsed = tuple(parse(m) for m in measures)
    return Monitor(name="m", source="s", recipe=recipe, measures=parsed, **(settings | changes))


# ---- dirt --------------------------------------------------------------------------------------------------------


class Dirt(NamedTuple):
    """Values that only some engines, types and formats can hold.

    Attributes:
        positions, grades, values: that are no numbers, or no usable ones.
        time: gives a text that no format reads and that sorts within ten seconds after an instant.
    """

    positions: tuple[Any, ...] = ()
    grades: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    time: Callable[[int], str] | None = None


class Soiled:
    """Makes a random log, a pure function of the seed."""

    def __init__(self, seed: int, first: int, dirt: Dirt, boolean: bool = False) -> None:
        self.random = random.Random(seed)
        self.again = random.Random(f"again {seed}")
        self.nothing = random.Random(f"nothing {seed}")
        self.first = first
        self.dirt = dirt
        self.boolean = boolean
        self.log = Log()

    def make(self) -> Log:
        """Some requests around each edge of a bucket and between, their events, and judgments of their queries."""
        for n in range(self.random.randint(0, 45)):
            served = self._served()
            self._request(f"r{n}", served)
            for _ in range(self.random.choice((0, 0, 1, 2, 5))):
                self._event(f"r{n}", served)
        for _ in range(self.random.randint(0, 60)):
            grade = self._grade(missing=0.1)
            self.log.judge(self._maybe(self.random.choice("abcdx"), 0.05), self._maybe(self._item(), 0.05), grade)
        self._find_nothing()
        self._deliver_again()
        self.random.shuffle(self.log.rankings)
        self.random.shuffle(self.log.events)
        return self.log

    def _find_nothing(self) -> None:
        """In every other log: lists that a row without an item and a position calls empty, be there adverts or not."""
        if self.nothing.random() < 0.5:
            return
        for n in range(self.nothing.randint(1, 12)):
            at = (START + self.nothing.randint(-1, BUCKETS * BUCKET)) * MICROS
            row = dict.fromkeys(RANKINGS) | {"request": f"n{n}", "at": at, "query": self.nothing.choice("abcd")}
            row |= {"device": self.nothing.choice(("tv", "pc", None)), "country": self.nothing.choice("xyz")}
            more = self.nothing.choice(([], [], [{}], [{"position": self.first}], [{"position": 2, "item": 3}]))
            self.log.rankings += [row, *(row | other for other in more)]

    def _deliver_again(self) -> None:
        """In one log of four: rows that were delivered twice, or by a second server at other places or as page two."""
        if self.again.random() < 0.75:
            return
        ids = sorted({row["request"] for row in self.log.rankings if isinstance(row["request"], str)})
        some = set(self.again.sample(ids, self.again.randint(0, len(ids))))
        how = self.again.choice(("twice", "in part", "elsewhere", "page two", "with other slices"))
        for row in [row for row in self.log.rankings if row["request"] in some]:
            more = dict(row)
            if how == "elsewhere" and isinstance(row["position"], int):
                more["position"] = row["position"] + self.again.choice((-1, 0, 1, 3))
            elif how == "page two" and isinstance(row["item"], int):
                more["item"] = 10 - row["item"]
            elif how == "with other slices":
                more["device"] = self.again.choice((row["device"], "tv"))
            if how != "in part" or self.again.random() < 0.5:
                self.log.rankings.append(more)

    def _served(self) -> int:
        """A time, often close to the edge of a bucket, and sometimes outside of what is read."""
        edge = START + self.random.randint(-1, BUCKETS + 1) * BUCKET
        offset = self.random.choice((0, -0.25, -1, 0.25, -SPAN, self.random.uniform(-BUCKET, BUCKET)))
        return round((edge + offset) * 4) * MICROS // 4

    def _maybe(self, value: Any, missing: float = 0.08) -> Any:
        return None if self.random.random() < missing else value

    def _item(self) -> int:
        return self.random.randint(1, 9)

    def _grade(self, missing: float) -> Any:
        if self.boolean:
            return self._maybe(self.random.random() < 0.5, missing)
        grade = self.random.choice((0, 0, 0, 1, 1, 2, 3, 0.5, 4.25, -1, 7))
        if self.dirt.grades and self.random.random() < 0.05:
            return self.random.choice(self.dirt.grades)
        return self._maybe(grade, missing)

    def _position(self, place: int) -> Any:
        chance = self.random.random()
        if self.dirt.positions and chance < 0.05:
            return self.random.choice(self.dirt.positions)
        if chance < 0.15:  # taken, left out, or before the first
            return self.first + self.random.choice((place - 1, place + 3, -1, -3))
        return self._maybe(self.first + place)

    def _at(self, micros: int, latest: int = 0) -> Any:
        if self.dirt.time is not None and self.random.random() < 0.03:
            return self.dirt.time(micros)
        return self._maybe(micros + self.random.randint(0, 4 * latest) * MICROS // 4, 0.01)

    def _request(self, name: str, served: int) -> None:
        query, device, country = self.random.choice("abcd"), self.random.choice(("tv", "pc")), self.random.choice("xyz")
        latest = self.random.choice((0, 0, SPAN))
        for place in range(self.random.randint(0, 6)):
            row = {
                "request": self._maybe(name, 0.05),
                "item": self._maybe(self._item()),
                "position": self._position(place),
                "at": self._at(served, latest),
                "query": self._maybe(query if self.random.random() < 0.98 else "d", 0.05),
                "device": self._maybe(device if self.random.random() < 0.97 else "pc"),
                "country": country,
                "grade": self._grade(missing=0.3),
            }
            self.log.rankings += [row] * (2 if self.random.random() < 0.05 else 1)

    def _event(self, name: str, served: int) -> None:
        far = (-SPAN - 30, -SPAN, -5, 0, 10, 200.25, ATTRIBUTION - 0.25, ATTRIBUTION, ATTRIBUTION + SPAN + 5)
        after = self.random.choice((*far, self.random.randint(0, ATTRIBUTION)))
        shown = [row["item"] for row in self.log.rankings if row["request"] == name] or [1]
        value = self.random.choice((None, 10, 30, 45.5, -2, *self.dirt.values))
        event = {
            "request": self._maybe(self.random.choice((name, name, name, name, "unknown")), 0.04),
            "item": self._maybe(self.random.choice((*shown, self._item())), 0.04),
            "at": self._at(served + round(after * 4) * MICROS // 4),
            "type": self._maybe(self.random.choice(("click", "click", "purchase", "dwell", "view")), 0.04),
            "value": value,
        }
        self.log.events += [event] * (2 if self.random.random() < 0.1 else 1)
