"""From logged rows and events to graded rows: label recipes, and what is refused and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monitor.core.measures import Measure
from monitor.core.types import Events

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

REASONS = {
    "null_request": "rows without a request id",
    "null_item": "rows without an item (its place in the list stays taken)",
    "null_position": "rows without a position",
    "bad_position": "rows whose position is before the first, or no whole number",
    "bad_time": "rows whose time cannot be read",
    "ambiguous_time": "rows whose local time stands twice or never, where the clocks change",
    "duplicate_item": "relevant rows of an item that the request has already; the highest grade counts",
    "duplicate_position": "relevant rows at a place that another relevant item holds; the highest grade counts",
    "bad_grade": "grades that are no number, or not in a measure's gain table",
    "negative_grade": "grades under 0",
    "grade_above_max": "grades over the highest that a measure allows",
    "early_event": "events shortly before their request was served",
    "late_event": "events shortly after the attribution time",
    "mixed_slice": "requests whose rows differ in a slice column; they count under `(mixed)`",
    "mixed_query": "requests whose rows differ in their query; they are no sample",
}
"""Why rows are left out, and what each reason means. A refused row is counted, never repaired."""


@dataclass
class Refusals:
    """Counts of refused rows by reason and request, shape (size,) each."""

    size: int
    counts: dict[str, Ints] = field(default_factory=dict)

    def add(self, reason: str, request: Ints) -> None:
        """Count one refused row for every entry of `request`."""
        self.add_counts(reason, np.bincount(request, minlength=self.size))

    def add_counts(self, reason: str, counts: Ints) -> None:
        """Add `counts` refused rows, one number a request."""
        if counts.any():
            before = self.counts.get(reason)
            self.counts[reason] = counts.astype(np.int64) if before is None else before + counts


@dataclass(frozen=True)
class GradeLimits:
    """Which grades every measure of a monitor can take."""

    highest: float | None = None
    tabled: frozenset[float] | None = None

    @classmethod
    def of(cls, measures: Sequence[Measure], bound: float | None) -> GradeLimits:
        """The limits that `measures` and the recipe's own `bound` set together."""
        tops = [m.highest_grade for m in measures] + ([] if bound is None else [bound])
        tables = [frozenset(g for g, _ in m.gain) | {0.0} for m in measures if isinstance(m.gain, tuple)]
        return cls(min(tops, default=None), frozenset.intersection(*tables) if tables else None)

    def allow(self, grade: Floats) -> Bools:
        """Whether each grade is a number from 0 on that every measure can take."""
        kept = np.isfinite(grade) & (grade >= 0)
        if self.highest is not None:
            kept &= grade <= self.highest
        return kept if self.tabled is None else kept & np.isin(grade, sorted(self.tabled))


@dataclass(frozen=True)
class Rows:
    """Rows of rankings as columns, shape (n,) each: request number, item code, logged position from 1, grade."""

    request: Ints
    item: Ints
    position: Floats
    grade: Floats

    def __add__(self, other: Rows) -> Rows:
        """These rows and then the others."""
        pairs = ((getattr(self, n), getattr(other, n)) for n in ("request", "item", "position", "grade"))
        return Rows(*(np.concatenate(pair) for pair in pairs))

    def where(self, kept: Bools | Ints) -> Rows:
        """The rows that `kept` picks."""
        return Rows(self.request[kept], self.item[kept], self.position[kept], self.grade[kept])


def event_grades(recipe: Events, kind: NDArray[np.object_] | None, value: Floats | None, size: int) -> Floats:
    """Grade of each event, shape (size,): the highest of the rules that it meets; nan where it meets none.

    Args:
        kind: (size,) event types, where the recipe names a type column.
        value: (size,) the events' values, nan where missing, where the recipe names a value column.
    """
    grade = np.full(size, np.nan)
    for rule in recipe.rules:
        met = np.ones(size, bool) if rule.type is None or kind is None else np.asarray(kind == rule.type, bool)
        if rule.minimum is not None and value is not None:
            met &= value >= rule.minimum
        worth = value if rule.grade is None and value is not None else np.full(size, rule.grade or 0.0)
        grade = np.where(met, np.fmax(grade, worth), grade)
    return grade


