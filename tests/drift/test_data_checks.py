"""Where the quick look finds the data sound, no check finds anything."""

from __future__ import annotations

import numpy as np

from monitor.arrays import Floats
from monitor.drift import constants as c
from monitor.drift.data_checks import (
    EXPECTED_LABELLED,
    EXPECTED_REQUESTS,
    FIELDS,
    LABELLED,
    REQUESTS,
    TOTAL,
    Dispersion,
    are_well,
    labels_suspect,
    lists_short,
    ranks_off,
    rows_refused,
    traffic_low,
)

SPREAD = Dispersion(0.02, 0.1)
USUAL = 10.0
"""Items per request."""
SHARES = [0.3, 0.99, 1.0, 1.01, 1.2, 2.0]
"""Factors on the limits of the checks, most of them sound."""


def drawn(rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Sums of a step, three hours and a day, with items and refused rows, all near the limits of the checks."""
    sums = rng.uniform(0, 2000, (3, FIELDS, 1))
    labels, requests, items = rng.choice(SHARES, (3, 3, 1), p=[0.04, 0.04, 0.04, 0.28, 0.3, 0.3])
    sums[:, LABELLED] = labels * c.LABELS_RATIO * sums[:, EXPECTED_LABELLED]
    sums[:, REQUESTS] = requests * c.TRAFFIC_AGAIN_RATIO * sums[:, EXPECTED_REQUESTS]
    sums[:, TOTAL] *= rng.random((3, 1)) > 0.02
    return sums, items * c.LISTS_RATIO * USUAL * sums[:, REQUESTS], rng.uniform(0, c.FEW + 2, 1).round()


def test_no_check_finds_anything_where_the_quick_look_is_clean() -> None:
    rng, seen = np.random.default_rng(5), set[tuple[bool, bool]]()
    for _ in range(3000):
        sums, shown, refused = drawn(rng)
        step, short, day = sums
        low = traffic_low(short, day, SPREAD, lambda: np.ones((2, 1)))
        suspect = labels_suspect((step, short, day), SPREAD), rows_refused(short, refused, 0.0)
        lists = lists_short((step, short, day), shown[:2], lambda last=shown[2]: last, USUAL)
        ranked = rng.choice([0.9, 0.985, 1.0, 1.015, 3.0], len(refused)) * short[REQUESTS]
        ranks = ranks_off((short, day), ranked, lambda last=day[REQUESTS]: last, 1.0, 0.0)
        is_found = any(flags.any() for flags in (*low, *suspect, lists, ranks))
        rows = [span.T.tolist() for span in sums]
        seen.add((are_well(rows, shown[:2], USUAL, refused, ranked, 1.0), is_found))
    assert seen == {(True, False), (False, False), (False, True)}
