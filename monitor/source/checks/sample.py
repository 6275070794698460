"""Some requests of a monitor and their events, as the checks of a mapping look at them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.errors import SourceError, TooMany
from monitor.series.readings import MICROS, Reading
from monitor.source.checks.remarks import FEWEST, percent, shown
from monitor.source.engine import Reader
from monitor.source.pull import Pull
from monitor.source.queries import Queries
from monitor.source.times import Floats, to_micros
from monitor.types import Events, Monitor, Recipe, format_duration

DAY, HOUR = 86_400, 3_600
SPANS = (60, 600, HOUR, DAY)
"""Seconds of requests that are looked at: the first of them that holds ENOUGH, or else the last."""

ENOUGH = 200
"""Requests that are enough to look at."""

MOST_ROWS = 300_000
MOST_EVENTS = 10_000
MOST_TYPES = 8
"""Types of events that are named."""

LOW_LABELLED, LOW_MATCHED = 0.5, 0.95
"""Shares of requests with a label and of events that match, below which times in another zone would explain it."""

FARTHEST = 15
"""Hours that no two zones are apart."""

OPTIONAL = ("timeout", "resources")
"""Reasons for which a look at more than a read would look at may fail."""


@dataclass
class Sample:
    """Requests shortly before `end` (seconds); `now` is the time at `began` of the monotonic clock."""

    pull: Pull
    end: int
    now: float
    reading: Reading
    began: float

    @classmethod
    def before(cls, pull: Pull, end: int, now: float) -> Sample:
        """The requests shortly before `end`, or before it by the attribution where there are enough."""
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
        assert best is not None  # or it would have raised
        return cls(pull, end, now, best, began)

    @property
    def monitor(self) -> Monitor:
        """Whose requests they are."""
        return self.pull.monitor

    @property
    def recipe(self) -> Recipe:
        """Where its labels come from."""
        return self.pull.monitor.recipe

    @property
    def size(self) -> int:
        """How many requests there are."""
        return self.reading.rankings.size

    @property
    def labelled(self) -> int:
        """How many of them have a label."""
        return int(self.reading.labelled.sum())

    @property
    def clock(self) -> float:
        """The time by now, seconds."""
        return self.now + time.monotonic() - self.began

    def asking(self) -> AbstractContextManager[tuple[Reader, Queries]]:
        """A transaction on the source. Within one, none of this sample's other properties may be asked for."""
        return self.pull.reading()

    @cached_property
    def events(self) -> EventSample | None:
        """The events; None where labels come from elsewhere."""
        recipe = self.recipe
        if not isinstance(recipe, Events):
            return None
        with self.asking() as (reader, queries):
            return EventSample.of(queries, reader, recipe, self.reading, self.end)

    @cached_property
    def lags(self) -> Floats:
        """Seconds from serving to event, in order, of some events on what was shown, shape (n,).

        Events before the serving and past the attribution are among them, as far as two zones can be apart. None where
        it takes too long or too much, for it may look at more than a read of labels.
        """
        recipe = self.recipe
        if not isinstance(recipe, Events):
            return np.empty(0)
        try:
            with self.asking() as (reader, queries):
                return _lags(queries, reader, recipe, self.reading)
        except SourceError as error:
            if error.reason not in OPTIONAL:
                raise
            return np.empty(0)

    @property
    def low_shares(self) -> list[str]:
        """What of the labels another zone would explain."""
        found = []
        if self.size >= FEWEST and self.labelled < LOW_LABELLED * self.size:
            found.append(f"only {percent(self.labelled, self.size)} of the requests have a label")
        events = self.events
        if events is not None and events.happened >= FEWEST and events.matched < LOW_MATCHED * events.happened:
            found.append(f"only {percent(events.matched, events.happened)} of the events match")
        return found

    @property
    def words(self) -> str:
        """What was looked at."""
        span = format_duration(self.reading.until - self.reading.since)
        labelled = f", {percent(self.labelled, self.size)} with a label" if self.size else ""
        return f"looked at {self.size:,} requests of {span}{labelled}{self.events.words if self.events else ''}"


@dataclass(frozen=True)
class EventSample:
    """Some events.

    Attributes:
        types: (type, which of the rules' kinds it is, events) of the day before, the most frequent first.
        happened: events in the time of the requests that a rule names.
        unmatched: those of them that match no impression; None where they are not counted.
    """

    types: Sequence[tuple[Any, int | None, int]]
    happened: int
    unmatched: int | None

    @classmethod
    def of(cls, queries: Queries, reader: Reader, recipe: Events, reading: Reading, end: int) -> EventSample:
        """Of the day before `end`, and of the time of `reading`."""
        happened = queries.happened(recipe, reading.since, reading.until)
        within = sa.select(queries.labels.c[recipe.time.column]).where(happened).limit(MOST_ROWS).subquery()
        counted = sa.select(sa.func.count()).select_from(within)
        unmatched = len(reading.unmatched) if recipe.count_unmatched else None
        return cls(_types(queries, reader, recipe, end), int(reader.one(counted) or 0), unmatched)

    @property
    def lost(self) -> int:
        """Events that match nothing."""
        return min(self.unmatched or 0, self.happened)

    @property
    def matched(self) -> int:
        """Events on what was shown."""
        return self.happened - self.lost

    @property
    def words(self) -> str:
        """What share of them is of use."""
        told = f"; {self.happened:,} events of the rules' types in that time"
        if self.unmatched is not None and self.happened:
            told += f", {percent(self.matched, self.happened)} match"
        others = [(type_, n) for type_, kind, n in self.types if kind is None]
        if not others:
            return told
        share = percent(sum(n for _, n in others), sum(n for _, _, n in self.types))
        named = ", ".join(shown(type_) for type_, _ in others[:MOST_TYPES])
        return f"{told}; {share} of all events are of types that no rule names: {named}{and_more(others)}"


def and_more(types: Sequence[object]) -> str:
    """That not all are named, if so."""
    return ", …" if len(types) > MOST_TYPES else ""


def newest_in(sample_of: Pull, since: float, until: float) -> float | None:
    """Seconds of the newest request in [since, until); None if there is none."""
    with sample_of.reading() as (reader, queries):
        latest = reader.one(queries.newest(since, until))
    found = to_micros(sample_of.monitor.rankings.time, [latest])
    return None if latest is None or found.unreadable[0] else float(found.micros[0]) / MICROS


def _lags(queries: Queries, reader: Reader, recipe: Events, reading: Reading) -> Floats:
    e, far = queries.labels, FARTHEST * HOUR
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
    """The types among some of the events of the last day; none where events have no types."""
    if recipe.type is None:
        return []
    e = queries.labels
    recent = queries.sql.between(e.c[recipe.time.column], recipe.time, end - DAY, end)
    some = sa.select(e.c[recipe.type]).where(recent).limit(MOST_EVENTS).subquery("some")
    kind = queries.kind(recipe, some)
    assert kind is not None  # for the recipe has types
    columns = reader.columns(sa.select(some.c[recipe.type], kind))
    counted = Counter(zip(*columns, strict=True)) if columns else Counter()
    return [(type_, None if kind is None else int(kind), n) for (type_, kind), n in counted.most_common()]
