"""Proposes how to read a log that nobody has described: which table and column is what, by the values in them.

Names decide only where values do not, so a log in any language will do. What stays unsure is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.series.readings import MICROS
from monitor.source import discovery
from monitor.source.discovery import Table, as_list, rows_with
from monitor.source.engine import Database
from monitor.source.times import CREDIBLE, PER_SECOND, to_micros
from monitor.types import TimeColumn

MOST_SLICE_VALUES = 20
"""Distinct values of a slice at most: the default of `max_values`."""

MOST_POSITIONS = 1_000
MOST_GRADES = 11
"""Distinct grades at most: a scale from 0 to 10."""

IDS = 200
"""Requests whose labels are looked up in other tables."""

MOST_OF = 0.5
"""Share of rows or requests from which on a column is taken for what it seems: more often so than not."""

PATTERNS = tuple(
    f"%Y-%m-%d{between}%H:%M:%S{fraction}{zone}" for between in "T " for fraction in ("", ".%f") for zone in ("Z", "")
)
PAST = 35 * 86_400
"""Seconds of the past to read: the 28 days that verdicts need, and a week to judge."""

LIKELY_LAGS = (3_600, 6 * 3_600, 86_400, 3 * 86_400, 7 * 86_400)
"""Attributions to choose from, seconds."""

NAMES = {
    "request": re.compile(r"request|impression|list|auction|serving|query_id|search_id", re.IGNORECASE),
    "item": re.compile(r"item|product|document|doc|title|sku|ad_|object", re.IGNORECASE),
    "query": re.compile(r"query|search|phrase|keyword|term", re.IGNORECASE),
    "version": re.compile(r"version|model|variant|ranker|algorithm", re.IGNORECASE),
    "type": re.compile(r"type|event|action|kind", re.IGNORECASE),
    "wanted": re.compile(
        r"click|tap|select|open|view_item|play|watch|like|save|cart|purchase|order|buy|book|conver", re.IGNORECASE
    ),
    "time": re.compile(r"serv|shown|occur|event|time|_at$|^ts$|date", re.IGNORECASE),
}
"""What columns are often called in English; asked only between columns whose values fit alike."""


@dataclass(frozen=True)
class Question:
    """What the values leave open.

    Attributes:
        key: of the configuration, as in `rankings.time`.
        options: answers to choose from; empty if any text will do.
        default: the likeliest answer.
    """

    key: str
    text: str
    options: Sequence[str]
    default: str


Ask = Callable[[Question], str]
"""Returns the answer to a question."""


@dataclass(frozen=True)
class Proposal:
    """A monitor's mapping, as the configuration has it, and the reason of each choice.

    Attributes:
        reasons: key, as in `rankings.position` -> what the values show.
        since: from when on to read, seconds since 1970: what verdicts need before the newest request; None if unknown.
        depth: items that a list usually has.
    """

    rankings: Mapping[str, Any]
    relevance: Mapping[str, Any]
    slices: Sequence[str]
    reasons: Mapping[str, str]
    since: int | None
    depth: int


def propose(database: Database, tables: Sequence[Table], ask: Ask) -> Proposal:
    """The mapping of the log in `tables`.

    Raises:
        InputError: no table holds ranked lists, or nothing labels them.
        SourceError: the database does not answer.
    """
    return _Search(database, tables, ask).proposal()


@dataclass(frozen=True)
class _Lists:
    """Columns of a table that hold ranked lists: `share` of its rows are in lists whose positions have no gaps."""

    table: Table
    request: str
    position: str
    share: float

    @property
    def rows(self) -> pd.DataFrame:
        frame = self.table.sample
        return frame[frame[self.request].notna() & frame[self.position].notna()]

    @property
    def base(self) -> int:
        firsts = self.rows.groupby(self.request)[self.position].min()
        return 0 if (firsts == 0).mean() > MOST_OF else 1


@dataclass(frozen=True)
class _EventTable:
    """A table with events.

    Attributes:
        share: of its rows with a request shown that are on an item shown in it.
        covered: share of the items shown, in the requests it names, that it has.
    """

    table: Table
    request: str
    item: str
    shown_item: str
    share: float
    covered: float
    rows: pd.DataFrame = field(repr=False)


class _Search:
    def __init__(self, database: Database, tables: Sequence[Table], ask: Ask) -> None:
        self.database = database
        self.originals = tables
        self.tables = [discovery.flattened(database, table) for table in tables]
        self.ask = ask
        self.reasons: dict[str, str] = {}

    def proposal(self) -> Proposal:
        self.lists = self._lists()
        request = self.lists.request
        self.shown = self.lists.rows
        self.groups = self.shown.groupby(request, sort=False)
        sizes = self.groups.size()
        self.reasons["rankings.request"] = f"{len(sizes)} lists in the sample, usually of {int(sizes.median())} items"
        self.time = time = self._time("rankings.time", self.lists.table, self.shown, self._constant())
        relevance, item = self._relevance()
        query, version, slices = self._dimensions(time.column)
        used = (request, item, self.lists.position, time.column, query, version, *slices)
        rankings: dict[str, Any] = {
            **_relation(self.lists.table, used),
            "request": request,
            "item": item,
            "position": self._position(),
            "time": _written(time),
        }
        rankings |= {"query": query} if query else {}
        rankings |= {"model_version": version} if version else {}
        return Proposal(rankings, relevance, slices, self.reasons, self._since(time), int(sizes.median()))

    # ---- rankings ----------------------------------------------------------------------------------------------

    def _lists(self) -> _Lists:
        tables = [*self.tables, *self._unrolled()]
        strictly = [best for table in tables if (best := self._lists_in(table)) is not None]
        found = strictly or [best for table in tables if (best := self._lists_in(table, once=False)) is not None]
        if not found:
            names = ", ".join(table.title for table in self.tables) or "none"
            raise InputError(
                "no table holds ranked lists, which are rows with a request's id and positions 1, 2, 3, … within it, "
                f"or one row per request with a list of items; looked at: {names}"
            )
        by = {lists.table.title: lists for lists in sorted(found, key=lambda one: -one.share)}
        text = "Which table holds the lists that were shown?"
        return by[self._choose("rankings.table", text, list(by))]

    def _unrolled(self) -> Iterator[Table]:
        """The tables with a list of items in a column, one row per item."""
        for table in self.originals:
            for name in table.names:
                lists = [found for value in table.sample[name] if (found := as_list(value)) is not None]
                is_of_items = any(len(found) > 1 for found in lists) and all(_are_ids(found) for found in lists)
                if is_of_items and self.database.sql.lists:
                    yield discovery.unrolled(self.database, table, name)

    def _lists_in(self, table: Table, once: bool = True) -> _Lists | None:
        """The likeliest columns; unless `once`, a list may have a position twice, as where it is logged twice."""
        frame, found = table.sample, []
        for position in [name for name in table.names if _are_positions(frame[name])]:
            for request in table.names:
                is_id = request != position and _is_id(frame[request]) and not _times(frame[request])
                if is_id and frame[request].duplicated().any():
                    share = _share_in_order(frame, request, position, once)
                    found.append(_Lists(table, request, position, share))
        likely = [one for one in found if one.share > MOST_OF]
        return max(likely, key=lambda one: (round(one.share, 2), *self._likeness(one)), default=None)

    def _likeness(self, lists: _Lists) -> tuple[int, bool]:
        """Of columns that group rows alike, an id is the one with most values; a time is none."""
        values = lists.table.sample[lists.request]
        return values.nunique(), bool(NAMES["request"].search(lists.request))

    def _position(self) -> Any:
        base, column = self.lists.base, self.lists.position
        self.reasons["rankings.position"] = (
            f"{self.lists.share:.0%} of the rows are in lists without a gap from {base} on"
        )
        return {"column": column, "base": 0} if base == 0 else column

    def _items(self) -> list[str]:
        """Columns whose values differ within each list, the likeliest first."""
        names = [n for n in self.shown.columns if n not in (self.lists.request, self.lists.position)]
        ids = [n for n in names if _is_id(self.shown[n]) and not _times(self.shown[n])]
        apart = [n for n in ids if self._tells_apart(n)]
        return sorted(apart, key=lambda n: (not NAMES["item"].search(n), self.shown[n].nunique()))

    def _tells_apart(self, column: str) -> bool:
        """Whether most lists have at least as many values of the column as positions."""
        groups = self.shown[self.shown[column].notna()].groupby(self.lists.request)
        values, places = groups[column].nunique(), groups[self.lists.position].nunique()
        return bool((values >= places)[places > 1].mean() > MOST_OF)

    def _constant(self) -> list[str]:
        """Columns with one value in each list."""
        names = [n for n in self.shown.columns if n not in (self.lists.request, self.lists.position)]
        alike = [n for n in names if self.shown[n].map(_is_plain).all() and (self.groups[n].nunique() <= 1).all()]
        return [n for n in alike if self.shown[n].notna().any()]

    def _dimensions(self, time: str) -> tuple[str | None, str | None, list[str]]:
        """(query, model version, slices): columns with one value in each list."""
        firsts = self.groups.first()
        names = [n for n in self._constant() if n != time and not _times(firsts[n])]
        few = [n for n in names if 2 <= firsts[n].nunique() <= min(MOST_SLICE_VALUES, len(firsts) / 5)]
        version = next((n for n in names if NAMES["version"].search(n) and n != self.lists.request), None)
        others = [n for n in names if n not in few and n != version and firsts[n].duplicated().any()]
        named = [n for n in others if NAMES["query"].search(n) and _is_text(firsts[n])]
        query = next(iter([*named, *(n for n in others if _is_wording(firsts[n]))]), None)
        slices = sorted((n for n in few if n != version), key=lambda n: firsts[n].nunique())[:3]
        return query, version, slices

    # ---- times -------------------------------------------------------------------------------------------------

    def _time(self, key: str, table: Table, rows: pd.DataFrame, likely: Collection[str]) -> TimeColumn:
        found = {name: shape for name in rows.columns if (shape := _times(rows[name]))}
        if not found:
            raise InputError(f"{table.title}: no column holds the time of each row; {key} needs one")
        best = [name for name in found if name in likely] or list(found)
        best.sort(key=lambda name: not NAMES["time"].search(name))
        column = self._choose(key, f"Which column of {table.title} is the time?", best)
        form, has_zone = found[column]
        return TimeColumn(column, form, None if has_zone else self._zone(key, table, column))

    def _zone(self, key: str, table: Table, column: str) -> str:
        _, newest = discovery.bounds(self.database, table, column)
        text = f"{table.title}.{column} names no time zone; the newest value is {newest}. Which zone is it in?"
        return self.ask(Question(f"{key}.timezone", text, (), "UTC"))

    def _since(self, time: TimeColumn) -> int | None:
        ends = discovery.bounds(self.database, self.lists.table, time.column)
        if None in ends or (found := to_micros(time, ends)).unreadable.any():
            return None
        oldest, newest = (int(micros) // MICROS for micros in found.micros)
        return max(oldest, newest - PAST)

    # ---- relevance ---------------------------------------------------------------------------------------------

    def _relevance(self) -> tuple[dict[str, Any], str]:
        """(relevance as in the configuration, column of the items)."""
        own = (self.lists.table.relation, self.lists.table.origin)
        others = [t for t in self.tables if t.relation not in own and (t.origin is None or t.origin not in own)]
        found = [events for table in others if (events := self._events_in(table)) is not None]
        # One kind of event that most items have says that they were shown.
        tables_of_events = [events for events in found if events.covered <= MOST_OF or self._kinds(events)]
        if tables_of_events:
            return {"events": self._events(tables_of_events)}, tables_of_events[0].shown_item
        items = self._items()
        if not items:
            raise InputError(f"{self.lists.table.title}: no column tells the items of a list apart")
        judgments = (self._judgments_in(table, items) for table in others)
        for recipe, item in filter(None, judgments):
            return {"judgments": recipe}, item
        return {"column": self._label()}, self._choose("rankings.item", "Which column is the item?", items)

    def _events_in(self, table: Table) -> _EventTable | None:
        """How a table refers to requests and items; None if it does not."""
        ids, found = self.shown[self.lists.request].drop_duplicates().tolist()[:IDS], []
        for request in table.names:
            if not _is_id(table.sample[request]) or not _is_like(table.sample[request], ids):
                continue
            rows = rows_with(self.database, table, request, ids)
            ids_there = [n for n in table.names if n != request and _is_id(table.sample[n])] if len(rows) else []
            for item in ids_there:
                for shown_item in self._items():
                    pairs = set(zip(self.shown[self.lists.request], self.shown[shown_item], strict=True))
                    hits = [pair for pair in zip(rows[request], rows[item], strict=True) if pair in pairs]
                    asked = self.shown[self.lists.request].isin(rows[request]).sum()
                    covered = len(set(hits)) / max(1, asked)
                    found.append(_EventTable(table, request, item, shown_item, len(hits) / len(rows), covered, rows))
        likely = [one for one in found if one.share > MOST_OF]
        return max(likely, key=lambda one: (one.share, one.item == one.shown_item), default=None)

    def _events(self, found: list[_EventTable]) -> dict[str, Any]:
        every, titles = "all of them", [one.table.title for one in found]
        text = "Several tables hold events on what was shown. Which one?"
        chosen = self._choose("relevance.events.table", text, [every, *titles] if found[1:] else titles)
        if chosen == every:
            return self._joined(found)
        one = found[titles.index(chosen)]
        time = self._time("relevance.events.time", one.table, one.rows, ())
        kind = self._type(one)
        rules = self._rules(one, kind)
        return {
            **_relation(one.table, (one.request, one.item, time.column, kind)),
            "request": one.request,
            "item": one.item,
            **({"type": kind} if kind else {}),
            "time": _written(time),
            "rules": rules,
            "attribution": self._attribution(one, time),
        }

    def _joined(self, found: list[_EventTable]) -> dict[str, Any]:
        """Events of several tables as one; the type of each is its table."""
        times = [self._time(f"relevance.events.{one.table.title}.time", one.table, one.rows, ()) for one in found]
        if len({(time.format, time.timezone) for time in times}) > 1:
            raise InputError(
                "the tables of events write times in different ways; choose one table, or join them in a view"
            )
        parts = [
            f"SELECT {one.request} AS request_id, {one.item} AS item_id, '{one.table.title}' AS type, "
            f"{time.column} AS happened_at FROM {discovery.quoted(one.table.relation)} AS t"
            for one, time in zip(found, times, strict=True)
        ]
        time = TimeColumn("happened_at", times[0].format, times[0].timezone)
        attribution = max((self._attribution(*pair) for pair in zip(found, times, strict=True)), key=LIKELY_LAGS.index)
        rules = [{"type": one.table.title, "grade": 1} for one in found]
        return {
            "select": " UNION ALL ".join(parts),
            "request": "request_id",
            "item": "item_id",
            "type": "type",
            "time": _written(time),
            "rules": rules,
            "attribution": attribution,
        }

    def _kinds(self, events: _EventTable) -> list[str]:
        """Columns that may be the type of an event, the likeliest first."""
        rows = events.table.sample
        names = [n for n in rows.columns if n not in (events.request, events.item, *self._constant())]
        kinds = [
            n for n in names if _is_text(rows[n]) and rows[n].nunique() <= MOST_SLICE_VALUES and not _times(rows[n])
        ]
        return sorted(kinds, key=lambda n: not NAMES["type"].search(n))

    def _type(self, events: _EventTable) -> str | None:
        kinds = self._kinds(events)
        return self._choose("relevance.events.type", "Which column is the type of an event?", kinds) if kinds else None

    def _rules(self, events: _EventTable, kind: str | None) -> list[dict[str, Any]]:
        if kind is None:
            return [{"grade": 1}]
        shown = len(self.shown[self.shown[self.lists.request].isin(events.rows[events.request])])
        counts = events.rows[kind].value_counts()
        # What nearly every item has says that it was shown, and not that it was wanted.
        wanted = [name for name, n in counts.items() if n <= MOST_OF * shown] or list(counts.index)
        told = ", ".join(f"{name} {n}" for name, n in counts.items())
        self.reasons["relevance.events.rules"] = f"in the sample: {told}; raise the grade of what is worth more"
        likely = " ".join(f"{name}=1" for name in wanted)
        if len(wanted) > 1 and not all(NAMES["wanted"].search(str(name)) for name in wanted):
            text = f"Which events say that an item was wanted? In the sample: {told}."
            likely = self.ask(Question("relevance.events.rules", text, (), likely))
        return [_rule(part) for part in likely.split()]

    def _attribution(self, events: _EventTable, time: TimeColumn) -> int:
        """Seconds in which 99 of 100 sampled events come after their serving; at most the longest likely."""
        served = self.groups[self.time.column].min().reindex(events.rows[events.request])
        happened = to_micros(time, events.rows[time.column].tolist()).micros
        lags = (happened - to_micros(self.time, served.tolist()).micros) / MICROS
        late = float(np.quantile(lags, 0.99)) if len(lags) else 0.0
        self.reasons["relevance.events.attribution"] = f"99 % of the sampled events come within {late:,.0f} s"
        return next((likely for likely in LIKELY_LAGS if late <= likely), LIKELY_LAGS[-1])

    def _judgments_in(self, table: Table, items: Sequence[str]) -> tuple[dict[str, Any], str] | None:
        for query in self._constant():
            values = self.shown[query].dropna().drop_duplicates().tolist()[:IDS]
            for column in table.names:
                if not _is_id(table.sample[column]) or not _is_like(table.sample[column], values):
                    continue
                rows = rows_with(self.database, table, column, values)
                known = set(rows[column])
                for item in items:
                    asked = self.shown[self.shown[query].isin(known)]
                    pairs = set(zip(asked[query], asked[item], strict=True))
                    for judged in table.names if pairs and len(rows) else ():
                        hits = sum(pair in pairs for pair in zip(rows[column], rows[judged], strict=True))
                        grades = [g for g in _grades(rows) if g not in (column, judged)]
                        if judged != column and grades and hits > MOST_OF * min(len(pairs), len(rows)):
                            grade = self._choose("relevance.judgments.grade", "Which column is the grade?", grades)
                            most = float(pd.to_numeric(table.sample[grade]).max())
                            names = {"query": column, "item": judged, "grade": grade}
                            found = {**_relation(table, names.values()), **names}
                            return {**found, "max_grade": int(most) if most == int(most) else most}, item
        return None

    def _label(self) -> dict[str, Any]:
        names = [
            n for n in _grades(self.shown) if n not in (self.lists.position, self.lists.request, *self._constant())
        ]
        if not names:
            raise InputError(
                f"{self.lists.table.title} holds the lists, but nothing says which items were wanted: no table with "
                "events that name a request and an item shown, none with judgments of a query and an item, and no "
                "column with a grade; rankmon needs one of them"
            )
        grade = self._choose("relevance.column.grade", "Which column says whether the item was wanted?", names)
        return {"grade": grade, "max_grade": int(pd.to_numeric(self.shown[grade].dropna().map(float)).max()) or 1}

    # ---- in common ---------------------------------------------------------------------------------------------

    def _choose(self, key: str, text: str, options: Sequence[str]) -> str:
        """The only option, or the answer to a question."""
        return options[0] if len(options) == 1 else self.ask(Question(key, text, options, options[0]))


def _relation(table: Table, used: Collection[str | None]) -> dict[str, Any]:
    relation = table.reading([name for name in used if name])
    return {"select": relation.select} if relation.select else {"table": ".".join(relation.table)}


def _written(time: TimeColumn) -> Any:
    more = {"format": time.format} if time.format != "native" else {}
    more |= {"timezone": time.timezone} if time.timezone else {}
    return {"column": time.column, **more} if more else time.column


def _rule(text: str) -> dict[str, Any]:
    name, _, grade = text.rpartition("=")
    try:
        return {"type": name, "grade": float(grade) if "." in grade else int(grade)}
    except ValueError:
        raise InputError(f"{text!r} is no rule; write TYPE=GRADE, as in click=1") from None


# ---- what the values of a column can be ------------------------------------------------------------------------------


def _known(values: pd.Series[Any]) -> list[Any]:
    return [v for v in values if v is not None and v == v]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, list | dict | tuple) and not hasattr(value, "__array__")


def _is_text(values: pd.Series[Any]) -> bool:
    known = _known(values)
    return bool(known) and all(isinstance(v, str) for v in known)


def _is_id(values: pd.Series[Any]) -> bool:
    """Texts, whole numbers or UUIDs; not numbers with a fraction, truth values, times or lists."""
    known = _known(values)
    return bool(known) and all(_is_plain(v) and not isinstance(v, float | bool | datetime) for v in known)


def _are_ids(values: Sequence[Any]) -> bool:
    return all(isinstance(v, str | int) and not isinstance(v, bool) for v in values)


def _is_like(values: pd.Series[Any], others: Sequence[Any]) -> bool:
    """Whether the values are of the type of `others`."""
    return {type(v) for v in _known(values)} <= {type(v) for v in others}


def _are_positions(values: pd.Series[Any]) -> bool:
    known = _known(values)
    is_whole = all(not isinstance(v, bool | str) and _is_number(v) and v == int(v) for v in known)
    return bool(known) and is_whole and min(known) in (0, 1, 2) and 1 < max(known) <= MOST_POSITIONS


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and _is_plain(value)


def _share_in_order(frame: pd.DataFrame, request: str, position: str, once: bool) -> float:
    """Share of the rows that stand in a list of several whose positions have no gap, and are distinct if `once`."""
    rows = frame[[request, position]].dropna()
    groups = rows.astype({position: float}).groupby(request)[position]
    span, distinct, size = groups.max() - groups.min() + 1, groups.nunique(), groups.size()
    is_in_order = (distinct > 1) & (span == distinct) & ((size == distinct) | (not once))
    return float(size[is_in_order].sum() / max(1, len(rows)))


def _times(values: pd.Series[Any]) -> tuple[str, bool] | None:
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
        return next(((p, p.endswith("Z")) for p in PATTERNS if all(_is_written(v, p) for v in known)), None)
    return None


def _is_written(value: str, pattern: str) -> bool:
    try:
        datetime.strptime(value, pattern)  # noqa: DTZ007  only the form is asked
    except ValueError:
        return False
    return True


def _is_wording(values: pd.Series[Any]) -> bool:
    """Texts with more letters than digits: what people type, rather than ids."""
    text = "".join(_known(values)) if _is_text(values) else ""
    return sum(c.isalpha() for c in text) > sum(c.isdigit() for c in text)


def _grades(rows: pd.DataFrame) -> list[str]:
    """Columns with few numbers from 0 on, or truth values."""
    found = []
    for name in rows.columns:
        known = _known(rows[name])
        if known and all(_is_number(v) for v in known) and len(set(known)) <= MOST_GRADES:
            found += [name] if min(known) >= 0 and max(known) <= MOST_GRADES else []
    return found
