"""Reads one request from the source for `rankmon inspect`; `monitor.causes.inspection` explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.arrays import as_number
from monitor.causes.inspection import (
    Inspection,
    Row,
    RowLabels,
    by_column,
    by_events,
    by_judgments,
    graded,
    has_label,
    refuse,
    used_rows,
    weigh,
)
from monitor.errors import InputError, SourceError, TooMany
from monitor.measures.relevance import GradeLimits
from monitor.series.partials import bucket_of
from monitor.series.readings import MICROS
from monitor.source.dialects.base import Condition
from monitor.source.engine import Database, Reader
from monitor.source.pull import MOST_ROWS, has_enum_types
from monitor.source.queries import Queries, event_types, untyped
from monitor.source.recurring import servings
from monitor.source.requests import is_same
from monitor.source.times import to_micros
from monitor.types import MIXED, Column, Events, Judgments, Monitor

_NOT_OF_THE_TYPE = ("22P02", "22003", "22007", "22008")
"""SQLSTATEs for text that the column type cannot parse, or that is out of range."""

_MARKS = re.compile(r"\A(0x|\\x)|-", re.IGNORECASE)
_HEXADECIMAL = re.compile(r"([0-9a-f]{2})+", re.IGNORECASE)


def inspect(monitor: Monitor, database: Database, request: str, at: int | None = None) -> Inspection:
    """The earliest request with that id, or the one read with the bucket that holds `at` (seconds).

    Without `at` it searches by id alone: a full table scan if the id has no index.

    Raises:
        InputError: the source has no such request.
        SourceError: the source did not answer, or holds other types than configured.
    """
    try:
        with database.reading(monitor.name) as reader:
            queries = Queries(monitor, reader.dialect)
            queries = replace(queries, types=queries.types_now(reader, False))
            queries = replace(queries, has_enum_types=has_enum_types(queries, reader))
            return _Look(monitor, queries, reader, request, at).inspection()
    except TooMany as error:
        raise SourceError(f"{_place(monitor)}: {request!r} has {error}; is it a request id?", "data") from error
    except SourceError as error:
        driver = getattr(error.__cause__, "orig", None)
        if getattr(driver, "sqlstate", None) in _NOT_OF_THE_TYPE:
            raise InputError(f"{_place(monitor)}: {request!r} cannot be a request id: {error}") from error
        if error.reason == "timeout" and at is None:
            text = f"{error}; or use --at to say when the request was served, to limit the search"
            raise SourceError(text, "timeout") from error
        raise


def _place(monitor: Monitor) -> str:
    relation = monitor.rankings.relation
    where = f"table {'.'.join(relation.table)}" if relation.table else "the rankings' SELECT"
    return f"source {monitor.source}, {where}, column {monitor.rankings.request}"


@dataclass
class _Look:
    monitor: Monitor
    queries: Queries
    reader: Reader
    text: str
    at: int | None
    wanted: Any = field(init=False, default=None)
    is_binary: bool = field(init=False, default=False)
    bucket: int = field(init=False, default=0)

    def inspection(self) -> Inspection:
        total = self._locate()
        source = self._rows()
        if source.bucket < self.bucket:  # found by `at`, in the margin before its bucket
            self.bucket = source.bucket
            source = self._rows()
        self.wanted = source.request
        labels = self._labels(source)
        rows = refuse(self.monitor, [replace(r, reasons=source.reasons(r)) for r in labels.rows])
        rows = sorted(rows, key=lambda r: (isnan(r.rank), r.rank, str(r.item)))
        used = used_rows(self.monitor, rows, GradeLimits.of((), self.monitor.recipe.bound))
        no_sample = source.no_sample if source.is_empty else labels.no_sample or source.no_sample
        if (
            isinstance(self.monitor.recipe, Column)
            and not source.is_empty
            and not any(has_label(self.monitor, r) for r in rows)
        ):
            has_grades = any(r.grade is not None for r in rows)
            no_sample = no_sample or ("none of its grades counts" if has_grades else "none of its rows has a grade")
        return Inspection(
            monitor=self.monitor,
            request=source.request,
            served=source.served,
            bucket=source.bucket,
            query=source.query,
            slices=source.slices,
            rows=tuple(rows),
            strays=labels.strays,
            judgments=labels.judgments,
            mixed=source.mixed,
            graded=graded(self.monitor, rows, used, labels.judgments, not no_sample, source.slices),
            used=used,
            no_sample=no_sample,
            elsewhere=total - len(rows) if self.at is None else 0,
            again=self._again(source),
        )

    # ---- reading -----------------------------------------------------------------------------------------------

    def _locate(self) -> int:
        """Finds the request's bucket; returns how many rows have its id in the range searched."""
        bounds = None if self.at is None else self._wide(bucket_of(self.at, self.monitor.bucket))
        within = [] if bounds is None else [self.queries.served(*bounds)]
        for wanted in self._spellings():
            self.wanted = wanted
            columns: list[sa.ColumnElement[Any]] = [sa.func.min(self.queries.time), sa.func.count()]
            found = sa.select(*columns).select_from(self.queries.rankings).where(self._is_it, *within)
            (earliest,), (total,) = self.reader.columns(found)
            if earliest is not None:
                micros = int(to_micros(self.monitor.rankings.time, [earliest]).micros[0])
                self.bucket = bucket_of(micros // MICROS, self.monitor.bucket)
                return int(total)
        raise InputError(self._unknown(bounds))

    def _spellings(self) -> Iterator[Any]:
        """The id in each form that the column may need; hexadecimal last, if ids are binary."""
        q = self.queries
        yield from q.sql.spellings(self.text, q.types.rankings.get(self.monitor.rankings.request))
        some = sa.select(q.request).select_from(q.rankings).where(q.request.isnot(None)).limit(1)
        self.is_binary = isinstance(self.reader.one(some), bytes)
        digits = _MARKS.sub("", self.text)
        if self.is_binary and _HEXADECIMAL.fullmatch(digits):
            yield bytes.fromhex(digits)

    @property
    def _is_it(self) -> Condition:
        return self.queries.request == untyped(self.wanted)

    def _wide(self, bucket: int) -> tuple[int, int]:
        """The bucket's range plus the margin that keeps requests on its edges whole."""
        return self.queries.wide(bucket, bucket + self.monitor.bucket)

    def _unknown(self, bounds: tuple[int, int] | None) -> str:
        where = f"{_place(self.monitor)}: there is no request {self.text!r}"
        if self.is_binary and not _HEXADECIMAL.fullmatch(_MARKS.sub("", self.text)):
            return f"{where}; the column is binary, so write the id in hexadecimal"
        if bounds is None:
            return f"{where} with a time; does it belong to monitor {self.monitor.name}?"
        since, until = (np.datetime64(b, "s") for b in bounds)
        return f"{where} from {since} to {until} UTC; use another --at, or none to search everywhere"

    @property
    def _here(self) -> list[Condition]:
        """Conditions for the request's rows that a read of its bucket sees."""
        return [self._is_it, self.queries.served(*self._wide(self.bucket))]

    def _rows(self) -> _Source:
        q, r = self.queries, self.monitor.rankings
        names = [r.query, r.results, q.grade_column, *(s.column for s in self.monitor.slices)]
        more = [q.rankings.c[name] for name in dict.fromkeys(names) if name is not None]
        columns = [q.request, q.item, q.position, q.time, *more]
        read = self.reader.columns(sa.select(*columns).where(*self._here), MOST_ROWS)
        return _Source(self.monitor, read[:4], dict(zip((str(c.name) for c in more), read[4:], strict=True)))

    def _again(self, source: _Source) -> tuple[int, ...]:
        """Microseconds of the id's other servings within the attribution; empty unless labels are events."""
        recipe, span = self.monitor.recipe, self.monitor.max_request_span
        if not isinstance(recipe, Events) or source.is_long or source.is_unreadable or source.is_ambiguous:
            return ()
        served, far = source.served // MICROS, recipe.attribution
        around = self.queries.served(served - far, served + far + 1)
        found = self.reader.columns(sa.select(self.queries.time).where(self._is_it, around).distinct(), MOST_ROWS)[0]
        read = to_micros(self.monitor.rankings.time, found)
        at = np.sort(read.micros[~(read.unreadable | read.doubtful)])
        apart = np.abs(at - source.served)
        others = at[(apart > span * MICROS) & (apart <= far * MICROS)]
        return tuple(servings(others, span).tolist())

    # ---- labels ------------------------------------------------------------------------------------------------

    def _labels(self, source: _Source) -> RowLabels:
        recipe, r = self.monitor.recipe, self.monitor.rankings
        if isinstance(recipe, Column):
            return by_column(source.rows, source.more[recipe.grade])
        if isinstance(recipe, Judgments):
            limits = GradeLimits.of((), recipe.bound)
            return by_judgments(source.rows, source.more[str(r.query)], self._judgment_columns(recipe), limits)
        columns = self._event_columns(recipe)
        times = to_micros(recipe.time, columns[1])
        events = weigh(recipe, self.monitor.max_request_span, source.served, columns, times)
        return by_events(recipe, source.rows, events)

    def _event_columns(self, recipe: Events) -> list[list[Any]]:
        """Item, time, matching item, type, value of the request's events, once each, by time."""
        q, e = self.queries, self.queries.labels.c
        shown = sa.select(q.request, q.item).where(*self._here).distinct().subquery("shown")
        request, item = shown.c
        time = e[recipe.time.column]
        kind, kinds = q.kind(recipe, q.labels), event_types(recipe)
        more = [_or_null(e, recipe.type), _or_null(e, recipe.value), sa.null() if kind is None else kind]
        found = (
            sa.select(e[recipe.item], time, item, *more)
            .select_from(q.labels.outerjoin(shown, sa.and_(e[recipe.request] == request, e[recipe.item] == item)))
            .where(e[recipe.request] == untyped(self.wanted))
            .order_by(time)
        )
        if self.at is not None:
            since, until = self._wide(self.bucket)
            found = found.where(q.sql.between(time, recipe.time, since, until + recipe.attribution))
        *columns, written, value, number = self.reader.columns(found, MOST_ROWS)
        named = [w if n is None else kinds[int(n)] for w, n in zip(written, number, strict=True)]
        return [*columns, named, value]

    def _judgment_columns(self, recipe: Judgments) -> list[list[Any]]:
        """Item and grade of the query's judgments; item, position and query of the row each falls on."""
        q, e = self.queries, self.queries.labels.c
        query = q.rankings.c[str(self.monitor.rankings.query)]
        match = sa.and_(e[recipe.query] == query, e[recipe.item] == q.item, *self._here)
        found = (
            sa.select(e[recipe.item], e[recipe.grade], q.item, q.position, query)
            .select_from(q.labels.outerjoin(q.rankings, match))
            .where(e[recipe.query].in_(sa.select(query).where(*self._here).correlate(None)))
            .where(e[recipe.item].isnot(None), e[recipe.grade].isnot(None))
        )
        return self.reader.columns(found, MOST_ROWS)


def _or_null(columns: Any, name: str | None) -> sa.ColumnElement[Any]:
    column: sa.ColumnElement[Any] = sa.null() if name is None else columns[name]
    return column


class _Source:
    """The request's rows as the source sent them, and what follows for the whole request."""

    def __init__(self, monitor: Monitor, columns: list[list[Any]], more: dict[str, list[Any]]) -> None:
        """`columns`: request, item, position, time; `more`: the others by name."""
        instants = to_micros(monitor.rankings.time, columns[3])
        at = instants.micros
        self.more = more
        self.request = columns[0][0]
        first = int(np.argmin(at))
        self.served = int(at[first])
        self.bucket = bucket_of(self.served // MICROS, monitor.bucket)
        ranks = [as_number(p, np.inf) - monitor.rankings.position.base + 1 for p in columns[2]]
        self.rows = [Row(*row) for row in zip(columns[1], columns[2], ranks, at.tolist(), strict=True)]
        results = monitor.rankings.results
        of_none = [p is None for p in columns[2]] if results is None else [n == 0 for n in more[results]]
        rows = list(zip(self.rows, of_none, strict=True))
        lacks = [r.item is None or (results is not None and is_none and not r.is_placed) for r, is_none in rows]
        self.nothing = [(r.position, r.at) for (r, n), lacking in zip(rows, lacks, strict=True) if n and lacking]
        self.is_empty = bool(self.nothing) and all(lacks)
        self.query = _one(more.get(monitor.rankings.query or ""))
        self.slices = {s.dimension: _one(more[s.column]) for s in monitor.slices}
        by_query = isinstance(monitor.recipe, Judgments) and self.query == MIXED
        self.mixed = ("mixed_query",) * by_query + ("mixed_slice",) * list(self.slices.values()).count(MIXED)
        self.is_unreadable, self.is_ambiguous = bool(instants.unreadable[first]), bool(instants.doubtful[first])
        self.is_long = not self.is_ambiguous and int(at.max()) - self.served > monitor.max_request_span * MICROS

    @property
    def no_sample(self) -> str:
        """Why the request is not sampled, regardless of labels."""
        if self.is_unreadable:
            return "its serving time cannot be read"
        if self.is_ambiguous:
            return "its local serving time occurs twice or never, because clocks change"
        if self.is_long:
            return "its rows span more than max_request_span; it is left out"
        shows = self.is_empty or any(r.item is not None and r.is_placed for r in self.rows)
        return "" if shows else "it has no item with a position"

    def reasons(self, row: Row) -> tuple[str, ...]:
        """Why a row is refused, regardless of its label."""
        says_empty = self.is_empty and (row.position, row.at) in self.nothing
        faults = {
            "long_request": self.is_long,
            "null_item": row.item is None and not says_empty,
            "null_position": row.position is None and not says_empty,
            "bad_position": row.position is not None and not row.is_placed and not says_empty,
            "bad_time": self.is_unreadable,
            "ambiguous_time": self.is_ambiguous,
        }
        return tuple(reason for reason, is_so in faults.items() if is_so)


def _one(values: Sequence[Any] | None) -> Any:
    """The common value of a column, ignoring NULLs; `(mixed)` if values differ."""
    known = [v for v in values or () if v is not None]  # a list: a set cannot hold arrays and JSON
    if not known:
        return None
    return MIXED if not all(is_same(v, known[0]) for v in known) else known[0]
