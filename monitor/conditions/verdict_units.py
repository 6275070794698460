"""What is known of each unit that verdicts judge, overall and per slice: level, traffic and sensitivity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.arrays import Floats
from monitor.drift.baseline import DriftBaseline
from monitor.drift.levels import QUALITY
from monitor.drift.power import smallest_drops
from monitor.drift.settings import DriftSettings
from monitor.drift.state import DriftState
from monitor.units import DAY

NO_BASELINE = "no baseline yet"
SETTLING = "the new level is not known yet"
TOO_NEW = "not in the reference for long enough"
TOO_THIN = "too few requests in the reference to be judged alone"
NO_DROP = "no drop would show within 24 h at this traffic"
ONLY_ONE = "the only slice: judged as overall"


@dataclass(frozen=True, slots=True)
class Unit:
    """A slice, or overall, by its baseline averaged over a week; None where a figure is unknown.

    Attributes:
        requests: per day.
        moved: relative change of the level since the baseline was fitted, without the last days.
        tolerated, smallest: relative drop that is ignored, and that raises an alarm within 24 h in half of the cases.
        lacks: why it is not judged, or cannot show a drop.
    """

    slice: str
    requests: float | None = None
    level: float | None = None
    moved: float | None = None
    tolerated: float | None = None
    smallest: float | None = None
    lacks: str = NO_BASELINE


def units_of(settings: DriftSettings, state: DriftState | None) -> list[Unit]:
    """Overall first, then the slices in order of appearance; only overall before the first step."""
    names = ("",) if state is None else ("", *state.slices)
    if state is None or state.baseline is None:
        return [Unit(name) for name in dict.fromkeys(names)]
    found, ratios = state.baseline, state.levels.ratios
    mean, _, volume = found.tables * ratios[:, None, :]
    requests = volume.mean(axis=0) * (DAY / settings.step)
    if not state.settled:
        size = np.where(found.known, requests, 0.0)
        sizes = zip(("", *state.slices), (float(size.sum()), *requests.tolist()), strict=True)
        return [Unit(name, number, lacks=SETTLING) for name, number in dict(sizes).items()]
    with np.errstate(invalid="ignore", divide="ignore"):
        level = (mean * volume).sum(axis=0) / volume.sum(axis=0)
    drops, judged = smallest_drops(settings, state), found.judged
    units = [_overall(found, requests, level, ratios[QUALITY])]
    units += [
        Unit(name, float(requests[i]), float(level[i]), float(ratios[QUALITY, i]) - 1) if found.known[i] else Unit(name)
        for i, name in enumerate(state.slices)
    ]
    tolerated = found.noise.tolerated.tolist()
    return [
        _complete(unit, drops[unit.slice], bool(judged[i]), tolerated[i], _lacks(found, i))
        for i, unit in enumerate(units)
        if i == 0 or unit.slice
    ]


def _overall(found: DriftBaseline, requests: Floats, level: Floats, ratio: Floats) -> Unit:
    size = np.where(found.known, requests, 0.0)
    whole = float(size.sum())
    if not whole > 0:
        return Unit("", 0.0)
    now = float((size * np.where(found.known, level, 0.0)).sum())
    then = float((size * np.where(found.known, level / ratio, 0.0)).sum())
    return Unit("", whole, now / whole, now / then - 1 if then > 0 else None)


def _lacks(found: DriftBaseline, unit: int) -> str:
    if unit == 0 or not found.known[unit - 1]:
        return TOO_NEW
    return ONLY_ONE if len(found.known) == 1 else TOO_THIN


def _complete(unit: Unit, drop: float | None, is_judged: bool, tolerated: float, lacks: str) -> Unit:
    if not is_judged:
        return Unit(unit.slice, unit.requests, unit.level, unit.moved, lacks=lacks)
    said = NO_DROP if drop is None else ""
    return Unit(unit.slice, unit.requests, unit.level, unit.moved, tolerated, drop, said)
