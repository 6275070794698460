"""A sample of a monitor's requests and events, for the mapping checks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa

from monitor.arrays import Floats
from monitor.errors import SourceError, TooMany
from monitor.series.readings import MICROS, Reading
from monitor.source.checks.remarks import FEWEST, percent, shown
from monitor.source.engine import Reader
from monitor.source.pull import Pull
from monitor.source.queries import Queries
from monitor.source.times import to_micros
from monitor.types import Events, Monitor, Recipe, format_duration
from monitor.units import DAY, HOUR

T = TypeVar("T")
SPANS = (60, 600, HOUR, DAY)
"""Seconds of requests to try: the first span that holds ENOUGH, else the last."""

ENOUGH = 200
"""Requests that make a sufficient sample."""

MOST_ROWS = 300_000
MOST_EVENTS = 10_000
MOST_TYPES = 8
"""Event types to name in a message."""

LOW_LABELLED, LOW_MATCHED = 0.5, 0.95
"""Shares of labelled requests and matched events below which a wrong time zone is plausible."""

MOST_HOURS_APART = 15
"""Hours by which no two zones differ."""

OPTIONAL = ("timeout", "resources")
"""SourceError reasons tolerated where a check reads more than a normal read."""


@dataclass
class Sample:
    """Requests shortly before `end` (seconds); `now` is the time when the monotonic clock was at `began`."""

    pull: Pull
    end: int
    now: float
    reading: Reading
    began: float

    @classmethod
    def before(cls, pull: Pull, end: int, now: float) -> Sample:
        """A sample ending one attribution before `end` if that holds enough requests, else at `end`."""
        mature, best, began = end - pull.monitor.recipe.attribution, None, time.monotonic()
        for until in dict.fromkeys((mature, end)):
            for span in SPANS:
                try:
                    best = pull.read(until - span, until)
                except TooMany:
                    if best is None:
                        raise
                    return cls(pull, end, now, best, began)
                if best.rankings.size >= ENOUGH:
                    return cls(pull, end, now, best, began)
            if best is not None and best.rankings.size >= FEWEST:
                break
        assert best is not None  # otherwise the read raised
        return cls(pull, end, now, best, began)

    @property
    def monitor(self) -> Monitor:
        return self.pull.monitor

    @property
    def recipe(self) -> Recipe:
        return self.pull.monitor.recipe

    @property
    def size(self) -> int:
        """Requests in the sample."""
        return self.reading.rankings.size

    @property
    def labelled(self) -> int:
        """Requests with a label."""
        return int(self.reading.labelled.sum())

    @property
    def clock(self) -> float:
        """The current time, seconds."""
        return self.now + time.monotonic() - self.began

    def asking(self) -> AbstractContextManager[tuple[Reader, Queries]]:
        """A transaction on the source. Do not use this sample's other properties inside it."""
        return self.pull.reading()

    def at_leisure(self, ask: Callable[[Reader, Queries], T]) -> T | None:
        """What `ask` finds, as `asking`; None if it takes too long or too much memory, as it reads more than a read."""
        try:
            with self.asking() as (reader, queries):
                return ask(reader, queries)
        except SourceError as error:
            if error.reason not in OPTIONAL:
                raise
            return None

    @cached_property
    def events(self) -> EventSample | None:
        """The events; None if labels come from elsewhere."""
        recipe = self.recipe
        if not isinstance(recipe, Events):
            return None
        with self.asking() as (reader, queries):
            return EventSample.of(queries, reader, recipe, self.reading, self.end)

    @cached_property
    def lags(self) -> Floats:
        """Sorted seconds from serving to event, for some events on items shown, shape (n,).

        Includes events before the serving and past the attribution, up to the widest zone difference. Empty if that
        takes too long or too much memory: it may read more than a read of labels does.
        """
        recipe = self.recipe
        if not isinstance(recipe, Events):
            return np.empty(0)
        found = self.at_leisure(lambda reader, queries: _lags(queries, reader, recipe, self.reading))
        return np.empty(0) if found is None else found

    @property
    def low_shares(self) -> list[str]:
        """Low label or match shares that a wrong zone would explain, in words."""
        found = []
        if self.size >= FEWEST and self.labelled < LOW_LABELLED * self.size:
            found.append(f"only {percent(self.labelled, self.size)} of the requests have a label")
        events = self.events
        if events is not None and events.happened >= FEWEST and events.matched < LOW_MATCHED * events.happened:
            found.append(f"only {percent(events.matched, events.happened)} of the events match")
        return found

    @property
    def words(self) -> str:
        """What the sample covered, in words."""
        span = format_duration(self.reading.until - self.reading.since)
        labelled = f", {percent(self.labelled, self.size)} with a label" if self.size else ""
        return f"sampled {self.size:,} requests from {span}{labelled}{self.events.words if self.events else ''}"


