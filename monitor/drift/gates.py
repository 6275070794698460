"""Data before the model: have labels, rows, traffic or slices gone missing?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from monitor.drift.frozen import frozen
from monitor.drift.series import Bools, Floats, some

LABELS_Z, LABELS_RATIO, LABELS_EXPLAIN = -6.0, 0.9, 0.75
LABELS_RATIO_DEGRADED = 0.4
"""While an alarm is open, people who find less may well leave fewer labels: then most of them must be gone. So must
those of a slice, whose mean may fall for reasons of its own."""
LABELS_RATIO_SETTLING = 0.5
"""While a new level is learnt: fewer labels may be part of it, but not so few."""
LABELS_STILL = -1.5
"""Standard errors by which labels must be missing in the last hours for a thin day's to be missing still."""
LABELS_REQUESTS, LABELS_FEW_REQUESTS, LABELS_GONE, LABELS_FEW_Z = 100, 20, 0.3, -12.0
LABELS_OPENING_Z, LABELS_OPENING_RATIO = -3.0, 0.95
"""The same as of all, where an alarm would open and its own time is looked at: evidence is gathered from fewer requests
than it takes to suspect the labels by themselves."""
LABELS_RATIO_NEW = 0.1
"""While a new level is learnt, where labels say nothing of it but how sure it is."""
CLEARLY_MORE = 2.0
"""Logarithm of one over the chance of as few labels if just so many were gone that they need not be suspect."""
ALL_BUT_NONE, MOST_SPREAD, WIDE = 0.95, 0.8, 0.5
"""Share of the labels whose loss is no usual spread: of a few hours, unless it is as wide as the last; of a day."""
MOST_SURE = 0.9
"""Share of the requests that have a label beyond which none is relied on: four without in a row may be chance."""
LABELS_SOME_REQUESTS, LABELS_EXPLAIN_ALL = 50, 0.85
"""Requests that are enough where labels explain as good as all of the fall: of few requests, the labels that bad lists
cost may by chance explain most of it."""
WORTHLESS_EXPECTED = 20.0
"""Of the measure, summed up: from there on it is no chance that every request has a value of 0."""
TRAFFIC_Z, TRAFFIC_RATIO, TRAFFIC_EXPECTED, TRAFFIC_THIN = -3.5, 0.5, 50, 20
TRAFFIC_CLOCKS_Z = -2.0
"""Standard deviations by which traffic must be low too if it were that clocks have been put forward or back."""
TRAFFIC_AGAIN_Z, TRAFFIC_AGAIN_RATIO = -2.5, 0.6
"""What the step after a first one with so little traffic must show for it to be told: at about a half, two such steps
in a row would be long in coming."""
MISSING_EXPECTED, MISSING_Z, MISSING_RATIO = 50, -5.0, 0.02
AWAY_EXPECTED = 5.0
"""Requests: with fewer to expect it is chance that there are none."""
REFUSED_Z, REFUSED_RATIO, REFUSED_ROWS, REFUSED_SHARE = 6.0, 3.0, 20, 0.1
"""The last is of requests: fewer rows, one for each of them at the most, move the mean by less than is tolerated."""
LISTS_MIX = 0.2
"""Share of the requests that other slices may bring than a day before, for lists to be compared with those of then."""
LISTS_RATIO, LISTS_REQUESTS, LISTS_BEFORE = 0.6, 50, 10
"""Of the usual items a request, from where on lists are shorter; the requests that tell it; and those of the same step
of the day before that tell that they were longer then: some pages have shorter lists, and are looked at by night."""
SLICE_CHANCE = 11.0
"""Logarithm of one over the chance (Chernoff's bound) below which it is none that a slice lacks most of its labels."""
SLICE_FEWER, SLICE_FEWEST = 0.85, 0.25
"""Of a slice's usual labels, what may be usual where its lists got worse; and while an alarm is open on it, for people
who find nothing leave none."""
SEEN_AGAIN, CLEARLY_FEWER = 0.8, 0.75
"""Share of the usual labels from where on a slice has them again; of the expected ones below which a day shows whether
they explain its fall."""
SLICE_Z, LEAST_OF_OTHERS = 4.0, 0.5
"""Standard deviations of the usual spread beyond which labels are missing; the least share of theirs that the others
are taken to have."""
MOST_LOST, MOST_LOST_GOES_ON, MOST_LOST_BEGINS = 0.5, 0.4, 0.6
"""Share of the requests up to which slices without labels are slices; more of them, and it is all traffic. The others
are while it is all traffic, and while slices are left out."""

