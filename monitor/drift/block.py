"""A block: steps of one day at one level, computed together, then checked for data faults one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.drift import alarms
from monitor.drift import constants as c
from monitor.drift import data_checks as checks
from monitor.drift.alarms import AlarmStates, StepEvidence
from monitor.drift.baseline import DriftBaseline
from monitor.drift.eprocess import SliceSums
from monitor.drift.levels import RANK_ONE, REQUESTS, SHOWN, VOLUME, Levels, doubt
from monitor.drift.noise import mix_effects
from monitor.drift.seasonality import by_changed_clocks
from monitor.drift.series import Hours, frozen, ratio, some, some_of, units
from monitor.drift.settings import DriftSettings, EvidenceThreshold
from monitor.drift.state import DataFaults, DriftState
from monitor.drift.verdicts import Kind, LabelLoss, SliceLabelLoss
from monitor.units import DAY, WEEK

# ---- checks of the data --------------------------------------------------------------------------------------------


@frozen
class DataChecks:
    """The data checks of T steps.

    Attributes:
        spans: (9, T) sums of a step, of three hours, of a day, fields as in `data_checks`; `rows` as plain numbers.
        silent, usual: (T, S) as from `data_checks.silences`.
        lost_until: (T, S) end (seconds) of the last step made unusable by lost labels, as known by then.
        most_lost: whether slices with most of the requests have lost their labels.
        lists_fell: whether lists are shorter than the day before.
        ranks_off: whether far fewer or more items than usual are at rank 1.
        low_again, low_still: whether traffic is low enough to continue a low spell, at its second step, or later.
    """

    spans: tuple[Floats, Floats, Floats]
    rows: list[checks.Rows]
    dispersion: checks.Dispersion
    silent: Bools
    usual: Floats
    lost_until: Ints
    most_lost: list[bool]
    suspect: list[bool]
    refused: list[bool]
    short_lists: list[bool]
    lists_fell: list[bool]
    ranks_off: list[bool]
    low: list[bool]
    low_again: list[bool]
    low_still: list[bool]

    @cached_property
    def suspect_degraded(self) -> list[bool]:
        """`suspect` while an alarm is open."""
        return self._suspect(c.LABELS_RATIO_DEGRADED, c.LABELS_RATIO_SETTLING)

    @cached_property
    def suspect_settling(self) -> list[bool]:
        """`suspect` while a new level is being learnt."""
        return self._suspect(c.LABELS_RATIO_SETTLING, c.NEXT_TO_NONE)

    @cached_property
    def worthless(self) -> list[bool]:
        """Whether every value is 0 despite labels."""
        found = checks.is_worthless(np.concatenate(self.spans, axis=1), with_labels=True)
        told: Bools = np.logical_or.reduce(found.reshape(3, -1), axis=0)
        return [bool(flag) for flag in told]

    def suspects_beyond(self, row: int, left: float) -> bool:
        """`suspect_degraded` of a row, where a worse model explains that only a share of the labels is `left`."""
        if not self.suspect_degraded[row]:
            return False
        step, short, day = (span[:, row : row + 1].copy() for span in self.spans)
        for sums in (step, short, day):
            sums[[checks.EXPECTED, checks.EXPECTED_LABELLED]] *= left
        limits = c.LABELS_RATIO_DEGRADED, c.LABELS_RATIO_SETTLING
        return bool(checks.labels_suspect((step, short, day), self.dispersion, *limits)[0])

    def _suspect(self, most: float, most_unseen: float) -> list[bool]:
        return checks.labels_suspect(self.spans, self.dispersion, most, most_unseen).tolist()


def _checked(
    settings: DriftSettings,
    levels: Levels,
    kept: Floats,
    whole: Floats,
    short: Floats,
    log: checks.LogShape,
    dispersion: checks.Dispersion,
    shifted: Callable[[], Floats],
    lost_until: Ints,
    most_lost: list[bool],
) -> DataChecks:
    count, few, many = short.shape[1], settings.few, settings.day
    spans = whole[:, -count:], short[:, :, 0], checks.rolling(whole, many, count)
    crowd = log.crowd
    refused, shown, ranked = checks.rolling(crowd[checks.REFUSED :], few, count)
    items, items_usual = (crowd[checks.SHOWN, -count:], shown), _usual(levels, SHOWN)
    first = _usual(levels, RANK_ONE)
    rows = [sums.T.tolist() for sums in spans]
    silent, usual = checks.silences(*kept[[checks.REQUESTS, checks.EXPECTED_REQUESTS], -count:])
    known = spans, rows, dispersion, silent, usual, lost_until, most_lost
    if checks.are_well(rows, items, items_usual, refused, ranked, first):
        return DataChecks(*known, *[[False] * count] * 8)
    in_day = partial(_in_day, crowd[checks.SHOWN], many, count)
    lists_fell = short_lists = checks.lists_short(spans, items, in_day, items_usual)
    if some(short_lists):
        sizes, sizes_before = kept[checks.REQUESTS, -count:], kept[checks.REQUESTS, :count]
        lists_fell = checks.lists_fell(sizes, items[0], sizes_before, crowd[checks.SHOWN, :count])
    firsts_in_day = partial(_in_day, crowd[checks.RANK_ONE], many, count)
    ranks_off = checks.ranks_off(spans[1:], ranked, firsts_in_day, first, log.rank_variance)
    many_refused = checks.rows_refused(spans[1], refused, _usual(levels, 3))
    low = checks.traffic_low(*spans[1:], dispersion, shifted)
    found = checks.labels_suspect(spans, dispersion), many_refused, short_lists, lists_fell, ranks_off, *low
    return DataChecks(*known, *(flags.tolist() for flags in found))


def _in_day(counts: Floats, many: int, count: int) -> Floats:
    return checks.rolling(counts[None], many, count)[0]


def _usual(levels: Levels, which: int) -> float:
    crowd = levels.memory.crowd
    return float(crowd[which] / crowd[0]) if crowd[0] > 0 else 0.0


def _shifted(settings: DriftSettings, state: DriftState, baseline: DriftBaseline, hours: Hours) -> Floats:
    """(2, T) share of the requests of three hours and of a day that is left if clocks were changed."""
    volume = (baseline.tables[VOLUME] * state.levels.ratios[VOLUME] * baseline.known).sum(axis=1)
    by_slot = [by_changed_clocks(volume, settings.step, steps) for steps in (settings.few, settings.day)]
    return np.stack(by_slot)[:, settings.slots(hours.starts)]


def _unlabelled(
    settings: DriftSettings, state: DriftState, window: Floats, short: Floats, dispersion: checks.Dispersion
) -> tuple[Bools, list[bool]]:
    """(T, S) slices whose labels are lost and T whether most are; `short`: (9, T, S) sums of three hours."""
    count, faults = short.shape[1], state.trouble
    few = checks.slices_short_of_labels(window[:, -count:], short)
    if not (some(few) or some_of(faults.lost_since)):
        return few, [False] * count
    longer = [checks.rolling(window, settings.steps(hours), count) for hours in c.THIN_HOURS]
    is_open = state.standing.open[1:]
    usual = np.where(is_open, c.SLICE_FEWEST, c.SLICE_FEWER) * checks.labels_of_others(longer[-1])
    found = checks.slices_unlabelled((window[:, -count:], short, *longer), dispersion, usual)
    was = (faults.lost_since > 0) & (faults.lost_until >= state.until + settings.lasting)
    left_out, most = checks.slices_left_out(found, was, faults.most_lost, is_open, usual, short, longer[-1])
    return left_out, most.tolist()


def _left_out(state: DriftState, flagged: Bools, ends: list[int], lasting: int) -> tuple[Ints, Floats]:
    was = state.trouble.lost_until
    if not (some(flagged) or some_of(was)):
        return np.zeros(flagged.shape, np.int64), np.concatenate([state.recent.sound, ~flagged])
    instants = np.array(ends)[:, None]
    lost_until = np.maximum(np.maximum.accumulate((instants + lasting) * flagged, axis=0), was)
    return lost_until, np.concatenate([state.recent.sound, (lost_until < instants) * 1.0])


# ---- all at once ---------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Everything computed for all T steps at once.

    Attributes:
        window, whole: (9, R + T, S) the day before and the steps, fields as in `data_checks`; (9, R + T) of all slices.
        busy: R + T requests that may be judged.
        sound: (R + T, S) 0 where a slice is left out because its labels are lost.
        crowd: (5, R + T) events, unmatched, refused, items shown, items at rank 1.
        tracked: (9, T, S) fields as in `levels`.
        mix: T relative effects of the mix on the mean.
        requests: (T, S), in the measure or not.
    """

    ends: list[int]
    window: Floats
    whole: Floats
    busy: list[float]
    sound: Floats
    crowd: Floats
    checked: DataChecks
    tracked: Floats
    mix: list[float]
    seen: StepEvidence
    requests: Floats
    threshold: EvidenceThreshold


