"""Without swaps, EM depends on its start; with swaps, it agrees with rankmon's estimate."""

import numpy as np
import pytest

from monitor.measures.examination import estimate
from tests.benchmarks.examination_em import DEPTH, STARTS, WORLDS, counts, em, em_with_prior

SELDOM = WORLDS["sorted, examination 1/√rank, seldom clicked"]
WITHOUT, SWAPPED = counts(SELDOM, 0, 1), counts(SELDOM, 1, 1)


def test_without_swaps_em_fits_equally_well_but_depends_on_its_start() -> None:
    (flat, likely), _, (falling, other) = (em(WITHOUT, start) for start in STARTS)
    assert likely == pytest.approx(other, abs=0.01)
    assert flat[-1] > 3 * falling[-1]


def test_with_swaps_em_agrees_with_the_estimate_from_each_start() -> None:
    ours = estimate(SWAPPED, DEPTH).value
    for start in STARTS:
        assert em(SWAPPED, start)[0] == pytest.approx(ours, rel=0.02)


def test_without_swaps_em_with_a_prior_mistakes_ranking_for_position_bias() -> None:
    looks, _ = em_with_prior(WITHOUT, 8.0, np.ones(WITHOUT.pair.max() + 1), np.ones(DEPTH))
    clicked, shown = (np.bincount(WITHOUT.rank - 1, part) for part in (WITHOUT.clicked, WITHOUT.shown))
    assert looks == pytest.approx(clicked / shown * shown[0] / clicked[0], rel=0.1)
    assert (looks < 0.9 * SELDOM.examination)[1:].all()