REQUESTS, JUDGED, TOTAL, EXPECTED, LABELLED, EXPECTED_LABELLED, SERVED, EXPECTED_REQUESTS = range(8)
"""Sums of steps: REQUESTS came, SERVED are those of slices with a baseline, JUDGED those of these that are in the
measure. The last two are the same where a request without a label counts 0."""
FIELDS = 8
Rows = list[list[float]]
"""Sums of T steps, 8 of each: single numbers of arrays are slow."""
FEW = 6
"""Rows up to which it is faster to add them one by one."""
EVENTS, UNMATCHED, REFUSED, SHOWN = range(4)


def rolling(values: Floats, length: int, steps: int) -> Floats:
    """Sums of `length` rows that end at each of the last `steps` rows; rows on the second axis.

    Each sum is taken in the same order, however many there are at once, and in whichever of the two ways.
    """
    if steps == 1:
        return _last(values, length)[:, None]
    first = values.shape[1] - steps - length + 1
    found = values[:, first : first + steps].copy()
    for row in range(first + 1, first + length):
        found += values[:, row : row + steps]
    return found


def _last(values: Floats, length: int) -> Floats:
    """The sum of the last `length` rows: all at once where they are many, which for a few takes longer."""
    if length > FEW:
        found: Floats = np.add.accumulate(values[:, -length:], axis=1)[:, -1]
        return found
    found = values[:, -length]
    for row in range(1 - length, 0):
        found = found + values[:, row]
    return found


@frozen
class Dispersion:
    """Relative standard deviations beyond chance, of coverage and of traffic."""

    coverage: float
    volume: float


def are_well(spans: Sequence[Rows], shown: Sequence[Floats], usual: float, refused: Floats) -> bool:
    """Whether no gate could find anything in T steps: as ever, and seen with plain numbers in a fraction of the time.

    Args:
        spans: T times 8 sums of a step, of three hours, of a day.
        shown: (T,) items in a step, and in three hours.
        usual: items for each request.
        refused: (T,) rows that were refused in three hours.
    """
    least, (step, short, day) = LISTS_RATIO * usual, spans
    rows = zip(step, short, day, shown[0].tolist(), shown[1].tolist(), strict=True)
    return max(refused.tolist()) < REFUSED_ROWS and all(_is_well(*row, least) for row in rows)


def _is_well(
    step: list[float], short: list[float], day: list[float], items: float, lately: float, least: float
) -> bool:
    return (
        _has_labels(step)
        and _has_labels(short)
        and _has_labels(day)
        and short[REQUESTS] >= TRAFFIC_AGAIN_RATIO * short[EXPECTED_REQUESTS]
        and day[REQUESTS] >= TRAFFIC_AGAIN_RATIO * day[EXPECTED_REQUESTS]
        and items >= least * step[REQUESTS]
        and lately >= least * short[REQUESTS]
    )


def _has_labels(sums: list[float]) -> bool:
    return sums[LABELLED] > LABELS_RATIO * sums[EXPECTED_LABELLED] and sums[TOTAL] > 0


def labels_suspect(
    spans: tuple[Floats, Floats, Floats],
    spread: Dispersion,
    most: float = LABELS_RATIO,
    most_unseen: float = LABELS_RATIO_SETTLING,
) -> Bools:
    """(T,) whether coverage fell, and by so much that it explains the fall of the mean, or every value is 0.

    Where requests without a label are in no measure, their loss moves no mean: it is enough that most labels are gone.

    Args:
        spans: (8, T) sums of a step, of three hours, of a day; the last is for thin traffic only, and only as long as
            labels are missing in its last hours too.
        most: of the expected labels, from where on none are missing.
        most_unseen: the same where requests without a label are in no measure.
    """
    # All at once, for three times over would take three times as long.
    every = np.concatenate(spans, axis=1)
    limit = max(most, most_unseen)
    if not some((every[LABELLED] <= limit * every[EXPECTED_LABELLED]) | (every[TOTAL] == 0)):  # as ever
        return np.zeros(spans[0].shape[1], bool)
    found = _labels(every, spread, most)
    unseen = _has_unseen(every)
    if some(unseen):
        found = np.where(unseen, _most_gone(every, spread, most_unseen), found)
    step, short, day = found.reshape(3, -1)
    worthless = is_worthless(every).reshape(3, -1).any(axis=0)
    lately, unseen = spans[1], _has_unseen(spans[1])
    thin = np.where(unseen, lately[EXPECTED_LABELLED], lately[REQUESTS]) < LABELS_REQUESTS
    few = lately[LABELLED] - lately[EXPECTED_LABELLED] < LABELS_STILL * np.sqrt(lately[EXPECTED_LABELLED])
    most_lately = np.where(unseen, most_unseen, most)
    still = few & (lately[LABELLED] < most_lately * lately[EXPECTED_LABELLED])
    every_span: Bools = step | short | (thin & day & still) | worthless
    return every_span


