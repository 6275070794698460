"""Estimate from clicks how often people look at each rank, and print the measure that corrects for it.

Clicks come from what people look at, not only from what they like. Where the same item was shown for the same query at
several ranks, its click rates tell how often people look there. The estimate assumes that looking depends on the rank
alone: not on the device (one monitor per device helps), not on what was clicked above, and that people trust no rank
more than another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.cli.common import command, load_config, pick_monitors, rendered, source_of
from monitor.cli.options import config_option, past_options
from monitor.cli.render import column, count, number, record, rows
from monitor.errors import InputError

if TYPE_CHECKING:
    from monitor.source.engine import Database
    from monitor.types import Monitor

DAY = 86_400


@record
class RankExamination:
    """A rank's chance of a look relative to rank 1, its 95 % interval, and the (query, item) that tell it."""

    rank: int = column("rank")
    value: float = column("looks", number)
    lower: float = column("from", number)
    upper: float = column("to", number)
    swaps: int = column("items also at other ranks", count)


@record
class FittedExamination:
    """The estimate of a monitor and the measure to configure."""

    monitor: str
    days: int
    ranks: list[RankExamination]
    measure: str

    def lines(self) -> Iterator[str]:
        yield f"{self.monitor}: how often people look at each rank, relative to the first, by {self.days} days"
        yield from rows(self.ranks, "  ")
        yield "It assumes that looks depend on the rank alone. A measure that counts a click 1 / looks times:"
        yield f"  measures: [{self.measure!r}]"


@command
@config_option
@click.argument("monitor")
@past_options
@rendered("table", "json")
def examination(config_path: Path, monitor: str, depth: int, days: int, until: int | None) -> FittedExamination:
    config = load_config(config_path)
    (wanted,) = pick_monitors(config, (monitor,))
    end = int(time.time()) - wanted.recipe.attribution if until is None else until
    with source_of(config, wanted) as database:
        return fitted(wanted, database, end, days, depth)


def fitted(monitor: Monitor, database: Database, until: int, days: int, depth: int) -> FittedExamination:
    """The estimate by the requests of some days before `until`, seconds. Raises InputError, SourceError."""
    from monitor.measures.examination import estimate
    from monitor.measures.measure import Measure
    from monitor.source.pull import Pull
    from monitor.source.swaps import shown_counts

    counts = shown_counts(Pull(monitor, database), until - days * DAY, until, depth)
    if not len(counts.rank):
        raise InputError(f"{monitor.name}: no request with a query in these {days} days; say --to or --days")
    try:
        found = estimate(counts, depth)
    except ValueError as error:
        raise InputError(f"{monitor.name}: {error}") from error
    ranks = [
        RankExamination(i + 1, float(found.value[i]), float(found.lower[i]), float(found.upper[i]), int(found.swaps[i]))
        for i in range(depth)
    ]
    table = tuple((float(rank.rank), round(rank.value, 4)) for rank in ranks)
    return FittedExamination(monitor.name, days, ranks, str(Measure("dcg", depth, empty="zero", examination=table)))
