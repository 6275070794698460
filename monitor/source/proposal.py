"""Proposes how to read an undescribed log: which table and column is what, judging by the values.

Names decide only where values do not, so a log in any language will do. What stays unsure is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from itertools import chain, product
from time import time as clock
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pandas as pd
import sqlalchemy as sa

from monitor.arrays import Floats
from monitor.errors import InputError
from monitor.messages.words import lasting
from monitor.series.finality import CLOCK_TOLERANCE
from monitor.series.readings import MICROS
from monitor.source import discovery
from monitor.source.discovery import Table, are_ids, as_list, as_object, rows_with
from monitor.source.engine import Database
from monitor.source.times import CREDIBLE, PER_SECOND, to_micros
from monitor.types import ITEM, PLACE, TimeColumn
from monitor.units import DAY, HOUR, WEEK

Values: TypeAlias = "pd.Series[Any]"
Pair: TypeAlias = tuple[Any, Any]

MOST_SLICE_VALUES = 20
"""Distinct values of a slice at most: the default of `max_values`."""

MOST_POSITIONS = 1_000
MOST_GRADES = 11
"""Distinct grades at most: a scale from 0 to 10."""

IDS = 200
"""Requests with labels looked up in other tables."""

_RULE = re.compile(r"\s*(\S.*?)=(\d+(?:\.\d+)?)(?=\s|$)")

MOST_OF = 0.5
"""Share of rows or requests from which on a column is taken for what it seems: more often so than not."""

NEARLY_ALL = 0.95
"""Share of lists from which on an event counts as an impression: people seldom want something in every list."""

ZONES = ("Z", "+00:00")
"""What ends the text of a time in UTC."""

PATTERNS = tuple(
    f"%Y-%m-%d{between}%H:%M:%S{fraction}{zone}"
    for between in "T "
    for fraction in ("", ".%f")
    for zone in (*ZONES, "")
)
PAST = 35 * DAY
"""Seconds of the past to read: the 28 days that verdicts need, and a week to judge."""

LIKELY_LAGS = (HOUR, 6 * HOUR, DAY, 3 * DAY, WEEK)
"""Attributions to choose from, seconds."""

QUESTIONS = {
    "rankings.table": "Which table has the lists that were shown?",
    "rankings.item": "Which column is the item?",
    "relevance.events.table": "Several tables have events on shown items. Which one?",
    "relevance.events.type": "Which column is the event type?",
    "relevance.events.rules": "Which events mean that an item was wanted? In the sample: {told}. Write TYPE=GRADE.",
    "relevance.judgments.grade": "Which column is the grade?",
    "relevance.column.grade": "Which column says whether an item was wanted?",
}
for _part in ("rankings", "relevance.events"):
    QUESTIONS |= {
        f"{_part}.time": "Which column of {table} is the time?",
        f"{_part}.time.timezone": (
            "{table}.{column} has no time zone; the newest value is {newest}.{ahead} Which zone is it in?"
        ),
    }
"""What to ask if the values leave it open, by configuration key."""

NAMES = {
    "request": re.compile(r"request|impression|list|auction|serving|query_id|search_id", re.IGNORECASE),
    "item": re.compile(r"item|product|document|doc|title|sku|ad_|object", re.IGNORECASE),
    "query": re.compile(r"query|search|phrase|keyword|term", re.IGNORECASE),
    "version": re.compile(r"version|model|variant|ranker|algorithm", re.IGNORECASE),
    "drawn": re.compile(r"^ab(_|$)|bucket|experiment|variant|cohort|(^|_)(test|arm)(_|$)", re.IGNORECASE),
    "client": re.compile(r"device|platform|client|browser|(^|_)(app|os)(_|$)", re.IGNORECASE),
    "type": re.compile(r"type|event|action|kind", re.IGNORECASE),
    "wanted": re.compile(
        r"click|tap|select|open|view_item|play|watch|listen|stream|read|dwell|download|like|save|share|cart|purchase|order"
        r"|buy|book|apply|contact|subscri|conver",
        re.IGNORECASE,
    ),
    "unwanted": re.compile(r"^un|^dis|not_|remove|delete|hide|skip|block|cancel|refund|return", re.IGNORECASE),
    "time": re.compile(r"serv|shown|occur|event|time|_at$|^ts$|date", re.IGNORECASE),
}
"""What columns are often called in English; asked only between columns whose values fit alike."""

ALL_TABLES = "all of them"


@dataclass(frozen=True)
class Question:
    """What the values leave open.

    Attributes:
        key: of the configuration, as in `rankings.time`.
        options: answers to choose from; empty if any text will do.
        default: the most likely answer; empty if the values rule out what is usual, or will tell it later.
        check: raises InputError for an answer that will not do.
        is_open: False if only `default` is likely: it holds unless another answer is given, and nobody is asked.
    """

    key: str
    text: str
    options: Sequence[str]
    default: str
    check: Callable[[str], object] = str
    is_open: bool = True

    def answered(self, text: str) -> str:
        """The answer that a text gives: itself, or the option whose number, from 1 on, it is.

        Raises:
            InputError: it is none.
        """
        if self.options and text not in self.options:
            if not (text.isdecimal() and 1 <= int(text) <= len(self.options)):
                choices = f"choose one of {', '.join(self.options)}, or its number"
                raise InputError(f"{text!r}: {choices if self.options[1:] else f'only {self.options[0]} fits'}")
            return self.options[int(text) - 1]
        self.check(text)
        return text


Ask = Callable[[Question], str]
"""Returns the answer to a question."""


@dataclass(frozen=True)
class Proposal:
    """A monitor's mapping, as the configuration has it, and the reason of each choice.

    Attributes:
        reasons: key, as in `rankings.position` -> what the values show.
        since: from when on to read, seconds since 1970: what verdicts need before the newest request; None if unknown.
        oldest: time of the oldest request, seconds since 1970; None if unknown.
        depth: items that a list usually has.
    """

    rankings: Mapping[str, Any]
    relevance: Mapping[str, Any]
    slices: Sequence[str]
    reasons: Mapping[str, str]
    since: int | None
    oldest: int | None
    depth: int


def propose(database: Database, tables: Sequence[Table], ask: Ask) -> Proposal:
    """The mapping of the log in `tables`.

    Raises:
        InputError: no table has ranked lists, or nothing labels them.
        SourceError: the database does not answer.
    """
    given: dict[tuple[str, Sequence[str]], str] = {}

    def once(question: Question) -> str:
        key = question.key, tuple(question.options)
        given[key] = given.get(key) or ask(question)
        return given[key]

    try:
        return _Search(database, tables, once).proposal()
    except InputError as error:
        # What is a number inside JSON may be text where events name it.
        with suppress(InputError):
            return _Search(database, tables, once, as_text=True).proposal()
        raise error


@dataclass(frozen=True)
class _Lists:
    """Columns of a table that hold ranked lists: `share` of its rows are in lists whose positions have no gaps."""

    table: Table
    request: str
    position: str
    share: float

    @cached_property
    def shown(self) -> pd.DataFrame:
        """The rows with a request and a position."""
        return self.table.sample[self.table.sample[[self.request, self.position]].notna().all(axis=1)]

    @cached_property
    def items(self) -> list[str]:
        """Columns whose values differ within each list, most likely first."""
        if self.table.items:
            return [ITEM]
        found = columns("item", self.shown, (self.request, self.position))
        return sorted(filter(self._tells_apart, found), key=self.unlikeliness)

    @cached_property
    def times(self) -> list[str]:
        """Columns that may be the time; the only one that tells items apart is none."""
        return columns("time", self.shown, (self.request, self.position, *([] if self.items[1:] else self.items)))

    def unlikeliness(self, item: str) -> tuple[bool, bool, int]:
        """By how little a column seems to be the item: by its name, as a time, by the number of its values."""
        may_be_time = _times(self.shown[item]) is not None
        is_named = NAMES["item"].search(item) and not (may_be_time and NAMES["time"].search(item))
        return not is_named, may_be_time, self.shown[item].nunique()

    def _tells_apart(self, column: str) -> bool:
        """Whether most lists have at least as many values of the column as positions."""
        groups = self.shown[self.shown[column].notna()].groupby(self.request)
        values, places = groups[column].nunique(), groups[self.position].nunique()
        return bool((values >= places)[places > 1].mean() > MOST_OF)


@dataclass(frozen=True)
class _Match:
    """Columns of a table that refer to a key of the lists (request or query) and to items.

    Attributes:
        keys: how many were looked up.
        rows: those whose key was shown; all of these keys.
        asked: (key, item) of each row of the lists with one of these keys.
        hits: (key, item) of each of `rows` that is in `asked`.
    """

    table: Table
    key: str
    item: str
    shown_item: str
    keys: int
    rows: pd.DataFrame = field(repr=False)
    asked: Sequence[Pair] = field(repr=False)
    hits: Sequence[Pair] = field(repr=False)

    @property
    def share(self) -> float:
        """Share of `rows` that are on an item shown."""
        return len(self.hits) / len(self.rows)

    @property
    def covered(self) -> float:
        """Share of the items shown, in the lists it names, that it has."""
        return len(set(self.hits)) / max(1, len(self.asked))


class _Search:
    def __init__(self, database: Database, tables: Sequence[Table], ask: Ask, as_text: bool = False) -> None:
        self.database = database
        self.originals = tables
        self.as_text = as_text
        self.tables = [discovery.flattened(database, table, as_text) for table in tables]
        self.ask = ask
        self.reasons: dict[str, str] = {}
        self.zone = "UTC"  # the likely one: that of the rankings, once known

    def proposal(self) -> Proposal:
        self.lists = lists = self._lists()
        table, request, position = lists.table, lists.request, lists.position
        self.shown = lists.shown
        self.groups = self.shown.groupby(request, sort=False)
        self.constant = self._constant()
        depth = int(self.groups.size().median())
        self.reasons["rankings.request"] = f"{len(self.groups)} lists in the sample, usually of {depth} items"
        self.time = time = self._time("rankings.time", table, self.shown, lists.times, self.constant)
        relevance, item = self._relevance()
        query, version, slices = self._dimensions()
        names = {"request": request, **self._columns_of_items(item), "time": _written(time)}
        rankings = _relation(table, (request, item, position, time.column, query, version, *slices))
        rankings |= names | _given(query=query, model_version=version)
        return Proposal(rankings, relevance, slices, self.reasons, *self._past(), depth)

    # ---- rankings ----------------------------------------------------------------------------------------------

    def _lists(self) -> _Lists:
        tables = [*self.tables, *self._unrolled()]
        looks = (map(look, tables) for look in (_lists_in, self._lists_by_id, partial(_lists_in, once=False)))
        found = next((some for look in looks if (some := [*filter(None, look)])), [])
        found = [one for one in found if one.times] or found
        if not found:
            names = ", ".join(table.title for table in self.tables) or "none"
            raise InputError(
                "no table has ranked lists: rows with a request id and positions 1, 2, 3, … within it, "
                "or one row per request with a list of items; if you show one item at a time, write the configuration "
                f"by hand, with `1 AS position` in a `select:`; examined: {names}{self._lists_of_objects()}"
            )
        by = {lists.table.title: lists for lists in sorted(found, key=lambda one: -one.share)}
        return by[self._choose("rankings.table", list(by))]

    def _lists_by_id(self, table: Table) -> _Lists | None:
        """The most likely columns by whole lists: rows may be stored in any order, so a sample has parts of many."""
        ids = [name for name in table.names if _is_id(table.sample[name])]
        found = [_lists_in(replace(table, sample=self._whole(table, name))) for name in ids]
        return max(filter(None, found), key=lambda lists: lists.share, default=None)

    def _whole(self, table: Table, column: str) -> pd.DataFrame:
        """All rows of some ids in a column."""
        return self._rows_of(table, column, table.sample[column])[1]

    def _rows_of(self, table: Table, column: str, ids: Values) -> tuple[int, pd.DataFrame]:
        """(number of different ids, all rows with these in a column), of so many that no row is left out."""
        keys = ids.dropna().drop_duplicates().tolist()[:IDS]
        while len(rows := rows_with(self.database, table, column, keys)) == discovery.ROWS and len(keys) > 1:
            keys = keys[: len(keys) // 2]
        return len(keys), rows

    def _unrolled(self) -> Iterator[Table]:
        """The tables with a list of items in a column, one row per item."""
        for table in self.tables:
            for name in table.names:
                lists = [found for value in table.sample[name] if (found := as_list(value))]
                of_ids = [found for found in lists if are_ids(found)]  # a few may have nulls or objects
                is_of_items = any(len(found) > 1 for found in of_ids) and len(of_ids) > MOST_OF * len(lists)
                if is_of_items and self.database.sql.unrolls:
                    yield discovery.flat_lists(self.database, table, name, self.as_text)

    def _lists_of_objects(self) -> str:
        """The columns that hold such lists, and the remedy; empty if none do."""
        found = [
            f"{table.title}.{name}"
            for table in self.originals
            for name in table.names
            if any(isinstance(one, dict) for value in table.sample[name] for one in as_list(value) or ())
        ]
        remedy = "map a view with a row per object and its place from 1 on"
        return f"; lists of objects instead of ids: {', '.join(found)}; {remedy}" if found else ""

    def _columns_of_items(self, item: str) -> dict[str, Any]:
        """The keys of items and positions."""
        if self.lists.table.items:
            self.reasons["rankings.items"] = "lists of ids in order"
            return {"items": self.lists.table.items}
        return {"item": item, "position": self._position()}

    def _position(self) -> Any:
        column = self.lists.position
        base = 0 if (self.groups[column].min() == 0).mean() > MOST_OF else 1
        share = f"{self.lists.share:.0%} of the rows"
        self.reasons["rankings.position"] = f"{share} are in lists from {base} on without gaps"
        return {"column": column, "base": 0} if base == 0 else column

    def _constant(self) -> list[str]:
        """Columns with one value in each list."""
        names = [n for n in self.shown.columns if n not in (self.lists.request, self.lists.position)]
        alike = [n for n in names if self.shown[n].map(_is_plain).all() and (self.groups[n].nunique() <= 1).all()]
        return [n for n in alike if self.shown[n].notna().any()]

    def _dimensions(self) -> tuple[str | None, str | None, list[str]]:
        """(query, model version, slices): columns with one value in each list."""
        firsts = self.groups.first()
        names = [n for n in self.constant if n != self.time.column and not _is_only_time(firsts[n])]
        most = min(MOST_SLICE_VALUES, len(firsts) / 5)
        few = [n for n in names if 2 <= firsts[n].nunique() <= most and not _times(firsts[n])]
        version = next((n for n in names if NAMES["version"].search(n)), None)
        others = [n for n in names if n not in few and n != version and _recurs(firsts[n])]
        named = [n for n in others if NAMES["query"].search(n) and _is_text(firsts[n])]
        query = next(iter([*named, *(n for n in others if _is_wording(firsts[n]))]), None)
        # The first is judged value by value; groups that are drawn at random differ in nothing but an experiment.
        drawn, client = NAMES["drawn"].search, NAMES["client"].search  # logging often breaks for one client
        by_use = [(bool(drawn(n)), not client(n), firsts[n].nunique(), n) for n in few if n != version]
        slices = [n for *_, n in sorted(by_use)[:3]]
        return query, version, slices

    # ---- times -------------------------------------------------------------------------------------------------

    def _time(
        self, key: str, table: Table, rows: pd.DataFrame, found: Sequence[str], likely: Collection[str] = ()
    ) -> TimeColumn:
        if not found:
            lacks = f"{table.title}: no column has the time of each row; {key} needs one"
            raise InputError(lacks + self._join_of_times() * (key == "rankings.time"))
        column = self._choose(key, found, [n for n in found if n in likely], table=table.title)
        form, has_zone = _times(rows[column]) or ("native", True)
        if has_zone:
            return TimeColumn(column, form)
        _, newest = discovery.bounds(self.database, table, column)
        facts = {"table": table.title, "column": column, "newest": newest, "ahead": ""}
        time = TimeColumn(column, form, self.zone)
        if ahead := _minutes_ahead(time, newest):
            facts["ahead"] = f" {self.zone} would put it {ahead} min in the future."
        self.zone = self._asked(f"{key}.timezone", (), "" if ahead else self.zone, facts, _zone) or self.zone
        return replace(time, timezone=self.zone)

    def _time_of(self, events: _Match) -> TimeColumn:
        found = columns("time", events.rows, (events.key, events.item))
        return self._time("relevance.events.time", events.table, events.rows, found)

    def _join_of_times(self) -> str:
        """The view that gives the lists the time, and all else, of a table with one row per request; empty if none."""
        lists, own = self.lists.table, self.lists.request
        for table in self.tables:
            for key in table.names if table.title != lists.title else ():
                if not _is_id(table.sample[key]) or not _is_like(table.sample[key], _known(lists.sample[own])):
                    continue
                if not columns("time", table.sample, (key,)):
                    continue
                _, rows = self._rows_of(table, key, lists.sample[own])
                if len(rows) and rows[key].is_unique:
                    with self.database.reading() as reader:
                        quote = reader.dialect.identifier_preparer.quote
                    relations = [one.reading(()) for one in (table, lists)]
                    header, lines = (".".join(map(quote, r.table)) or discovery.quoted(r) for r in relations)
                    kept = [name for name in lists.names if name not in (own, *table.names, ITEM, PLACE)]
                    added = [f"l.{quote(name)}" for name in kept]
                    return (
                        f"; {table.title} has one row with a time for each request, so join both in a view and run "
                        f"init again:\n    CREATE VIEW shown_lists AS SELECT {', '.join(['r.*', *added])} "
                        f"FROM {header} AS r LEFT JOIN {lines} AS l ON l.{quote(own)} = r.{quote(key)};"
                    )
        return ""

    def _past(self) -> tuple[int | None, int | None]:
        """(from when on to read, time of the oldest request), seconds since 1970."""
        ends = discovery.bounds(self.database, self.lists.table, self.time.column)
        if None in ends or (found := to_micros(self.time, ends)).unreadable.any():
            return None, None
        oldest, newest = (int(micros) // MICROS for micros in found.micros)
        return max(oldest, newest - PAST), oldest

    # ---- relevance ---------------------------------------------------------------------------------------------

    def _relevance(self) -> tuple[dict[str, Any], str]:
        """(relevance as in the configuration, column of the items)."""
        own = (self.lists.table.relation, self.lists.table.origin)
        others = [t for t in self.tables if t.relation not in own and (t.origin is None or t.origin not in own)]
        items = [name for name in self.lists.items if name != self.time.column]
        if not items:
            raise InputError(f"{self.lists.table.title}: no column distinguishes the items of a list")
        given = "" if self.lists.table.items else self._asked("rankings.item", items, "", {}, is_open=False)
        items = [given] if given else items
        found = [events for table in others if (events := self._events_in(table, items)) is not None]
        # One kind of event that most items have says that they were shown.
        tables_of_events = [events for events in found if events.covered <= MOST_OF or self._kinds(events)]
        if tables_of_events:
            return self._events(found, tables_of_events)
        for match in filter(None, (self._judgments_in(table, items) for table in others)):
            return {"judgments": self._judgments(match)}, match.shown_item
        likely = [name for name in items if self.lists.unlikeliness(name)[:2] < (True, True)]
        return {"column": self._label()}, given or self._choose("rankings.item", items, likely)

    def _matches(self, table: Table, shown_key: str, pairs: Iterable[tuple[str, str]]) -> Iterator[_Match]:
        """Columns that refer to the lists' `shown_key`, each with the `pairs` of columns of items, there and shown."""
        shown, pairs = self.shown, list(pairs)
        keys = shown[shown_key].dropna().drop_duplicates().tolist()[:IDS]
        for key in table.names:
            if not _is_id(table.sample[key]) or not _is_like(table.sample[key], keys):
                continue
            looked_up, rows = self._rows_of(table, key, shown[shown_key])
            there = shown[shown[shown_key].isin(rows[key])]
            for item, shown_item in pairs if len(rows) else ():
                asked = list(zip(there[shown_key], there[shown_item], strict=True))
                known = set(asked)
                hits = [pair for pair in zip(rows[key], rows[item], strict=True) if pair in known]
                if item != key:
                    yield _Match(table, key, item, shown_item, looked_up, rows, asked, hits)

    def _events_in(self, table: Table, items: Sequence[str]) -> _Match | None:
        """How a table refers to requests and items; None if it does not."""
        ids = [n for n in table.names if _is_id(table.sample[n])]
        likely = [m for m in self._matches(table, self.lists.request, product(ids, items)) if m.share > MOST_OF]
        return max(likely, key=lambda m: (m.share, m.item == m.shown_item), default=None)

    def _judgments_in(self, table: Table, items: Sequence[str]) -> _Match | None:
        """The first columns of a table that grade items of a query; None if there are none."""
        pairs = [(judged, item) for item, judged in product(items, table.names)]
        found = (match for query in self.constant for match in self._matches(table, query, pairs))
        are_judged = (m for m in found if len(m.hits) > MOST_OF * min(len(set(m.asked)), len(m.rows)))
        return next((m for m in are_judged if columns("grade", m.rows, (m.key, m.item))), None)

    def _judgments(self, found: _Match) -> dict[str, Any]:
        grade = self._choose("relevance.judgments.grade", columns("grade", found.rows, (found.key, found.item)))
        most = float(pd.to_numeric(found.table.sample[grade]).max())
        names = {"query": found.key, "item": found.item, "grade": grade}
        return {
            **_relation(found.table, names.values()),
            **names,
            "max_grade": int(most) if most == int(most) else most,
        }

    def _label(self) -> dict[str, Any]:
        names = columns("grade", self.shown, (self.lists.position, self.lists.request, *self.constant))
        if not names or self.lists.table.items:
            raise InputError(
                f"{self.lists.table.title} has the lists, but nothing says which items were wanted: no table with "
                "events that name a request and an item shown, none with judgments of a query and an item, and no "
                "column with a grade; rankmon needs one of them"
            )
        # Nothing tells items apart by a grade that all of them have: most labels are 0.
        with_none = [n for n in names if (pd.to_numeric(self.shown[n].dropna().map(float)) == 0).any()]
        grade = self._choose("relevance.column.grade", names, with_none)
        return {"grade": grade, "max_grade": int(pd.to_numeric(self.shown[grade].dropna().map(float)).max()) or 1}

    # ---- events ------------------------------------------------------------------------------------------------

    def _events(self, found: list[_Match], likely: list[_Match]) -> tuple[dict[str, Any], str]:
        """(relevance, column of the items shown) from events, as `_relevance` returns them."""
        by, titles = {one.table.title: one for one in found}, [one.table.title for one in likely]
        chosen = self._choose("relevance.events.table", list(by), [ALL_TABLES, *titles] if likely[1:] else titles)
        if chosen == ALL_TABLES:
            return {"events": self._joined(likely)}, likely[0].shown_item
        one = by[chosen]
        time = self._time_of(one)
        kinds = self._kinds(one)
        texts = columns("type", one.table.sample, (one.key, one.item))
        kind = self._choose("relevance.events.type", texts, kinds) if kinds else None
        rules = [{"grade": 1}] if kind is None else self._ruled(*self._wanted(one, kind))
        recipe = _given(request=one.key, item=one.item, type=kind, time=_written(time), rules=rules)
        relation = _relation(one.table, (one.key, one.item, time.column, kind))
        counted = [one.rows] if kind is None else [one.rows[one.rows[kind] == name] for name in _types(rules)]
        attribution = self._attribution([self._lags(one.key, time, rows) for rows in (*counted, one.rows)])
        return {"events": relation | recipe | {"attribution": attribution}}, one.shown_item

    def _joined(self, found: list[_Match]) -> dict[str, Any]:
        """Events of several tables as one; the type of each is its own, or else its table."""
        times, kinds = list(map(self._time_of, found)), [next(iter(self._kinds(one)), None) for one in found]
        if len({(time.format, time.timezone) for time in times}) > 1:
            raise InputError("the event tables have different time formats; choose one table, or join them in a view")
        with self.database.reading() as reader:
            dialect = reader.dialect
        parts, rulings, lags = list[str](), list[tuple[list[str], str, bool]](), list[tuple[pd.Series, Floats]]()
        for one, time, kind in zip(found, times, kinds, strict=True):
            title = one.table.title
            own = sa.literal(title) if kind is None else sa.cast(sa.literal_column(kind), sa.String)  # may be an enum
            written = own.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
            parts.append(
                f"SELECT {one.key} AS request_id, {one.item} AS item_id, {written} AS type, "
                f"{time.column} AS happened_at FROM {discovery.quoted(one.table.relation)} AS t"
            )
            rulings.append(([title], "", False) if kind is None else self._wanted(one, kind))
            types = pd.Series(title, one.rows.index) if kind is None else one.rows[kind]
            lags.append((types, self._lags(one.key, time, one.rows)))
        wanted, told, is_open = zip(*rulings, strict=True)
        rules = self._ruled(list(dict.fromkeys(chain(*wanted))), "; ".join(filter(None, told)), any(is_open))
        counted = [seen[(types == name).to_numpy()] for name in _types(rules) for types, seen in lags]
        attribution = self._attribution([*counted, np.concatenate([seen for _, seen in lags])])
        time = _written(replace(times[0], column="happened_at"))
        names = {"request": "request_id", "item": "item_id", "type": "type", "time": time}
        return {"select": " UNION ALL ".join(parts), **names, "rules": rules, "attribution": attribution}

    def _kinds(self, events: _Match) -> list[str]:
        """Columns that may be the event type, most likely first; numbers in text, if there is nothing else."""
        sample = events.table.sample
        found = columns("type", sample, (events.key, events.item, *self.constant))
        found = [name for name in found if sample[name].nunique() > 1] or found
        return [name for name in found if not all(map(str.isdigit, _known(sample[name])))] or found

    def _wanted(self, events: _Match, kind: str) -> tuple[list[str], str, bool]:
        """(types that mean that an item was wanted, how often each came, whether to ask)."""
        counts = events.rows[kind].value_counts()
        shares = (events.rows.groupby(kind)[events.key].nunique() / events.keys).to_dict()
        # What most items or nearly all lists have says that they were shown, and not that they were wanted.
        often = [name for name, n in counts.items() if n > MOST_OF * len(events.asked)]
        seen = [name for name in counts.index if shares[name] >= NEARLY_ALL and not _is_wanted(str(name))]
        seen = seen if len({*often, *seen}) < len(counts) else []
        wanted = [name for name in counts.index if name not in {*often, *seen}] or list(counts.index)
        told = ", ".join(f"{name} {n} (in {shares[name]:.0%} of the lists)" for name, n in counts.items())
        if left := [str(name) for name in counts.index if name not in wanted]:
            told += f"; without {', '.join(left)}, as nearly every list has it: it says what was shown"
        is_open = (bool(seen) or len(wanted) > 1) and not all(_is_wanted(str(name)) for name in wanted)
        return wanted, told, is_open

    def _ruled(self, wanted: Sequence[str], told: str, is_open: bool) -> list[dict[str, Any]]:
        """The rules: by default, all `wanted` types are worth the same."""
        if told:
            worth = "raise the grade of events that are worth more"
            self.reasons["relevance.events.rules"] = f"in the sample: {told}; {worth}"
        likely = " ".join(f"{name}=1" for name in wanted)
        answer = self._asked("relevance.events.rules", (), likely, {"told": told}, rules_of, is_open)
        return [{"type": name, "grade": 1} for name in wanted] if answer == likely else rules_of(answer)

    def _lags(self, key: str, time: TimeColumn, events: pd.DataFrame) -> Floats:
        """Seconds from the serving of their request to each of some events."""
        served = self.groups[self.time.column].min().reindex(events[key])
        happened = to_micros(time, events[time.column].tolist()).micros
        return (happened - to_micros(self.time, served.tolist()).micros) / MICROS

    def _attribution(self, lags: Sequence[Floats]) -> int:
        """Seconds in which 99 of 100 sampled events of each type that counts come; at most the longest likely.

        `lags`: of each type, and last of all events, for a sample in which none counts. A few late purchases count as
        much as many clicks.
        """
        each = [float(np.quantile(one, 0.99)) for one in lags[:-1] if len(one)]
        late = max(each) if each else float(np.quantile(lags[-1], 0.99)) if len(lags[-1]) else 0.0
        of_each = " of each type" if each[1:] else ""
        which = f"events{of_each} that count" if each else "events, none of which counts,"
        within = lasting(max(round(late), 1))
        is_mixed = bool(each) and min(each) < DAY < late
        waits = "; verdicts wait as long: a second monitor on the early ones alone pages sooner" if is_mixed else ""
        self.reasons["relevance.events.attribution"] = f"99 % of the sampled {which} happen within {within}{waits}"
        return next((likely for likely in LIKELY_LAGS if late <= likely), LIKELY_LAGS[-1])

    # ---- questions ---------------------------------------------------------------------------------------------

    def _choose(self, key: str, options: Sequence[str], likely: Sequence[str] = (), **facts: object) -> str:
        """The answer to a question; the only option, or the only `likely` one, unless another is given."""
        likely = likely or options
        every = [*likely, *(name for name in options if name not in likely)]
        return self._asked(key, every, likely[0], facts, is_open=len(likely) > 1)

    def _asked(
        self,
        key: str,
        options: Sequence[str],
        default: str,
        facts: Mapping[str, object],
        check: Callable[[str], object] = str,
        is_open: bool = True,
    ) -> str:
        return self.ask(Question(key, QUESTIONS[key].format(**facts), options, default, check, is_open))


