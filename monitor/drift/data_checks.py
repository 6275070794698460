"""Data checks before the model is judged: have labels, rows, traffic or slices gone missing?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from monitor.arrays import Bools, Floats
from monitor.drift import constants as c
from monitor.drift.series import frozen, some

REQUESTS, JUDGED, TOTAL, EXPECTED, FOUND, LABELLED, EXPECTED_LABELLED, SERVED, EXPECTED_REQUESTS = range(9)
"""Fields of sums: all REQUESTS; SERVED, those of slices with a baseline; JUDGED, those of them in the measure.
SERVED and JUDGED are the same if an unlabelled request counts 0. FOUND is TOTAL by the usual ideal, not by their own.
"""
FIELDS = 9
Rows = list[list[float]]
"""Sums of T steps, 9 each, as plain numbers: indexing single array elements is slow."""
FEW = 6
"""Number of rows up to which adding them one by one is faster."""
EVENTS, UNMATCHED, REFUSED, SHOWN, RANK_ONE = range(5)


def rolling(values: Floats, length: int, steps: int) -> Floats:
    """Sums of `length` rows that end at each of the last `steps` rows; rows on the second axis.

    Always added in the same order, however many are computed at once.
    """
    if steps == 1:
        return _last(values, length)[:, None]
    first = values.shape[1] - steps - length + 1
    found = values[:, first : first + steps].copy()
    for row in range(first + 1, first + length):
        found += values[:, row : row + steps]
    return found


def _last(values: Floats, length: int) -> Floats:
    if length > FEW:
        return np.add.accumulate(values[:, -length:], axis=1)[:, -1]
    found = values[:, -length]
    for row in range(1 - length, 0):
        found = found + values[:, row]
    return found


@frozen
class Dispersion:
    """Relative standard deviations of coverage and traffic beyond chance.

    `is_label_all`: whether a value only says that there is a label, as for clicks on lists of one item; lost
    labels cannot be told from a worse model then.
    """

    coverage: float
    volume: float
    is_label_all: bool = False


@frozen
class LogShape:
    """(5, N) `crowd` of N steps, fields as below; variance of the items at rank 1 of a request."""

    crowd: Floats
    rank_variance: float


def are_well(
    spans: Sequence[Rows], shown: Sequence[Floats], usual: float, refused: Floats, ranked: Floats, first: float
) -> bool:
    """Whether no check can find anything in T steps: a fast test on plain sums of a step, of three hours, of a day.

    `shown` items in a step and in three hours, rows `refused` and items `ranked` first in three hours, are (T,); the
    `usual` items, and those ranked `first`, are per request.
    """
    if any(abs(n - first * s[REQUESTS]) > c.LEAST_CHANGE * n for n, s in zip(ranked.tolist(), spans[1], strict=True)):
        return False
    least, (step, short, day) = c.LISTS_RATIO * usual, spans
    rows = zip(step, short, day, shown[0].tolist(), shown[1].tolist(), strict=True)
    return max(refused.tolist()) < c.FEW and all(_is_well(*row, least) for row in rows)


def _is_well(
    step: list[float], short: list[float], day: list[float], items: float, lately: float, least: float
) -> bool:
    return (
        _has_labels(step)
        and _has_labels(short)
        and _has_labels(day)
        and short[REQUESTS] >= c.TRAFFIC_AGAIN_RATIO * short[EXPECTED_REQUESTS]
        and day[REQUESTS] >= c.TRAFFIC_AGAIN_RATIO * day[EXPECTED_REQUESTS]
        and items >= least * step[REQUESTS]
        and lately >= least * short[REQUESTS]
    )


def _has_labels(sums: list[float]) -> bool:
    return sums[LABELLED] > c.LABELS_RATIO * sums[EXPECTED_LABELLED] and sums[TOTAL] > 0


def labels_suspect(
    spans: tuple[Floats, Floats, Floats],
    spread: Dispersion,
    most: float = c.LABELS_RATIO,
    most_unseen: float = c.LABELS_RATIO_SETTLING,
) -> Bools:
    """(T,) whether coverage fell enough to explain the fall of the mean, or every value is 0.

    If unlabelled requests are in no measure, losing labels moves no mean: then it is enough that most are gone. If a
    label is all that a value says, most must be gone too: a worse model looks the same.

    Args:
        spans: (9, T) sums of a step, of three hours, of a day; the day counts only for thin traffic, and only
            while labels are missing in its last hours too.
        most, most_unseen: share of the expected labels above which none are missing; the latter if unlabelled
            requests are in no measure.
    """
    every = np.concatenate(spans, axis=1)
    most = min(most, c.LABELS_RATIO_DEGRADED) if spread.is_label_all else most
    limit = max(most, most_unseen)
    if not some((every[LABELLED] <= limit * every[EXPECTED_LABELLED]) | (every[TOTAL] == 0)):
        return np.zeros(spans[0].shape[1], bool)
    found = _labels(every, spread, most)
    unseen = _has_unseen(every)
    if some(unseen):
        found = np.where(unseen, _most_gone(every, spread, most_unseen), found)
    step, short, day = found.reshape(3, -1)
    worthless = is_worthless(every).reshape(3, -1).any(axis=0)
    lately, unseen = spans[1], _has_unseen(spans[1])
    thin = np.where(unseen, lately[EXPECTED_LABELLED], lately[REQUESTS]) < c.LABELS_REQUESTS
    few = lately[LABELLED] - lately[EXPECTED_LABELLED] < c.LABELS_STILL_Z * np.sqrt(lately[EXPECTED_LABELLED])
    most_lately = np.where(unseen, most_unseen, most)
    still = few & (lately[LABELLED] < most_lately * lately[EXPECTED_LABELLED])
    every_span: Bools = step | short | (thin & day & still) | worthless
    return every_span


def is_worthless(sums: Floats, with_labels: bool = False) -> Bools:
    """Whether no request is worth anything, though many should be; `with_labels`: and most labels are present."""
    found: Bools = (sums[TOTAL] == 0) & (sums[EXPECTED] >= c.FEW)
    return found & (sums[LABELLED] >= c.LABELS_RATIO_SETTLING * sums[EXPECTED_LABELLED]) if with_labels else found


def _labels(sums: Floats, spread: Dispersion, most: float) -> Bools:
    size, (expected, error, ratio, mean) = sums[SERVED], _of_labels(sums, spread)
    fell = (sums[LABELLED] - expected < c.LABELS_Z * error) & (ratio < most)
    of_labels, of_mean = np.log(ratio), np.log(mean)
    explain, explain_all = (of_labels < share * of_mean for share in (c.LABELS_EXPLAIN, c.LABELS_EXPLAIN_ALL))
    beyond_doubt = (ratio < c.LABELS_GONE) | (sums[LABELLED] - expected < 2 * c.LABELS_Z * error)
    few = ((size >= c.FEW) & beyond_doubt) | ((size >= c.ENOUGH_REQUESTS) & explain_all)
    return fell & (mean < 1) & explain & ((size >= c.LABELS_REQUESTS) | few) & (sums[EXPECTED] > 0)


Explanation = Literal["labels", "both", "model", "unclear"]


def explanation(sums: Floats, unit: int, spread: Dispersion, error: Floats, least: float = 0.0) -> Explanation:
    """What explains a unit's fall, in (9, S) sums of its time: missing labels, a worse model, either, or both.

    Missing labels leave the mean of the labelled requests; who finds less clicks less, and what is clicked is worse.
    Labels must be missing from most of the traffic, since a worse slice gets fewer labels anyway.

    Args:
        unit: 0 for overall, or a slice's number from 1 on.
        error: (2,) relative standard errors of the mean of the labelled requests, of overall and of the unit.
        least: log odds that missing labels need to be the explanation.
    """
    whole = sums.sum(axis=1)
    of_all = np.stack([whole, sums[:, unit - 1] if unit else whole], axis=1)
    expected, of_labels, ratio, mean = _of_labels(of_all, spread)
    is_wide = _do_most_lack(sums, ratio[0], spread)
    z = (of_all[LABELLED, 0] - expected[0]) / of_labels[0]
    is_unknown = spread.is_label_all or bool(_has_unseen(of_all)[0]) or not (of_all[EXPECTED] > 0).all()
    if not is_wide or z > c.LABELS_STILL_Z or is_unknown:
        return "model"
    fell = np.minimum(np.log(mean), -c.LEAST_TOLERATED)
    of_labelled, of_model = np.log(mean) - np.log(ratio), 2 * (1 - c.LABELS_EXPLAIN) * fell
    odds = (of_labelled**2 - (of_labelled - of_model) ** 2) / (2 * error**2)
    if odds[0] > c.LIKELIER_LOG or (unit and odds[1] > c.LIKELIER_LOG):
        return "model"
    if not (labels_surely_lack(of_all[:, 0], spread) and odds[0] < -least):
        return "unclear"
    return "both" if of_labelled[0] < -error[0] * (2 * c.SURE_LOG) ** 0.5 else "labels"


def _do_most_lack(sums: Floats, left: float, spread: Dispersion) -> bool:
    """Whether labels may be missing from most of the traffic, in (9, S) sums; of all labels a share is `left`.

    Not if the slices beyond those that lack most clearly have theirs: that is likelier than that they lack half as
    large a share as all traffic. A cut of each slice's own share would go by chance, since a slice has few labels.
    """
    expected, error, ratio, _ = _of_labels(sums, spread)
    order = np.argsort(ratio, kind="stable")
    rest = order[np.cumsum(sums[SERVED, order]) > c.MOST_LOST * sums[REQUESTS].sum()]
    half, none = ((sums[LABELLED] - share * expected) ** 2 / (2 * error**2) for share in ((1 + left) / 2, 1.0))
    return len(rest) > 0 and float((half - none)[rest].sum()) <= c.LIKELIER_LOG


def labels_surely_lack(sums: Floats, spread: Dispersion) -> bool:
    """Whether (9,) sums lack as many labels as a loss that is reported, and not by chance."""
    expected, error, ratio, _ = _of_labels(sums, spread)
    is_sure: Floats = sums[LABELLED] - expected < c.LABELS_Z / 2 * error
    return bool(is_sure) and bool(ratio < c.LABELS_OPENING_RATIO)


def labels_still_lack(sums: Floats) -> bool:
    """Whether (9,) sums are nearer to the least loss that is reported than to none: chance may hide a part of one."""
    return float(sums[LABELLED]) < (1 + c.LABELS_OPENING_RATIO) / 2 * float(sums[EXPECTED_LABELLED])


def labels_came_back(short: Floats, day: Floats) -> bool:
    """Whether (9,) sums of some hours are clearly nearer to the usual labels than to those of the day."""
    expected, middle = (
        float(short[EXPECTED_LABELLED]),
        (1 + float(day[LABELLED] / max(day[EXPECTED_LABELLED], 1e-9))) / 2,
    )
    return float(short[LABELLED]) - middle * expected > -c.LABELS_STILL_Z * expected**0.5


def _of_labels(sums: Floats, spread: Dispersion) -> tuple[Floats, Floats, Floats, Floats]:
    """(expected labels, their standard error, share of them present, share of the expected mean)."""
    size, expected = sums[SERVED], np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    share = np.minimum(expected / np.maximum(size, 1e-9), 1.0)
    error = np.sqrt(expected * (1 - share) + (spread.coverage * expected) ** 2 + 0.25)
    mean = np.maximum(sums[TOTAL] / np.maximum(sums[EXPECTED], 1e-9), 1e-6)
    return expected, error, np.maximum(sums[LABELLED] / expected, 1e-6), mean


def _has_unseen(sums: Floats) -> Bools:
    return sums[SERVED] > sums[JUDGED]


def labels_fewer(short: Floats, day: Floats, spread: Dispersion) -> Bools:
    """(T,) whether fewer requests of a day than usual have a label, by (9, T) sums, beyond chance and usual spread.

    Not if its last hours are nearer to the usual: then a short loss is over.
    """
    lack = 2 * short[LABELLED] * day[EXPECTED_LABELLED] < short[EXPECTED_LABELLED] * (
        day[LABELLED] + day[EXPECTED_LABELLED]
    )
    return lack & _are_gone(day, spread, c.LABELS_RATIO, c.LABELS_RARE_OF_DAY)


def _most_gone(sums: Floats, spread: Dispersion, most: float) -> Bools:
    """(3 T,) whether most labels are gone, beyond chance and their usual spread."""
    of_hours = c.LABELS_RARE if spread.coverage < c.LABELS_WIDE else 1.0
    rare = np.repeat([of_hours, of_hours, c.LABELS_RARE_OF_DAY], sums.shape[1] // 3)
    return _are_gone(sums, spread, most, rare)


def _are_gone(sums: Floats, spread: Dispersion, most: float, rare: Floats | float) -> Bools:
    """Whether labels are gone, so that at most a share is left, and a part is that is wide or `rare`."""
    ratio = sums[LABELLED] / np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    share = np.minimum(sums[EXPECTED_LABELLED] / np.maximum(sums[SERVED], 1e-9), c.NEARLY_ALL)
    beyond = np.minimum(c.SLICE_Z * spread.coverage, rare)
    found: Bools = (ratio < most) & (1 - ratio > beyond) & _are_fewer(sums, max(most, c.LABELS_RATIO_SETTLING))
    found &= (_surprise(sums, share) > c.SURE_LOG) & (_surprise(sums, most * share) > c.LIKELIER_LOG)
    return found


def _are_fewer(sums: Floats, most: float = c.LABELS_RATIO_SETTLING) -> Bools:
    """Whether labels are fewer than usual in number, not just in share because more requests came."""
    found: Bools = sums[LABELLED] * sums[SERVED] < most * sums[EXPECTED_REQUESTS] * sums[EXPECTED_LABELLED]
    return found


def _surprise(sums: Floats, share: Floats) -> Floats:
    """Log of one over Chernoff's bound on the chance of so few labels, given the usual share of requests with one."""
    size = np.maximum(sums[SERVED], 1e-9)
    share, seen = (np.clip(part, 1e-9, 1 - 1e-9) for part in (share, sums[LABELLED] / size))
    found: Floats = size * (seen * np.log(seen / share) + (1 - seen) * np.log((1 - seen) / (1 - share)))
    return np.where(seen < share, found, 0.0)


