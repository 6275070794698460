"""A level that begins anew: after a change that is here to stay the cycles hold on, and the level is learnt again.

begun anew --two days with enough requests and labels--> settled: judged, with more tolerance until a reference is whole
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.drift import levels as lv
from monitor.drift.baseline import LEAST_REQUESTS, DriftBaseline
from monitor.drift.levels import DaySums, Levels
from monitor.drift.noise import units
from monitor.drift.series import DAY, Floats
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState, RecentSteps
from monitor.messages.words import utc

SETTLING_DAYS = 2
"""Whole days that it takes to know a new level."""
LEAST_COVERAGE = 0.5
"""Share of the labels of before below which a level is none: they are broken, and it is waited for them."""

LEAST_USABLE = 0.5
"""Share of a day's requests that must be fit to be learnt from."""


def begun_anew(settings: DriftSettings, state: DriftState, start: int, slices: tuple[str, ...]) -> DriftState:
    """The state at a moment from which on the level is another one; without a baseline nothing is kept.

    Args:
        state: before it, of the same slices.
        start: seconds, of the next step.
    """
    new = DriftState.begin(settings, start, slices, state.first_seen)
    if state.baseline is None:
        return new
    memory = replace(new.levels.memory, crowd=state.levels.memory.crowd)
    levels = replace(new.levels, ratios=state.levels.ratios, memory=memory)
    was = state.trouble
    trouble = replace(
        new.trouble,
        suspect_since=was.suspect_since,
        suspect_until=was.suspect_until,
        collapsed=was.collapsed,
        lost_since=was.lost_since,
        lost_until=was.lost_until,
    )
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
    """Days since the reference, or the new level, began, as of the last midnight in UTC: days are counted in then."""
    return max(0, now - now % DAY - state.began) // DAY


def settle(settings: DriftSettings, state: DriftState, found: DriftBaseline, now: int) -> DriftState:
    """With the new level, if enough is known of it by `now`, seconds, the beginning of a day.

    `lacks_to_settle` says what of this is missing.

    Quality is expected on the new level from here on; coverage and traffic follow by their ratios. Thin slices lean on
    what became of all of them together.
    """
    sums = state.levels.every()
    if days_known(state, now) < SETTLING_DAYS or sums[lv.MEASURED].sum() < LEAST_REQUESTS:
        return state
    prior = LEAST_REQUESTS * found.quality.level
    total, expected = sums[lv.TOTAL] * found.known, sums[lv.EXPECTED] * found.known
    together = float(total.sum()) / max(float(expected.sum()), 1e-9)
    if not together > 0:
        return state
    moved = np.where(found.known, (total + together * prior) / np.maximum(expected + prior, 1e-9), 1.0)
    quality = replace(found.quality, level=found.quality.level * moved)
    levels = state.levels.rescaled(moved).gathered(prior * moved * found.known)
    # The hours before were expected on the level of before: none of them is looked at again.
    recent = RecentSteps.empty(settings.steps(24), len(state.slices))
    return replace(state, baseline=replace(found, quality=quality), levels=levels, recent=recent, settled=True)


def lacks_to_settle(state: DriftState, now: int) -> str:
    """What a new level that `settle` has not taken yet lacks at `now`, seconds."""
    since, known, requests = days_since(state, now), days_known(state, now), state.levels.every()[lv.MEASURED].sum()
    if known >= SETTLING_DAYS and requests < LEAST_REQUESTS:
        return f"requests since the level began anew: {requests:,.0f} of {LEAST_REQUESTS}"
    if known >= SETTLING_DAYS:
        return "a first hour since the new level is known"
    whole, counted = -(-state.began // DAY), now // DAY - _days_counted(state, now)
    so_far, soonest = known or "less than one", (max(whole, counted) + SETTLING_DAYS) * DAY
    left_out = f"; {since - known} brought too few requests or labels to count" * (since > known)
    said = f"whole UTC days since the level began anew, labels included: {so_far} of {SETTLING_DAYS}"
    return f"{said}, so until {utc(soonest)} at least{left_out}"


def days_known(state: DriftState, now: int) -> int:
    """Whole days of the new level that count, of a state without its broken days.

    The day that it goes on in counts at its very end.
    """
    return min(_days_counted(state, now), days_since(state, now))


def _days_counted(state: DriftState, now: int) -> int:
    """The same with the part of a day that the new level began with."""
    levels = state.levels
    remembered = SETTLING_DAYS if levels.memory.sums[lv.REQUESTS].any() else 0
    ended = now // DAY - levels.today.number
    return len(levels.pending) + remembered + ended


def without_broken_days(settings: DriftSettings, state: DriftState, found: DriftBaseline) -> DriftState:
    """Without the days that ended by now and that had lost their labels: they are no part of a new level."""
    levels, reference = state.levels, state.reference
    days = (*levels.pending, levels.today)
    broken = [d.number for d in days if _is_broken(settings, d.sums, levels, found)]
    if broken and reference is not None:
        good = np.where(np.isin(reference.starts // DAY, broken), 0.0, reference.good)
        reference = replace(reference, good=good)
    pending = tuple(d for d in levels.pending if d.number not in broken)
    today = levels.today
    today = DaySums.empty(today.number, today.sums.shape[1]) if today.number in broken else today
    return replace(state, levels=replace(levels, pending=pending, today=today), reference=reference)


def _is_broken(settings: DriftSettings, sums: Floats, levels: Levels, found: DriftBaseline) -> bool:
    """Whether a day had lost most of its labels, or most of it could not be used, so that the rest says too little.

    Where requests without a label are in no measure, few labels will do: they may be what the new level has.
    """
    whole = (sums[lv.MEASURED] * found.quality.level * found.known).sum()
    usable = (sums[lv.EXPECTED] * found.known).sum()
    had, usual, least = sums[lv.LABELLED], sums[lv.EXPECTED_LABELLED], LEAST_COVERAGE
    if not settings.counts_unlabelled:
        had, usual, least = sums[lv.MEASURED], sums[lv.REQUESTS] * np.clip(found.coverage.level, 0, 1), lv.LEAST_LEFT
    few = had.sum() < least * (usual * levels.ratios[lv.COVERAGE]).sum()
    return bool(few or usable < LEAST_USABLE * whole)


def with_level_error(settings: DriftSettings, state: DriftState, found: DriftBaseline, now: int) -> DriftBaseline:
    """With the error of a level that rests on what there was since it began anew, and not on a reference."""
    sums = state.levels.every()
    size, expected = sums[lv.MEASURED] * found.known, units(sums[lv.EXPECTED] * found.known)
    steps = min(days_since(state, now), lv.MEMORY_DAYS) * DAY / settings.step
    error: Floats = units(size * found.quality.variance) / np.maximum(expected, 1e-9) ** 2
    error = np.where(expected > 0, error, 1.0) + found.noise.long_run / max(steps, 1.0)
    return found.with_noise(replace(found.noise, level_error=error))