def _zone(text: str) -> ZoneInfo:
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(f"{text!r} is not a time zone; write e.g. UTC or Europe/Berlin") from None


def _minutes_ahead(time: TimeColumn, value: Any) -> int:
    """Minutes that a value lies in the future; 0 if it does not, by more than clocks differ."""
    found = to_micros(time, [value])
    ahead = int(found.micros[0]) / MICROS - clock()
    return 0 if found.unreadable.any() or ahead <= CLOCK_TOLERANCE else round(ahead / 60)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _relation(table: Table, used: Iterable[str | None]) -> dict[str, Any]:
    relation = table.reading([name for name in used if name])
    return {"select": relation.select} if relation.select else {"table": ".".join(relation.table)}


def _written(time: TimeColumn) -> Any:
    more = _given(format=None if time.format == "native" else time.format, timezone=time.timezone)
    return {"column": time.column, **more} if more else time.column


def rules_of(text: str) -> list[dict[str, Any]]:
    """The rules in an answer. Raises InputError.

    >>> rules_of("add to cart=2 click=0.5")
    [{'type': 'add to cart', 'grade': 2}, {'type': 'click', 'grade': 0.5}]
    """
    if (left := _RULE.sub("", text).strip()) or not text.strip():
        raise InputError(f"{left!r} is not a rule; write TYPE=GRADE, separated by spaces, e.g. click=1 purchase=3")
    return [{"type": n, "grade": float(grade) if "." in grade else int(grade)} for n, grade in _RULE.findall(text)]