def slices_short_of_labels(step: Floats, short: Floats) -> Bools:
    """(T, S) whether a slice has few labels, perhaps by chance, in (9, T, S) sums of a step or of three hours."""
    found: Bools = step[LABELLED] < c.LABELS_RATIO_DEGRADED * step[EXPECTED_LABELLED]
    found |= short[LABELLED] < c.LABELS_RATIO_DEGRADED * short[EXPECTED_LABELLED]
    return found


def slices_unlabelled(spans: Sequence[Floats], spread: Dispersion, usual: Floats) -> Bools:
    """(T, S) whether a slice has lost most of its labels; `usual` is the share that would be normal.

    By (9, T, S) sums of a step, of three hours, and of up to a day for thin slices. The longer ones count only while
    labels are missing in the last three hours too.
    """
    step, short, *longer = spans
    found = _lost(step, usual, spread) | _lost(short, usual, spread)
    still = short[LABELLED] < c.LABELS_RATIO_DEGRADED * short[EXPECTED_LABELLED]
    for sums in longer:
        found |= still & _lost(sums, usual, spread)
    return found


def labels_of_others(sums: Floats) -> Floats:
    """(T, S) share of the expected labels that all other slices have."""
    labelled, expected = (
        sums[field].sum(axis=1, keepdims=True) - sums[field] for field in (LABELLED, EXPECTED_LABELLED)
    )
    return np.clip(labelled / np.maximum(expected, 1e-9), c.LEAST_OF_OTHERS, 1.0)


