"""SQL statements in SQLAlchemy Core: quoted identifiers, bound values, time-bounded reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.sql.elements import ColumnElement

from monitor.errors import SourceError
from monitor.measures.measure import Depth
from monitor.source.dialects import dialect_of
from monitor.source.dialects.base import Condition, Dialect, IdKind, whole
from monitor.source.engine import ColumnTypes, Reader
from monitor.source.times import CREDIBLE, slack
from monitor.types import Events, Judgments, Monitor, Relation, TimeColumn

SAMPLE = 100
"""Values sampled to see how a time column is written."""

MOST_COUNTED = 10_000
"""Future rows counted at most."""

PLACES = 2**53
"""Positions this far past the first are invalid: a float could not hold them."""


def relation(source: Relation, alias: str, wanted: Sequence[str | None], dialect: sa.Dialect) -> sa.FromClause:
    """The user's table, or their SELECT as a subquery, with the wanted columns, once each.

    A colon in the SELECT is text, not a parameter. It may end in a semicolon or comment.

    Raises:
        SourceError: the SELECT, or a name, might escape its place.
    """
    own, columns = dialect_of(dialect.name), list(dict.fromkeys(c for c in wanted if c is not None))
    if own.escapes_names and (odd := [c for c in columns if re.search(r"""[`"\\]""", c)]):
        raise SourceError(f"the column {odd[0]!r} contains a quote or a backslash; rename it in a view", "query", True)
    names: list[sa.ColumnClause[Any]] = [sa.column(sa.quoted_name(c, True)) for c in columns]
    if source.select:
        text = _enclosed(source, own).replace(":", r"\:")
        return sa.text(f"{text}\n").columns(*names).subquery(alias)
    *schema, table = source.table
    quote = dialect.identifier_preparer.quote_identifier
    quoted = sa.quoted_name(".".join(map(quote, schema)), False) if schema else None
    return sa.table(sa.quoted_name(table, True), *names, schema=quoted).alias(alias)


def unrolled(source: Relation, column: str, dialect: sa.Dialect, code: Any, kind: IdKind) -> Relation:
    """A SELECT with a row per element of the lists in a column of the source; see `Dialect.unrolled`.

    Raises:
        SourceError: the column, of the type `code`, holds no lists, or the database cannot unroll them.
    """
    own, quote = dialect_of(dialect.name), dialect.identifier_preparer.quote_identifier
    table = f"({_enclosed(source, own)}\n)" if source.select else ".".join(map(quote, source.table))
    if text := own.unrolled(table, quote(column), code, kind):
        return Relation(select=text)
    told = f"column {column!r} holds neither arrays of ids nor JSON, as `items` needs; name the column with the lists"
    raise SourceError(f"{told}, or map `item` and `position`", "data", lasting=True)


def _enclosed(source: Relation, own: Dialect) -> str:
    try:
        return own.quoting.enclosed(source.select)
    except ValueError as error:
        raise SourceError(f"`select:` is not one query: {error}", "query", True) from error


def untyped(value: object) -> ColumnElement[Any]:
    """A value compared with a column of any type.

    A typed parameter is sent with a cast, which does not compare with a number, enum or UUID.
    """
    return sa.literal(value, sa.types.NullType())


def refused_rows(counts: Any, excused: Callable[[str], Any]) -> dict[str, Any]:
    """Reason -> refused rows of a request, from the counts of `Queries.unshown`: numbers, arrays or SQL.

    Args:
        excused: a count by name, 0 unless the request's list is empty.
    """
    names = ("null_item", "null_position", "bad_position")
    return {r: counts[r] - excused(f"nothing_{r}") if f"nothing_{r}" in counts else counts[r] for r in names}


def event_types(recipe: Events) -> list[str]:
    """Event types the rules name, in a fixed order."""
    return sorted({r.type for r in recipe.rules if r.type is not None})


class LoggedTime(NamedTuple):
    """A time column: as declared, in our statements, and its type code if known."""

    declared: TimeColumn
    column: ColumnElement[Any]
    code: Any


@dataclass(frozen=True)
class Queries:
    """The statements of one monitor.

    Attributes:
        lax_texts: text types that may ignore case, accents or blanks in comparisons.
        events_have_rowid: the events table has the database's own row numbers.
        has_enum_types: event types are an enum, which compares only with its own values.
        bounds: seconds, of the only ranking rows that these statements see; None: all. See `within`.
    """

    monitor: Monitor
    dialect: sa.Dialect = field(default_factory=DefaultDialect)
    types: ColumnTypes = field(default_factory=ColumnTypes, compare=False)
    lax_texts: Collection[Any] = ()
    events_have_rowid: bool = False
    has_enum_types: bool = False
    bounds: tuple[float, float] | None = None

    @cached_property
    def sql(self) -> Dialect:
        return dialect_of(self.dialect.name)

    @cached_property
    def cutoffs(self) -> tuple[int | None, ...]:
        """Depths for which shown rows are counted: the traffic's first."""
        return tuple(dict.fromkeys([self.monitor.depth, None, 1]))

    @cached_property
    def lengths(self) -> tuple[Depth, ...]:
        """Depths for which a measure needs the distinct items shown."""
        return tuple(dict.fromkeys(k for m in self.monitor.measures for k in m.list_lengths))

    # ---- relations and columns ---------------------------------------------------------------------------------

    @cached_property
    def logged(self) -> sa.FromClause:
        """The lists as they are logged, named r: as `rankings`, or a row per request if a column has its `items`."""
        return self._of_lists(self.monitor.rankings.relation, self.monitor.rankings.items)

    def _of_lists(self, source: Relation, items: str | None = None) -> sa.FromClause:
        r, slices = self.monitor.rankings, (s.column for s in self.monitor.slices)
        of_items = (r.item, r.position.column) if items is None else (items,)
        of_request = r.time.column, r.query, r.model_version, r.results, self.grade_column, *slices
        return relation(source, "r", (r.request, *of_items, *of_request), self.dialect)

    @cached_property
    def rankings(self) -> sa.FromClause:
        """A row per item shown, or for an empty list, named r; of `items` once `types` are known."""
        r, recipe, found = self.monitor.rankings, self.monitor.recipe, self.logged
        if r.items is not None:
            kind = self.sql.id_kind(self.types.labels.get(getattr(recipe, "item", "")))
            lists = unrolled(r.relation, r.items, self.dialect, self.types.rankings.get(r.items), kind)
            found = self._of_lists(lists)
        if self.bounds is None:
            return found
        inside = self.sql.between(found.c[r.time.column], r.time, *self.bounds)
        return self.sql.fenced(sa.select(*found.c).where(inside)).subquery("r")

    def within(self, since: float, until: float) -> Queries:
        """The statements over ranking rows in [since, until) seconds, if the database must select these first.

        What is done with the rows then has no say in how they are found.
        """
        return replace(self, bounds=(since, until)) if self.sql.selects_first else self

    @property
    def grade_column(self) -> str | None:
        """The grade column of the rankings; None if another recipe supplies grades."""
        return getattr(self.monitor.recipe, "grade", None) if self._labels is None else None

    @cached_property
    def _labels(self) -> sa.FromClause | None:
        recipe = self.monitor.recipe
        if isinstance(recipe, Events):
            names = recipe.request, recipe.item, recipe.time.column, recipe.type, recipe.value
            return relation(recipe.relation, "e", names, self.dialect)
        if isinstance(recipe, Judgments):
            return relation(recipe.relation, "e", (recipe.query, recipe.item, recipe.grade), self.dialect)
        return None

    # ---- types -------------------------------------------------------------------------------------------------

    @cached_property
    def boolean_grade(self) -> bool:
        """Whether the grade is a boolean, which does not compare with 0."""
        recipe, code = self.monitor.recipe, None
        if self.grade_column is not None:
            code = self.types.rankings.get(self.grade_column)
        elif isinstance(recipe, Judgments):
            code = self.types.labels.get(recipe.grade)
        return self.sql.is_boolean(code)

    @property
    def position_type(self) -> Any:
        """Type code of the position column."""
        return self.types.rankings.get(self.monitor.rankings.position.column)

    @property
    def whole_position(self) -> bool:
        """Whether the type of positions allows only whole numbers."""
        return self.position_type in self.sql.integers

    @property
    def small_position(self) -> bool:
        """Whether the type of positions is too small for an invalid one."""
        return self.position_type in self.sql.small_integers

    def _slices_of(self, wanted: Callable[[Any], bool]) -> frozenset[str]:
        known = {s.column: self.types.rankings.get(s.column) for s in self.monitor.slices}
        return frozenset(name for name, code in known.items() if code is not None and wanted(code))

    @cached_property
    def lax_slices(self) -> frozenset[str]:
        """Slice columns that are `lax_texts`."""
        return self._slices_of(lambda code: code in self.lax_texts)

    @cached_property
    def varied_slices(self) -> frozenset[str]:
        """Slice columns of other types whose equal values may be written differently."""
        return self._slices_of(self.sql.is_varied)

    @cached_property
    def bit_slices(self) -> frozenset[str]:
        """Slice columns of BIT, perhaps several bits; they arrive as bytes."""
        return self._slices_of(lambda code: self.sql.bit is not None and code == self.sql.bit)

    @cached_property
    def boolean_slices(self) -> frozenset[str]:
        """Boolean slice columns."""
        return self._slices_of(self.sql.is_boolean) - self.bit_slices

    def types_now(self, reader: Reader, to_sum: bool) -> ColumnTypes:
        """The current column types, fixed until the transaction ends; reads no row.

        Args:
            to_sum: also prepare for statements that sum, if that is free.

        Raises:
            SourceError: a table or a column is not there.
        """
        if self.monitor.rankings.items is None:
            return self._types_now(reader, self.rankings, to_sum)
        logged = self._types_now(reader, self.logged, False)
        found = self._types_now(reader, replace(self, types=logged).rankings, to_sum)
        return replace(found, rankings={**logged.rankings, **found.rankings})

    def _types_now(self, reader: Reader, rankings: sa.FromClause, to_sum: bool) -> ColumnTypes:
        relations = [relation for relation in (rankings, self._labels) if relation is not None]
        codes, is_behind = self.sql.column_types(reader, relations, to_sum)
        left = iter(codes)
        found = [{column.name: next(left) for column in relation.c} for relation in relations]
        version = int(reader.one(sa.text(asked))) if (asked := self.sql.schema_version) else 0
        return ColumnTypes(found[0], found[1] if found[1:] else {}, version, is_behind)

    @property
    def labels(self) -> sa.FromClause:
        """The events or judgments, named e."""
        if self._labels is None:
            raise ValueError("this recipe has no label table")
        return self._labels

    @property
    def grade(self) -> ColumnElement[Any] | None:
        """The grade column of either table; None if events supply grades."""
        if self.grade_column is not None:
            return self._r(self.grade_column)
        recipe = self.monitor.recipe
        return self.labels.c[recipe.grade] if isinstance(recipe, Judgments) else None

    def _r(self, name: str) -> ColumnElement[Any]:
        return self.rankings.c[name]

    @property
    def request(self) -> ColumnElement[Any]:
        """A row's request id."""
        return self._r(self.monitor.rankings.request)

    @property
    def item(self) -> ColumnElement[Any]:
        """A row's item."""
        return self._r(self.monitor.rankings.item)

    @property
    def position(self) -> ColumnElement[Any]:
        """A row's position, in the source's own base."""
        return self._r(self.monitor.rankings.position.column)

    @property
    def time(self) -> ColumnElement[Any]:
        """A row's time, as the source writes it."""
        return self._r(self.monitor.rankings.time.column)

    @property
    def times(self) -> list[LoggedTime]:
        """The time of the rankings as logged, then that of the events if there are any."""
        declared, recipe = self.monitor.rankings.time, self.monitor.recipe
        found = [LoggedTime(declared, self.logged.c[declared.column], self.types.rankings.get(declared.column))]
        if isinstance(recipe, Events):
            code = self.types.labels.get(recipe.time.column)
            found.append(LoggedTime(recipe.time, self.labels.c[recipe.time.column], code))
        return found

    def keys(self) -> list[ColumnElement[Any]]:
        """The query if the recipe uses it, then the slice columns."""
        by_query = isinstance(self.monitor.recipe, Judgments) and self.monitor.rankings.query
        names = [self.monitor.rankings.query] if by_query else []
        columns = [self._r(str(name)) for name in (*names, *(s.column for s in self.monitor.slices))]
        return [sa.cast(c, sa.Text) if c.name in self.varied_slices else c for c in columns]

    def exactly(self, name: str) -> ColumnElement[Any]:
        """An expression that distinguishes values the collation or type treats as equal; see `lax_texts`."""
        return self.sql.exactly(self._r(name), self.types.rankings.get(name))

    # ---- conditions --------------------------------------------------------------------------------------------

    def wide(self, since: int, until: int) -> tuple[int, int]:
        """[since, until) seconds that hold all rows of requests served in the range."""
        return since - self.monitor.max_request_span, until + self.monitor.max_request_span

    def served(self, since: float, until: float) -> Condition:
        """Ranking rows in [since, until) seconds."""
        if self.bounds == (since, until):
            return sa.true()
        return self.sql.between(self.time, self.monitor.rankings.time, since, until)

    def at(self, instant: int) -> ColumnElement[Any]:
        """An instant (seconds), comparable with times of the rankings."""
        return self.sql.instant(self.monitor.rankings.time, instant)

    def rank(self) -> ColumnElement[Any]:
        """A row's rank, from 1; NULL without a valid position."""
        base = self.monitor.rankings.position.base
        number = self.sql.rank(self.position, self.whole_position)
        if self.small_position and not base:
            number = sa.cast(number, sa.BigInteger)  # the largest position plus one would overflow
        return sa.case((self.placed(), number - whole(base - 1)))

    def placed(self, k: int | None = None) -> Condition:
        """Whether a row has one of the first k positions."""
        first = self.monitor.rankings.position.base
        number, is_whole = self.sql.place(self.position, self.whole_position)
        if k is None and self.small_position:
            return number >= whole(first)
        within = number.between(whole(first), whole(first + (PLACES if k is None else k) - 1))
        return within if is_whole is None else sa.and_(within, is_whole)

    def shown(self, k: int | None) -> Condition:
        """Whether a row shows an item at one of the first k positions."""
        return sa.and_(self.item.isnot(None), self.placed(k))

    def usable(self, since: float, until: float) -> Condition:
        """Rows in [since, until) seconds with a request and an item."""
        return sa.and_(self.served(since, until), self.request.isnot(None), self.item.isnot(None))

    def nonzero(self, grade: ColumnElement[Any]) -> Condition:
        """Whether a grade is not 0."""
        return grade == sa.true() if self.boolean_grade else grade != sa.literal_column("0")

    def happened(self, recipe: Events, since: float, until: float) -> Condition:
        """Events in [since, until) seconds of a type that a rule names."""
        inside = self.sql.between(self.labels.c[recipe.time.column], recipe.time, since, until)
        if recipe.type is None or any(r.type is None for r in recipe.rules):
            return inside
        return sa.and_(
            inside, self._type(recipe.type, self.labels).in_([untyped(kind) for kind in event_types(recipe)])
        )

    def _type(self, name: str, events: sa.FromClause) -> ColumnElement[Any]:
        return sa.cast(events.c[name], sa.Text) if self.has_enum_types else events.c[name]

    def kind(self, recipe: Events, events: sa.FromClause) -> ColumnElement[Any] | None:
        """An event type's index in `event_types`, NULL if not listed; None if the recipe has no types.

        The database compares: it may pad, apply a collation, or store numbers or an enum.
        """
        if recipe.type is None:
            return None
        column, kinds = self._type(recipe.type, events), event_types(recipe)
        cases: list[Any] = [(column == untyped(kind), sa.literal_column(str(i))) for i, kind in enumerate(kinds)]
        return sa.case(*cases) if cases else sa.null()

    # ---- the source as a whole ---------------------------------------------------------------------------------

    def newest(self, since: float, until: float) -> sa.Select[Any]:
        """Time of the newest ranking in [since, until)."""
        declared, time, _ = self.times[0]
        return sa.select(sa.func.max(time)).where(self.sql.between(time, declared, since, until))

    def row_counts(self, spans: Sequence[tuple[int, int]]) -> sa.CompoundSelect[Any]:
        """Number of each span [since, until) (seconds) and its rows as logged; an index on the time alone suffices."""
        every, (declared, time, _) = sa.func.count(), self.times[0]
        counts: list[sa.Select[Any]] = []
        for i, span in enumerate(spans):
            columns: list[ColumnElement[Any]] = [sa.literal_column(str(i)), every]
            inside = self.sql.between(time, declared, *span)
            counts.append(sa.select(*columns).select_from(self.logged).where(inside))
        return sa.union_all(*counts)

    def bucket_counts(self, since: int, until: int) -> sa.Select[Any] | None:
        """Number of each bucket from `since` on, and its rows; None where the ends of buckets are found by an index."""
        declared, time, _ = self.times[0]
        if self.sql.by_one_processor or not self.sql.can_reckon(declared):
            return None
        seconds = self.sql.seconds(time, declared)
        assert seconds is not None
        number = self.sql.block(seconds, self.monitor.bucket, since).label("number")
        rows = sa.select(number).where(self.sql.between(time, declared, since, until)).subquery("v")
        return sa.select(rows.c.number, sa.func.count()).group_by(rows.c.number)

    def newest_event(self, recipe: Events, since: float, until: float) -> sa.Select[Any]:
        """Time of the newest event in [since, until) that a rule names."""
        e = self.labels
        kind = self.kind(recipe, e)
        counts = [] if kind is None else [kind.isnot(None)]
        return sa.select(sa.func.max(e.c[recipe.time.column])).where(self.happened(recipe, since, until), *counts)

    def future(self, now: float) -> sa.Select[Any]:
        """Rows dated after `now`, counted up to `MOST_COUNTED`."""
        declared, time, _ = self.times[0]
        later = time >= self.sql.instant(declared, now + slack(declared, now))
        return sa.select(sa.func.count()).select_from(sa.select(time).where(later).limit(MOST_COUNTED).subquery())

    def sample(self, time: LoggedTime) -> sa.Select[Any]:
        """A few of the times; readable by the driver, where that can be told."""
        is_moment = time.declared.format == "native" and self.sql.has_times
        credible = self.sql.between(time.column, time.declared, *CREDIBLE)
        return sa.select(time.column).where(credible if is_moment else time.column.isnot(None)).limit(SAMPLE)

    def rowid(self, of_events: Events) -> sa.Select[Any]:
        """The events table's CREATE statement on SQLite; no row for what may be a view or lack row ids."""
        created: sa.ColumnClause[str] = sa.column("sql")
        known = sa.table("sqlite_master", sa.column("name"), created)
        plain = created.like("CREATE TABLE%"), created.not_like("%rowid%")
        return sa.select(created).where(known.c.name == ".".join(of_events.relation.table), *plain)

    # ---- requests ----------------------------------------------------------------------------------------------

    def requests(self, since: float, until: float) -> sa.Select[Any]:
        """One row per request, kind of row and set of slice values.

        Columns: request, earliest and latest time, kind, `request_counts`, `keys`. The kind is 0 for rows that show an
        item, else has a bit for each of `unshown` that holds; counts of shown rows mean something for kind 0 alone.
        """
        keys, times = self.keys(), (sa.func.min(self.time), sa.func.max(self.time))
        bits: list[Any] = [sa.case((c, whole(1 << i)), else_=whole(0)) for i, c in enumerate(self.unshown().values())]
        kind = sa.case((self.shown(None), whole(0)), else_=sum(bits[1:], bits[0])).label("rankmon_kind")
        grouped: ColumnElement[Any] = sa.literal_column("rankmon_kind") if self.sql.groups_by_name else kind
        return (
            sa.select(self.request, *times, kind, *self.request_counts().values(), *keys)
            .select_from(self.rankings)
            .where(self.served(since, until))
            .group_by(self.request, grouped, *keys, *map(self.exactly, sorted(self.lax_slices)))
        )

    def request_counts(self) -> dict[str, ColumnElement[int]]:
        """Counts of rows that show an item, by name, for the pull.

        Rows; rows within each cut-off but None; distinct items within each of `lengths`; and, if grades are in the
        rankings, graded rows shown overall and within the first cut-off.
        """
        first, (number, _) = self.monitor.rankings.position.base, self.sql.place(self.position, self.whole_position)
        counts: dict[str, ColumnElement[int]] = {"n_rows": sa.func.count()}
        for i, k in enumerate(self.cutoffs):
            if k is not None:
                counts[f"shown_{i}"] = self.sql.counted(whole(1), number <= whole(first + k - 1))
        return counts | self.listed_counts() | self.graded_counts()

    def unshown(self) -> dict[str, Condition]:
        """Name -> whether a row shows no item for that reason; `nothing_*`: since it says that the list is empty.

        Such rows have neither item nor position. If there is a count of results, it is 0, and no item is placed:
        ClickHouse's LEFT ARRAY JOIN writes '' or 0 for the item, and 0 for the position, of an empty list.
        """
        column, unplaced = self.monitor.rankings.results, self.position.is_(None)
        bad = sa.case((sa.or_(unplaced, self.placed()), whole(0)), else_=whole(1)) == whole(1)
        found = {"null_item": self.item.is_(None), "null_position": unplaced, "bad_position": bad}
        if column is None:
            nothing = sa.and_(found["null_item"], unplaced)
            return {**found, "nothing_null_item": nothing, "nothing_null_position": nothing}
        is_none = self._r(column) == whole(0)
        found["null_item"] = sa.or_(found["null_item"], sa.and_(is_none, sa.or_(unplaced, bad)))
        nothing = sa.and_(found["null_item"], is_none)
        return found | {f"nothing_{reason}": sa.and_(nothing, fault) for reason, fault in found.items()}

    @property
    def lists_item(self) -> Condition:
        """Whether a row has an item, at any position."""
        return sa.case((self.unshown()["null_item"], whole(0)), else_=whole(1)) == whole(1)

    def shown_counts(self) -> dict[str, ColumnElement[int]]:
        """Rows shown within each cut-off, and distinct items within each of `lengths`, for push-down."""
        shown = {f"shown_{i}": self.sql.counted(self.item, self.placed(k)) for i, k in enumerate(self.cutoffs)}
        return shown | self.listed_counts()

    def unshown_count(self, name: str) -> ColumnElement[int]:
        """Rows that meet the condition of that name; see `unshown`."""
        return self.sql.counted(whole(1), self.unshown()[name])

    def listed_counts(self) -> dict[str, ColumnElement[int]]:
        """Distinct items within each of `lengths`."""
        return {f"listed_{i}": self.listed(k) for i, k in enumerate(self.lengths)}

    def graded_counts(self) -> dict[str, ColumnElement[int]]:
        """Graded rows shown overall and within the first cut-off, if grades are in the rankings."""
        if self.grade_column is None:
            return {}
        return {"graded": self.graded(None), "judged": self.graded(self.cutoffs[0])}

    def nameless(self, since: float, until: float) -> sa.Select[Any]:
        """Time, and number of rows at that time without a request."""
        wanted = self.served(since, until), self.request.is_(None)
        return sa.select(self.time, sa.func.count()).where(*wanted).group_by(self.time)

    def listed(self, k: Depth) -> ColumnElement[Any]:
        """Distinct items at the first k positions, or the sum of a table's different values over the ranks shown.

        A row delivered twice counts once.
        """
        if isinstance(k, tuple):
            last, looks = int(k[-1][0]), {int(rank): value for rank, value in k}
            by_rank = self.sql.table(self.rank(), 1, [looks.get(rank, 0.0) for rank in range(1, last + 1)], 0.0)
            return sa.func.sum(sa.distinct(sa.case((self.shown(last), by_rank), else_=self.sql.number(0))))
        name = self.monitor.rankings.item
        item = self.exactly(name) if self.types.rankings.get(name) in self.lax_texts else self.item
        return sa.func.count(sa.distinct(sa.case((self.placed(k), item))))

    def lists(self, since: float, until: float) -> sa.Select[Any]:
        """Request, and `listed` down to each of `lengths`, over all of the request's rows."""
        columns = [self.request, *map(self.listed, self.lengths)]
        wanted = self.served(since, until), self.request.isnot(None)
        return sa.select(*columns).where(*wanted).group_by(self.request)

    def near_ends(self, since: int, until: int) -> sa.Select[Any]:
        """Request, time and number of rows at each time within `max_request_span` of `since` or `until`."""
        near = [self.served(*self.wide(end, end)) for end in (since, until)]
        wanted = sa.or_(*near), self.request.isnot(None)
        return sa.select(self.request, self.time, sa.func.count()).where(*wanted).group_by(self.request, self.time)

    def graded(self, k: int | None) -> ColumnElement[int]:
        """Rows that show a graded item at one of the first k positions."""
        return self.sql.counted(self._r(str(self.grade_column)), self.shown(k))

    def all_rows(self, since: float, until: float) -> sa.Select[Any]:
        """Request, item and position of every row."""
        return sa.select(self.request, self.item, self.position).where(self.usable(since, until))

    def graded_rows(self, since: float, until: float, sparse: bool) -> sa.Select[Any]:
        """Request, item, position and grade of graded rows; without zeros if `sparse`."""
        grade = self._r(str(self.grade_column))
        wanted = [self.usable(since, until), grade.isnot(None), *([self.nonzero(grade)] if sparse else [])]
        return sa.select(self.request, self.item, self.position, grade).where(*wanted)

    # ---- events ------------------------------------------------------------------------------------------------

    def event_rows(
        self, recipe: Events, since: float, until: float, reach: tuple[float, float] | None = None
    ) -> sa.Select[Any]:
        """Request, item, position, number, time, [kind], [value] of events on items logged in [since, until).

        An event has one row per row of its item in its request; `number` identifies the event. With `reach`, a wider
        range, it adds events on items logged in it, and unmatched ones with NULL as request; the last two columns then
        are the row's time and whether it is in [since, until).
        """
        span, e = self.monitor.max_request_span, self.labels
        number: ColumnElement[int] = sa.func.row_number().over(order_by=e.c[recipe.time.column])
        if self.events_have_rowid and reach is not None:
            # Only on a join's outer side: else SQLite flattens the subquery and indexes all events ever.
            number = sa.literal_column("e.rowid")
        happened = self.happened(recipe, since - span, until + recipe.attribution + span)
        e = sa.select(*e.c, number.label("rankmon_number")).where(happened).subquery("n")
        value = None if recipe.value is None else e.c[recipe.value]
        wanted = [e.c["rankmon_number"], e.c[recipe.time.column], self.kind(recipe, e), value]
        columns = [self.request, self.item, self.position, *(c for c in wanted if c is not None)]
        matches = sa.and_(e.c[recipe.request] == self.request, e.c[recipe.item] == self.item)
        if reach is None:
            return sa.select(*columns).select_from(e.join(self.rankings, matches)).where(self.usable(since, until))
        inside = sa.case((self.served(since, until), 1), else_=0)
        joined = e.outerjoin(self.rankings, sa.and_(matches, self.served(*reach)))
        return sa.select(*columns, self.time, inside).select_from(joined)

    def unmatched(
        self, recipe: Events, since: float, until: float, reach: tuple[float, float], *more: ColumnElement[Any]
    ) -> sa.Select[Any]:
        """Times, and `more`, of events in [since, until) whose item was not logged for their request in `reach`."""
        e = self.labels
        logged = sa.and_(
            e.c[recipe.request] == self.request,  # the same order everywhere: SQLite uses the first operand's collation
            e.c[recipe.item] == self.item,
            self.served(*reach),
        )
        return (
            sa.select(e.c[recipe.time.column], *more)
            .select_from(e.outerjoin(self.rankings, logged))
            .where(self.happened(recipe, since, until), self.request.is_(None))
        )

    def traces(
        self, recipe: Events, since: float, until: float, reach: tuple[float, float], most: int
    ) -> sa.Select[Any]:
        """For up to `most` of `unmatched`: time, earliest time of its request, and of its item in that request, ever.

        Searches by id only: a full scan of the rankings if ids have no index.
        """
        e = self.labels.c
        ids = e[recipe.request].label("lost_request"), e[recipe.item].label("lost_item")
        lost = self.unmatched(recipe, since, until, reach, *ids).limit(most).subquery("lost")
        of_item = sa.case((lost.c.lost_item == self.item, self.time))
        return (
            sa.select(lost.c[recipe.time.column], sa.func.min(self.time), sa.func.min(of_item))
            .select_from(lost.outerjoin(self.rankings, lost.c.lost_request == self.request))
            .group_by(lost.c.lost_request, lost.c.lost_item, lost.c[recipe.time.column])
        )

    # ---- judgments ---------------------------------------------------------------------------------------------

    def _judged(self, recipe: Judgments, since: float, until: float) -> sa.Subquery:
        """Each judged (query, item) served, once, with its highest grade; the query is written as in the rankings."""
        e = self.labels
        query = self._r(str(self.monitor.rankings.query))
        served = (
            sa.select(self.sql.group_exactly(query).label("query"))
            .where(self.served(since, until))
            .distinct()
            .subquery("q")
        )
        item, grade = e.c[recipe.item], e.c[recipe.grade]
        number = sa.case((grade == sa.true(), 1), else_=0) if self.boolean_grade else grade
        return (
            sa.select(served.c.query.label("query"), item.label("item"), sa.func.max(number).label("grade"))
            .select_from(served.join(e, e.c[recipe.query] == served.c.query))
            .where(item.isnot(None), grade.isnot(None))
            .group_by(served.c.query, item)
            .subquery("j")
        )

    def _on_judged(
        self, judged: sa.Subquery, since: float, until: float, *columns: ColumnElement[Any]
    ) -> sa.Select[Any]:
        """The columns of the rows whose item is judged."""
        query = self._r(str(self.monitor.rankings.query))
        rows = self.rankings.join(judged, sa.and_(judged.c.query == query, judged.c.item == self.item))
        return sa.select(*columns).select_from(rows).where(self.usable(since, until))

    def judged_rows(self, recipe: Judgments, since: float, until: float, sparse: bool) -> sa.Select[Any]:
        """Request, item, position and grade of judged rows; without zeros if `sparse`."""
        judged = self._judged(recipe, since, until)
        found = self._on_judged(judged, since, until, self.request, self.item, self.position, judged.c.grade)
        return found.where(judged.c.grade != sa.literal_column("0")) if sparse else found

    def judged_shown(self, recipe: Judgments, since: float, until: float, k: int | None) -> sa.Select[Any]:
        """Request, and how many of its first k items are judged."""
        judged = self._judged(recipe, since, until)
        found = self._on_judged(judged, since, until, self.request, sa.func.count())
        return found.where(self.shown(k)).group_by(self.request)

    def judgment_counts(self, recipe: Judgments, since: float, until: float) -> sa.Select[Any]:
        """Query, grade, and number of the query's items with that grade."""
        j = self._judged(recipe, since, until)
        return sa.select(j.c.query, j.c.grade, sa.func.count()).group_by(j.c.query, j.c.grade)
