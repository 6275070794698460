"""Send a test notification to each channel's receivers, directly, and print their answers.

MONITOR is the same as --monitor.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from monitor.cli import exit_code
from monitor.cli.common import command, load_config
from monitor.cli.options import config_option, monitor_option
from monitor.conditions.evidence import MATTERS, Matter
from monitor.conditions.incident import Incident
from monitor.conditions.rules import SEVERITIES, Severity, worst
from monitor.config import Config
from monitor.errors import InputError, Undelivered
from monitor.messages.notification import About, Notification, notification
from monitor.messages.own import TemplateFault
from monitor.messages.templates import OwnTemplates
from monitor.routing import Routing, reached
from monitor.service.app import receivers
from monitor.types import Monitor


@command
@config_option
@click.option("--channel", "names", multiple=True, help="Only this channel (default: all).")
@monitor_option("Monitor whose name and labels to use (default: the first).")
@click.option(
    "--severity",
    type=click.Choice(SEVERITIES),
    help="Severity, for routing (default: that of its most severe rule).",
)
@click.option(
    "--matter", type=click.Choice(MATTERS), help="Only the channels that the routes currently choose for this matter."
)
def test_alert(
    config_path: Path,
    names: tuple[str, ...],
    monitor: str | None,
    severity: Severity | None,
    matter: Matter | None,
) -> int:
    config = load_config(config_path, log=True, unread=("sources",))
    known = {r.channel: r for r in receivers(config.channels)}
    if unknown := [n for n in names if n not in known]:
        raise InputError(f"there is no channel {unknown[0]!r}; known are {', '.join(known)}")
    notice, failed = _test(config, monitor, severity), None
    if config.monitor(notice.monitor).paging == "prometheus":
        text = "Prometheus pages for it, which this does not test; check that its RankmonWatchdog arrives"
        click.echo(f"rankmon: {notice.monitor}: {text}", err=True)
    if matter is not None:
        routes = Routing(config.monitor(notice.monitor), config.routes).decide(notice.severity, (matter,), time.time())
        names = tuple(name for name in reached(routes) if not names or name in names)
        click.echo(f"{notice.monitor}: {notice.severity}, {matter}: {', '.join(names) or 'none of these channels'}")
    for receiver in receivers(config.channels):
        if (names or matter is not None) and receiver.channel not in names:
            continue
        try:
            receiver.send(notice, time.time())
            click.echo(f"{receiver.target}: delivered")
        except Undelivered as error:
            failed = error
            click.echo(f"{receiver.target}: not delivered: {error}", err=True)
    return 0 if failed is None else exit_code(failed)


def _test(config: Config, name: str | None, severity: Severity | None) -> Notification:
    monitor = config.monitors[0] if name is None else config.monitor(name)
    now = int(time.time())
    about = About(
        monitor.name,
        monitor.labels,
        monitor.runbook_url,
        config.web.page_url(),
        templates=OwnTemplates(config.templates, _template_failed),
    )
    grave = severity or _gravest(monitor)
    return notification("test", about, Incident(monitor.name, now, now, severity=grave), (), 0)


def _template_failed(fault: TemplateFault) -> None:
    click.echo(f"rankmon: template failed: {fault}; the built-in one is used", err=True)


def _gravest(monitor: Monitor) -> Severity:
    of_verdicts = [] if monitor.drift is None else [monitor.drift.severity, monitor.drift.data_severity]
    return worst([rule.severity for rule in monitor.alerts] + of_verdicts or ["critical"])