def is_worthless(sums: Floats, with_labels: bool = False) -> Bools:
    """Whether not one request is worth anything, where many should be: no model is as bad as that, grades are lost.

    Args:
        with_labels: and as good as all labels are there.
    """
    found: Bools = (sums[TOTAL] == 0) & (sums[EXPECTED] >= WORTHLESS_EXPECTED)
    return found & (sums[LABELLED] >= LABELS_RATIO_SETTLING * sums[EXPECTED_LABELLED]) if with_labels else found


def _labels(sums: Floats, spread: Dispersion, most: float) -> Bools:
    size, (expected, error, ratio, mean) = sums[SERVED], _of_labels(sums, spread)
    fell = (sums[LABELLED] - expected < LABELS_Z * error) & (ratio < most)
    of_labels, of_mean = np.log(ratio), np.log(mean)
    explain, explain_all = (of_labels < share * of_mean for share in (LABELS_EXPLAIN, LABELS_EXPLAIN_ALL))
    beyond_doubt = (ratio < LABELS_GONE) | (sums[LABELLED] - expected < LABELS_FEW_Z * error)
    few = ((size >= LABELS_FEW_REQUESTS) & beyond_doubt) | ((size >= LABELS_SOME_REQUESTS) & explain_all)
    found: Bools = fell & (mean < 1) & explain & ((size >= LABELS_REQUESTS) | few) & (sums[EXPECTED] > 0)
    return found


def labels_explain(sums: Floats, unit: int, spread: Dispersion) -> bool:
    """Whether missing labels explain what a unit has fallen by, in (8, S) sums of the time of its fall.

    They must be missing from most of the traffic, for people who find less in one slice leave fewer there; and those
    that are left, of all and of the unit, be worth about what they were. Where requests without a label are in no
    measure, their loss moves no mean.

    Args:
        unit: 0 for overall, or the number of a slice from 1 on.
    """
    of_all = np.stack([sums.sum(axis=1), sums[:, max(unit, 1) - 1]], axis=1)
    expected, error, ratio, mean = _of_labels(of_all, spread)
    fewer = (of_all[LABELLED] - expected < LABELS_OPENING_Z * error) & (ratio < LABELS_OPENING_RATIO)
    explained = fewer & (mean < 1) & (np.log(ratio) < LABELS_EXPLAIN * np.log(mean)) & (of_all[EXPECTED] > 0)
    lacking = sums[LABELLED] < LABELS_OPENING_RATIO * sums[EXPECTED_LABELLED]
    is_wide = bool(sums[SERVED][lacking].sum() > MOST_LOST * of_all[SERVED, 0])
    is_unit = unit == 0 or bool(explained[1])
    return bool(explained[0]) and is_unit and is_wide and not bool(_has_unseen(of_all)[0])


def labels_still_lack(short: Floats) -> bool:
    """Whether labels are missing in (8,) sums of three hours as well, if only by what chance seldom does."""
    labelled, expected = float(short[LABELLED]), float(short[EXPECTED_LABELLED])
    return labelled < LABELS_OPENING_RATIO * expected and labelled - expected < LABELS_STILL * expected**0.5


