"""Show which slice values have their own series, or free places for other values.

The first `max_values` values of a column have one; all others share `other`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from monitor.cli.common import group, monitor_in_store, rendered
from monitor.cli.options import config_option, monitor_option
from monitor.cli.render import Shown, table_of
from monitor.messages.tables import Columns, count, percent
from monitor.messages.words import named, utc
from monitor.service.slice_admission import DimensionUsage, ReleaseRequest, dimensions, release_places, span_of
from monitor.types import format_duration

slices = group(__name__)


@slices.command()
@config_option
@monitor_option()
@rendered("table", "json")
def show(config_path: Path, monitor: str | None) -> list[Shown]:
    """Show each value that has a series, when it was last seen, and the share of `other`."""
    with monitor_in_store(config_path, monitor) as (wanted, store):
        days = format_duration(span_of(wanted))
        return [_places(one, wanted.name, days) for one in dimensions(wanted, store)]


@slices.command()
@config_option
@click.argument("monitor")
@click.argument("dimension")
@click.argument("values", nargs=-1)
@click.option("--silent", is_flag=True, help="All values without a request for that long.")
@click.option("--dry-run", is_flag=True, help="Only show what would be released, and why others would not.")
@click.option(
    "--force", is_flag=True, help="Also release values that have requests; these count as `other` from then on."
)
def release(
    config_path: Path, monitor: str, dimension: str, values: tuple[str, ...], silent: bool, dry_run: bool, force: bool
) -> None:
    """Free the places of slice values for other values.

    Takes effect after the newest stored bucket; older buckets do not change, even if read again. Each place goes to the
    next new value, the busiest first. A value that returns continues its old series if a place is free. Without
    --force, only values without a request for 28 days (or the longest window) are released.
    """
    with monitor_in_store(config_path, monitor) as (wanted, store):
        for line in release_places(wanted, store, ReleaseRequest(dimension, values, silent, force), dry_run):
            click.echo(line)


def _places(found: DimensionUsage, monitor: str, days: str) -> Shown:
    """A dimension's places and the values that have them; instants in seconds since 1970."""
    values = [{**asdict(held), "kept_by": held.kept_by or None} for held in found.held]
    data = {"dimension": found.name, "places": found.places, "taken": len(values), "other_requests": found.others}
    data |= {"requests": found.requests, "values": values}
    return Shown(data, lambda: _lines(found, monitor, days))


def _lines(found: DimensionUsage, monitor: str, days: str) -> Iterator[str]:
    def share(requests: int) -> str:
        return percent(requests / found.requests if found.requests else None)

    others = f"; {share(found.others)} of the requests of the last {days} are `other`" if found.others else ""
    yield f"{monitor}: {found.name}: {len(found.held)} of {found.places} places are taken{others}"
    columns: Columns = {
        "value": lambda held: named(found.name, held.value),
        f"requests in {days}": lambda held: count(held.requests),
        "share": lambda held: share(held.requests),
        "last day": lambda held: f"none for {days}" if held.last_day is None else utc(held.last_day)[:10],
        "": lambda held: held.kept_by,
    }
    yield from (f"  {line}" for line in table_of(columns, found.held, left=(0, 3, 4)))
