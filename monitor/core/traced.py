"""One request taken apart: which of its rows and events went where, and why.

What decides is asked of the same functions that the pull asks: `event_grades`, `attribute`, `combine` and `accept`.
Here it is only kept what became of each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.core.kernels import Judged
from monitor.core.kernels import Rankings as Graded
from monitor.core.relevance import GradeLimits, Refusals, Rows, accept, attribute, combine, event_grades
from monitor.core.types import Events, Judgments, Monitor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Key = tuple[Any, Any]
"""Item and position of a row, as the source has them."""

MICROS = 1_000_000

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


@dataclass(frozen=True)
class Labels:
    """The grade of each row, in order, and what it comes from.

    Attributes:
        rows: the rows themselves, where something was added to them.
        no_sample: why the labels make the request no sample; empty if they do not.
    """

    grades: list[float | None]
    rows: list[Row] | None = None
    strays: tuple[Event, ...] = ()
    judgments: tuple[Judgment, ...] = ()
    no_sample: str = ""


# ---- labels ----------------------------------------------------------------------------------------------------


def by_column(grades: Iterable[Any]) -> Labels:
    """Labels from what the rows' own grade column holds."""
    numbers = [None if v is None else as_number(v, np.inf) for v in grades]
    return Labels(numbers, no_sample="" if any(g is not None for g in numbers) else "none of its rows has a grade")


def by_events(recipe: Events, rows: Sequence[Row], events: Sequence[tuple[Key | None, Event]]) -> Labels:
    """Labels from (row that it falls on, event), as `weigh` gives them; None is on no row.

    Of rows with the same item and position the first has the grade and all the events, the others are copies.
    """
    grades = _combined(recipe, events)
    mine: dict[Key | None, list[Event]] = {}
    for key, event in events:
        mine.setdefault(key, []).append(event)
    labels: list[float | None] = []
    found, seen = [], set[Key]()
    for row in rows:
        key = row.item, row.position
        found.append(replace(row, events=() if key in seen else tuple(mine.get(key, ())), is_copy=key in seen))
        labels.append(None if key in seen else grades.get(key))
        seen.add(key)
    return Labels(labels, found, tuple(mine.get(None, ())))


def by_judgments(
    rows: Sequence[Row], queries: Sequence[Any], columns: Sequence[Sequence[Any]], limits: GradeLimits
) -> Labels:
    """Labels from the judgments of the request's query.

    Args:
        queries: of each row.
        columns: item, grade, and item, position and query of the row it falls on (None if there is none) of each
            judgment.
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
        return Labels(labels, no_sample="its rows differ in their query")
    best = sorted(judged, key=lambda i: (-judged[i], str(i)))
    usable = limits.allow(np.array([judged[i] for i in best], np.float64)).tolist()
    judgments = (Judgment(i, judged[i], tuple(shown.get(i, ())), u) for i, u in zip(best, usable, strict=True))
    return Labels(labels, None, (), tuple(judgments), "" if judged else "its query is not judged")


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
    recipe: Events, span: int, served: int, columns: Sequence[Sequence[Any]], at: Ints, bad: Bools
) -> list[tuple[Key | None, Event]]:
    """(item and position of the row it falls on, event with what it is worth and whether it counts) of each.

    Args:
        span: seconds before the serving and after the attribution within which an event is reported as refused.
        served: microseconds, when the request was served.
        columns: item, time, item and position of the row it falls on (None if there is none), type, value.
        at: (n,) microseconds, the time of each.
        bad: (n,) whether it is a time that cannot be read.
    """
    item, time, row_item, position, kind, raw = columns
    value = np.array([as_number(v, nan) for v in raw], np.float64)
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


def _attributed(recipe: Events, span: int, served: int, at: Ints, worth: Floats) -> list[str]:
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


# ---- what counts -----------------------------------------------------------------------------------------------


def is_candidate(monitor: Monitor, row: Row) -> bool:
    """Whether the row, with its grade, goes into the measures if nothing speaks against it."""
    if row.item is None or row.is_copy or not row.rank >= 1:
        return False
    is_sparse = all(m.is_sparse for m in monitor.measures)
    if isinstance(monitor.recipe, Events):
        return row.grade is not None or not is_sparse
    return row.grade is not None and not isnan(row.grade) and (row.grade != 0 or not is_sparse)


def refuse(monitor: Monitor, rows: Sequence[Row]) -> list[Row]:
    """One request's rows, each with the reason added why `accept` leaves it out, if it does."""
    at = [i for i, r in enumerate(rows) if is_candidate(monitor, r)]
    codes: dict[Any, int] = {}
    item = np.array([codes.setdefault(rows[i].item, len(codes)) for i in at], np.int64)
    rank, grade = (np.array([x or 0.0 for x in c]) for c in ((rows[i].rank for i in at), (rows[i].grade for i in at)))
    limits = GradeLimits.of(monitor.measures, monitor.recipe.bound)
    why = _why_refused(Rows(np.zeros(len(at), np.int64), item, rank, grade), limits)
    found = list(rows)
    for i, reason in zip(at, why, strict=True):
        found[i] = replace(rows[i], reasons=(*rows[i].reasons, reason)) if reason else rows[i]
    return found


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


def graded(
    monitor: Monitor, rows: Sequence[Row], used: Sequence[int], judgments: Sequence[Judgment], is_sample: bool
) -> Graded:
    """What the measures are computed from: the rows that `used` names, by rising rank."""
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
