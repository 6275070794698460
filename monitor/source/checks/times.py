"""Checks that times are read in the right zone and that events arrive in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import sqlalchemy as sa

from monitor.arrays import Floats
from monitor.messages.words import lasting
from monitor.source.checks.remarks import FEWEST, NOTABLE, TIME_OF_EVENTS, Key, Remark, percent
from monitor.source.checks.sample import MOST_HOURS_APART, Sample, newest_in
from monitor.source.engine import Reader
from monitor.source.queries import MOST_COUNTED
from monitor.source.times import slack, to_micros
from monitor.types import Events, TimeColumn, format_duration
from monitor.units import HOUR

CLOCK_ERROR = 300
"""Tolerated clock difference, seconds."""

EXACT = 5.0
"""Tolerated lag of a source that is written immediately, seconds."""

TINY = 0.02
"""Share of labelled requests below which events on shown items at other times are worth a remark."""

LOOK_AGAIN = 3.0
"""Seconds to wait before checking whether the newest time advances."""

FIRST, EARLY = 0.02, 0.25
"""Shares of events: FIRST may be strays; EARLY arrive within EDGE of the first if people act at once."""

EDGE, UNTIDY = 600, 60
"""Seconds: EDGE after the first events most others follow; UNTIDY before them a few may lie."""


def check_times(sample: Sample) -> Iterator[Remark]:
    """Remarks on wrong zones; failing those, on a short attribution and on stale requests."""
    found = list(_from_the_future(sample)) or list(_apart(sample))
    yield from found
    if not found:
        yield from _too_late(sample)
        yield from _old(sample)


def _from_the_future(sample: Sample) -> Iterator[Remark]:
    low = sample.low_shares
    keys: tuple[Key, ...] = ("rankings", "time"), TIME_OF_EVENTS
    with sample.asking() as (reader, queries):
        for key, time_of in zip(keys, queries.times, strict=False):
            if text := ahead(reader, time_of.column, time_of.declared, sample.clock):
                yield Remark(key, _with_why(text, low))


def _with_why(text: str, low: Sequence[str]) -> str:
    return f"{text}; that would also explain why {' and '.join(low)}" if low else text


def _apart(sample: Sample) -> Iterator[Remark]:
    """Remarks if events fall hours before or after their serving, judged by known zones or by the labels."""
    recipe, lags = sample.recipe, sample.lags
    if not isinstance(recipe, Events):
        return
    is_of_rankings, text = zone_mistake(lags, sample.monitor.rankings.time, recipe.time, sample.reading.until)
    if text:
        yield Remark(("rankings", "time") if is_of_rankings else TIME_OF_EVENTS, _with_why(text, sample.low_shares))
        return
    size, labelled = sample.size, sample.labelled
    outside = (lags < 0) | (lags > recipe.attribution)
    if size >= FEWEST and labelled < TINY * size and lags.size >= FEWEST and outside.mean() > 0.5:
        half = float(np.median(lags))
        when = f"{lasting(round(abs(half)))} {'before' if half < 0 else 'after'} serving"
        within = f"while the attribution is {format_duration(recipe.attribution)}"
        text = (
            f"only {labelled:,} of {size:,} requests have a label, although {lags.size:,} events name items they showed"
        )
        yield Remark(TIME_OF_EVENTS, f"{text}: half of them by {when}, {within}; are both times in the same zone?")


def _too_late(sample: Sample) -> Iterator[Remark]:
    recipe, lags = sample.recipe, sample.lags
    if not isinstance(recipe, Events):
        return
    late = int((lags >= recipe.attribution).sum())
    if lags.size >= FEWEST and late > NOTABLE * lags.size:
        half, most = (lasting(max(round(float(at)), 1)) for at in np.quantile(lags, [0.5, 0.95]))
        yield Remark(
            ("relevance", "events", "attribution"),
            f"{late:,} of {lags.size:,} events on shown items ({percent(late, lags.size)}) happen more than "
            f"{format_duration(recipe.attribution)} after serving, and do not count; half of all happen within {half}, "
            f"95 % within {most}: is the attribution long enough?",
        )


def _old(sample: Sample) -> Iterator[Remark]:
    """Remarks if requests look whole hours old; event lags reveal a wrong event zone instead."""
    how, recipe = sample.monitor.rankings.time, sample.recipe

    def newest() -> float | None:
        return newest_in(sample.pull, sample.now - MOST_HOURS_APART * HOUR, sample.now)

    text = behind(how, sample.clock, newest)
    of_events = recipe.time if isinstance(recipe, Events) and sample.lags.size >= FEWEST else how
    if not text and offset(of_events, sample.now) == offset(how, sample.now):
        text = perhaps_behind(how, sample.clock, newest())
    if text:
        yield Remark(("rankings", "time"), text)


def ahead(reader: Reader, column: sa.ColumnElement[Any], how: TimeColumn, now: float) -> str:
    """A message with the fix if many rows are dated in the future; empty for few or none.

    Silent around a clock change, when bounds are an hour wider.

    Raises:
        SourceError: the source did not answer.
    """
    if any(slack(how, instant) for instant in (now - HOUR, now, now + HOUR)):
        return ""

    def rows(since: float, until: float) -> int:
        some = sa.select(column).where(reader.sql.between(column, how, since, until)).limit(MOST_COUNTED).subquery()
        return int(reader.one(sa.select(sa.func.count()).select_from(some)) or 0)

    later, before = rows(now + CLOCK_ERROR, now + HOUR), rows(now - HOUR, now)
    if later < FEWEST or later <= NOTABLE * before:
        return ""
    within = reader.sql.between(column, how, now, now + MOST_HOURS_APART * HOUR)
    latest = to_micros(how, [reader.one(sa.select(sa.func.max(column)).where(within))])
    if latest.unreadable[0]:
        return ""
    return (
        f"{_many(later)} rows are dated in the next hour, {_many(before)} in the hour before now, and the latest "
        f"{lasting(round(latest.micros[0] / 1e6 - now))} ahead, which is no clock error; {_remedy(how)}"
    )


def behind(how: TimeColumn, now: float, newest: Callable[[], float | None]) -> str:
    """A message with the fix if the newest row is whole hours old although rows keep arriving; else empty.

    Args:
        newest: fetches the time of the newest row, seconds.

    Raises:
        SourceError: the source did not answer.
    """
    began = time.monotonic()

    def look() -> tuple[int, float, float]:
        found = newest()
        return (0, 0.0, 0.0) if found is None else (*_hours(now + time.monotonic() - began - found), found)

    hours, _, was = look()
    if not hours:
        return ""
    time.sleep(LOOK_AGAIN)
    still, over, found = look()
    if still != hours or found <= was:
        return ""
    if over > EXACT:
        return (
            f"the newest request is {lasting(round(hours * HOUR + over))} old although requests come all the time: "
            f"unless the log lags by that, they are read as {hours} h too old; {_remedy(how)}"
        )
    return (
        f"the newest request is {hours} h old to the second although requests come all the time, so they are read as "
        f"{hours} h too old; {_remedy(how)}"
    )


def perhaps_behind(how: TimeColumn, now: float, newest: float | None) -> str:
    """A message if the newest row is exactly as old as the declared zone is ahead of UTC; else empty."""
    ahead_of_utc = offset(how, now)
    if newest is None or ahead_of_utc < HOUR or not 0 <= now - newest - ahead_of_utc < CLOCK_ERROR:
        return ""
    return (
        f"the newest request is {lasting(round(now - newest))} old, and {how.timezone} is {lasting(ahead_of_utc)} "
        f"ahead of UTC: if requests come all the time, {how.column!r} is in UTC, and needs `timezone: UTC`"
    )


def offset(how: TimeColumn, instant: float) -> int:
    """Seconds by which a column's zone is ahead of UTC; 0 if none applies."""
    found = datetime.fromtimestamp(instant, ZoneInfo(how.timezone or "UTC")).utcoffset()
    return 0 if found is None else round(found.total_seconds())


