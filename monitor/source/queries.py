"""The SQL that is sent, as SQLAlchemy Core: identifiers are quoted, values are bound, every read is bounded by time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from monitor.core.types import Events, Judgments, Monitor, Relation, TimeColumn
from monitor.source.times import bound, slack

Condition = ColumnElement[bool]


def relation(source: Relation, alias: str, columns: list[str]) -> sa.FromClause:
    """The user's table, or their SELECT as a subquery, with the named columns.

    A colon in the SELECT is text, not a parameter.
    """
    if source.select:
        escaped = re.sub(r"(?<!\\):", r"\\:", source.select.strip().rstrip(";"))
        return sa.text(escaped).columns(*(sa.column(sa.quoted_name(c, True)) for c in columns)).subquery(alias)
    *schema, table = source.table
    names: list[sa.ColumnClause[Any]] = [sa.column(sa.quoted_name(c, True)) for c in columns]
    return sa.table(
        sa.quoted_name(table, True), *names, schema=sa.quoted_name(".".join(schema), True) if schema else None
    ).alias(alias)


def between(column: ColumnElement[Any], time: TimeColumn, since: float, until: float) -> Condition:
    """Whether an instant lies in [since, until) seconds; wider by an hour where local time can run twice."""
    return sa.and_(
        column >= sa.literal(bound(time, since - slack(time))), column < sa.literal(bound(time, until + slack(time)))
    )


def _counted(condition: Condition) -> ColumnElement[int]:
    return sa.func.sum(sa.case((condition, 1), else_=0))


@dataclass(frozen=True)
class Queries:
    """The statements of one monitor. `boolean_grade`: the grade column is a boolean, which cannot be compared to 0."""

    monitor: Monitor
    cutoffs: tuple[int | None, ...]
    boolean_grade: bool = False

    @cached_property
    def rankings(self) -> sa.FromClause:
        """The logged lists, named r."""
        r = self.monitor.rankings
        wanted = [r.request, r.item, r.position, r.time.column, r.query, r.model_version, self.grade_column]
        names = [w for w in (*wanted, *(s.column for s in self.monitor.slices)) if w is not None]
        return relation(r.relation, "r", list(dict.fromkeys(names)))

    @property
    def grade_column(self) -> str | None:
        """Where grades stand in the rankings; None where another recipe gives them."""
        return getattr(self.monitor.recipe, "grade", None) if self._labels is None else None

    @cached_property
    def _labels(self) -> sa.FromClause | None:
        recipe = self.monitor.recipe
        if isinstance(recipe, Events):
            wanted = [recipe.request, recipe.item, recipe.time.column, recipe.type, recipe.value]
        elif isinstance(recipe, Judgments):
            wanted = [recipe.query, recipe.item, recipe.grade]
        else:
            return None
        names = [w for w in wanted if w is not None]
        return relation(recipe.relation, "e", list(dict.fromkeys(names)))

    @property
    def labels(self) -> sa.FromClause:
        """The events or judgments, named e."""
        if self._labels is None:
            raise ValueError("this recipe has no table of labels")
        return self._labels

    def _r(self, name: str) -> ColumnElement[Any]:
        return self.rankings.c[name]

    @property
    def request(self) -> ColumnElement[Any]:
        """Request id of a row."""
        return self._r(self.monitor.rankings.request)

    @property
    def item(self) -> ColumnElement[Any]:
        """Item of a row."""
        return self._r(self.monitor.rankings.item)

    @property
    def position(self) -> ColumnElement[Any]:
        """Position of a row, in the source's own base."""
        return self._r(self.monitor.rankings.position)

    @property
    def time(self) -> ColumnElement[Any]:
        """Time of a row, as the source writes it."""
        return self._r(self.monitor.rankings.time.column)

    def served(self, since: float, until: float) -> Condition:
        """Rows of the rankings in [since, until) seconds."""
        return between(self.time, self.monitor.rankings.time, since, until)

    def newest(self, since: float, until: float) -> sa.Select[Any]:
        """Time of the newest ranking in [since, until)."""
        return sa.select(sa.func.max(self.time)).where(self.served(since, until))

    def future(self, now: float) -> sa.Select[Any]:
        """How many rows claim to be from after `now`."""
        time = self.monitor.rankings.time
        return (
            sa.select(sa.func.count())
            .select_from(self.rankings)
            .where(self.time >= sa.literal(bound(time, now + slack(time))))
        )

    def requests(self, since: float, until: float) -> sa.Select[Any]:
        """One row per request and set of slice values; requests without an id one per instant.

        Columns: request, earliest time, rows, rows with an item, with a position, with a position before the first,
        with a grade, shown and graded within each cut-off; then the query where judgments need it, then the slices.
        """
        first = self.monitor.rankings.position_base
        grade = self._r(self.grade_column) if self.grade_column else None
        nothing: ColumnElement[Any] = sa.literal_column("0")
        keys = self.keys()
        columns = [
            self.request,
            sa.func.min(self.time),
            sa.func.count(),
            sa.func.count(self.item),
            sa.func.count(self.position),
            _counted(self.position < first),
            sa.func.count(grade) if grade is not None else nothing,
            *(_counted(self.shown(k)) for k in self.cutoffs),
            *(
                nothing if grade is None else _counted(sa.and_(grade.isnot(None), self.shown(k)))
                for k in self.cutoffs[:1]
            ),
        ]
        unnamed = sa.case((self.request.is_(None), self.time), else_=None)
        return (
            sa.select(*columns, *keys)
            .select_from(self.rankings)
            .where(self.served(since, until))
            .group_by(self.request, unnamed, *keys)
        )

    def keys(self) -> list[ColumnElement[Any]]:
        """The query where the recipe goes by it, then the columns to slice by."""
        by_query = isinstance(self.monitor.recipe, Judgments) and self.monitor.rankings.query
        names = [self.monitor.rankings.query] if by_query else []
        return [self._r(str(name)) for name in (*names, *(s.column for s in self.monitor.slices))]

    def shown(self, k: int | None) -> Condition:
        """Whether a row shows an item at one of the first k positions."""
        first = self.monitor.rankings.position_base
        valid = [self.item.isnot(None), self.position >= first]
        return sa.and_(*valid, *([] if k is None else [self.position < first + k]))

    def _usable(self, since: float, until: float) -> Condition:
        return sa.and_(self.served(since, until), self.request.isnot(None), self.item.isnot(None))

    def all_rows(self, since: float, until: float) -> sa.Select[Any]:
        """Request, item and position of every row."""
        return sa.select(self.request, self.item, self.position).where(self._usable(since, until))

    def graded_rows(self, since: float, until: float, sparse: bool) -> sa.Select[Any]:
        """Request, item, position and grade of the rows with a grade; without the zeros if `sparse`."""
        grade = self._r(str(self.grade_column))
        wanted = [self._usable(since, until), grade.isnot(None), *([self._nonzero(grade)] if sparse else [])]
        return sa.select(self.request, self.item, self.position, grade).where(*wanted)

    def _nonzero(self, grade: ColumnElement[Any]) -> Condition:
        return grade.is_(sa.true()) if self.boolean_grade else grade != sa.literal_column("0")

    def event_rows(self, recipe: Events, since: float, until: float) -> sa.Select[Any]:
        """Request, item, position, time, [type], [value] of the events that fall on a shown item."""
        events, span = self.labels, self.monitor.max_request_span
        shown = sa.select(self.request, self.item, self.position).where(self._usable(since, until))
        if recipe.combine == "sum":
            shown = shown.distinct()  # a row that was logged twice must not add its events up twice
        rows = shown.subquery("shown")
        request, item, position = rows.c
        matches = sa.and_(events.c[recipe.request] == request, events.c[recipe.item] == item)
        wanted = [c for c in (recipe.time.column, recipe.type, recipe.value) if c is not None]
        return (
            sa.select(request, item, position, *(events.c[c] for c in wanted))
            .select_from(rows.join(events, matches))
            .where(self._happened(recipe, since - span, until + recipe.attribution + span))
        )

    def unmatched(self, recipe: Events, since: float, until: float, reach: tuple[float, float]) -> sa.Select[Any]:
        """Times of the events in [since, until) whose item was not shown to their request within `reach`."""
        events = self.labels
        shown = sa.and_(
            self.request == events.c[recipe.request],
            self.item == events.c[recipe.item],
            self.served(*reach),
        )
        missing = ~sa.exists().where(shown).correlate(events)
        return sa.select(events.c[recipe.time.column]).where(self._happened(recipe, since, until), missing)

    def _happened(self, recipe: Events, since: float, until: float) -> Condition:
        inside = between(self.labels.c[recipe.time.column], recipe.time, since, until)
        if recipe.type is None:
            return inside
        kinds = sorted({r.type for r in recipe.rules if r.type is not None})
        return sa.and_(inside, self.labels.c[recipe.type].in_(kinds))

    def _judged(self, recipe: Judgments, since: float, until: float) -> sa.Subquery:
        """Each judged (query, item) of the queries served, once; of several judgments the highest grade counts."""
        e = self.labels
        query, item, grade = e.c[recipe.query], e.c[recipe.item], e.c[recipe.grade]
        served = sa.select(self._r(str(self.monitor.rankings.query))).where(self.served(since, until))
        number = sa.case((grade.is_(sa.true()), 1), else_=0) if self.boolean_grade else grade
        return (
            sa.select(query.label("query"), item.label("item"), sa.func.max(number).label("grade"))
            .where(query.in_(served), item.isnot(None), grade.isnot(None))
            .group_by(query, item)
            .subquery("j")
        )

    def _with_judgments(self, judged: sa.Subquery) -> sa.FromClause:
        query = self._r(str(self.monitor.rankings.query))
        return self.rankings.join(judged, sa.and_(judged.c.query == query, judged.c.item == self.item))

    def judged_rows(self, recipe: Judgments, since: float, until: float, sparse: bool) -> sa.Select[Any]:
        """Request, item, position and grade of the judged rows; without the zeros if `sparse`."""
        judged = self._judged(recipe, since, until)
        found = (
            sa.select(self.request, self.item, self.position, judged.c.grade)
            .select_from(self._with_judgments(judged))
            .where(self._usable(since, until))
        )
        return found.where(judged.c.grade != sa.literal_column("0")) if sparse else found

    def judged_shown(self, recipe: Judgments, since: float, until: float, k: int | None) -> sa.Select[Any]:
        """Request, and how many of its first k items are judged."""
        judged = self._judged(recipe, since, until)
        return (
            sa.select(self.request, sa.func.count())
            .select_from(self._with_judgments(judged))
            .where(self._usable(since, until), self.shown(k))
            .group_by(self.request)
        )

    def judgment_counts(self, recipe: Judgments, since: float, until: float) -> sa.Select[Any]:
        """Query, grade, and how many items of that query have that grade."""
        j = self._judged(recipe, since, until)
        return sa.select(j.c.query, j.c.grade, sa.func.count()).group_by(j.c.query, j.c.grade)
