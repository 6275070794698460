"""The statement that has a database sum up a monitor's buckets: from rankings and labels to joint cells, in one go.

    requests:  rankings, by request                     when, which slices, how many rows of which kind
    graded:    relevant rows, by request and rank       from events or a column; then by request
    cells:     requests with their sums, by bucket and slices

No window function, and no order over all rows. What SQL would treat otherwise than the pull is marked `odd`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.core.measures import Measure
from monitor.core.summable import grades
from monitor.core.types import Events, Monitor
from monitor.source.blocks import Blocks
from monitor.source.engine import Statement
from monitor.source.formulas import Formula, Formulas
from monitor.source.queries import Queries, counted
from monitor.source.relevant import Relevant, is_dirty
from monitor.source.speech import Condition, Expression, Speech, written
from monitor.source.template import Ends, Ready, Template, Templates

NOWHERE = -1
"""Number of the bucket under which rows without a request stand."""

REPEATED = -2
"""Number of the bucket under which it stands, as `odd`, in how many more rows events were found than there are."""

COUNTS = (
    "requests",
    "labelled",
    "impressions",
    "judged",
    "events",
    "null_item",
    "null_position",
    "bad_position",
    "mixed_slice",
    "early_event",
    "late_event",
    "odd",
    "summed",
    "unmatched",
)
"""Columns of the answer: traffic, refused rows by reason, requests that are to be read row by row, rows gone through,
events on nothing."""

LAST = "last_odd"
"""Column of the answer: the latest time of the requests that are to be read row by row for their times. All buckets
that lie between are to be read so, for in each of them such an id may be another request."""

PARTS = ("requests", "empty", "total", "squares", "num", "den", "num_squares", "den_squares", "products")
"""Endings of the columns of one measure, in the order of `buckets.FIELDS`."""

_ZERO, _ONE = written("0"), written("1")


class Place(NamedTuple):
    """Names of a dimension's columns.

    Attributes:
        value: in the answer, a value as it is written.
        mixed: in the answer, whether requests have several.
        exact: what tells values apart, where they are not compared themselves; not in the answer.
    """

    value: str
    mixed: str
    exact: str = ""

    @property
    def compared(self) -> str:
        """The column by which it is told whether values differ."""
        return self.exact or self.value


@dataclass(frozen=True)
class Summing:
    """Makes the statements of one monitor.

    Attributes:
        truths: columns to slice by that are boolean.
        bits: columns to slice by that are of MySQL's BIT, which may have several; they come as bytes.
        texts: columns to slice by whose values may be equal and yet written in different ways: they are told apart.
        has_ordered_items: whether items are of a type of which every database can tell the least.
        is_thorough: whether to count how often an item was logged for its request. That takes longer.
            Else `cells` supposes once, where it can tell by `REPEATED` that it was mistaken: its answer is wrong then.
    """

    queries: Queries
    speech: Speech
    truths: frozenset[str] = frozenset()
    bits: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    has_ordered_items: bool = True
    is_thorough: bool = True
    _templates: Templates = field(default_factory=Templates, compare=False, repr=False)

    @cached_property
    def relevant(self) -> Relevant:
        """Makes the parts about labels."""
        return Relevant(self.queries, self.speech, self.has_ordered_items)

    @property
    def monitor(self) -> Monitor:
        """Whose rankings are summed up."""
        return self.queries.monitor

    @cached_property
    def places(self) -> dict[str, Place]:
        """Dimension -> names of its columns."""
        collated = self.queries.collated
        return {
            s.dimension: Place(f"slice_{i}", f"mixed_{i}", f"exact_{i}" if s.column in collated else "")
            for i, s in enumerate(self.monitor.slices)
        }

    @cached_property
    def kernels(self) -> dict[Measure, str]:
        """Kernel -> beginning of the names of its columns."""
        return {k: f"m{i}" for i, k in enumerate(dict.fromkeys(m.kernel for m in self.monitor.measures))}

    def edges(self, since: int, until: int) -> list[int]:
        """Where the buckets of [since, until) begin, the first one's part too, and where the last one ends; seconds."""
        width = self.monitor.bucket
        return [since, *range(since - since % width + width, until, width), until]

    # ---- statements --------------------------------------------------------------------------------------------

    def cells(self, since: int, until: int) -> Statement:
        """Sums of the requests served in [since, until) seconds, by bucket and slices.

        Columns: bucket, the number of a stretch between `edges`, `NOWHERE` or `REPEATED`; `places`; `COUNTS`; `LAST`;
        for each of `kernels` its `PARTS`. Requests that began before and last too long stand in the first stretch.
        """
        requests = self._requests(since, until)
        recipe = self.monitor.recipe
        if not isinstance(recipe, Events):
            return self._cells(requests, self.relevant.by_column(since, until), since, until)
        blocks = Blocks.of(self.monitor, recipe)
        counts_here = recipe.count_unmatched and until - since >= blocks.width
        if not counts_here:
            events = self.relevant.events(recipe, requests, since, until, None)
            return self._cells(requests, self.relevant.by_events(recipe, events), since, until)
        each_row = self.supposes(since, until)
        events = self.relevant.events(recipe, requests, since, until, blocks, each_row)
        parts = [self._cells(requests, self.relevant.by_events(recipe, events), since, until)]
        parts.append(self._on_nothing(recipe, events, since, until))
        if each_row:
            surplus = self.relevant.surplus(recipe, events, since, until)
            parts.append(sa.select(*self._filled(written(str(REPEATED)).label("bucket"), {"odd": surplus})))
        return sa.union_all(*parts)

    def supposes(self, since: int, until: int) -> bool:
        """Whether `cells` supposes that no item that events are on was logged twice."""
        recipe = self.monitor.recipe
        if self.is_thorough or not self.speech.habits.keeps_parts or not isinstance(recipe, Events):
            return False
        return recipe.count_unmatched and until - since >= Blocks.of(self.monitor, recipe).width

    def ready(self, since: int, until: int) -> Statement | Ready:
        """`cells`, or the same as the driver takes it: made once for all reads that differ in parameters alone."""
        shape = self._shape(since, until)
        if shape is None:
            return self.cells(since, until)
        template = self._templates.of((self.is_thorough, shape), partial(self._template, since, until))
        return self.cells(since, until) if template is None else template.ready(since, until)

    def _template(self, since: int, until: int) -> Template | None:
        ends = Ends((since, until))
        return Template.of(self.cells(*ends.marks), self.queries.dialect, ends)

    def _shape(self, since: int, until: int) -> tuple[bool, bool] | None:
        """What `cells` of two reads must have in common that these differ in parameters alone.

        None where they may differ in more: where a range is cut into its buckets one by one, or clocks are changed; and
        where it was not tried whether the driver takes a text as SQLAlchemy would have sent it.
        """
        if not self.speech.habits.is_proven:
            return None
        recipe, width = self.monitor.recipe, self.monitor.bucket
        columns = [self.monitor.rankings.time]
        if isinstance(recipe, Events):
            columns.append(recipe.time)
            width = Blocks.of(self.monitor, recipe).width
        if any(c.timezone not in (None, "UTC") or not self.speech.can_reckon(c) for c in columns):
            return None
        return len(self.edges(since, until)) > 2, until - since >= width

    def unmatched(self, recipe: Events, since: int, until: int) -> sa.Select[Any] | None:
        """Stretch, and number of the events in it that are on nothing; None where `cells` counts them too.

        Where less than a block is read, what lies around it is looked at for these alone.
        """
        blocks = Blocks.of(self.monitor, recipe)
        if not recipe.count_unmatched or until - since >= blocks.width:
            return None
        parts = [self.queries.unmatched(recipe, *part) for part in blocks.cut(since, until)]
        column = recipe.time.column
        found = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery("u")
        stretch = self.speech.stretch(found.c[column], recipe.time, self.edges(since, until), self.monitor.bucket)
        plain = self.speech.is_plain(found.c[column], recipe.time)
        odd = _ZERO if plain is None else sa.case((plain, _ZERO), else_=_ONE)
        placed = sa.select(stretch.label("bucket"), odd.label("odd")).select_from(found).subquery("v")
        sums = sa.func.count().label("unmatched"), sa.func.sum(placed.c.odd).label("odd")
        return sa.select(placed.c.bucket, *sums).group_by(placed.c.bucket)

    def nameless(self, since: int, until: int) -> sa.Select[Any]:
        """Stretch, and number of the rows in it that have no request."""
        q = self.queries
        stretch = self.speech.stretch(q.time, self.monitor.rankings.time, self.edges(since, until), self.monitor.bucket)
        plain = self.speech.is_plain(q.time, self.monitor.rankings.time)
        odd = _ZERO if plain is None else sa.case((plain, _ZERO), else_=_ONE)
        rows = sa.select(stretch.label("bucket"), odd.label("odd")).where(q.served(since, until), q.request.is_(None))
        placed = rows.subquery("v")
        sums = sa.func.count().label("n_rows"), sa.func.sum(placed.c.odd).label("odd")
        return sa.select(placed.c.bucket, *sums).group_by(placed.c.bucket)

    # ---- requests ----------------------------------------------------------------------------------------------

    def _requests(self, since: int, until: int) -> sa.FromClause:
        """One row a request, named q."""
        q = self.queries
        first, last = sa.func.min(q.time), sa.func.max(q.time)
        columns: list[Expression] = [
            q.request.label("request"),
            first.label("first_at"),
            last.label("last_at"),
            sa.func.count().label("n_rows"),
            sa.func.count(q.item).label("n_items"),
            sa.func.count(q.position).label("n_positions"),
            counted(q.position, q.placed(), q.dialect).label("placed"),
            *(counted(q.item, q.placed(k), q.dialect).label(f"shown_{i}") for i, k in enumerate(q.cutoffs)),
        ]
        if q.grade_column is not None:
            columns += [q.graded(None).label("graded"), q.graded(q.cutoffs[0]).label("judged")]
        for dimension, place in zip(self.monitor.slices, self.places.values(), strict=True):
            value = self._comparable(dimension.column)
            columns += [sa.func.min(value).label(place.compared), sa.func.max(value).label(f"most_{place.value}")]
            if place.exact:
                columns.append(sa.func.min(q.rankings.c[dimension.column]).label(place.value))
        began = self.relevant.time(since)
        asked = sa.and_(first >= began, first < self.relevant.time(until))
        earlier = sa.and_(first < began, sa.or_(*self._untimely(first, last)))
        grouped = sa.select(*columns).where(q.served(*self.relevant.wide(since, until))).group_by(q.request)
        return (
            grouped.having(sa.or_(q.request.is_(None), asked, earlier))
            .cte("rankmon_q")
            .prefix_with("MATERIALIZED", dialect="sqlite")
        )

    def _comparable(self, column: str) -> Expression:
        """A column to slice by, as something that has a least and a greatest value."""
        value: Expression = self.queries.rankings.c[column]
        if column in self.texts:
            return sa.cast(value, sa.Text)
        if column in self.bits | self.queries.collated:
            return self.queries.exactly(column)
        return sa.case((value == sa.true(), _ONE), (value == sa.false(), _ZERO)) if column in self.truths else value

    def _on_nothing(self, recipe: Events, x: sa.FromClause, since: int, until: int) -> sa.Select[Any]:
        """The events of [since, until) that are on nothing, or in doubt, by stretch, in the columns of `cells`."""
        stretch = self.speech.stretch(x.c.happened, recipe.time, self.edges(since, until), self.monitor.bucket)
        in_doubt = sa.or_(x.c.matched < _ZERO, *is_dirty(x))
        doubt = sa.case((in_doubt, _ONE), else_=_ZERO)
        alone = sa.case((x.c.matched == _ZERO, _ONE), else_=_ZERO)
        wanted = (
            x.c.happened >= self.speech.moment(recipe.time, since),
            x.c.happened < self.speech.moment(recipe.time, until),
            sa.or_(x.c.matched == _ZERO, in_doubt),  # most events are on something, and need no stretch
        )
        placed = sa.select(stretch.label("bucket"), doubt.label("doubt"), alone.label("alone")).where(*wanted)
        n = placed.subquery("n")
        sums = {"odd": self.speech.total(n.c.doubt), "unmatched": self.speech.total(n.c.alone)}
        return sa.select(*self._filled(n.c.bucket, sums)).group_by(n.c.bucket)

    def _filled(self, bucket: Expression, known: Mapping[str, Expression]) -> list[Expression]:
        """The columns of `cells`: a bucket, some of `COUNTS`, and nothing in all others."""
        zero = self.speech.number(0)
        slices = [
            column
            for place in self.places.values()
            for column in (sa.null().label(place.value), _ZERO.label(place.mixed))
        ]
        counts = [known.get(name, zero).label(name) for name in COUNTS]
        parts = [zero.label(f"{name}_{part}") for name in self.kernels.values() for part in PARTS]
        return [bucket, *slices, *counts, sa.null().label(LAST), *parts]

    # ---- cells -------------------------------------------------------------------------------------------------

    def _formulas(self, formulas: Formulas, q: sa.FromClause, get: Callable[[str], Expression]) -> dict[str, Formula]:
        """Each kernel's formula under the beginning of its columns' names."""
        shown = {k: q.c[f"shown_{i}"] for i, k in enumerate(self.queries.cutoffs)}
        return {name: formulas.of(kernel, get, shown.__getitem__) for kernel, name in self.kernels.items()}

    def _per_request(self, formulas: Formulas, h: sa.FromClause) -> sa.FromClause:
        """Sums over the graded rows of each request, named p."""
        depth = formulas.within(self.monitor.depth)
        judged = sa.case((sa.and_(h.c.grade.isnot(None), depth), _ONE), else_=_ZERO)
        sums: dict[str, Expression] = {name: sa.func.sum(h.c[name]) for name in ("events", "early", "late", "odd")}
        sums |= {"graded_rows": sa.func.sum(judged), **formulas.sums}
        columns = [sums[name].label(name) for name in sums]
        return sa.select(h.c.request, *columns).group_by(h.c.request).subquery("p")

    def _cells(self, q: sa.FromClause, h: sa.FromClause, since: int, until: int) -> sa.Select[Any]:
        """The sums of all requests by bucket and slices."""
        formulas = Formulas(self.speech, h.c.item_rank, h.c.grade, grades(self.monitor))
        self._formulas(formulas, q, lambda name: _ZERO)  # notes what is to be summed
        p = self._per_request(formulas, h)
        found = self._formulas(formulas, q, lambda name: _or_zero(p.c[name]))
        one = self._one_a_request(q, p, formulas, found, since, until)
        places = self.places.values()
        keys = [one.c.bucket, *(one.c[name] for place in places for name in (place.value, place.mixed))]
        exact = [one.c[place.exact] for place in places if place.exact]
        counts = [self.speech.total(one.c[name]).label(name) for name in COUNTS]
        last = sa.func.max(one.c[LAST]).label(LAST)
        parts = [c for name in self.kernels.values() for c in self._parts(one, name)]
        return sa.select(*keys, *counts, last, *parts).group_by(*keys, *exact)

    def _one_a_request(
        self, q: sa.FromClause, p: sa.FromClause, formulas: Formulas, found: dict[str, Formula], since: int, until: int
    ) -> sa.FromClause:
        """What is summed by cell, one row a request; named v."""
        time = self.monitor.rankings.time
        stretch = self.speech.stretch(q.c.first_at, time, self.edges(since, until), self.monitor.bucket)
        elsewhere = (q.c.request.is_(None), written(str(NOWHERE))), (q.c.first_at < self.relevant.time(since), _ZERO)
        columns: list[Any] = [sa.case(*elsewhere, else_=stretch).label("bucket")]
        mixed = _ZERO
        for place in self.places.values():
            least, most = q.c[place.compared], q.c[f"most_{place.value}"]
            differ = sa.case((least < most, _ONE), else_=_ZERO)
            agree = least == most if self.speech.habits.nan_is_itself else sa.or_(least == most, least != least)
            columns += [sa.case((agree, q.c[name])).label(name) for name in (place.value, place.exact) if name]
            columns.append(differ.label(place.mixed))
            mixed = mixed + differ
        counts = self._counts(q, p, formulas) | {"mixed_slice": mixed}
        columns += [counts[name].label(name) for name in COUNTS]
        columns.append(sa.case((sa.or_(*self._untimely(q.c.first_at, q.c.last_at)), q.c.last_at)).label(LAST))
        columns.append(sa.case((self._is_sampled(q), _ONE), else_=_ZERO).label("sampled"))
        for name, formula in found.items():
            columns += [part.label(f"{name}_{ending}") for ending, part in self._ingredients(formula).items()]
        each = sa.select(*columns).select_from(q.outerjoin(p, p.c.request == q.c.request))
        one = self.speech.fenced(each).subquery("w")
        kept = [c for c in one.c if c.name in self._kept]
        measured = [c for name, formula in found.items() for c in self._of_measure(name, formula, one)]
        return self.speech.fenced(sa.select(*kept, *measured)).subquery("v")

    @property
    def _kept(self) -> set[str]:
        """Columns of a request beside those of its measures."""
        return {"bucket", *COUNTS, LAST, *(name for place in self.places.values() for name in place if name)}

    @staticmethod
    def _ingredients(formula: Formula) -> dict[str, Expression]:
        """What the columns of one measure are made of, each worked out once however long it is."""
        found = {"num": formula.numerator, "den": formula.denominator, "value": formula.value}
        if formula.empty is not None:
            found["empty"] = sa.case((formula.empty, _ONE), else_=_ZERO)
        return {name: part for name, part in found.items() if part is not None}

    def _counts(self, q: sa.FromClause, p: sa.FromClause, formulas: Formulas) -> dict[str, Expression]:
        is_event = isinstance(self.monitor.recipe, Events)
        events, graded = _or_zero(p.c.events), _or_zero(p.c.graded_rows)
        labels = events if is_event else q.c.graded
        return {
            "requests": _ONE,
            "labelled": sa.case((labels > _ZERO, _ONE), else_=_ZERO),
            "impressions": q.c.shown_0,
            "judged": graded if is_event else q.c.judged,
            "events": events,
            "null_item": q.c.n_rows - q.c["n_items"],
            "null_position": q.c.n_rows - q.c.n_positions,
            "bad_position": q.c.n_positions - q.c.placed,
            "early_event": _or_zero(p.c.early),
            "late_event": _or_zero(p.c.late),
            "odd": sa.case((sa.or_(*self._oddities(q, p, formulas)), _ONE), else_=_ZERO),
            "summed": q.c.n_rows,
            "unmatched": _ZERO,
        }

    def _oddities(self, q: sa.FromClause, p: sa.FromClause, formulas: Formulas) -> list[Condition]:
        """Why a request is to be read row by row."""
        found = [_or_zero(p.c.odd) > _ZERO, *self._untimely(q.c.first_at, q.c.last_at)]
        return found + [_or_zero(p.c[name]) > written(str(most)) for name, most in formulas.too_many.items()]

    def _untimely(self, first: Expression, last: Expression) -> list[Condition]:
        """Why a request is to be read row by row for the times of its first and its last row."""
        time, span = self.monitor.rankings.time, self.monitor.max_request_span
        end = self.speech.later(first, time, span) if span else first
        found = [sa.and_(last > first, last > end)]
        for at in (first, last):
            plain = self.speech.is_plain(at, time)
            found += [] if plain is None else [sa.not_(plain)]
        return found

    def _is_sampled(self, q: sa.FromClause) -> Condition:
        everywhere = q.c[f"shown_{self.queries.cutoffs.index(None)}"] > _ZERO
        return everywhere if isinstance(self.monitor.recipe, Events) else sa.and_(everywhere, q.c.graded > _ZERO)

    def _of_measure(self, name: str, formula: Formula, one: sa.FromClause) -> Sequence[Any]:
        """Columns of one measure of a request, of its ingredients."""
        zero = self.speech.number(0)
        sampled = one.c.sampled > _ZERO
        num, den = one.c.get(f"{name}_num"), one.c.get(f"{name}_den")
        if formula.value is None:
            assert num is not None
            assert den is not None
            value: Expression = sa.case((den > zero, num / den), else_=zero)
        else:
            value = one.c[f"{name}_value"]
        is_empty = den <= zero if formula.empty is None and den is not None else one.c[f"{name}_empty"] > _ZERO
        return [
            sa.case((sampled, _ONE), else_=_ZERO).label(f"{name}_requests"),
            sa.case((sa.and_(sampled, is_empty), _ONE), else_=_ZERO).label(f"{name}_empty"),
            sa.case((sa.and_(sampled, sa.not_(is_empty)), value), else_=zero).label(f"{name}_total"),
            *(
                (zero if part is None else sa.case((sampled, part), else_=zero)).label(f"{name}_{ending}")
                for ending, part in (("num", num), ("den", den))
            ),
        ]

    def _parts(self, one: sa.FromClause, name: str) -> Sequence[Any]:
        """Sums of one measure over a cell."""
        value, num, den = (one.c[f"{name}_{part}"] for part in ("total", "num", "den"))
        summed = [one.c[f"{name}_requests"], one.c[f"{name}_empty"], value, value * value]
        summed += [num, den, num * num, den * den, num * den]
        return [self.speech.total(s).label(f"{name}_{part}") for s, part in zip(summed, PARTS, strict=True)]


def _or_zero(value: Expression) -> Expression:
    return sa.func.coalesce(value, _ZERO)