@dataclass(frozen=True)
class EventSample:
    """A sample of events.

    Attributes:
        types: (type, index of its rule type, events) of the day before, most frequent first.
        happened: events during the sampled requests whose type a rule names.
        unmatched: how many of those match no impression; None if not counted.
    """

    types: Sequence[tuple[Any, int | None, int]]
    happened: int
    unmatched: int | None

    @classmethod
    def of(cls, queries: Queries, reader: Reader, recipe: Events, reading: Reading, end: int) -> EventSample:
        """Events of the day before `end` and of the time of `reading`."""
        happened = queries.happened(recipe, reading.since, reading.until)
        within = sa.select(queries.labels.c[recipe.time.column]).where(happened).limit(MOST_ROWS).subquery()
        counted = sa.select(sa.func.count()).select_from(within)
        unmatched = len(reading.unmatched) if recipe.count_unmatched else None
        return cls(_types(queries, reader, recipe, end), int(reader.one(counted) or 0), unmatched)

    @property
    def lost(self) -> int:
        """Unmatched events."""
        return min(self.unmatched or 0, self.happened)

    @property
    def matched(self) -> int:
        """Events on items shown."""
        return self.happened - self.lost

    @property
    def words(self) -> str:
        """The usable share, in words."""
        told = f"; {self.happened:,} events with types of the rules in that time"
        if self.unmatched is not None and self.happened:
            told += f", {percent(self.matched, self.happened)} match"
        others = [(type_, n) for type_, kind, n in self.types if kind is None]
        if not others:
            return told
        share = percent(sum(n for _, n in others), sum(n for _, _, n in self.types))
        named = ", ".join(shown(type_) for type_, _ in others[:MOST_TYPES])
        return f"{told}; {share} of all events have types that no rule names: {named}{and_more(others)}"


def and_more(types: Sequence[object]) -> str:
    """A suffix saying that some types are not named, if so."""
    return ", …" if len(types) > MOST_TYPES else ""


def newest_in(sample_of: Pull, since: float, until: float) -> float | None:
    """Seconds of the newest request in [since, until); None if there is none."""
    with sample_of.reading() as (reader, queries):
        latest = reader.one(queries.newest(since, until))
    found = to_micros(sample_of.monitor.rankings.time, [latest])
    return None if latest is None or found.unreadable[0] else float(found.micros[0]) / MICROS


def _lags(queries: Queries, reader: Reader, recipe: Events, reading: Reading) -> Floats:
    e, far = queries.labels, MOST_HOURS_APART * HOUR
    matches = sa.and_(e.c[recipe.request] == queries.request, e.c[recipe.item] == queries.item)
    wanted = (
        queries.usable(reading.since, reading.until),
        queries.happened(recipe, reading.since - far, reading.until + far),
    )
    times = sa.select(queries.time, e.c[recipe.time.column]).select_from(e.join(queries.rankings, matches))
    columns = reader.columns(times.where(*wanted).limit(MOST_EVENTS))
    served, happened = to_micros(queries.monitor.rankings.time, columns[0]), to_micros(recipe.time, columns[1])
    known = ~(served.unreadable | served.doubtful | happened.unreadable | happened.doubtful)
    return np.sort((happened.micros - served.micros)[known] / 1e6)


def _types(queries: Queries, reader: Reader, recipe: Events, end: int) -> list[tuple[Any, int | None, int]]:
    """Event types of the last day, sampled; empty if events have no types."""
    if recipe.type is None:
        return []
    e = queries.labels
    recent = queries.sql.between(e.c[recipe.time.column], recipe.time, end - DAY, end)
    some = sa.select(e.c[recipe.type]).where(recent).limit(MOST_EVENTS).subquery("some")
    kind = queries.kind(recipe, some)
    assert kind is not None  # the recipe has types
    columns = reader.columns(sa.select(some.c[recipe.type], kind))
    counted = Counter(zip(*columns, strict=True)) if columns else Counter()
    return [(type_, None if kind is None else int(kind), n) for (type_, kind), n in counted.most_common()]
