"""From logged rows and events to graded rows: label recipes, refused rows and their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools, Floats, Ints
from monitor.measures.measure import Measure
from monitor.types import Events

REASONS = {
    "null_request": "rows without a request id",
    "null_item": "rows without an item (they still occupy a place in the list)",
    "null_position": "rows without a position",
    "bad_position": "rows with a position before the first, or not a whole number",
    "bad_time": "rows of requests, and events, with an unreadable time; the requests are not counted",
    "long_request": "rows of requests longer than max_request_span; the requests are left out",
    "bad_text": "rows of requests with a slice or query that is not valid UTF-8; the requests are left out",
    "ambiguous_time": "rows of requests with a local time that occurs twice or never when clocks change; the requests "
    "are traffic of the earlier hour, also in label_coverage, and in no measure; also such events, if the reading "
    "decides whether they count",
    "duplicate_row": "repeated relevant rows of a request, with the same item and place; the highest grade counts",
    "duplicate_item": "relevant rows of one item at several places; the highest grade counts, then the last place",
    "duplicate_position": "relevant rows at a place taken by another relevant item; the highest grade counts",
    "bad_grade": "grades that are not numbers, or not in a measure's gain table; only that measure leaves them out",
    "negative_grade": "grades under 0",
    "grade_above_max": "grades above the highest; if only a measure sets it, only that measure leaves them out",
    "early_event": "events shortly before their request was served",
    "late_event": "events shortly after the attribution window, if they existed when the bucket was last read",
    "mixed_slice": "requests with conflicting values in a slice column; they count as `(mixed)`",
    "mixed_query": "requests with conflicting queries; they are not counted",
}
"""Reason -> meaning. A refused row is counted, never repaired."""


@dataclass
class Refusals:
    """Counts of refused rows by reason and request, shape (size,) each."""

    size: int
    counts: dict[str, Ints] = field(default_factory=dict)

    def refuse(self, reason: str, rows: GradedRows, refused: Bools | Ints) -> None:
        """Count those of `rows` that are refused."""
        self.add(reason, rows.request[refused])

    def add(self, reason: str, request: Ints) -> None:
        """Count one refused row per entry of `request`."""
        self.add_counts(reason, np.bincount(request, minlength=self.size))

    def add_counts(self, reason: str, counts: Ints) -> None:
        """Add (size,) counts of refused rows."""
        if counts.any():
            before = self.counts.get(reason)
            self.counts[reason] = counts.astype(np.int64) if before is None else before + counts


@dataclass
class RowReasons(Refusals):
    """The reason of each of `size` rows, by their `number`, instead of counts; empty for those not refused."""

    def __post_init__(self) -> None:
        self.reasons = np.full(self.size, "", object)

    def refuse(self, reason: str, rows: GradedRows, refused: Bools | Ints) -> None:
        """Note why some of `rows` are refused."""
        assert rows.number is not None
        self.reasons[rows.number[refused]] = reason


@dataclass(frozen=True)
class GradeLimits:
    """The grades accepted by a label recipe, by one measure, or by several at once."""

    highest: float = np.inf
    tabled: frozenset[float] | None = None

    @classmethod
    def of(cls, measures: Sequence[Measure], bound: float | None) -> GradeLimits:
        """The common limits of `measures` and the recipe's `bound`; without measures, the recipe's."""
        tops = [m.highest_grade for m in measures] + ([] if bound is None else [bound])
        tables = [frozenset(g for g, _ in m.gain) | {0.0} for m in measures if isinstance(m.gain, tuple)]
        return cls(min(tops, default=np.inf), frozenset.intersection(*tables) if tables else None)

    def faults(self) -> Iterator[tuple[str, Callable[[Floats], Bools]]]:
        """Each reason to refuse a grade, with its test; the first match counts."""
        yield "bad_grade", lambda g: ~np.isfinite(g)
        yield "negative_grade", lambda g: g < 0
        yield "grade_above_max", lambda g: g > self.highest
        if self.tabled is not None:
            yield "bad_grade", lambda g: ~np.isin(g, sorted(self.tabled or ()))

    def allow(self, grade: Floats) -> Bools:
        """Whether grades are within the limits."""
        allowed: Bools = ~np.any([wrong(grade) for _, wrong in self.faults()], axis=0)
        return allowed


@dataclass(frozen=True)
class GradedRows:
    """Rows of rankings as columns, shape (n,) each: request number, item code, logged position from 1, grade.

    `number`: of each row, for `RowReasons` alone.
    """

    request: Ints
    item: Ints
    position: Floats
    grade: Floats
    number: Ints | None = None

    def where(self, kept: Bools | Ints) -> GradedRows:
        number = None if self.number is None else self.number[kept]
        return GradedRows(self.request[kept], self.item[kept], self.position[kept], self.grade[kept], number)

    def with_grades_of(self, graded: GradedRows) -> GradedRows:
        """These rows with the grades that `graded` has for their request and item; nan without one.

        Args:
            graded: sorted by request and item, each pair once, as from `combine`.
        """
        grade = np.full(len(self.request), np.nan)
        if len(graded.request):
            items = 1 + max(graded.item.max(), self.item.max(initial=0))
            known, wanted = graded.request * items + graded.item, self.request * items + self.item
            at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            grade = np.where(known[at] == wanted, graded.grade[at], np.nan)
        return GradedRows(self.request, self.item, self.position, grade)


def event_grades(recipe: Events, kind: NDArray[np.object_] | None, value: Floats | None, size: int) -> Floats:
    """Grade of each event, shape (size,): the highest of its matching rules; nan without a match.

    Args:
        kind: (size,) event types, if the recipe names a type column.
        value: (size,) event values, if the recipe names a value column: nan is missing, inf is not a number, which
            meets no minimum and is not a grade.
    """
    grade = np.full(size, np.nan)
    for rule in recipe.rules:
        met = np.ones(size, bool) if rule.type is None or kind is None else np.asarray(kind == rule.type, bool)
        if rule.minimum is not None and value is not None:
            met &= (value >= rule.minimum) & np.isfinite(value)
        worth = value if rule.grade is None and value is not None else np.full(size, rule.grade or 0.0)
        grade = np.where(met, np.fmax(grade, worth), grade)
    return grade


def attribute(
    rows: GradedRows,
    at: Ints,
    served: Ints,
    recipe: Events,
    span: int,
    refusals: Refusals,
    unreadable: Bools | None = None,
    later: Ints | None = None,
) -> GradedRows:
    """The rows of events that count: with a usable grade, within the attribution time.

    Args:
        rows: one row per event, with its grade; nan if no rule matches.
        at: (n,) microseconds, time of the event.
        served: (size,) microseconds, when each request was served. Events in [served, served + attribution) count.
        span: seconds before the serving and after the attribution within which an event is reported as refused. Whether
            farther ones are seen depends on how much is read at once, so they are not counted.
        unreadable: (n,) whether `at` is only the event's place in the source's order.
        later: (n,) microseconds by which it may also have happened later; 0 where there is no doubt.
    """
    never = np.zeros(len(at), bool)
    since, near, end = at - served[rows.request], span * 1_000_000, recipe.attribution * 1_000_000
    inside, other = (since >= 0) & (since < end), since if later is None else since + later
    left = ~np.isnan(rows.grade) & (since >= -near) & (since < end + near)
    for reason, wrong in (
        ("bad_time", never if unreadable is None else unreadable),
        ("ambiguous_time", inside != ((other >= 0) & (other < end))),
        ("early_event", since < 0),
        ("late_event", since >= end),
        ("bad_grade", ~np.isfinite(rows.grade)),
        ("negative_grade", rows.grade < 0),
    ):
        refusals.refuse(reason, rows, left & wrong)
        left &= ~wrong
    return rows.where(left)


def combine(rows: GradedRows, add: bool) -> GradedRows:
    """One row per (request, item), sorted: its grades summed, or the highest of them."""
    rows = rows.where(np.lexsort((rows.item, rows.request)))
    starts = np.flatnonzero(_is_new(rows.request, rows.item))
    kept, fold = rows.where(starts), np.add if add else np.maximum
    return GradedRows(
        kept.request, kept.item, kept.position, fold.reduceat(rows.grade, starts) if len(starts) else kept.grade
    )


def accept(rows: GradedRows, limits: GradeLimits, refusals: Refusals) -> GradedRows:
    """The usable rows: with a position, a grade within limits, and each item and place of a request once."""
    return once(graded(placed(rows, refusals), limits, refusals), refusals)


def placed(rows: GradedRows, refusals: Refusals) -> GradedRows:
    """The rows with a whole position from 1 on."""
    missing = np.isnan(rows.position)
    with np.errstate(invalid="ignore"):
        good = (rows.position >= 1) & (rows.position <= 2**53) & (rows.position % 1 == 0)
    refusals.refuse("null_position", rows, missing)
    refusals.refuse("bad_position", rows, ~missing & ~good)
    return rows.where(good)


def graded(rows: GradedRows, limits: GradeLimits, refusals: Refusals) -> GradedRows:
    """The rows with a grade within limits. A missing (nan) grade is not refused; the row is unlabelled."""
    rows = rows.where(~np.isnan(rows.grade))
    for reason, bad in limits.faults():
        wrong = bad(rows.grade)
        refusals.refuse(reason, rows, wrong)
        rows = rows.where(~wrong)
    return rows


def once(rows: GradedRows, refusals: Refusals) -> GradedRows:
    """Each item and each place of a request once.

    Of duplicates the highest grade wins, then the last place: contradicting logs must not make a list look better than
    the worse of them. Removing rows of grade 0 in advance only changes the count of refused ones.
    """
    rows = _one_of(rows, (rows.request, rows.item), "duplicate_item", refusals)
    return _one_of(rows, (rows.request, rows.position), "duplicate_position", refusals)


def _one_of(rows: GradedRows, key: tuple[NDArray[np.generic], ...], reason: str, refusals: Refusals) -> GradedRows:
    """One row per key: the highest grade, then the last place."""
    order = np.lexsort((-rows.position, -rows.grade, *reversed(key)))
    is_kept = _is_new(*(k[order] for k in key))
    if is_kept.all():
        return rows
    left, kept = order[~is_kept], order[is_kept]
    instead = kept[np.cumsum(is_kept)[~is_kept] - 1]
    same = (rows.item[left] == rows.item[instead]) & (rows.position[left] == rows.position[instead])
    refusals.refuse("duplicate_row", rows, left[same])
    refusals.refuse(reason, rows, left[~same])
    return rows.where(kept)


def _is_new(*key: NDArray[np.generic]) -> Bools:
    """Whether each row differs from the previous one in any sorted key column."""
    new = np.ones(len(key[0]), bool)
    if len(new) > 1:
        new[1:] = np.any([k[1:] != k[:-1] for k in key], axis=0)
    return new
