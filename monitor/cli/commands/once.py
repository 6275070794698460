"""Run one cycle of each monitor in the foreground, send notifications, and exit.

The exit code is that of the first monitor that failed.
"""

from __future__ import annotations

from pathlib import Path

import click

from monitor.cli import exit_code
from monitor.cli.common import command, load_config, pick_monitors, prepared
from monitor.cli.options import config_option, monitors_option
from monitor.service.app import App

SEND_WITHIN = 30.0
"""Seconds for the receivers."""


@command
@config_option
@monitors_option
def once(config_path: Path, names: tuple[str, ...]) -> int:
    config = load_config(config_path, log=True)
    wanted = pick_monitors(config, names)
    with prepared(config) as app:
        errors = [error for monitor in wanted if (error := _cycle(app, monitor.name))]
        app.escalator.run()
        try:
            if waiting := app.sender.deliver(SEND_WITHIN, app.stopping.is_set):
                click.echo(f"rankmon: notifications left for the next run: {waiting}", err=True)
        finally:
            app.sender.stop()
    return exit_code(errors[0]) if errors else 0


def _cycle(app: App, name: str) -> Exception | None:
    run = app.runners[name].run()
    if run.outcome is not None:
        stored, due, rows = run.outcome.stored, run.outcome.due, run.outcome.rows_read
        click.echo(f"{name}: {stored} of {due} due buckets stored, {rows} rows read")
    else:
        click.echo(f"rankmon: {run.error}", err=True)
    return run.error
