"""The landing page: what the board holds, as HTML. No request touches a database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined

from monitor import __version__
from monitor.clock import Clock
from monitor.core.types import OVERALL, format_duration
from monitor.snapshot import Board, MonitorSnapshot, Series, shown


class Pictured(Protocol):
    """What the page shows."""

    clock: Clock
    board: Board

    def health(self) -> str:
        """Empty, or what is wrong with the process."""

    def next_run_at(self, name: str) -> float | None:
        """When a monitor runs next, in real seconds."""


def ago(seconds: float | None) -> str:
    """How long ago, in words: the larger unit from two of it on.

    >>> ago(7300), ago(None)
    ('2 h ago', 'never')
    """
    if seconds is None:
        return "never"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * size:
            return _when(f"{abs(seconds) / size:.0f} {unit}", seconds)
    return _when(f"{abs(seconds):.0f} s", seconds)


def _when(amount: str, seconds: float) -> str:
    return f"{amount} ago" if seconds >= 0 else f"in {amount}"


def utc(instant: float | None) -> str:
    """`2022-02-24 05:00 UTC`, or a dash."""
    return "–" if instant is None else datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M UTC")


_TEMPLATES = Environment(loader=PackageLoader("monitor"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
_TEMPLATES.filters.update(ago=ago, utc=utc, duration=format_duration)


def render(served: Pictured) -> str:
    """The landing page as HTML."""
    now = served.clock.now()
    snapshots: Mapping[str, MonitorSnapshot] = served.board.snapshots
    rows = [_row(snapshots[name], served, now) for name in sorted(snapshots)]
    template = _TEMPLATES.get_template("index.html")
    return template.render(version=__version__, now=now, monitors=rows, health=served.health())


def _row(snapshot: MonitorSnapshot, served: Pictured, now: float) -> dict[str, Any]:
    progress, next_run = snapshot.progress, served.next_run_at(snapshot.monitor.name)
    return {
        "name": snapshot.monitor.name,
        "labels": snapshot.monitor.labels,
        "runbook": snapshot.monitor.runbook_url,
        "error": progress.last_error,
        "success": None if progress.last_success_at is None else now - progress.last_success_at,
        "newest": None if progress.newest_source_at is None else now - progress.newest_source_at,
        "next_run": None if next_run is None else time.time() - next_run,
        "due": snapshot.due_buckets,
        "provisional": snapshot.provisional_buckets,
        "refused": sorted(snapshot.refused.items()),
        "unmatched": snapshot.unmatched,
        "future": snapshot.future_rows,
        "series": [_line(s, snapshot.monitor.min_completeness) for s in snapshot.series],
    }


def _line(series: Series, least: float) -> dict[str, Any]:
    points = shown(series, least)
    overall = next((p for p in points if (p.dimension, p.slice) == OVERALL), None)
    sliced = [p for p in points if (p.dimension, p.slice) != OVERALL]
    latest = next((p for p in series.provisional if (p.dimension, p.slice) == OVERALL), None)
    return {
        "measure": str(series.measure),
        "window": format_duration(series.length),
        "definition": series.definition.id,
        "point": overall,
        "slices": sliced,
        "provisional": latest,
    }
