"""Show which slice values have a series of their own, or free places for other values.

The first `max_values` values of a column have one; all others share `other`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import config_option, format_option, group, load_config, pick_monitors, stored
from monitor.cli.render import count, percent, table

if TYPE_CHECKING:
    from monitor.service.slice_admission import DimensionUsage
    from monitor.types import Monitor


slices = group(__name__)


@slices.command()
@config_option
@click.argument("monitor")
@format_option("table", "json")
def show(config_path: Path, monitor: str, style: str) -> None:
    """Show each value that has a series, when it was last seen, and the share of `other`."""
    from monitor.service.slice_admission import dimensions, span_of

    config = load_config(config_path, with_sources=False)
    (wanted,) = pick_monitors(config, (monitor,))
    with stored(config) as store:
        found = dimensions(wanted, store)
    if style == "json":
        click.echo(json.dumps([_plain(one) for one in found], indent=2))
        return
    for one in found:
        click.echo("\n".join(_lines(wanted, one, span_of(wanted))))


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

    config = load_config(config_path, with_sources=False)
    (wanted,) = pick_monitors(config, (monitor,))
    with stored(config) as store:
        for line in release_places(wanted, store, ReleaseRequest(dimension, values, silent, force), dry_run):
            click.echo(line)


def _plain(found: DimensionUsage) -> dict[str, Any]:
    """As JSON data; instants in seconds since 1970."""
    return {
        "dimension": found.name,
        "places": found.places,
        "taken": len(found.held),
        "other_requests": found.others,
        "requests": found.requests,
        "values": [
            {"value": h.value, "requests": h.requests, "last_day": h.last_day, "kept_by": h.kept_by or None}
            for h in found.held
        ],
    }


def _lines(monitor: Monitor, found: DimensionUsage, span: int) -> list[str]:
    from monitor.conditions.verdict_words import named
    from monitor.messages.words import utc
    from monitor.types import format_duration

    def share(requests: int) -> str:
        return percent(requests / found.requests if found.requests else None)

    lasting = format_duration(span)
    text = f"{monitor.name}: {found.name}: {len(found.held)} of {found.places} places are taken"
    if found.others:
        text += f"; {share(found.others)} of the requests of the last {lasting} are `other`"
    rows = [
        (
            named(found.name, h.value),
            count(h.requests),
            share(h.requests),
            f"none for {lasting}" if h.last_day is None else utc(h.last_day)[:10],
            f"it {h.kept_by}" if h.kept_by else "",
        )
        for h in found.held
    ]
    head = ("value", f"requests in {lasting}", "share", "last day", "")
    return [text, *(f"  {line}" for line in table(head, rows, (0, 3, 4)))]
