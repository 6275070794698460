"""Are times read in the zone that they are written in? What rows of right now tell of that, for `assess`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from monitor.core.types import TimeColumn
from monitor.core.words import lasting
from monitor.source.engine import Reader
from monitor.source.queries import MOST_COUNTED, between
from monitor.source.times import slack, to_micros

HOUR = 3600

CLOCK_ERROR = 300
"""Seconds by which clocks may be apart."""

FARTHEST = 15
"""Hours that no two zones are apart."""

FEWEST, NOTABLE = 20, 0.1
"""Rows of the next hour that are no stray ones, and as a share of those of the hour before."""

EXACT = 5.0
"""Seconds by which a source that is written at once may lag."""

LOOK_AGAIN = 3.0
"""Seconds after which it is seen whether the newest time moves on."""


def ahead(reader: Reader, column: sa.ColumnElement[Any], how: TimeColumn, now: float) -> str:
    """That many rows are dated in the future, in words, with the remedy; empty where there are few or none.

    Where clocks are changed right now bounds are an hour wider, and nothing is told.

    Raises:
        SourceError: the source did not answer.
    """
    if any(slack(how, instant) for instant in (now - HOUR, now, now + HOUR)):
        return ""

    def rows(since: float, until: float) -> int:
        some = sa.select(column).where(between(column, how, since, until)).limit(MOST_COUNTED).subquery()
        return int(reader.one(sa.select(sa.func.count()).select_from(some)) or 0)

    later, before = rows(now + CLOCK_ERROR, now + HOUR), rows(now - HOUR, now)
    if later < FEWEST or later <= NOTABLE * before:
        return ""
    within = between(column, how, now, now + FARTHEST * HOUR)
    latest = to_micros(how, [reader.one(sa.select(sa.func.max(column)).where(within))])
    if latest.unreadable[0]:
        return ""
    return (
        f"{_many(later)} rows are dated in the next hour, {_many(before)} in the hour before now, and the latest "
        f"{lasting(round(latest.micros[0] / 1e6 - now))} ahead, which is no clock's error; {_remedy(how)}"
    )


def behind(how: TimeColumn, now: float, newest: Callable[[], float | None]) -> str:
    """That the newest row is whole hours old though rows come all the time, in words, with the remedy; else empty.

    Args:
        newest: looks for the time of the newest row, seconds.

    Raises:
        SourceError: the source did not answer.
    """
    began = time.monotonic()

    def look() -> tuple[int, float]:
        found = newest()
        return (0, 0.0) if found is None else (_hours(now + time.monotonic() - began - found), found)

    hours, was = look()
    if not hours:
        return ""
    time.sleep(LOOK_AGAIN)
    still, found = look()
    if still != hours or found <= was:
        return ""
    return (
        f"the newest request is {hours} h old to the second while they come all the time, so they are read as "
        f"{hours} h too old; {_remedy(how)}"
    )


def _hours(age: float) -> int:
    """Of how many hours an age in seconds is; 0 where it is not as good as whole ones, or more than any zone's."""
    hours, over = divmod(age, HOUR)
    return int(hours) if hours < FARTHEST and over <= EXACT else 0


def _many(rows: int) -> str:
    return f"{rows:,}" if rows < MOST_COUNTED else f"{rows:,} or more"


def _remedy(how: TimeColumn) -> str:
    if how.timezone is None:
        return f"is what writes {how.column!r} right in its zone?"
    return f"is {how.column!r} written in {how.timezone}? If not, name its zone as `timezone`"
