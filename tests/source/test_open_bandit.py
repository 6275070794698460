"""Examination estimated from a real log agrees with what its randomised part measures."""

import pytest

from tests.benchmarks.open_bandit import DATA, compare


@pytest.mark.skipif(not DATA.is_dir(), reason="no Open Bandit data: see tests/benchmarks/open_bandit.py")
def test_the_estimate_without_randomised_positions_agrees_with_them() -> None:
    estimate, truth = compare(DATA)
    assert len(estimate.ranks) == len(truth) == 3
    for rank, (value, low, high) in zip(estimate.ranks, truth, strict=True):
        assert rank.lower <= value <= rank.upper
        assert low <= rank.value <= high
        assert rank.upper < 3 * rank.lower  # otherwise agreement means nothing
