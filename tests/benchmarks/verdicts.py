"""Judging one more bucket of many monitors, and replaying a past, each against the least that it could take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from monitor.arrays import Floats
from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.evaluation.replay import replay
from tests.benchmarks.report import Line, Section, duration
from tests.benchmarks.timing import interleaved
from tests.support.drift import Ranking, day
from tests.support.monitors import new_store
from tests.support.simulated import configured, put

MONITORS, SLICES, WARM_DAYS = 200, 20, 30
JUDGE_AIM, REPLAY_AIM = 0.050, 2.0
"""Seconds."""
REPLAYED_SLICES, REPLAYED_DAYS, BEFORE_DAYS = 8, 90, 28

JUDGING = f"""\
Processor time on one core, without the store: the state is known and one hour of partials arrives, in the middle of a
healthy day unless a line says otherwise. Ratios are to the aim of {1000 * JUDGE_AIM:.0f} ms; that of the last line is
to the threshold, which is the cheapest judging possible: the mean of each series, compared with a number. The first
hour of a day also tracks levels and misses. A monitor is fitted three times, and those hours take longer."""
REPLAYING = f"""\
Processor time on one core; hourly buckets in SQLite. The replay also judges {BEFORE_DAYS} days before the span, and two
plain thresholds for comparison. The ratio of the first two lines is to the aim of {REPLAY_AIM:.0f} s, that of the last
to the reading."""


def sections(folder: Path, monitors: int = MONITORS, days: int = REPLAYED_DAYS, rounds: int = 9) -> Iterator[Section]:
    """A table for each of the two."""
    yield judging(monitors, rounds)
    yield replaying(folder, days, max(1, rounds // 3))


# ---- one bucket of many monitors -------------------------------------------------------------------------------------


def judging(monitors: int, rounds: int) -> Section:
    """One step of each monitor, from the state after the steps before."""
    settings = DriftSettings()
    work = {name: [_known(seed, *case) for seed in range(min(monitors, 4))] for name, case in CASES.items()}

    def verdicts(known: list[tuple[DriftState, Hours]]) -> None:
        for number in range(monitors):
            judge_steps(settings, *known[number % len(known)])

    def thresholds() -> None:
        known = work[WELL]
        for number in range(monitors):
            _compared(known[number % len(known)][1])

    cases = [(name, partial(verdicts, known)) for name, known in work.items()]
    taken = interleaved([("floor", thresholds), *cases, ("floor", thresholds)], rounds, time.process_time)
    title = f"Judging one bucket of {monitors} monitors with {SLICES + 1} series each"
    lines = [Line("a threshold on each series, in NumPy", duration(taken["floor"]), taken["floor"] / JUDGE_AIM)]
    lines.append(Line(WELL, duration(taken[WELL]), taken[WELL] / JUDGE_AIM, 1, "at most"))
    lines += [Line(name, duration(taken[name]), taken[name] / JUDGE_AIM) for name in work if name != WELL]
    whole = (23 * taken[WELL] + taken[FIRST]) / 24
    lines.append(Line("an hour of a day in which all is well", duration(whole), whole / JUDGE_AIM, 1, "at most"))
    lines.append(Line("rankmon, a monitor", duration(taken[WELL] / monitors), taken[WELL] / taken["floor"]))
    return Section(title, ("what", "time", "ratio", "aim", "met"), lines, JUDGING)


WELL, FIRST = "rankmon, verdicts", "the same, the first hour of a day"
CASES = {WELL: (12, 1.0), FIRST: (0, 1.0), "the same, alarms open on all monitors": (12, 0.8)}
"""What is judged: hour of the day, and a factor on the means of the last day."""


def _known(seed: int, hour: int, mean: float) -> tuple[DriftState, Hours]:
    """A state after the days of warming up, and the step that comes next."""
    days = WARM_DAYS + 1
    drawn = Ranking.of(days + 1, slices=SLICES, peak=4000, seed=seed).since(WARM_DAYS, mean=mean).draw(seed)
    hours = replace(drawn, slices=tuple(sorted(drawn.slices)))  # as they come from the store
    cut = days * 24 + hour
    _, state = judge_steps(DriftSettings(), None, hours.rows(0, cut))
    assert state is not None
    return state, hours.rows(cut, cut + 1)


def _compared(hours: Hours) -> Floats:
    total = np.append(hours.total, hours.total.sum())
    size = np.append(hours.requests, hours.requests.sum())
    found: Floats = total / np.maximum(size, 1) < 0.5
    return found


# ---- a past ----------------------------------------------------------------------------------------------------------


def replaying(folder: Path, days: int, rounds: int) -> Section:
    """`rankmon replay` over a store, against the reading of what is stored."""
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
        Line("rankmon replay against the reading", duration(taken["replay"]), taken["replay"] / taken["floor"]),
    ]
    return Section(title, ("what", "time", "ratio", "aim", "met"), lines, REPLAYING)
