"""One request taken apart: which of its rows and events went where, and why.

What decides is asked of the same functions that the pull asks: `event_grades`, `attribute`, `combine` and `accept`.
Here it is only kept what became of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.measures.kernels import GradedRankings as Graded
from monitor.measures.kernels import JudgedItems
from monitor.measures.measure import Measure
from monitor.measures.relevance import GradedRows, GradeLimits, Refusals, accept, attribute, combine, event_grades
from monitor.types import Events, Judgments, Monitor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MICROS = 1_000_000

EVENT_REASONS = {
    "early": "long before the request was served",
    "late": "long after the attribution time",
    "no_time": "has no time",
    "no_rule": "no rule gives it a grade",
    "unmatched": "its item was not shown to this request",
}
"""Why an event does not count; refusals that are counted have further reasons (`relevance.REASONS`)."""


@dataclass(frozen=True)
class Event:
    """Something that a person did, at microseconds since 1970 (None: unreadable), with its grade by the rules, if any.

    `reason`: why it does not count, a key of `EVENT_REASONS` or `relevance.REASONS`; empty if it does.
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
        position, rank: as the source has it, and counted from 1 on; nan where the position is no number.
        grade: from its label, if any; nan and inf are labels that are no number.
        events: those on its item by time, whether they count or not, at the item's first place alone.
        reasons: why it is left out, keys of `relevance.REASONS`.
        is_copy: the same item and position stood in an earlier row.
    """

    item: Any
    position: Any
    rank: float
    at: int
    grade: float | None = None
    events: tuple[Event, ...] = ()
    reasons: tuple[str, ...] = ()
    is_copy: bool = False

    @property
    def is_placed(self) -> bool:
        """Whether the position is one."""
        return 1 <= self.rank <= 2**53 and self.rank % 1 == 0


@dataclass(frozen=True)
class Judgment:
    """What is judged of the request's query: the highest grade of an item, and at which positions it was shown.

    `is_usable`: the grade is one that can be taken; others are as if not judged.
    """

    item: Any
    grade: float
    positions: tuple[Any, ...]
    is_usable: bool


@dataclass(frozen=True)
class Inspection:
    """A request as a read of its bucket sees it.

    Attributes:
        served: microseconds, time of its earliest row; the `bucket` starts at so many seconds.
        rows: by position; those without one last.
        strays: events of the request on items that were not shown to it.
        judgments: of its query, best first.
        mixed: `mixed_query` once, `mixed_slice` for each slice whose rows differ.
        graded, used: what the measures are computed from, and which of `rows` its rows are.
        no_sample: why the request counts for no measure; empty if it does.
        elsewhere: rows of this id too far from the bucket to be read with it, or without a time.
        again: microseconds of other servings of this id so near that an event can count for both.
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
    again: tuple[int, ...] = ()

    @property
    def is_unlabelled(self) -> bool:
        """Whether it counts for no measure and has nothing either that a measure could be computed from."""
        has_judgments = any(j.is_usable for j in self.judgments)
        return bool(self.no_sample) and not has_judgments and not any(has_label(self.monitor, r) for r in self.rows)

    def taken_by(self, measure: Measure) -> Inspection:
        """The same with what one measure can take of its grades as `graded`, `used` and `judgments`."""
        limits = GradeLimits.of((measure,), self.monitor.recipe.bound)
        used = used_rows(self.monitor, self.rows, limits)
        judgments = tuple(replace(j, is_usable=_allows(limits, j.grade)) for j in self.judgments)
        taken = graded(self.monitor, self.rows, used, judgments, not self.no_sample)
        return replace(self, graded=taken, used=used, judgments=judgments)


@dataclass(frozen=True)
class RowLabels:
    """The grade of each row, in order, and what it comes from; `rows` where something was added to them.

    `no_sample`: why the labels make the request no sample; empty if they do not.
    """

    grades: list[float | None]
    rows: list[Row] | None = None
    strays: tuple[Event, ...] = ()
    judgments: tuple[Judgment, ...] = ()
    no_sample: str = ""


# ---- labels ----------------------------------------------------------------------------------------------------


def by_column(grades: Iterable[Any]) -> RowLabels:
    """Labels from what the rows' own grade column holds."""
    return RowLabels([None if v is None else as_number(v, inf) for v in grades])


