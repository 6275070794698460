"""One request, straight from the source, with all that goes into its values: for `rankmon inspect`.

What decides is asked of the same functions that the pull asks: `event_grades`, `attribute`, `combine` and `accept` for
the grades, `score` for the values. Here it is only kept which row went where, and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, nan
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from monitor.core.buckets import bucket_of
from monitor.core.kernels import Judged
from monitor.core.kernels import Rankings as Graded
from monitor.core.relevance import GradeLimits, Refusals, Rows, accept, attribute, combine, event_grades
from monitor.core.types import MIXED, Column, Events, Judgments, Monitor
from monitor.errors import InputError, SourceError, TooMany
from monitor.source.engine import Database, Reader
from monitor.source.queries import Condition, Queries, between
from monitor.source.times import to_micros

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Key = tuple[Any, Any]
"""Item and position of a row, as the source has them."""

MICROS = 1_000_000
MOST_ROWS = 1_000_000

_NOT_OF_THE_TYPE = ("22P02", "22003", "22007", "22008")
"""SQL states of text that the column's type cannot read, or that is out of its range."""

EVENT_REASONS = {
    "early": "long before the request was served",
    "late": "long after the attribution time",
    "no_time": "has no time",
    "no_rule": "no rule gives it a grade",
    "unmatched": "its item was not shown to this request",
}
"""Why an event does not count, beside the reasons that are counted as refusals (`relevance.REASONS`)."""


@dataclass(frozen=True)
class Event:
    """Something that a person did.

    Attributes:
        at: microseconds since 1970; None if it has no readable time.
        worth: its grade by the rules; None where none fits.
        reason: why it does not count, a key of `EVENT_REASONS` or `relevance.REASONS`; empty if it does.
    """

    item: Any
    kind: str | None
    at: int | None
    value: float | None
    worth: float | None
    reason: str


@dataclass(frozen=True)
class Row:
    """A row of the rankings.

    Attributes:
        position: as the source has it.
        rank: counted from 1 on; nan where the position is no number.
        grade: from its label; None where it has none. nan and inf are labels that are no number.
        events: those on its item by time, whether they count or not.
        reasons: why it is left out, keys of `relevance.REASONS`; empty if nothing speaks against it.
        is_copy: the same item and position stood in an earlier row; the events of both stand there.
    """

    item: Any
    position: Any
    rank: float
    at: int
    grade: float | None = None
    events: tuple[Event, ...] = ()
    reasons: tuple[str, ...] = ()
    is_copy: bool = False


@dataclass(frozen=True)
class Judgment:
    """What is judged of the request's query: the highest grade of an item, and at which positions it was shown.

    `is_usable`: the grade is one that every measure can take; others are as if not judged.
    """

    item: Any
    grade: float
    positions: tuple[Any, ...]
    is_usable: bool


@dataclass(frozen=True)
class Inspection:
    """A request as a read of its bucket sees it.

    Attributes:
        request: its id as the source has it.
        served: microseconds, time of its earliest row.
        bucket: start, in seconds.
        rows: by position; those without one last.
        strays: events of the request on items that were not shown to it.
        judgments: of its query, best first.
        mixed: `mixed_query` once, `mixed_slice` for each slice whose rows differ.
        graded: what the measures are computed from; `used` says which of `rows` its rows are.
        no_sample: why the request counts for no measure; empty if it does.
        elsewhere: rows of this id too far from the bucket to be read with it, or without a time.
    """

    monitor: Monitor
    request: Any
    served: int
    bucket: int
    query: str | None
    slices: dict[str, str | None]
    rows: tuple[Row, ...]
    strays: tuple[Event, ...]
    judgments: tuple[Judgment, ...]
    mixed: tuple[str, ...]
    graded: Graded
    used: tuple[int, ...]
    no_sample: str
    elsewhere: int


def inspect(monitor: Monitor, database: Database, request: str, at: int | None = None) -> Inspection:
    """The request of that id: the earliest there is, or the one read with the bucket that holds `at` (seconds).

    Without `at` the search goes by the id alone, through all of the table where the id has no index.

    Raises:
        InputError: there is no such request there.
        SourceError: the source did not answer, or holds other types than configured.
    """
    try:
        with database.reading() as reader:
            return _Look(monitor, Queries(monitor, (None,)), reader, request, at).inspection()
    except TooMany as error:
        raise SourceError(f"{_place(monitor)}: {request!r} has {error}; is it the id of a request?", "data") from error
    except SourceError as error:
        driver = getattr(error.__cause__, "orig", None)
        if getattr(driver, "sqlstate", None) in _NOT_OF_THE_TYPE:
            raise InputError(f"{_place(monitor)}: {request!r} can be no request id: {error}") from error
        if error.reason == "timeout" and at is None:
            text = f"{error}; or say with --at when the request was served, so that the time bounds the search"
            raise SourceError(text, "timeout") from error
        raise


