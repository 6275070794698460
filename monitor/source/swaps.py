"""How often each (query, item) was shown and clicked at each rank, counted by the database."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.errors import InputError
from monitor.measures.examination import ShownCounts
from monitor.measures.measure import Measure
from monitor.series.partials import stored_names
from monitor.source.dialects.base import ONE, ZERO
from monitor.source.pull import Pull
from monitor.source.queries import Queries
from monitor.types import MODEL_VERSION, OTHER, Column, Events

MOST_CELLS = 5_000_000
"""Counts held in memory; each is a query, an item, its slices and a rank."""

FEW_VALUES = 10
"""Values of a column that a message names at most."""


def shown_counts(source: Pull, since: int, until: int, depth: int) -> ShownCounts:
    """`counts_by_slice` for all requests together."""
    return counts_by_slice(source, since, until, depth, None)[""]


def counts_by_table(
    source: Pull, since: int, until: int, depth: int, measure: Measure | None
) -> dict[tuple[str, str], ShownCounts]:
    """As `counts_by_slice`, by the slice whose values have a table of their own in a measure.

    Each value with a table is a key (dimension, value), and all others are together; without any, all are `ALL`.
    """
    dimension = "" if measure is None else measure.dimension
    values = [] if measure is None else [value for (_, value), _ in measure.by_slice]
    column = next((one.column for one in source.monitor.slices if one.dimension == dimension), None)
    found = counts_by_slice(source, since, until, depth, column, values=values)
    return {(dimension, value): of_it for value, of_it in found.items()}


def counts_by_slice(
    source: Pull,
    since: int,
    until: int,
    depth: int,
    column: str | None,
    with_below: bool = False,
    values: Collection[str] | None = None,
    only: tuple[str, str] | None = None,
) -> dict[str, ShownCounts]:
    """Value of a column, or empty without one -> counts of requests served in [since, until) seconds, to rank `depth`.

    An item counts as clicked if it has a label above 0 of the recipe: an event of a rule's type from the first
    request to the last one's attribution, or a grade. `with_below` counts those with a click further up, too. Other
    slices, but for model versions, are other pairs. Given `values` of the column, all others are `OTHER` together.
    `only` is (a column, the one value of it that counts).

    Raises:
        InputError: the monitor names no query, its labels are judgments, or no request has the value of `only`.
        SourceError: the source did not answer, or there are too many counts.
    """
    monitor = source.monitor
    if monitor.rankings.query is None:
        raise InputError(f"{monitor.name}: name the query column as rankings.query: swaps are found by query")
    # Model versions bring the swaps: people of each want the same.
    like = [one.column for one in monitor.slices if one.dimension != MODEL_VERSION]
    slices = list(dict.fromkeys([*like, *([] if column is None else [column]), *(only or ())[:1]]))
    with source.reading() as (reader, queries):
        rows = reader.columns(_counted(queries, since, until, depth, slices, with_below), MOST_CELLS)
    if only is not None:
        rows = _only(rows, slices.index(only[0]), *only)
    base = monitor.rankings.position.base
    if column is None:
        return {"": _counts(rows, base)}
    named = stored_names(rows[slices.index(column)])
    found = np.array([value if values is None or value in values else OTHER for value in named])
    return {str(v): _counts([list(compress(c, found == v)) for c in rows], base) for v in np.unique(found)}


def _only(rows: Sequence[Sequence[Any]], place: int, column: str, value: str) -> list[list[Any]]:
    """The rows with a value of the column at a place. Raises InputError: there are none."""
    named = stored_names(rows[place])
    if named and value not in named:
        known = ", ".join(sorted({*named})[:FEW_VALUES])
        raise InputError(f"no request has {value!r} in the column {column!r}; it has {known}")
    return [list(compress(one, [name == value for name in named])) for one in rows]


def _counts(columns: Sequence[Sequence[Any]], base: int) -> ShownCounts:
    *slices, query, item, place = columns[:-4]
    shown, clicked, shown_below, clicked_below = (np.array(column, float) for column in columns[-4:])
    pairs: dict[Any, int] = {}
    pair = [pairs.setdefault(key, len(pairs)) for key in zip(query, item, *slices, strict=True)]
    number = np.unique(np.array(list(map(str, query))), return_inverse=True)[1]
    rank = np.array(place, np.int64) - base + 1
    return ShownCounts(number, np.array(pair, np.int64), rank, shown, clicked, list(pairs), shown_below, clicked_below)


def _counted(
    queries: Queries, since: int, until: int, depth: int, slices: Sequence[str], with_below: bool
) -> sa.Select[Any]:
    """(slices, query, item, position, shown, clicked, shown and clicked below a click), by all before the counts."""
    query = queries.rankings.c[str(queries.monitor.rankings.query)]
    rows, clicked = _clicked(queries, since, until)
    by = [*(queries.rankings.c[column] for column in slices), query, queries.item, queries.position]
    cells = [c.label(f"c{i}") for i, c in enumerate(by)]
    placed = sa.and_(queries.usable(since, until), queries.placed(depth), query.isnot(None))
    first = sa.func.min(sa.case((clicked > ZERO, queries.position))).over(partition_by=queries.request)
    wanted = [*cells, clicked.label("clicked"), *([first.label("first")] if with_below else [])]
    one = sa.select(*wanted).select_from(rows).where(placed).subquery("one")
    of = [one.c[f"c{i}"] for i in range(len(by))]
    below = [ZERO, ZERO]
    if with_below:
        is_below = one.c.first < of[-1]
        below = [sa.func.sum(sa.case((is_below, number), else_=ZERO)) for number in (ONE, one.c.clicked)]
    return sa.select(*of, sa.func.count(), sa.func.sum(one.c.clicked), *below).group_by(*of)


def _clicked(queries: Queries, since: int, until: int) -> tuple[sa.FromClause, Any]:
    """(the lists' rows, 1 for a clicked one and else 0). Raises InputError."""
    recipe = queries.monitor.recipe
    if isinstance(recipe, Column):
        grade = queries.grade
        assert grade is not None  # the recipe has one
        return queries.rankings, sa.case((queries.nonzero(grade), ONE), else_=ZERO)
    if not isinstance(recipe, Events):
        name = queries.monitor.name
        raise InputError(f"{name}: judgments say nothing about where people look; examination needs clicks")
    e = queries.labels.c
    happened = queries.happened(recipe, since, until + recipe.attribution)
    # Several clicks of a request on an item are one.
    once = sa.select(e[recipe.request].label("q"), e[recipe.item].label("i"), ONE.label("clicked"))
    clicks = once.where(happened).distinct().subquery("clicks")
    matches = sa.and_(clicks.c.q == queries.request, clicks.c.i == queries.item)
    return queries.rankings.outerjoin(clicks, matches), sa.func.coalesce(clicks.c.clicked, ZERO)
