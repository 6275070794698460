"""Where in the configuration the cause of a source's error is to be looked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from monitor.core.types import Events, Judgments, Monitor

Key = tuple[str | int, ...]

_MISSING = (
    (re.compile(r"no such column: (\S+?)(?=[;,]|\s|$)|column (\S+) does not exist|Unknown column '([^']+)'"), True),
    (re.compile(r"no such table: (\S+?)(?=[;,]|\s|$)|relation (\S+) does not exist|Table '([^']+)' doesn't"), False),
)
_STATEMENT = re.compile(r" LINE \d+: .*?\^+")
_ALIAS = re.compile(r"(?<![\w.])([re])\.(?=[\w\"`])(?!g\.)")  # but not of an "e.g."
_UNLIKE = re.compile(r": (request|item|query) of rankings and labels cannot be compared")
_NO_FILES = re.compile(r"No files found that match the pattern \"(.+?)\"")
_NOT_READ = re.compile(r"invalid input syntax for type [\w ]+: \"(.*?)\"")


def plainly(text: str) -> str:
    """A database's message without the statement that was sent, and without the names that rankmon gave tables in it.

    >>> plainly("no such column: r.skuu; compare the table")
    'no such column: skuu; compare the table'
    >>> plainly("it names no zone, so declare e.g. timezone: UTC")
    'it names no zone, so declare e.g. timezone: UTC'
    """
    return _ALIAS.sub("", _STATEMENT.sub("", text))


def key_of(monitor: Monitor, text: str) -> Key:
    """The key, within a monitor, whose table, column or file is not there or of another type by a database's message.

    Empty if it is none.
    """
    if "function floor(" in text or " >= integer" in text:  # which only positions are asked for
        return ("rankings", "position")
    if found := _UNLIKE.search(text):
        return ("relevance", "judgments" if isinstance(monitor.recipe, Judgments) else "events", found[1])
    if found := _NO_FILES.search(text):
        return next((key for key, select in _selects(monitor) if found[1] in select), ())
    types = {rule.type for rule in monitor.recipe.rules} if isinstance(monitor.recipe, Events) else {}
    if (found := _NOT_READ.search(text)) and found[1] in types:
        return ("relevance", "events", "type")
    for pattern, is_column in _MISSING:
        if found := pattern.search(text):
            named = next(part for part in found.groups() if part)
            alias, _, name = named.rpartition(".")
            wanted = name.strip("\"'`")
            keys = list(_columns(monitor) if is_column else _tables(monitor))
            return next((key for side, key, held in keys if held == wanted and alias in ("", side)), ()) or next(
                (key for _, key, held in keys if held == wanted), ()
            )
    return ()


def _columns(monitor: Monitor) -> Iterator[tuple[str, Key, str | None]]:
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


def _tables(monitor: Monitor) -> Iterator[tuple[str, Key, str | None]]:
    kinds = {Events: "events", Judgments: "judgments"}
    yield "", ("rankings", "table"), (monitor.rankings.relation.table or ("",))[-1]
    recipe = monitor.recipe
    if isinstance(recipe, Events | Judgments):
        yield "", ("relevance", kinds[type(recipe)], "table"), (recipe.relation.table or ("",))[-1]


def _selects(monitor: Monitor) -> Iterator[tuple[Key, str]]:
    kinds, recipe = {Events: "events", Judgments: "judgments"}, monitor.recipe
    yield ("rankings", "select"), monitor.rankings.relation.select
    if isinstance(recipe, Events | Judgments):
        yield ("relevance", kinds[type(recipe)], "select"), recipe.relation.select