def _types(rules: Iterable[Mapping[str, Any]]) -> list[str]:
    return [rule["type"] for rule in rules]


def _is_wanted(event: str) -> bool:
    return NAMES["wanted"].search(event) is not None and NAMES["unwanted"].search(event) is None


def _lists_in(table: Table, once: bool = True) -> _Lists | None:
    """The most likely columns; unless `once`, a list may have a position twice, e.g. if it is logged twice."""
    frame = table.sample
    found = [
        _Lists(table, request, position, _share_in_order(frame, request, position, once))
        for position in columns("position", frame)
        for request in columns("request", frame, (position,))
        # A number in the range of times is an id if another column has the time.
        if not _times(frame[request]) or columns("time", frame, (request, position))
    ]
    # Of columns that group rows alike, an id is the one with most values, and rather not a time.
    likely = [one for one in found if one.share > MOST_OF]

    def likeliness(one: _Lists) -> tuple[float, int, bool]:
        values = frame[one.request]
        return round(one.share, 2), values.nunique(), _times(values) is None

    return max(likely, key=likeliness, default=None)


# ---- what the values of a column can be ------------------------------------------------------------------------------


def _known(values: Values) -> list[Any]:
    return [v for v in values if v is not None and v == v]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, list | tuple) and as_object(value) is None and not hasattr(value, "__array__")