def block_of(settings: DriftSettings, state: DriftState, baseline: DriftBaseline, hours: Hours) -> Block:
    """The block of some steps whose slices the state knows."""
    base = baseline.tables[:, settings.slots(hours.starts)]
    mean, share, volume = base * state.levels.ratios[:, None]
    known, size, served, count = baseline.of_known, hours.requests, hours.served, len(hours.starts)
    judged, usual, asked, shares = known(size), known(volume), known(served), np.minimum(share, 1.0)
    worth, expected_labelled = judged * mean, asked * shares
    of_usual = usual if settings.counts_unlabelled else usual * shares  # requests in the measure
    usually = of_usual * mean
    total, labelled = known(hours.total), known(hours.labelled)
    found_by_usual = total * hours.ideal / state.levels.ideal
    fields = [served, judged, total, worth, found_by_usual, labelled, expected_labelled, asked, usual]
    window, all_slices, crowd = _with_day_before(state, hours, np.array(fields))
    ends = [start + settings.step for start in hours.starts.tolist()]
    few, noise = settings.few, baseline.noise
    dispersion = checks.Dispersion(baseline.coverage_noise, baseline.volume_noise, baseline.is_label_all)
    by_slice, whole = checks.rolling(window, few, count), all_slices
    whole_now = whole[:, -count:] if settings.counts_unlabelled else None
    mix = _mix(whole_now, expected_labelled, of_usual, mean, usually)
    flagged, most_lost = _unlabelled(settings, state, window, by_slice, dispersion)
    lost_until, sound = _left_out(state, flagged, ends, settings.lasting)
    kept, is_lost, sound_now = without_lost(window, sound), sound == 0, sound[-count:]
    if kept is not window:
        by_slice, whole = checks.rolling(kept, few, count), np.add.reduce(kept, axis=2)
    short, shifted = units(by_slice), partial(_shifted, settings, state, baseline, hours)
    log = checks.LogShape(crowd, baseline.rank_variance)
    checked = _checked(settings, state.levels, kept, whole, short, log, dispersion, shifted, lost_until, most_lost)
    threshold = settings.thresholds(baseline.judged)
    past, squares = kept[checks.JUDGED : checks.FOUND + 1], known(hours.squares)
    of_model = [hours.total, size * base[0], hours.squares, hours.total * hours.ideal, hours.labelled, served * base[1]]
    tracked = np.array([*of_model, served, base[2], size])
    if kept is not window:
        squares = squares * sound_now
        tracked[:REQUESTS] *= sound_now
    variances = baseline.variance_of_known, noise.variance[None, 1:]
    beyond = doubt(baseline, worth, usually, state.mix.is_shifted)
    requests, total = past[:2, -count:]
    sums = SliceSums(requests, total, squares, known(mean), *variances, beyond)
    seen = alarms.see(sums, noise, baseline.judged, is_lost[-count:], short, past, threshold, ends, settings.hours)
    busy: list[float] = all_slices[checks.JUDGED].tolist()
    return Block(ends, window, all_slices, busy, sound, crowd, checked, tracked, mix, seen, served, threshold)


