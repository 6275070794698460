"""Where in the configuration the cause of a source's error is to be looked for."""

from __future__ import annotations

import re

from monitor.source.mapped import columns_of, selects_of, tables_of
from monitor.source.remark import Key
from monitor.types import Events, Judgments, Monitor

_MISSING = (
    (re.compile(r"no such column: (\S+?)(?=[;,]|\s|$)|column (\S+) does not exist|Unknown column '([^']+)'"), True),
    (re.compile(r"no such table: (\S+?)(?=[;,]|\s|$)|relation (\S+) does not exist|Table '([^']+)' doesn't"), False),
)
_STATEMENT = re.compile(r" LINE \d+: .*?\^+")
_ALIAS = re.compile(r"(?<![\w.])([re])\.(?=[\w\"`])(?!g\.)")  # but not of an "e.g."
_TIME = re.compile(r": time column '([^']+)' ")
_WRONG_KIND = re.compile(r": column '([^']+)' (?:is text, and positions|holds arrays)")
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
    if found := _WRONG_KIND.search(text):
        return next((key for _, key, held in columns_of(monitor) if held == found[1]), ())
    if found := _TIME.search(text):
        times = (key for _, key, held in columns_of(monitor) if key[-1] == "time" and held == found[1])
        return next(times, ())
    if found := _NO_FILES.search(text):
        return next((key for key, select in selects_of(monitor) if found[1] in select), ())
    types = {rule.type for rule in monitor.recipe.rules} if isinstance(monitor.recipe, Events) else {}
    if (found := _NOT_READ.search(text)) and found[1] in types:
        return ("relevance", "events", "type")
    for pattern, is_column in _MISSING:
        if found := pattern.search(text):
            named = next(part for part in found.groups() if part)
            alias, _, name = named.rpartition(".")
            wanted = name.strip("\"'`")
            keys = list(columns_of(monitor) if is_column else tables_of(monitor))
            return next((key for side, key, held in keys if held == wanted and alias in ("", side)), ()) or next(
                (key for _, key, held in keys if held == wanted), ()
            )
    return ()