def _lost(sums: Floats, usual: Floats, spread: Dispersion) -> Bools:
    """Whether most labels are missing, for any number of requests, beyond chance and their usual spread."""
    size, expected = np.maximum(sums[SERVED], 1e-9), np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    ratio, few = sums[LABELLED] / expected, np.where(size < c.LABELS_REQUESTS, c.LABELS_GONE, c.LABELS_RATIO_DEGRADED)
    is_most = (ratio < few) & (1 - ratio > c.SLICE_Z * spread.coverage)
    found: Bools = is_most & _explain(sums) & (_surprise(sums, usual * expected / size) > c.SURE_LOG)
    return found & (_are_fewer(sums) | ~_has_unseen(sums))


def _explain(sums: Floats) -> Bools:
    """Whether missing labels explain the fall of the mean, or are in no measure so that there is none to explain."""
    ratio = sums[LABELLED] / np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    mean = sums[TOTAL] / np.maximum(sums[EXPECTED], 1e-9)
    found: Bools = (mean < 1) & (ratio <= np.minimum(mean, 1.0) ** c.LABELS_EXPLAIN) & (sums[EXPECTED] > 0)
    return found | _has_unseen(sums)


def slices_left_out(
    flagged: Bools, was: Bools, was_most: bool, is_open: Bools, usual: Floats, short: Floats, day: Floats
) -> tuple[Bools, Bools]:
    """(T, S) whether a slice has lost its labels while the others have theirs; (T,) whether most slices have.

    A slice recovers when most labels are back, its day has no request, or its day shows that labels do not explain its
    fall; the last not while its alarm is open.

    By (T, S) results of `slices_unlabelled`, those before, (S,) open alarms, the `usual` share of the labels, and
    (9, T, S) sums of three hours and of a day.
    """
    still = (short[LABELLED] <= c.SLICE_SEEN_AGAIN * usual * short[EXPECTED_LABELLED]) & (day[REQUESTS] > 0)
    may_be: Bools = is_open | _explain(day) | (day[LABELLED] >= c.SLICE_CLEARLY_FEWER * day[EXPECTED_LABELLED])
    size, found, most = short[REQUESTS], flagged & may_be, np.zeros(len(flagged), bool)
    for row in range(len(found)):
        found[row] |= was & still[row] & may_be[row]
        least = c.MOST_LOST_GOES_ON if was_most else c.MOST_LOST_BEGINS if was.any() else c.MOST_LOST
        if was_most := bool((size[row] * found[row]).sum() > least * size[row].sum()):
            most[row], found[row] = True, False
        was = found[row]
    return found, most


