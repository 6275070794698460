"""The alarms of a monitor's units:
well --evidence above the threshold, and lower in the last hours--> open --evidence of recovery--> well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from monitor.arrays import Bools, Floats, Ints
from monitor.drift import constants as c
from monitor.drift import data_checks as checks
from monitor.drift import sudden_falls
from monitor.drift.eprocess import SliceSums, UnitSums, factors, grow, score
from monitor.drift.noise import Noise
from monitor.drift.series import all_of, frozen, some, units
from monitor.drift.settings import EvidenceThreshold
from monitor.drift.sudden_falls import FallFilter, Forecast
from monitor.units import DAY, HOUR

REQUESTS, TOTAL, EXPECTED, FOUND = range(4)


@frozen
class AlarmStates:
    """The alarms of U units; arrays are (U,), instants in seconds.

    Attributes:
        evidence: (U, 3), one per stake.
        run, since: log evidence of the middle stake, reset when it reaches 0, and the time of that reset.
        fallen: (U, 4) requests, observed, expected and `FOUND` sums since then, excluding a possible recovery.
        opened_at: 0 if no alarm is open.
        back, back_since: log evidence of recovery, and the end of its first step (0 if none).
        risen: (U, 4) sums since `back_since`. Both keep their values when the alarm closes.
        along: log evidence of recovery since overall's began.
        sudden: log evidence of a sudden fall, from `course`; its maximum while an alarm is open.
        fit_since, unfit_from: since when every step was fit to be judged, and start of the unfit steps before.
        began: (U, 3) start of the step at which the fall began: most likely, earliest, latest.
        besides: (U, 4) sums since the fall began minus `fallen`, which starts with the evidence.
        weighed_since, weighed: as `since` and `fallen`, but not reset while half the evidence of an alarm is there.
    """

    evidence: Floats
    run: Floats
    since: Ints
    fallen: Floats
    opened_at: Ints
    back: Floats
    back_since: Ints
    risen: Floats
    along: Floats
    sudden: Floats
    fit_since: Ints
    unfit_from: Ints
    began: Ints
    besides: Floats
    weighed_since: Ints
    weighed: Floats
    course: FallFilter

    @classmethod
    def empty(cls, count: int, now: int) -> AlarmStates:
        """The states before any evidence."""
        evidence, zeros, sums = np.zeros((count, len(c.STAKES))), np.zeros(count), np.zeros((count, 4))
        since, never = np.full(count, now, np.int64), np.zeros(count, np.int64)
        fresh = (since, since, np.zeros((count, 3), np.int64), sums, since, sums, FallFilter.empty(count, now))
        return cls(evidence, zeros, since, sums, never, zeros, never, sums, zeros, zeros, *fresh)

    def _of_arrays(self) -> list[str]:
        return [name for name in self.__dataclass_fields__ if name != "course"]

    @cached_property
    def open(self) -> Bools:
        """(U,) whether an alarm is open."""
        return self.opened_at != 0

    @cached_property
    def is_any_open(self) -> bool:
        """Whether any alarm is open."""
        return some(self.open)

    @cached_property
    def score(self) -> Floats:
        """(U,) evidence of a fall, slow or sudden, to compare with the threshold."""
        return score(self.evidence) + c.FALL_WEIGHT * np.exp(self.sudden)

    @property
    def told(self) -> Floats:
        """(U, 4) sums like `fallen`, since the fall began: for messages only, never for judging."""
        return self.fallen + self.besides

    @property
    def effect(self) -> Floats:
        """(U,) relative change since the evidence began to grow."""
        total, expected = self.fallen[:, TOTAL], self.fallen[:, EXPECTED]
        return np.divide(total, expected, out=np.ones(len(self.run)), where=expected > 0) - 1


@frozen
class StepEvidence:
    """What T steps show about U units; the other fields are arguments of `see`.

    Attributes:
        ends, length: seconds.
        factor, middle: (T, U, 3) factors of the evidence, (T, U) logarithm of the middle stake's.
        sums: (T, U, 4) as of `fallen`.
        has, labelled: (T, U) whether there were requests; and enough labels in the last hours to blame the model.
    """

    ends: list[int]
    length: int
    factor: Floats
    middle: Floats
    sums: Floats
    has: Bools
    labelled: Bools
    whole: UnitSums
    noise: Noise
    doubt: Floats
    judged: Bools
    left_out: Bools
    short: Floats
    foretold: Forecast
    past: Floats

    @cached_property
    def spread(self) -> Floats:
        """(T, U) variance of the relative deviation, including autocorrelation."""
        whole = self.whole
        return whole.variance / whole.size / np.maximum(whole.level, 1e-9) ** 2 + self.noise.long_run

    @cached_property
    def fell(self) -> Bools:
        """(T, U) whether the last hours were lower than tolerated."""
        tolerated, (total, expected) = self.noise.tolerated, self.short[checks.TOTAL : checks.EXPECTED + 1]
        found: Bools = total < (1 - tolerated) * expected
        found[:, 0] = total[:, 0] < (1 - tolerated[0] - self.doubt) * expected[:, 0]
        return found

    @cached_property
    def away(self) -> Bools:
        """(T, S) slices without a request in the last hours, though some were expected."""
        of_slices = self.short[:, :, 1:]
        return (of_slices[checks.REQUESTS] == 0) & (of_slices[checks.EXPECTED_REQUESTS] >= c.AWAY_EXPECTED)


def see(
    sums: SliceSums,
    noise: Noise,
    judged: Bools,
    left_out: Bools,
    short: Floats,
    past: Floats,
    threshold: EvidenceThreshold,
    ends: list[int],
    hours: float,
) -> StepEvidence:
    """The evidence of T steps of `hours` hours each.

    Args:
        judged: (U,) units that may raise an alarm.
        left_out: (T, S) slices whose labels are lost.
        short: (9, T, U) sums of the last hours, fields as in `data_checks`.
        past: (4, R + T, S) sums as of `fallen`, of the day before and of the steps.
    """
    factor = factors(sums, noise, threshold, hours)
    whole = sums.whole
    return StepEvidence(
        ends,
        round(hours * HOUR),
        np.exp(factor),
        factor[:, :, 1],
        units(past[:, -len(ends) :]).transpose(1, 2, 0),
        whole.requests > 0,
        short[checks.LABELLED] >= c.LABELS_RATIO_DEGRADED * short[checks.EXPECTED_LABELLED],
        whole,
        noise,
        sums.doubt,
        judged,
        left_out,
        short,
        Forecast.of(noise, whole.total, whole.expected, whole.chance),
        past,
    )


def finds_more(now: AlarmStates, seen: StepEvidence, row: int) -> Bools:
    """(U,) whether people may find as much as before: only what it is divided by, their ideal, has risen.

    By the odds of "as much as expected" against "as little as the mean says", which needs to be clearly likelier; with
    the mean square of their difference over the last day, but for a lasting one by which even less is found.
    """
    until, steps = seen.past.shape[1] - len(seen.ends) + row + 1, DAY // seen.length
    sizes, means, _, by_usual = units(seen.past[:, max(until - steps, 0) : until])
    size, apart = np.maximum(sizes.sum(axis=0), 1.0), by_usual - means
    apart = apart - sizes * np.minimum(apart.sum(axis=0) / size, 0.0)
    variance = (apart**2).sum(axis=0) / size
    requests, total, expected, found = now.weighed.T
    lacks = expected - total
    more: Bools = lacks * (2 * (found - total) - lacks) > -2 * c.SURE_LOG * requests * variance
    return more


def step(was: AlarmStates, seen: StepEvidence, row: int, threshold: EvidenceThreshold) -> AlarmStates:
    """The states after one more step.

    Overall pauses while slices behind most of its fall are left out or silent: without them it would look well.
    """
    has, sums, end, is_open = seen.has[row], seen.sums[row], seen.ends[row], was.open
    if is_open[0] and _lacks_most(was, (seen.left_out[row] | seen.away[row]) & is_open[1:]):
        has, sums = has.copy(), sums.copy()
        has[0], sums[0] = False, 0.0
    evidence = grow(was.evidence, seen.factor[row], threshold)
    if not all_of(has):
        evidence[~has] = was.evidence[~has]
    run = was.run + seen.middle[row]
    starts, begins, new = run <= 0, was.run <= 0, sums
    if was.is_any_open:
        starts, begins, new = starts & ~is_open, begins & ~is_open, sums * (was.back <= 0)[:, None]
    since, fallen = was.since.copy(), was.fallen + new
    since[begins], since[starts], fallen[starts] = end - seen.length, end, 0.0
    goes_on = (was.score > threshold.half) & ~is_open
    course = _followed(was.course, seen, row, has)
    sudden = np.minimum(course.evidence(seen.length), threshold.most_logarithm)
    now = AlarmStates(
        evidence,
        np.maximum(run, 0.0),
        since,
        fallen,
        was.opened_at,
        was.back,
        was.back_since,
        was.risen,
        was.along,
        np.where(is_open, np.maximum(was.sudden, sudden), sudden) if was.is_any_open else sudden,
        was.fit_since,
        was.unfit_from,
        was.began,
        was.besides,
        np.where(goes_on, was.weighed_since, since),
        np.where(goes_on[:, None], was.weighed + sums, fallen),
        course,
    )
    fires = now.score > threshold.each
    if some(fires) and some(fires := fires & seen.judged & ~is_open & seen.fell[row] & ~finds_more(now, seen, row)):
        now = _dated(_opened(_begun(now, fires, end), seen, row, fires), seen, row, fires)
    return _closing(now, seen, row, has, sums) if was.is_any_open else now


def _begun(now: AlarmStates, fires: Bools, end: int) -> AlarmStates:
    opened_at, back_since = np.where(fires, end, now.opened_at), np.where(fires, 0, now.back_since)
    return replace(now, opened_at=opened_at, back_since=back_since, risen=now.risen * ~fires[:, None])


def _opened(now: AlarmStates, seen: StepEvidence, row: int, fires: Bools) -> AlarmStates:
    """Sets beginning and sums of (U,) units whose fall is a sudden one."""
    is_sudden = fires & (c.FALL_WEIGHT * np.exp(now.sudden) > score(now.evidence))
    if not some(is_sudden):
        return now
    since, fallen = now.since.copy(), now.fallen.copy()
    began, end = now.course.began(seen.ends[row], seen.length), seen.past.shape[1] - len(seen.ends) + row + 1
    for unit in np.flatnonzero(is_sudden).tolist():
        steps = min((seen.ends[row] - int(began[unit])) // seen.length, end)
        since[unit] = seen.ends[row] - steps * seen.length
        fallen[unit] = units(seen.past[:, end - steps : end].sum(axis=1))[:, unit]
    return replace(now, since=since, fallen=fallen)


def _dated(now: AlarmStates, seen: StepEvidence, row: int, fires: Bools) -> AlarmStates:
    """Estimates when the falls of (U,) units began; only roughly if the evidence is older than a day."""
    until, end, length = seen.past.shape[1] - len(seen.ends) + row + 1, seen.ends[row], seen.length
    steps = min(max(DAY // length, 1), until)
    past = units(seen.past[:, until - steps : until])
    requests, total, expected, _ = past
    starts = end - length * np.arange(steps, 0, -1)
    known = (expected > 0) & (starts[:, None] >= now.fit_since)
    moved = np.where(known, total / np.maximum(expected, 1e-9) - 1, 0.0)
    relative = seen.whole.variance[row] / np.maximum(seen.whole.level[row], 1e-9) ** 2
    weight = known / (relative / np.maximum(requests, 1.0) + seen.noise.long_run)
    prior = 1 / np.maximum(seen.noise.moves, 1e-9)
    is_older = now.since < np.maximum(now.fit_since, starts[0])
    found = starts[sudden_falls.change_point(moved, weight, prior)]
    found = np.where(is_older[:, None], sudden_falls.roughly(now.since, end, length), found)
    # Nobody knows when it began if that was while the steps were unfit.
    found[:, 1] = np.where(found[:, 1] <= now.fit_since, np.minimum(found[:, 1], now.unfit_from), found[:, 1])
    # Sums between the two beginnings: 1 where the fall began first, -1 where the evidence did.
    between = (starts[:, None] >= found[:, 0]) * 1.0 - (starts[:, None] >= now.since)
    besides = np.stack([(between * sums).sum(axis=0) for sums in past], axis=1)
    is_new = fires[:, None]
    return replace(now, began=np.where(is_new, found, now.began), besides=np.where(is_new, besides, now.besides))


def _followed(was: FallFilter, seen: StepEvidence, row: int, has: Bools) -> FallFilter:
    labelled, known = seen.labelled[row], was.left_out(seen.left_out[row])
    if not all_of(labelled):
        known, has = known.without(~labelled), has & labelled
    return sudden_falls.filter_step(known, seen.foretold, row, has, seen.ends[row], seen.length)


def _lacks_most(was: AlarmStates, left_out: Bools) -> bool:
    if not some(left_out):
        return False
    short = was.fallen[:, EXPECTED] - was.fallen[:, TOTAL]
    return bool(short[1:][left_out].sum() >= short[0] / 2)


def _closing(now: AlarmStates, seen: StepEvidence, row: int, has: Bools, sums: Floats) -> AlarmStates:
    """Closes alarms for which "as expected again" beats "still as low"; with overall, its recovering slices close."""
    low = _least_drop(now, seen, row)
    moved = sums[:, TOTAL] / np.maximum(sums[:, EXPECTED], 1e-9) - 1
    favour = low * (moved + low / 2) / seen.spread[row]
    favour = np.where(has, np.clip(favour, -c.CLOSING_LOG, c.CLOSING_LOG / c.CLOSING_STEPS), 0.0)
    is_open = now.open & (now.opened_at < seen.ends[row])
    back = np.where(is_open, np.maximum(now.back + favour, 0.0), 0.0)
    rises, rose = back > 0, now.back > 0
    back_since = np.where(rises, np.where(rose, now.back_since, seen.ends[row]), 0)
    risen = (now.risen * rose[:, None] + sums) * rises[:, None]
    begins, is_none = (is_open & rises & ~rose)[:, None], (is_open & rose & ~rises)[:, None]
    # A possible recovery is not part of the drop until it turns out to be none.
    fallen = now.fallen - sums * begins + (now.risen + sums) * is_none
    closes = is_open & (back >= c.CLOSING_LOG)
    along = np.where(is_open & rises[0], now.along + favour, 0.0)
    if closes[0]:
        closes[1:] |= is_open[1:] & (along[1:] >= c.ALONG_LOG) & ~seen.away[row]
    after = replace(now, fallen=fallen, back=back, back_since=back_since, risen=risen, along=along)
    return forgotten(after, closes, seen.ends[row]) if some(closes) else after


def _least_drop(now: AlarmStates, seen: StepEvidence, row: int) -> Floats:
    """(U,) relative drop minus its error, since an overstated one finds recoveries; frozen during a possible one."""
    whole, noise = seen.whole, seen.noise
    until = np.where(now.back > 0, now.back_since - seen.length, seen.ends[row])
    steps = np.maximum((until - now.since) / seen.length, 1.0)
    relative = whole.variance[row] / np.maximum(whole.level[row], 1e-9) ** 2
    error = np.sqrt(relative / np.maximum(now.fallen[:, REQUESTS], 1.0) + noise.long_run / steps)
    return np.maximum(-now.effect - c.STANDARD_ERRORS * error, np.maximum(2 * noise.tolerated, c.LEAST_CHANGE))


def unfit(was: AlarmStates, start: int, end: int) -> AlarmStates:
    """The states after time from `start` to `end` (seconds) that is unfit to be judged; it may have been so before."""
    course, fit_since = FallFilter.empty(len(was.run), end), np.full_like(was.fit_since, end)
    begun = np.where(was.fit_since >= start, np.minimum(was.unfit_from, start), start)
    sudden = np.where(was.open, was.sudden, 0.0)
    return replace(was, sudden=sudden, fit_since=fit_since, unfit_from=begun, course=course)


def after_reset(was: AlarmStates, at: int) -> AlarmStates:
    """The states after a long pause: units without an alarm start again at `at` (seconds)."""
    kept, new = unfit(was, at, at), AlarmStates.empty(len(was.run), at)
    return _either(was.open, kept, new, kept.course)


def withdrawn(now: AlarmStates, which: Bools, end: int) -> AlarmStates:
    """The states without the alarms of these units, whose subject is gone at `end` (seconds)."""
    risen, back_since = now.risen * ~which[:, None], np.where(which, 0, now.back_since)
    return forgotten(replace(now, risen=risen, back_since=back_since), which, end)


def forgotten(now: AlarmStates, which: Bools, end: int) -> AlarmStates:
    """The states with what was gathered on these units until `end` (seconds) reset; how an alarm closed stays."""
    kept = {name: getattr(now, name) for name in ("back_since", "risen", "unfit_from")}
    new = replace(AlarmStates.empty(len(which), end), **kept)
    return _either(which, new, now, now.course.without(which))


def _either(which: Bools, one: AlarmStates, other: AlarmStates, course: FallFilter) -> AlarmStates:
    both = ((name, getattr(one, name), getattr(other, name)) for name in one._of_arrays())
    arrays = {name: np.where(which if a.ndim == 1 else which[:, None], a, b) for name, a, b in both}
    return AlarmStates(**arrays, course=course)
