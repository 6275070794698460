"""The e-process: no more false alarms than its threshold says, whatever the values' distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.arrays import Floats
from monitor.drift.constants import LEAST_ALARM_HOURS, MOST_ALARM_HOURS
from monitor.drift.eprocess import SliceSums, factors, grow, score
from monitor.drift.noise import Noise
from monitor.drift.settings import EvidenceThreshold

CALM = np.full(2, 0.004**2)
NOISE = Noise(CALM, 3 * CALM, np.zeros(2), np.full(2, 0.01), CALM, np.full(2, 0.9), CALM, CALM)
THRESHOLD = EvidenceThreshold.of(np.exp([9.0, 9.0]))
EXACT = replace(NOISE, tolerated=np.zeros(2))


def drawn(rng: np.random.Generator, steps: int, requests: int, mean: float) -> SliceSums:
    """One slice of requests that are 0 or 1."""
    size = np.full((steps, 1), float(requests))
    total = rng.binomial(requests, mean, (steps, 1)) * 1.0
    return SliceSums(size, total, total, np.full((steps, 1), 0.5), np.array([0.25]), np.array([0.25]))


def run_length(rng: np.random.Generator, requests: int, mean: float, threshold: float, most: int) -> int:
    """Steps until the alarm, against a baseline that is exactly right."""
    limit = EvidenceThreshold.of(np.full(2, threshold))
    factor = np.exp(factors(drawn(rng, most, requests, mean), EXACT, limit, 1.0))
    evidence = np.zeros((2, 3))
    for step in range(most):
        evidence = grow(evidence, factor[step], limit)
        if score(evidence)[0] > threshold:
            return step + 1
    return most


@pytest.mark.parametrize("requests", [1, 5, 400])
def test_the_mean_time_to_a_false_alarm_is_at_least_the_threshold(requests: int) -> None:
    rng, threshold = np.random.default_rng(5), 50.0
    lengths = [run_length(rng, requests, 0.5, threshold, 1000) for _ in range(60)]
    assert np.mean(lengths) >= threshold
    dropped = [run_length(rng, requests, 0.5 * 0.7, threshold, 1000) for _ in range(20)]
    assert np.mean(dropped) < np.mean(lengths) / 2


@given(st.floats(0.02, 0.98), st.integers(1, 200), st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.3]))
def test_a_factor_has_an_expectation_of_at_most_one(
    mean: float, requests: int, spread: float, tolerated: float
) -> None:
    """Computed exactly, over all outcomes of a step of independent 0/1 requests whose mean is just tolerated."""
    lower = (1 - tolerated) * mean
    count = np.arange(requests + 1.0)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(requests, 0, -1.0) / np.arange(1.0, requests + 1)))])
    weight = np.exp(logs + count * np.log(lower) + (requests - count) * np.log1p(-lower))
    common = np.full(2, (0.1 * spread) ** 2)
    noise = Noise(common, np.full(2, 0.01), np.zeros(2), np.full(2, tolerated), common, np.full(2, 0.9), common, common)
    each = np.full((requests + 1, 1), float(requests))
    variance = np.array([mean * (1 - mean)])
    sums = SliceSums(each, count[:, None], count[:, None], np.full((requests + 1, 1), mean), variance, variance)
    expectation = (weight[:, None, None] * np.exp(factors(sums, noise, THRESHOLD, 1.0))).sum(axis=0)
    assert weight.sum() == pytest.approx(1.0)
    assert expectation.max() <= 1 + 1e-9


def test_a_step_without_requests_adds_nothing() -> None:
    nothing = SliceSums(
        np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1)), np.full((1, 1), 0.5), np.array([0.25]), np.array([0.25])
    )
    assert (factors(nothing, NOISE, THRESHOLD, 1.0) == 0).all()


@pytest.mark.parametrize(
    ("requests", "common", "hours"), [(1e12, 0.004**2, MOST_ALARM_HOURS), (1e6, 0.0, LEAST_ALARM_HOURS)]
)
def test_one_step_alone_never_raises_an_alarm_however_many_requests_it_has(
    requests: float, common: float, hours: float
) -> None:
    """One step adds a limited part of the threshold, and less where sampling error is a smaller part of its noise."""
    all_zero: Floats = np.zeros((1, 1))
    sums = SliceSums(
        np.full((1, 1), requests), all_zero, all_zero, np.full((1, 1), 0.5), np.array([0.25]), np.array([0.25])
    )
    noise = replace(NOISE, common=np.full(2, common))
    assert factors(sums, noise, THRESHOLD, 1.0).max() == pytest.approx(9.0 / hours)