def by_events(recipe: Events, rows: Sequence[Row], events: Sequence[tuple[Any, Event]]) -> RowLabels:
    """Labels from (item that it falls on, event), as `weigh` gives them; None is on nothing that was shown.

    Every row of an item has the grade; its last one, by place, counts and has the events.
    """
    grades = _combined(recipe, events)
    mine: dict[Any, list[Event]] = {}
    for item, event in events:
        mine.setdefault(item, []).append(event)
    last: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda r: (isnan(r.rank), -r.rank)):
        last.setdefault(row.item, row)
    found, seen = [], set[tuple[Any, Any]]()
    for row in rows:
        shown = tuple(mine.get(row.item, ())) if row is last[row.item] and row.item is not None else ()
        found.append(replace(row, events=shown, is_copy=(row.item, row.position) in seen))
        seen.add((row.item, row.position))
    return RowLabels([grades.get(row.item) for row in rows], found, tuple(mine.get(None, ())))


def by_judgments(
    rows: Sequence[Row], queries: Sequence[Any], columns: Sequence[Sequence[Any]], limits: GradeLimits
) -> RowLabels:
    """Labels from the judgments of the request's query, by the query of each row.

    `columns`: item, grade, and item, position and query of the row it falls on, if any, of each judgment.
    """
    judged: dict[Any, float] = {}
    shown: dict[Any, dict[Any, None]] = {}
    grades: dict[Any, float] = {}
    for item, grade, row_item, position, query in zip(*columns, strict=True):
        judged[item] = _highest(judged.get(item), grade)
        if row_item is not None:
            key = row_item, position, query
            grades[key] = _highest(grades.get(key), grade)
            shown.setdefault(item, {})[position] = None
    labels = [grades.get((r.item, r.position, q)) for r, q in zip(rows, queries, strict=True)]
    if len({q for q in queries if q is not None}) > 1:
        return RowLabels(labels, no_sample="its rows differ in their query")
    best = sorted(judged, key=lambda i: (-judged[i], str(i)))
    usable = limits.allow(np.array([judged[i] for i in best], np.float64)).tolist()
    judgments = (Judgment(i, judged[i], tuple(shown.get(i, ())), u) for i, u in zip(best, usable, strict=True))
    why_none = "its query is not judged" if any(q is not None for q in queries) else "it has no query"
    return RowLabels(labels, None, (), tuple(judgments), "" if any(usable) else why_none)


def as_number(value: Any, unreadable: float) -> float:
    """A value as a float: None is nan, what is no number is `unreadable`."""
    try:
        return nan if value is None else float(value)
    except (TypeError, ValueError):
        return unreadable


def _highest(known: float | None, value: Any) -> float:
    number = as_number(value, np.inf)
    return number if known is None else float(np.maximum(known, number))


def weigh(
    recipe: Events,
    span: int,
    served: int,
    columns: Sequence[Sequence[Any]],
    at: Ints,
    unreadable: Bools,
    doubtful: Bools,
) -> list[tuple[Any, Event]]:
    """(item that it falls on, event with what it is worth and whether it counts) of each.

    Args:
        span: seconds before the serving (microseconds) and after the attribution in which an event is a refused one.
        columns: item, time, item that it falls on (None if it was not shown), type, value.
        at, unreadable, doubtful: (n,) of their times, as `Instants` in monitor.source.times has them.
    """
    item, time, shown, kind, raw = columns
    value = np.array([as_number(v, inf) for v in raw], np.float64)
    worth = event_grades(
        recipe, np.array(kind, object) if recipe.type else None, value if recipe.value else None, len(at)
    )
    reasons = _attributed(recipe, span, served, at, worth, unreadable, doubtful)
    kinds = {r.type for r in recipe.rules}
    for i in range(len(at)):
        if recipe.type is not None and None not in kinds and kind[i] not in kinds:
            reasons[i] = "no_rule"
        elif time[i] is None:
            reasons[i] = "no_time"
        elif shown[i] is None:
            reasons[i] = "unmatched"
    times = [None if b else int(a) for a, b in zip(at, unreadable, strict=True)]
    known = ([v if isfinite(v) else None for v in c.tolist()] for c in (value, worth))
    events = (Event(*e) for e in zip(item, kind, times, *known, reasons, strict=True))
    return list(zip(shown, events, strict=True))


def _attributed(
    recipe: Events, span: int, served: int, at: Ints, worth: Floats, unreadable: Bools, doubtful: Bools
) -> list[str]:
    """Why each event does not count by its time or worth. Each is asked after as if it had a request to itself."""
    each, none = np.arange(len(at)), np.zeros(len(at))
    refusals, rows = Refusals(len(at)), GradedRows(each, each, none, worth)
    requests = np.full(len(at), served)
    counted = attribute(rows, at, requests, recipe, span, refusals, unreadable, doubtful).request
    late = at >= served + recipe.attribution * MICROS
    reasons = np.where(at < served, "early", np.where(late, "late", "no_rule")).astype(object)
    for reason, counts in refusals.counts.items():
        reasons[counts > 0] = reason
    reasons[counted] = ""
    return list(reasons)


