"""Announce something unusual, such as a campaign or a deployment: verdicts neither judge it nor learn from it.

Open incidents stay open; alert rules and missing data still notify as usual. Without --until or --for, lists
what is announced. Times are UTC unless they name an offset: 2026-11-27, or 2026-11-27T08:00+01:00. Verdicts judge whole
hours, so an announcement covers each hour that it touches: 2h from 16:16 on are 16:00 to 19:00.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from monitor.cli.common import command, pick_monitors, store_config, stored
from monitor.cli.options import DurationParam, InstantParam, by_option, config_option, monitors_option, note_option
from monitor.conditions.checkpoint import Announcement
from monitor.errors import InputError
from monitor.evaluation.hours import announced_of, drift_of, in_steps
from monitor.fields import FARTHEST
from monitor.messages.explanation import announced
from monitor.messages.words import utc
from monitor.store import Store
from monitor.types import Monitor


@command
@config_option
@monitors_option
@click.option("--from", "since", type=InstantParam(), help="When it begins, UTC or with an offset (default: now).")
@click.option("--until", type=InstantParam(), help="When it ends, UTC or with an offset.")
@click.option("--for", "lasting", type=DurationParam(), help="How long it lasts, instead of --until.")
@click.option("--new-level", "is_new_level", is_flag=True, help="A new level comes afterwards: learn it.")
@click.option(
    "--forget", type=InstantParam(), help="Remove the announcement that begins at this moment, or in its hour."
)
@note_option("What happens.")
@by_option()
def expect(
    config_path: Path,
    names: tuple[str, ...],
    since: int | None,
    until: int | None,
    lasting: int | None,
    is_new_level: bool,
    forget: int | None,
    note: str,
    by: str,
) -> None:
    if until is not None and lasting is not None:
        raise InputError("use --until or --for, not both")
    if forget is not None and (since, until, lasting) != (None, None, None):
        raise InputError("use --forget alone")
    config = store_config(config_path)
    monitors, now = pick_monitors(config, names), time.time()
    begin = int(now) if since is None else since
    end = until if lasting is None else begin + lasting
    if end is not None and end <= begin:
        raise InputError(f"it would end at {utc(end)}, before it begins at {utc(begin)}")
    if not names:
        monitors = [monitor for monitor in monitors if monitor.drift is not None] or monitors
    for monitor in monitors:
        drift_of(monitor)  # without verdicts there is nothing to announce it to
    with stored(config) as store:
        if forget is not None:
            _take_back(monitors, store, forget)
        for monitor in monitors:
            if end is not None:
                said = in_steps(monitor, Announcement(begin, end, by, note, is_new_level))
                store.verdicts.announce(monitor.name, said, now)
            click.echo("\n".join(_lines(monitor, store)))


def _take_back(monitors: Sequence[Monitor], store: Store, at: int) -> None:
    begins = {monitor.name: in_steps(monitor, Announcement(at, at, "", "")).since for monitor in monitors}
    gone = [store.verdicts.take_back_announcement(name, begin) for name, begin in begins.items()]
    if not any(gone):
        known = sorted({one.since for monitor in monitors for one in store.verdicts.announced(monitor.name)})
        told = "; ".join(f"--forget '{utc(begin)}'" for begin in known) or "nothing that this command announced"
        more = "; take out what a calendar announces there" if any(_is_in_calendar(m, at) for m in monitors) else ""
        raise InputError(f"no announcement for {', '.join(begins)} begins at {utc(at)}; known: {told}{more}")


def _is_in_calendar(monitor: Monitor, at: int) -> bool:
    return any(one.since <= at < one.until for one in drift_of(monitor).calendar)


def _lines(monitor: Monitor, store: Store) -> Iterator[str]:
    found: list[Announcement] = announced_of(monitor, store, FARTHEST)
    yield f"{monitor.name}: {'nothing is announced' if not found else ''}".rstrip()
    yield from (f"  {announced(one)}" for one in found)
