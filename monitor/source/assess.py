"""Does the mapping fit the data? A look at a bounded sample of a monitor's source, for `check-config --connect`.

A wrong mapping often reads well and gives wrong numbers: positions that begin at 0, types of events that no rule names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.errors import SourceError, TooMany
from monitor.messages.words import lasting
from monitor.series.readings import Reading
from monitor.source.blocks import Blocks
from monitor.source.engine import Database, Reader
from monitor.source.lists import on_lists
from monitor.source.pull import Pull
from monitor.source.queries import Queries, kinds_of
from monitor.source.refused import FEWEST_GRADES, OF_GRADES, refusals
from monitor.source.remark import FEWEST, NOTABLE, TIME_OF_EVENTS, Key, Remark, percent, shown
from monitor.source.reused_ids import OFTEN, OWN_ID, harm, look
from monitor.source.rule_checks import unseen
from monitor.source.sliced import unfit
from monitor.source.times import CREDIBLE, to_micros
from monitor.source.zones import FARTHEST, HOUR, Floats, ahead, apart, behind, lags_of, offset, perhaps_behind
from monitor.types import Events, Judgments, Monitor, Recipe, TimeColumn, format_duration

DAY = 86_400
SPANS = (60, 600, 3600, DAY)
"""Seconds of requests that are looked at: the first of them that holds ENOUGH, or else the last."""

ENOUGH = 200
"""Requests that are enough to look at."""

MOST_ROWS = 300_000
MOST_EVENTS = 10_000
MOST_TRACED = 1_000
"""Events that match nothing of which it is looked what they are on."""

MOST_TYPES = 8
"""Types of events that are named."""

LOW_LABELLED, LOW_MATCHED = 0.5, 0.95
"""Shares of requests with a label and of events that match, below which times in another zone would explain it."""

FEWEST_LOST = 5
"""Events that match nothing, below which they are no sign of anything. Of late clicks, bots and other pages there are a
few per cent in sound logs; a share above NOTABLE is told."""

TINY = 0.02
"""Share of requests with a label, below which it is told when events name what was shown, but at other times."""

MICROS = 1_000_000


@dataclass(frozen=True)
class Assessment:
    """What was looked at, in words, and what is wrong with it."""

    looked_at: str
    remarks: tuple[Remark, ...]


def assess(monitor: Monitor, database: Database, now: float, newest: float | None) -> Assessment:
    """Look at a sample of the requests whose labels have had their time, and of the events.

    Args:
        newest: time of the newest request, seconds; None: the newest of any age is looked for.

    Raises:
        SourceError: the source did not answer, or holds other types than configured.
    """
    pull = Pull(monitor, database, MOST_ROWS)
    try:
        end = _newest(pull, now) if newest is None else int(newest) + 1
        return Assessment("no requests to look at", ()) if end is None else _assess(pull, end, now)
    except TooMany:
        return Assessment("too many rows in a minute to look at", ())
    except SourceError as error:
        if error.reason != "timeout":
            raise
        return Assessment(f"no sample, for it took too long: {error}", ())


def _newest(pull: Pull, now: float) -> int | None:
    """Whole seconds after the newest request of any age; None if there is none."""
    with pull.reading() as (reader, queries):
        latest = reader.one(queries.newest(CREDIBLE[0], now))
    micros, unreadable, _ = to_micros(pull.monitor.rankings.time, [latest])
    return None if latest is None or unreadable[0] else int(micros[0] // MICROS) + 1


def _assess(pull: Pull, end: int, now: float) -> Assessment:
    began, low, of_zones = time.monotonic(), list[str](), list[Remark]()
    monitor, recipe = pull.monitor, pull.monitor.recipe
    reading = _sample(pull, end)
    with pull.reading() as (reader, queries):
        cut = _cut_to_seconds(queries, reader, recipe) if "early_event" in reading.refusals.counts else ""
        found = [*on_lists(queries, reader, reading), *refusals(monitor, reading, cut)]
        found += [*_on_labels(monitor, reading), *unfit(monitor, reading), *unseen(monitor, reading)]
        seen = _requests_in_words(reading)
        if isinstance(recipe, Events):
            events = _EventSample.of(queries, reader, recipe, reading, end)
            found += events.remarks(lambda: _traces(pull, recipe, reading))
            seen += events.words
            low = [*_low_share(reading), *events.low_share()]
        of_zones += _on_zones(queries, reader, now + time.monotonic() - began, low)
    lags = _lags(pull, reading) if isinstance(recipe, Events) else np.empty(0)
    if isinstance(recipe, Events) and not of_zones:
        of_zones += _on_lags(monitor, recipe, reading, lags, low)
        found += _on_attribution(recipe, lags) if not of_zones else ()
    if isinstance(recipe, Events):
        found += _on_ids(pull, recipe, reading)
    found += of_zones or _on_age(pull, lags, now, lambda: now + time.monotonic() - began)
    return Assessment(seen, tuple(found))


def _on_zones(queries: Queries, reader: Reader, now: float, low: Sequence[str]) -> Iterator[Remark]:
    """Times that are read as if they were of the future; `low`: what of the labels that would explain."""
    monitor, recipe = queries.monitor, queries.monitor.recipe
    shown: sa.ColumnElement[Any] = queries.time
    times: list[tuple[Key, sa.ColumnElement[Any], TimeColumn]] = [(("rankings", "time"), shown, monitor.rankings.time)]
    if isinstance(recipe, Events):
        times.append((TIME_OF_EVENTS, queries.labels.c[recipe.time.column], recipe.time))
    for key, column, how in times:
        if text := ahead(reader, column, how, now):
            yield Remark(key, _with_why(text, low))


def _with_why(text: str, low: Sequence[str]) -> str:
    return f"{text}; that would also be why {' and '.join(low)}" if low else text


def _lags(pull: Pull, reading: Reading) -> Floats:
    """As `zones.lags_of`; none where that takes too long or too much, for it may look at more than a read of labels."""
    recipe = pull.monitor.recipe
    assert isinstance(recipe, Events)
    try:
        with pull.reading() as (reader, queries):
            return lags_of(queries, reader, recipe, reading.since, reading.until)
    except SourceError as error:
        if error.reason not in ("timeout", "resources"):
            raise
        return np.empty(0)


def _on_lags(monitor: Monitor, recipe: Events, reading: Reading, lags: Floats, low: Sequence[str]) -> Iterator[Remark]:
    """Events that come hours before or after their serving, by what is known of zones or else by the labels."""
    is_of_rankings, text = apart(lags, monitor.rankings.time, recipe.time, reading.until)
    if text:
        yield Remark(("rankings", "time") if is_of_rankings else TIME_OF_EVENTS, _with_why(text, low))
        return
    size, labelled = reading.rankings.size, int(reading.labelled.sum())
    outside = (lags < 0) | (lags > recipe.attribution)
    if size >= FEWEST and labelled < TINY * size and lags.size >= FEWEST and outside.mean() > 0.5:
        half = float(np.median(lags))
        when = f"{lasting(round(abs(half)))} {'before' if half < 0 else 'after'} serving"
        within = f"while the attribution is {format_duration(recipe.attribution)}"
        text = f"only {labelled:,} of {size:,} requests have a label, though {lags.size:,} events name what they showed"
        yield Remark(TIME_OF_EVENTS, f"{text}: half of them by {when}, {within}; are both times in the same zone?")


def _on_attribution(recipe: Events, lags: Floats) -> Iterator[Remark]:
    """That many events come too late to count."""
    late = int((lags >= recipe.attribution).sum())
    if lags.size >= FEWEST and late > NOTABLE * lags.size:
        half, most = (lasting(max(round(float(at)), 1)) for at in np.quantile(lags, [0.5, 0.95]))
        yield Remark(
            ("relevance", "events", "attribution"),
            f"{late:,} of {lags.size:,} events on what was shown ({percent(late, lags.size)}) come later than "
            f"{format_duration(recipe.attribution)} after it, and count for nothing; half of all come within {half}, "
            f"95 % within {most}: is the attribution long enough?",
        )


def _on_age(pull: Pull, lags: Floats, began: float, now: Callable[[], float]) -> Iterator[Remark]:
    """Requests that are read as if they were whole hours old. `lags`: events in another zone would show by them."""
    how, recipe = pull.monitor.rankings.time, pull.monitor.recipe
    text = behind(how, now(), lambda: _newest_of(pull, began))
    of_events = recipe.time if isinstance(recipe, Events) and lags.size >= FEWEST else how
    if not text and offset(of_events, began) == offset(how, began):
        text = perhaps_behind(how, now(), _newest_of(pull, began))
    if text:
        yield Remark(("rankings", "time"), text)


def _newest_of(pull: Pull, now: float) -> float | None:
    """Seconds of the newest request of the last hours; None if there is none."""
    with pull.reading() as (reader, queries):
        latest = reader.one(queries.newest(now - FARTHEST * HOUR, now))
    found = to_micros(pull.monitor.rankings.time, [latest])
    return None if latest is None or found.unreadable[0] else float(found.micros[0]) / MICROS


def _sample(pull: Pull, end: int) -> Reading:
    """The requests shortly before `end`, or before it by the attribution where there are enough."""
    mature, best = end - pull.monitor.recipe.attribution, None
    for until in dict.fromkeys((mature, end)):
        for span in SPANS:
            try:
                best = pull.read(until - span, until)
            except TooMany:
                if best is None:
                    raise
                return best
            if best.rankings.size >= ENOUGH:
                return best
        if best is not None and best.rankings.size >= FEWEST:
            return best
    assert best is not None  # or it would have raised
    return best


def _low_share(reading: Reading) -> Iterator[str]:
    size, labelled = reading.rankings.size, int(reading.labelled.sum())
    if size >= FEWEST and labelled < LOW_LABELLED * size:
        yield f"only {percent(labelled, size)} of the requests have a label"


def _requests_in_words(reading: Reading) -> str:
    size, span = reading.rankings.size, format_duration(reading.until - reading.since)
    labelled = f", {percent(int(reading.labelled.sum()), size)} with a label" if size else ""
    return f"looked at {size:,} requests of {span}{labelled}"


# ---- rankings ------------------------------------------------------------------------------------------------------


def _on_ids(pull: Pull, recipe: Events, reading: Reading) -> Iterator[Remark]:
    """Ids that are served again and again, each time with the events of all; nothing where it takes too long to see."""
    try:
        with pull.reading() as (reader, queries):
            seen = look(queries, reader, recipe, reading.since, reading.until)
    except SourceError as error:
        if error.reason not in ("timeout", "resources"):
            raise
        return
    if seen.servings < FEWEST or seen.repeated <= OFTEN * seen.ids:
        return
    column, span = pull.monitor.rankings.request, format_duration(pull.monitor.max_request_span)
    text = f"{seen.repeated:,} of {seen.ids:,} ids in {column!r} ({percent(seen.repeated, seen.ids)}) come again"
    text += f" later than max_request_span, {span}, and within {format_duration(seen.reach)}, as a session's would"
    yield Remark(("rankings", "request"), f"{text}: {harm(recipe)}; {OWN_ID}")


def _on_labels(monitor: Monitor, reading: Reading) -> Iterator[Remark]:
    refused = sum(int(rows.sum()) for reason, rows in reading.refusals.counts.items() if reason in OF_GRADES)
    if (
        reading.rankings.size < FEWEST or reading.labelled.any() or refused >= FEWEST_GRADES
    ):  # the last is told by itself
        return
    none = f"none of the {reading.rankings.size:,} requests looked at has a label"
    if isinstance(monitor.recipe, Events):
        yield Remark(("relevance", "events"), f"{none}; do request, item and the rules fit the events?")
    elif isinstance(monitor.recipe, Judgments):
        yield Remark(("relevance", "judgments"), f"{none}; are query and item written there as in the rankings?")
    else:
        yield Remark(("relevance", "column", "grade"), f"{none}; the column is NULL in all their rows")


# ---- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _EventSample:
    """Some events.

    Attributes:
        types: (type, which of the rules' kinds it is, events), the most frequent first.
        happened: events in the time of the requests that a rule names.
        unmatched: those of them that match no impression; None where they are not counted.
    """

    recipe: Events
    types: Sequence[tuple[Any, int | None, int]]
    happened: int
    unmatched: int | None

    @classmethod
    def of(cls, queries: Queries, reader: Reader, recipe: Events, reading: Reading, end: int) -> _EventSample:
        """Of the day before `end`, and of the time of `reading`."""
        happened = queries.happened(recipe, reading.since, reading.until)
        within = sa.select(queries.labels.c[recipe.time.column]).where(happened).limit(MOST_ROWS).subquery()
        counted = sa.select(sa.func.count()).select_from(within)
        unmatched = len(reading.unmatched) if recipe.count_unmatched else None
        return cls(recipe, _types(queries, reader, recipe, end), int(reader.one(counted) or 0), unmatched)

    @property
    def words(self) -> str:
        """What share of them is of use."""
        told = f"; {self.happened:,} events of the rules' types in that time"
        if self.unmatched is not None and self.happened:
            told += f", {percent(self.happened - min(self.unmatched, self.happened), self.happened)} match"
        others = [(type_, n) for type_, kind, n in self.types if kind is None]
        if not others:
            return told
        share = percent(sum(n for _, n in others), sum(n for _, _, n in self.types))
        named = ", ".join(shown(type_) for type_, _ in others[:MOST_TYPES])
        return f"{told}; {share} of all events are of types that no rule names: {named}{_more(others)}"

    def low_share(self) -> Iterator[str]:
        """That few of them match, if so."""
        matched = self.happened - min(self.unmatched or 0, self.happened)
        if self.happened >= FEWEST and matched < LOW_MATCHED * self.happened:
            yield f"only {percent(matched, self.happened)} of the events match"

    def remarks(self, look: Callable[[], _Traces | None]) -> Iterator[Remark]:
        """What is wrong with them. `look` finds what the unmatched ones are on; None if that is not known."""
        yield from self._on_types()
        lost = min(self.unmatched or 0, self.happened)
        if self.happened < FEWEST or lost < FEWEST_LOST or lost <= NOTABLE * self.happened:
            return
        share = f" ({percent(lost, self.happened)})"
        text = f"{lost:,} of {self.happened:,} events{share} match no impression within the attribution"
        traces = look()
        if lost > self.happened / 2 and not (traces is not None and traces.is_of_time):
            remedy = "do request and item name the same things as in the rankings, and are both times in the same zone?"
        else:
            remedy = _why_unmatched(traces)
        yield Remark(("relevance", "events", "request"), f"{text}; {remedy}")

    def _on_types(self) -> Iterator[Remark]:
        every = sum(count for _, _, count in self.types)
        if self.recipe.type is None or not every:
            return
        kinds, seen = kinds_of(self.recipe), {kind for _, kind, _ in self.types}
        there = ", ".join(f"{shown(type_)} ({percent(count, every)})" for type_, _, count in self.types[:MOST_TYPES])
        more = _more(self.types)
        for index, rule in enumerate(self.recipe.rules):
            if rule.type is not None and kinds.index(rule.type) not in seen:
                text = f"no event of the type {rule.type!r} among the {every:,} looked at; there are {there}{more}"
                yield Remark(("relevance", "events", "rules", index), text)


def _cut_to_seconds(queries: Queries, reader: Reader, recipe: Recipe) -> str:
    """That events are logged in whole seconds and requests are not, with what mends it; empty if it is not so."""
    assert isinstance(recipe, Events)
    served = queries.monitor.rankings.time
    whole = [
        bool((to_micros(how, reader.columns(queries.sample(of))[0]).micros % MICROS == 0).all())
        for how, of in ((recipe.time, recipe), (served, None))
    ]
    if whole != [True, False]:
        return ""
    units = {"epoch_ms": 1_000, "epoch_us": MICROS}
    example = f"{served.column} - {served.column} % {units.get(served.format)} AS {served.column}"
    if served.format == "native":
        example = f"date_trunc('second', {served.column}) AS {served.column}"
    return (
        "; times of events are cut to whole seconds and those of requests are not, so that what happens within the "
        "second of its request comes before it: log fractions there too, or cut the requests' times in a `select:`"
        + (f", as by {example}" if served.format == "native" or served.format in units else "")
    )


@dataclass(frozen=True)
class _Traces:
    """Where what some events name that match nothing was logged, whenever that was.

    Attributes:
        strangers: events on a request that was never logged.
        unlisted: events on a request that was logged, without their item.
        lags: seconds from the serving of their item to the others, in order.
    """

    strangers: int
    unlisted: int
    lags: Floats

    @property
    def is_of_time(self) -> bool:
        """Whether most of them are on what was logged, at another time."""
        return 2 * self.lags.size > self.strangers + self.unlisted + self.lags.size


def _traces(pull: Pull, recipe: Events, reading: Reading) -> _Traces | None:
    """What some of the unmatched events of that time are on; None where it takes too long to see."""
    found: list[list[Any]] = [[], [], []]
    try:
        with pull.reading() as (reader, queries):
            for since, until, reach in Blocks.of(pull.monitor, recipe).cut(reading.since, reading.until):
                if (most := MOST_TRACED - len(found[0])) > 0:
                    traced = reader.columns(queries.traces(recipe, since, until, reach, most))
                    found = [one + other for one, other in zip(found, traced or [[], [], []], strict=True)]
    except SourceError as error:
        if error.reason not in ("timeout", "resources"):
            raise
        return None
    happened, of_request, of_item = found
    known = [i for i, at in enumerate(of_item) if at is not None]
    at = to_micros(recipe.time, [happened[i] for i in known]).micros
    served = to_micros(pull.monitor.rankings.time, [of_item[i] for i in known]).micros
    strangers = sum(at is None for at in of_request)
    return _Traces(strangers, len(happened) - strangers - len(known), np.sort((at - served) / MICROS))


def _why_unmatched(traces: _Traces | None) -> str:
    """Why some of the events match nothing, and what mends it."""
    usual = "a few % are usual, of late clicks and bots; more of them make values wrong"
    items = "is every item that was shown logged, each page of a list too, and by the same name?"
    requests = (
        "are all requests logged, and still there? Events of other lists, tests or bots are left out by a "
        "`select:` in the place of the events' table"
    )
    if traces is None:
        looked = "what they name was looked for within the attribution only, for all of the rankings take too long"
        return f"{usual}; {looked}: do they come later, and is the `attribution` long enough? Or {items}"
    late, early = traces.lags[traces.lags >= 0], -traces.lags[traces.lags < 0]
    parts = [
        (traces.unlisted, f"name a request that was logged, but an item that was not: {items}"),
        (traces.strangers, f"name a request that was not logged at any time: {requests}"),
        (late.size, f"come long after what they are on, {_half(late)}: is the `attribution` long enough?"),
        (early.size, f"come before what they are on, {_half(early)}: are both times in the same zone?"),
    ]
    return "; ".join([usual, *(f"{number:,} {text}" for number, text in parts if number)])


def _half(seconds: Floats) -> str:
    return f"half of them by {lasting(round(float(np.median(seconds))))} or more" if seconds.size else ""


def _types(queries: Queries, reader: Reader, recipe: Events, end: int) -> list[tuple[Any, int | None, int]]:
    """The types among some of the events of the last day, whatever they are; none where events have no types."""
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


# ---- words ---------------------------------------------------------------------------------------------------------


def _more(types: Sequence[object]) -> str:
    return ", …" if len(types) > MOST_TYPES else ""
