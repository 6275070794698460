"""The shared scorer of drift detectors, `alert_quality/run.py` in the folder `shared`, over the product's own judge."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from monitor.drift.judge import judge_steps
from monitor.drift.series import Hours
from monitor.drift.settings import DriftSettings
from monitor.drift.verdicts import Verdict
from monitor.units import DAY, HOUR

FOLDER = "alert_quality"
MONDAY = 4 * DAY
"""A Monday, as the simulator's first day."""


def hours(history: Mapping[str, Any]) -> Hours:
    """The scorer's history as steps to judge."""
    size = history["requests"]
    nothing = np.zeros(len(size))
    return Hours(
        MONDAY + np.arange(len(size), dtype=np.int64) * HOUR,
        tuple(f"segment {i}" for i in range(size.shape[1])),
        size,
        history["ndcg_sum"],
        history["ndcg_squares"],
        history["clicked"],
        np.zeros(size.shape),
        np.ones(size.shape),
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
    )


def verdicts(history: Mapping[str, Any]) -> list[Verdict]:
    """What the product says of each hour, all slices and overall on one budget."""
    return judge_steps(DriftSettings(), None, hours(history))[0]


def detect(history: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The scorer's interface: which alarms are open in each hour."""
    found = verdicts(history)
    return {
        "degraded": np.array([v.is_degraded for v in found]),
        "data": np.array([v.is_data for v in found]),
        "mix": np.array([v.mix_shifted for v in found]),
    }


@contextmanager
def scorer(shared: Path) -> Iterator[ModuleType]:
    """The scorer as a module."""
    sys.path.insert(0, str(shared / FOLDER))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(shared / FOLDER))
        for name in ("run", "simulate"):
            sys.modules.pop(name, None)


LASTING = ("drop5", "drop10", "segdrop", "lowdrop10")
"""Scenarios whose fall lasts to the end of the simulation."""


def stays(run: ModuleType, scenario: str, replicas: int, seed: int, is_hard: bool) -> float:
    """Share of the falls that were found whose alarm is open from then on, in each hour to the end."""
    simulated = run.simulate(scenario, R=replicas, seed=seed, hard=is_hard)
    found = [detect(history)["degraded"][simulated["t0"][i] :] for i, history in run.histories(simulated)]
    return float(np.mean([is_open[np.flatnonzero(is_open)[0] :].all() for is_open in found if is_open.any()]))


def scores(run: ModuleType, seed: int, replicas: int, quiet_replicas: int, is_hard: bool = False) -> Iterator[str]:
    """Lines of a table in Markdown: false alarms in 90 days, what is found within its deadline, what closes."""
    yield f"| seed {seed}{', hard' if is_hard else ''} | figure | median delay |\n|---|---|---|"
    for scenario in ("none", "lownone"):
        found = run.false_alarms(detect, scenario, quiet_replicas, seed, is_hard)
        yield f"| {scenario}: false alarms | {', '.join(f'{k} {v:.2f}' for k, v in found.items())} | |"
    rates = {}
    for scenario, (wanted, deadline) in run.EXPECTED.items():
        rates[scenario], delay = run.detection(detect, scenario, replicas, seed, is_hard)
        said = "" if wanted == "quiet" else f"{delay:.0f} h"
        yield f"| {scenario}: {wanted} within {deadline} h | {rates[scenario]:.1%} | {said} |"
    closed, held = run.closing(detect, replicas, seed, is_hard)
    yield f"| found in 8 h, closed 24 h after the rollback | {closed:.1%} | |"
    for scenario in LASTING:
        yield f"| {scenario}: once found, open to the end | {stays(run, scenario, replicas, seed, is_hard):.1%} | |"
    yield f"| 48-h outage held as data | {held:.1%} | |"
    det = float(np.mean([rates[s] for s in run.DETECTION]))
    yield f"| det, all | {100 * det:.1f}, {100 * float(np.mean(list(rates.values()))):.1f} | |"


FALLS = {"drop3": 72, "drop5": 24, "drop10": 8, "segdrop": 24, "lowdrop10": 72}
"""Falls that are told of by traffic, and hours in which they are to be found."""


def by_traffic(run: ModuleType, seeds: list[int], replicas: int) -> Iterator[str]:
    """Lines of a table in Markdown: how soon a fall is found, by the requests of the busiest hour."""
    delays: dict[tuple[int, str], list[float]] = {}
    for scenario, seed in ((one, seed) for one in FALLS for seed in seeds):
        simulated = run.simulate(scenario, R=replicas, seed=seed)
        for i, history in run.histories(simulated):
            opened = np.flatnonzero(detect(history)["degraded"][simulated["t0"][i] :])
            delay = float(opened[0]) + 1 if len(opened) else np.inf
            delays.setdefault((int(simulated["peak"][i]), scenario), []).append(delay)
    yield f"| requests in the busiest hour | {' | '.join(f'{one} in {least} h' for one, least in FALLS.items())} |"
    yield "|---|" + "---|" * len(FALLS)
    for peak in sorted({peak for peak, _ in delays}):
        told = (_told(delays.get((peak, one), []), least) for one, least in FALLS.items())
        yield f"| {peak:,} | {' | '.join(told)} |"


def _told(delays: list[float], least: int) -> str:
    return f"{np.mean(np.array(delays) <= least):.0%}, median {np.median(delays):.0f} h" if delays else ""


def main() -> None:
    """`python -m tests.support.alert_quality FOLDER SEED... [--hard | --by-traffic]`: tables, as they come."""
    folder, *seeds = [a for a in sys.argv[1:] if not a.startswith("--")]
    with scorer(Path(folder)) as run:
        if "--by-traffic" in sys.argv:
            print("\n".join(by_traffic(run, list(map(int, seeds)), 90)))
            return
        for seed in seeds:
            print(flush=True)
            for line in scores(run, int(seed), 90, 240, "--hard" in sys.argv):
                print(line, flush=True)


if __name__ == "__main__":
    main()