def _mix(whole: Floats | None, labelled: Floats, usual: Floats, mean: Floats, usual_worth: Floats) -> list[float]:
    """T effects of the mix, by (T, S) requests; `whole`: (9, T), None if only labelled requests are in the measure."""
    worth = np.add.reduce(usual_worth, axis=1)
    if whole is not None:
        return mix_effects(whole[checks.JUDGED], whole[checks.EXPECTED_REQUESTS], whole[checks.EXPECTED], worth)
    sizes, usual_sizes, worths = np.add.reduce([labelled, usual, labelled * mean], axis=2)
    return mix_effects(sizes, usual_sizes, worths, worth)


def _with_day_before(state: DriftState, hours: Hours, sums: Floats) -> tuple[Floats, Floats, Floats]:
    """`window`, `whole` and `crowd` of a block whose steps have (9, T, S) `sums`."""
    recent, whole = state.recent, np.add.reduce(sums, axis=2)
    both = (recent.sums, sums), (recent.whole, whole), (recent.crowd, hours.crowd)
    window, whole, crowd = (np.concatenate(pair, axis=1) for pair in both)
    return window, whole, crowd


def without_lost(window: Floats, sound: Floats) -> Floats:
    """(9, N, S) sums without what was judged where (N, S) `sound` is 0; the requests stay."""
    if not some(sound == 0):
        return window
    found = window.copy()
    found[checks.JUDGED : checks.EXPECTED_REQUESTS] *= sound
    return found


