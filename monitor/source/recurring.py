"""Recurring request ids: each row is in one request, or refused in one bucket, whatever range is read at once.

A bucket is read with a margin of `max_request_span`; ids that span more are left out of it, and are new requests later.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monitor.arrays import Bools, Ints
from monitor.series.readings import MICROS
from monitor.types import Events, Monitor, format_duration

log = logging.getLogger(__name__)

OFTEN, FEWEST = 0.05, 20
"""Share of reused ids, and their number, from which they are more than a few retried calls."""

SAID_EVERY = 86_400.0
"""Seconds before a running process repeats the warning."""

OWN_ID = (
    "name a column with a unique id per served ranking, here and in the events, or build one "
    "in both: `select: \"SELECT session || '-' || search_no AS request, …\"`"
)

_NEVER = np.iinfo(np.int64).max // 2


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Recurring:
    """Ids whose rows, among those read, are too far apart for one request, L of them.

    Attributes:
        ids: (L,) as the source has them.
        first, last: (L,) microseconds of their earliest and latest rows.
        rows: (L,) number of rows.
    """

    ids: Sequence[Any] = ()
    first: Ints = field(default_factory=_none)
    last: Ints = field(default_factory=_none)
    rows: Ints = field(default_factory=_none)

    def buckets(self, since: int, until: int, width: int) -> list[int]:
        """Starts of the buckets in [since, until) seconds between the first and last row of any id."""
        start = since - since % width
        seen = np.zeros(-(-(until - start) // width) + 1, np.int64)
        low = np.maximum((self.first // MICROS - start) // width, 0)
        high = np.minimum((self.last // MICROS - start) // width, len(seen) - 2)
        here = low <= high
        np.add.at(seen, low[here], 1)
        np.add.at(seen, high[here] + 1, -1)
        return [start + int(i) * width for i in np.flatnonzero(np.cumsum(seen) > 0)]

    def reach_out(self, since: int, until: int) -> bool:
        """Whether any id has rows outside [since, until) seconds."""
        return bool(((self.first < since * MICROS) | (self.last >= until * MICROS)).any())

    def refused(self, since: int, until: int, span: int, near: Sequence[Sequence[Any]], at: Ints) -> Ints:
        """Microseconds of the rows refused in [since, until) seconds.

        Excludes rows of a request that began earlier, and rows after the end of no request that began within.

        Args:
            span: most seconds between the rows of one request.
            near: ids, times, counts of rows within `span` of both ends, if any id reaches outside.
            at: microseconds of these times.
        """
        first, end, most = since * MICROS, until * MICROS, span * MICROS
        number = {name: i for i, name in enumerate(self.ids)}
        which = np.array([number.get(name, -1) for name in near[0]], np.int64)
        known = which >= 0
        which, at, rows = which[known], at[known], np.array(near[2], np.int64)[known]
        before = self._earliest(which, at, (at >= first - most) & (at < first))
        within = self._earliest(which, at, (at >= end - most) & (at < end))
        others = (at < first) | (at <= before[which] + most) & (before[which] < _NEVER)
        others |= (at >= end) & ((at > within[which] + most) | (within[which] == _NEVER))
        counts = self.rows - np.bincount(which[others], rows[others], len(self.ids)).astype(np.int64)
        return np.repeat(np.clip(self.first, first, end - 1), counts)

    def _earliest(self, which: Ints, at: Ints, wanted: Bools) -> Ints:
        """(L,) each id's earliest wanted time, `_NEVER` if none."""
        found = np.full(len(self.ids), _NEVER)
        np.minimum.at(found, which[wanted], at[wanted])
        return found


def split_around(since: int, until: int, width: int, alone: Iterable[int]) -> Iterator[tuple[int, int]]:
    """[since, until) in parts: each bucket starting at one of `alone` separately, and the ranges between them.

    >>> list(split_around(5, 50, 10, [0, 30]))
    [(5, 10), (10, 30), (30, 40), (40, 50)]
    """
    edge = since
    for start in alone:
        low, high = max(start, since), min(start + width, until)
        if edge < low:
            yield edge, low
        yield low, high
        edge = high
    if edge < until:
        yield edge, until


# ---- messages to people ---------------------------------------------------------------------------------------------


class ReusedIds:
    """Warns once a day about recurring ids in whatever is read; longer reads show more of them."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._silent_until = -math.inf
        self._lock = threading.Lock()

    def see(self, ids: int, found: Recurring) -> None:
        """Compares a read's recurring ids with its others; those that recur after the attribution share no events."""
        monitor, recipe = self._monitor, self._monitor.recipe
        if not isinstance(recipe, Events) or time.monotonic() < self._silent_until:
            return
        repeated = int((found.last - found.first <= recipe.attribution * MICROS).sum())
        every = ids + len(found.ids)
        if repeated < FEWEST or repeated <= OFTEN * every:
            return
        with self._lock:
            if (now := time.monotonic()) < self._silent_until:
                return  # another thread has said it
            self._silent_until = now + SAID_EVERY
        log.warning(
            "monitor %s: %s of %s ids in %r have rows more than max_request_span, %s, apart and within %s, as those "
            "that are served again have: %s; %s; where these are single requests that last so long, raise "
            "max_request_span",
            monitor.name,
            f"{repeated:,}",
            f"{every:,}",
            monitor.rankings.request,
            format_duration(monitor.max_request_span),
            format_duration(recipe.attribution),
            harm(recipe),
            OWN_ID,
        )


def harm(recipe: Events) -> str:
    """The harm done by reused ids, in words."""
    does = "an event counts for every serving of its request id within the attribution window"
    return f"{does}, {format_duration(recipe.attribution)}, so values are too high"


def servings(times: Ints, span: int) -> Ints:
    """Start of each serving of an id, from the sorted microseconds of its rows.

    A row belongs to the previous serving if that began at most `span` seconds earlier.

    >>> servings(np.array([0, 1, 2, 5, 6]) * MICROS, 2) // MICROS
    array([0, 5])
    """
    found, at = list[int](), 0
    while at < len(times):
        found.append(int(times[at]))
        at = int(np.searchsorted(times, times[at] + span * MICROS, side="right"))
    return np.array(found, np.int64)
