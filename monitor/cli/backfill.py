"""`rankmon backfill`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monitor.cli.common import Instant, config_option, load_config, monitor_option, pick_monitors
from monitor.errors import Stopped

if TYPE_CHECKING:
    from monitor.app import App
    from monitor.core.types import Monitor


@click.command()
@config_option
@monitor_option()
@click.option("--from", "since", type=Instant(), required=True, help="First moment, e.g. 2022-01-31.")
@click.option("--to", "until", type=Instant(), help="Moment after the last; now without it.")
@click.option("--again", is_flag=True, help="Read final buckets too; they are kept where the source holds less now.")
@click.option("--force", is_flag=True, help="With --again: replace final buckets even by less.")
def backfill(
    config_path: Path, names: tuple[str, ...], since: int, until: int | None, again: bool, force: bool
) -> None:
    """Compute the past. Interrupted and started again, it goes on where it was."""
    from monitor.app import App

    if force and not again:
        raise click.UsageError("--force goes with --again")
    config = load_config(config_path, log=True)
    wanted = pick_monitors(config, names)
    app = App(config)
    until = int(app.clock.now()) if until is None else until
    if since >= until:
        raise click.UsageError("--from must be before --to")
    _stop_on_signals(app)
    app.prepare()
    try:
        for monitor in wanted:
            fill(app, monitor, (since, until), again, force)
    finally:
        app.close()


def _stop_on_signals(app: App) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: app.interrupt())


def fill(app: App, monitor: Monitor, span: tuple[int, int], again: bool = False, force: bool = False) -> int:
    """Backfill one monitor with a progress bar on standard error; how many buckets were stored.

    Raises:
        LeaseLost: the daemon, or another backfill, is writing this monitor.
        Stopped: interrupted; what was stored stays.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from monitor.cycle import Stride, run_backfill

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stored, kept = 0, 0
    with app.store.hold(monitor.name) as lease, Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{monitor.name}: buckets", total=None)
        source = app.source_of(monitor)
        for done in run_backfill(monitor, app.clock.now(), span, source, app.store, lease, Stride(), again, force):
            if done.due or not done.stored:
                bar.update(task, total=done.due or bar.tasks[0].total or 0)
            stored, kept = stored + done.stored, kept + len(done.kept)
            bar.advance(task, done.stored + len(done.kept))
            if app.stopping.is_set():
                raise Stopped(f"{monitor.name}: interrupted after {stored} buckets; the same command goes on there")
    click.echo(f"{monitor.name}: {stored} buckets stored" + (f", {kept} final ones kept" if kept else ""))
    return stored
