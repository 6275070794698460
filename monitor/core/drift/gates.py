"""Data before the model: have labels, rows, traffic or slices gone missing?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.core.drift.series import Bools, Floats

LABELS_Z, LABELS_RATIO, LABELS_EXPLAIN = -6.0, 0.9, 0.75
LABELS_RATIO_DEGRADED = 0.4
"""While an alarm is open, people who find less may well leave fewer labels: then most of them must be gone. So must
those of a slice, whose mean may fall for reasons of its own."""
LABELS_RATIO_SETTLING = 0.5
"""While a new level is learnt: fewer labels may be part of it, but not so few."""
LABELS_STILL = -1.5
"""Standard errors by which labels must be missing in the last hours for a thin day's to be missing still."""
LABELS_REQUESTS, LABELS_FEW_REQUESTS, LABELS_GONE, LABELS_FEW_Z = 100, 20, 0.3, -12.0
TRAFFIC_Z, TRAFFIC_RATIO, TRAFFIC_EXPECTED, TRAFFIC_THIN = -3.5, 0.5, 50, 20
MISSING_EXPECTED, MISSING_Z, MISSING_RATIO = 50, -5.0, 0.02
REFUSED_Z, REFUSED_RATIO, REFUSED_ROWS, REFUSED_SHARE = 6.0, 3.0, 20, 0.1
"""The last is of requests: fewer rows, one for each of them at the most, move the mean by less than is tolerated."""
MOST_LOST = 0.5
"""Share of the requests up to which slices without labels are slices; more of them, and it is all traffic."""

REQUESTS, JUDGED, TOTAL, EXPECTED, LABELLED, EXPECTED_LABELLED, EXPECTED_REQUESTS = range(7)
FIELDS = 7
EVENTS, UNMATCHED, REFUSED = range(3)


def rolling(values: Floats, length: int, steps: int) -> Floats:
    """Sums of `length` rows that end at each of the last `steps` rows; rows on the second axis.

    Each sum is taken in the same order, however many there are at once.
    """
    if steps == 1:
        running: Floats = np.add.accumulate(values[:, -length:], axis=1)[:, -1:]
        return running
    first = values.shape[1] - steps - length + 1
    found = values[:, first : first + steps].copy()
    for row in range(first + 1, first + length):
        found += values[:, row : row + steps]
    return found


@dataclass(frozen=True)
class Spread:
    """Relative standard deviations beyond chance, of coverage and of traffic."""

    coverage: float
    volume: float


def labels_suspect(spans: tuple[Floats, Floats, Floats], spread: Spread, most: float = LABELS_RATIO) -> Bools:
    """(T,) whether coverage fell, and by so much that it explains the fall of the mean.

    Args:
        spans: (7, T) sums of a step, of three hours, of a day; the last is for thin traffic only, and only as long as
            labels are missing in its last hours too.
        most: of the expected labels, from where on none are missing.
    """
    # All at once, for three times over would take three times as long.
    step, short, day = _labels(np.concatenate(spans, axis=1), spread, most).reshape(3, -1)
    thin = spans[1][REQUESTS] < LABELS_REQUESTS
    lately = spans[1]
    few = lately[LABELLED] - lately[EXPECTED_LABELLED] < LABELS_STILL * np.sqrt(lately[EXPECTED_LABELLED])
    still = few & (lately[LABELLED] < most * lately[EXPECTED_LABELLED])
    found: Bools = step | short | (thin & day & still)
    return found


def _labels(sums: Floats, spread: Spread, most: float) -> Bools:
    size, expected = sums[JUDGED], np.maximum(sums[EXPECTED_LABELLED], 1e-9)
    share = np.minimum(expected / np.maximum(size, 1e-9), 1.0)
    error = np.sqrt(expected * (1 - share) + (spread.coverage * expected) ** 2 + 0.25)
    ratio = np.maximum(sums[LABELLED] / expected, 1e-6)
    mean = np.maximum(sums[TOTAL] / np.maximum(sums[EXPECTED], 1e-9), 1e-6)
    fell = (sums[LABELLED] - expected < LABELS_Z * error) & (ratio < most)
    explains = (mean < 1) & (np.log(ratio) < LABELS_EXPLAIN * np.log(mean))
    beyond_doubt = (ratio < LABELS_GONE) | (sums[LABELLED] - expected < LABELS_FEW_Z * error)
    enough = (size >= LABELS_REQUESTS) | ((size >= LABELS_FEW_REQUESTS) & beyond_doubt)
    found: Bools = fell & explains & enough & (sums[EXPECTED] > 0)
    return found


def slices_unlabelled(step: Floats, short: Floats, spread: Spread) -> Bools:
    """(T, S) whether a slice has lost most of its labels while the others have theirs.

    Args:
        step, short: (7, T, S) sums of a step and of three hours.
    """
    most = LABELS_RATIO_DEGRADED
    few: Bools = (step[LABELLED] < most * step[EXPECTED_LABELLED]) | (short[LABELLED] < most * short[EXPECTED_LABELLED])
    if not few.any():
        return few
    found: Bools = _labels(step, spread, most) | _labels(short, spread, most)
    size = short[REQUESTS]
    is_all = (size * found).sum(axis=1) > MOST_LOST * size.sum(axis=1)
    found &= ~is_all[:, None]
    return found


def traffic_low(short: Floats, day: Floats, spread: Spread) -> Bools:
    """(T,) whether less than half of the expected requests came, of (7, T) sums of three hours or of a day."""
    # Both at once, for twice would take twice as long.
    both = np.array([short, day])
    requests, expected = both[:, REQUESTS], both[:, EXPECTED_REQUESTS]
    error = np.sqrt(expected + (spread.volume * expected) ** 2)
    fell = (requests < TRAFFIC_RATIO * expected) & (requests - expected < TRAFFIC_Z * error)
    of_hours, of_day = fell
    is_thick = expected[0] >= TRAFFIC_EXPECTED
    found: Bools = np.where(is_thick, of_hours, of_day & (expected[1] >= TRAFFIC_THIN))
    return found


def slices_missing(requests: Floats, expected: Floats) -> Bools:
    """(T, S) whether a slice has lost as good as all requests while the others go on, from sums of a few hours."""
    size, whole = requests.sum(axis=1, keepdims=True), expected.sum(axis=1, keepdims=True)
    present = size / np.maximum(whole, 1e-9)
    usual = expected * np.minimum(present, 1.0)
    gone = requests - usual < MISSING_Z * np.sqrt(usual + (0.1 * usual) ** 2)
    found: Bools = (usual >= MISSING_EXPECTED) & (requests < MISSING_RATIO * usual) & gone
    return found


def rows_refused(short: Floats, refused: Floats, usual: float) -> Bools:
    """(T,) whether many more rows were refused than usual.

    Args:
        short: (7, T) sums of three hours.
        refused: (T,) rows that were refused in them.
        usual: refused rows for each request.
    """
    expected = usual * short[REQUESTS]
    error = np.sqrt(np.maximum(expected, 1.0) + (0.5 * expected) ** 2)
    many = (refused >= REFUSED_ROWS) & (refused > REFUSED_SHARE * short[REQUESTS])
    found: Bools = many & (refused > REFUSED_RATIO * expected) & (refused - expected > REFUSED_Z * error)
    return found
