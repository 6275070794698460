"""Logs whose lists are in one column, in each way that an engine writes lists, and the same with a row per item."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from monitor.types import ITEM, PLACE, EventRule, Events, Monitor, Position, Rankings, Relation, Slice, TimeColumn
from tests.support.logs import ATTRIBUTION, BUCKET, BUCKETS, START, Style, monitor

Ids = Sequence[int | None] | None

STYLE = Style("BIGINT", "epoch_ms", None, lambda micros: micros // 1000)


def in_json(ids: Ids, of: Callable[[int], object] = int) -> str:
    """A literal of a list in JSON."""
    return "NULL" if ids is None else f"'{json.dumps([None if i is None else of(i) for i in ids])}'"


def _array(template: str) -> Callable[[Ids], str]:
    def literal(ids: Ids) -> str:
        listed = ", ".join("NULL" if i is None else str(i) for i in ids or ())
        return "NULL" if ids is None else template.format(listed)

    return literal


@dataclass(frozen=True)
class Lists:
    """How an engine writes lists.

    Attributes:
        text, whole: types.
        json: types of columns that hold JSON.
        array: type of an array of whole numbers, if there are arrays, and how one is written.
        ending: of CREATE TABLE.
        as_texts: JSON -> refused rows of ODD that differ where ids are texts.
    """

    text: str
    whole: str
    json: Sequence[str]
    array: tuple[str, Callable[[Ids], str]] | None = None
    ending: str = ""
    as_texts: Mapping[str, int] = field(default_factory=lambda: {BEYOND: 0})

    @property
    def columns(self) -> dict[str, str]:
        """Column -> type, for each way."""
        arrays = {"in_array": self.array[0]} if self.array else {}
        return arrays | {f"in_json_{i}": kind for i, kind in enumerate(self.json)}

    @property
    def _of_request(self) -> str:
        texts = ", ".join(f"{name} {self.text}" for name in ("request", "query", "device"))
        return f"{texts}, served {self.whole}, found {self.whole}"

    def statements(self, lists: Sequence[tuple[str, int, str]], events: Sequence[tuple[str, int, int]]) -> list[str]:
        """Makes `lists` of (request, served at, literals of the columns) and events of (request, item, time)."""
        named = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        found = self._table("lists", f"{self._of_request}, {named}", [f"{_head(*one[:2])}, {one[2]}" for one in lists])
        for name, kind, item in (("acts", self.whole, "{}"), ("acts_in_text", self.text, "'{}'")):
            rows = [f"'{r}', {item.format(i)}, 'click', {at * 1000}" for r, i, at in events]
            found += self._table(
                name, f"request {self.text}, item {kind}, type {self.text}, happened {self.whole}", rows
            )
        return found

    def of_log(self, seed: int) -> list[str]:
        """A random log of lists, and the same with a row per item in `shown` and judgments in `judged`."""
        chance, lists, shown, events = random.Random(seed), list[tuple[str, int, str]](), list[str](), []
        as_text = chance.random() < 0.5
        for n in range(40):
            request, at, ids = f"r{n}", START + chance.randint(0, BUCKETS * BUCKET - 1), _ids(chance)
            json_of = in_json(ids, str if as_text else int)
            literals = [json_of] * len(self.json)
            lists.append((request, at, ", ".join([self.array[1](ids), *literals] if self.array else literals)))
            rows = list(enumerate(ids or (), 1)) or [(None, None)]
            shown += [f"{_head(request, at)}, {_null(item)}, {_null(place)}" for place, item in rows]
            events += [(request, chance.randint(1, 9), at + chance.randint(-1, ATTRIBUTION)) for _ in range(3)]
        judged = [f"'{query}', {item}, {item % 4}" for query in "ab" for item in range(1, 8)]
        return [
            *self.statements(lists, events),
            *self._table("shown", f"{self._of_request}, item {self.whole}, position {self.whole}", shown),
            *self._table("judged", f"query {self.text}, item {self.whole}, grade {self.whole}", judged),
        ]

    def refused(self, acts: str) -> int:
        """Refused rows of ODD with those events."""
        return sum((ODD | dict(self.as_texts if acts == "acts_in_text" else {})).values())

    def of_ids(self, ids: Sequence[str | int], kind: str) -> list[str]:
        """One list of these ids in JSON, and an event on the last; events name them in a column of that type."""
        literals = [f"'{json.dumps(list(ids))}'"] * len(self.json)
        head = [self.array[1]([])] if self.array else []
        found = self.statements([("r1", START, ", ".join([*head, *literals]))], [])
        columns = f"request {self.text}, item {kind}, type {self.text}, happened {self.whole}"
        return [*found, *self._table("acts", columns, [f"'r1', '{ids[-1]}', 'click', {START * 1000 + 1}"])]

    def _table(self, name: str, columns: str, rows: Sequence[str]) -> list[str]:
        filled = [f"INSERT INTO {name} VALUES {', '.join(f'({row})' for row in rows)}"] if rows else []
        return [f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({columns}) {self.ending}", *filled]


BEYOND = "[9223372036854775808, 9223372036854775809]"
"""A list of whole numbers beyond signed 64 bits, which are the same where they are rounded."""

ODD = {
    **{"[[1, 2]]": 1, '[{"id": 1}]': 1, '{"id": 1}': 1, "5": 1, '"x"': 1, "[true, 1]": 1, "[1.5]": 1, "[3, null]": 1},
    BEYOND: 2,
    **{"[1, 2]": 0, "[-1234567890123456789]": 0, "[]": 0, "null": 0},
}
"""JSON -> how many of its rows are refused where ids are whole numbers; the last two are empty."""


def _head(request: str, at: int) -> str:
    return f"'{request}', '{'ab'[at % 2]}', '{('tv', 'pc')[at % 3 == 0]}', {at * 1000}, {at % 5 % 2}"


def _null(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def _ids(chance: random.Random) -> Ids:
    """Most often a list of different items; some have an item twice or a null, or are empty or missing."""
    if chance.random() < 0.2:
        return chance.choice(([], None))
    ids: list[int | None] = list(chance.sample(range(1, 10), chance.randint(1, 6)))
    if chance.random() < 0.2:
        ids.append(chance.choice((None, ids[0])))
    return ids


LISTS: Mapping[str, Lists] = {
    "sqlite": Lists("TEXT", "BIGINT", ("TEXT",), as_texts={}),
    "postgresql": Lists("TEXT", "BIGINT", ("TEXT", "JSON", "JSONB"), ("BIGINT[]", _array("ARRAY[{}]::BIGINT[]"))),
    "duckdb": Lists("VARCHAR", "BIGINT", ("VARCHAR", "JSON"), ("BIGINT[]", _array("[{}]::BIGINT[]"))),
    "mysql": Lists("VARCHAR(200)", "BIGINT", ("JSON", "TEXT")),
    "clickhousedb": Lists(
        *("Nullable(String)", "Nullable(Int64)", ("Nullable(String)",)),
        ("Array(Nullable(Int64))", lambda ids: _array("[{}]")(ids or [])),
        "ENGINE = MergeTree ORDER BY tuple()",
    ),
    "hive": Lists(
        *("STRING", "BIGINT", ("STRING",)),
        ("ARRAY<BIGINT>", lambda ids: "NULL" if ids is None else f"from_json({in_json(ids)}, 'array<bigint>')"),
        as_texts={BEYOND: 0, "[true, 1]": 0, "[1.5]": 0},
    ),
}
"""By SQLAlchemy's name of the dialect."""

_TIME = TimeColumn("served", "epoch_ms")


def of_lists(column: str, events: str = "acts", measures: Sequence[str] = ("ndcg@3", "ctr@2", "no_results")) -> Monitor:
    """A monitor of the lists in a column of `lists`, by device."""
    rankings = Rankings(Relation(("lists",)), "request", ITEM, Position(PLACE), _TIME, "query", items=column)
    happened = TimeColumn("happened", "epoch_ms")
    recipe = Events(Relation((events,)), "request", "item", happened, (EventRule(1, "click"),), ATTRIBUTION, "type")
    return monitor(recipe, STYLE, measures, rankings=rankings, slices=(Slice("device", "device"),))


def of_rows(made: Monitor) -> Monitor:
    """The monitor of the same lists, with a row per item."""
    shown = replace(
        made.rankings, relation=Relation(("shown",)), item="item", position=Position("position"), items=None
    )
    return replace(made, rankings=shown)
