"""Print the smallest drop that shows within 24 hours, for each series at its traffic and noise.

That is the drop that the verdict `degraded` finds in time in at least half of the cases. Larger drops are found
sooner, smaller ones later or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.cli.common import command, load_config, pick_monitors, rendered, stored
from monitor.cli.options import config_option, monitors_option
from monitor.cli.render import column, count, number, percent, record, rows
from monitor.errors import InputError

if TYPE_CHECKING:
    from monitor.conditions.verdict_units import Unit
    from monitor.evaluation.run import BaselineStatus


@record
class SeriesPower:
    """The smallest detectable drop of a series; requests a day, drops relative to the level."""

    slice: str
    name: str = column("series", left=True, json=False)
    requests: float | None = column("requests/day", count)
    level: float | None = column("level", number)
    moved: float | None
    tolerated: float | None = column("tolerated drop", percent)
    smallest: float | None = column("smallest drop", percent)
    absolute: float | None = column("in its unit", number, json=False)
    lacks: str = column("", left=True)


@record
class Power:
    """The series of a monitor's verdicts."""

    monitor: str
    measure: str
    dimension: str | None
    within_hours: int
    series: list[SeriesPower]

    def lines(self) -> Iterator[str]:
        yield f"{self.monitor}: {self.measure}, smallest drop that shows within {self.within_hours} h"
        yield from rows(self.series, "  ")


@command
@config_option
@monitors_option
@rendered("table", "json")
def power(config_path: Path, names: tuple[str, ...]) -> list[Power]:
    from monitor.evaluation.run import baseline_status

    config = load_config(config_path, with_sources=False)
    wanted = pick_monitors(config, names)
    off = ", ".join(monitor.name for monitor in wanted if monitor.drift is None)
    told = f"{config.path}: {off} has no `drift:`, so nothing is judged; add `drift: {{}}` to it"
    if judged := [monitor for monitor in wanted if monitor.drift is not None]:
        if off:
            click.echo(f"rankmon: {told}", err=True)
        with stored(config) as store:
            return [_power(baseline_status(monitor, store)) for monitor in judged]
    raise InputError(told)


def _power(found: BaselineStatus) -> Power:
    from monitor.conditions.verdict_hours import judged

    series = [_series(found, unit) for unit in found.units]
    return Power(found.monitor, str(judged(found.drift.measure)), found.drift.mix_by, 24, series)


def _series(found: BaselineStatus, unit: Unit) -> SeriesPower:
    absolute = None if unit.smallest is None or unit.level is None else unit.smallest * unit.level
    figures = (unit.requests, unit.level, unit.moved, unit.tolerated, unit.smallest, absolute, unit.lacks)
    return SeriesPower(unit.slice, series_name(found, unit), *figures)


def series_name(found: BaselineStatus, unit: Unit) -> str:
    """`overall` or `device=mobile`."""
    from monitor.messages.words import named

    return named(found.drift.mix_by or "", unit.slice) if unit.slice else "overall"
