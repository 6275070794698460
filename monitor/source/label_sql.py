"""Labels as SQL: each request's graded rows by rank, from a rankings column or from events."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from monitor.measures.summable import grades
from monitor.source.dialects.base import ONE, ZERO, Condition, Dialect, Expression, written
from monitor.source.queries import Queries, event_types
from monitor.source.times import Blocks
from monitor.types import Events

COUNTS, EARLY, LATE = (written(str(number)) for number in (1, 2, 3))
"""Event timings relative to a request; any other value means the event is not its own."""

DIRTY = "dirty"
"""Column of events: above 0 if only the pull can read the event. Omitted if that cannot happen."""


def is_dirty(events: sa.FromClause) -> list[Condition]:
    """The condition that only the pull can read an event; empty if that cannot happen."""
    return [column > ZERO for column in events.c if column.name == DIRTY]


def by_column(q: Queries, since: int, until: int) -> sa.FromClause:
    """Grade, no events, and oddness for each request and rank with a grade above 0; named h."""
    wide = q.wide(since, until)
    q = q.within(*wide)
    column = q.grade
    assert column is not None
    known = [q.sql.number(g) for g in grades(q.monitor)]
    grade = q.sql.number(1) if q.boolean_grade else column
    # Booleans are always known; SQL Server and Oracle have no literal "true".
    is_known = ONE == ONE if q.boolean_grade else grade.in_(known)
    odd = sa.or_(sa.func.count() > ONE, sa.func.sum(sa.case((is_known, ZERO), else_=ONE)) > ZERO)
    one, zero = q.sql.number(1), q.sql.number(0)
    g = (
        sa.select(
            q.request.label("request"),
            sa.func.min(q.rank()).label("item_rank"),
            sa.func.max(sa.case((is_known, q.sql.double(grade)))).label("grade"),
            sa.case((odd, one), else_=zero).label("odd"),
        )
        .where(q.usable(*wide), q.placed(), column.isnot(None), q.nonzero(column))
        .group_by(q.request, q.item)
        .subquery("g")
    )
    several = sa.case((sa.func.count() > ONE, one), else_=zero)
    columns = [g.c.request, g.c.item_rank, sa.func.max(g.c.grade).label("grade")]
    columns += [sa.func.max(zero).label(name) for name in ("events", "early", "late")]
    columns.append((sa.func.max(g.c.odd) + several).label("odd"))
    return sa.select(*columns).group_by(g.c.request, g.c.item_rank).subquery("h")


@dataclass(frozen=True)
class EventSQL:
    """Labels by events, of the requests served in [`since`, `until`) seconds."""

    queries: Queries
    recipe: Events
    since: int
    until: int

    @property
    def sql(self) -> Dialect:
        return self.queries.sql

    @property
    def blocks(self) -> Blocks:
        """Where the row of an event is looked for."""
        return Blocks.of(self.queries.monitor, self.recipe)

    @property
    def happened(self) -> Condition:
        """Events on requests served in the range."""
        since, until = self.queries.wide(self.since, self.until)
        return self.queries.happened(self.recipe, since, until + self.recipe.attribution)

    def events(self, requests: sa.FromClause, with_unmatched: bool) -> sa.FromClause:
        """Each event once, with its item's row and request if there are any; named x.

        `with_unmatched`: search rows as far as `blocks` reach, and include unmatched events.
        """
        q, e = self.queries, self._worthy()
        wide = q.wide(self.since, self.until)
        i = self._shown_items(*(self.blocks.reach(self.since, self.until) if with_unmatched else wide))
        inside = sa.and_(i.c.earliest >= q.at(wide[0]), i.c.latest < q.at(wide[1]))
        columns = [
            *self._of_event(e),
            self._ordered(i.c.item).label("item"),
            i.c.copies.label("copies"),
            i.c.item_rank.label("item_rank"),
            requests.c.request.label("request"),
            self._becomes(e, requests.c.first_at).label("becomes"),
            sa.case((inside, ONE), else_=ZERO).label("inside"),
            (self._matched(e, i) if with_unmatched else ONE).label("matched"),
        ]
        same = sa.and_(e.c.request == i.c.request, e.c.item == i.c.item)
        known = requests.c.request == i.c.request
        steps = (i, i.c.request, same), (requests, requests.c.request, known)
        found = self.sql.joined(sa.select(*columns), (e, e.c.happened), *steps, is_outer=with_unmatched)
        return found.cte("rankmon_x").prefix_with("MATERIALIZED", dialect="sqlite")

    def plain_events(self) -> sa.FromClause:
        """`events` in fewer steps, assuming a plain log without duplicate items; see `Summing.plain`.

        Each row carries its request's time then. An event appears once per row of its item; see `surplus`.
        """
        reach = self.blocks.reach(self.since, self.until)
        q, e = self.queries.within(*reach), self._worthy()
        # Columns are computed after the join, for few rows.
        same = sa.and_(e.c.request == q.request, e.c.item == q.item, q.served(*reach))
        inside = sa.and_(q.time >= q.at(self.since), q.time < q.at(self.until))
        columns = [
            *self._of_event(e),
            self._ordered(q.item).label("item"),
            q.rank().label("item_rank"),
            q.request.label("request"),
            self._becomes(e, q.time).label("becomes"),
            sa.case((inside, ONE), else_=ZERO).label("inside"),
            q.time.label("logged"),
        ]
        found = self.sql.joined(sa.select(*columns), (e, e.c.happened), (q.rankings, q.request, same), is_outer=True)
        return found.cte("rankmon_x")

    @staticmethod
    def _of_event(e: sa.FromClause) -> list[Expression]:
        return [e.c.happened, e.c.worth, *(c for c in e.c if c.name == DIRTY)]

    def _becomes(self, e: sa.FromClause, first_at: Expression) -> Expression:
        """An event's timing relative to its request, computed once for several sums."""
        monitor, recipe = self.queries.monitor, self.recipe
        span, first = monitor.max_request_span, self.sql.converted(first_at, monitor.rankings.time, recipe.time)
        since, near, end, far = (
            self.sql.later(first, recipe.time, seconds) if seconds else first
            for seconds in (0, -span, recipe.attribution, recipe.attribution + span)
        )
        at = e.c.happened
        return sa.case(
            (e.c.worth.is_(None), ZERO),
            (sa.and_(at >= since, at < end), COUNTS),
            (sa.and_(at < since, at >= near), EARLY),
            (sa.and_(at >= end, at < far), LATE),
            else_=ZERO,
        )

    def surplus(self, x: sa.FromClause) -> Expression:
        """Rows of `plain_events` beyond the number of events; above 0 if an item was logged twice."""
        found = sa.select(sa.func.count()).where(self.happened)
        events = found.select_from(self.queries.labels).scalar_subquery()
        return sa.select(sa.func.count()).select_from(x).scalar_subquery() - events

    def _ordered(self, item: Expression) -> Expression:
        """An item as a type that has min and max."""
        code = self.queries.types.rankings.get(self.queries.monitor.rankings.item)
        return item if code is None or self.sql.has_order(code) else sa.cast(item, sa.Text)

    def _worthy(self) -> sa.FromClause:
        """Events with their grade and `DIRTY`."""
        q, e, recipe = self.queries, self.queries.labels, self.recipe
        at: Expression = e.c[recipe.time.column]
        value: Expression | None = None if recipe.value is None else e.c[recipe.value]
        dirt = [sa.not_(plain)] if (plain := self.sql.is_plain(at, recipe.time)) is not None else []
        is_number, read = list[Condition](), value
        if value is not None and any(r.minimum is not None for r in recipe.rules):
            stored = self.sql.is_stored_number(value)
            is_number = [self.sql.is_finite(value), *stored[:1]]
            read = self.sql.as_read(value, q.types.labels.get(str(recipe.value)))
            dirt += stored[1:]
        kind, names = q.kind(recipe, e), event_types(recipe)
        cases = []
        for rule in sorted(recipe.rules, key=lambda rule: -(rule.grade or 0)):
            met = [] if rule.type is None or kind is None else [kind == written(str(names.index(rule.type)))]
            if rule.minimum is not None and read is not None:
                met += [*is_number, read >= self.sql.number(rule.minimum)]
            cases.append((sa.and_(ONE == ONE, *met), self.sql.number(rule.grade or 0)))
        worth = sa.case(*cases)
        columns = [e.c[recipe.request].label("request"), e.c[recipe.item].label("item"), at.label("happened")]
        columns += [worth.label("worth"), *([sa.case((sa.or_(*dirt), ONE), else_=ZERO).label(DIRTY)] if dirt else [])]
        return sa.select(*columns).where(self.happened).subquery("worthy")

    def _shown_items(self, since: int, until: int) -> sa.FromClause:
        """Requests and items of the rows in [since, until) that events can be on, once for all `copies`; named i."""
        q, e = self.queries.within(since, until), self.queries.labels
        request, item = e.c[self.recipe.request], e.c[self.recipe.item]
        wanted = sa.select(request.label("request"), item.label("item")).where(self.happened)
        columns = [
            q.request.label("request"),
            q.item.label("item"),
            sa.func.count().label("copies"),
            sa.func.min(q.rank()).label("item_rank"),
            sa.func.min(q.time).label("earliest"),
            sa.func.max(q.time).label("latest"),
        ]
        found = sa.select(*columns).where(q.served(since, until)).group_by(q.request, q.item)
        if self.sql.by_hash:
            found = found.where(sa.tuple_(q.request, q.item).in_(wanted))
        else:
            d = wanted.where(request.isnot(None), item.isnot(None)).distinct().subquery("d")
            same = sa.and_(d.c.request == q.request, d.c.item == q.item)
            found = self.sql.joined(found, (d, d.c.request), (q.rankings, q.request, same), is_outer=False)
        return found.subquery("i")

    def matched(self, x: sa.FromClause) -> Expression:
        """For `events` or `plain_events`: 1 if an event is on something, 0 if not, -1 if only the pull can tell."""
        if "matched" in x.c:
            return x.c.matched
        # Inlined: few events get past the first two branches, and PostgreSQL would evaluate it for each.
        near = self._near(x.c.happened, x.c.logged)
        return sa.case((x.c.request.is_(None), ZERO), (x.c.becomes == COUNTS, ONE), (sa.and_(*near), ONE), else_=ZERO)

    def _matched(self, e: sa.FromClause, i: sa.FromClause) -> Expression:
        """1 if an event's item was shown within reach of its block, 0 if not, -1 if it depends on the row."""
        near, recipe = self._near(e.c.happened, i.c.earliest, i.c.latest), self.recipe
        # Most events follow soon after their row and need no block check.
        first = self.sql.converted(i.c.earliest, self.queries.monitor.rankings.time, recipe.time)
        soon = e.c.happened >= first, e.c.happened < self.sql.later(first, recipe.time, recipe.attribution)
        cases: list[tuple[Condition, Expression]] = [
            (i.c.request.is_(None), ZERO),
            (sa.and_(i.c.copies == ONE, *soon), ONE),
            (sa.and_(*near), ONE),
            (i.c.copies > ONE, written("-1")),
        ]
        return sa.case(*cases, else_=ZERO)

    def _near(self, event: Expression, *rows: Expression) -> list[Condition]:
        """Whether the times of an event and of each of its rows are within reach of its block."""
        q, blocks, column = self.queries, self.blocks, self.recipe.time
        at = self.sql.seconds(event, column)
        times = [t for row in rows if (t := self.sql.seconds(row, q.monitor.rankings.time)) is not None]
        if at is not None and times:
            start = self.sql.block(at, blocks.width) * self.sql.number(blocks.width)
            low = start - self.sql.number(blocks.before)
            high = start + self.sql.number(blocks.width + blocks.after)
            return [sa.and_(time >= low, time < high) for time in times]
        parts = [(start, reach) for start, _, reach in blocks.cut(self.since, self.until)]
        edges = [self.sql.instant(column, start) for start, _ in parts[1:]]
        steps = ([q.at(reach[side]) for _, reach in parts] for side in (0, 1))
        low, high = (self.sql.ladder(event, edges, step) for step in steps)
        return [sa.and_(row >= low, row < high) for row in rows]

    def by_events(self, x: sa.FromClause) -> sa.FromClause:
        """Grade and events by timing, for each request and rank with events; named h.

        Odd if there are several items, or several rows of one.
        """
        one, zero = self.sql.number(1), self.sql.number(0)
        copies = x.c.get("copies")
        repeated = [] if copies is None else [copies > ONE]
        dirt = [*repeated, *is_dirty(x)]
        dirty = [sa.func.max(sa.case((sa.or_(*dirt), one), else_=zero))] if dirt else []
        item = sa.case((sa.and_(x.c.becomes == COUNTS, x.c.item_rank.isnot(None)), x.c.item))
        several = sa.case((sa.func.min(item) < sa.func.max(item), one), else_=zero)
        return (
            sa.select(
                x.c.request,
                x.c.item_rank,
                sa.func.max(sa.case((x.c.becomes == COUNTS, x.c.worth))).label("grade"),
                *(
                    sa.func.sum(sa.case((x.c.becomes == what, one), else_=zero)).label(name)
                    for name, what in (("events", COUNTS), ("early", EARLY), ("late", LATE))
                ),
                sum(dirty, several).label("odd"),
            )
            .where(x.c.request.isnot(None), sa.or_(x.c.inside > ZERO, *repeated))
            .where(sa.or_(x.c.worth.isnot(None), *is_dirty(x)))
            .group_by(x.c.request, x.c.item_rank)
            .subquery("h")
        )