def zone_mistake(lags: Floats, served: TimeColumn, happened: TimeColumn, at: float) -> tuple[bool, str]:
    """A message with the zone that fixes it if events start whole hours before or after serving.

    People act at once or later: many events follow the first possible moment and none precede it. If that edge lies
    hours away, one of the two times is read in the wrong zone. Merely late events show no edge; without a declared
    zone, none can be wrong.

    Args:
        lags: sorted seconds from serving to event, shape (n,).
        at: approximate time of the events, seconds.

    Returns:
        Whether the first fix is for the rankings' zone, and the message; empty if all is well.
    """
    if len(lags) < FEWEST or any(slack(how, at) for how in (served, happened)):
        return False, ""
    first, early, half = np.quantile(lags, [FIRST, EARLY, 0.5]).tolist()
    zones = offset(served, at), offset(happened, at)
    known = {*(h * HOUR for h in range(-MOST_HOURS_APART, MOST_HOURS_APART + 1)), zones[0], -zones[1]}
    shifts = [s for s in known if abs(s) >= HOUR and first - s >= -UNTIDY and early - s <= EDGE]
    remedies = sorted(_mending(served, happened, zones, min(shifts, key=lambda s: abs(first - s)))) if shifts else []
    if not remedies:
        return False, ""
    told = " or ".join(text for _, _, text in remedies)
    return remedies[0][1], (
        f"events start {_after(first)} serving, half of them by {_after(half)} it, so one of the two "
        f"times is read in the wrong zone; what would fix it: {told}"
    )


def _mending(
    served: TimeColumn, happened: TimeColumn, zones: tuple[int, int], shift: int
) -> Iterator[tuple[int, bool, str]]:
    """(how far-fetched, whether it is for the rankings, what to write) for each time with a declared zone."""
    for how, other, needed in ((served, happened, zones[0] - shift), (happened, served, zones[1] + shift)):
        if how.timezone is None:
            continue
        if needed == 0:
            yield 0, how is served, f"`timezone: UTC` for {how.column!r}"
        elif other.timezone is not None and needed == zones[how is served]:
            yield 1, how is served, f"`timezone: {other.timezone}` for {how.column!r}"
        else:
            hours, minutes = divmod(abs(needed) // 60, 60)
            name = f"UTC{'-' if needed < 0 else '+'}{hours:02}:{minutes:02}"
            yield 2, how is served, f"for {how.column!r} a `timezone` that was {name} at that time"


def _after(seconds: float) -> str:
    return f"{lasting(round(abs(seconds)))} {'before' if seconds < 0 else 'after'}"


def _hours(age: float) -> tuple[int, float]:
    """(whole hours in an age, seconds left over); 0 hours if too much is left over or no zone is that far off."""
    hours, over = divmod(age, HOUR)
    return int(hours) if hours < MOST_HOURS_APART and over <= CLOCK_ERROR else 0, over


def _many(rows: int) -> str:
    return f"{rows:,}" if rows < MOST_COUNTED else f"{rows:,} or more"


def _remedy(how: TimeColumn) -> str:
    if how.timezone is None:
        return f"does whatever writes {how.column!r} use the right zone?"
    return f"is {how.column!r} written in {how.timezone}? If not, set its zone as `timezone`"
