"""The alarms of a monitor's units: evidence grows step by step, opens an alarm, and closes it when the drop is over.

well --evidence above the threshold, and lower in the last hours--> open --evidence for being back--> well
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from monitor.drift import gates, onset, sudden
from monitor.drift.evidence import SliceSums, Threshold, UnitSums, factors, grow, score
from monitor.drift.frozen import frozen
from monitor.drift.noise import Noise, units
from monitor.drift.series import DAY, HOUR, Bools, Floats, Ints, all_of, some
from monitor.drift.sudden import FallFilter, Forecast

CLOSING = 7.0
"""Logarithm of the evidence for being back that closes an alarm: 6 closed slices in one lasting fall of three."""
CLOSING_STEPS = 3
"""Steps that it takes at least."""
ALONG = -3.0
"""Logarithm of the evidence that a slice has been back since overall may be, below which it does not close with it."""
LEAST_DROP = 0.02
"""That "as expected again" is told from."""
DOUBT = 2.0
"""Standard errors by which a drop may be less than it seems: what opens an alarm is as often luck as size."""
SUDDEN = 0.55
"""Times what evidence of a sudden fall counts beside that which gathers: with RESERVE, measured for the budget."""
LEAST_LABELS = 0.4
"""Of those expected. A sudden fall with fewer may be one of the labels, also where there are too few to say so."""
CLOSED = 0
REQUESTS, TOTAL, EXPECTED = range(3)


@frozen
class AlarmStates:
    """Where U units stand.

    Attributes:
        evidence: (U, 3) for each stake; nothing is 0.
        run: (U,) logarithm, of the middle stake alone, started again whenever it is used up.
        since: (U,) seconds, when that began.
        fallen: (U, 3) requests, observed and expected sums since then, but not from when on it may be over.
        opened_at: (U,) seconds; 0 where no alarm is open.
        back: (U,) logarithm of the evidence that an alarm's drop is over.
        back_since: (U,) seconds, end of the first step of that; 0 where there is none.
        risen: (U, 3) sums like `fallen`, since then. Both stay as they were at the step at which an alarm closes.
        along: (U,) logarithm of the evidence that it is over, since overall's may be.
        sudden: (U,) logarithm of the evidence of a sudden fall; its highest while an alarm is open.
        fit_since: (U,) seconds, from when on every step was fit to be judged.
        began: (U, 3) seconds, starts of the steps with which an alarm's fall most probably began, and with which it may
            have at the earliest and at the latest.
        besides: (U, 3) what sums since the fall began have more than `fallen`, whose hours begin with the evidence.
        course: what `sudden` rests on.
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
    began: Ints
    besides: Floats
    course: FallFilter

    @classmethod
    def empty(cls, count: int, now: int) -> AlarmStates:
        """Nothing known."""
        zeros, sums, never = np.zeros(count), np.zeros((count, 3)), np.zeros(count, np.int64)
        since, closed = np.full(count, now, np.int64), np.full(count, CLOSED, np.int64)
        fresh = (since, np.zeros((count, 3), np.int64), sums, FallFilter.empty(count, now))
        return cls(sums, zeros, since, sums, closed, zeros, never, sums, zeros, zeros, *fresh)

    def padded(self, count: int, now: int) -> AlarmStates:
        """With new units at the end."""
        new = AlarmStates.empty(count - len(self.run), now)
        both = {n: np.concatenate([getattr(self, n), getattr(new, n)]) for n in self._of_arrays()}
        return AlarmStates(**both, course=self.course.padded(count))

    def _of_arrays(self) -> list[str]:
        return [name for name in self.__dataclass_fields__ if name != "course"]

    @cached_property
    def open(self) -> Bools:
        """(U,) whether an alarm is open."""
        found: Bools = self.opened_at != CLOSED
        return found

    @cached_property
    def is_any_open(self) -> bool:
        """Whether any alarm is."""
        return some(self.open)

    @cached_property
    def score(self) -> Floats:
        """(U,) evidence of a fall, slow or sudden, to be held against the threshold."""
        found: Floats = score(self.evidence) + SUDDEN * np.exp(self.sudden)
        return found

    @property
    def told(self) -> Floats:
        """(U, 3) sums like `fallen`, since an alarm's fall began: what people are told, and nothing is judged by."""
        return self.fallen + self.besides

    @property
    def effect(self) -> Floats:
        """(U,) relative change since the evidence began to grow."""
        total, expected = self.fallen[:, TOTAL], self.fallen[:, EXPECTED]
        found: Floats = np.divide(total, expected, out=np.ones(len(self.run)), where=expected > 0) - 1
        return found


