"""What a look at a sample of a source's data has to say, and the words and limits that all such looks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Key = tuple[str | int, ...]

TIME_OF_EVENTS: Key = ("relevance", "events", "time")

FEWEST = 20
"""Requests, or events, below which nothing is concluded."""

NOTABLE = 0.1
"""Share of rows refused for one reason, from which on it is told."""

LONGEST_SHOWN = 40


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
