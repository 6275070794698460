"""Arbitrary input is judged without warnings, in any split, with finite figures that survive JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from monitor.drift.judge import judge_steps
from monitor.drift.power import smallest_drops
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.units import DAY, HOUR
from tests.support.drift import START


def anything(rng: np.random.Generator, step: int) -> Hours:
    """Rates from one request in weeks to millions a step, values that never move, slices that come and go, gaps."""
    count, slices = 35 * DAY // step, int(rng.choice([1, 2, 12]))
    rate = 10 ** rng.uniform(-3, 6, (1, slices)) * rng.choice([0, 1], (count, slices), p=[0.1, 0.9])
    rate[rng.integers(count) :, rng.integers(slices)] *= rng.choice([0, 1])
    rate[: rng.integers(count), rng.integers(slices)] *= rng.choice([0, 1])
    mean = rng.choice([0, 1, 1e-4, 0.5, 0.999], (1, slices)) * np.ones((count, 1))
    mean[rng.integers(count) :] *= rng.choice([0, 0.5, 1])
    size = rng.poisson(rate)
    total, labelled = rng.binomial(size, mean) * 1.0, rng.binomial(size, rng.choice([0, 0.5, 0.9, 1])) * 1.0
    kept = np.sort(rng.choice(count, int(count * rng.choice([0.5, 0.95, 1])), replace=False))
    events = labelled.sum(axis=1)
    shown = size.sum(axis=1) * rng.choice([0, 1, 10], count, p=[0.1, 0.2, 0.7])
    unlabelled = rng.binomial(size, rng.choice([0, 0, 0.3])) * 1.0
    every = (
        size * 1.0,
        total,
        total,
        labelled,
        unlabelled,
        rng.uniform(0.5, 2, size.shape),
        events,
        events * 0.1,
        rng.poisson(1, count) * 1.0,
    )
    every = (*every, shown, shown * 0.1)
    starts = START + np.arange(count, dtype=np.int64) * step
    return Hours(starts[kept], tuple(f"slice {i:02}" for i in range(slices)), *(sums[kept] for sums in every))


@pytest.mark.parametrize("step", [HOUR, 4 * HOUR, DAY])
@pytest.mark.parametrize("seed", range(6))
def test_arbitrary_input_is_judged_the_same_in_any_split(seed: int, step: int) -> None:
    rng, settings = np.random.default_rng([seed, step]), DriftSettings(step=step)
    hours = anything(rng, step)
    verdicts, state = judge_steps(settings, None, hours)
    assert [v.end for v in verdicts] == (hours.starts + step).tolist()
    assert state is not None
    kept = json.dumps(state.to_json(), allow_nan=False)
    for verdict in verdicts:
        assert all(math.isfinite(a.effect) and math.isfinite(a.evidence) for a in verdict.alarms)
        if verdict.split is not None:
            change = verdict.split.value - verdict.split.before
            assert verdict.split.within + verdict.split.mix == pytest.approx(change, abs=1e-12)
    assert all(drop is None or 0 < drop < 1 for drop in smallest_drops(settings, state).values())
    cut = int(rng.integers(len(hours.starts)))
    before, middle = judge_steps(settings, None, hours.rows(0, cut))
    after, last = judge_steps(settings, middle, hours.rows(cut, len(hours.starts)))
    assert before + after == verdicts
    assert last is not None
    assert json.dumps(last.to_json()) == kept
