"""Whatever happens to a monitor, judging row by row equals judging in one call, and no verdict looks ahead."""

from __future__ import annotations

import json

import numpy as np
import pytest

from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.units import DAY, HOUR
from tests.support.drift import START, Ranking
from tests.support.examples import times

DAYS = 36


def troubled(seed: int) -> tuple[DriftSettings, Hours]:
    """A monitor with random troubles in some slices, missing steps and baseline resets."""
    rng = np.random.default_rng(seed)
    step, slices = int(rng.choice([HOUR, HOUR, 3 * HOUR, DAY])), int(rng.choice([1, 2, 4, 9]))
    days = DAYS if step < DAY else 3 * DAYS
    past = Ranking.of(days, slices, float(rng.choice([30, 200, 2000])), seed=seed, step=step)
    for _ in range(int(rng.integers(3, 9))):
        since = rng.uniform(16, days - 2)
        until = since + rng.choice([0.3, 1.5, 4, 100])
        what = {str(rng.choice(["mean", "rate", "coverage", "items"])): float(rng.choice([0.0, 0.1, 0.4, 0.8]))}
        past = past.since(since, until, slices=[int(rng.integers(slices))] if rng.random() < 0.7 else None, **what)
    counts = bool(seed % 3)
    rows = past.draw(seed, counts)
    gap = int(rng.integers(len(rows.starts) // 2, len(rows.starts)))
    kept = np.delete(np.arange(len(rows.starts)), np.s_[gap : gap + int(rng.choice([0, 5, 30]))])
    anew = tuple(
        sorted(START + int(rng.uniform(16, days) * DAY) // step * step for _ in range(int(rng.integers(0, 3))))
    )
    fields = (getattr(rows, name) for name in rows.__dataclass_fields__ if name not in ("starts", "slices"))
    settings = DriftSettings(step=step, resets=anew, counts_unlabelled=counts)
    return settings, Hours(rows.starts[kept], rows.slices, *(f[kept] for f in fields))


@pytest.mark.parametrize("seed", range(times(12)))
def test_judging_row_by_row_matches_one_call_and_never_looks_ahead(seed: int) -> None:
    settings, hours = troubled(seed)
    whole, end = judge_steps(settings, None, hours)
    state, found = None, []
    for row in range(len(hours.starts)):
        some, state = judge_steps(settings, state, hours.rows(row, row + 1))
        assert state is not None
        state = DriftState.from_json(json.loads(json.dumps(state.to_json())))
        found += some
    assert found == whole
    assert end is not None
    assert state is not None
    assert state.to_json() == end.to_json()
    cut = len(hours.starts) * 3 // 4
    assert judge_steps(settings, None, hours.rows(0, cut))[0] == whole[:cut]
