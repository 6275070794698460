"""Judges the steps of one day one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from monitor.arrays import Bools, Floats
from monitor.drift import alarms, sudden_falls
from monitor.drift import constants as c
from monitor.drift import data_checks as checks
from monitor.drift.alarms import AlarmStates
from monitor.drift.baseline import DriftBaseline
from monitor.drift.block import FaultTracker, block_of, explanation, without_lost
from monitor.drift.levels import QUALITY, REQUESTS
from monitor.drift.new_level import days_since, lacks_to_settle
from monitor.drift.noise import mix_weight
from monitor.drift.series import Hours, all_of, ratio, some, units
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState, MixEffect, RecentSteps
from monitor.drift.verdicts import SLICE_KINDS, Alarm, AlarmChange, Kind, Split, Verdict, split
from monitor.units import DAY


def judge_block(
    settings: DriftSettings, state: DriftState, baseline: DriftBaseline, hours: Hours
) -> tuple[list[Verdict], DriftState]:
    """The verdicts on one block and the state after it; the state knows its slices.

    The precomputed block depends on the open alarms, the mix shift and the labels that hold alarms back, so it is cut
    where these change.
    """
    judge = _StepJudge(settings, state, baseline, hours)
    verdicts, last = list[Verdict](), len(judge.block.ends) - 1
    for row in range(last + 1):
        verdicts.append(judge.step(row))
        if (verdicts[-1].changes or verdicts[-1].mix_shifted != state.mix.is_shifted or judge.held) and row < last:
            first, then = judge_block(settings, state, baseline, hours.rows(0, row + 1))
            rest, end = judge_block(settings, then, baseline, hours.rows(row + 1, last + 1))
            return [*first, *rest], end
    return verdicts, judge.state(hours)


class _StepJudge:
    """What changes from step to step; `held`: whether labels explained an alarm that opened in the last step."""

    def __init__(self, settings: DriftSettings, state: DriftState, baseline: DriftBaseline, hours: Hours) -> None:
        self.block = block = block_of(settings, state, baseline, hours)
        self.held = False
        self._settings = settings
        self._was = state
        self._baseline = baseline
        self._names = ("", *state.slices)
        self._standing = state.standing
        self._is_open = state.standing.is_any_open
        self._faults = FaultTracker(settings, state, baseline, block)
        self._mix = state.mix
        self._is_shifted = False
        self._levels = state.levels
        self._reference = state.reference
        self._today = state.levels.today.sums.copy()
        self._crowd = state.levels.today.crowd.copy()
        self._is_bad = np.zeros(len(block.ends), bool)
        self._busy_at = state.busy_at
        self._least_mix = max(c.LEAST_CHANGE, c.MIX_DEVIATIONS * baseline.mix_noise)
        self._step, self._short, self._day = block.checked.rows

    def step(self, row: int) -> Verdict:
        settled, end, was_low = self._was.settled, self.block.ends[row], self._faults.now.low
        kind = self._faults.step(row, self._standing if self._is_open else None)
        is_masked = kind is not None and kind not in SLICE_KINDS
        before, was_open = self._standing, self._is_open
        gone: tuple[int, ...] = ()
        if is_masked:
            self._is_bad[row] = True
            self._standing = alarms.unfit(before, end - self._settings.step, end)
        elif settled:  # while settling, whatever comes becomes the level
            if was_low * self._settings.step >= DAY:
                before = alarms.after_reset(before, end - self._settings.step)
            self._standing = alarms.step(before, self.block.seen, row, self.block.threshold)
            if self._standing.is_any_open:
                held, gone = self._explained(row, before)
                kind, is_masked = held or kind, held is not None
            self._is_open = self._standing.is_any_open
            if not is_masked:
                self._follow_mix(row)
        if self._step[row][checks.REQUESTS] > 0:
            self._busy_at = end
        gone = (*gone, *self._gone(row)) if was_open else ()
        changes = self._changes(row, before, gone) if was_open or self._is_open else ()
        found = self._opened(row, before) if any(change.became == "firing" for change in changes) else None
        self._track(row, kind if is_masked else None)
        return self._verdict(row, kind, changes, found)

    def state(self, hours: Hours) -> DriftState:
        block, was, reference, steps = self.block, self._levels.today, self._reference, self._settings.day
        return self._was.going_on(
            until=block.ends[-1],
            busy_at=self._busy_at,
            reference=None if reference is None else reference.with_more(self._as_expected(hours), 1.0 - self._is_bad),
            levels=self._levels.with_today(self._today, self._crowd, was.is_shifted or self._is_shifted),
            recent=RecentSteps.of(
                block.window[:, -steps:], block.crowd[:, -steps:], block.sound[-steps:], block.whole[:, -steps:]
            ),
            standing=self._standing,
            trouble=self._faults.now,
            mix=self._mix,
        )

    def _as_expected(self, hours: Hours) -> Hours:
        """The steps with the expectation for slices that lost their labels, so a reference learns nothing of them."""
        sound = self.block.sound[-len(hours.starts) :]
        if sound.all():
            return hours
        _, judged, _, expected, _, _, labelled, _, _ = self.block.window[:, -len(hours.starts) :]
        labelled = np.where(sound, hours.labelled, labelled)
        if not self._settings.counts_unlabelled:
            return replace(hours, labelled=labelled)
        mean = np.divide(expected, judged, out=np.zeros_like(expected), where=judged > 0)
        squares = np.where(sound, hours.squares, judged * (self._baseline.quality.variance + mean**2))
        return replace(hours, total=np.where(sound, hours.total, expected), labelled=labelled, squares=squares)

    # ---- alarms ----------------------------------------------------------------------------------------------------

    def _until(self, row: int, steps: int | None = None) -> slice:
        day = self._settings.day
        end = day + row + 1
        return slice(end - (day if steps is None else min(max(steps, 1), day)), end)

    def _since(self, row: int, since: int) -> slice:
        return self._until(row, (self.block.ends[row] - since) // self._settings.step)

    def _kept_window(self, span: slice) -> Floats:
        return without_lost(self.block.window[:, span], self.block.sound[span])

    def _explained(self, row: int, before: AlarmStates) -> tuple[Kind | None, tuple[int, ...]]:
        """Ends alarms that missing labels explain; returns that data fault, and the units whose alarm was open."""
        held, gone = self._held_back(row, before)
        return (held, gone) if held is not None else self._handed_over(row)

    def _held_back(self, row: int, before: AlarmStates) -> tuple[Kind | None, tuple[int, ...]]:
        """Takes back alarms that missing labels explain; returns that data fault, and those open before."""
        new = self._standing.open & ~before.open
        if not some(new) or not self._is_another_fall(row, new, before):
            return None, ()
        found = {self._explanation(row, unit) for unit in np.flatnonzero(new).tolist()}
        end, since = self.block.ends[row], int(self._standing.since[new].min())
        if not found & {"labels", "both"}:
            if found == {"unclear"} and end - since <= DAY:
                seen = replace(self.block.seen, judged=np.zeros(len(new), bool))
                self._standing = alarms.step(before, seen, row, self.block.threshold)
            return None, ()
        self.held = self._is_bad[row] = True
        gone = tuple(u for u in np.flatnonzero(before.open).tolist() if self._explanation(row, u, True) == "labels")
        kept = alarms.forgotten(alarms.unfit(before, since, end), ~before.open, end)
        self._standing = alarms.withdrawn(kept, np.isin(np.arange(len(new)), gone), end)
        return self._faults.hold(row, since + self._settings.step), gone

    def _is_another_fall(self, row: int, new: Bools, before: AlarmStates) -> bool:
        """Whether the `new` falls began after any open alarm, and most requests are in slices without one.

        Else people who find less leave fewer labels, which explains what is missing.
        """
        if not before.is_any_open:
            return True
        is_later = self._standing.since[new].min() > before.opened_at[before.open].min()
        return bool(is_later) and self._faults.share(row, ~before.open[1:]) > c.MOST_LOST

    def _handed_over(self, row: int) -> tuple[Kind | None, tuple[int, ...]]:
        """Withdraws all alarms if missing labels surely explain the last day of all traffic, fit and fallen throughout.

        Labels that go missing little by little look like a worse model at first. If what is left is surely worth less,
        the alarms stay open: a worse model may be all there is, as people who find nothing leave no label.
        """
        now, end = self._standing, self.block.ends[row]
        begun = max(int(now.fit_since[0]), int(now.since[0]))
        if not now.open[0] or end - begun < DAY or self._may_be_by_model(row):
            return None, ()
        day, spread = self._kept_window(self._until(row)), self.block.checked.dispersion
        if (found := explanation(self._baseline, day, 0, spread, c.SURE_LOG)) not in ("labels", "both"):
            return None, ()
        # A worse slice has fewer labels anyway: they must be missing without it too.
        sums = day.sum(axis=1)
        others = (sums.sum(axis=1) - sums[:, i] for i in np.flatnonzero(now.open[1:]).tolist() if sums.shape[1] > 1)
        if not all(checks.labels_surely_lack(rest, spread) for rest in others):
            return None, ()
        gone = now.open if found == "labels" else np.zeros_like(now.open)
        self._standing = alarms.withdrawn(alarms.unfit(now, int(now.since[0]), end), gone | ~now.open, end)
        self.held = self._is_bad[row] = True
        return self._faults.hold(row, self._faults.lacking_since(row)), tuple(np.flatnonzero(gone).tolist())

    def _explanation(self, row: int, unit: int, with_fallen: bool = False) -> checks.Explanation:
        """What explains the fall of a unit; `with_fallen`: by all slices, not by those without an alarm before."""
        if self._may_be_by_model(row):
            return "model"
        since = min(int(self._standing.since[unit]), int(self._standing.weighed_since[unit]))
        window = self._kept_window(self._since(row, since))
        if with_fallen:
            return explanation(self._baseline, window, unit, self.block.checked.dispersion)
        return self._faults.explanation(row, window, unit)

    def _may_be_by_model(self, row: int) -> bool:
        """Whether fewer labels clear no model: they are known to be there, or a new version began with the loss."""
        return self._faults.now.by_version or self._settings.are_labels_sound(self.block.ends[row])

    def _gone(self, row: int) -> tuple[int, ...]:
        """Withdraws alarms of slices without a request for a day while others had some; returns these units."""
        is_open = self._standing.open
        if not some(is_open[1:]):
            return ()
        day = self.block.window[:, self._until(row)].sum(axis=1)
        seen, usual = day[checks.REQUESTS], day[checks.EXPECTED_REQUESTS]
        is_whole = self.block.window[checks.EXPECTED_REQUESTS, row + 1].any()  # false after a gap
        goes_on = is_whole and seen.sum() >= c.TRAFFIC_RATIO * usual[seen > 0].sum() > 0
        which = is_open & np.concatenate([[False], (seen == 0) & (usual >= c.GONE_EXPECTED) & goes_on])
        if some(which):
            self._standing = alarms.withdrawn(self._standing, which, self.block.ends[row])
            self._is_open = self._standing.is_any_open
        return tuple(np.flatnonzero(which).tolist())

    def _follow_mix(self, row: int) -> None:
        count = self._step[row][checks.JUDGED]
        if count > 0:
            weight, was = mix_weight(self._settings.step), self._mix
            over = was.over + weight * (self.block.mix[row] * count - was.over)
            under = was.under + weight * (count - was.under)
            least = self._least_mix * (c.TOLD_UNTIL if was.is_shifted else 1.0)
            self._mix = MixEffect(over, under, abs(over) > least * under)
            self._is_shifted |= self._mix.is_shifted

    def _changes(self, row: int, before: AlarmStates, gone: tuple[int, ...]) -> tuple[AlarmChange, ...]:
        now = self._standing
        return tuple(
            AlarmChange(self._names[unit], "firing")
            if now.opened_at[unit]
            else AlarmChange(self._names[unit], "withdrawn")
            if unit in gone
            else self._resolved(row, unit)
            for unit in np.flatnonzero(before.opened_at != now.opened_at).tolist()
        )

    def _resolved(self, row: int, unit: int) -> AlarmChange:
        means, tolerated = _means(self._standing.risen[unit]), float(self._baseline.noise.tolerated[unit])
        below = self._below(row, unit, *means[:2])
        since = _back_since(self._settings, self._standing, unit)
        return AlarmChange(self._names[unit], "resolved", since, *means, tolerated, below)

    def _below(self, row: int, unit: int, value: float | None, expected: float | None) -> float | None:
        """Relative change of a mean from the reference; None if small, or maybe chance and no decay was reported."""
        worth = self.block.window[checks.EXPECTED, self._until(row)].sum(axis=0)
        at_reference = worth / np.maximum(self._was.levels.ratios[QUALITY], 1e-9)
        now, then = units(worth)[unit], units(at_reference)[unit]
        if value is None or not expected or not now > 0:
            return None
        change = value / (expected * float(then / now)) - 1
        requests, spent = self._standing.risen[unit, 0], self.block.ends[row] - int(self._standing.back_since[unit])
        error = self._error(row, unit, float(requests), spent // self._settings.step + 1)
        is_clear = change + c.STANDARD_ERRORS * error < 0 or self._was.decayed >= c.LASTING_DAYS
        return change if is_clear and change < -least_decay(self._was, self._baseline) else None

    def _error(self, row: int, unit: int, requests: float, steps: int) -> float:
        whole, noise = self.block.seen.whole, self._baseline.noise
        variance = float(whole.variance[row, unit]) / max(float(whole.level[row, unit]), 1e-9) ** 2
        return (variance / max(requests, 1.0) + float(noise.long_run[unit]) / max(steps, 1)) ** 0.5

    def _opened(self, row: int, before: AlarmStates) -> Split:
        """Removes the drop from the tracked days, and returns the split of the fall."""
        new = self._standing.open & ~before.open
        now = self._standing = self._dated(self._standing, new)
        since, kept = int(now.since[new].min()), self._kept()
        self._levels = self._levels.without(since // DAY, kept)
        self._today[:REQUESTS] *= kept
        if self._reference is not None:
            self._reference = self._reference.without(since)
            starts = np.array(self.block.ends[: row + 1]) - self._settings.step
            self._is_bad[: row + 1][starts >= since] = True
        window = self._kept_window(self._since(row, int(now.began[new, 0].min())))
        return _split(self._settings, self._baseline, self._names[1:], window)

    def _dated(self, now: AlarmStates, new: Bools) -> AlarmStates:
        """Moves the earliest beginning of (U,) `new` falls back by what the days before show."""
        levels, began, noise = self._levels, now.began.copy(), self._baseline.noise
        earliest = sudden_falls.with_days_before(
            began[:, 1], now.effect, levels.pending, levels.ratios[QUALITY], noise, self._settings.day
        )
        began[new, 1] = earliest[new]
        return replace(now, began=began)

    def _kept(self) -> Floats:
        is_open = self._standing.open
        return np.where(is_open[1:] | is_open[0], 0.0, 1.0)

    def _track(self, row: int, masked: Kind | None) -> None:
        """Adds a step to the day's sums; long refused rows and shorter lists become usual, or judging would stop."""
        new, block = self.block.tracked[:, row], self.block
        self._today[REQUESTS:] += new[REQUESTS:]
        if masked in (None, "rows_refused", "positions_suspect"):
            self._crowd[0] += self._step[row][checks.REQUESTS]
            self._crowd[1:] += block.crowd[:, block.crowd.shape[1] - len(block.ends) + row]
        if masked is not None:
            return
        if self._is_open:
            self._today[:REQUESTS] += new[:REQUESTS] * self._kept()
            self._is_bad[row] = True
        else:
            self._today[:REQUESTS] += new[:REQUESTS]

    # ---- the verdict -----------------------------------------------------------------------------------------------

    def _verdict(self, row: int, kind: Kind | None, changes: tuple[AlarmChange, ...], found: Split | None) -> Verdict:
        day, settled = self._day[row], self._was.settled
        alarms_open = _alarms(self._settings, self._names, self._standing, self._baseline) if self._is_open else ()
        judged, served, usual = day[checks.JUDGED], day[checks.SERVED], self._levels.memory.crowd
        is_known = settled and judged > 0
        said: Kind = kind or ("degraded" if alarms_open else "healthy" if is_known else "not_enough_data")
        span, hours = (self._short[row], c.SHORT_HOURS) if self._is_by_hours(row, said) else (day, 24)
        return Verdict(
            self.block.ends[row],
            said,
            alarms_open,
            changes,
            self._pending(row),
            day[checks.TOTAL] / judged if judged else None,
            day[checks.EXPECTED] / judged if judged and settled else None,
            span[checks.REQUESTS],
            span[checks.EXPECTED_REQUESTS],
            day[checks.LABELLED] / served if served else None,
            day[checks.EXPECTED_LABELLED] / served if served else None,
            self._mix.is_shifted,
            self._mix.effect,
            self._faults.missing(),
            self._faults.labels(row, usual) if said in ("labels_suspect", "labels_collapsed") else None,
            found,
            self._was.improved >= c.LASTING_DAYS,
            self._baseline.days,
            self._lacks(row),
            self._settings.steps(hours) * self._settings.step,
            self._faults.lost(row),
            self._observed_span(row),
            self._was.decayed >= c.LASTING_DAYS and not alarms_open,
            self._was.moved if settled else None,
            self._was.labels_moved if settled else None,
            self._unjudged(row),
            **self._faults.of_rows(row, said, usual),
            fewer_labels=settled and self._faults.has_fewer_labels(row),
        )

    def _is_by_hours(self, row: int, said: Kind) -> bool:
        """Whether the verdict reports the traffic of three hours, not of a day."""
        checked = self.block.checked
        is_still_low = said == "traffic_low" and checked.low_still[row] and not checked.low[row]
        is_thick = self._short[row][checks.EXPECTED_REQUESTS] >= c.ENOUGH_REQUESTS
        return said in ("rows_refused", "positions_suspect") or is_thick or is_still_low

    def _unjudged(self, row: int) -> float:
        known = self._baseline.known
        if not self._was.settled or all_of(known):
            return 0.0
        came = self.block.window[checks.REQUESTS, self._until(row)].sum(axis=0)
        return ratio(came[~known].sum(), came.sum()) or 0.0

    def _observed_span(self, row: int) -> int:
        """Seconds since the first judged request of the last day; 0 without any."""
        end = self._settings.day + row + 1
        first = next((at for at in range(row + 1, end) if self.block.busy[at] > 0), end)
        return (end - first) * self._settings.step

    def _lacks(self, row: int) -> str:
        days, whole = self._baseline.days, self._settings.reference / DAY
        if not self._was.settled:
            return lacks_to_settle(self._was, self.block.ends[row])
        if not self._day[row][checks.JUDGED]:
            if self._day[row][checks.SERVED]:
                return "labels: no request has had one for a day"
            if not self.block.window[checks.REQUESTS, self._until(row)].any():
                return "requests: there have been none for a day"
            least = self._settings.least_reference / DAY
            return f"requests in a slice with a baseline, for a day; a new one has its own after {least:.0f} days"
        if not self._was.fits:
            since = days_since(self._was, self.block.ends[row])
            return f"a whole reference since the new level began: {since} of {whole:.0f} days"
        if self._reference is not None:
            due = self._was.began + self._settings.fits_after[self._was.fits] - self.block.ends[row]
            again = "once no alarm is open" if self._is_open else f"in {max(-(-due // DAY), 1)} d"
            return f"a whole reference: {days:.0f} of {whole:.0f} days, fitted again {again}"
        if days >= c.NEARLY_ALL * whole:
            return ""
        lost = f"{whole - days:.0f} of {whole:.0f} days of a reference, permanently"
        return f"{lost}: rankmon baseline begin starts learning a new one"

    def _pending(self, row: int) -> tuple[str, ...]:
        now = self._standing
        which = now.score >= self.block.threshold.half
        if not some(which):
            return ()
        which &= ~now.open & self.block.seen.judged & ~alarms.finds_more(now, self.block.seen, row)
        return tuple(self._names[u] for u in np.flatnonzero(which))