def _of_labels(sums: Floats, spread: Dispersion) -> tuple[Floats, Floats, Floats, Floats]:
    """(labels that are expected, their standard error, share of them that there is, share of the expected mean)."""
    size, expected = sums[SERVED], np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    share = np.minimum(expected / np.maximum(size, 1e-9), 1.0)
    error = np.sqrt(expected * (1 - share) + (spread.coverage * expected) ** 2 + 0.25)
    mean = np.maximum(sums[TOTAL] / np.maximum(sums[EXPECTED], 1e-9), 1e-6)
    return expected, error, np.maximum(sums[LABELLED] / expected, 1e-6), mean


def _has_unseen(sums: Floats) -> Bools:
    """Whether there are requests that are in no measure, for they have no label."""
    found: Bools = sums[SERVED] > sums[JUDGED]
    return found


def _most_gone(sums: Floats, spread: Dispersion, most: float) -> Bools:
    """(3 T,) whether most labels are gone, in sums of steps, of three hours and of days; see `labels_suspect`.

    Beyond chance and their usual spread, which a day evens out, and clearly more than that: else a share of about as
    much would make them suspect by turns.
    """
    ratio = sums[LABELLED] / np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    share = np.minimum(sums[EXPECTED_LABELLED] / np.maximum(sums[SERVED], 1e-9), MOST_SURE)
    count = len(ratio) // 3
    beyond = np.minimum(SLICE_Z * spread.coverage, np.repeat([_all_of(spread), _all_of(spread), MOST_SPREAD], count))
    found: Bools = (ratio < most) & (1 - ratio > beyond) & _are_fewer(sums)
    found &= (_surprise(sums, share) > SLICE_CHANCE) & (_surprise(sums, most * share) > CLEARLY_MORE)
    return found


def _all_of(spread: Dispersion) -> float:
    """Share of the labels of a few hours that must be gone where they spread widely; more than all if that is usual."""
    return ALL_BUT_NONE if spread.coverage < WIDE else 1.0


def _are_fewer(sums: Floats) -> Bools:
    """Whether there are fewer labels than so many requests have that are usual: not if just more requests came."""
    found: Bools = (
        sums[LABELLED] * sums[SERVED] < LABELS_RATIO_SETTLING * sums[EXPECTED_REQUESTS] * sums[EXPECTED_LABELLED]
    )
    return found


def _surprise(sums: Floats, share: Floats) -> Floats:
    """Logarithm of one over Chernoff's bound on the chance of so few labels, where a share of requests usually has."""
    size = np.maximum(sums[SERVED], 1e-9)
    share, seen = (np.clip(part, 1e-9, 1 - 1e-9) for part in (share, sums[LABELLED] / size))
    found: Floats = size * (seen * np.log(seen / share) + (1 - seen) * np.log((1 - seen) / (1 - share)))
    return np.where(seen < share, found, 0.0)


def slices_short_of_labels(step: Floats, short: Floats) -> Bools:
    """(T, S) whether a slice has few labels, be it by chance, in (8, T, S) sums of a step or of three hours."""
    found: Bools = step[LABELLED] < LABELS_RATIO_DEGRADED * step[EXPECTED_LABELLED]
    found |= short[LABELLED] < LABELS_RATIO_DEGRADED * short[EXPECTED_LABELLED]
    return found


def slices_unlabelled(spans: Sequence[Floats], spread: Dispersion, usual: Floats) -> Bools:
    """(T, S) whether a slice has lost most of its labels, of which the others have not lost as many.

    Args:
        spans: (8, T, S) sums of a step, of three hours, and of longer times up to a day: the longer ones for thin
            slices, and only as long as labels are missing in the last three hours too.
        usual: (T, S) share of the expected labels that would be nothing unusual.
    """
    step, short, *longer = spans
    found = _lost(step, usual, spread) | _lost(short, usual, spread)
    still = short[LABELLED] < LABELS_RATIO_DEGRADED * short[EXPECTED_LABELLED]
    for sums in longer:
        found |= still & _lost(sums, usual, spread)
    return found


def labels_of_others(sums: Floats) -> Floats:
    """(T, S) share of the expected labels that all other slices have."""
    labelled, expected = (
        sums[field].sum(axis=1, keepdims=True) - sums[field] for field in (LABELLED, EXPECTED_LABELLED)
    )
    found: Floats = np.clip(labelled / np.maximum(expected, 1e-9), LEAST_OF_OTHERS, 1.0)
    return found