def traffic_low(
    short: Floats, day: Floats, spread: Dispersion, shifted: Callable[[], Floats]
) -> tuple[Bools, Bools, Bools]:
    """(T,) each: whether traffic is low; low enough to be low again; and low still in thin hours.

    It must be low an hour earlier and later too: people follow local clocks that change, not UTC.

    By (9, T) sums of three hours, and of a day for thin traffic. `shifted` gives the (2, T) share of both that would be
    expected after a change of clocks.
    """
    both = np.array([short, day])
    requests, expected = both[:, REQUESTS], both[:, EXPECTED_REQUESTS]
    few: Bools = requests < c.TRAFFIC_AGAIN_RATIO * expected
    if not some(few):
        none = np.zeros(few.shape[1], bool)
        return none, none, none
    lacking = _lacking(requests, expected, spread)
    is_thick, is_enough = expected[0] >= c.ENOUGH_REQUESTS, expected[1] >= c.FEW

    def fell(of_both: Bools) -> Bools:
        of_hours, of_day = of_both
        return np.where(is_thick, of_hours, of_day & is_enough)

    again = (
        few & (lacking < c.TRAFFIC_AGAIN_Z) & (_lacking(requests, expected * shifted(), spread) < c.TRAFFIC_CLOCKS_Z)
    )
    is_low = again & (requests < c.TRAFFIC_RATIO * expected) & (lacking < c.TRAFFIC_Z)
    return fell(is_low), fell(again), few[0] & ~is_thick


