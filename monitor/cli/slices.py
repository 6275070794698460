"""`rankmon slices`: which values of the slices have a series of their own, and how those that are gone give it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import config_option, load_config, pick_monitors, stored
from monitor.cli.formats import format_option
from monitor.cli.tables import count, percent, table

if TYPE_CHECKING:
    from monitor.core.types import Monitor
    from monitor.releasing import Dimension


@click.group()
def slices() -> None:
    """Show which values of the slices have a series of their own, or have some give back their place.

    The first `max_values` values of a column have one, the rest is `other`.
    """


@slices.command()
@config_option
@click.argument("monitor")
@format_option("table", "json")
def show(config_path: Path, monitor: str, style: str) -> None:
    """Each value that has a place, when it was last seen, and how much is left for `other`."""
    from monitor.releasing import dimensions, span_of

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
@click.option("--silent", is_flag=True, help="All values without a request for as long.")
@click.option("--dry-run", is_flag=True, help="Only say which ones would go, and what keeps others.")
@click.option("--force", is_flag=True, help="Values that do have requests too: these are `other` from then on.")
def release(
    config_path: Path, monitor: str, dimension: str, values: tuple[str, ...], silent: bool, dry_run: bool, force: bool
) -> None:
    """Have values give back their places, for others to take.

    It holds from the end of what is stored on: older buckets stay as they are, also when they are read again. Each
    place goes to the next value that comes, the busier first. A value that comes back finds its old series if a place
    is free.
    Without --force, only values go that had no request for 28 days, or for the longest window if that is more.
    """
    from monitor.releasing import Wish, release_places

    config = load_config(config_path, with_sources=False)
    (wanted,) = pick_monitors(config, (monitor,))
    with stored(config) as store:
        for line in release_places(wanted, store, Wish(dimension, values, silent, force), dry_run):
            click.echo(line)


def _plain(found: Dimension) -> dict[str, Any]:
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


def _lines(monitor: Monitor, found: Dimension, span: int) -> list[str]:
    from monitor.core.types import format_duration
    from monitor.core.verdict_words import named
    from monitor.core.words import utc

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
