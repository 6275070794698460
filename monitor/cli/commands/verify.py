"""Read final buckets again in every way, and compare the results with each other and with the store.

Each bucket `agrees`, was `changed` in the source since it was stored (`backfill --again` reads it again), or
`differs`: the ways disagree, which is a bug in rankmon or in the database, and the exit code is 1. Nothing is changed.
Buckets that are not final or have no requests are not compared; it says which.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from monitor.cli.common import command, load_config, pick_monitors, prepared, progress, rendered
from monitor.cli.options import InstantParam, config_option, monitors_option
from monitor.cli.render import Shown
from monitor.errors import Stopped
from monitor.messages.words import between, counted, utc
from monitor.service.app import App
from monitor.service.audit import Audit, Result, audit, auditable
from monitor.types import Monitor

WORDS: dict[Result, str] = {"agrees": "agree", "changed": "changed in the source since", "differs": "differ"}


@command
@config_option
@monitors_option
@click.option("--from", "since", type=InstantParam(), required=True, help="First moment, e.g. 2026-01-31.")
@click.option("--to", "until", type=InstantParam(), help="End (default: now).")
@rendered("table", "json")
def verify(config_path: Path, names: tuple[str, ...], since: int, until: int | None) -> Shown:
    config = load_config(config_path, log=True)
    wanted = pick_monitors(config, names)
    until = int(time.time()) if until is None else until
    if since >= until:
        raise click.UsageError("--from must be before --to")
    with prepared(config) as app:
        known = {monitor.name: auditable(monitor, app.store, since, until) for monitor in wanted}
        found = {monitor.name: list(_audits(app, monitor, known[monitor.name])) for monitor in wanted}
    left = {m.name: _left_out(known[m.name], m.bucket) for m in wanted}
    data = [_document(name, one) for name, audits in found.items() for one in audits]
    for name, starts in known.items():
        data += [
            {"monitor": name, "bucket": utc(start), "result": "not compared", "why": why}
            for start, why in starts.items()
            if why
        ]
    return Shown(data, lambda: _lines(found, left), int(any(one["result"] == "differs" for one in data)))


def _left_out(known: Mapping[int, str], width: int) -> list[str]:
    """How many buckets were not compared, when and why, a line per reason."""
    whys = dict.fromkeys(why for why in known.values() if why)
    spans = {why: [start for start, other in known.items() if other == why] for why in whys}
    return [
        f"{counted(len(starts), 'bucket')} not compared {between(starts[0], starts[-1] + width)}: {why}"
        for why, starts in spans.items()
    ]


def _document(monitor: str, one: Audit) -> dict[str, Any]:
    """Outcome of reading a bucket again; `difference` names the ways of reading and their sums."""
    apart = one.difference
    figures = None if apart is None else {"what": apart.what, **dict(zip(apart.ways, apart.figures, strict=True))}
    found = {"monitor": monitor, "bucket": utc(one.start), "result": one.result, "ways": one.ways}
    return found | {"requests": one.requests, "difference": figures}


def _lines(found: Mapping[str, Sequence[Audit]], left: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for monitor, audits in found.items():
        yield from (f"{monitor}: {one}" for one in audits if one.difference is not None)
    for monitor, audits in found.items():
        results = Counter(one.result for one in audits)
        told = ", ".join(f"{results[result]} {word}" for result, word in WORDS.items())
        yield f"{monitor}: {counted(results.total(), 'final bucket')} read again: {told}"
        yield from (f"{monitor}: {one}" for one in left[monitor])


def _audits(app: App, monitor: Monitor, known: Mapping[int, str]) -> Iterator[Audit]:
    ways, starts = app.readers_of(monitor), [start for start, why in known.items() if not why]
    with progress() as bar:
        task = bar.add_task(f"{monitor.name}: buckets", total=len(starts))
        for number, start in enumerate(starts):
            if app.stopping.is_set():
                raise Stopped(f"{monitor.name}: stopped after {number} buckets")
            yield audit(monitor, start, app.store, ways, app.stopping.is_set)
            bar.advance(task)