@frozen
class StepEvidence:
    """What T steps say of U units.

    Attributes:
        ends: T seconds.
        length: of a step, seconds.
        factor: (T, U, 3) of the evidence.
        middle: (T, U) logarithm of the middle stake's.
        has: (T, U) whether there was a request.
        labelled: (T, U) whether the last hours had enough labels for a sudden fall to be one of the model.
        whole: what the units are judged on.
        noise: of the units.
        doubt: (T,), or (1,) of every step, what overall tolerates more than usual, relative.
        judged: (U,) units that may raise an alarm.
        left_out: (T, S) slices whose labels are lost.
        short: (8, T, U) sums of the last hours, fields as in `gates`.
        foretold: what shows a sudden fall.
        past: (3, R + T, S) requests, observed and expected sums of the day before and of the steps.
    """

    ends: list[int]
    length: int
    factor: Floats
    middle: Floats
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

    # What follows is asked for only where there is an alarm, or about to be one.

    @cached_property
    def spread(self) -> Floats:
        """(T, U) variance of the relative deviation, its autocorrelation taken in."""
        whole = self.whole
        found: Floats = whole.variance / whole.size / np.maximum(whole.level, 1e-9) ** 2 + self.noise.long_run
        return found

    @cached_property
    def fell(self) -> Bools:
        """(T, U) whether the last hours were lower than tolerated."""
        tolerated, (total, expected) = self.noise.tolerated, self.short[gates.TOTAL : gates.EXPECTED + 1]
        found: Bools = total < (1 - tolerated) * expected
        found[:, 0] = total[:, 0] < (1 - tolerated[0] - self.doubt) * expected[:, 0]
        return found

    @cached_property
    def away(self) -> Bools:
        """(T, S) slices without a request in the last hours, where there should be some."""
        of_slices = self.short[:, :, 1:]
        return gates.slices_away(of_slices[gates.REQUESTS], of_slices[gates.EXPECTED_REQUESTS])


def see(
    sums: SliceSums,
    noise: Noise,
    judged: Bools,
    left_out: Bools,
    short: Floats,
    past: Floats,
    threshold: Threshold,
    ends: list[int],
    hours: float,
) -> StepEvidence:
    """What some steps say.

    Args:
        judged: (U,) units that may raise an alarm.
        left_out: (T, S) slices whose labels are lost.
        short: (8, T, U) sums of the last hours, fields as in `gates`.
        past: (3, R + T, S) requests, observed and expected sums of the day before and of the steps.
        hours: of a step.
    """
    factor = factors(sums, noise, threshold, hours)
    whole = sums.whole
    return StepEvidence(
        ends,
        round(hours * HOUR),
        np.exp(factor),
        factor[:, :, 1],
        whole.requests > 0,
        short[gates.LABELLED] >= LEAST_LABELS * short[gates.EXPECTED_LABELLED],
        whole,
        noise,
        sums.doubt,
        judged,
        left_out,
        short,
        Forecast.of(noise, whole.total, whole.expected, whole.chance),
        past,
    )


