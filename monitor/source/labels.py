"""Grades by label recipe: relevant rows of the requests read, and which requests and items are labelled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import count, repeat
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from monitor.arrays import Bools, Ints, floats
from monitor.errors import SourceError
from monitor.measures.kernels import JudgedItems
from monitor.measures.measure import Measure
from monitor.measures.relevance import (
    GradedRows,
    GradeLimits,
    Refusals,
    attribute,
    combine,
    event_grades,
    graded,
    once,
    placed,
)
from monitor.series.readings import MICROS
from monitor.source.engine import Reader
from monitor.source.queries import Queries, event_types
from monitor.source.requests import Requests, ids_in
from monitor.source.times import Blocks, Instants, to_micros
from monitor.types import Events, Judgments, Monitor


@dataclass(frozen=True)
class Gradable:
    """Input of the measures.

    Attributes:
        rows: graded rows, once per item and position of a request.
        sampled: (R,) whether the request has data.
        pool: all judged items of each request's query, if a measure needs them.
    """

    rows: GradedRows
    sampled: Bools
    pool: JudgedItems | None = None


@dataclass(frozen=True)
class Labels:
    """Relevance of R requests.

    Attributes:
        limited: `sample` for measures that cannot take all grades.
        judged: (R,) labelled items among those shown within the depth.
        labelled: (R,) whether the request is labelled by the recipe's definition.
        events: (R,) events that count.
        fingerprint: of the judgments used.
        saw_events: whether any event had a readable time; True for other recipes.
        unmatched: microseconds of events in the range whose item was not logged for their request.
    """

    sample: Gradable
    limited: Mapping[Measure, Gradable]
    judged: Ints
    labelled: Bools
    events: Ints
    fingerprint: str = ""
    saw_events: bool = True
    unmatched: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass
class Labelling:
    """Reads the labels of `requests`; refused rows go into `refusals`.

    Attributes:
        asked: [since, until) seconds in which the requests were served.
        most_rows: per result.
    """

    queries: Queries
    reader: Reader
    requests: Requests
    asked: tuple[int, int]
    most_rows: int
    refusals: Refusals
    items: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.monitor: Monitor = self.queries.monitor
        measures: Sequence[Measure] = self.monitor.measures
        self.range = self.queries.wide(*self.asked)
        self.size = len(self.requests.ids)
        self.limits = GradeLimits.of((), self.monitor.recipe.bound)
        self.is_sparse = all(m.is_sparse for m in measures)
        self.needs_pool = any(m.ideal == "global" for m in measures)

    def read(self) -> Labels:
        recipe = self.monitor.recipe
        if isinstance(recipe, Events):
            return self._by_events(recipe)
        return self._by_judgments(recipe) if isinstance(recipe, Judgments) else self._by_column()

    # ---- a column ----------------------------------------------------------------------------------------------

    def _by_column(self) -> Labels:
        columns = self._columns(self.queries.graded_rows(*self.range, self.is_sparse))
        rows = self._placed(self._rows(columns, columns[3])[0])
        usable = self._graded(rows)
        # Zeros were not read, so labels are those counted in the source minus those refused here.
        counts = self.requests.counts
        labels = counts["graded"] - self._per_request(rows)
        labelled = labels + self._per_request(usable) > 0
        judged = counts["judged"] - self._within_depth(rows) + self._within_depth(usable)
        samples = self._samples(usable, None, lambda kept, _: labels + self._per_request(kept) > 0)
        return Labels(*samples, judged, labelled, self._none)

    # ---- events ------------------------------------------------------------------------------------------------

    def _by_events(self, recipe: Events) -> Labels:
        found = self._event_rows(recipe)
        rows, kept = self._rows(found.columns, None, found.inside)
        number = found.number[kept]
        each = np.unique(number, return_index=True)[1]  # an event has one entry per row of its item
        counted = self._attributed(recipe, found, kept[each], rows.where(each))
        events = self._per_request(counted)
        rows = self._listed(rows, number).with_grades_of(combine(counted, recipe.combine == "sum"))
        usable = self._graded(rows)
        judged = self._within_depth(usable)
        if not self.is_sparse:
            others = rows.where(np.isnan(rows.grade))
            usable = _joined(usable, replace(others, grade=np.zeros(len(others.grade))))
        return Labels(
            *self._samples(usable, None, lambda *_: np.ones(self.size, bool)),
            judged,
            events > 0,
            events,
            saw_events=bool((~found.times.unreadable[kept]).any()),
            unmatched=found.unmatched,
        )

    def _event_rows(self, recipe: Events) -> _EventRows:
        """Events with the unmatched ones in one query, unless a single block far exceeds the range."""
        blocks, (since, until) = Blocks.of(self.monitor, recipe), self.asked
        if not recipe.count_unmatched or until - since < blocks.width:
            columns = self._columns(self.queries.event_rows(recipe, *self.range))
            times = to_micros(recipe.time, columns[4])
            return _EventRows(columns, times, np.ones(len(columns[0]), bool), self._unmatched(recipe, blocks))
        reach = blocks.reach(since, until)
        *columns, logged, inside = self._columns(self.queries.event_rows(recipe, *self.range, reach))
        times = to_micros(recipe.time, columns[4])
        shown = to_micros(self.monitor.rankings.time, [time for time in logged if time is not None]).micros
        matched = np.ones(len(logged), bool)
        if len(shown) < len(logged):
            matched = np.fromiter((time is not None for time in logged), bool, len(logged))
        known = matched.copy()
        matched[known] = blocks.is_near(times.micros[known], shown)
        found = _EventRows(columns, times, np.array(inside, bool))
        return replace(found, unmatched=found.left_out(matched, since, until))

    def _unmatched(self, recipe: Events, blocks: Blocks) -> Ints:
        """Microseconds of unmatched events, by a separate query."""
        found = [np.empty(0, np.int64)]
        for since, until, reach in blocks.cut(*self.asked) if recipe.count_unmatched else ():
            times = self._columns(self.queries.unmatched(recipe, since, until, reach))[0]
            micros = to_micros(recipe.time, times).micros
            found.append(micros[(micros >= since * MICROS) & (micros < until * MICROS)])
        return np.concatenate(found)

    def _listed(self, rows: GradedRows, number: Ints) -> GradedRows:
        """The matched `rows`, which repeat per event; all rows if zeros count."""
        if self.is_sparse:
            return self._placed(rows.where(_of_one_event(rows, number)))
        return self._placed(self._rows(self._columns(self.queries.all_rows(*self.range)))[0])

    def _attributed(self, recipe: Events, found: _EventRows, kept: Ints, rows: GradedRows) -> GradedRows:
        """The events that count, among entries `kept` matching `rows`."""
        happened = found.times
        at, unreadable, later = happened.micros[kept], happened.unreadable[kept], happened.later[kept]
        kind = self._kinds(recipe, found.columns[5], kept) if recipe.type is not None else None
        value = floats(found.columns[-1], np.inf)[kept] if recipe.value is not None else None
        worth = replace(rows, grade=event_grades(recipe, kind, value, len(kept)))
        served, span = self.requests.served, self.monitor.max_request_span
        return attribute(worth, at, served, recipe, span, self.refusals, unreadable, later)

    def _kinds(self, recipe: Events, numbers: Sequence[int | None], kept: Ints) -> NDArray[np.object_]:
        """Types of the events `kept` as the rules write them; None if no rule names the type."""
        names, number = np.array([*event_types(recipe), None], dtype=object), floats(numbers)[kept]
        found: NDArray[np.object_] = names[np.nan_to_num(number, nan=-1).astype(np.int64)]
        return found

    # ---- judgments ---------------------------------------------------------------------------------------------

    def _by_judgments(self, recipe: Judgments) -> Labels:
        shown = self._columns(self.queries.judged_shown(recipe, *self.range, self.queries.cutoffs[0]))
        judged = self._none.copy()
        for place, items in zip(self._places(shown[0]).tolist(), shown[1], strict=True):
            if place >= 0:
                judged[place] = items
        counts = self._columns(self.queries.judgment_counts(recipe, *self.range))
        columns = self._columns(self.queries.judged_rows(recipe, *self.range, self.is_sparse))
        rows, kept = self._rows(columns, columns[3])
        used = [(columns[0][i], columns[1][i], g) for i, g in zip(kept.tolist(), rows.grade.tolist(), strict=True)]
        is_mixed, asked = self.requests.mixed[0], self.requests.keys[0]
        if not {asked[i] for i in rows.request[~is_mixed[rows.request]].tolist()} <= set(counts[0]):
            self._tell_of_spellings(self.monitor.rankings.query)
        pool = self._pool(counts)
        rows = self._placed(rows)
        usable = self._graded(rows)
        judged = judged - self._within_depth(rows) + self._within_depth(usable)
        return Labels(
            *self._samples(usable, pool, lambda _, p: (self._per_request(p) > 0) & ~is_mixed),
            judged,
            judged > 0,
            self._none,
            fingerprint([*used, *self._named(pool)] if self.needs_pool else used),
        )

    def _pool(self, counts: list[list[Any]]) -> JudgedItems:
        grades = floats(counts[1])
        allowed = np.flatnonzero(self.limits.allow(grades)).tolist()
        by_query: dict[Any, list[int]] = {}
        for row in allowed:
            by_query.setdefault(counts[0][row], []).append(row)
        found = [(i, row) for i, q in enumerate(self.requests.keys[0]) for row in by_query.get(q, ())]
        requests, rows = np.array(found, np.int64).reshape(-1, 2).T
        items = np.array(counts[2], np.int64)
        return JudgedItems(requests, grades[rows], items[rows])

    def _named(self, pool: JudgedItems) -> Iterator[tuple[Any, float, int]]:
        numbers = zip(pool.request.tolist(), pool.grade.tolist(), pool.count.tolist(), strict=True)
        return ((self.requests.ids[i], grade, count) for i, grade, count in numbers)

    # ---- in common ---------------------------------------------------------------------------------------------

    def _graded(self, rows: GradedRows) -> GradedRows:
        """Rows whose grade the recipe allows; grades that only some measures refuse are counted later."""
        return graded(rows, self.limits, self.refusals)

    def _samples(
        self, usable: GradedRows, pool: JudgedItems | None, is_sampled: Callable[[GradedRows, Any], Bools]
    ) -> tuple[Gradable, dict[Measure, Gradable]]:
        """(input of all measures, the rest for measures that cannot take all grades); counts a refused row once."""
        joint = GradeLimits.of(self.monitor.measures, None)
        common = graded(usable, joint, self.refusals)
        rows = once(common, self.refusals)
        if len(common.grade) == len(usable.grade) and (pool is None or joint.allow(pool.grade).all()):
            return Gradable(rows, is_sampled(usable, pool), pool if self.needs_pool else None), {}

        @cache
        def under(limits: GradeLimits) -> Gradable:
            kept = usable.where(limits.allow(usable.grade))
            left = None if pool is None else _judged_where(pool, limits.allow(pool.grade))
            sampled = is_sampled(kept, left)
            return Gradable(once(kept, Refusals(self.size)), sampled, left if self.needs_pool else None)

        kernels = dict.fromkeys(m.kernel for m in self.monitor.measures)
        return under(GradeLimits()), {k: under(GradeLimits.of((k,), None)) for k in kernels}

    @property
    def _none(self) -> Ints:
        return np.zeros(self.size, np.int64)

    def _columns(self, query: Any) -> list[list[Any]]:
        return self.reader.columns(query, self.most_rows)

    def _rows(
        self, columns: list[list[Any]], grades: list[Any] | None = None, inside: Bools | None = None
    ) -> tuple[GradedRows, Ints]:
        """(rows of these requests, their indexes in `columns`), non-numbers as inf; `inside`: (n,) summarized rows."""
        items, size = self.items, len(columns[0])
        request = self._places(columns[0], inside)
        kept = np.flatnonzero(request >= 0)
        with ids_in(self.monitor.rankings.items or self.monitor.rankings.item):
            new = [one for one in dict.fromkeys(columns[1]) if one not in items]
            items.update(zip(new, count(len(items)), strict=False))
            item = np.fromiter(map(items.__getitem__, columns[1]), np.int64, size)
        position = floats(columns[2], np.inf) - self.monitor.rankings.position.base + 1
        grade = np.full(size, np.nan) if grades is None else floats(grades, np.inf)
        return GradedRows(request, item, position, grade).where(kept), kept

    def _places(self, ids: Sequence[Any], inside: Bools | None = None) -> Ints:
        """(n,) index of each id's request, or -1; SourceError if the database equates differently written ids."""
        number, unknown = self.requests.number, -2
        places = np.fromiter(map(number.get, ids, repeat(unknown)), np.int64, len(ids))
        if inside is not None:
            places[~inside] = -1
        if (places == unknown).any():
            self._tell_of_spellings(self.monitor.rankings.request)
        return places

    def _tell_of_spellings(self, column: str | None) -> NoReturn:
        raise SourceError(
            f"column {column!r} has values with different spellings that the database treats as equal; give "
            "them one spelling in a `select:`, e.g. lower(...)",
            "data",
            lasting=True,
        )

    def _placed(self, rows: GradedRows) -> GradedRows:
        """Rows with a position; the others were counted with their requests."""
        return placed(rows, Refusals(self.size))

    def _per_request(self, rows: GradedRows | JudgedItems) -> Ints:
        return np.bincount(rows.request, minlength=self.size)

    def _within_depth(self, rows: GradedRows) -> Ints:
        return self._per_request(rows.where(rows.position <= (self.monitor.depth or np.inf)))