def attribute(rows: Rows, at: Ints, served: Ints, recipe: Events, span: int, refusals: Refusals) -> Rows:
    """The rows of events that count: worth a grade, and within the attribution time.

    Args:
        rows: one row per event, with the grade that the event is worth.
        at: (n,) microseconds, when it happened.
        served: (size,) microseconds, when each request was served. Events in [served, served + attribution) count.
        span: seconds before the serving and after the attribution within which an event is reported as refused.
    """
    since, near, end = at - served[rows.request], span * 1_000_000, recipe.attribution * 1_000_000
    early, late = since < 0, since >= end
    # Farther ones are seen or not seen by how much is read at once, so they are not counted at all.
    refusals.add("early_event", rows.request[early & (since >= -near)])
    refusals.add("late_event", rows.request[late & (since < end + near)])
    counted = ~early & ~late & ~np.isnan(rows.grade)
    return rows.where(counted)


def combine(rows: Rows, add: bool) -> Rows:
    """One row per (request, item, position): its grades added up, or the highest of them."""
    order = np.lexsort((rows.position, rows.item, rows.request))
    rows = rows.where(order)
    first = _is_new(rows.request, rows.item, rows.position)
    starts = np.flatnonzero(first)
    if len(starts) == len(first):
        return rows
    fold = np.add if add else np.maximum
    kept = rows.where(starts)
    return Rows(kept.request, kept.item, kept.position, fold.reduceat(rows.grade, starts))


def accept(rows: Rows, limits: GradeLimits, refusals: Refusals) -> Rows:
    """The rows that can be used: a whole position from 1 on, a grade within limits, each item and place once.

    A missing (nan) grade is no refusal; the row just carries no label. Of several rows of one item, or at one place,
    the highest grade counts, then the first place; so leaving out rows of grade 0 beforehand changes nothing.
    """
    rows = rows.where(~np.isnan(rows.grade))
    for reason, bad in _faults(limits):
        wrong = bad(rows)
        refusals.add(reason, rows.request[wrong])
        rows = rows.where(~wrong)
    rows = _first_of(rows, (rows.request, rows.item), "duplicate_item", refusals)
    return _first_of(rows, (rows.request, rows.position), "duplicate_position", refusals)


def _faults(limits: GradeLimits) -> Iterator[tuple[str, Callable[[Rows], Bools]]]:
    yield "null_position", lambda r: np.isnan(r.position)
    yield "bad_position", lambda r: (r.position < 1) | (r.position != np.floor(r.position)) | (r.position > 2**53)
    yield "negative_grade", lambda r: r.grade < 0
    yield "bad_grade", lambda r: ~np.isfinite(r.grade)
    highest, tabled = limits.highest, limits.tabled
    if highest is not None:
        yield "grade_above_max", lambda r: r.grade > highest
    if tabled is not None:
        yield "bad_grade", lambda r: ~np.isin(r.grade, sorted(tabled))


def _first_of(rows: Rows, key: tuple[NDArray[np.generic], ...], reason: str, refusals: Refusals) -> Rows:
    """One row a key: the one of the highest grade, of these the one at the first place."""
    order = np.lexsort((rows.position, -rows.grade, *reversed(key)))
    first = _is_new(*(k[order] for k in key))
    if first.all():
        return rows
    refusals.add(reason, rows.request[order[~first]])
    return rows.where(order[first])


def _is_new(*key: NDArray[np.generic]) -> Bools:
    """Whether each row differs from the one before in any of the sorted key columns."""
    new = np.ones(len(key[0]), bool)
    if len(new) > 1:
        new[1:] = np.any([k[1:] != k[:-1] for k in key], axis=0)
    return new