def _lost(sums: Floats, usual: Floats, spread: Dispersion) -> Bools:
    """Whether most labels are missing, at any number of requests: beyond chance, and beyond their usual spread."""
    size, expected = np.maximum(sums[SERVED], 1e-9), np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    ratio, few = sums[LABELLED] / expected, np.where(size < LABELS_REQUESTS, LABELS_GONE, LABELS_RATIO_DEGRADED)
    is_most = (ratio < few) & (1 - ratio > SLICE_Z * spread.coverage)
    found: Bools = is_most & _explain(sums) & (_surprise(sums, usual * expected / size) > SLICE_CHANCE)
    return found & (_are_fewer(sums) | ~_has_unseen(sums))


def _explain(sums: Floats) -> Bools:
    """Whether missing labels explain the fall of the mean: those that are left are worth about what they were.

    Where requests without a label are in no measure, there is none to explain.
    """
    ratio = sums[LABELLED] / np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    mean = sums[TOTAL] / np.maximum(sums[EXPECTED], 1e-9)
    found: Bools = (mean < 1) & (ratio <= np.minimum(mean, 1.0) ** LABELS_EXPLAIN) & (sums[EXPECTED] > 0)
    return found | _has_unseen(sums)


def slices_left_out(
    flagged: Bools, was: Bools, was_most: bool, is_open: Bools, usual: Floats, short: Floats, day: Floats
) -> tuple[Bools, Bools]:
    """(T, S) whether a slice is without its labels while the others have theirs; (T,) whether most are without.

    Once it has lost them it is so until most are seen again, however few its requests are at night. A day that shows
    that they do not explain its fall says that they are not lost, unless it had fallen before; one without any request
    ends it too.

    Args:
        flagged: (T, S) of `slices_unlabelled`.
        was, was_most: (S,) and whether, of the step before.
        is_open: (S,) whether an alarm is open on it.
        usual: (T, S) share of the expected labels that would be nothing unusual.
        short, day: (8, T, S) sums of three hours and of a day.
    """
    still = (short[LABELLED] <= SEEN_AGAIN * usual * short[EXPECTED_LABELLED]) & (day[REQUESTS] > 0)
    may_be: Bools = is_open | _explain(day) | (day[LABELLED] >= CLEARLY_FEWER * day[EXPECTED_LABELLED])
    size, found, most = short[REQUESTS], flagged & may_be, np.zeros(len(flagged), bool)
    for row in range(len(found)):
        found[row] |= was & still[row] & may_be[row]
        least = MOST_LOST_GOES_ON if was_most else MOST_LOST_BEGINS if was.any() else MOST_LOST
        if was_most := bool((size[row] * found[row]).sum() > least * size[row].sum()):
            most[row], found[row] = True, False
        was = found[row]
    return found, most


def traffic_low(
    short: Floats, day: Floats, spread: Dispersion, shifted: Callable[[], Floats]
) -> tuple[Bools, Bools, Bools]:
    """(T,) whether less than half of the expected requests came, (T,) whether so few that it may be low again.

    They must be few by an hour earlier and later as well: people go by clocks that are put forward and back, not by
    UTC.

    And (T,) whether so few came in hours with so few to expect that it is as low still, if it was: the day, by which
    thin hours are judged, may have had many before it was.

    Args:
        short, day: (8, T) sums of three hours or of a day; the latter are for thin traffic.
        shifted: gives the (2, T) share of the expected requests of both that would be expected if clocks had been
            changed; asked for only where there are few.
    """
    # Both at once, for twice would take twice as long.
    both = np.array([short, day])
    requests, expected = both[:, REQUESTS], both[:, EXPECTED_REQUESTS]
    few: Bools = requests < TRAFFIC_AGAIN_RATIO * expected
    if not some(few):  # as ever
        none = np.zeros(few.shape[1], bool)
        return none, none, none
    lacking = _lacking(requests, expected, spread)
    is_thick, is_enough = expected[0] >= TRAFFIC_EXPECTED, expected[1] >= TRAFFIC_THIN

    def fell(of_both: Bools) -> Bools:
        of_hours, of_day = of_both
        found: Bools = np.where(is_thick, of_hours, of_day & is_enough)
        return found

    again = few & (lacking < TRAFFIC_AGAIN_Z) & (_lacking(requests, expected * shifted(), spread) < TRAFFIC_CLOCKS_Z)
    is_low = again & (requests < TRAFFIC_RATIO * expected) & (lacking < TRAFFIC_Z)
    return fell(is_low), fell(again), few[0] & ~is_thick


