"""Print the smallest drop that shows within 24 hours, for each series at its traffic and noise.

That is the drop that the verdict `degraded` finds in time in at least half of the cases. Larger drops are found
sooner, smaller ones later or never.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import (
    command,
    config_option,
    format_option,
    load_config,
    monitors_option,
    pick_monitors,
    stored,
)
from monitor.cli.render import count, number, percent, table
from monitor.errors import InputError

if TYPE_CHECKING:
    from monitor.conditions.verdict_units import Unit
    from monitor.config import Config
    from monitor.evaluation.baseline_status import Stand
    from monitor.types import Monitor


@command
@config_option
@monitors_option
@format_option("table", "json")
def power(config_path: Path, names: tuple[str, ...], style: str) -> None:
    from monitor.evaluation.baseline_status import stand

    config = load_config(config_path, with_sources=False)
    wanted = with_drift(config, pick_monitors(config, names))
    with stored(config) as store:
        found = [stand(monitor, store) for monitor in wanted]
    if style == "json":
        click.echo(json.dumps([plain(one) for one in found], indent=2))
        return
    for one in found:
        click.echo("\n".join(_lines(one)))


def with_drift(config: Config, wanted: list[Monitor]) -> list[Monitor]:
    """The monitors that verdicts are found of. Raises InputError if there are none."""
    found = [monitor for monitor in wanted if monitor.drift is not None]
    if not found:
        named = ", ".join(monitor.name for monitor in wanted)
        raise InputError(f"{config.path}: {named} has no `drift:`, so nothing is judged; add `drift: {{}}` to it")
    return found


def plain(found: Stand) -> dict[str, Any]:
    """As JSON data: requests a day, the level in the measure's unit, drops relative to it."""
    from monitor.conditions.verdict_hours import judged

    return {
        "monitor": found.monitor,
        "measure": str(judged(found.drift.measure)),
        "dimension": found.drift.mix_by,
        "within_hours": 24,
        "series": [unit_plain(unit) for unit in found.units],
    }


def unit_plain(unit: Unit) -> dict[str, Any]:
    """A unit as JSON data."""
    names = ("slice", "requests", "level", "moved", "tolerated", "smallest", "lacks")
    return {name: getattr(unit, name) for name in names}


def _lines(found: Stand) -> list[str]:
    head = ("series", "requests/day", "level", "tolerated drop", "smallest drop", "in its unit", "")
    rows = [_row(found, unit) for unit in found.units]
    title = f"{found.monitor}: {plain(found)['measure']}, smallest drop that shows within 24 h"
    return [title, *(f"  {line}" for line in table(head, rows, (0, 6)))]


def _row(found: Stand, unit: Unit) -> tuple[str, ...]:
    absolute = None if unit.smallest is None or unit.level is None else unit.smallest * unit.level
    figures = (count(unit.requests), number(unit.level), percent(unit.tolerated), percent(unit.smallest))
    return (series_name(found, unit), *figures, number(absolute), unit.lacks)


def series_name(found: Stand, unit: Unit) -> str:
    """`overall` or `device=mobile`."""
    from monitor.conditions.verdict_words import named

    return named(found.drift.mix_by or "", unit.slice) if unit.slice else "overall"