def _is_text(values: Values) -> bool:
    known = _known(values)
    return bool(known) and all(isinstance(v, str) for v in known)


def _is_id(values: Values) -> bool:
    """Texts, whole numbers or UUIDs; not numbers with a fraction, truth values, times or lists."""
    known = _known(values)
    return bool(known) and all(_is_plain(v) and not isinstance(v, float | bool | datetime) for v in known)


def _is_like(values: Values, others: Sequence[Any]) -> bool:
    """Whether the values are of the type of `others`."""
    return {type(v) for v in _known(values)} <= {type(v) for v in others}


def _are_positions(values: Values) -> bool:
    known = _known(values)
    is_whole = all(not isinstance(v, bool | str) and _is_number(v) and v == int(v) for v in known)
    return bool(known) and is_whole and min(known) in (0, 1, 2) and 1 < max(known) <= MOST_POSITIONS


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and _is_plain(value)


def _share_in_order(frame: pd.DataFrame, request: str, position: str, once: bool) -> float:
    """Share of the rows in a list of several whose positions have no gap, and are distinct if `once`."""
    rows = frame[[request, position]].dropna()
    groups = rows.astype({position: float}).groupby(request)[position]
    span, distinct, size = groups.max() - groups.min() + 1, groups.nunique(), groups.size()
    is_in_order = (distinct > 1) & (span == distinct) & ((size == distinct) | (not once))
    return float(size[is_in_order].sum() / max(1, len(rows)))


