"""A new level after a lasting change: the cycles are kept and the level is learnt again.
begun --two days with enough requests and labels--> settled: judged, with more tolerance until a reference is whole.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.arrays import Floats
from monitor.drift import constants as c
from monitor.drift import levels as lv
from monitor.drift.baseline import DriftBaseline
from monitor.drift.levels import DaySums, Levels
from monitor.drift.series import ratio, units
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState, RecentSteps
from monitor.messages.words import utc
from monitor.units import DAY


def begin_level(settings: DriftSettings, state: DriftState, start: int, slices: tuple[str, ...]) -> DriftState:
    """The state at `start` (seconds), where a new level begins; without a baseline nothing is kept."""
    new = DriftState.begin(settings, start, slices, state.first_seen)
    if state.baseline is None:
        return new
    memory = replace(new.levels.memory, crowd=state.levels.memory.crowd)
    levels = replace(new.levels, ratios=state.levels.ratios, memory=memory)
    kept = ("suspect_since", "suspect_until", "collapsed", "lost_since", "lost_until")
    trouble = replace(new.trouble, **{name: getattr(state.trouble, name) for name in kept})
    return replace(
        new,
        baseline=state.baseline,
        levels=levels,
        misses=state.misses,
        trouble=trouble,
        settled=False,
        cycle=state.cycle.young(),
    )


def days_since(state: DriftState, now: int) -> int:
    """Days since the reference or the new level began, as of the last midnight UTC."""
    return max(0, now - now % DAY - state.began) // DAY


def settle(settings: DriftSettings, state: DriftState, baseline: DriftBaseline, now: int) -> DriftState:
    """Adopts the new level if enough is known by `now`, the start of a day in seconds; see `lacks_to_settle`.

    From here on the baseline expects the new quality; coverage and traffic follow by their ratios. Thin slices lean on
    the change of all slices together.
    """
    sums = state.levels.every()
    if days_known(state, now) < c.SETTLING_DAYS or sums[lv.MEASURED].sum() < c.LEAST_REQUESTS:
        return state
    prior = c.LEAST_REQUESTS * baseline.quality.level
    total, expected = sums[lv.TOTAL] * baseline.known, sums[lv.EXPECTED] * baseline.known
    together = float(total.sum()) / max(float(expected.sum()), 1e-9)
    if not together > 0:
        return state
    moved = np.where(baseline.known, (total + together * prior) / np.maximum(expected + prior, 1e-9), 1.0)
    quality = replace(baseline.quality, level=baseline.quality.level * moved)
    levels = state.levels.rescaled(moved).gathered(prior * moved * baseline.known)
    # Earlier hours were expected at the old level, so they are dropped.
    recent = RecentSteps.empty(settings.day, len(state.slices))
    baseline = replace(baseline, quality=quality, ideal=ratio(sums[lv.GAIN].sum(), sums[lv.TOTAL].sum()) or 1.0)
    return replace(state, baseline=baseline, levels=levels, recent=recent, settled=True)


def lacks_to_settle(state: DriftState, now: int) -> str:
    """What an unsettled new level still lacks at `now` (seconds)."""
    since, known, requests = days_since(state, now), days_known(state, now), state.levels.every()[lv.MEASURED].sum()
    if known >= c.SETTLING_DAYS and requests < c.LEAST_REQUESTS:
        return f"requests since the new level began: {requests:,.0f} of {c.LEAST_REQUESTS}"
    if known >= c.SETTLING_DAYS:
        return "a first hour since the new level is known"
    whole, counted = -(-state.began // DAY), now // DAY - _days_counted(state, now)
    so_far, soonest = known or "less than one", (max(whole, counted) + c.SETTLING_DAYS) * DAY
    left_out = f"; {since - known} brought too few requests or labels to count" * (since > known)
    said = f"whole UTC days since the new level began, labels included: {so_far} of {c.SETTLING_DAYS}"
    return f"{said}, so until {utc(soonest)} at least{left_out}"


def days_known(state: DriftState, now: int) -> int:
    """Whole days of the new level that count, the current one only at its end; remove broken days first."""
    return min(_days_counted(state, now), days_since(state, now))


def _days_counted(state: DriftState, now: int) -> int:
    levels = state.levels
    remembered = c.SETTLING_DAYS if levels.memory.sums[lv.REQUESTS].any() else 0
    ended = now // DAY - levels.today.number
    return len(levels.pending) + remembered + ended


def without_broken_days(settings: DriftSettings, state: DriftState, baseline: DriftBaseline) -> DriftState:
    """The state without past days that had lost their labels: they are no part of a new level."""
    levels, reference = state.levels, state.reference
    days = (*levels.pending, levels.today)
    broken = [d.number for d in days if _is_broken(settings, d.sums, levels, baseline)]
    if broken and reference is not None:
        good = np.where(np.isin(reference.starts // DAY, broken), 0.0, reference.good)
        reference = replace(reference, good=good)
    pending = tuple(d for d in levels.pending if d.number not in broken)
    today = levels.today
    today = DaySums.empty(today.number, today.sums.shape[1]) if today.number in broken else today
    return replace(state, levels=replace(levels, pending=pending, today=today), reference=reference)


def _is_broken(settings: DriftSettings, sums: Floats, levels: Levels, baseline: DriftBaseline) -> bool:
    """Whether a day lost most labels or was mostly unusable; if unlabelled requests are in no measure, some do."""
    whole = (sums[lv.MEASURED] * baseline.quality.level * baseline.known).sum()
    usable = (sums[lv.EXPECTED] * baseline.known).sum()
    had, usual, least = sums[lv.LABELLED], sums[lv.EXPECTED_LABELLED], c.LABELS_RATIO_SETTLING
    if not settings.counts_unlabelled:
        had, usual, least = (
            sums[lv.MEASURED],
            sums[lv.REQUESTS] * np.clip(baseline.coverage.level, 0, 1),
            c.NEXT_TO_NONE,
        )
    few = had.sum() < least * (usual * levels.ratios[lv.COVERAGE]).sum()
    return bool(few or usable < c.USABLE_OF_DAY * whole)


def with_level_error(settings: DriftSettings, state: DriftState, baseline: DriftBaseline, now: int) -> DriftBaseline:
    """The baseline with the error of a level known only since it began, not from a reference."""
    sums = state.levels.every()
    size, expected = sums[lv.MEASURED] * baseline.known, units(sums[lv.EXPECTED] * baseline.known)
    steps = min(days_since(state, now), c.LEVEL_MEMORY_DAYS) * DAY / settings.step
    error: Floats = units(size * baseline.quality.variance) / np.maximum(expected, 1e-9) ** 2
    error = np.where(expected > 0, error, 1.0) + baseline.noise.long_run / max(steps, 1.0)
    return baseline.with_noise(replace(baseline.noise, level_error=error))
