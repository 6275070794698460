"""Kitagawa's split: exact, and blind to what did not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from monitor.drift.verdicts import split

NAMES = ("a", "b", "c", "d")
WEIGHTS = arrays.arrays(np.float64, 4, elements=st.floats(0.01, 1))
MEANS = arrays.arrays(np.float64, 4, elements=st.floats(0, 1))


@given(WEIGHTS, WEIGHTS, MEANS, MEANS)
def test_the_parts_add_up_to_the_change_exactly(w0: np.ndarray, w1: np.ndarray, m0: np.ndarray, m1: np.ndarray) -> None:
    p0, p1 = w0 / w0.sum(), w1 / w1.sum()
    found = split(NAMES, (p0, p1), (m0, m1))
    change = found.value - found.before
    assert found.within + found.mix == pytest.approx(change, abs=1e-12)
    assert sum(part.within + part.mix for part in found.parts) == pytest.approx(change, abs=1e-12)
    assert [part.within for part in found.parts] == sorted(part.within for part in found.parts)


@given(WEIGHTS, WEIGHTS, MEANS)
def test_a_change_of_shares_alone_is_all_mix(w0: np.ndarray, w1: np.ndarray, means: np.ndarray) -> None:
    found = split(NAMES, (w0 / w0.sum(), w1 / w1.sum()), (means, means))
    assert found.within == 0
    assert {part.within for part in found.parts} == {0}


@given(WEIGHTS, MEANS, MEANS)
def test_a_change_of_means_alone_has_no_mix_part(weights: np.ndarray, m0: np.ndarray, m1: np.ndarray) -> None:
    shares = weights / weights.sum()
    assert split(NAMES, (shares, shares), (m0, m1)).mix == 0


def test_worked_example() -> None:
    shares = np.array([0.5, 0.5]), np.array([0.8, 0.2])
    found = split(("weak", "strong"), shares, (np.array([0.4, 0.8]), np.array([0.4, 0.6])), np.array([0.1, 0.05]))
    assert (found.before, found.value) == (pytest.approx(0.6), pytest.approx(0.44))
    assert (found.within, found.mix) == (pytest.approx(-0.07), pytest.approx(-0.09))
    assert [(p.slice, round(p.within, 3), round(p.z, 3)) for p in sorted(found.parts, key=lambda p: p.z)] == [
        ("strong", -0.07, -4.0),
        ("weak", 0.0, 0.0),
    ]
