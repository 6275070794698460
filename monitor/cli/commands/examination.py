"""Estimate from clicks how often people look at each rank, and print the measure that corrects for it.

Clicks come from what people look at, not only from what they like. Where the same item was shown for the same query at
several ranks, its click rates tell how often people look there. The estimate assumes that looking depends on the rank
alone: not on the device (one monitor per device helps), not on what was clicked above, and that people trust no rank
more than another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.cli.common import command, load_config, rendered, source_of
from monitor.cli.options import config_option, past_options
from monitor.cli.render import column, count, number, record, rows
from monitor.errors import InputError

if TYPE_CHECKING:
    from monitor.measures.examination import ShownCounts
    from monitor.source.engine import Database
    from monitor.types import Monitor

DAY = 86_400
UNSURE = 0.05
"""Chance of a difference by which a warning is given: that of a 95 % interval."""


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
    """The estimate of a monitor and the measure to configure.

    Attributes:
        slice: `device=mobile`, or empty for all requests.
        clicks_below_a_click: their rate relative to that of the same items without a click further up, and its 95 %
            interval; None if nothing tells.
        differs_by_frequency: the rank whose looks differ between frequent and rare queries; None if none do.
    """

    monitor: str
    slice: str
    days: int
    ranks: list[RankExamination]
    measure: str
    clicks_below_a_click: list[float | None]
    differs_by_frequency: int | None

    def lines(self) -> Iterator[str]:
        where = f"{self.monitor}, {self.slice}" if self.slice else self.monitor
        yield f"{where}: how often people look at each rank, relative to the first, by {self.days} days"
        yield from rows(self.ranks, "  ")
        yield "It assumes that looks depend on the rank alone."
        yield from self._checks()
        yield "A measure that counts a click 1 / looks times:"
        yield f"  measures: [{self.measure!r}]"

    def _checks(self) -> Iterator[str]:
        ratio, lower, upper = self.clicks_below_a_click
        if ratio is not None and lower is not None and upper is not None:
            told = f"below a click people click {ratio:.2f} times as often as without it ({lower:.2f} to {upper:.2f})"
            stops = "Warning: they stop at a click; the direction of a change is right, its size is not"
            told += f". {stops}" if upper < 1 else ", so they do not stop at one"
            yield f"  checked: {told}."
        if self.differs_by_frequency is not None:
            yield f"  Warning: at rank {self.differs_by_frequency} looks differ between frequent and rare queries."


@record
class UnknownExamination:
    monitor: str
    slice: str
    why: str

    def lines(self) -> Iterator[str]:
        yield f"{self.monitor}, {self.slice}: {self.why}"


@command
@config_option
@click.argument("monitor")
@past_options
@click.option("--by", "dimension", help="A slice of the monitor, such as device: an estimate for each of its values.")
@rendered("table", "json")
def examination(
    config_path: Path, monitor: str, depth: int, days: int, dimension: str | None, until: int | None
) -> FittedExamination | list[FittedExamination | UnknownExamination]:
    config = load_config(config_path)
    wanted = config.monitor(monitor)
    end = int(time.time()) - wanted.recipe.attribution if until is None else until
    with source_of(config, wanted) as database:
        if dimension is None:
            return fitted(wanted, database, end, days, depth)
        return by_slice(wanted, database, end, days, depth, dimension)


def fitted(monitor: Monitor, database: Database, until: int, days: int, depth: int) -> FittedExamination:
    """The estimate by the requests of some days before `until`, seconds. Raises InputError, SourceError."""
    from monitor.source.pull import Pull
    from monitor.source.swaps import shown_counts

    counts = shown_counts(Pull(monitor, database), until - days * DAY, until, depth, with_below=True)
    if not len(counts.rank):
        raise InputError(f"{monitor.name}: no request with a query in these {days} days; say --to or --days")
    try:
        return _of_counts(monitor.name, "", days, depth, counts)
    except ValueError as error:
        raise InputError(f"{monitor.name}: {error}") from error


def by_slice(
    monitor: Monitor, database: Database, until: int, days: int, depth: int, dimension: str
) -> list[FittedExamination | UnknownExamination]:
    """As `fitted`, for each value of a slice, or why there is none. Raises InputError, SourceError."""
    from monitor.config.report import nearest
    from monitor.source.pull import Pull
    from monitor.source.swaps import counts_by_slice

    known = {one.dimension: one.column for one in monitor.slices}
    if dimension not in known:
        remedy = nearest(dimension, list(known)) if known else "it has no `slices:`"
        raise InputError(f"{monitor.name} has no slice {dimension!r}; {remedy}")
    source, found = Pull(monitor, database), list[FittedExamination | UnknownExamination]()
    for value, counts in counts_by_slice(source, until - days * DAY, until, depth, known[dimension], True).items():
        where = f"{dimension}={value}"
        try:
            found.append(_of_counts(monitor.name, where, days, depth, counts))
        except ValueError as error:
            found.append(UnknownExamination(monitor.name, where, str(error)))
    return found


def _of_counts(name: str, where: str, days: int, depth: int, counts: ShownCounts) -> FittedExamination:
    """Raises ValueError."""
    from monitor.measures.examination import after_a_click, by_frequency, estimate, most_changed
    from monitor.measures.measure import Measure

    found = estimate(counts, depth)
    ranks = [
        RankExamination(i + 1, float(found.value[i]), float(found.lower[i]), float(found.upper[i]), int(found.swaps[i]))
        for i in range(depth)
    ]
    table = tuple((float(rank.rank), round(rank.value, 4)) for rank in ranks)
    measure = str(Measure("dcg", depth, empty="zero", examination=table))
    below = [number if isfinite(number) else None for number in after_a_click(counts)]
    try:
        differs = most_changed(*by_frequency(counts, depth), UNSURE)
    except ValueError:  # too few swaps to tell
        differs = None
    return FittedExamination(name, where, days, ranks, measure, below, differs)
