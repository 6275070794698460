"""Compares the slices' newest windows with the past, and new slices with the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from monitor.conditions.kinds.threshold import compared_with
from monitor.conditions.rules import Baseline, Drop, Rule
from monitor.conditions.thresholds import View, evaluate_rule, merged
from monitor.conditions.versions import NEAR, version_until
from monitor.measures.measure import Measure
from monitor.series import partials as b
from monitor.series.intervals import REACH
from monitor.series.partials import bucket_of
from monitor.series.windows import History, SliceKey
from monitor.types import OVERALL, Monitor, format_duration
from monitor.units import WEEK

FEWEST_BEFORE = 30
"""Requests: slices with fewer before are not compared."""


@dataclass(frozen=True, slots=True)
class ComparedSlice:
    """A slice's newest final window and its reference, in the measure's unit; `share` of the requests.

    New slices: `since` is the start of the first bucket, seconds; `others` the rest of the dimension in this window.
    `until` is the end of the last bucket of a model version that no longer serves, seconds.
    """

    key: SliceKey
    value: float
    before: float | None
    share: float
    since: int | None = None
    others: float | None = None
    until: int | None = None

    @property
    def change(self) -> float | None:
        """Relative change; None without a reference."""
        return self.value / self.before - 1 if self.before else None

    @property
    def is_known(self) -> bool:
        """Whether there is something to compare it with: its past, or the others if it is new."""
        return self.before is not None or self.others is not None

    @property
    def effect(self) -> float:
        """The slice's contribution to the change of overall, in the measure's unit.

        Its own change, or that of a new slice against the others, times its share.
        """
        against = self.others if self.before is None else self.before
        return 0.0 if against is None else (self.value - against) * self.share

    @property
    def against_others(self) -> float | None:
        """A new slice's relative difference from the others; None where there are none."""
        return self.value / self.others - 1 if self.others else None


@dataclass(frozen=True)
class SliceComparison:
    """The slices of a final window by contribution, their reference in words, and all traffic with its own."""

    slices: tuple[ComparedSlice, ...] = ()
    against: str = ""
    whole: ComparedSlice | None = None


def compare(
    monitor: Monitor,
    measure: Measure,
    window: int,
    history: History,
    traffic: History,
    end: int,
    fell_at: int | None = None,
) -> SliceComparison:
    """The slices at `end` against the baseline of the rule that judges the same, else the week before.

    If `lookback` is too short for that, against the window before. `fell_at`: start of the open incident, seconds;
    later windows are no reference.
    """
    view = View(history, traffic, monitor.bucket, monitor.min_completeness)
    keys = [key for key in history.slices if key != OVERALL]
    if not keys or not len(history.starts):
        return SliceComparison()
    for reference in _references(monitor, measure, window, end, fell_at):
        overall, *before = evaluate_rule(reference.rule, view, [OVERALL, *keys], reference.end)
        if overall.baseline is not None:
            break
    whole = overall.baseline
    overall, *found = evaluate_rule(reference.rule, view, [OVERALL, *keys], end)
    slices = [
        ComparedSlice(key, seen.value, then.baseline, seen.requests / max(overall.requests, 1))
        for key, seen, then in zip(keys, found, before, strict=True)
        if seen.value is not None
    ]
    sums, _ = merged(history, monitor.bucket, end - window, end)
    with_it = end if fell_at is None else fell_at - NEAR
    lately = end - window - WEEK
    old, known = _old(history, min(with_it, lately)), _SliceSums.of(history, sums)
    until = min(with_it, reference.end - window)
    told = [one if one.key in old else _as_new(one, known, measure, until, window, lately) for one in slices]
    told = [replace(one, until=version_until(traffic, one.key, end - window, end, monitor.bucket)) for one in told]
    every = None if overall.value is None else ComparedSlice(OVERALL, overall.value, whole, 1.0)
    return SliceComparison(tuple(sorted(told, key=lambda c: (_cost(c, whole), c.key))), reference.words, every)


@dataclass(frozen=True, slots=True)
class _SliceSums:
    """Of each slice: its place, its dimension, its sums in the window, and its first bucket with requests, seconds."""

    places: Mapping[SliceKey, int]
    dimensions: np.ndarray
    sums: b.Floats
    began: b.Floats

    @classmethod
    def of(cls, history: History, sums: b.Floats) -> _SliceSums:
        busy = history.sums[:, :, b.REQUESTS] > 0
        began = np.where(busy.any(axis=0), history.starts[busy.argmax(axis=0)], np.inf)
        places = {key: place for place, key in enumerate(history.slices)}
        return cls(places, np.array([dimension for dimension, _ in history.slices]), sums, began)


def _as_new(
    one: ComparedSlice, known: _SliceSums, measure: Measure, until: int, window: int, lately: int
) -> ComparedSlice:
    """The slice as new if its past is shorter than its window, or too few requests were before it began recently.

    A dimension not read before has no new slices, and its past must be twice the window: else any part of it will do.

    Args:
        until: end of its past, at the latest where the fall began, seconds.
        window, lately: length of its window, and from when on it began recently, seconds.
    """
    place, others = known.places[one.key], known.dimensions == one.key[0]
    began, first = known.began[place], known.began[others].min()
    least = until - window if first <= until - 2 * window else np.inf
    was_there = began <= (least if one.before is not None else min(until, lately - 1))
    if was_there or began in (np.inf, first):
        return one
    others[place] = False
    value = float(b.read_as(measure, known.sums[others].sum(axis=0)))
    return replace(one, before=None, since=int(began), others=None if np.isnan(value) else value)


def _old(history: History, until: int) -> set[SliceKey]:
    last = int(np.searchsorted(history.starts, until))
    first = int(np.searchsorted(history.starts, until - WEEK))
    busy = history.sums[first:last, :, b.REQUESTS] > 0
    return {history.slices[i] for i in np.flatnonzero(busy.any(axis=0)).tolist()}


def _cost(one: ComparedSlice, whole: float | None) -> float:
    """A slice's effect; for a new one what it takes from the others, or from all before it."""
    is_alone = one.since is not None and one.others is None
    return (one.value - whole) * one.share if is_alone and whole is not None else one.effect


@dataclass(frozen=True, slots=True)
class _Reference:
    rule: Rule
    end: int
    words: str


def _references(monitor: Monitor, measure: Measure, window: int, end: int, fell_at: int | None) -> Iterator[_Reference]:
    for rule in monitor.alerts:
        is_near = isinstance(rule.limit, Drop) and rule.limit.baseline.pinned is None and rule.reach <= REACH
        if is_near and (rule.measure, rule.window) == (measure, window):
            yield _Reference(replace(rule, min_requests=FEWEST_BEFORE), end, compared_with(rule))
    drop = Drop(0.0, 0.0, True, Baseline(max(WEEK, window))), Drop(0.0, 0.0, True, Baseline(window))
    before = [Rule("", measure, window, limit, min_requests=FEWEST_BEFORE) for limit in drop]
    if fell_at is not None and fell_at < end - window:
        fallen = bucket_of(fell_at, monitor.bucket) + window
        for rule, one in zip(before, drop, strict=True):
            yield _Reference(rule, fallen, f"the {format_duration(one.baseline.trailing)} before the fall")
    yield from (_Reference(rule, end, compared_with(rule)) for rule in before)
