"""Read final buckets again in every way, and compare them with each other and with what is stored.

Each bucket `agrees`, was `changed` in the source since it was stored (`backfill --again` reads it again), or
`differs`: the ways disagree, which is a fault of rankmon or of the database, and the exit code is 1. No figure is
changed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import (
    Instant,
    command,
    config_option,
    format_option,
    interruptible,
    load_config,
    monitors_option,
    pick_monitors,
)
from monitor.errors import Stopped
from monitor.messages.words import utc

if TYPE_CHECKING:
    from monitor.service.app import App
    from monitor.service.audit import Audit
    from monitor.types import Monitor

DIFFERS = 1
"""Exit code where the ways of reading disagree."""


@command
@config_option
@monitors_option
@click.option("--from", "since", type=Instant(), required=True, help="First moment, e.g. 2026-01-31.")
@click.option("--to", "until", type=Instant(), help="End (default: now).")
@format_option("table", "json")
def verify(config_path: Path, names: tuple[str, ...], since: int, until: int | None, style: str) -> int:
    from monitor.service.app import App

    config = load_config(config_path, log=True)
    wanted = pick_monitors(config, names)
    app = App(config)
    until = int(time.time()) if until is None else until
    if since >= until:
        raise click.UsageError("--from must be before --to")
    try:
        with interruptible(app):
            app.prepare()
            found = {monitor.name: _audits(app, monitor, since, until, style == "table") for monitor in wanted}
    finally:
        app.close()
    if style == "json":
        click.echo(json.dumps([_plain(name, one) for name, audits in found.items() for one in audits], indent=2))
    return DIFFERS if any(one.result == "differs" for audits in found.values() for one in audits) else 0


def _audits(app: App, monitor: Monitor, since: int, until: int, tells: bool) -> list[Audit]:
    """One after another, oldest first; what is not as it should be is printed at once if `tells`."""
    from monitor.service.audit import RESULTS, audit, finals

    ways, found = app.ways_of(monitor), list[Any]()
    for start in finals(monitor, app.store, since, until):
        if app.stopping.is_set():
            raise Stopped(f"{monitor.name}: stopped after {len(found)} buckets")
        found.append(audit(monitor, start, app.store, ways, app.stopping.is_set))
        if tells and found[-1].difference is not None:
            click.echo(f"{monitor.name}: {found[-1]}")
    if tells:
        counts = ", ".join(f"{sum(one.result == result for one in found)} {result}" for result in RESULTS)
        click.echo(f"{monitor.name}: {len(found)} final buckets: {counts}")
    return found


def _plain(name: str, one: Audit) -> dict[str, Any]:
    """One bucket's outcome as JSON data."""
    difference = one.difference
    told = None
    if difference is not None:
        told = {"what": difference.what, **dict(zip(difference.ways, difference.figures, strict=True))}
    return {
        "monitor": name,
        "bucket": utc(one.start),
        "result": one.result,
        "ways": list(one.ways),
        "requests": one.requests,
        "difference": told,
    }