def _lacking(requests: Floats, expected: Floats, spread: Dispersion) -> Floats:
    return (requests - expected) / np.maximum(np.sqrt(expected + (spread.volume * expected) ** 2), 1e-9)


def silences(requests: Floats, expected: Floats) -> tuple[Bools, Floats]:
    """((T, S) whether a slice was silent in a step, requests it should have had, judging by the others).

    Silent: at most stragglers. By (T, S) requests, and what is expected of them.
    """
    size, whole = requests.sum(axis=1, keepdims=True), expected.sum(axis=1, keepdims=True)
    usual = expected * np.minimum(size / np.maximum(whole, 1e-9), 1.0)
    return requests <= c.MISSING_RATIO * usual, usual


def rows_refused(short: Floats, refused: Floats, usual: float) -> Bools:
    """(T,) whether three hours had far more `refused` rows than the `usual` number per request."""
    many: Bools = refused >= c.FEW
    if not some(many):
        return many
    many &= refused > c.REFUSED_SHARE * short[REQUESTS]
    expected = usual * short[REQUESTS]
    error = np.sqrt(np.maximum(expected, 1.0) + (c.REFUSED_SPREAD * expected) ** 2)
    return many & (refused > c.REFUSED_RATIO * expected) & (refused - expected > -c.LABELS_Z * error)


