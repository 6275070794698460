"""The recent past of a monitor for charts: series on an even grid with the rules' limits, and verdicts.

Computed in full once, then extended by new final windows; restated buckets trigger a full recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from types import MappingProxyType

import numpy as np

from monitor.conditions.rules import COVERAGE, Rule
from monitor.conditions.thresholds import View, evaluate_rule, merged
from monitor.conditions.verdict_hours import step_of
from monitor.drift.verdicts import DATA_KINDS, VerdictPoint, first_whole
from monitor.evaluation.hours import StoredHours, view_of
from monitor.measures.measure import Measure
from monitor.series import partials as b
from monitor.series.intervals import REACH
from monitor.series.partials import bucket_of
from monitor.series.retention import DRAWN
from monitor.series.windows import History, SliceKey, points
from monitor.store import Store
from monitor.types import OVERALL, Definition, Monitor
from monitor.units import DAY

RECENT = (7 * DAY, 3 * DAY, DAY)
"""Spans also drawn finely, seconds: the first with `AS_DEEP` points a window, else the last."""

AS_DEEP = 4
"""Points a window: the lowest shows at least 7/8 of a fall as long as the window."""

ALIKE = 1e-9
"""Smaller differences are rounding."""

MOST_POINTS = 300
MOST_SLICE_POINTS = 60

Limits = tuple[float | None, float | None]
"""A rule's baseline and threshold; None if unknown."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One final window of overall, fields as in `windows.Point`; `limits` in the order of the history's rules."""

    end: int
    value: float | None
    lower: float | None
    upper: float | None
    requests: int
    coverage: float | None
    limits: tuple[Limits, ...]

    @property
    def change(self) -> float | None:
        """Relative change from the baseline of the first rule that has one."""
        baseline = next((b for b, _ in self.limits if b), None)
        return None if self.value is None or baseline is None else self.value / baseline - 1


@dataclass(frozen=True)
class SeriesHistory:
    """The recent windows of a measure, or of the label coverage (None), oldest first. Lengths in seconds.

    Attributes:
        rules: those that judge this series on overall.
        step: grid of the ends, except the newest.
        points: one per end; no value where too little was read.
        slices: (end, value by slice) on a coarser grid.
        recent: the end of the span on a finer grid, for windows shorter than `step`.
    """

    measure: Measure | None
    window: int
    rules: tuple[Rule, ...]
    step: int
    points: tuple[HistoryPoint, ...] = ()
    newest: HistoryPoint | None = None
    slices: tuple[tuple[int, Mapping[SliceKey, float]], ...] = ()
    span: int = DRAWN
    recent: SeriesHistory | None = None

    @property
    def judged(self) -> str:
        """Text of the measure, or `label_coverage`."""
        return COVERAGE if self.measure is None else str(self.measure)

    @property
    def drawn(self) -> tuple[HistoryPoint, ...]:
        """All points, the newest last."""
        if self.newest is None or (self.points and self.points[-1].end >= self.newest.end):
            return self.points
        return (*self.points, self.newest)

    def emptied(self) -> SeriesHistory:
        return replace(self, points=(), newest=None, slices=())


def grid_step(width: int, most: int, span: int = DRAWN) -> int:
    """Seconds between points, at most `most` in `span`: whole buckets, a divisor of a day if possible.

    >>> grid_step(3600, 300), grid_step(300, 300), grid_step(2 * DAY, 300)
    (14400, 14400, 172800)
    """
    fewest = -(-span // most)
    parts = [DAY // n for n in range(DAY // width, 0, -1) if DAY % n == 0 and DAY // n % width == 0]
    whole = -(-fewest // width) * width
    return next((step for step in parts if step >= fewest), whole)


def extend_series(
    monitor: Monitor, store: Store, now: float, former: Sequence[SeriesHistory] = ()
) -> tuple[SeriesHistory, ...]:
    """The histories of all series and of whatever else rules judge, up to the newest final window. Raises StoreError.

    `now`: seconds; later buckets are not shown. `former`: histories to extend.
    """
    known, past = {(t.measure, t.window): t for t in former}, _StoredPast(monitor, store, now)
    found = []
    for measure, window in subjects(monitor):
        series = known.get((measure, window)) or _new(monitor, measure, window)
        end = past.settled_end(past.definition(measure))
        found.append(series if end is None else _onward(series, past, end))
    return tuple(found)


def subjects(monitor: Monitor) -> tuple[tuple[Measure | None, int], ...]:
    """(measure, window) of every history: the monitor's own, and what else rules judge."""
    coverage = [(None, rule.window) for rule in monitor.alerts if rule.overall and rule.measure is None]
    return tuple(dict.fromkeys([*monitor.shown, *coverage]))


def _new(monitor: Monitor, measure: Measure | None, window: int) -> SeriesHistory:
    rules = tuple(r for r in monitor.alerts if r.overall and (r.measure, r.window) == (measure, window))
    step = grid_step(monitor.bucket, MOST_POINTS)
    span, fine = _recent(monitor.bucket, window)
    recent = SeriesHistory(measure, window, rules, fine, span=span) if window < step else None
    return SeriesHistory(measure, window, rules, step, recent=recent)