def step(was: AlarmStates, seen: StepEvidence, row: int, threshold: Threshold) -> AlarmStates:
    """The standing after one more step.

    While slices with an alarm are left out, or away, that make most of its fall, overall says nothing either: it would
    be well without them.
    """
    has, sums, end, is_open = seen.has[row], seen.whole.sums[row], seen.ends[row], was.open
    if is_open[0] and _lacks_most(was, (seen.left_out[row] | seen.away[row]) & is_open[1:]):
        has, sums = has.copy(), sums.copy()
        has[0], sums[0] = False, 0.0
    evidence = grow(was.evidence, seen.factor[row], threshold)
    if not all_of(has):
        evidence[~has] = was.evidence[~has]
    run = was.run + seen.middle[row]
    anew, begins, new = run <= 0, was.run <= 0, sums
    if was.is_any_open:
        anew, begins, new = anew & ~is_open, begins & ~is_open, sums * (was.back <= 0)[:, None]
    since, fallen = was.since.copy(), was.fallen + new
    since[begins], since[anew], fallen[anew] = end - seen.length, end, 0.0
    course = _followed(was.course, seen, row, has)
    found = np.minimum(course.evidence(seen.length), threshold.most_logarithm)
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
        np.where(is_open, np.maximum(was.sudden, found), found) if was.is_any_open else found,
        was.fit_since,
        was.began,
        was.besides,
        course,
    )
    fires = now.score > threshold.each
    if some(fires) and some(fires := fires & seen.judged & ~is_open & seen.fell[row]):
        now = _dated(_opened(_begun(now, fires, end), seen, row, fires), seen, row, fires)
    return _closing(now, seen, row, has, sums) if was.is_any_open else now


def _begun(now: AlarmStates, fires: Bools, end: int) -> AlarmStates:
    """With alarms of (U,) units that open at `end`; how the ones before them closed is nothing of theirs."""
    opened_at, back_since = np.where(fires, end, now.opened_at), np.where(fires, 0, now.back_since)
    return replace(now, opened_at=opened_at, back_since=back_since, risen=now.risen * ~fires[:, None])


