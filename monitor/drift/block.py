"""Some steps of one day, with one baseline at one level: what can be worked out for all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from monitor.drift import alarms, gates
from monitor.drift.alarms import StepEvidence
from monitor.drift.baseline import DriftBaseline
from monitor.drift.evidence import SliceSums, Threshold
from monitor.drift.frozen import frozen
from monitor.drift.levels import REQUESTS, SHOWN, VOLUME, Levels
from monitor.drift.mix import effects_of
from monitor.drift.noise import units
from monitor.drift.seasons import by_changed_clocks, slots
from monitor.drift.series import Bools, Floats, Hours, Ints, some, some_of
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.drift.tolerance import doubt

SHORT_HOURS, DAY_HOURS = 3, 24
THIN_HOURS = (6, 12, 24)
"""In which thin slices show that their labels are lost."""


@frozen
class DataChecks:
    """What T steps say of the data.

    Attributes:
        per_step, short, day: (8, T) sums of a step, of three hours, of a day, fields as in `gates`.
        rows: the three of them.
        spread: of coverage and traffic.
        suspect, refused, short_lists, low: T gates.
        lists_fell: T, whether lists are shorter than a day before.
        low_again: T, whether traffic that was low for a first step is so again.
        low_still: T, whether traffic that was low for longer may be so still.
        missing: (T, S) slices that have lost their requests.
        lost_until: (T, S) end of the last step that lost labels of a slice make unusable, as known by then, seconds.
        most_lost: T, slices with most of the requests have lost their labels.
    """

    per_step: Floats
    short: Floats
    day: Floats
    rows: list[gates.Rows]
    spread: gates.Dispersion
    suspect: list[bool]
    refused: list[bool]
    short_lists: list[bool]
    lists_fell: list[bool]
    low: list[bool]
    low_again: list[bool]
    low_still: list[bool]
    missing: Bools
    lost_until: Ints
    most_lost: list[bool]

    @cached_property
    def suspect_degraded(self) -> list[bool]:
        """T: as `suspect`, while an alarm is open."""
        return self._suspect(gates.LABELS_RATIO_DEGRADED, gates.LABELS_RATIO_SETTLING)

    @cached_property
    def suspect_settling(self) -> list[bool]:
        """T: as `suspect`, while a new level is learnt."""
        return self._suspect(gates.LABELS_RATIO_SETTLING, gates.LABELS_RATIO_NEW)

    @cached_property
    def worthless(self) -> list[bool]:
        """T: whether every value is 0, though there are labels."""
        found = gates.is_worthless(np.concatenate([self.per_step, self.short, self.day], axis=1), with_labels=True)
        told: Bools = np.logical_or.reduce(found.reshape(3, -1), axis=0)
        return [bool(flag) for flag in told]

    def _suspect(self, most: float, most_unseen: float) -> list[bool]:
        spans = self.per_step, self.short, self.day
        found: list[bool] = gates.labels_suspect(spans, self.spread, most, most_unseen).tolist()
        return found


class Block(NamedTuple):
    """What is worked out for all T steps at once.

    Attributes:
        window: (8, R + T, S) the day before and the steps, fields as in `gates`.
        whole: (8, R + T) of all slices.
        busy: R + T, requests that may be judged.
        sound: (R + T, S) 0 where a slice is left out, for its labels are lost.
        crowd: (4, R + T) events, unmatched, refused, items shown.
        gated: what they say of the data.
        tracked: (8, T, S) fields as in `levels`.
        mix: T relative effects of the mix on the mean.
        seen: what the units are judged on.
        requests: (T, S) that came.
        threshold: of the evidence.
    """

    ends: list[int]
    window: Floats
    whole: Floats
    busy: list[float]
    sound: Floats
    crowd: Floats
    gated: DataChecks
    tracked: Floats
    mix: list[float]
    seen: StepEvidence
    requests: Floats
    threshold: Threshold


def block_of(settings: DriftSettings, state: DriftState, found: DriftBaseline, hours: Hours) -> Block:
    """What can be worked out of some steps at once; the state knows their slices."""
    base = found.at(hours.starts)
    mean, share, volume = base * state.levels.ratios[:, None]
    known, size, count = found.of_known, hours.requests, len(hours.starts)
    judged, usual = known(size), known(volume)
    served = hours.served
    asked, shares = known(served), np.minimum(share, 1.0)
    worth, expected_labelled = judged * mean, asked * shares
    of_usual = usual if settings.counts_unlabelled else usual * shares  # that are in the measure
    usually = of_usual * mean
    fields = [served, judged, known(hours.total), worth, known(hours.labelled), expected_labelled, asked, usual]
    window, all_slices, crowd = _with_day_before(state, hours, np.array(fields))
    ends = [start + settings.step for start in hours.starts.tolist()]
    few, spread = settings.steps(SHORT_HOURS), gates.Dispersion(found.coverage_noise, found.volume_noise)
    by_slice, whole = gates.rolling(window, few, count), all_slices
    busy: list[float] = whole[gates.JUDGED].tolist()
    whole_now = whole[:, -count:] if settings.counts_unlabelled else None
    mix = _mix(whole_now, expected_labelled, of_usual, mean, usually)
    flagged, most_lost = _unlabelled(settings, state, window, by_slice, spread)
    lost_until, sound = _left_out(state, flagged, ends, (few - 1) * settings.step)
    kept, is_lost = window, sound == 0
    if some(is_lost):
        kept = _without(window, sound)
        by_slice, whole = gates.rolling(kept, few, count), np.add.reduce(kept, axis=2)
    short, shifted = units(by_slice), partial(_shifted, settings, state, found, hours)
    gated = _gated(settings, state, kept, whole, short, crowd, spread, shifted, lost_until, most_lost)
    of_units, sound_now = found.judged, sound[-count:]
    threshold = settings.thresholds(of_units)
    beyond = doubt(found, worth, usually, state.mix.is_shifted)
    past = kept[gates.JUDGED : gates.EXPECTED + 1]
    requests, total = past[:2, -count:]
    squares = known(hours.squares)
    of_model = [hours.total, size * base[0], hours.squares, hours.labelled, served * base[1]]
    tracked = np.array([*of_model, served, base[2], size])
    if kept is not window:
        squares = squares * sound_now
        tracked[:REQUESTS] *= sound_now
    variances = found.variance_of_known, found.noise.variance[None, 1:]
    sums = SliceSums(requests, total, squares, known(mean), *variances, beyond)
    seen = alarms.see(sums, found.noise, of_units, is_lost[-count:], short, past, threshold, ends, settings.hours)
    return Block(ends, window, all_slices, busy, sound, crowd, gated, tracked, mix, seen, served, threshold)


def _mix(whole: Floats | None, labelled: Floats, usual: Floats, mean: Floats, usual_worth: Floats) -> list[float]:
    """T effects of the mix, by what came and what usually comes of the measure, and what each is worth as expected.

    Args:
        whole: (8, T) sums of the steps that say so, where all requests are in the measure; None where those are that
            have a label.
        labelled: (T, S) requests that are expected to have one.
        usual, usual_worth: (T, S) requests in the measure that usually come, and what they sum up to as expected.
        mean: (T, S) that is expected of a request.
    """
    worth = np.add.reduce(usual_worth, axis=1)
    if whole is not None:
        return effects_of(whole[gates.JUDGED], whole[gates.EXPECTED_REQUESTS], whole[gates.EXPECTED], worth)
    sizes, usual_sizes, worths = np.add.reduce([labelled, usual, labelled * mean], axis=2)
    return effects_of(sizes, usual_sizes, worths, worth)


def _gated(
    settings: DriftSettings,
    state: DriftState,
    kept: Floats,
    whole: Floats,
    lately: Floats,
    crowd: Floats,
    spread: gates.Dispersion,
    shifted: Callable[[], Floats],
    lost_until: Ints,
    most_lost: list[bool],
) -> DataChecks:
    """What steps say of the data, by (8, R + T, S) `kept` sums, and (8, T, U) those of three hours."""
    count = lately.shape[1]
    few, many = settings.steps(SHORT_HOURS), whole.shape[1] - count
    per_step, short, day = spans = whole[:, -count:], lately[:, :, 0], gates.rolling(whole, many, count)
    refused, shown = gates.rolling(crowd[gates.REFUSED :], few, count)
    items, items_usual = (crowd[gates.SHOWN, -count:], shown), _usual(state.levels, SHOWN)
    missing = _missing(settings, kept, lately[:, :, 1:])
    rows = [sums.T.tolist() for sums in spans]
    if gates.are_well(rows, items, items_usual, refused):
        none = [False] * count
        return DataChecks(
            *spans, rows, spread, none, none, none, none, none, none, none, missing, lost_until, most_lost
        )
    short_lists = gates.lists_short(spans, items, partial(_in_day, crowd, many, count), items_usual)
    lists_fell = short_lists
    if some(short_lists):
        sizes, sizes_before = kept[gates.REQUESTS, -count:], kept[gates.REQUESTS, :count]
        lists_fell = gates.lists_fell(sizes, items[0], sizes_before, crowd[gates.SHOWN, :count])
    low, low_again, low_still = gates.traffic_low(short, day, spread, shifted)
    return DataChecks(
        per_step,
        short,
        day,
        rows,
        spread,
        gates.labels_suspect(spans, spread).tolist(),
        gates.rows_refused(short, refused, _usual(state.levels, 3)).tolist(),
        short_lists.tolist(),
        lists_fell.tolist(),
        low.tolist(),
        low_again.tolist(),
        low_still.tolist(),
        missing,
        lost_until,
        most_lost,
    )


def _in_day(crowd: Floats, many: int, count: int) -> Floats:
    """(T,) items shown in the day that ends with each of the last steps."""
    found: Floats = gates.rolling(crowd[gates.SHOWN :], many, count)[0]
    return found


def _shifted(settings: DriftSettings, state: DriftState, found: DriftBaseline, hours: Hours) -> Floats:
    """(2, T) what share of the requests of three hours, and of a day, is left if clocks were changed meanwhile."""
    volume = (found.tables[VOLUME] * state.levels.ratios[VOLUME] * found.known).sum(axis=1)
    spans = (settings.steps(SHORT_HOURS), settings.steps(DAY_HOURS))
    by_slot = np.stack([by_changed_clocks(volume, settings.step, steps) for steps in spans])
    return by_slot[:, slots(hours.starts, settings.step)]


def _missing(settings: DriftSettings, kept: Floats, short: Floats) -> Bools:
    """(T, S) slices that have lost their requests, by (8, R + T, S) sums and (8, T, S) those of three hours.

    Thin ones show it in a day, of which the last hours have as good as none either.
    """
    few = gates.slices_short(short[gates.REQUESTS], short[gates.EXPECTED_REQUESTS])
    if not some(few):  # as ever
        return few
    day = gates.rolling(kept[[gates.REQUESTS, gates.EXPECTED_REQUESTS]], settings.steps(DAY_HOURS), short.shape[1])
    found: Bools = gates.slices_missing(short[gates.REQUESTS], short[gates.EXPECTED_REQUESTS])
    found |= few & gates.slices_missing(*day)
    return found


def _with_day_before(state: DriftState, hours: Hours, sums: Floats) -> tuple[Floats, Floats, Floats]:
    """`window`, `whole` and `crowd` of a block, of whose steps (8, T, S) `sums` are."""
    recent, whole = state.recent, np.add.reduce(sums, axis=2)
    both = (recent.sums, sums), (recent.whole, whole), (recent.crowd, hours.crowd)
    window, whole, crowd = (np.concatenate(pair, axis=1) for pair in both)
    return window, whole, crowd


def _unlabelled(
    settings: DriftSettings, state: DriftState, window: Floats, short: Floats, spread: gates.Dispersion
) -> tuple[Bools, list[bool]]:
    """(T, S) slices whose labels are lost, and T whether most are, by (8, T, S) `short` sums of three hours."""
    count, lost_since = short.shape[1], state.trouble.lost_since
    few = gates.slices_short_of_labels(window[:, -count:], short)
    if not (some(few) or some_of(lost_since)):  # as ever
        return few, [False] * count
    longer = [gates.rolling(window, settings.steps(hours), count) for hours in THIN_HOURS]
    is_open = state.standing.open
    fewer = np.where(is_open[1:], gates.SLICE_FEWEST, gates.SLICE_FEWER)
    usual = fewer * gates.labels_of_others(longer[-1])
    found = gates.slices_unlabelled((window[:, -count:], short, *longer), spread, usual)
    lasting = (settings.steps(SHORT_HOURS) - 1) * settings.step
    was = (lost_since > 0) & (state.trouble.lost_until >= state.until + lasting)
    was_most = state.trouble.most_lost
    left_out, most = gates.slices_left_out(found, was, was_most, is_open[1:], usual, short, longer[-1])
    return left_out, most.tolist()


def _left_out(state: DriftState, flagged: Bools, ends: list[int], lasting: int) -> tuple[Ints, Floats]:
    """`lost_until` and `sound` of a block, whose labels are lost where (T, S) `flagged`, and for `lasting` seconds."""
    was = state.trouble.lost_until
    if not (some(flagged) or some_of(was)):  # as ever
        return np.zeros(flagged.shape, np.int64), np.concatenate([state.recent.sound, ~flagged])
    instants = np.array(ends)[:, None]
    lost_until = np.maximum(np.maximum.accumulate((instants + lasting) * flagged, axis=0), was)
    return lost_until, np.concatenate([state.recent.sound, (lost_until < instants) * 1.0])


def without_lost(window: Floats, sound: Floats) -> Floats:
    """(8, N, S) of N steps without what was judged where (N, S) `sound` is 0; the requests stay."""
    return _without(window, sound) if some(sound == 0) else window


def _without(window: Floats, sound: Floats) -> Floats:
    found = window.copy()
    found[gates.JUDGED : gates.EXPECTED_REQUESTS] *= sound
    return found


def _usual(levels: Levels, which: int) -> float:
    """Events, unmatched, refused or shown items for each request, as remembered."""
    crowd = levels.memory.crowd
    return float(crowd[which] / crowd[0]) if crowd[0] > 0 else 0.0
