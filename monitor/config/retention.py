"""Builds how long the buckets of a monitor are kept, and checks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import monitor.config.shape as shape
from monitor.config.report import Report
from monitor.config.scope import Scope
from monitor.series.retention import least_age, least_kept, needed
from monitor.types import FINE_FOR, Monitor, Retention, format_duration

DAY = 86_400


def build_retention(scope: Scope, monitor: Monitor) -> Monitor:
    """The monitor with what it says of its buckets; what is wrong with that is reported."""
    said: shape.Retention | None = scope.setting("retention")
    if said is None:
        return replace(monitor, retention=Retention(roll_up_after=max(FINE_FOR, least_age(monitor))))
    for steps, text in _problems(monitor, said):
        scope.refuse_setting("retention", text, *steps)
    if said.roll_up is None:
        return replace(monitor, retention=Retention(said.retain))
    return replace(monitor, retention=Retention(said.retain, said.roll_up.after, said.roll_up.to))


def check_store_retention(retain: int, monitors: Sequence[Monitor], report: Report) -> None:
    """What was judged stays for as long as it is shown and gone on from.

    Args:
        retain: `store.retain`, seconds.
    """
    least = max((least_kept(monitor) for monitor in monitors), default=0)
    if retain < least:
        text = f"{format_duration(retain)} is too short: verdicts that the page draws would be forgotten"
        report.add(("store", "retain"), f"{text}; the least is {format_duration(least)}")


def _problems(monitor: Monitor, said: shape.Retention) -> Iterator[tuple[tuple[str, ...], str]]:
    if said.retain is not None and (text := _too_young(monitor, said.retain)):
        yield ("retain",), text
    if (coarse := said.roll_up) is None:
        return
    if text := _too_young(monitor, coarse.after):
        yield ("roll_up", "after"), text
    elif said.retain is not None and coarse.after + coarse.to > said.retain:
        text = f"{format_duration(coarse.after)} and a coarser bucket are more than retain"
        yield ("roll_up", "after"), f"{text} ({format_duration(said.retain)}), so there would be none; raise retain"
    if DAY % coarse.to and coarse.to % DAY:
        text = f"{format_duration(coarse.to)} does not divide a day evenly; use e.g. 6h, 24h or 7d"
        yield ("roll_up", "to"), text
    elif coarse.to % monitor.bucket or coarse.to == monitor.bucket:
        text = f"{format_duration(coarse.to)} is not several buckets of {format_duration(monitor.bucket)}"
        yield ("roll_up", "to"), f"{text}; take a multiple of that"


def _too_young(monitor: Monitor, age: int) -> str:
    """Why buckets of an age are needed as they are; empty if they are not."""
    least = least_age(monitor)
    if age >= least:
        return ""
    return f"{format_duration(age)} is too young: needed are {needed(monitor)}; the least is {format_duration(least)}"