def lasting(settings: DriftSettings, state: DriftState, baseline: DriftBaseline) -> dict[str, Any]:
    """Fields of a `Verdict` that are known without its step: of the open alarms, the baseline and the level."""
    alarms_open = _alarms(settings, ("", *state.slices), state.standing, baseline)
    return {
        "alarms": alarms_open,
        "mix_shifted": state.mix.is_shifted,
        "mix_effect": state.mix.effect,
        "reference_days": baseline.days,
        "improved": state.improved >= c.LASTING_DAYS,
        "decayed": state.decayed >= c.LASTING_DAYS and not alarms_open,
        "moved": state.moved if state.settled else None,
        "labels_moved": state.labels_moved if state.settled else None,
    }


def _alarms(
    settings: DriftSettings, names: Sequence[str], now: AlarmStates, baseline: DriftBaseline
) -> tuple[Alarm, ...]:
    weight, told = now.score / settings.thresholds(baseline.judged).each, now.told
    tolerated, began = baseline.noise.tolerated, now.began.tolist()
    return tuple(
        Alarm(
            names[u],
            int(now.since[u]),
            int(now.opened_at[u]),
            _relative(told[u]),
            float(weight[u]),
            float(tolerated[u]),
            *_means(told[u]),
            _back_since(settings, now, u),
            began[u][0],
            (began[u][1], began[u][2]),
            float(now.back[u]),
        )
        for u in np.flatnonzero(now.opened_at).tolist()
    )


