"""One request taken apart: which of its rows and events count, and why not.
The decisions are those of the pull (`event_grades`, `attribute`, `combine`, `accept`); this module only records them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan
from typing import Any

import numpy as np

from monitor.arrays import Bools, Floats, Ints, as_number, floats
from monitor.measures.kernels import GradedRankings as Graded
from monitor.measures.kernels import JudgedItems, worth
from monitor.measures.measure import Depth, Measure
from monitor.measures.relevance import GradedRows, GradeLimits, RowReasons, accept, attribute, combine, event_grades
from monitor.series.partials import stored_name
from monitor.series.readings import MICROS
from monitor.types import Events, Judgments, Monitor

Times = tuple[Ints, Bools, Ints]
"""`Instants` of monitor.source.times, shape (n,) each: microseconds, whether unreadable, how much later it may be."""

EVENT_REASONS = {
    "early": "long before the request was served",
    "late": "long after the attribution time",
    "no_time": "has no time",
    "no_rule": "no rule gives it a grade",
    "unmatched": "its item was not shown to this request",
}
"""Why an event does not count; counted refusals have further reasons (`relevance.REASONS`)."""


@dataclass(frozen=True)
class Event:
    """A user's event, at microseconds since 1970 (None: unreadable), with its grade by the rules, if any.

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
        position, rank: as in the source, and from 1 on; nan if the position is not a number.
        grade: from its label, if any; nan and inf if the label is not a number.
        events: on its item, by time, counted or not; only at the item's last place.
        reasons: why it is left out, keys of `relevance.REASONS`.
        is_copy: an earlier row has the same item and position.
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
        """Whether the position is valid."""
        return 1 <= self.rank <= 2**53 and self.rank % 1 == 0


@dataclass(frozen=True)
class Judgment:
    """A judgment of the request's query: an item's highest grade, and the positions at which it was shown.

    `is_usable`: the grade is valid; otherwise the item counts as not judged.
    """

    item: Any
    grade: float
    positions: tuple[Any, ...]
    is_usable: bool


@dataclass(frozen=True)
class Inspection:
    """A request as a read of its bucket sees it.

    Attributes:
        served: microseconds, time of its earliest row; `bucket` is the start in seconds.
        rows: by position; those without one last.
        strays: events on items that were not shown to the request.
        judgments: of its query, best first.
        mixed: `mixed_query` once, `mixed_slice` for each slice that differs between rows.
        graded, used: the input of the measures, and the indices in `rows` that it comes from.
        no_sample: why the request counts for no measure; empty if it does.
        elsewhere: number of rows of this id too far from the bucket to be read with it, or without a time.
        again: microseconds of other servings of this id, so near that an event can count for both.
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
        """Whether the request counts for no measure and has no label from which one could be computed."""
        has_judgments = any(j.is_usable for j in self.judgments)
        return bool(self.no_sample) and not has_judgments and not any(has_label(self.monitor, r) for r in self.rows)

    def taken_by(self, measure: Measure) -> Inspection:
        """The inspection with `graded`, `used` and `judgments` limited to the grades that a measure can take."""
        limits = GradeLimits.of((measure,), self.monitor.recipe.bound)
        used = used_rows(self.monitor, self.rows, limits)
        judgments = tuple(replace(j, is_usable=_allows(limits, j.grade)) for j in self.judgments)
        taken = graded(self.monitor, self.rows, used, judgments, not self.no_sample, self.slices)
        return replace(self, graded=taken, used=used, judgments=judgments)


@dataclass(frozen=True)
class RowLabels:
    """The rows with their grades, and where these come from.

    `no_sample`: why the labels make the request no sample; empty if they do not.
    """

    rows: list[Row]
    strays: tuple[Event, ...] = ()
    judgments: tuple[Judgment, ...] = ()
    no_sample: str = ""


# ---- labels ----------------------------------------------------------------------------------------------------


def by_column(rows: Sequence[Row], grades: Sequence[Any]) -> RowLabels:
    """Labels from the rows' own grade column."""
    known = (None if v is None else as_number(v, inf) for v in grades)
    return RowLabels([replace(row, grade=grade) for row, grade in zip(rows, known, strict=True)])


def by_events(recipe: Events, rows: Sequence[Row], events: Sequence[tuple[Any, Event]]) -> RowLabels:
    """Labels from (item, event) pairs as of `weigh`; the item is None if it was not shown.

    All rows of an item get the grade, the last one by rank its events.
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
        is_copy = (row.item, row.position) in seen
        found.append(replace(row, grade=grades.get(row.item), events=shown, is_copy=is_copy))
        seen.add((row.item, row.position))
    return RowLabels(found, tuple(mine.get(None, ())))


def by_judgments(
    rows: Sequence[Row], queries: Sequence[Any], columns: Sequence[Sequence[Any]], limits: GradeLimits
) -> RowLabels:
    """Labels from the judgments of the request's query, by the query of each row.

    `columns`: item and grade of each judgment, and item, position and query of its row, if any.
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
    of_query = zip(rows, queries, strict=True)
    labelled = [replace(r, grade=grades.get((r.item, r.position, q))) for r, q in of_query]
    if len({q for q in queries if q is not None}) > 1:
        return RowLabels(labelled, no_sample="its rows differ in their query")
    best = sorted(judged, key=lambda i: (-judged[i], str(i)))
    usable = limits.allow(np.array([judged[i] for i in best], np.float64)).tolist()
    judgments = (Judgment(i, judged[i], tuple(shown.get(i, ())), u) for i, u in zip(best, usable, strict=True))
    why_none = "its query is not judged" if any(q is not None for q in queries) else "it has no query"
    return RowLabels(labelled, (), tuple(judgments), "" if any(usable) else why_none)


