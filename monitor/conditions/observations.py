"""Figures of verdict conditions, from the stored partials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from monitor.conditions.evidence import SliceFall
from monitor.conditions.verdict_hours import judged, step_of
from monitor.drift.constants import MISSING_RATIO
from monitor.drift.verdicts import Verdict
from monitor.series import partials as b
from monitor.series.intervals import REACH, Interval, interval
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL, Drift
from monitor.units import DAY, WEEK

MOST = 0.9
"""Share of the requests since an alarm began that must have been judged for an interval."""
FIELDS = len(b.TRAFFIC_FIELDS)
LEAST_USUAL = 10
"""Usual requests of a slice from which having none is remarkable."""
FLOOD, LEAST_FLOODED = 1.5, 50.0
"""A flood is this many times the usual requests, if at least so many are usual."""
LEAST_OTHERS = 30
"""Requests needed to tell whether other versions fell as well."""


@dataclass(frozen=True)
class EventCounts:
    """Events per request, and the unmatched share of all events; None where not counted."""

    events: float | None = None
    events_before: float | None = None
    unmatched: float | None = None
    unmatched_before: float | None = None

    def match_less(self, least: float) -> bool:
        """Whether at least this share, and more than twice the usual one, matches no impression."""
        return (self.unmatched or 0.0) > max(least, 2 * (self.unmatched_before or 0.0))


UNCOUNTED = EventCounts()


@dataclass(frozen=True)
class Observations:
    """The stored partials, as far back as intervals look.

    Attributes:
        width: of a bucket, seconds.
        masked: ends of the steps with bad data, seconds.
        versions: the dimension of model versions; empty without one.
        dimensions: the others by which a fall is split.
    """

    drift: Drift
    width: int
    history: History
    traffic: History
    masked: frozenset[int] = frozenset()
    has_events: bool = True
    counts_unmatched: bool = True
    versions: str = ""
    dimensions: tuple[str, ...] = ()

    def coverage(
        self, verdict: Verdict, since: int, until: int, key: SliceKey = OVERALL
    ) -> tuple[float | None, float | None]:
        """(label coverage of the last day of a fall, its expectation), without hours of bad data.

        If that is not a whole day of all traffic, it is compared with the same hours of the last week before `since`.
        """
        step = step_of(self.width)
        ends = range(until, until - max(min(DAY, until - since), step), -step)
        sound = [end for end in ends if end not in self.masked]
        is_whole = until == verdict.end and len(sound) == len(ends) and len(ends) * step >= DAY
        if key == OVERALL and is_whole:
            return verdict.coverage, verdict.coverage_expected
        weeks = _weeks(until - since)
        before = [end - weeks for end in sound if end - weeks not in self.masked]
        return self._labelled(key, sound, step), self._labelled(key, before, step)

    def events(self, keys: Sequence[SliceKey], since: int, until: int) -> EventCounts:
        """Matched events per request of some slices, and the unmatched share of all events.

        Over the steps that end in [since, until], a day at most, and over the whole week before: a slice may have a
        single request in the same hours of it.
        """
        step = step_of(self.width)
        now = range(until, max(since - step, until - max(DAY, step)), -step)
        spans = (now, [end for end in range(since - step, since - step - WEEK, -step) if end not in self.masked])
        events = [
            b.events_per_request(sum((self._traffic(key, ends, step) for key in keys), np.zeros(FIELDS)))
            for ends in spans
        ]
        unmatched = [b.unmatched_share(self._traffic(OVERALL, ends, step)) for ends in spans]
        return self.counted(EventCounts(*events, *unmatched))

    def counted(self, found: EventCounts) -> EventCounts:
        """Without the figures that this monitor does not count."""
        events = (found.events, found.events_before) if self.has_events else (None, None)
        unmatched = (found.unmatched, found.unmatched_before) if self.counts_unmatched else (None, None)
        return EventCounts(*events, *unmatched)

    def _labelled(self, key: SliceKey, ends: Sequence[int], step: int) -> float | None:
        labelled, every = b.label_coverage(self._traffic(key, ends, step), by_judgments=False)
        return float(labelled / every) if every else None

    def _traffic(self, key: SliceKey, ends: Iterable[int], step: int) -> b.Floats:
        parts = (self.traffic.between(end - step, end).slice(key).sum(axis=0) for end in ends)
        found: b.Floats = sum(parts, np.zeros(FIELDS))
        return found

    def mean(self, key: SliceKey, since: int, until: int) -> tuple[float | None, int]:
        """(mean, requests) of the stored buckets in [since, until)."""
        if key not in self.history.slices:
            return None, 0
        sums = self.history.between(since, until).slice(key).sum(axis=0)
        requests = int(sums[b.REQUESTS])
        return (float(sums[b.TOTAL] / requests) if requests else None), requests

    def others_fell(self, key: SliceKey, since: int, until: int, least: float) -> bool:
        """Whether the rest of a slice fell by a share since then, against everything in the same hours before."""
        weeks = _weeks(until - since)
        before, _ = self.mean(OVERALL, since - weeks, until - weeks)
        (every, requests), (theirs, of_these) = self.mean(OVERALL, since, until), self.mean(key, since, until)
        rest = requests - of_these
        if not before or every is None or rest < LEAST_OTHERS:
            return False
        return (every * requests - (theirs or 0.0) * of_these) / rest <= (1 - least) * before

    def lacking_since(self, key: SliceKey, until: int, least: float, most: int) -> int:
        """Start of the consecutive steps up to `until`, at most `most` seconds, with less than `least` of usual."""
        step = step_of(self.width)
        begin = until - step
        while begin > until - most and self._lacks(key, begin - step, begin, least):
            begin -= step
        return begin

    def _lacks(self, key: SliceKey, since: int, until: int, least: float) -> bool:
        now, before = self.requests(key, since, until), self.requests(key, since - WEEK, until - WEEK)
        return now is not None and before is not None and (now == 0 or now < least * before)

    def missing(self, key: SliceKey, end: int) -> SliceFall:
        """A missing slice with its requests since then, and its usual ones."""
        since = self.lacking_since(key, end, MISSING_RATIO, WEEK)
        usual, came = self.usual_requests(key, since, end), self.requests(key, since, end)
        return SliceFall(*key, None if usual is None else float(usual), float(came or 0), since=since)

    def silent(self, dimension: str, since: int, until: int) -> list[SliceKey]:
        """The slices of a dimension with no request in [since, until), but some a week before."""
        keys = [key for key in self.traffic.slices if key[0] == dimension] if dimension else []
        past = {key: self.usual_requests(key, since, until) or 0 for key in keys}
        return [key for key in keys if past[key] >= LEAST_USUAL and not self.requests(key, since, until)]

    def begun(self, dimension: str, since: int, until: int) -> dict[str, int]:
        """Slice -> requests in [since, until), for slices with hardly any in the week before, busiest first."""
        found = {}
        for key in (key for key in self.traffic.slices if key[0] == dimension):
            came, before = self.requests(key, since, until) or 0, self.requests(key, since - WEEK, since) or 0
            if came and before * (until - since) < MISSING_RATIO * came * WEEK:
                found[key[1]] = came
        return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))

    def usual_requests(self, key: SliceKey, since: int, until: int) -> int | None:
        """Requests in the same hours of the last week before `since`; None if nothing is stored."""
        weeks = _weeks(until - since)
        return self.requests(key, since - weeks, until - weeks)

    def requests(self, key: SliceKey, since: int, until: int) -> int | None:
        """Requests in [since, until); None if nothing is stored."""
        inside = self.traffic.between(since, until)
        return round(float(inside.slice(key)[:, b.REQUESTS].sum())) if len(inside.starts) else None

    def items(self, since: int, until: int) -> tuple[float | None, float | None]:
        """Items shown, and items at rank 1, per request with results in [since, until); None without any."""
        sums = self.traffic.between(since, until).slice(OVERALL).sum(axis=0)
        shown, ranked = map(float, sums[[b.IMPRESSIONS, b.RANK_ONE]])
        requests = float(b.with_results(sums))
        return (shown / requests, ranked / requests) if requests else (None, None)

    def judged_for(self, key: SliceKey, since: int, until: int) -> int:
        """Seconds of the steps in [since, until) with requests and sound data."""
        step, inside = step_of(self.width), self.history.between(since, until)
        busy = inside.starts[inside.slice(key)[:, b.REQUESTS] > 0]
        return len({start - start % step + step for start in busy.tolist()} - self.masked) * step

    def bounds(self, key: SliceKey, window: int, end: int, value: float | None, requests: int) -> Interval:
        """The interval of a window, unless the value covers too few of its hours."""
        lower, upper, method = self._all_bounds(key, window, end)
        _, stored = self.mean(key, end - window, end)
        if value is None or lower is None or upper is None or requests < MOST * stored or not lower <= value <= upper:
            return None, None, "none"
        return lower, upper, method

    def _all_bounds(self, key: SliceKey, window: int, end: int) -> Interval:
        if key not in self.history.slices:
            return None, None, "none"
        length = min(window, REACH)
        sums = self.history.slice(key) * self._is_sound[:, None]
        return interval(judged(self.drift.measure), self.history.starts, sums, self.width, length, end)

    @cached_property
    def _is_sound(self) -> b.Floats:
        """(B,) 0 for the buckets of steps with bad data, else 1."""
        step, starts = step_of(self.width), self.history.starts
        found: b.Floats = np.where(np.isin(starts - starts % step + step, list(self.masked)), 0.0, 1.0)
        return found


def _weeks(length: int) -> int:
    return -(-length // WEEK) * WEEK
