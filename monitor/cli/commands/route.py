"""Show who is notified, of what, and when."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import click

from monitor.cli.common import group, load_config, rendered
from monitor.cli.options import InstantParam, config_option, monitor_option
from monitor.cli.render import column, record
from monitor.conditions.evidence import MATTERS
from monitor.conditions.rules import SEVERITIES
from monitor.config import Config
from monitor.messages.tables import DASH
from monitor.routing import Escalation, Route, Routing, reached, repeated
from monitor.types import format_duration

route = group(__name__)


def _again(repeats: Mapping[str, int]) -> str:
    return ", ".join(f"{name} every {format_duration(every)}" for name, every in repeats.items()) or DASH


def _also(steps: Sequence[Escalation]) -> str:
    return "; ".join(f"{', '.join(s.channels)} after {format_duration(s.after)}" for s in steps) or DASH


@record
class RoutedCase:
    """Who is notified of one kind of incident."""

    severity: str = column("severity", left=True)
    matter: str = column("matter", left=True)
    channels: tuple[str, ...] = column("notifies", ", ".join, left=True)
    repeat: Mapping[str, int] = column("unacknowledged, again", _again, left=True)
    escalate: Sequence[Escalation] = column("and also", _also, left=True)
    routes: list[str] = column("by", ", ".join, left=True)


@route.command()
@config_option
@monitor_option()
@click.option("--at", type=InstantParam(), help="When it opens (default: now).")
@rendered("table", "json")
def show(config_path: Path, monitor: str | None, at: int | None) -> list[RoutedCase]:
    """Show who is notified of each kind of incident of a monitor. Critical data incidents take both matters' routes."""
    config, now, found = load_config(config_path, unread=("sources",)), time.time() if at is None else at, []
    routing = Routing(config.monitor(monitor), config.routes)
    for severity, matter in product(reversed(SEVERITIES), MATTERS):
        routes = routing.decide(severity, (matter,), now)
        steps = sorted((step for r in routes for step in r.escalate), key=lambda step: step.after)
        by = [_name(one, config) for one in routes]
        found.append(RoutedCase(severity, matter, reached(routes), repeated(routes), steps, by))
    return found


def _name(route: Route, config: Config) -> str:
    return f"routes[{config.routes.index(route)}]" if route in config.routes else "its own channels"
