"""What a look at a sample of a source's data has to say, and the words and limits that all such looks share."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Key = tuple[str | int, ...]

TIME_OF_EVENTS: Key = ("relevance", "events", "time")

FEWEST = 20
"""Requests, or events, below which nothing is concluded."""

NOTABLE = 0.1
"""Share of rows refused for one reason, from which on it is told."""

LONGEST_SHOWN = 40
MOST_NAMES = 8
"""Names that are offered in the place of a wrong one."""


@dataclass(frozen=True)
class Remark:
    """What a sample shows to be wrong, with the remedy; `key` is the place within the monitor's configuration."""

    key: Key
    text: str


def percent(some: int, every: int) -> str:
    """A share in words.

    >>> percent(26, 2000)
    '1 %'
    """
    return f"{100 * some / every:.0f} %"


def shown(value: Any) -> str:
    """A value of a source as it is quoted to people, cut where it is long."""
    if value is None:
        return "NULL"
    text = str(value)
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…")


def instead(name: str, there: Sequence[str]) -> str:
    """What there is in the place of a name, with the one that may be meant in front; empty if there is nothing.

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
