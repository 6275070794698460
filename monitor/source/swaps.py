"""How often each (query, item) was shown and clicked at each rank, counted by the database."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa

from monitor.errors import InputError
from monitor.measures.examination import ShownCounts
from monitor.source.pull import Pull
from monitor.source.queries import Queries
from monitor.types import Column, Events, Monitor

MOST_CELLS = 5_000_000
"""Counts held in memory; each is a query, an item and a rank."""


def shown_counts(source: Pull, since: int, until: int, depth: int) -> ShownCounts:
    """The counts of requests served in [since, until) seconds, of the first `depth` ranks.

    An item counts as clicked if it has a label above 0 of the recipe: an event of a rule's type from the first
    request to the last one's attribution, or a grade.

    Raises:
        InputError: the monitor names no query, or its labels are judgments.
        SourceError: the source did not answer, or there are too many counts.
    """
    monitor = source.monitor
    if monitor.rankings.query is None:
        raise InputError(f"{monitor.name}: name the column with the query as rankings.query: swaps are found by it")
    with source.reading() as (reader, queries):
        shown = reader.columns(_shown(queries, since, until, depth), MOST_CELLS)
        clicked = reader.columns(_clicked(queries, monitor, since, until, depth), MOST_CELLS)
    clicks = {key: float(n) for *key_, n in zip(*clicked, strict=True) for key in [tuple(key_)]}
    query = np.unique(np.array(list(map(str, shown[0]))), return_inverse=True)[1]
    pairs: dict[Any, int] = {}
    pair = [pairs.setdefault(key, len(pairs)) for key in zip(shown[0], shown[1], strict=True)]
    rank = np.array(shown[2], np.int64) - monitor.rankings.position.base + 1
    found = [clicks.get(key, 0.0) for key in zip(*shown[:3], strict=True)]
    return ShownCounts(query, np.array(pair, np.int64), rank, np.array(shown[3], float), np.array(found), list(pairs))


def _cell(queries: Queries, since: int, until: int, depth: int) -> tuple[list[Any], Any]:
    """(columns of a cell, condition of its rows)."""
    query = queries.rankings.c[str(queries.monitor.rankings.query)]
    columns = [query, queries.item, queries.position]
    return columns, sa.and_(queries.usable(since, until), queries.placed(depth), query.isnot(None))


def _shown(queries: Queries, since: int, until: int, depth: int) -> sa.Select[Any]:
    columns, usable = _cell(queries, since, until, depth)
    return sa.select(*columns, sa.func.count()).where(usable).group_by(*columns)


def _clicked(queries: Queries, monitor: Monitor, since: int, until: int, depth: int) -> sa.Select[Any]:
    columns, usable = _cell(queries, since, until, depth)
    recipe = monitor.recipe
    if isinstance(recipe, Column):
        grade = queries.grade
        assert grade is not None  # the recipe has one
        return sa.select(*columns, sa.func.count()).where(usable, queries.nonzero(grade)).group_by(*columns)
    if not isinstance(recipe, Events):
        raise InputError(f"{monitor.name}: judgments say nothing of where people look; examination needs clicks")
    e = queries.labels.c
    matches = sa.and_(e[recipe.request] == queries.request, e[recipe.item] == queries.item)
    happened = queries.happened(recipe, since, until + recipe.attribution)
    # Several clicks of a request on an item are one.
    once = (
        sa.select(queries.request.label("request"), *(c.label(f"c{i}") for i, c in enumerate(columns)))
        .select_from(queries.rankings.join(queries.labels, matches))
        .where(usable, happened)
        .distinct()
        .subquery("once")
    )
    cells = [once.c[f"c{i}"] for i in range(len(columns))]
    return sa.select(*cells, sa.func.count()).group_by(*cells)