def _lacking(requests: Floats, expected: Floats, spread: Dispersion) -> Floats:
    """By how many standard deviations there are more requests than expected."""
    found: Floats = (requests - expected) / np.maximum(np.sqrt(expected + (spread.volume * expected) ** 2), 1e-9)
    return found


def slices_short(requests: Floats, expected: Floats) -> Bools:
    """(T, S) whether a slice has as good as no requests, be it by chance, in sums of a few hours."""
    found: Bools = requests < MISSING_RATIO * expected
    return found


def slices_away(requests: Floats, expected: Floats) -> Bools:
    """(T, S) whether a slice has no request where some are expected, by sums of some hours."""
    found: Bools = (requests == 0) & (expected >= AWAY_EXPECTED)
    return found


def slices_missing(requests: Floats, expected: Floats) -> Bools:
    """(T, S) whether a slice has lost as good as all requests while the others go on, by sums of some hours."""
    size, whole = requests.sum(axis=1, keepdims=True), expected.sum(axis=1, keepdims=True)
    present = size / np.maximum(whole, 1e-9)
    usual = expected * np.minimum(present, 1.0)
    gone = requests - usual < MISSING_Z * np.sqrt(usual + (0.1 * usual) ** 2)
    found: Bools = (usual >= MISSING_EXPECTED) & (requests < MISSING_RATIO * usual) & gone
    return found


def rows_refused(short: Floats, refused: Floats, usual: float) -> Bools:
    """(T,) whether many more rows were refused than usual.

    Args:
        short: (8, T) sums of three hours.
        refused: (T,) rows that were refused in them.
        usual: refused rows for each request.
    """
    many: Bools = refused >= REFUSED_ROWS
    if not some(many):  # as ever
        return many
    many &= refused > REFUSED_SHARE * short[REQUESTS]
    expected = usual * short[REQUESTS]
    error = np.sqrt(np.maximum(expected, 1.0) + (0.5 * expected) ** 2)
    found: Bools = many & (refused > REFUSED_RATIO * expected) & (refused - expected > REFUSED_Z * error)
    return found


def lists_short(spans: Sequence[Floats], shown: Sequence[Floats], in_day: Callable[[], Floats], usual: float) -> Bools:
    """(T,) whether far fewer items a request were shown than usual: positions are not logged any more, or not shown.

    Args:
        spans: (8, T) sums of a step, of three hours, of a day; the longer ones for thin traffic, and the day only as
            long as lists are short in its last hours too.
        shown: (T,) items in a step, and in three hours.
        in_day: gives those in a day; asked for only where lists are short.
        usual: items for each request.
    """
    least = LISTS_RATIO * usual
    of_step: Bools = shown[0] < least * spans[0][REQUESTS]
    of_hours: Bools = shown[1] < least * spans[1][REQUESTS]
    if not some(of_step | of_hours):  # as ever
        return of_step
    step, short, day = (sums[REQUESTS] >= LISTS_REQUESTS for sums in spans)
    of_day = in_day() < least * spans[2][REQUESTS]
    found: Bools = (of_step & step) | (of_hours & (short | (of_day & day)))
    return found


def lists_fell(sizes: Floats, shown: Floats, sizes_before: Floats, shown_before: Floats) -> Bools:
    """(T,) whether far fewer items a request were shown than in the same step of the day before, where that is known.

    Not where other slices bring the requests: each may have lists of a length of its own.

    Args:
        sizes, sizes_before: (T, S) requests of a step, and of that of the day before.
        shown, shown_before: (T,) items in each.
    """
    size, before = sizes.sum(axis=1), sizes_before.sum(axis=1)
    share, former = sizes / np.maximum(size, 1)[:, None], sizes_before / np.maximum(before, 1)[:, None]
    chance = np.sqrt(sizes.shape[1] * (1 / np.maximum(size, 1) + 1 / np.maximum(before, 1))) / 2
    is_alike = np.abs(share - former).sum(axis=1) / 2 <= LISTS_MIX + chance
    fell = shown * before < LISTS_RATIO * shown_before * size
    found: Bools = (fell & is_alike) | (before < LISTS_BEFORE)
    return found