def _place(monitor: Monitor) -> str:
    relation = monitor.rankings.relation
    where = f"table {'.'.join(relation.table)}" if relation.table else "the rankings' SELECT"
    return f"source {monitor.source}, {where}, column {monitor.rankings.request}"


@dataclass
class _Look:
    """One look at the source under way."""

    monitor: Monitor
    queries: Queries
    reader: Reader
    text: str
    at: int | None
    wanted: Any = field(init=False, default=None)
    bucket: int = field(init=False, default=0)

    def inspection(self) -> Inspection:
        total = self._locate()
        source = self._rows()
        if source.bucket < self.bucket:  # found by `at` in the margin before its bucket
            self.bucket = source.bucket
            source = self._rows()
        self.wanted = source.request
        labels = self._labels(source)
        rows = [replace(r, grade=g) for r, g in zip(labels.rows or source.rows, labels.grades, strict=True)]
        rows = [
            replace(r, reasons=(*source.reasons(r), *why)) for r, why in zip(rows, self._refused(rows), strict=True)
        ]
        rows = sorted(rows, key=lambda r: (isnan(r.rank), r.rank, str(r.item)))
        used = tuple(i for i, r in enumerate(rows) if self._is_candidate(r) and set(r.reasons) <= {"ambiguous_time"})
        no_sample = labels.no_sample or source.no_sample
        return Inspection(
            self.monitor,
            source.request,
            source.served,
            source.bucket,
            source.query,
            source.slices,
            tuple(rows),
            labels.strays,
            labels.judgments,
            source.mixed,
            _graded(self.monitor, rows, used, labels.judgments, not no_sample),
            used,
            no_sample,
            total - len(rows) if self.at is None else 0,
        )

    # ---- reading -----------------------------------------------------------------------------------------------

    def _locate(self) -> int:
        """Find which bucket the request is in; how many rows have its id where it was looked for."""
        bounds = None if self.at is None else self._wide(bucket_of(self.at, self.monitor.bucket))
        within = [] if bounds is None else [self.queries.served(*bounds)]
        for wanted in self._spellings():
            self.wanted = wanted
            columns: list[sa.ColumnElement[Any]] = [sa.func.min(self.queries.time), sa.func.count()]
            found = sa.select(*columns).select_from(self.queries.rankings).where(self._is_it, *within)
            (earliest,), (total,) = self.reader.columns(found)
            if earliest is not None:
                self.bucket = self._bucket_of(earliest)
                return int(total)
        raise InputError(self._unknown(bounds))

    def _spellings(self) -> Iterator[Any]:
        """The id as text, which databases turn into the column's type; SQLite not where the column has none."""
        yield self.text
        if self.reader.dialect.name == "sqlite" and re.fullmatch("0|-?[1-9][0-9]{0,17}", self.text):
            yield int(self.text)

    @property
    def _is_it(self) -> Condition:
        return self.queries.request == self._bound()

    def _bound(self) -> sa.BindParameter[Any]:
        # A parameter with a type is sent with a cast, which an integer or UUID column cannot be compared with.
        return sa.bindparam("request", self.wanted, type_=sa.types.NullType(), unique=True)

    def _bucket_of(self, raw: object) -> int:
        micros, bad, _ = to_micros(self.monitor.rankings.time, [raw])
        if bad[0]:
            raise SourceError(f"{_place(self.monitor)}: {self.text!r} was served at {raw!r}, which is no time", "data")
        return bucket_of(int(micros[0]) // MICROS, self.monitor.bucket)

    def _wide(self, bucket: int) -> tuple[int, int]:
        """What is read for a bucket: with a margin, so that requests on its edges are seen whole."""
        span = self.monitor.max_request_span
        return bucket - span, bucket + self.monitor.bucket + span

    def _unknown(self, bounds: tuple[int, int] | None) -> str:
        where = f"{_place(self.monitor)}: there is no request {self.text!r}"
        if bounds is None:
            return f"{where} with a time; is it one of monitor {self.monitor.name}?"
        since, until = (np.datetime64(b, "s") for b in bounds)
        return f"{where} from {since} to {until} UTC; give another --at, or none to search everywhere"

    @property
    def _here(self) -> list[Condition]:
        """Rows of the request that a read of its bucket sees."""
        return [self._is_it, self.queries.served(*self._wide(self.bucket))]

    def _rows(self) -> _Source:
        q, r = self.queries, self.monitor.rankings
        names = [r.query, q.grade_column, *(s.column for s in self.monitor.slices)]
        more = [q.rankings.c[name] for name in dict.fromkeys(names) if name is not None]
        columns = [q.request, q.item, q.position, q.time, *more]
        read = self.reader.columns(sa.select(*columns).where(*self._here), MOST_ROWS)
        return _Source(self.monitor, read[:4], dict(zip((str(c.name) for c in more), read[4:], strict=True)))

    # ---- labels ------------------------------------------------------------------------------------------------

    def _labels(self, source: _Source) -> _Labels:
        recipe = self.monitor.recipe
        if isinstance(recipe, Events):
            return self._by_events(recipe, source)
        if isinstance(recipe, Judgments):
            return self._by_judgments(recipe, source)
        return _by_column(recipe, source)

    def _by_events(self, recipe: Events, source: _Source) -> _Labels:
        events = _weigh(recipe, self.monitor.max_request_span, source.served, self._event_columns(recipe))
        grades = _combined(recipe, events)
        mine: dict[Any, list[Event]] = {}
        for key, event in events:
            mine.setdefault(key, []).append(event)
        rows, labels, seen = [], [], set[Key]()
        for row in source.rows:
            key = (row.item, row.position)
            rows.append(replace(row, events=() if key in seen else tuple(mine.get(key, ())), is_copy=key in seen))
            labels.append(None if key in seen else grades.get(key))
            seen.add(key)
        return _Labels(labels, rows, tuple(mine.get(None, ())))

    def _event_columns(self, recipe: Events) -> list[list[Any]]:
        """Item, time, item and position of the row it falls on, type, value of the request's events; by time."""
        q, e = self.queries, self.queries.labels.c
        match = sa.and_(e[recipe.request] == q.request, e[recipe.item] == q.item, *self._here)
        time = e[recipe.time.column]
        found = (
            sa.select(e[recipe.item], time, q.item, q.position, *(_or_null(e, c) for c in (recipe.type, recipe.value)))
            .select_from(q.labels.outerjoin(q.rankings, match))
            .where(e[recipe.request] == self._bound())
            .order_by(time)
        )
        if self.at is not None:
            since, until = self._wide(self.bucket)
            found = found.where(between(time, recipe.time, since, until + recipe.attribution))
        return self.reader.columns(found, MOST_ROWS)

    def _by_judgments(self, recipe: Judgments, source: _Source) -> _Labels:
        judged: dict[Any, float] = {}
        shown: dict[Any, dict[Any, None]] = {}
        grades: dict[Any, float] = {}
        for item, grade, row_item, position, query in zip(*self._judgment_columns(recipe), strict=True):
            judged[item] = _highest(judged.get(item), grade)
            if row_item is not None:
                key = row_item, position, query
                grades[key] = _highest(grades.get(key), grade)
                shown.setdefault(item, {})[position] = None
        queries = source.more[str(self.monitor.rankings.query)]
        labels = [grades.get((r.item, r.position, q)) for r, q in zip(source.rows, queries, strict=True)]
        if "mixed_query" in source.mixed:
            return _Labels(labels, no_sample="its rows differ in their query")
        best = sorted(judged, key=lambda i: (-judged[i], str(i)))
        usable = self._limits.allow(np.array([judged[i] for i in best], np.float64)).tolist()
        judgments = (Judgment(i, judged[i], tuple(shown.get(i, ())), u) for i, u in zip(best, usable, strict=True))
        return _Labels(labels, None, (), tuple(judgments), "" if judged else "its query is not judged")

    def _judgment_columns(self, recipe: Judgments) -> list[list[Any]]:
        """Item, grade, and item, position and query of the row it falls on, of the judgments of the request's query."""
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

    # ---- what counts -------------------------------------------------------------------------------------------

    @cached_property
    def _limits(self) -> GradeLimits:
        return GradeLimits.of(self.monitor.measures, self.monitor.recipe.bound)

    @cached_property
    def _is_sparse(self) -> bool:
        return all(m.is_sparse for m in self.monitor.measures)

    def _is_candidate(self, row: Row) -> bool:
        """Whether the row goes into the measures if nothing speaks against it."""
        if row.item is None or row.is_copy or not row.rank >= 1:
            return False
        if isinstance(self.monitor.recipe, Events):
            return row.grade is not None or not self._is_sparse
        return row.grade is not None and not isnan(row.grade) and (row.grade != 0 or not self._is_sparse)

    def _refused(self, rows: Sequence[Row]) -> list[tuple[str, ...]]:
        """Why each row is refused, if it is, once its grade is known."""
        at = [i for i, r in enumerate(rows) if self._is_candidate(r)]
        codes: dict[Any, int] = {}
        item = np.array([codes.setdefault(rows[i].item, len(codes)) for i in at], np.int64)
        rank, grade = (
            np.array([x or 0.0 for x in c]) for c in ((rows[i].rank for i in at), (rows[i].grade for i in at))
        )
        why = _why_refused(Rows(np.zeros(len(at), np.int64), item, rank, grade), self._limits)
        reasons: list[tuple[str, ...]] = [()] * len(rows)
        for i, reason in zip(at, why, strict=True):
            reasons[i] = (reason,) if reason else ()
        return reasons


def _or_null(columns: Any, name: str | None) -> sa.ColumnElement[Any]:
    column: sa.ColumnElement[Any] = sa.null() if name is None else columns[name]
    return column


@dataclass(frozen=True)
class _Labels:
    """The grade of each row, and what it comes from; `rows` where they were added to."""

    grades: list[float | None]
    rows: list[Row] | None = None
    strays: tuple[Event, ...] = ()
    judgments: tuple[Judgment, ...] = ()
    no_sample: str = ""


class _Source:
    """The rows of the request as the source sent them, and what is said of the request as a whole."""

    def __init__(self, monitor: Monitor, columns: list[list[Any]], more: dict[str, list[Any]]) -> None:
        """`columns`: request, item, position, time; `more`: the others by name."""
        at, bad, ambiguous = to_micros(monitor.rankings.time, columns[3])
        if bad.all():
            raise SourceError(f"{_place(monitor)}: the request has no row with a time that can be read", "data")
        self.more = more
        self.request = columns[0][0]
        self.served = int(at[~bad].min())
        self.bucket = bucket_of(self.served // MICROS, monitor.bucket)
        ranks = [_number(p, np.inf) - monitor.rankings.position_base + 1 for p in columns[2]]
        self.rows = [Row(*row) for row in zip(columns[1], columns[2], ranks, at.tolist(), strict=True)]
        self.query = _one(more.get(monitor.rankings.query or ""))
        self.slices = {s.dimension: _one(more[s.column]) for s in monitor.slices}
        by_query = isinstance(monitor.recipe, Judgments) and self.query == MIXED
        self.mixed = ("mixed_query",) * by_query + ("mixed_slice",) * list(self.slices.values()).count(MIXED)
        self.is_ambiguous = bool(ambiguous[~bad & (at == self.served)].any())

    @property
    def no_sample(self) -> str:
        """Why the request is no sample, whatever its labels."""
        if self.is_ambiguous:
            return "the local time of its serving stands twice or never, where the clocks change"
        return "" if any(r.item is not None and r.rank >= 1 for r in self.rows) else "it shows no item at a position"

    def reasons(self, row: Row) -> tuple[str, ...]:
        """What speaks against a row, whatever its label."""
        faults = {
            "null_item": row.item is None,
            "null_position": row.position is None,
            "bad_position": row.rank < 1,
            "ambiguous_time": self.is_ambiguous,
        }
        return tuple(reason for reason, is_so in faults.items() if is_so)


def _one(values: Sequence[Any] | None) -> Any:
    """The one value of a column, a missing one agreeing with any other; `(mixed)` where they differ."""
    known = {v for v in values or () if v is not None}
    return MIXED if len(known) > 1 else next(iter(known), None)


def _number(value: Any, unreadable: float) -> float:
    try:
        return nan if value is None else float(value)
    except (TypeError, ValueError):
        return unreadable


def _highest(known: float | None, value: Any) -> float:
    number = _number(value, np.inf)
    return number if known is None else float(np.maximum(known, number))


def _by_column(recipe: Column, source: _Source) -> _Labels:
    grades = [None if v is None else _number(v, np.inf) for v in source.more[recipe.grade]]
    return _Labels(grades, no_sample="" if any(g is not None for g in grades) else "none of its rows has a grade")


def _weigh(recipe: Events, span: int, served: int, columns: list[list[Any]]) -> list[tuple[Key | None, Event]]:
    """(item and position of the row it falls on, event with what it is worth and whether it counts) of each."""
    item, time, row_item, position, kind, raw = columns
    at, bad, _ = to_micros(recipe.time, time)
    value = np.array([_number(v, nan) for v in raw], np.float64)
    worth = event_grades(
        recipe, np.array(kind, object) if recipe.type else None, value if recipe.value else None, len(at)
    )
    reasons = _attributed(recipe, span, served, at, worth)
    kinds = {r.type for r in recipe.rules}
    for i in range(len(at)):
        if recipe.type is not None and kind[i] not in kinds:
            reasons[i] = "no_rule"
        elif bad[i]:
            reasons[i] = "no_time" if time[i] is None else "bad_time"
        elif row_item[i] is None:
            reasons[i] = "unmatched"
    keys = [None if i is None else (i, p) for i, p in zip(row_item, position, strict=True)]
    times = [None if b else int(a) for a, b in zip(at, bad, strict=True)]
    known = ([None if isnan(v) else v for v in c.tolist()] for c in (value, worth))
    events = (Event(*e) for e in zip(item, kind, times, *known, reasons, strict=True))
    return list(zip(keys, events, strict=True))


def _attributed(recipe: Events, span: int, served: int, at: Ints, worth: NDArray[np.float64]) -> list[str]:
    """Why each event does not count by its time or worth. Each is asked after as if it had a request to itself."""
    each, none = np.arange(len(at)), np.zeros(len(at))
    refusals = Refusals(len(at))
    counted = attribute(Rows(each, each, none, worth), at, np.full(len(at), served), recipe, span, refusals).request
    late = at >= served + recipe.attribution * MICROS
    reasons = np.where(at < served, "early", np.where(late, "late", "no_rule")).astype(object)
    for reason, rows in refusals.counts.items():
        reasons[rows > 0] = reason
    reasons[counted] = ""
    return list(reasons)


def _combined(recipe: Events, events: Sequence[tuple[Key | None, Event]]) -> dict[Key | None, float]:
    """Grade of each (item, position) that has an event which counts."""
    counted = [(key, event.worth) for key, event in events if not event.reason]
    codes: dict[Key | None, int] = {}
    code = np.array([codes.setdefault(key, len(codes)) for key, _ in counted], np.int64)
    worth = np.array([w for _, w in counted], np.float64)
    rows = combine(Rows(np.zeros_like(code), code, np.zeros_like(worth), worth), recipe.combine == "sum")
    return dict(zip(codes, rows.grade.tolist(), strict=True))


def _why_refused(rows: Rows, limits: GradeLimits) -> list[str]:
    """Why `accept` leaves out each of one request's rows; empty for those that it takes."""
    size = len(rows.request)
    # By itself a row can only be refused for what it holds; within its item, for being there twice.
    alone = Refusals(size)
    accept(replace(rows, request=np.arange(size)), limits, alone)
    reasons = np.full(size, "", object)
    for reason, counts in alone.counts.items():
        reasons[counts > 0] = reason
    for reason, request in (("duplicate_item", rows.item), ("duplicate_position", rows.request)):
        left = np.flatnonzero(reasons == "")
        kept = accept(replace(rows, request=request).where(left), limits, Refusals(size))
        reasons[left[~_taken(rows.where(left), kept)]] = reason
    return list(reasons)


def _taken(rows: Rows, kept: Rows) -> Bools:
    """Which of `rows` are the `kept` ones, which name an item once each; of equal rows it is the first."""
    wanted, taken = set(zip(kept.item, kept.position, kept.grade, strict=True)), []
    for row in zip(rows.item, rows.position, rows.grade, strict=True):
        taken.append(row in wanted)
        wanted.discard(row)
    return np.array(taken, bool)


def _graded(
    monitor: Monitor, rows: Sequence[Row], used: Sequence[int], judgments: Sequence[Judgment], is_sample: bool
) -> Graded:
    """What the measures are computed from."""
    ranks = np.array([r.rank for r in rows if r.item is not None and r.rank >= 1])
    shown = {k: np.array([(ranks < 1 + (k or np.inf)).sum()]) for k in {None, *(m.k for m in monitor.measures)}}
    grades = np.array([j.grade for j in judgments if j.is_usable], np.float64)
    distinct, count = np.unique(grades, return_counts=True)
    judged = Judged(np.zeros(len(distinct), np.int64), distinct, count)
    return Graded(
        1,
        np.zeros(len(used), np.int64),
        np.array([rows[i].rank for i in used], np.int64),
        np.array([rows[i].grade or 0.0 for i in used], float),
        np.array([is_sample]),
        shown,
        judged if isinstance(monitor.recipe, Judgments) else None,
    )
