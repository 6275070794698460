"""Under which keys of a monitor its tables, SELECTs and columns are configured."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.source.remark import Key
from monitor.types import Events, Judgments, Monitor


def columns_of(monitor: Monitor) -> Iterator[tuple[str, Key, str | None]]:
    """(alias of its table in our statements, key, column)."""
    rankings, recipe = monitor.rankings, monitor.recipe
    for name in ("request", "item", "position", "query", "model_version"):
        yield "r", ("rankings", name), getattr(rankings, name)
    yield "r", ("rankings", "time"), rankings.time.column
    offset = bool(monitor.slices) and monitor.slices[0].column == rankings.model_version  # which is put in front
    for index, one in enumerate(monitor.slices[offset:]):
        yield "r", ("slices", index), one.column
    if isinstance(recipe, Events):
        for name in ("request", "item", "type", "value"):
            yield "e", ("relevance", "events", name), getattr(recipe, name)
        yield "e", ("relevance", "events", "time"), recipe.time.column
    elif isinstance(recipe, Judgments):
        for name in ("query", "item", "grade"):
            yield "e", ("relevance", "judgments", name), getattr(recipe, name)
    else:
        yield "r", ("relevance", "column", "grade"), recipe.grade


def tables_of(monitor: Monitor) -> Iterator[tuple[str, Key, str | None]]:
    """(nothing, key, table without its schema) of both sides; empty where it is a SELECT."""
    kinds = {Events: "events", Judgments: "judgments"}
    yield "", ("rankings", "table"), (monitor.rankings.relation.table or ("",))[-1]
    recipe = monitor.recipe
    if isinstance(recipe, Events | Judgments):
        yield "", ("relevance", kinds[type(recipe)], "table"), (recipe.relation.table or ("",))[-1]


def selects_of(monitor: Monitor) -> Iterator[tuple[Key, str]]:
    """(key, SELECT) of both sides; empty where it is a table."""
    kinds, recipe = {Events: "events", Judgments: "judgments"}, monitor.recipe
    yield ("rankings", "select"), monitor.rankings.relation.select
    if isinstance(recipe, Events | Judgments):
        yield ("relevance", kinds[type(recipe)], "select"), recipe.relation.select