def _times(values: Values) -> tuple[str, bool] | None:
    """(format as in the configuration, whether the values say their zone); None if they are no times."""
    known = _known(values)
    if not known:
        return None
    if all(isinstance(v, datetime) for v in known):
        return "native", all(v.tzinfo is not None for v in known)
    if all(_is_number(v) and not isinstance(v, bool) for v in known):
        likely = (f for f, n in PER_SECOND.items() if all(CREDIBLE[0] * n <= v <= CREDIBLE[1] * n for v in known))
        return next(((form, True) for form in likely), None)
    if _is_text(values):
        return next(((p, p.endswith(ZONES)) for p in PATTERNS if all(_is_written(v, p) for v in known)), None)
    return None


def _is_only_time(values: Values) -> bool:
    """Whether the values are times as nothing else is written; numbers in the range of times may be ids."""
    found = _times(values)
    return found is not None and found[0] not in PER_SECOND


def _is_written(value: str, pattern: str) -> bool:
    try:
        datetime.strptime(value, pattern)  # noqa: DTZ007  only the form is asked
    except ValueError:
        return False
    return True


def _recurs(values: Values) -> bool:
    """Whether there are several values, and some more than once; lists of items are none that people ask for."""
    return values.nunique() > 1 and bool(values.duplicated().any()) and not any(as_list(v) for v in values)


