"""Print the smallest drop that verdicts find within 24 hours, for each series at its traffic and noise.

That is the drop that the verdict `degraded` finds in time in at least half of the cases. Larger drops are found
sooner, smaller ones later or never. Below it are the drops on the pages that people labelled right or wrong.

With --swapped N, it prints how well `rankmon examination fit` would know each rank after 28 days in which N requests a
day swap two neighbours. It also prints how many swaps are enough for 10 %. Both are based on the queries and clicks of
the last 28 days of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import click
import numpy as np

from monitor.cli.common import command, load_config, pick_monitors, rendered, source_of, store_config, stored
from monitor.cli.options import config_option, monitors_option
from monitor.cli.render import Shown, column, record, rows, table_of
from monitor.conditions.verdict_hours import judged
from monitor.conditions.verdict_units import Unit
from monitor.config import Config
from monitor.errors import InputError
from monitor.evaluation.labelled import labelled
from monitor.evaluation.run import BaselineStatus, baseline_status
from monitor.evaluation.stored_fall import as_it_fell
from monitor.measures.examination import SURE, Z95, swap_errors, swaps_needed
from monitor.messages.tables import count, number, percent
from monitor.messages.words import brief, named
from monitor.source.pull import Pull
from monitor.source.swaps import shown_counts
from monitor.store import Store
from monitor.types import Monitor
from monitor.units import DAY

HOURS = 24
DAYS = 28
"""Of swaps."""


@command
@config_option
@monitors_option
@click.option("--swapped", type=click.IntRange(1), help="Requests a day that swap two neighbours of the first --depth.")
@click.option("--depth", type=click.IntRange(2, 50), default=10, show_default=True, help="Ranks, for --swapped.")
@rendered("table", "json")
def power(config_path: Path, names: tuple[str, ...], swapped: int | None, depth: int) -> list[Shown]:
    if swapped is not None:
        config = load_config(config_path)
        return [_of_swaps(config, monitor, swapped, depth) for monitor in pick_monitors(config, names)]
    config = store_config(config_path)
    wanted = pick_monitors(config, names)
    off = ", ".join(monitor.name for monitor in wanted if monitor.drift is None)
    told = f"{config.path}: {off} has no `drift:`, so nothing is judged; add `drift: {{}}` to it"
    if judged := [monitor for monitor in wanted if monitor.drift is not None]:
        if off:
            click.echo(f"rankmon: {told}", err=True)
        with stored(config) as store:
            return [_power(baseline_status(monitor, store), _labelled(monitor, store)) for monitor in judged]
    raise InputError(told)


@record
class RankPower:
    """How far the 95 % interval of a rank's examination would reach up and down, as a factor less one."""

    rank: int = column("rank")
    off_by: float | None = column("known to within", percent)
    enough: int | None = column("a day for 10 %", count)


def _of_swaps(config: Config, monitor: Monitor, swapped: int, depth: int) -> Shown:
    with source_of(config, monitor) as database:
        source = Pull(monitor, database)
        newest = source.freshness(0, time.time()).newest
        until = int(newest or 0) + 1
        counts = shown_counts(source, until - DAYS * DAY, until, depth)
    try:
        wide = np.expm1(Z95 * swap_errors(counts, depth, swapped * DAYS))
    except ValueError as error:
        raise InputError(f"{monitor.name}: --swapped {swapped}, in {DAYS} days: {error}") from error
    needed = np.ceil(swaps_needed(counts, depth, SURE) / DAYS)
    known = [[n if isfinite(n) else None for n in numbers.tolist()] for numbers in (wide, needed)]
    ranks = [RankPower(i, off, n and int(n)) for i, (off, n) in enumerate(zip(*known, strict=True), 1)][1:]
    told = f"{monitor.name}: examination by rank, were {swapped} requests a day to swap two neighbours for {DAYS} days"
    data = {"monitor": monitor.name, "days": DAYS, "swapped": swapped, "ranks": ranks}
    return Shown(data, lambda: [told, *rows(ranks, "  ")])


def _labelled(monitor: Monitor, store: Store) -> dict[str, list[float]]:
    """What people said of pages on quality -> the drop of each as it fired, ascending."""
    found: dict[str, list[float]] = {"right": [], "wrong": []}
    for one in labelled(monitor, store):
        found[str(one.label)].extend(evidence.loss for evidence in as_it_fell(one, store)[:1])
    return {label: sorted(drops) for label, drops in found.items()}


def _power(found: BaselineStatus, drops: dict[str, list[float]]) -> Shown:
    measure, dimension = str(judged(found.drift.measure)), found.drift.mix_by
    data: dict[str, Any] = {"monitor": found.monitor, "measure": measure, "dimension": dimension, "within_hours": HOURS}
    data |= {"series": found.units, "labelled": drops}
    return Shown(data, lambda: _lines(found, brief(measure), drops))


def _lines(found: BaselineStatus, measure: str, called: dict[str, list[float]]) -> Iterator[str]:
    yield f"{found.monitor}: {measure}, smallest drop found within {HOURS} h"
    columns = of_series(found) | {
        "tolerated drop": lambda u: percent(u.tolerated),
        "smallest drop": lambda u: percent(u.smallest),
        "as a difference": lambda u: number(None if None in (u.smallest, u.level) else u.smallest * u.level),
        "": lambda u: u.lacks,
    }
    yield from (f"  {line}" for line in table_of(columns, found.units, left=(0, 6)))
    for label, drops in called.items():
        if ends := (*drops[:1], *drops[1:][-1:]):
            yield f"  pages called {label}: {len(drops)}, drops of {' to '.join(dict.fromkeys(map(percent, ends)))}"


def of_series(found: BaselineStatus) -> dict[str, Callable[[Any], str]]:
    """The first columns of a table of series; requests a day, drops relative to the level."""
    return {
        "series": lambda unit: series_name(found, unit),
        "requests/day": lambda unit: count(unit.requests),
        "level": lambda unit: number(unit.level),
    }


def series_name(found: BaselineStatus, unit: Unit) -> str:
    """`overall` or `device=mobile`."""
    return named(found.drift.mix_by or "", unit.slice) if unit.slice else "overall"
