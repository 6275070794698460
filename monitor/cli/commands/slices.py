"""Show which slice values have a series of their own, or free places for other values.

The first `max_values` values of a column have one; all others share `other`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import group, monitor_in_store, rendered
from monitor.cli.options import config_option
from monitor.cli.render import count, percent, record, table

if TYPE_CHECKING:
    from monitor.service.slice_admission import DimensionUsage


slices = group(__name__)


@slices.command()
@config_option
@click.argument("monitor")
@rendered("table", "json")
def show(config_path: Path, monitor: str) -> list[SlicePlaces]:
    """Show each value that has a series, when it was last seen, and the share of `other`."""
    from monitor.service.slice_admission import dimensions, span_of
    from monitor.types import format_duration

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
    """Free the places of values, for others to take.

    Takes effect after the newest stored bucket; older buckets do not change, even if read again. Each place goes to the
    next new value, the busiest first. A value that returns continues its old series if a place is free. Without
    --force, only values without a request for 28 days (or the longest window) are released.
    """
    from monitor.service.slice_admission import ReleaseRequest, release_places

    with monitor_in_store(config_path, monitor) as (wanted, store):
        for line in release_places(wanted, store, ReleaseRequest(dimension, values, silent, force), dry_run):
            click.echo(line)


@record
class SlicePlaces:
    """A dimension's places and the values that have them; instants in seconds since 1970."""

    dimension: str
    places: int
    taken: int
    other_requests: int
    requests: int
    values: list[dict[str, Any]]
    monitor: str = field(metadata={"json": False})
    days: str = field(metadata={"json": False})

    def lines(self) -> Iterator[str]:
        others = f"; {self._share(self.other_requests)} of the requests of the last {self.days} are `other`"
        taken = f"{self.taken} of {self.places} places are taken{others * bool(self.other_requests)}"
        yield f"{self.monitor}: {self.dimension}: {taken}"
        head = ("value", f"requests in {self.days}", "share", "last day", "")
        yield from (f"  {line}" for line in table(head, map(self._row, self.values), (0, 3, 4)))

    def _share(self, requests: int) -> str:
        return percent(requests / self.requests if self.requests else None)

    def _row(self, held: Mapping[str, Any]) -> tuple[str, ...]:
        from monitor.messages.words import named, utc

        seen = f"none for {self.days}" if held["last_day"] is None else utc(held["last_day"])[:10]
        kept = f"it {held['kept_by']}" if held["kept_by"] else ""
        name, requests = named(self.dimension, held["value"]), held["requests"]
        return name, count(requests), self._share(requests), seen, kept


def _places(found: DimensionUsage, monitor: str, days: str) -> SlicePlaces:
    values = [{**asdict(held), "kept_by": held.kept_by or None} for held in found.held]
    return SlicePlaces(found.name, found.places, len(values), found.others, found.requests, values, monitor, days)