def _highest(known: float | None, value: Any) -> float:
    number = as_number(value, np.inf)
    return number if known is None else float(np.maximum(known, number))


def weigh(
    recipe: Events, span: int, served: int, columns: Sequence[Sequence[Any]], times: Times
) -> list[tuple[Any, Event]]:
    """(item of the row or None, event with its worth and its reason not to count) for each of n events.

    Args:
        span: seconds before the serving and after the attribution within which an event counts as refused.
        served: microseconds.
        columns: item, time, item of the row (None if it was not shown), type, value.
    """
    at, unreadable, _ = times
    item, time, shown, kind, raw = columns
    value = floats(raw, inf)
    worth = event_grades(
        recipe, np.array(kind, object) if recipe.type else None, value if recipe.value else None, len(at)
    )
    reasons = _attributed(recipe, span, served, times, worth)
    kinds = {r.type for r in recipe.rules}
    for i in range(len(at)):
        if recipe.type is not None and None not in kinds and kind[i] not in kinds:
            reasons[i] = "no_rule"
        elif time[i] is None:
            reasons[i] = "no_time"
        elif shown[i] is None:
            reasons[i] = "unmatched"
    instants = [None if b else int(a) for a, b in zip(at, unreadable, strict=True)]
    known = ([v if isfinite(v) else None for v in c.tolist()] for c in (value, worth))
    events = (Event(*e) for e in zip(item, kind, instants, *known, reasons, strict=True))
    return list(zip(shown, events, strict=True))


def _attributed(recipe: Events, span: int, served: int, times: Times, worth: Floats) -> list[str]:
    """Why each event does not count by its time or worth."""
    at, unreadable, later = times
    each, why = np.arange(len(at)), RowReasons(len(at))
    rows = GradedRows(np.zeros_like(each), each, np.zeros(len(at)), worth, each)
    counted = attribute(rows, at, np.array([served]), recipe, span, why, unreadable, later)
    late = at >= served + recipe.attribution * MICROS
    reasons = np.where(at < served, "early", np.where(late, "late", "no_rule")).astype(object)
    reasons = np.where(why.reasons == "", reasons, why.reasons)
    reasons[counted.item] = ""
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
    """Whether the row, with its grade, may enter the measures."""
    if row.item is None or not row.is_placed:
        return False
    is_sparse = all(m.is_sparse for m in monitor.measures)
    if isinstance(monitor.recipe, Events):
        return row.grade is not None or not is_sparse
    return row.grade is not None and not isnan(row.grade) and (row.grade != 0 or not is_sparse)


def has_label(monitor: Monitor, row: Row) -> bool:
    """Whether the row, refused or not, shows an item with a grade that the recipe allows."""
    is_shown = row.item is not None and row.is_placed
    return is_shown and row.grade is not None and _allows(GradeLimits.of((), monitor.recipe.bound), row.grade)


def _allows(limits: GradeLimits, grade: float) -> bool:
    return bool(limits.allow(np.array([grade]))[0])


def refuse(monitor: Monitor, rows: Sequence[Row]) -> list[Row]:
    """One request's rows, with the reason added to those that at least one measure leaves out."""
    found = list(rows)
    for i, reason in _judged(monitor, rows, GradeLimits.of(monitor.measures, monitor.recipe.bound)):
        found[i] = replace(rows[i], reasons=(*rows[i].reasons, reason)) if reason else rows[i]
    return found


def used_rows(monitor: Monitor, rows: Sequence[Row], limits: GradeLimits) -> tuple[int, ...]:
    """Indices of the rows that enter a measure taking grades within `limits`."""
    return tuple(i for i, reason in _judged(monitor, rows, limits) if not reason)


def _judged(monitor: Monitor, rows: Sequence[Row], limits: GradeLimits) -> list[tuple[int, str]]:
    at = [i for i, r in enumerate(rows) if is_candidate(monitor, r)]
    codes: dict[Any, int] = {}
    item = np.array([codes.setdefault(rows[i].item, len(codes)) for i in at], np.int64)
    rank, grade = (np.array([x or 0.0 for x in c]) for c in ((rows[i].rank for i in at), (rows[i].grade for i in at)))
    why = RowReasons(len(at))
    accept(GradedRows(np.zeros(len(at), np.int64), item, rank, grade, np.arange(len(at))), limits, why)
    return list(zip(at, why.reasons.tolist(), strict=True))


def _shown(placed: Sequence[Row], depth: Depth) -> float:
    """Distinct items, or the sum of a table over the distinct ranks."""
    if isinstance(depth, tuple):
        return float(worth(depth, np.array([*{r.rank for r in placed}])).sum())
    return len({r.item for r in placed if r.rank <= (depth or inf)})


def graded(
    monitor: Monitor,
    rows: Sequence[Row],
    used: Sequence[int],
    judgments: Sequence[Judgment],
    is_sample: bool,
    slices: Mapping[str, object],
) -> Graded:
    """The input of the measures: the rows in `used`, by rising rank."""
    placed = [r for r in rows if r.item is not None and r.is_placed]
    shown = {k: np.array([_shown(placed, k)]) for k in {None, *(k for m in monitor.measures for k in m.list_lengths)}}
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
        {dimension: [stored_name(value)] for dimension, value in slices.items()},
    )