def lists_short(spans: Sequence[Floats], shown: Sequence[Floats], in_day: Callable[[], Floats], usual: float) -> Bools:
    """(T,) whether far fewer items per request were shown than usual: positions are no longer logged, or not shown.

    By (9, T) sums of a step, of three hours, of a day. The longer ones are for thin traffic, the day only while lists
    are short in its last hours too. `shown` is (T,) items in a step and in three hours, `in_day` gives those in a day.
    """
    least = c.LISTS_RATIO * usual
    of_step: Bools = shown[0] < least * spans[0][REQUESTS]
    of_hours: Bools = shown[1] < least * spans[1][REQUESTS]
    if not some(of_step | of_hours):
        return of_step
    step, short, day = (sums[REQUESTS] >= c.ENOUGH_REQUESTS for sums in spans)
    of_day = in_day() < least * spans[2][REQUESTS]
    return (of_step & step) | (of_hours & (short | (of_day & day)))


def ranks_off(
    spans: Sequence[Floats], ranked: Floats, in_day: Callable[[], Floats], usual: float, variance: float
) -> Bools:
    """(T,) whether far fewer or more items than usual are at rank 1: positions are logged wrongly, or the log changed.

    By (9, T) sums of three hours and of a day, which decides for thin traffic while the hours are no better.

    Args:
        ranked: (T,) items at rank 1 in three hours; `in_day` gives those in a day.
        usual, variance: of the items at rank 1 of a request.
    """
    short, day = (sums[REQUESTS] for sums in spans)
    off = _off(short, ranked, usual, variance)
    if not some(off & (short < c.FEW)):
        return off
    return off & ((short >= c.FEW) | _off(day, in_day(), usual, variance) & (day >= c.FEW))


def _off(requests: Floats, ranked: Floats, usual: float, variance: float) -> Bools:
    error = np.sqrt(variance * requests + (c.LEAST_CHANGE * usual * requests) ** 2)
    found: Bools = np.abs(ranked - usual * requests) > c.SURE_Z * error
    return found


def lists_fell(sizes: Floats, shown: Floats, sizes_before: Floats, shown_before: Floats) -> Bools:
    """(T,) whether far fewer items per request were shown than in the same step of the day before, where known.

    Not if the mix of the (T, S) requests differs: each slice may have its own list length.
    """
    size, before = sizes.sum(axis=1), sizes_before.sum(axis=1)
    share, former = sizes / np.maximum(size, 1)[:, None], sizes_before / np.maximum(before, 1)[:, None]
    chance = np.sqrt(sizes.shape[1] * (1 / np.maximum(size, 1) + 1 / np.maximum(before, 1))) / 2
    is_alike = np.abs(share - former).sum(axis=1) / 2 <= c.LISTS_MIX + chance
    fell = shown * before < c.LISTS_RATIO * shown_before * size
    return (fell & is_alike) | (before < c.LISTS_BEFORE)