def _combined(recipe: Events, events: Sequence[tuple[Any, Event]]) -> dict[Any, float]:
    counted = [(item, event.worth) for item, event in events if not event.reason]
    codes: dict[Any, int] = {}
    code = np.array([codes.setdefault(item, len(codes)) for item, _ in counted], np.int64)
    worth = np.array([w for _, w in counted], np.float64)
    rows = combine(GradedRows(np.zeros_like(code), code, np.zeros_like(worth), worth), recipe.combine == "sum")
    return dict(zip(codes, rows.grade.tolist(), strict=True))


# ---- what counts -----------------------------------------------------------------------------------------------


def is_candidate(monitor: Monitor, row: Row) -> bool:
    """Whether the row, with its grade, goes into the measures if nothing speaks against it."""
    if row.item is None or not row.is_placed:
        return False
    is_sparse = all(m.is_sparse for m in monitor.measures)
    if isinstance(monitor.recipe, Events):
        return row.grade is not None or not is_sparse
    return row.grade is not None and not isnan(row.grade) and (row.grade != 0 or not is_sparse)


def has_label(monitor: Monitor, row: Row) -> bool:
    """Whether the row, once refused or not, shows an item with a grade that the recipe allows."""
    is_shown = row.item is not None and row.is_placed
    return is_shown and row.grade is not None and _allows(GradeLimits.of((), monitor.recipe.bound), row.grade)


def _allows(limits: GradeLimits, grade: float) -> bool:
    return bool(limits.allow(np.array([grade]))[0])


def refuse(monitor: Monitor, rows: Sequence[Row]) -> list[Row]:
    """One request's rows, each with the reason added why it is left out, by some measure at least, if it is."""
    found = list(rows)
    for i, reason in _judged(monitor, rows, GradeLimits.of(monitor.measures, monitor.recipe.bound)):
        found[i] = replace(rows[i], reasons=(*rows[i].reasons, reason)) if reason else rows[i]
    return found


def used_rows(monitor: Monitor, rows: Sequence[Row], limits: GradeLimits) -> tuple[int, ...]:
    """Which of one request's rows go into a measure that can take grades within `limits`."""
    return tuple(i for i, reason in _judged(monitor, rows, limits) if not reason)


def _judged(monitor: Monitor, rows: Sequence[Row], limits: GradeLimits) -> list[tuple[int, str]]:
    at = [i for i, r in enumerate(rows) if is_candidate(monitor, r)]
    codes: dict[Any, int] = {}
    item = np.array([codes.setdefault(rows[i].item, len(codes)) for i in at], np.int64)
    rank, grade = (np.array([x or 0.0 for x in c]) for c in ((rows[i].rank for i in at), (rows[i].grade for i in at)))
    why = _why_refused(GradedRows(np.zeros(len(at), np.int64), item, rank, grade), limits)
    return list(zip(at, why, strict=True))


def _why_refused(rows: GradedRows, limits: GradeLimits) -> list[str]:
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
        lost = left[~_taken(rows.where(left), kept)]
        reasons[lost] = reason
        taken = set(zip(kept.item.tolist(), kept.position.tolist(), strict=True))
        again = [(i, p) in taken for i, p in zip(rows.item[lost].tolist(), rows.position[lost].tolist(), strict=True)]
        reasons[lost[np.array(again, bool)]] = "duplicate_row"
    return list(reasons)


def _taken(rows: GradedRows, kept: GradedRows) -> Bools:
    """Which of `rows` are the `kept` ones, which name an item once each; of equal rows it is the first."""
    wanted, taken = set(zip(kept.item, kept.position, kept.grade, strict=True)), []
    for row in zip(rows.item, rows.position, rows.grade, strict=True):
        taken.append(row in wanted)
        wanted.discard(row)
    return np.array(taken, bool)


def graded(
    monitor: Monitor, rows: Sequence[Row], used: Sequence[int], judgments: Sequence[Judgment], is_sample: bool
) -> Graded:
    """What the measures are computed from: the rows that `used` names, by rising rank."""
    shown = {
        k: np.array([len({r.item for r in rows if r.item is not None and r.is_placed and r.rank <= (k or np.inf)})])
        for k in {None, *(m.k for m in monitor.measures)}
    }
    grades = np.array([j.grade for j in judgments if j.is_usable], np.float64)
    distinct, count = np.unique(grades, return_counts=True)
    judged = JudgedItems(np.zeros(len(distinct), np.int64), distinct, count)
    return Graded(
        1,
        np.zeros(len(used), np.int64),
        np.array([rows[i].rank for i in used], np.int64),
        np.array([rows[i].grade or 0.0 for i in used], float),
        np.array([is_sample]),
        shown,
        judged if isinstance(monitor.recipe, Judgments) else None,
    )