def _opened(now: AlarmStates, seen: StepEvidence, row: int, fires: Bools) -> AlarmStates:
    """With when it began and what has fallen since, for (U,) units whose fall is rather a sudden one."""
    is_sudden = fires & (SUDDEN * np.exp(now.sudden) > score(now.evidence))
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
    """With when the falls of (U,) units that open most probably began, which changes nothing but what is told.

    Of a fall whose evidence is older than what is looked at, the last day as far as it was fit, that is known roughly.
    """
    until, end, length = seen.past.shape[1] - len(seen.ends) + row + 1, seen.ends[row], seen.length
    steps = min(max(DAY // length, 1), until)
    requests, total, expected = units(seen.past[:, until - steps : until])
    starts = end - length * np.arange(steps, 0, -1)
    known = (expected > 0) & (starts[:, None] >= now.fit_since)
    moved = np.where(known, total / np.maximum(expected, 1e-9) - 1, 0.0)
    relative = seen.whole.variance[row] / np.maximum(seen.whole.level[row], 1e-9) ** 2
    weight = known / (relative / np.maximum(requests, 1.0) + seen.noise.long_run)
    prior = 1 / np.maximum(seen.noise.moves, 1e-9)
    is_older = now.since < np.maximum(now.fit_since, starts[0])
    found = starts[onset.change_point(moved, weight, prior)]
    found = np.where(is_older[:, None], onset.roughly(now.since, end, length), found)
    # What lies between the two beginnings: 1 where the fall began first, -1 where the evidence did.
    between = (starts[:, None] >= found[:, 0]) * 1.0 - (starts[:, None] >= now.since)
    besides = np.stack([(between * sums).sum(axis=0) for sums in (requests, total, expected)], axis=1)
    is_new = fires[:, None]
    return replace(now, began=np.where(is_new, found, now.began), besides=np.where(is_new, besides, now.besides))


def _followed(was: FallFilter, seen: StepEvidence, row: int, has: Bools) -> FallFilter:
    """The course after one more step: what has too few labels is forgotten, and not followed."""
    labelled, known = seen.labelled[row], was.left_out(seen.left_out[row])
    if not all_of(labelled):
        known, has = known.without(~labelled), has & labelled
    return sudden.follow(known, seen.foretold, row, has, seen.ends[row], seen.length)


def _lacks_most(was: AlarmStates, left_out: Bools) -> bool:
    """Whether (S,) slices that are left out make at least half of what all have fallen short of since it began."""
    if not some(left_out):
        return False
    short = was.fallen[:, EXPECTED] - was.fallen[:, TOTAL]
    return bool(short[1:][left_out].sum() >= short[0] / 2)


def _closing(now: AlarmStates, seen: StepEvidence, row: int, has: Bools, sums: Floats) -> AlarmStates:
    """Weigh "as expected again" against "as low as since it began, at the least"; what is open closes by the first.

    Overall's end is that of its slices, but for those that have rather been as low as ever since it began, or are away.
    """
    low = _least_drop(now, seen, row)
    moved = sums[:, TOTAL] / np.maximum(sums[:, EXPECTED], 1e-9) - 1
    favour = low * (moved + low / 2) / seen.spread[row]
    favour = np.where(has, np.clip(favour, -CLOSING, CLOSING / CLOSING_STEPS), 0.0)
    is_open = now.open & (now.opened_at < seen.ends[row])
    back = np.where(is_open, np.maximum(now.back + favour, 0.0), 0.0)
    rises, rose = back > 0, now.back > 0
    back_since = np.where(rises, np.where(rose, now.back_since, seen.ends[row]), 0)
    risen = (now.risen * rose[:, None] + sums) * rises[:, None]
    begins, is_none = (is_open & rises & ~rose)[:, None], (is_open & rose & ~rises)[:, None]
    # What may be the end is no part of the drop, until it is seen to be none.
    fallen = now.fallen - sums * begins + (now.risen + sums) * is_none
    closes = is_open & (back >= CLOSING)
    along = np.where(is_open & rises[0], now.along + favour, 0.0)
    if closes[0]:
        closes[1:] |= is_open[1:] & (along[1:] >= ALONG) & ~seen.away[row]
    after = replace(now, fallen=fallen, back=back, back_since=back_since, risen=risen, along=along)
    return _closed(after, closes, seen.ends[row]) if some(closes) else after


def _least_drop(now: AlarmStates, seen: StepEvidence, row: int) -> Floats:
    """(U,) relative drop since it began, less what may be luck: of a drop that is overstated, more looks like its end.

    It stays as it is while it may be over, for so do the sums that it is worked out from.
    """
    whole, noise = seen.whole, seen.noise
    until = np.where(now.back > 0, now.back_since - seen.length, seen.ends[row])
    steps = np.maximum((until - now.since) / seen.length, 1.0)
    relative = whole.variance[row] / np.maximum(whole.level[row], 1e-9) ** 2
    error = np.sqrt(relative / np.maximum(now.fallen[:, REQUESTS], 1.0) + noise.long_run / steps)
    found: Floats = np.maximum(-now.effect - DOUBT * error, np.maximum(2 * noise.tolerated, LEAST_DROP))
    return found


def unfit(was: AlarmStates, end: int) -> AlarmStates:
    """The standing after a step that ends at `end` and is not fit to be judged: nor were those right before, maybe."""
    course, fit_since = FallFilter.empty(len(was.run), end), np.full_like(was.fit_since, end)
    return replace(was, sudden=np.where(was.open, was.sudden, 0.0), fit_since=fit_since, course=course)


def begun_again(was: AlarmStates, at: int) -> AlarmStates:
    """With nothing gathered before `at`, seconds, for the units without an alarm: there was a long pause."""
    kept, new = unfit(was, at), AlarmStates.empty(len(was.run), at)
    both = ((name, getattr(kept, name), getattr(new, name)) for name in was._of_arrays())
    arrays = {name: np.where(was.open if a.ndim == 1 else was.open[:, None], a, b) for name, a, b in both}
    return AlarmStates(**arrays, course=kept.course)


def withdrawn(now: AlarmStates, which: Bools, end: int) -> AlarmStates:
    """Without the alarms of some of the U units, at `end` seconds: there is nothing left that they could be about."""
    risen, back_since = now.risen * ~which[:, None], np.where(which, 0, now.back_since)
    return _closed(replace(now, risen=risen, back_since=back_since), which, end)


def forgotten(now: AlarmStates, which: Bools, end: int) -> AlarmStates:
    """Without what was gathered on some of the U units until `end`, seconds: it was none of the model's."""
    return _closed(now, which, end)


def _closed(now: AlarmStates, which: Bools, end: int) -> AlarmStates:
    new = replace(AlarmStates.empty(len(which), end), back_since=now.back_since, risen=now.risen)
    both = ((name, getattr(new, name), getattr(now, name)) for name in now._of_arrays())
    arrays = {name: np.where(which if a.ndim == 1 else which[:, None], a, b) for name, a, b in both}
    return AlarmStates(**arrays, course=now.course.without(which))
