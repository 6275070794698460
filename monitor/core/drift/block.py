"""Some steps of one day, judged with one baseline at one level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from monitor.core.drift import alarms, gates
from monitor.core.drift.alarms import Seen, Standing
from monitor.core.drift.baseline import Baseline, mix_effects, mix_weight
from monitor.core.drift.beginning import SETTLING_DAYS, days_since
from monitor.core.drift.diagnosis import Split, split
from monitor.core.drift.evidence import Sums, score
from monitor.core.drift.levels import REQUESTS, Levels
from monitor.core.drift.seasons import slots
from monitor.core.drift.series import DAY, Bools, Floats, Hours
from monitor.core.drift.settings import Settings
from monitor.core.drift.state import Mix, Recent, State, Trouble
from monitor.core.drift.verdicts import Alarm, Change, Kind, Labels, Verdict

SHORT_HOURS, DAY_HOURS = 3, 24
COLLAPSED = DAY
"""Labels that have been suspect for so long are no passing fault."""
GONE = 7 * DAY
"""A slice that has been missing for so long is told no more."""
LEAST_MIX, MIX_DEVIATIONS, MIX_BACK = 0.02, 4.5, 0.6
IMPROVED_DAYS = 7
ENOUGH_OF_REFERENCE = 0.9


@dataclass(frozen=True)
class Block:
    """What is worked out for all T steps at once.

    Attributes:
        window: (7, R + T, S) the day before and the steps, fields as in `gates`.
        crowd: (3, R + T) events, unmatched, refused.
        per_step, short, day: (7, T) sums of a step, of three hours, of a day.
        tracked: (7, T, S) fields as in `levels`.
        mix: T relative effects of the mix on the mean.
        seen: what the units are judged on.
        spread: of coverage and traffic.
        suspect, refused, low: T gates.
        missing: (T, S) slices that have lost their requests.
        requests: (T, S)
    """

    ends: list[int]
    window: Floats
    crowd: Floats
    per_step: Floats
    short: Floats
    day: Floats
    tracked: Floats
    mix: list[float]
    seen: Seen
    spread: gates.Spread
    suspect: list[bool]
    refused: list[bool]
    low: list[bool]
    missing: Bools
    requests: Floats
    threshold: Floats

    @cached_property
    def suspect_degraded(self) -> list[bool]:
        """T: as `suspect`, while an alarm is open."""
        spans = (self.per_step, self.short, self.day)
        found: list[bool] = gates.labels_suspect(spans, self.spread, gates.LABELS_RATIO_DEGRADED).tolist()
        return found


def follow(settings: Settings, state: State, found: Baseline, hours: Hours) -> tuple[list[Verdict], State]:
    """Judge the steps of one block; the state knows their slices."""
    block = _block(settings, state, found, hours)
    going = _Going(settings, state, found, block)
    verdicts = [going.step(row) for row in range(len(block.ends))]
    return verdicts, going.state(hours)


# ---- for all steps at once -----------------------------------------------------------------------------------------


def _block(settings: Settings, state: State, found: Baseline, hours: Hours) -> Block:
    base = found.tables[:, slots(hours.starts, settings.step)]
    mean, share, volume = base * state.levels.ratios[:, None, :]
    share = np.minimum(share, 1.0)
    size, known = hours.requests, found.known
    judged = size * known
    fields = [size, judged, hours.total * known, judged * mean, hours.labelled * known, judged * share, volume * known]
    window = np.concatenate([state.recent.sums, np.array(fields)], axis=1)
    crowd = np.concatenate([state.recent.crowd, np.array([hours.events, hours.unmatched, hours.refused])], axis=1)
    count = len(hours.starts)
    few, many = settings.steps(SHORT_HOURS), settings.steps(DAY_HOURS)
    by_slice, whole = gates.rolling(window, few, count), window.sum(axis=2)
    short, day, per_step = by_slice.sum(axis=2), gates.rolling(whole, many, count), whole[:, -count:]
    spread = gates.Spread(found.coverage_noise, found.volume_noise)
    ends: list[int] = (hours.starts + settings.step).tolist()
    of_units = judged_units(found)
    threshold = settings.thresholds(of_units)
    sums = Sums(judged, hours.total * known, hours.squares * known, mean * known, found.quality.variance * known)
    recent = by_slice[[gates.TOTAL, gates.EXPECTED]]
    refused = gates.rolling(crowd[gates.REFUSED :], few, count)[0]
    tracked = [hours.total, size * base[0], hours.squares, hours.labelled, size * base[1], size, base[2]]
    return Block(
        ends,
        window,
        crowd,
        per_step,
        short,
        day,
        np.array(tracked),
        mix_effects(judged, volume * known, mean).tolist(),
        alarms.see(sums, found.noise, of_units, recent, threshold, ends, settings.hours),
        spread,
        gates.labels_suspect((per_step, short, day), spread).tolist(),
        gates.rows_refused(short, refused, _usual(state.levels, 3)).tolist(),
        gates.traffic_low(short, day, spread).tolist(),
        gates.slices_missing(by_slice[gates.REQUESTS], by_slice[gates.EXPECTED_REQUESTS]),
        size,
        threshold,
    )


def judged_units(found: Baseline) -> Bools:
    """(U,) which units are judged: a single slice is overall."""
    alone = found.alone if len(found.alone) > 1 else found.alone & False
    return np.concatenate([[found.known.any()], alone])


def _usual(levels: Levels, which: int) -> float:
    """Events, unmatched or refused for each request, as remembered."""
    crowd = levels.memory.crowd
    return float(crowd[which] / crowd[0]) if crowd[0] > 0 else 0.0


# ---- step by step --------------------------------------------------------------------------------------------------


class _Going:
    """What changes from step to step."""

    def __init__(self, settings: Settings, state: State, found: Baseline, block: Block) -> None:
        self._settings = settings
        self._was = state
        self._found = found
        self._block = block
        self._half = np.sqrt(block.threshold)
        self._names = ("", *state.slices)
        self._standing = state.standing
        self._is_open = bool(state.standing.opened_at.any())
        self._trouble = state.trouble
        self._mix = state.mix
        self._levels = state.levels
        self._reference = state.reference
        self._today = state.levels.today.sums.copy()
        self._crowd = state.levels.today.crowd.copy()
        self._good = np.ones(len(block.ends))
        self._busy_at = state.busy_at
        self._least_mix = max(LEAST_MIX, MIX_DEVIATIONS * found.mix_noise)
        # As lists: single numbers of arrays are slow.
        self._requests: list[float] = block.per_step[gates.REQUESTS].tolist()
        self._judged: list[float] = block.per_step[gates.JUDGED].tolist()
        self._day: list[list[float]] = block.day.T.tolist()
        self._short: list[list[float]] = block.short.T.tolist()

    def step(self, row: int) -> Verdict:
        """Judge one step."""
        settled, end = self._was.settled, self._block.ends[row]
        kind = self._gates(row) if settled else None
        is_masked = kind is not None and kind != "slice_missing"
        before, was_open = self._standing, self._is_open
        if not settled:
            pass  # its level is not known yet: what comes is what it will be
        elif is_masked:
            self._good[row] = 0.0
        else:
            self._standing = alarms.step(before, self._block.seen, row, self._block.threshold)
            self._is_open = bool(self._standing.opened_at.any())
            self._follow_mix(row)
        if self._requests[row] > 0:
            self._busy_at = end
        changes = self._changes(before) if was_open or self._is_open else ()
        found = None
        if any(c.became == "firing" for c in changes):
            found = self._opened(row, before)
        self._track(row, is_masked)
        return self._verdict(row, kind, changes, found)

    def state(self, hours: Hours) -> State:
        """After the last step."""
        steps = self._was.recent.sums.shape[1]
        recent = Recent(self._block.window[:, -steps:].copy(), self._block.crowd[:, -steps:].copy())
        today = replace(self._levels.today, sums=self._today, crowd=self._crowd)
        reference = self._reference
        return replace(
            self._was,
            until=self._block.ends[-1],
            busy_at=self._busy_at,
            reference=None if reference is None else reference.with_more(hours, self._good),
            levels=replace(self._levels, today=today),
            recent=recent,
            standing=self._standing,
            trouble=self._trouble,
            mix=self._mix,
        )

    def _gates(self, row: int) -> Kind | None:
        """What is the matter with the data, if anything."""
        was, block, end = self._trouble, self._block, self._block.ends[row]
        few = self._settings.steps(SHORT_HOURS)
        lasting = (few - 1) * self._settings.step
        is_degraded = self._is_open
        suspect, refused = (block.suspect_degraded if is_degraded else block.suspect)[row], block.refused[row]
        until = end + lasting if suspect else was.suspect_until
        since = (was.suspect_since or end) if end <= until else 0
        collapsed = since > 0 and (was.collapsed or (suspect and end - since >= COLLAPSED and self._lacks_labels(row)))
        low = was.low + 1 if block.low[row] else 0
        missing = was.missing
        if missing.any() or block.missing[row].any():
            still = block.missing[row] | ((missing > 0) & (block.requests[row] == 0))
            missing = np.where(still, missing + 1, 0)
        refused_until = end + lasting if refused else was.refused_until
        self._trouble = Trouble(since, until, collapsed, refused_until, low, missing)
        if since:
            return "labels_collapsed" if collapsed else "labels_suspect"
        if end <= refused_until:
            return "rows_refused"
        if low >= min(2, few):
            return "traffic_low"
        return "slice_missing" if self._missing() else None

    def _lacks_labels(self, row: int) -> bool:
        """Whether labels are missing in the step alone: what is suspect may be so for the hours before."""
        sums = self._block.per_step[:, row]
        return bool(sums[gates.LABELLED] < gates.LABELS_RATIO * sums[gates.EXPECTED_LABELLED])

    def _missing(self) -> tuple[str, ...]:
        steps = self._trouble.missing
        if not steps.any():
            return ()
        told = (steps >= 2) & (steps * self._settings.step < GONE)
        return tuple(self._names[i + 1] for i in np.flatnonzero(told))

    def _follow_mix(self, row: int) -> None:
        count = self._judged[row]
        if count > 0:
            weight, was = mix_weight(self._settings), self._mix
            over = was.over + weight * (self._block.mix[row] * count - was.over)
            under = was.under + weight * (count - was.under)
            least = self._least_mix * (MIX_BACK if was.is_shifted else 1.0)
            self._mix = Mix(over, under, abs(over) > least * under)

    def _changes(self, before: Standing) -> tuple[Change, ...]:
        now = self._standing
        moved = before.opened_at != now.opened_at
        return tuple(
            Change(self._names[unit], "firing") if now.opened_at[unit] else self._resolved(unit)
            for unit in np.flatnonzero(moved).tolist()
        )

    def _resolved(self, unit: int) -> Change:
        now, tolerated = self._standing, float(self._found.noise.tolerated[unit])
        return Change(self._names[unit], "resolved", self._back_since(unit), *_means(now.risen[unit]), tolerated)

    def _back_since(self, unit: int) -> int | None:
        end = int(self._standing.back_since[unit])
        return end - self._settings.step if end else None

    def _opened(self, row: int, before: Standing) -> Split:
        """Forget what the drop left in the days that are to be tracked; say where it comes from."""
        now = self._standing
        new = now.open & ~before.open
        since = int(now.since[new].min())
        kept = self._kept()
        self._levels = self._levels.without(since // DAY, kept)
        self._today[:REQUESTS] *= kept
        if self._reference is not None:
            self._reference = self._reference.without(since)
            starts = np.array(self._block.ends[: row + 1]) - self._settings.step
            self._good[: row + 1][starts >= since] = 0.0
        steps = min(max((self._block.ends[row] - since) // self._settings.step, 1), self._was.recent.sums.shape[1])
        end = self._was.recent.sums.shape[1] + row + 1
        return diagnose(self._found, self._names[1:], self._block.window[:, end - steps : end])

    def _kept(self) -> Floats:
        """(S,) 0 for slices on which an alarm is open, or all if it is overall."""
        is_open = self._standing.open
        return np.where(is_open[1:] | is_open[0], 0.0, 1.0)

    def _track(self, row: int, is_masked: bool) -> None:
        """Add a step to the day's sums: its traffic always, the rest when nothing was the matter."""
        new, block = self._block.tracked[:, row], self._block
        self._today[REQUESTS:] += new[REQUESTS:]
        if is_masked:
            return
        is_open = self._is_open
        self._today[:REQUESTS] += new[:REQUESTS] * self._kept() if is_open else new[:REQUESTS]
        self._crowd[0] += self._requests[row]
        self._crowd[1:] += block.crowd[:, block.crowd.shape[1] - len(block.ends) + row]
        if is_open:
            self._good[row] = 0.0

    # ---- what there is to say --------------------------------------------------------------------------------------

    def _verdict(self, row: int, kind: Kind | None, changes: tuple[Change, ...], found: Split | None) -> Verdict:
        day, short, known = self._day[row], self._short[row], self._found
        alarms_open = self._alarms()
        is_known = self._was.settled and day[gates.JUDGED] > 0
        said: Kind = kind or ("degraded" if alarms_open else "healthy" if is_known else "not_enough_data")
        # Rows are refused or not by the last three hours.
        is_short = said == "rows_refused" or short[gates.EXPECTED_REQUESTS] >= gates.TRAFFIC_EXPECTED
        span, hours = (short, SHORT_HOURS) if is_short else (day, DAY_HOURS)
        judged = day[gates.JUDGED]
        is_suspect = said in ("labels_suspect", "labels_collapsed")
        return Verdict(
            self._block.ends[row],
            said,
            alarms_open,
            changes,
            self._pending(),
            day[gates.TOTAL] / judged if judged else None,
            day[gates.EXPECTED] / judged if judged else None,
            span[gates.REQUESTS],
            span[gates.EXPECTED_REQUESTS],
            day[gates.LABELLED] / judged if judged else None,
            day[gates.EXPECTED_LABELLED] / judged if judged else None,
            self._mix.is_shifted,
            self._mix.effect,
            self._missing(),
            self._labels(row) if is_suspect else None,
            found,
            self._was.improved >= IMPROVED_DAYS,
            known.days,
            self._lacks(row),
            self._settings.steps(hours) * self._settings.step,
        )

    def _lacks(self, row: int) -> str:
        days, whole = self._found.days, self._settings.reference / DAY
        since = days_since(self._was, self._block.ends[row])
        if not self._was.settled:
            return (
                f"{min(since, SETTLING_DAYS)} of {SETTLING_DAYS} whole days since the level began anew, labels included"
            )
        if not self._was.fits:
            return f"a whole reference since the level began anew: {since} of {whole:.0f} days"
        if self._reference is None and days >= ENOUGH_OF_REFERENCE * whole:
            return ""
        return f"a whole reference: {days:.0f} of {whole:.0f} days"

    def _alarms(self) -> tuple[Alarm, ...]:
        now = self._standing
        if not self._is_open:
            return ()
        weight, effect = score(now.evidence) / self._block.threshold, now.effect
        tolerated = self._found.noise.tolerated
        return tuple(
            Alarm(
                self._names[u],
                int(now.since[u]),
                int(now.opened_at[u]),
                float(effect[u]),
                float(weight[u]),
                float(tolerated[u]),
                *_means(now.fallen[u]),
                self._back_since(u),
            )
            for u in np.flatnonzero(now.opened_at).tolist()
        )

    def _pending(self) -> tuple[str, ...]:
        """Units with half the evidence, and no alarm."""
        now = self._standing
        which = (score(now.evidence) >= self._half) & ~now.open & self._block.seen.judged
        return tuple(self._names[u] for u in np.flatnonzero(which)) if which.any() else ()

    def _labels(self, row: int) -> Labels:
        """What has become of the labels since they are suspect, in a day at most."""
        block, since = self._block, self._trouble.suspect_since
        past = self._was.recent.sums.shape[1]
        steps = min((block.ends[row] - since) // self._settings.step + 1, past)
        end = past + row + 1
        sums, crowd = block.window[:, end - steps : end].sum(axis=(1, 2)), block.crowd[:, end - steps : end].sum(axis=1)
        usual = self._levels.memory.crowd
        return Labels(
            since,
            _ratio(sums[gates.LABELLED], sums[gates.JUDGED]),
            _ratio(sums[gates.EXPECTED_LABELLED], sums[gates.JUDGED]),
            _ratio(crowd[gates.EVENTS], sums[gates.REQUESTS]),
            _ratio(usual[1], usual[0]),
            _ratio(crowd[gates.UNMATCHED], crowd[gates.EVENTS]),
            _ratio(usual[2], usual[1]),
            steps * self._settings.step,
        )


def _means(sums: Floats) -> tuple[float | None, float | None, int]:
    """(mean, expectation, requests) of a unit's sums."""
    requests, total, expected = sums.tolist()
    return _ratio(total, requests), _ratio(expected, requests), round(requests)


def _ratio(over: float, under: float) -> float | None:
    return float(over / under) if under > 0 else None


def diagnose(found: Baseline, slices: tuple[str, ...], window: Floats) -> Split:
    """Where the change of the mean over some steps comes from, against the baseline of the same hours.

    Args:
        window: (7, N, S) of N steps, fields as in `gates`.
    """
    sums = window.sum(axis=1)
    size, level = sums[gates.JUDGED], found.quality.level
    has = size > 0
    before = np.divide(sums[gates.EXPECTED], size, out=level * found.known, where=has)
    value = np.divide(sums[gates.TOTAL], size, out=before.copy(), where=has)
    usual = sums[gates.EXPECTED_REQUESTS] * found.known
    shares = usual / max(float(usual.sum()), 1e-9), size / max(float(size.sum()), 1.0)
    steps = max(window.shape[1], 1)
    common = np.minimum(found.noise.long_run[1:] / steps, found.noise.step_variance[1:]) * before**2
    error = np.sqrt(found.quality.variance / np.maximum(size, 1.0) + common)
    return split(slices, shares, (before, value), np.where(has, error, 0.0))
