"""Are ids of requests served again? Events name the id alone, so that they count for each serving of it.

A session's or a person's id in the place of a request's comes again hours later, in another bucket: that is another
request there, and nothing is refused, but all of them share their events.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from monitor.series.readings import MICROS
from monitor.source.engine import Reader
from monitor.source.queries import Queries
from monitor.source.requests import Requests, ids_in
from monitor.source.times import to_micros
from monitor.types import Events, Monitor, format_duration

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]

REACH = 86_400
"""Seconds around the requests that are looked at, at most."""

OFTEN, FEWEST = 0.05, 20
"""Share of ids that are served again, above which they are no repeated calls of a few, if there are so many of them."""

SAID_EVERY = 86_400.0
"""Seconds after which a running process says it again."""

OWN_ID = (
    "name a column with an id of its own for each ranking that is served, here and in the events, or build one "
    "in both: `select: \"SELECT session || '-' || search_no AS request, …\"`"
)

MOST_IDS = 1_000
MOST_TIMES = 100_000
"""Times of rows of these ids that are looked at."""


@dataclass(frozen=True)
class Again:
    """How often ids are served again.

    Attributes:
        ids: how many were looked at.
        repeated: how many of them are served again within `reach` seconds of a serving.
        servings: how often, in all, beyond the first time.
    """

    ids: int
    repeated: int
    servings: int
    reach: int


class Noticing:
    """Warns, once a day, of ids that come again among those that are read anyway.

    In a bucket that is read by itself these are ids that come again within it; a read of several buckets shows more.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._silent_until = -math.inf
        self._lock = threading.Lock()

    def see(self, requests: Requests) -> None:
        """Look at the ids of one read. Those that come again after the attribution share no events."""
        recipe, found = self._monitor.recipe, requests.recurring
        if not isinstance(recipe, Events) or time.monotonic() < self._silent_until:
            return
        repeated = int((found.last - found.first <= recipe.attribution * MICROS).sum())
        every = len(requests.ids) + len(found.ids)
        if repeated < FEWEST or repeated <= OFTEN * every:
            return
        with self._lock:
            was_said, now = time.monotonic() < self._silent_until, time.monotonic()
            self._silent_until = max(self._silent_until, now + (0 if was_said else SAID_EVERY))
        if not was_said:
            self._say(recipe, repeated, every)

    def _say(self, recipe: Events, repeated: int, every: int) -> None:
        monitor = self._monitor
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
    """What comes of ids that are served again."""
    does = "an event counts for every serving of its request's id within the attribution"
    return f"{does}, {format_duration(recipe.attribution)}, so that values are too good"


def look(queries: Queries, reader: Reader, recipe: Events, since: int, until: int) -> Again:
    """How often the ids served in [since, until) seconds, some of them, are served again around that time.

    Raises:
        SourceError: the source did not answer.
    """
    monitor, reach = queries.monitor, min(recipe.attribution, REACH)
    ids, times = reader.columns(_times(queries, since, until, reach))
    read = to_micros(monitor.rankings.time, times)
    known = ~(read.unreadable | read.doubtful)
    numbers: dict[object, int] = {}
    with ids_in(monitor.rankings.request):
        which = np.array([numbers.setdefault(name, len(numbers)) for name in ids], np.int64)[known]
    order = np.lexsort((read.micros[known], which))
    of_one = np.split(read.micros[known][order], np.flatnonzero(np.diff(which[order])) + 1)
    counts = np.array([_again(times, monitor.max_request_span, reach) for times in of_one], np.int64)
    return Again(len(numbers), int((counts > 0).sum()), int(counts.sum()), reach)


def _times(queries: Queries, since: int, until: int, reach: int) -> sa.Select[Any]:
    """Id and time of the rows, up to `reach` seconds around [since, until), of some ids served within."""
    named = queries.served(since, until), queries.request.isnot(None)
    some = sa.select(queries.request.label("request")).where(*named).distinct().limit(MOST_IDS).subquery("some_ids")
    return (
        sa.select(queries.request, queries.time)
        .select_from(queries.rankings.join(some, some.c.request == queries.request))
        .where(queries.served(since - reach, until + reach))
        .distinct()
        .limit(MOST_TIMES)
    )


def _again(times: Ints, span: int, reach: int) -> int:
    """How many servings of one id follow another one within `reach` seconds, given the times of its rows in order."""
    firsts = servings(times, span)
    return int((np.diff(firsts) <= reach * MICROS).sum())


def servings(times: Ints, span: int) -> Ints:
    """When each serving of an id begins, given the microseconds of its rows in order: a row belongs to the one before
    if that began at most `span` seconds earlier.

    >>> servings(np.array([0, 1, 2, 5, 6]) * MICROS, 2) // MICROS
    array([0, 5])
    """
    found, at = list[int](), 0
    while at < len(times):
        found.append(int(times[at]))
        at = int(np.searchsorted(times, times[at] + span * MICROS, side="right"))
    return np.array(found, np.int64)