def _is_wording(values: Values) -> bool:
    """Texts with more letters than digits: what people type, rather than ids."""
    text = "".join(_known(values)) if _is_text(values) else ""
    return sum(c.isalpha() for c in text) > sum(c.isdigit() for c in text)


def _are_grades(values: Values) -> bool:
    """Few numbers from 0 on, or truth values."""
    known = _known(values)
    are_few = bool(known) and all(_is_number(v) for v in known) and len(set(known)) <= MOST_GRADES
    return are_few and min(known) >= 0 and max(known) <= MOST_GRADES


def _is_kind(values: Values) -> bool:
    return _is_text(values) and values.nunique() <= MOST_SLICE_VALUES and not _times(values)


FITS: Mapping[str, Callable[[Values], Any]] = {
    "request": lambda values: _is_id(values) and not _is_only_time(values) and values.duplicated().any(),
    "position": _are_positions,
    "item": lambda values: _is_id(values) and not _is_only_time(values),
    "time": _times,
    "type": _is_kind,
    "grade": _are_grades,
}
"""Whether a column's values are such as its role has."""


def columns(role: str, rows: pd.DataFrame, but: Collection[str] = ()) -> list[str]:
    """Columns whose values fit a role; first those that are often called so."""
    found = [name for name in rows.columns if name not in but and FITS[role](rows[name])]
    return sorted(found, key=lambda name: not (role in NAMES and NAMES[role].search(name)))
