"""The push-down statement: rankings give requests, labels graded rows, both give cells by bucket and slices.

No window functions, no full sort. Whatever SQL would treat differently from the pull is marked `odd`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa

from monitor.measures.measure import Depth, Measure
from monitor.measures.sql import Formula
from monitor.measures.summable import grades
from monitor.source.dialects.base import ONE, ZERO, Condition, Dialect, Expression, written
from monitor.source.engine import Statement
from monitor.source.formulas import Formulas
from monitor.source.label_sql import EventSQL, by_column, is_dirty
from monitor.source.prepared import Ends, PreparedStatement, PreparedStatements, Ready
from monitor.source.queries import Queries, refused_rows
from monitor.source.times import Blocks
from monitor.types import Events, Monitor, TimeColumn

NOWHERE = -1
"""Bucket number for rows without a request."""

CONTRARY = -2
"""Bucket number under which `odd` counts violations of the plain-log assumption."""

COUNTS = (
    "requests",
    "labelled",
    "impressions",
    "judged",
    "events",
    "no_results",
    "rank_one",
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
"""Result columns: traffic, refused rows by reason, requests to read row by row, rows scanned, unmatched events."""

LAST = "last_odd"
"""Result column: latest time of the requests to read row by row for their times. So are all buckets from theirs up to
it, since the id may be another request in each."""

PARTS = ("requests", "empty", "total", "squares", "num", "den", "num_squares", "den_squares", "products")
"""Column suffixes of one measure, in the order of `buckets.FIELDS`."""

NOTHING = "nothing_null_item"
"""Count of a request's rows that say that its list is empty."""


class Place(NamedTuple):
    """Column names of a dimension.

    Attributes:
        value: in the result, the value as written.
        mixed: in the result, whether requests have several values.
        exact: distinguishes values where they cannot be compared directly; not in the result.
    """

    value: str
    mixed: str
    exact: str = ""

    @property
    def compared(self) -> str:
        """The column used to compare values."""
        return self.exact or self.value