def _back_since(settings: DriftSettings, now: AlarmStates, unit: int) -> int | None:
    end = int(now.back_since[unit])
    return end - settings.step if end else None


def least_decay(state: DriftState, baseline: DriftBaseline) -> float:
    """Relative fall below the reference that counts as a decay; lower while one lasts."""
    least = max(c.DECAY, float(baseline.noise.tolerated[0]))
    return least * (c.TOLD_UNTIL if state.decayed >= c.LASTING_DAYS else 1.0)


def _means(sums: Floats) -> tuple[float | None, float | None, int]:
    requests, total, expected, *_ = sums.tolist()
    return ratio(total, requests), ratio(expected, requests), round(requests)


def _relative(sums: Floats) -> float:
    _, total, expected, *_ = sums.tolist()
    return float(total / expected - 1) if expected > 0 else 0.0


def _split(settings: DriftSettings, baseline: DriftBaseline, slices: tuple[str, ...], window: Floats) -> Split:
    sums = window.sum(axis=1)
    size, level = sums[checks.JUDGED], baseline.quality.level
    has = size > 0
    before = np.divide(sums[checks.EXPECTED], size, out=level * baseline.known, where=has)
    value = np.divide(sums[checks.TOTAL], size, out=before.copy(), where=has)
    usual = sums[checks.EXPECTED_REQUESTS] * baseline.known
    if not settings.counts_unlabelled:
        labelled, served = sums[checks.EXPECTED_LABELLED], sums[checks.SERVED]
        usual *= np.divide(labelled, served, out=np.clip(baseline.coverage.level, 0, 1), where=served > 0)
    shares = usual / max(float(usual.sum()), 1e-9), size / max(float(size.sum()), 1.0)
    common = np.minimum(baseline.noise.long_run[1:] / window.shape[1], baseline.noise.step_variance[1:]) * before**2
    error = np.sqrt(baseline.quality.variance / np.maximum(size, 1.0) + common)
    return split(slices, shares, (before, value), np.where(has, error, 0.0))
