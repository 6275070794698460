"""Changes at the start of a fall that may explain it: in requests, lists, or what counts as a label.

A worse model brings neither more requests, nor more events per request, nor lists of another length. Robots that choose
at random do, as do labels of another kind, and positions that were not shown or logged before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from monitor.conditions.evidence import Changed, ConcurrentChange, accounts_for
from monitor.conditions.observations import FLOOD, Observations
from monitor.conditions.verdict_hours import step_of
from monitor.drift.verdicts import Alarm
from monitor.series import partials as b
from monitor.series.windows import SliceKey
from monitor.types import OVERALL
from monitor.units import DAY, WEEK

LEAST_REQUESTS = 50.0
"""Least requests to tell what is usual."""
OTHER_LISTS = 1.25
"""Factor on the usual items per request above which lists are longer; below its inverse they are shorter."""
MORE_EVENTS, LEAST_EVENTS = 1.1, 1000.0
"""Factor on the usual events per request above which they are more; with fewer events it may be chance."""


class _Span(NamedTuple):
    """Actual and usual traffic of some hours, (F,) sums; usual per request and slice, but for requests."""

    came: b.Floats
    usual: b.Floats

    @property
    def is_known(self) -> bool:
        return bool(min(self.came[b.REQUESTS], self.usual[b.REQUESTS]) >= LEAST_REQUESTS)

    def ratio(self, field: int) -> float:
        """Actual over usual, 1 without a usual value; all but requests are per request with results."""
        found = float(self.came[field] / self.usual[field]) if self.usual[field] > 0 else 1.0
        return found if field == b.REQUESTS else found * (1 - self.without_results[1]) / (1 - self.without_results[0])

    @property
    def without_results(self) -> tuple[float, float]:
        size = float(self.came[b.REQUESTS])
        found = (float(sums[b.NO_RESULTS]) / size if size else 0.0 for sums in (self.came, self.usual))
        now, usual = (share if share < 1 else 0.0 for share in found)
        return now, usual

    def of(self, what: Changed, field: int) -> ConcurrentChange:
        size = 1.0 if field == b.REQUESTS else float(self.came[b.REQUESTS])
        now, usual = (1.0, 1.0) if field == b.REQUESTS else (1 - share for share in self.without_results)
        return ConcurrentChange(what, float(self.came[field]) / size / now, float(self.usual[field]) / size / usual)


def concurrent_changes(seen: Observations, key: SliceKey, alarm: Alarm, end: int) -> tuple[ConcurrentChange, ...]:
    """What changed with an alarm's fall, by its last day until `end`, seconds; the most telling first.

    Usual is the same hours of the last week before the fall. The difference to the last day before the fall must be at
    least half as large: else the change did not come with the fall, or the week before was unusual.
    """
    first = alarm.fell_at if alarm.began_within is None else min(alarm.fell_at, alarm.began_within[0])
    backs = [-(-(end - first) // length) * length for length in (WEEK, DAY)]
    week, day = (_span(seen, key, max(alarm.fell_at, end - DAY), end, back) for back in backs)
    if not (week.is_known and day.is_known):
        return ()

    def rose(field: int, factor: float) -> bool:
        return week.ratio(field) >= factor and day.ratio(field) >= factor**0.5

    def fell(field: int, factor: float) -> bool:
        return week.ratio(field) <= 1 / factor and day.ratio(field) <= 1 / factor**0.5

    found = list[ConcurrentChange]()
    if accounts_for(*week.without_results, 1 + alarm.effect):
        found.append(ConcurrentChange("no_results", *week.without_results))
    if rose(b.REQUESTS, FLOOD) and (1 + alarm.effect) * week.ratio(b.REQUESTS) >= 1:
        found.append(week.of("requests", b.REQUESTS))
    if rose(b.IMPRESSIONS, OTHER_LISTS) or fell(b.IMPRESSIONS, OTHER_LISTS):
        found.append(week.of("items", b.IMPRESSIONS))
    if seen.has_events and rose(b.EVENTS, MORE_EVENTS) and week.came[b.EVENTS] >= LEAST_EVENTS:
        found.append(week.of("events", b.EVENTS))
    return tuple(found)


def _span(seen: Observations, key: SliceKey, since: int, until: int, back: int) -> _Span:
    sound = seen.traffic.without(seen.masked, step_of(seen.width))
    now, past = sound.between(since, until), sound.between(since - back, until - back)
    dimension = seen.drift.mix_by if key == OVERALL else None
    keys = [k for k in sound.slices if k[0] == dimension] if dimension else [key]
    came = now.columns(keys)[np.isin(now.starts - back, past.starts)].sum(axis=0)
    usual = past.columns(keys)[np.isin(past.starts + back, now.starts)].sum(axis=0)
    known = usual[:, b.REQUESTS] > 0
    came, usual = came[known], usual[known]
    each = usual * came[:, [b.REQUESTS]] / usual[:, [b.REQUESTS]]
    each[:, b.REQUESTS] = usual[:, b.REQUESTS]
    return _Span(came.sum(axis=0), each.sum(axis=0))