@dataclass(frozen=True)
class Summing:
    """Builds the statements of one monitor.

    Attributes:
        is_thorough: assume nothing about the log, which is slower. Otherwise `cells` may assume a plain log (see
            `plain`) without duplicate items; `CONTRARY` then tells if that was false and the result is
            wrong.
    """

    queries: Queries
    is_thorough: bool = True
    _prepared: PreparedStatements = field(default_factory=PreparedStatements, compare=False, repr=False)

    @property
    def sql(self) -> Dialect:
        return self.queries.sql

    @property
    def monitor(self) -> Monitor:
        return self.queries.monitor

    @cached_property
    def places(self) -> dict[str, Place]:
        """Dimension -> column names."""
        lax = self.queries.lax_slices
        return {
            s.dimension: Place(f"slice_{i}", f"mixed_{i}", f"exact_{i}" if s.column in lax else "")
            for i, s in enumerate(self.monitor.slices)
        }

    @cached_property
    def kernels(self) -> dict[Measure, str]:
        """Kernel, or part of one with an examination by slice -> prefix of its column names."""
        parts = dict.fromkeys(part for m in self.monitor.measures for part in m.kernel.parts)
        return {k: f"m{i}" for i, k in enumerate(parts)}

    def edges(self, since: int, until: int) -> list[int]:
        """Bucket starts of [since, until), the first clipped, and the end of the last; seconds."""
        width = self.monitor.bucket
        return [since, *range(since - since % width + width, until, width), until]

    # ---- statements --------------------------------------------------------------------------------------------

    def cells(self, since: int, until: int) -> Statement:
        """Sums of the requests served in [since, until) seconds, by bucket and slices.

        Columns: bucket (number of a stretch between `edges`, `NOWHERE` or `CONTRARY`); `places`; `COUNTS`; `LAST`;
        `PARTS` for each of `kernels`. Requests that began earlier and last too long are in the first stretch.
        """
        recipe = self.monitor.recipe
        if not isinstance(recipe, Events):
            return self._cells(self.careful(since, until), by_column(self.queries, since, until), since, until)
        labels = EventSQL(self.queries, recipe, since, until)
        counts_here = recipe.count_unmatched and until - since >= labels.blocks.width
        if self.supposes(since, until):
            requests, events = self.plain(since, until), labels.plain_events()
            contrary = labels.surplus(events) + self.contrary(requests)
            mistaken = [sa.select(*self._filled(written(str(CONTRARY)).label("bucket"), {"odd": contrary}))]
        else:
            requests, mistaken = self.careful(since, until), []
            events = labels.events(requests, counts_here)
        found = self._cells(requests, labels.by_events(events), since, until)
        return sa.union_all(found, self._on_nothing(labels, events), *mistaken) if counts_here else found

    def supposes(self, since: int, until: int) -> bool:
        """Whether `cells` assumes a plain log."""
        recipe = self.monitor.recipe
        if self.is_thorough or not self.sql.keeps_parts or not isinstance(recipe, Events):
            return False
        return recipe.count_unmatched and until - since >= Blocks.of(self.monitor, recipe).width

    def ready(self, since: int, until: int) -> Statement | Ready:
        """`cells`, precompiled if reads differ only in parameters."""
        shape = self._shape(since, until)
        if shape is None:
            return self.cells(since, until)
        ends, dialect = Ends((since, until)), self.queries.dialect
        prepared = self._prepared.of(
            (self.is_thorough, shape), lambda: PreparedStatement.of(self.cells(*ends.marks), dialect, ends)
        )
        return self.cells(since, until) if prepared is None else prepared.ready(since, until)

    def _shape(self, since: int, until: int) -> tuple[bool, bool] | None:
        """Equal keys: `cells` differ only in parameters; None if edges are irregular or the driver is unproven."""
        if not self.sql.is_proven:
            return None
        times = [time.declared for time in self.queries.times]
        if any(time.timezone not in (None, "UTC") or not self.sql.can_reckon(time) for time in times):
            return None
        recipe = self.monitor.recipe
        width = Blocks.of(self.monitor, recipe).width if isinstance(recipe, Events) else self.monitor.bucket
        return len(self.edges(since, until)) > 2, until - since >= width

    def unmatched(self, recipe: Events, since: int, until: int) -> sa.Select[Any] | None:
        """Stretch, and number of unmatched events in it, for less than a block; None if `cells` counts them."""
        blocks = Blocks.of(self.monitor, recipe)
        if not recipe.count_unmatched or until - since >= blocks.width:
            return None
        parts = [self.queries.unmatched(recipe, *part) for part in blocks.cut(since, until)]
        found = (sa.union_all(*parts) if len(parts) > 1 else parts[0]).subquery("u")
        time = found.c[recipe.time.column]
        return self._by_stretch("unmatched", self.edges(since, until), found, time, recipe.time)

    def nameless(self, since: int, until: int) -> sa.Select[Any]:
        """Stretch, and number of rows in it without a request."""
        q, edges = self.queries, self.edges(since, until)
        wanted = q.served(since, until), q.request.is_(None)
        return self._by_stretch("n_rows", edges, q.rankings, q.time, self.monitor.rankings.time, *wanted)

    def _by_stretch(
        self,
        name: str,
        edges: Sequence[int],
        rows: sa.FromClause,
        time: Expression,
        column: TimeColumn,
        *wanted: Condition,
    ) -> sa.Select[Any]:
        """Stretch between `edges`; as `name`, the wanted rows in it; how many of those only the pull can place."""
        stretch, plain = self.sql.stretch(time, column, edges, self.monitor.bucket), self.sql.is_plain(time, column)
        odd = ZERO if plain is None else sa.case((plain, ZERO), else_=ONE)
        v = sa.select(stretch.label("bucket"), odd.label("odd")).select_from(rows).where(*wanted).subquery("v")
        sums = sa.func.count().label(name), sa.func.sum(v.c.odd).label("odd")
        return sa.select(v.c.bucket, *sums).group_by(v.c.bucket)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _on_nothing(self, labels: EventSQL, x: sa.FromClause) -> sa.Select[Any]:
        """Unmatched or doubtful events of the range by stretch, in the columns of `cells`."""
        time, edges = labels.recipe.time, self.edges(labels.since, labels.until)
        stretch, matched = self.sql.stretch(x.c.happened, time, edges, self.monitor.bucket), labels.matched(x)
        in_doubt = sa.or_(matched < ZERO, *is_dirty(x))
        doubt = sa.case((in_doubt, ONE), else_=ZERO)
        alone = sa.case((matched == ZERO, ONE), else_=ZERO)
        wanted = (
            x.c.happened >= self.sql.instant(time, labels.since),
            x.c.happened < self.sql.instant(time, labels.until),
            sa.or_(matched == ZERO, in_doubt),  # most events match and need no stretch
        )
        placed = sa.select(stretch.label("bucket"), doubt.label("doubt"), alone.label("alone")).where(*wanted)
        n = placed.subquery("n")
        sums = {"odd": self.sql.total(n.c.doubt), "unmatched": self.sql.total(n.c.alone)}
        return sa.select(*self._filled(n.c.bucket, sums)).group_by(n.c.bucket)

    def _filled(self, bucket: Expression, known: Mapping[str, Expression]) -> list[Expression]:
        """The columns of `cells`: a bucket, some `COUNTS`, the rest empty."""
        zero = self.sql.number(0)
        slices = [
            column
            for place in self.places.values()
            for column in (sa.null().label(place.value), ZERO.label(place.mixed))
        ]
        counts = [known.get(name, zero).label(name) for name in COUNTS]
        parts = [zero.label(f"{name}_{part}") for name in self.kernels.values() for part in PARTS]
        return [bucket, *slices, *counts, sa.null().label(LAST), *parts]

    # ---- requests ----------------------------------------------------------------------------------------------

    def careful(self, since: int, until: int) -> sa.CTE:
        """One row per request, named q, for any log."""
        wide = self.queries.wide(since, until)
        q = self.queries.within(*wide)
        first, last = sa.func.min(q.time), sa.func.max(q.time)
        columns: list[Expression] = [
            q.request.label("request"),
            first.label("first_at"),
            last.label("last_at"),
            sa.func.count().label("n_rows"),
            *(q.unshown_count(name).label(name) for name in q.unshown()),
            *(count.label(name) for name, count in {**q.shown_counts(), **q.graded_counts()}.items()),
        ]
        for dimension, place in zip(self.monitor.slices, self.places.values(), strict=True):
            value = self._comparable(q, dimension.column)
            columns += [sa.func.min(value).label(place.compared), sa.func.max(value).label(f"most_{place.value}")]
            if place.exact:
                columns.append(sa.func.min(q.rankings.c[dimension.column]).label(place.value))
        began = q.at(since)
        asked = sa.and_(first >= began, first < q.at(until))
        earlier = sa.and_(first < began, sa.or_(*self.untimely(first, last)))
        grouped = sa.select(*columns).where(q.served(*wide)).group_by(q.request)
        return (
            grouped.having(sa.or_(q.request.is_(None), asked, earlier))
            .cte("rankmon_q")
            .prefix_with("MATERIALIZED", dialect="sqlite")
        )

    def plain(self, since: int, until: int) -> sa.CTE:
        """`careful` with fewer columns, assuming a plain log; see `contrary`.

        In a plain log, all rows of a request share one time and one set of slices, and each has an item and position or
        marks an empty list. Also includes requests served a little before and after.
        """
        wide = self.queries.wide(since, until)
        q = self.queries.within(*wide)
        slices = zip(self.monitor.slices, self.places.values(), strict=True)
        keys = [q.request, q.time, *(self._comparable(q, dimension.column) for dimension, _ in slices)]
        names = ["request", "first_at", *(place.compared for place in self.places.values())]
        columns: list[Expression] = [key.label(name) for key, name in zip(keys, names, strict=True)]
        for dimension, place in zip(self.monitor.slices, self.places.values(), strict=True):
            columns += [sa.func.min(q.rankings.c[dimension.column]).label(place.value)] if place.exact else []
        columns += [sa.func.count().label("n_rows"), q.unshown_count(NOTHING).label(NOTHING)]
        columns += [count.label(name) for name, count in q.shown_counts().items()]
        return sa.select(*columns).where(q.served(*wide)).group_by(*keys).cte("rankmon_q")

    def contrary(self, requests: sa.FromClause) -> Expression:
        """How many requests violate the assumption of `plain`."""
        q, everywhere = requests.c, self.queries.cutoffs.index(None)
        lacks = sa.and_(q.n_rows > q[f"shown_{everywhere}"], q.n_rows > q[NOTHING])
        found = sa.or_(sa.func.count() > ONE, sa.func.sum(sa.case((lacks, ONE), else_=ZERO)) > ZERO)
        strange = sa.select(q.request).where(q.request.isnot(None)).group_by(q.request).having(found).subquery("s")
        return sa.select(sa.func.count()).select_from(strange).scalar_subquery()

    @staticmethod
    def _comparable(q: Queries, column: str) -> Expression:
        """A slice column as a type that has min and max."""
        value = q.rankings.c[column]
        if column in q.varied_slices:
            return sa.cast(value, sa.Text)
        if column in q.bit_slices | q.lax_slices:
            return q.exactly(column)
        is_truth = column in q.boolean_slices
        return sa.case((value == sa.true(), ONE), (value == sa.false(), ZERO)) if is_truth else value

    def untimely(self, first: Expression, last: Expression | None) -> list[Condition]:
        """Why the times of a request's first and last row require a row-by-row read, if they may differ."""
        time, span = self.monitor.rankings.time, self.monitor.max_request_span
        found: list[Condition] = []
        if last is not None:
            end = self.queries.sql.later(first, time, span) if span else first
            found.append(sa.and_(last > first, last > end))
        for at in (first,) if last is None else (first, last):
            plain = self.queries.sql.is_plain(at, time)
            found += [] if plain is None else [sa.not_(plain)]
        return found

    def is_empty(self, q: sa.FromClause) -> Condition:
        """Whether a request's list is empty: a row says so, and none has an item."""
        lacking = q.c.get("null_item", q.c[NOTHING])
        return sa.and_(q.c[NOTHING] > ZERO, q.c.n_rows == lacking)

    def asked(self, q: sa.FromClause, since: int, until: int) -> Condition | None:
        """Condition for requests in the range; None if there are no others."""
        if "last_at" in q.c:
            return None
        began, ended = self.queries.at(since), self.queries.at(until)
        return sa.or_(q.c.request.is_(None), sa.and_(q.c.first_at >= began, q.c.first_at < ended))

    def slices(self, q: sa.FromClause, place: Place) -> tuple[list[Any], Expression | None]:
        """(columns of a dimension's value, whether there are several; None if there never are)."""
        names = [name for name in (place.value, place.exact) if name]
        most = q.c.get(f"most_{place.value}")
        if most is None:
            return [q.c[name] for name in names], None
        least = q.c[place.compared]
        differ = sa.case((least < most, ONE), else_=ZERO)
        agree = least == most if self.queries.sql.nan_is_itself else sa.or_(least == most, least != least)
        return [sa.case((agree, q.c[name])).label(name) for name in names], differ

    def refused(self, q: sa.FromClause) -> dict[str, Expression]:
        """Reason -> refused rows; reasons that cannot occur are left out."""
        if "null_item" not in q.c:
            return {}
        empty = self.is_empty(q)
        return refused_rows(q.c, lambda name: sa.case((empty, q.c[name]), else_=ZERO))

    # ---- cells -------------------------------------------------------------------------------------------------

    def _formulas(self, formulas: Formulas) -> dict[str, Formula]:
        return {name: formulas.of(kernel) for kernel, name in self.kernels.items()}

    def _per_request(self, formulas: Formulas, h: sa.FromClause) -> sa.FromClause:
        """Sums over each request's graded rows, named p."""
        depth = formulas.within(self.monitor.depth)
        judged = sa.case((sa.and_(h.c.grade.isnot(None), depth), ONE), else_=ZERO)
        sums: dict[str, Expression] = {name: sa.func.sum(h.c[name]) for name in ("events", "early", "late", "odd")}
        sums |= {"graded_rows": sa.func.sum(judged), **formulas.sums}
        columns = [sums[name].label(name) for name in sums]
        return sa.select(h.c.request, *columns).group_by(h.c.request).subquery("p")

    def _cells(self, q: sa.FromClause, h: sa.FromClause, since: int, until: int) -> sa.Select[Any]:
        shown: dict[Depth, Expression] = {None: q.c[f"shown_{self.queries.cutoffs.index(None)}"]}
        shown |= {k: q.c[f"listed_{i}"] for i, k in enumerate(self.queries.lengths)}
        row = self.sql, h.c.item_rank, h.c.grade, grades(self.monitor)
        formulas = Formulas(*row, lambda name: ZERO, shown.__getitem__)
        self._formulas(formulas)  # registers the sums
        p = self._per_request(formulas, h)
        found = self._formulas(replace(formulas, get=lambda name: _or_zero(p.c[name])))
        one = self._one_a_request(q, p, formulas, found, since, until)
        places = self.places.values()
        keys = [one.c.bucket, *(one.c[name] for place in places for name in (place.value, place.mixed))]
        exact = [one.c[place.exact] for place in places if place.exact]
        counts = [self._total(one.c.get(name)).label(name) for name in COUNTS]
        last = sa.func.max(one.c[LAST]).label(LAST)
        parts = [c for name in self.kernels.values() for c in self._parts(one, name)]
        return sa.select(*keys, *counts, last, *parts).group_by(*keys, *exact)

    def _one_a_request(
        self, q: sa.FromClause, p: sa.FromClause, formulas: Formulas, found: dict[str, Formula], since: int, until: int
    ) -> sa.FromClause:
        """One row per request with the inputs of a cell, named v. Columns that are always 0 are left out."""
        time = self.monitor.rankings.time
        stretch = self.sql.stretch(q.c.first_at, time, self.edges(since, until), self.monitor.bucket)
        elsewhere = (q.c.request.is_(None), written(str(NOWHERE))), (q.c.first_at < self.queries.at(since), ZERO)
        columns: list[Any] = [sa.case(*elsewhere, else_=stretch).label("bucket")]
        mixed: list[Expression] = []
        for place in self.places.values():
            values, differ = self.slices(q, place)
            columns += [*values, (ZERO if differ is None else differ).label(place.mixed)]
            mixed += [] if differ is None else [differ]
        counts = self._counts(q, p, formulas) | ({"mixed_slice": sum(mixed[1:], mixed[0])} if mixed else {})
        columns += [count.label(name) for name, count in counts.items()]
        untimely = self.untimely(q.c.first_at, q.c.get("last_at"))
        last = sa.case((sa.or_(*untimely), q.c.last_at)) if "last_at" in q.c else sa.null()
        columns.append(last.label(LAST))
        shows = q.c[f"shown_{self.queries.cutoffs.index(None)}"] > ZERO
        has_data = shows if isinstance(self.monitor.recipe, Events) else sa.and_(shows, q.c.graded > ZERO)
        for name, is_so in {"sampled": has_data, "known": shows}.items():
            columns.append(sa.case((sa.or_(is_so, self.is_empty(q)), ONE), else_=ZERO).label(name))
        for name, formula in found.items():
            columns += [part.label(f"{name}_{ending}") for ending, part in self._ingredients(formula).items()]
        of_request = p, p.c.request, p.c.request == q.c.request
        each = self.sql.joined(sa.select(*columns), (q, q.c.n_rows), of_request, is_outer=True)
        if (asked := self.asked(q, since, until)) is not None:
            each = each.where(asked)
        one = self.sql.fenced(each).subquery("w")
        copied = {"bucket", *COUNTS, LAST, *(name for place in self.places.values() for name in place if name)}
        kept = [c for c in one.c if c.name in copied]
        lists = {name for kernel, name in self.kernels.items() if kernel.is_of_lists}
        measured = [
            c
            for name, formula in found.items()
            for c in self._of_measure(name, formula, one, one.c.known if name in lists else one.c.sampled)
        ]
        return self.sql.fenced(sa.select(*kept, *measured)).subquery("v")

    @staticmethod
    def _ingredients(formula: Formula) -> dict[str, Expression]:
        """Inputs of one measure's columns, each evaluated once."""
        found = {"num": formula.numerator, "den": formula.denominator, "value": formula.value}
        if formula.empty is not None:
            found["empty"] = sa.case((formula.empty, ONE), else_=ZERO)
        return {name: part for name, part in found.items() if part is not None}

    def _counts(self, q: sa.FromClause, p: sa.FromClause, formulas: Formulas) -> dict[str, Expression]:
        is_event = isinstance(self.monitor.recipe, Events)
        events, graded = _or_zero(p.c.events), _or_zero(p.c.graded_rows)
        labels = events if is_event else q.c.graded
        odd = [_or_zero(p.c.odd) > ZERO, *self.untimely(q.c.first_at, q.c.get("last_at"))]
        odd += [_or_zero(p.c[name]) > written(str(most)) for name, most in formulas.too_many.items()]
        return {
            "requests": ONE,
            "labelled": sa.case((labels > ZERO, ONE), else_=ZERO),
            "impressions": q.c.shown_0,
            "judged": graded if is_event else q.c.judged,
            "events": events,
            "no_results": sa.case((self.is_empty(q), ONE), else_=ZERO),
            "rank_one": q.c[f"shown_{self.queries.cutoffs.index(1)}"],
            **self.refused(q),
            "early_event": _or_zero(p.c.early),
            "late_event": _or_zero(p.c.late),
            "odd": sa.case((sa.or_(*odd), ONE), else_=ZERO),
            "summed": q.c.n_rows,
        }

    def _of_measure(self, name: str, formula: Formula, one: sa.FromClause, is_data: Expression) -> Sequence[Any]:
        zero = self.sql.number(0)
        sampled = is_data > ZERO
        num, den = one.c.get(f"{name}_num"), one.c.get(f"{name}_den")
        if formula.value is None:
            assert num is not None
            assert den is not None
            value: Expression = sa.case((den > zero, num / den), else_=zero)
        else:
            value = one.c[f"{name}_value"]
        is_empty = den <= zero if formula.empty is None and den is not None else one.c[f"{name}_empty"] > ZERO
        return [
            sa.case((sampled, ONE), else_=ZERO).label(f"{name}_requests"),
            sa.case((sa.and_(sampled, is_empty), ONE), else_=ZERO).label(f"{name}_empty"),
            sa.case((sa.and_(sampled, sa.not_(is_empty)), value), else_=zero).label(f"{name}_total"),
            *(
                sa.case((sampled, part), else_=zero).label(f"{name}_{ending}")
                for ending, part in (("num", num), ("den", den))
                if part is not None
            ),
        ]

    def _parts(self, one: sa.FromClause, name: str) -> Sequence[Any]:
        value, num, den = one.c[f"{name}_total"], one.c.get(f"{name}_num"), one.c.get(f"{name}_den")
        own = [one.c[f"{name}_requests"], one.c[f"{name}_empty"], value, value * value]
        pooled: Sequence[Expression | None] = [None] * 5
        if num is not None and den is not None:
            pooled = [num, den, num * num, den * den, num * den]
        return [self._total(s).label(f"{name}_{part}") for s, part in zip([*own, *pooled], PARTS, strict=True)]

    def _total(self, value: Expression | None) -> Expression:
        return self.sql.number(0) if value is None else self.sql.total(value)


def _or_zero(value: Expression) -> Expression:
    return sa.func.coalesce(value, ZERO)