def _recent(width: int, window: int) -> tuple[int, int]:
    """(span, step) of the fine part for bucket and window lengths; all in seconds.

    >>> _recent(300, 3600), _recent(60, 300)
    ((259200, 900), (86400, 300))
    """
    found = [(span, grid_step(width, MOST_POINTS, span)) for span in RECENT]
    return next((one for one in found if one[1] <= max(width, window // AS_DEEP)), found[-1])


class _StoredPast:
    def __init__(self, monitor: Monitor, store: Store, now: float) -> None:
        self.monitor = monitor
        self.hours = StoredHours(monitor, store)
        self._store = store
        self._now = bucket_of(int(now), monitor.bucket)
        self._ends: dict[Definition, int | None] = {}

    def definition(self, measure: Measure | None) -> Definition:
        return self.monitor.traffic if measure is None else self.monitor.definition(measure)

    def settled_end(self, definition: Definition) -> int | None:
        if definition not in self._ends:
            end = self._store.settled_end(definition, self.monitor.bucket)
            self._ends[definition] = None if end is None else min(end, self._now)
        return self._ends[definition]

    def begin(self, since: int) -> int:
        monitor = self.monitor
        return since - max(REACH, *(r.reach for r in monitor.alerts), 0) - max(monitor.windows)

    def view(self, series: SeriesHistory, since: int, until: int) -> View:
        """All that windows ending in [since, until] need: intervals and rules look far back."""
        definition, read = self.definition(series.measure), partial(self.hours.history, overall_only=True)
        return view_of(self.monitor, definition, series.rules, read, self.begin(since), until)


def _onward(series: SeriesHistory, past: _StoredPast, end: int) -> SeriesHistory:
    if series.newest is not None and series.newest.end >= end:
        return series
    last = max(end - series.span, series.newest.end if series.newest is not None else 0)
    ends = _grid(last, end, series.step)
    first_end = min([*ends, end])
    view = past.view(series, first_end, end)
    if _is_restated(series, view, past.begin(first_end)):
        return _onward(series.emptied(), past, end)
    added = [_point(series, view, at) for at in ends]
    kept = [p for p in (*series.points, *added) if p.end > end - series.span]
    first = next((i for i, p in enumerate(kept) if p.value is not None), len(kept))
    recent = None if series.recent is None else _onward(series.recent, past, end)
    newest = added[-1] if ends and ends[-1] == end else recent.newest if recent else _point(series, view, end)
    slices = [s for s in (*series.slices, *_slices(series, past, last, end)) if s[0] > end - series.span]
    return replace(series, points=tuple(kept[first:]), newest=newest, slices=tuple(slices), recent=recent)


def _grid(after: int, until: int, step: int) -> range:
    """Multiples of `step` in (after, until].

    >>> list(_grid(10, 30, 10))
    [20, 30]
    """
    return range(after - after % step + step, until + 1, step)


def _point(series: SeriesHistory, view: View, end: int) -> HistoryPoint:
    value, coverage = _reading(series, view, end)
    found = [evaluate_rule(rule, view, [OVERALL], end)[0] for rule in series.rules]
    limits = tuple((e.baseline, _known(e.fires_at)) for e in found)
    if series.measure is None:
        requests = int(merged(view.traffic, view.width, end - series.window, end)[0][0, 0])
        return HistoryPoint(end, value, None, None, requests, coverage, limits)
    point = points(series.measure, view.history, view.traffic, view.width, series.window, end, [OVERALL])[0]
    lower, upper = (None, None) if value is None else (point.lower, point.upper)
    return HistoryPoint(end, value, lower, upper, point.requests, coverage, limits)


def _reading(series: SeriesHistory, view: View, end: int) -> tuple[float | None, float | None]:
    """(value, label coverage) of the window ending at `end`; no value where too little was read."""
    traffic, seen = merged(view.traffic, view.width, end - series.window, end)
    some, every = view.coverage(traffic[0])
    coverage = float(some / every) if every else None
    if series.measure is None:
        return (coverage if seen >= view.least else None), coverage
    sums, share = merged(view.history, view.width, end - series.window, end)
    return (_known(float(b.read_as(series.measure, sums[0]))) if share >= view.least else None), coverage


def _is_restated(series: SeriesHistory, view: View, since: int) -> bool:
    """Whether a point that uses nothing before `since`, seconds, has another value now."""
    inside = [p for p in series.points if p.end - series.window >= since]
    if not inside:
        return False
    ends = np.array([p.end for p in inside])
    values, coverages = _readings(series, view, ends)
    known = np.array([[p.value, p.coverage] for p in inside], float)
    return not np.allclose(known, np.column_stack([values, coverages]), rtol=ALIKE, atol=ALIKE, equal_nan=True)


def _readings(series: SeriesHistory, view: View, ends: b.Ints) -> tuple[b.Floats, b.Floats]:

    def summed(of: History) -> tuple[b.Floats, b.Floats]:
        """((N, F) sums, (N,) share of buckets read)."""
        until = np.concatenate([np.zeros((1, of.sums.shape[2])), np.cumsum(of.sums[:, 0], axis=0)])
        lo, hi = np.searchsorted(of.starts, ends - series.window), np.searchsorted(of.starts, ends)
        return until[hi] - until[lo], (hi - lo) * view.width / series.window

    traffic, seen = summed(view.traffic)
    some, every = view.coverage(traffic)
    coverage = np.divide(some, every, out=np.full(len(ends), np.nan), where=every > 0)
    if series.measure is None:
        return np.where(seen >= view.least, coverage, np.nan), coverage
    sums, share = summed(view.history)
    return np.where(share >= view.least, b.read_as(series.measure, sums), np.nan), coverage


def _known(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


def _slices(
    series: SeriesHistory, past: _StoredPast, last: int, end: int
) -> Iterator[tuple[int, Mapping[SliceKey, float]]]:
    monitor, measure = past.monitor, series.measure
    ends = _grid(last, end, grid_step(monitor.bucket, MOST_SLICE_POINTS))
    if not monitor.slices or measure is None or not ends or series.span < DRAWN:
        return
    history = past.hours.history(past.definition(measure), ends[0] - max(monitor.windows), end)
    for at in ends:
        sums, share = merged(history, monitor.bucket, at - series.window, at)
        values = b.read_as(measure, sums)
        if share >= monitor.min_completeness:
            known = np.flatnonzero(~np.isnan(values)).tolist()
            yield at, MappingProxyType({history.slices[i]: float(values[i]) for i in known if i})


# ---- verdicts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerdictPeriod:
    """Steps in a row with the same verdict; instants in seconds. Mix shifts have no `kind`, but a relative `effect`."""

    since: int
    until: int
    kind: str = ""
    effect: float = 0.0

    def and_then(self, other: VerdictPeriod) -> VerdictPeriod:
        """This period joined with the one that follows directly."""
        return replace(self, until=other.until, effect=max(self.effect, other.effect, key=abs))


@dataclass(frozen=True)
class VerdictHistory:
    """The recent verdicts on a monitor, oldest first; `width` of a judged step, seconds.

    Attributes:
        step: seconds between points' ends, which are its multiples except the newest.
        troubles: periods when the data, or those of slices, could not be judged.
        mixes: periods when the mix of slices moved the mean.
    """

    width: int
    step: int
    points: tuple[VerdictPoint, ...] = ()
    troubles: tuple[VerdictPeriod, ...] = ()
    mixes: tuple[VerdictPeriod, ...] = ()

    @property
    def drawn(self) -> tuple[VerdictPoint, ...]:
        """The points from the first whole-day value on, if there is one."""
        ends, observed = [p.end for p in self.points], [p.observed for p in self.points]
        return self.points[first_whole(ends, observed, self.width) :]

    @property
    def newest(self) -> VerdictPoint | None:
        return self.points[-1] if self.points else None

    def onward(self, found: Sequence[VerdictPoint], oldest: int) -> VerdictHistory:
        """With further verdicts, and without what ended by `oldest`, seconds."""
        every = [*self.points[-1:], *found]
        points = [*self.points[:-1], *(p for p in every[:-1] if p.end % self.step == 0), *every[-1:]]
        troubles = _periods(found, self.width, lambda one: one.kind if one.kind in (*DATA_KINDS, "announced") else None)
        mixes = _periods(found, self.width, lambda one: None if one.mix_effect is None else "")
        return replace(
            self,
            points=tuple(p for p in points if p.end > oldest),
            troubles=tuple(s for s in _joined(self.troubles, troubles) if s.until > oldest),
            mixes=tuple(s for s in _joined(self.mixes, mixes) if s.until > oldest),
        )


def extend_verdicts(monitor: Monitor, store: Store, now: float, former: VerdictHistory | None) -> VerdictHistory | None:
    """The verdicts of the charted span; None if the monitor has none. Raises StoreError.

    `former`: the history to extend.
    """
    if monitor.drift is None:
        return None
    width = step_of(monitor.bucket)
    series, oldest = former or VerdictHistory(width, grid_step(width, MOST_POINTS)), int(now) - DRAWN
    known = oldest if series.newest is None else max(oldest, series.newest.end)
    return series.onward(store.verdicts.drawn(monitor.name, known, int(now)), oldest)


def _periods(
    found: Iterable[VerdictPoint], width: int, said: Callable[[VerdictPoint], str | None]
) -> list[VerdictPeriod]:
    spells: list[VerdictPeriod] = []
    for kind, run in groupby(found, said):
        if kind is not None:
            one_by_one = [VerdictPeriod(one.end - width, one.end, kind, one.mix_effect or 0.0) for one in run]
            spells += _joined((), one_by_one)
    return spells


def _joined(before: Iterable[VerdictPeriod], after: Iterable[VerdictPeriod]) -> list[VerdictPeriod]:
    found = list(before)
    for spell in after:
        if found and found[-1].until == spell.since and found[-1].kind == spell.kind:
            found[-1] = found[-1].and_then(spell)
        else:
            found.append(spell)
    return found
