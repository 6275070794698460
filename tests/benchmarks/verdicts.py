"""Judging one more bucket of many monitors, and replaying a past, each beside the least that it could take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monitor.core.drift.judge import judge
from monitor.core.drift.series import Floats, Hours
from monitor.core.drift.settings import Settings
from monitor.core.drift.state import State
from monitor.replay import replay
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved
from tests.support.drift import Ranking
from tests.support.monitors import new_store
from tests.support.simulated import configured, day, put

MONITORS, SLICES, WARM_DAYS = 200, 20, 30
JUDGE_AIM, REPLAY_AIM = 0.050, 2.0
"""Seconds."""
REPLAYED_SLICES, REPLAYED_DAYS, BEFORE_DAYS = 8, 90, 28

JUDGING = f"""\
Times of the processor, on one core, without the store: the state is there, one hour of partials comes in. The ratio of
the first two lines is to the aim of {1000 * JUDGE_AIM:.0f} ms, that of the last to the threshold, which is the least
that judging could be: the mean of each series, compared with a number."""
REPLAYING = f"""\
Times of the processor, on one core; hourly buckets in SQLite. {BEFORE_DAYS} days before the span are judged as well,
and two plain thresholds beside the verdicts. The ratio of the first two lines is to the aim of {REPLAY_AIM:.0f} s, that
of the last to the reading."""


def sections(folder: Path, monitors: int = MONITORS, days: int = REPLAYED_DAYS, rounds: int = 9) -> Iterator[Section]:
    """A table for each of the two."""
    yield judging(monitors, rounds)
    yield replaying(folder, days, max(1, rounds // 3))


# ---- one bucket of many monitors -------------------------------------------------------------------------------------


def judging(monitors: int, rounds: int) -> Section:
    """One step of each monitor, from the state that the steps before came to."""
    settings, known = Settings(), [_known(seed) for seed in range(min(monitors, 4))]
    work = [known[number % len(known)] for number in range(monitors)]

    def verdicts() -> None:
        for state, hours in work:
            judge(settings, state, hours)

    def thresholds() -> None:
        for _, hours in work:
            _compared(hours)

    taken = interleaved([("floor", thresholds), ("judge", verdicts), ("floor", thresholds)], rounds, time.process_time)
    title = f"Judging one bucket of {monitors} monitors with {SLICES + 1} series each"
    lines = [
        Line("a threshold on each series, in NumPy", duration(taken["floor"]), taken["floor"] / JUDGE_AIM),
        Line("rankmon, verdicts", duration(taken["judge"]), taken["judge"] / JUDGE_AIM, 1, "at most"),
        Line("rankmon, a monitor", duration(taken["judge"] / monitors), taken["judge"] / taken["floor"]),
    ]
    return Section(title, ("what", "time", "ratio", "aim", "met"), lines, JUDGING)


def _known(seed: int) -> tuple[State, Hours]:
    """A state after the days of warming up, and the step that comes next, in the middle of a day."""
    hours = Ranking.of(WARM_DAYS + 1, slices=SLICES, peak=4000, seed=seed).draw(seed)
    hours = replace(hours, slices=tuple(sorted(hours.slices)))  # as they come from the store
    cut = WARM_DAYS * 24 + 12
    _, state = judge(Settings(), None, hours.rows(0, cut))
    assert state is not None
    return state, hours.rows(cut, cut + 1)


def _compared(hours: Hours) -> Floats:
    total = np.append(hours.total, hours.total.sum())
    size = np.append(hours.requests, hours.requests.sum())
    found: Floats = total / np.maximum(size, 1) < 0.5
    return found


# ---- a past ----------------------------------------------------------------------------------------------------------


def replaying(folder: Path, days: int, rounds: int) -> Section:
    """`rankmon replay` over a store, beside the reading of what is stored."""
    config = configured(folder)
    (monitor,), store = config.monitors, new_store(config.store.url)
    drawn = Ranking.of(BEFORE_DAYS + days, slices=REPLAYED_SLICES, peak=4000).since(BEFORE_DAYS + days / 2, mean=0.9)
    put(store, monitor, drawn.draw())
    span = day(BEFORE_DAYS), day(BEFORE_DAYS + days)

    def read() -> Any:
        return [store.history(definition, day(0), span[1]) for definition in monitor.definitions]

    calls: list[tuple[str, Callable[[], Any]]] = [
        ("floor", read),
        ("replay", lambda: replay(monitor, store, *span)),
        ("floor", read),
    ]
    calls[1][1]()  # imports what is imported late
    taken = interleaved(calls, rounds, time.process_time)
    store.close()
    title = f"Replaying {days} days of a monitor with {REPLAYED_SLICES + 1} series"
    lines = [
        Line("reading what is stored of them", duration(taken["floor"]), taken["floor"] / REPLAY_AIM),
        Line("rankmon replay", duration(taken["replay"]), taken["replay"] / REPLAY_AIM, 1, "at most"),
        Line("rankmon replay beside the reading", duration(taken["replay"]), taken["replay"] / taken["floor"]),
    ]
    return Section(title, ("what", "time", "ratio", "aim", "met"), lines, REPLAYING)