@dataclass(frozen=True)
class _EventRows:
    """Events, once per row they fall on; `columns` as in `Queries.event_rows`, `unmatched` in microseconds."""

    columns: list[list[Any]]
    times: Instants
    inside: Bools
    unmatched: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @cached_property
    def number(self) -> Ints:
        """(n,) event number; equal for entries of one event."""
        return np.array(self.columns[3], dtype=np.int64)

    def left_out(self, matched: Bools, since: int, until: int) -> Ints:
        """Microseconds of events in [since, until) seconds with no `matched` row."""
        at = self.times.micros
        asked = np.flatnonzero((at >= since * MICROS) & (at < until * MICROS) & ~matched)
        asked = asked[~np.isin(self.number[asked], self.number[matched])]
        return at[asked[np.unique(self.number[asked], return_index=True)[1]]]


def _judged_where(pool: JudgedItems, kept: Bools) -> JudgedItems:
    return JudgedItems(pool.request[kept], pool.grade[kept], pool.count[kept])


def _joined(one: GradedRows, other: GradedRows) -> GradedRows:
    columns = ("request", "item", "position", "grade")
    return GradedRows(*(np.concatenate([getattr(one, name), getattr(other, name)]) for name in columns))


def _of_one_event(rows: GradedRows, number: Ints) -> Ints:
    """Rows of each item's first event: all rows of that item in its request, once."""
    order = np.lexsort((number, rows.item, rows.request))
    request, item, number = rows.request[order], rows.item[order], number[order]
    new = np.ones(len(order), bool)
    new[1:] = (request[1:] != request[:-1]) | (item[1:] != item[:-1])
    first = number[new][np.cumsum(new) - 1]
    rows_of_first: Ints = order[number == first]
    return rows_of_first


def fingerprint(used: Iterable[tuple[Any, ...]]) -> str:
    """Sixteen hex digits, order-independent; those of two parts add up to the whole's."""
    digests = (hashlib.blake2b(repr(row).encode(), digest_size=8).digest() for row in used)
    return f"{sum(int.from_bytes(d, 'big') for d in digests) % 2**64:016x}"
