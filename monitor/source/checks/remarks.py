"""Remarks of the mapping checks, and the wording and limits they share."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.types import Events, Judgments, Monitor, Relation

Key = tuple[str | int, ...]

TIME_OF_EVENTS: Key = ("relevance", "events", "time")

FEWEST = 20
"""Fewer requests or events than this support no conclusion."""

NOTABLE = 0.1
"""Share of rows refused for one reason from which it is worth a remark."""

LONGEST_SHOWN = 40
MOST_NAMES = 8
"""Suggestions offered for a wrong name."""


@dataclass(frozen=True)
class Remark:
    """A problem found in a sample, with its fix; `key` is its place in the monitor's configuration."""

    key: Key
    text: str


def percent(some: int, every: int) -> str:
    """A share in words.

    >>> percent(26, 2000)
    '1 %'
    """
    return f"{100 * some / every:.0f} %"


def shown(value: Any) -> str:
    """A source value quoted for people, truncated if long."""
    if value is None:
        return "NULL"
    text = str(value)
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def instead(name: str, there: Sequence[str]) -> str:
    """The available names, most likely first; empty if there are none.

    >>> instead("TV", ["web", "tv"])
    "did you mean 'tv'? There are 'web', 'tv'"
    """
    if not there:
        return ""
    folded = {known.casefold(): known for known in reversed(there)}
    close = difflib.get_close_matches(name.casefold(), folded, 1)
    meant, there_are = (f"did you mean {folded[close[0]]!r}? ", "There are") if close else ("", "there are")
    more = ", …" if len(there) > MOST_NAMES else ""
    return f"{meant}{there_are} {', '.join(map(shown, there[:MOST_NAMES]))}{more}"


def columns_of(monitor: Monitor) -> Iterator[tuple[str, Key, str | None]]:
    """(alias of its table in our statements, key, column)."""
    rankings, recipe = monitor.rankings, monitor.recipe
    of_items = ("items",) if rankings.items is not None else ("item",)
    for name in ("request", *of_items, "query", "model_version"):
        yield "r", ("rankings", name), getattr(rankings, name)
    if rankings.items is None:
        yield "r", ("rankings", "position"), rankings.position.column
    yield "r", ("rankings", "time"), rankings.time.column
    offset = bool(monitor.slices) and monitor.slices[0].column == rankings.model_version  # put in front
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


def relations_of(monitor: Monitor) -> Iterator[tuple[Key, Relation]]:
    """(key of its side, table or SELECT) of the rankings, and of the labels if they have one."""
    yield ("rankings",), monitor.rankings.relation
    if isinstance(monitor.recipe, Events | Judgments):
        yield ("relevance", "events" if isinstance(monitor.recipe, Events) else "judgments"), monitor.recipe.relation
