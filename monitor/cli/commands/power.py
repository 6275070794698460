"""Print the smallest drop that shows within 24 hours, for each series at its traffic and noise.

That is the drop that the verdict `degraded` finds in time in at least half of the cases. Larger drops are found
sooner, smaller ones later or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import command, load_config, pick_monitors, rendered, stored
from monitor.cli.options import config_option, monitors_option
from monitor.cli.render import Shown, count, number, percent, table_of
from monitor.errors import InputError

if TYPE_CHECKING:
    from monitor.conditions.verdict_units import Unit
    from monitor.evaluation.run import BaselineStatus


HOURS = 24


@command
@config_option
@monitors_option
@rendered("table", "json")
def power(config_path: Path, names: tuple[str, ...]) -> list[Shown]:
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


def _power(found: BaselineStatus) -> Shown:
    from monitor.conditions.verdict_hours import judged

    measure, dimension = str(judged(found.drift.measure)), found.drift.mix_by
    data = {"monitor": found.monitor, "measure": measure, "dimension": dimension, "within_hours": HOURS}
    return Shown(data | {"series": found.units}, lambda: _lines(found, measure))


def _lines(found: BaselineStatus, measure: str) -> Iterator[str]:
    yield f"{found.monitor}: {measure}, smallest drop that shows within {HOURS} h"
    columns = of_series(found) | {
        "tolerated drop": lambda u: percent(u.tolerated),
        "smallest drop": lambda u: percent(u.smallest),
        "in its unit": lambda u: number(None if None in (u.smallest, u.level) else u.smallest * u.level),
        "": lambda u: u.lacks,
    }
    yield from (f"  {line}" for line in table_of(columns, found.units, left=(0, 6)))


def of_series(found: BaselineStatus) -> dict[str, Callable[[Any], str]]:
    """The first columns of a table of series; requests a day, drops relative to the level."""
    return {
        "series": lambda unit: series_name(found, unit),
        "requests/day": lambda unit: count(unit.requests),
        "level": lambda unit: number(unit.level),
    }


def series_name(found: BaselineStatus, unit: Unit) -> str:
    """`overall` or `device=mobile`."""
    from monitor.messages.words import named

    return named(found.drift.mix_by or "", unit.slice) if unit.slice else "overall"
