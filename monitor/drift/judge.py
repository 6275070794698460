"""The judge: a fold over steps. At the start of a UTC day, count in old days and fit a baseline if due; at each step,
check the data, then update evidence and alarms; add the good parts to the day's sums, which track level and cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from monitor.arrays import Floats
from monitor.drift import alarms
from monitor.drift import baseline as b
from monitor.drift import constants as c
from monitor.drift import levels as lv
from monitor.drift.baseline import DriftBaseline, Reference
from monitor.drift.levels import DailyCycle, DaySums, ForecastErrors, Levels, with_cycle
from monitor.drift.new_level import begin_level, settle, with_level_error, without_broken_days
from monitor.drift.series import GAP, Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState, RecentSteps
from monitor.drift.steps import judge_block, lasting, least_decay
from monitor.drift.verdicts import AlarmChange, Verdict
from monitor.units import DAY


def judge_steps(
    settings: DriftSettings, state: DriftState | None, hours: Hours
) -> tuple[list[Verdict], DriftState | None]:
    """The verdicts on further steps and the state after them, however the steps are split over calls.

    `state` is None before the first step. Raises ValueError if the steps overlap those judged or have another length.
    """
    if state is not None and len(hours.starts) and (hours.starts[0] < state.until or state.step != settings.step):
        raise ValueError("these steps do not follow those that were judged")
    verdicts: list[Verdict] = []
    known = () if state is None else state.slices
    for slices, block in hours.blocks(known, settings.cuts):
        if not len(block.starts):
            continue
        if settings.is_announced(int(block.starts[0])):
            verdicts += _announced(settings, state, block)  # as if the steps had never been read
            continue
        ready, withdrawn = _ready(settings, state, slices, int(block.starts[0]))
        if ready.baseline is None:
            new_verdicts, state = _gather(settings, ready, block)
        else:
            new_verdicts, state = judge_block(settings, ready, ready.baseline, block)
        if withdrawn:
            new_verdicts[0] = replace(new_verdicts[0], changes=(*withdrawn, *new_verdicts[0].changes))
        verdicts += new_verdicts
    return verdicts, state


def _ready(
    settings: DriftSettings, was: DriftState | None, slices: tuple[str, ...], start: int
) -> tuple[DriftState, tuple[AlarmChange, ...]]:
    if was is None:
        return DriftState.begin(settings, start, slices), ()
    state, day = was.padded(slices, start) if slices != was.slices else was, start // DAY
    is_new_day = day != state.levels.today.number
    pin, is_stale = settings.pin(start), is_new_day and start - state.busy_at > c.STALE_DAYS * DAY
    if pin > state.pinned_at or is_stale:
        is_whole = is_stale or pin == settings.pinned_at
        fresh = DriftState.begin(settings, start, slices) if is_whole else begin_level(settings, state, start, slices)
        return fresh, _withdrawn(state, fresh)
    if start - state.until > GAP:
        trouble = replace(state.trouble, low=0)
        state = replace(state, recent=RecentSteps.empty(settings.day, len(slices)), trouble=trouble)
    if start - state.until > DAY:
        state = replace(state, standing=alarms.after_reset(state.standing, start))
    if not is_new_day:
        return state, ()
    after = _new_day(settings, state, day)
    return after, _withdrawn(state, after)


def _withdrawn(before: DriftState, after: DriftState) -> tuple[AlarmChange, ...]:
    names = ("", *before.slices)
    return tuple(
        AlarmChange(names[u], "withdrawn") for u in np.flatnonzero(before.standing.open & ~after.standing.open)
    )


def _new_day(settings: DriftSettings, state: DriftState, day: int) -> DriftState:
    if state.baseline is not None and not state.settled:
        state = without_broken_days(settings, state, state.baseline)
    if state.baseline is not None and state.settled:
        state = _with_cycle(settings, state, state.baseline, day)
    state = replace(state, levels=state.levels.on(day))
    if state.settled:
        levels = _with_new_coverage(settings, state).with_new_volume()
        state = replace(state, levels=levels.with_new_lists())
        if state.levels is not levels and state.trouble.short_until > (day - 1) * DAY:
            # Not for a changed mix alone: lists of another length have other values and bring other labels.
            return begin_level(settings, state, day * DAY, state.slices)
    if state.baseline is not None and state.settled:
        is_open, misses = state.standing.open.any(), state.misses
        state = replace(state, misses=misses.without_young() if is_open else misses.after(state.levels, state.baseline))
    state = _fitted(settings, state, day)
    if state.baseline is not None and not state.settled:
        state = settle(settings, state, state.baseline, day * DAY)
    if state.baseline is None or not state.settled:
        return state
    known = state.baseline
    state = _without_unlabelled(state, known, day * DAY)
    baseline, levels = _admitted(settings, state, known, day * DAY)
    if not state.fits:
        baseline = with_level_error(settings, state, baseline, day * DAY)
    baseline = baseline.with_noise(state.misses.noise(settings, baseline, levels))
    state = replace(state, baseline=baseline, levels=levels)
    labels = None  # unlabelled requests are in no measure, so labels explain no decay
    if settings.counts_unlabelled:
        labels = _change(state.levels.pending, baseline, (lv.LABELLED, lv.EXPECTED_LABELLED))
    state = replace(state, improved=_improved(state, baseline), decayed=_decayed(state, baseline))
    return replace(state, moved=_moved(state, baseline), labels_moved=labels)


def _with_new_coverage(settings: DriftSettings, state: DriftState) -> Levels:
    if settings.counts_unlabelled or state.baseline is None:
        return state.levels
    return state.levels.with_new_coverage(np.clip(state.baseline.coverage.level, 0, 1))


def _with_cycle(settings: DriftSettings, state: DriftState, baseline: DriftBaseline, day: int) -> DriftState:
    is_open = state.standing.open
    since = int(state.standing.since[is_open].min()) if is_open.any() else day * DAY
    cycle = state.cycle.after(settings, state.levels, day, state.recent.sums, baseline, since)
    return replace(state, cycle=cycle, baseline=with_cycle(baseline, state.cycle, cycle))


# ---- baseline ------------------------------------------------------------------------------------------------------


def _fitted(settings: DriftSettings, state: DriftState, day: int) -> DriftState:
    """Fits a baseline if one is due and no alarm is open; all but the first leave the youngest days out."""
    if state.baseline is None:
        state = _since_labels(state)
    reference, least, longest = state.reference, settings.least_reference, settings.reference
    age, young = day * DAY - state.began, c.LEFT_OUT_DAYS * DAY
    due = sum(age >= span for span in settings.fits_after)
    if reference is None or due <= state.fits:
        return state
    if state.standing.open.any():
        return replace(state, reference=reference.latest(day * DAY - c.REFERENCES_KEPT * longest))
    few_days = reference.days(day * DAY) * DAY < least * c.DAYS_WITH_DATA
    if few_days or reference.requests.sum() < c.LEAST_REQUESTS or not reference.total.any():
        return replace(state, reference=reference.latest(day * DAY - longest))
    old = reference.without(day * DAY - young) if state.fits else reference
    kept = b.counted(settings, old)
    baseline = b.fit(settings, old, kept)
    is_young = (reference.good > old.good)[:, None]
    levels, misses = _tracked(settings, reference, np.where(is_young, reference.counts(settings), kept), baseline, day)
    left = None if due == len(settings.fits_after) else reference
    misses = misses if state.fits else misses.with_young()
    state = replace(state, baseline=baseline, levels=levels, misses=misses, fits=due, reference=left, settled=True)
    return replace(state, cycle=DailyCycle.fitted(settings, old, kept, baseline))


def _since_labels(state: DriftState) -> DriftState:
    if state.reference is None or (found := state.reference.from_first_worth()) is state.reference:
        return state
    return replace(state, reference=found, began=int(found.starts[0]))


def _tracked(
    settings: DriftSettings, reference: Reference, kept: Floats, baseline: DriftBaseline, today: int
) -> tuple[Levels, ForecastErrors]:
    """What tracking the reference's days would have given; (T, S) `kept` is 1 for what counts."""
    precise = reference.precise()
    slot = settings.slots(reference.starts)
    mean, share, volume = baseline.tables[:, slot]
    size, counts = precise.requests * kept, precise.requests
    squares = counts * kept * reference.squares / np.maximum((counts * precise.begun).sum(axis=0), 1)
    served = precise.served
    total, labelled = precise.total * kept, precise.labelled * kept
    of_model = [total, size * mean, squares, total * precise.ideal, labelled, served * kept * share]
    by_field = [*of_model, served, volume, counts]
    whole = served.sum(axis=1, keepdims=True)
    crowd = np.concatenate([whole, reference.crowd], axis=1) * precise.usable(settings)[:, None]
    days, first = np.unique(reference.starts // DAY, return_index=True)
    sums = np.add.reduceat(np.stack(by_field), first, axis=1)
    crowds = np.add.reduceat(crowd, first, axis=0)
    levels, misses = Levels.empty(int(days[0]), len(baseline.known)), ForecastErrors.empty(len(baseline.known) + 1)
    for row, number in enumerate(days.tolist()):
        levels = levels.on(number)
        misses = misses.after(levels, baseline)
        levels = replace(levels, today=DaySums(number, sums[:, row], crowds[row]))
    levels = levels.on(today)
    return levels, misses.after(levels, baseline)


def _without_unlabelled(state: DriftState, baseline: DriftBaseline, now: int) -> DriftState:
    """Restarts slices without a baseline that lack labels, or got their first in the past, incomplete day."""
    every, known = state.levels.every(), baseline.known
    usual = float((every[lv.TOTAL] * known).sum()) / max(float((every[lv.REQUESTS] * known).sum()), 1.0)
    none = ~known & (every[lv.TOTAL] == 0)
    lacks = none & (every[lv.REQUESTS] * usual >= c.LEAST_WORTH)
    fresh, waited_for = lacks | (state.waited_for & ~none & ~known), lacks | (state.waited_for & none)
    if not (fresh | state.waited_for).any():
        return state
    first_seen, levels = np.where(fresh, now, state.first_seen), state.levels.forgotten(fresh)
    return replace(state, first_seen=first_seen, waited_for=waited_for, levels=levels)


def _admitted(
    settings: DriftSettings, state: DriftState, baseline: DriftBaseline, now: int
) -> tuple[DriftBaseline, Levels]:
    """Gives slices a baseline once seen for long enough, or once no longer thin in the days that count."""
    every, past = state.levels.every(), state.levels.memory.sums
    old = (now - state.first_seen >= settings.least_reference) & (every[lv.MEASURED] >= c.LEAST_REQUESTS)
    grown = baseline.known & ~baseline.alone & (past[lv.MEASURED] >= c.LEAST_REQUESTS) & ~state.standing.open[0]
    sums = np.where(grown, past, every)
    new = (grown | (~baseline.known & old)) & (sums[lv.EXPECTED] > 0) & (sums[lv.TOTAL] > 0)
    if not new.any():
        return baseline, state.levels
    size = np.maximum(sums[lv.MEASURED], 1)
    moved = np.where(new, sums[lv.TOTAL] / np.maximum(sums[lv.EXPECTED], 1e-9), 1.0)
    variance = sums[lv.SQUARES] / size - (sums[lv.TOTAL] / size) ** 2
    levels = state.levels.rescaled(moved)
    ratios = levels.ratios.copy()
    ratios[lv.QUALITY, new] = 1.0
    return baseline.admitting(new, baseline.quality.level * moved, variance, size), replace(levels, ratios=ratios)


def _improved(state: DriftState, baseline: DriftBaseline) -> int:
    """Days in a row, up to now, with the mean clearly above the reference."""
    rise = _change(state.levels.pending[-1:], baseline) or 0.0
    return state.improved + 1 if rise > max(c.LEAST_CHANGE, float(baseline.noise.tolerated[0])) else 0


def _decayed(state: DriftState, baseline: DriftBaseline) -> int:
    """Days in a row, up to now, with the mean clearly below the reference, and what is found by its ideal too."""
    gain = _change(state.levels.pending, baseline, (lv.GAIN, lv.EXPECTED)) or 0.0
    moved = max(_moved(state, baseline) or 0.0, (1 + gain) / baseline.ideal - 1)
    return state.decayed + 1 if moved < -least_decay(state, baseline) else 0


def _moved(state: DriftState, baseline: DriftBaseline) -> float | None:
    return _change(state.levels.pending, baseline)


def _change(
    days: Sequence[DaySums], baseline: DriftBaseline, fields: tuple[int, int] = (lv.TOTAL, lv.EXPECTED)
) -> float | None:
    """Relative change against the reference over these days; None without requests, or with an alarm on all traffic."""
    total, whole = (sum(float((day.sums[field] * baseline.known).sum()) for day in days) for field in fields)
    return total / whole - 1 if whole > 0 else None


def _announced(settings: DriftSettings, state: DriftState | None, block: Hours) -> list[Verdict]:
    kept = {} if state is None or state.baseline is None else lasting(settings, state, state.baseline)
    return [replace(verdict, kind="announced", **kept) for verdict in _unjudged(settings, block)]


def _unjudged(settings: DriftSettings, block: Hours) -> list[Verdict]:
    requests, labelled = block.served.sum(axis=1), block.labelled.sum(axis=1)
    shares = (labelled / np.maximum(requests, 1)).tolist()
    return [
        Verdict(end, "not_enough_data", requests=size, coverage=share if size else None, span=settings.step)
        for end, size, share in zip((block.starts + settings.step).tolist(), requests.tolist(), shares, strict=True)
    ]


def _gather(settings: DriftSettings, state: DriftState, block: Hours) -> tuple[list[Verdict], DriftState]:
    reference, ends = state.reference or Reference.empty(len(state.slices)), (block.starts + settings.step).tolist()
    busy, began, busy_at = np.flatnonzero(block.requests.sum(axis=1)), state.began, state.busy_at
    if busy_at > began:
        reference = reference.with_more(block, np.ones(len(ends)))
    elif len(busy):
        # What was stored before any traffic is not part of a reference.
        first = int(busy[0])
        reference, began = reference.with_more(block.rows(first, len(ends)), np.ones(len(ends) - first)), ends[first]
        began -= settings.step
    day = int(block.starts[0]) // DAY * DAY
    days, lacks = reference.days(day), _lacks(settings, reference, day)
    verdicts = [replace(one, reference_days=float(days), lacks=lacks) for one in _unjudged(settings, block)]
    if len(busy):
        busy_at = ends[busy[-1]]
    return verdicts, replace(state, until=ends[-1], reference=reference, began=began, busy_at=busy_at)


def _lacks(settings: DriftSettings, reference: Reference, until: int) -> str:
    """What a reference still lacks to fit a baseline on its steps before `until` (seconds)."""
    days, least, before = reference.days(until), settings.least_reference // DAY, reference.starts < until
    size = int(reference.requests[before].sum())
    if size and not reference.total[before].any():
        return f"a first label with a value above 0, and {least} days from then on"
    if days >= least and size < c.LEAST_REQUESTS:
        return f"a first reference: {size} of {c.LEAST_REQUESTS} requests to begin with"
    return f"a first reference: {days or 'less than one'} of {least} days to begin with"