# ---- faults, one step after another --------------------------------------------------------------------------------


class FaultTracker:
    """Data faults of one block; `now` holds those after the last step, `usual` is a day's crowd as in `levels`."""

    def __init__(self, settings: DriftSettings, state: DriftState, baseline: DriftBaseline, block: Block) -> None:
        self.now = state.trouble
        self._settings = settings
        self._block = block
        self._baseline = baseline
        self._slices = state.slices
        self._fallen = state.standing.open
        self._settled = state.settled
        self._least_low = min(2, settings.few)
        self._most_silent = baseline.silence * np.log(
            c.BUDGET_HOURS / settings.hours * len(state.slices) / c.SILENCE_CHANCE
        )
        self._never = np.zeros(len(state.slices), np.int64)

    def step(self, row: int, fallen: AlarmStates | None) -> Kind | None:
        """The most severe data fault in a step; only label faults while a new level is learnt.

        `fallen`: the alarms before it; None if none is open.
        """
        was, checked, end = self.now, self._block.checked, self._block.ends[row]
        settled, until_later = self._settled, end + self._settings.lasting
        most_lost, refused = checked.most_lost[row], settled and checked.refused[row]
        # Refused rows shorten lists too; that cause is already known.
        short_until = until_later if settled and not refused and self._has_short_lists(row) else was.short_until
        goes_on = was.by_version and fallen is not None and bool(fallen.open[0])
        by_version = goes_on or self._may_be_by_version(row)
        self.now = was = replace(was, by_version=by_version)
        # Clicks on items that are no longer logged are missing too: suspect labels that begin now are the same fault.
        is_hidden = end <= short_until and not was.suspect_since
        are_sound = self._settings.are_labels_sound(end)
        lacks = not are_sound and (most_lost or self._suspects(row, fallen) or self._still_lacks(row))
        suspect = not is_hidden and lacks
        until = 0 if are_sound else until_later if suspect else was.suspect_until
        since = 0
        if end <= until:
            since = was.suspect_since or min(was.lost_since[was.lost_since > 0].tolist(), default=end)
        is_old = suspect and end - since >= c.COLLAPSED_DAYS * DAY
        collapsed = since > 0 and (was.collapsed or (is_old and self._lacks_labels(row)))
        is_low = checked.low[row] or (was.low == 1 and checked.low_again[row])
        is_low = is_low or (was.low >= self._least_low and checked.low_still[row])
        low = was.low + 1 if settled and is_low else 0
        missing, silence, silent = was.missing, was.silence, checked.silent[row]
        if some(silent) or some_of(silence):
            silence = np.where(silent, silence + checked.usual[row], 0.0)
            missing = np.where(silent & ((missing > 0) | (silence > self._most_silent)) & settled, missing + 1, 0)
        refused_until = until_later if refused else was.refused_until
        lost_until, lost_since = checked.lost_until[row], self._never
        if some(lost := end <= lost_until):
            lost_since = np.where(lost, np.where(was.lost_since > 0, was.lost_since, was.suspect_since or end), 0)
        worthless = bool(since) and (checked.worthless[row] if suspect else was.worthless)
        slices, held = (silence, missing, lost_since, lost_until), was.held and since > 0
        self.now = DataFaults(
            since, until, collapsed, refused_until, short_until, low, *slices, most_lost, worthless, held, by_version
        )
        return self._gravest(end)

    def explanation(self, row: int, window: Floats, unit: int) -> checks.Explanation:
        """What explains a unit's fall, in (9, N, S) sums; by slices without an alarm if these have most requests."""
        if self.share(row, ~self._fallen[1:]) > c.MOST_LOST:
            window = without_lost(window, ~self._fallen[1:] * np.ones(window.shape[1:]))
        return explanation(self._baseline, window, unit, self._block.checked.dispersion)

    def hold(self, row: int, since: int) -> Kind | None:
        """The most severe fault in the last step, whose labels explain a fall since the step that ended at `since`."""
        now, end = self.now, self._block.ends[row]
        until = end + self._settings.lasting
        self.now = replace(now, suspect_since=now.suspect_since or since, suspect_until=until, held=True)
        return self._gravest(end)

    def lacking_since(self, row: int) -> int:
        """End of the step of the last day, seconds, from which on labels most clearly lack as many as in all of it.

        Where labels come in two rates, the most likely change is where the sum of what is above their middle peaks.
        """
        day = self._block.window[:, row + 1 : row + 1 + self._settings.day].sum(axis=2)
        labelled, usual = day[checks.LABELLED], day[checks.EXPECTED_LABELLED]
        middle = (1 + labelled.sum() / max(usual.sum(), 1e-9)) / 2
        above = np.concatenate([[0.0], np.cumsum(labelled - middle * usual)[:-1]])
        return self._block.ends[row] - (self._settings.day - 1 - int(above.argmax())) * self._settings.step

    def _still_lacks(self, row: int) -> bool:
        """Whether a loss that was slow to show, or has lasted for a day, continues: a few hours may hide it."""
        now, (_, short, day) = self.now, (sums[:, row] for sums in self._block.checked.spans)
        if not (now.held or (now.suspect_since > 0 and self._block.ends[row] - now.suspect_since >= DAY)):
            return False
        window = self._block.window[:, row + 1 : row + 1 + self._settings.day]
        lately = [window[:, -self._settings.steps(hours) :].sum(axis=(1, 2)) for hours in c.THIN_HOURS[:-1]]
        lacks = checks.labels_still_lack(day) and not any(checks.labels_came_back(s, day) for s in (short, *lately))
        if not (lacks or (now.held and checks.labels_still_lack(short))):
            return False
        return self.explanation(row, window, 0) != "model"

    def _gravest(self, end: int) -> Kind | None:
        now = self.now
        if end <= now.short_until:
            return "positions_suspect"
        if now.suspect_since:
            return "labels_collapsed" if now.collapsed else "labels_suspect"
        if end <= now.refused_until:
            return "rows_refused"
        if now.low >= self._least_low:
            return "traffic_low"
        if some_of(now.lost_since):
            is_long = end - int(now.lost_since[now.lost_since > 0].min()) >= c.COLLAPSED_DAYS * DAY
            return "slice_labels_collapsed" if is_long else "slice_labels_suspect"
        return "slice_missing" if self.missing() else None

    def _has_short_lists(self, row: int) -> bool:
        checked = self._block.checked
        is_short = checked.short_lists[row] and (
            checked.lists_fell[row] or self._block.ends[row] <= self.now.short_until
        )
        return is_short or checked.ranks_off[row]

    def _suspects(self, row: int, fallen: AlarmStates | None) -> bool:
        checked = self._block.checked
        if not self._settled:
            return checked.suspect_settling[row]
        if fallen is None or (not fallen.open[0] and self.share(row, ~fallen.open[1:]) > c.NEARLY_ALL):
            return (checked.suspect_degraded if self.now.by_version else checked.suspect)[row]
        # Who finds less clicks less, about as much less as the mean fell.
        return checked.suspects_beyond(row, 1 + min(float(fallen.effect[0]), 0.0) if fallen.open[0] else 1.0)

    def _may_be_by_version(self, row: int) -> bool:
        """Whether model versions gained as large a share of the requests as lacks labels, while these were sound."""
        short = self._block.checked.rows[1][row]
        lacking = short[checks.EXPECTED_LABELLED] - short[checks.LABELLED]
        if self.now.suspect_since or lacking <= 0:
            return False
        return self._settings.rolled_out(self._block.ends[row]) * short[checks.EXPECTED_LABELLED] >= lacking

    def share(self, row: int, slices: Bools) -> float:
        """Share of the last day's requests that some of the slices have."""
        size = self._block.window[checks.REQUESTS, row + 1 : row + 1 + self._settings.day].sum(axis=0)
        return ratio(size[slices].sum(), size.sum()) or 0.0

    def _lacks_labels(self, row: int) -> bool:
        """Whether most labels of the step itself are missing, and clearly of the day: a thin day has few by chance."""
        step, _, day = (sums[:, row] for sums in self._block.checked.spans)
        return all(
            sums[checks.TOTAL] == 0 < sums[checks.EXPECTED] or sums[checks.LABELLED] + errors * half**0.5 < half
            for sums, errors in ((step, 0.0), (day, c.STANDARD_ERRORS))
            for half in [c.LABELS_RATIO_SETTLING * float(sums[checks.EXPECTED_LABELLED])]
        )

    def _last_day(self, row: int, since: int) -> slice:
        steps = min((self._block.ends[row] - since) // self._settings.step + 1, self._settings.day)
        end = self._settings.day + row + 1
        return slice(end - steps, end)

    def has_fewer_labels(self, row: int) -> bool:
        """Whether fewer of the last day's requests have a label, where those without one are in no measure."""
        if self._settings.counts_unlabelled:
            return False
        checked, (_, short, day) = self._block.checked, (sums[:, [row]] for sums in self._block.checked.spans)
        return bool(checks.labels_fewer(short, day, checked.dispersion)[0])

    def missing(self) -> tuple[str, ...]:
        """Slices missing for less than a week."""
        steps = self.now.missing
        if not some_of(steps):
            return ()
        told = (steps >= 2) & (steps * self._settings.step < WEEK)
        return tuple(self._slices[i] for i in np.flatnonzero(told))

    def lost(self, row: int) -> tuple[SliceLabelLoss, ...]:
        """The slices that have lost their labels, with what is left of them."""
        if not some_of(self.now.lost_since):
            return ()
        found = list[SliceLabelLoss]()
        for i in np.flatnonzero(self.now.lost_since).tolist():
            since = int(self.now.lost_since[i])
            sums = self._block.window[:, self._last_day(row, since), i].sum(axis=1)
            found.append(SliceLabelLoss(self._slices[i], since, *_coverage(sums)))
        return tuple(found)

    def labels(self, row: int, usual: Floats) -> LabelLoss:
        """The label loss since labels became suspect, over at most a day."""
        block, since = self._block, self.now.suspect_since
        span = self._last_day(row, since)
        sums, crowd = block.window[:, span].sum(axis=(1, 2)), block.crowd[:, span].sum(axis=1)
        unmatched, events = crowd[checks.UNMATCHED], crowd[checks.UNMATCHED] + crowd[checks.EVENTS]
        return LabelLoss(
            since,
            *_coverage(sums),
            ratio(events, sums[checks.REQUESTS]),
            ratio(usual[2] + usual[1], usual[0]),
            ratio(unmatched, events),
            ratio(usual[2], usual[2] + usual[1]),
            (span.stop - span.start) * self._settings.step,
            self.now.worthless,
        )

    def of_rows(self, row: int, kind: Kind, usual: Floats) -> dict[str, Any]:
        """Fields of a `Verdict` that only refused rows, or lists and ranks other than usual, have."""
        if kind == "rows_refused":
            span, end = self._bad(row, self.now.refused_until)
            return self._refused(span, usual) | {"fault_end": end}
        if kind == "positions_suspect":
            span, end = self._bad(row, self.now.short_until)
            return self._shown(span, usual) | {"fault_end": end}
        return {}

    def _shown(self, span: slice, usual: Floats) -> dict[str, Any]:
        """Items per request in the last step of some, or in all if it is thin, and usually; and those at rank 1."""
        block = self._block
        items, requests = block.crowd[checks.SHOWN, span], block.window[checks.REQUESTS, span].sum(axis=1)
        few = slice(-1, None) if requests[-1] >= c.ENOUGH_REQUESTS else slice(None)
        size, ranked = requests[few].sum(), block.crowd[checks.RANK_ONE, span][few].sum()
        return {
            "shown": ratio(items[few].sum(), size),
            "shown_before": ratio(usual[SHOWN], usual[0]),
            "rank_one": ratio(ranked, size),
            "rank_one_before": ratio(usual[RANK_ONE], usual[0]),
        }

    def _refused(self, span: slice, usual: Floats) -> dict[str, Any]:
        """Refused rows in some steps, and the usual number for as many requests."""
        block, each = self._block, ratio(usual[3], usual[0])
        seen, size = block.crowd[checks.REFUSED, span].sum(), block.window[checks.REQUESTS, span].sum()
        return {"refused": float(seen), "refused_before": None if each is None else each * float(size)}

    def _bad(self, row: int, until: int) -> tuple[slice, int]:
        """The last three hours that were unusable on their own, for a fault that lasts until `until`; their end, s."""
        few, step, now = self._settings.few, self._settings.step, self._block.ends[row]
        since = max(few - 1 - (until - now) // step, 0)
        end = max(self._settings.day + row + 1 - since, few)
        return slice(end - few, end), now - since * step


def explanation(
    baseline: DriftBaseline, window: Floats, unit: int, spread: checks.Dispersion, least: float = 0.0
) -> checks.Explanation:
    """What explains the fall of a unit (0: overall) in (9, N, S) sums of N steps; `least` as in `data_checks`."""
    sums = window.sum(axis=1)
    worth, labelled = sums[checks.EXPECTED], np.maximum(sums[checks.LABELLED], 1.0)
    share = np.clip(sums[checks.EXPECTED_LABELLED] / np.maximum(sums[checks.SERVED], 1e-9), 1e-9, 1.0)
    mean = baseline.quality.level / share
    variance = np.maximum(baseline.quality.variance / share - (1 - share) * mean**2, c.LEAST_VARIANCE)
    of_slices = variance / np.maximum(mean, 1e-9) ** 2 / labelled
    of_all = (worth**2 * of_slices).sum() / max(float(worth.sum()), 1e-9) ** 2
    sampling = np.array([of_all, of_slices[max(unit, 1) - 1]])
    error = np.sqrt(sampling + baseline.noise.long_run[[0, unit]] / window.shape[1])
    return checks.explanation(sums, unit, spread, error, least)


def _coverage(sums: Floats) -> tuple[float | None, float | None]:
    served = sums[checks.SERVED]
    return ratio(sums[checks.LABELLED], served), ratio(sums[checks.EXPECTED_LABELLED], served)
