"""Cycles follow the users' clock, so a clock change is neither a worse ranking nor a data fault."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from monitor.drift.settings import DriftSettings
from monitor.units import DAY, HOUR
from tests.support.drift import Ranking, day, on, verdicts

BERLIN = DriftSettings(zone=ZoneInfo("Europe/Berlin"))
CHANGED = 78
"""Day of the simulation on which clocks in Berlin go forward: 2022-03-27."""


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("zone", "step", "start", "weekday", "hour"),
    [
        ("Europe/Berlin", HOUR, "2022-03-27T00:00", 6, 1),
        ("Europe/Berlin", HOUR, "2022-03-27T01:00", 6, 3),
        ("America/New_York", HOUR, "2022-01-03T01:00", 6, 20),
        ("Asia/Kolkata", HOUR, "2022-01-03T23:00", 1, 5),
        ("America/New_York", DAY, "2022-01-03T00:00", 0, 0),
        ("Pacific/Auckland", DAY, "2022-01-03T00:00", 1, 0),
        ("UTC", DAY, "2022-01-03T00:00", 0, 0),
    ],
)
def test_slots_follow_the_users_clock(zone: str, step: int, start: str, weekday: int, hour: int) -> None:
    """Taken at the middle of a step: a UTC day belongs to the local day that covers most of it."""
    found = DriftSettings(step=step, zone=ZoneInfo(zone)).slots(np.array([seconds(start)]))
    epoch_weekday = 3
    assert found[0] * step // DAY == (weekday - epoch_weekday) % 7
    assert found[0] * step % DAY // HOUR == hour


def awake(seed: int) -> Ranking:
    """Users who sleep and wake by Berlin's clock, with far worse results at night."""
    plain = Ranking.of(CHANGED + 7, peak=2000, seed=seed)
    angle = 2 * np.pi * (BERLIN.slots(plain.starts) + 0.5)[:, None] / 24
    steep = np.exp(2 * np.cos(angle - np.pi * 1.5))
    return replace(plain, mean=plain.mean * (1 + 0.25 * np.sin(angle)), rate=200 * steep * np.ones(3))


@pytest.mark.parametrize("seed", range(4))
def test_a_clock_change_is_healthy_in_the_users_time_zone(seed: int) -> None:
    assert {v.kind for v in on(verdicts(awake(seed).draw(seed), BERLIN), CHANGED)} == {"healthy"}


def test_a_clock_change_is_reported_when_judged_in_another_time_zone() -> None:
    """The simulation is steep enough to show it."""
    kinds = {v.kind for seed in range(4) for v in on(verdicts(awake(seed).draw(seed)), CHANGED)}
    assert kinds - {"healthy"}


def test_a_fall_after_a_clock_change_is_found() -> None:
    found = verdicts(awake(0).since(CHANGED + 3, mean=0.85).draw(0), BERLIN)
    first = next(v.end for v in on(found, CHANGED) if v.kind == "degraded")
    assert first <= day(CHANGED + 4)
