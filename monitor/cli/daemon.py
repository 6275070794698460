"""`rankmon run`, `once` and `migrate`."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from monitor.cli.common import Instant, config_option, load_config, monitor_option, pick_monitors
from monitor.errors import SourceError

if TYPE_CHECKING:
    from monitor.app import App

log = logging.getLogger("monitor.daemon")


@click.command()
@config_option
@click.option("--replay-from", type=Instant(), help="Pretend that it is this time now, and let the clock run on.")
@click.option("--speed", type=click.FloatRange(min=0.001), default=1.0, show_default=True, help="With --replay-from.")
def run(config_path: Path, replay_from: int | None, speed: float) -> None:
    """Run the daemon: read, compute, store and serve until SIGTERM. SIGHUP loads the configuration anew."""
    from monitor.app import App
    from monitor.clock import ReplayClock, SystemClock

    if speed != 1.0 and replay_from is None:
        raise click.UsageError("--speed goes with --replay-from")
    clock = SystemClock() if replay_from is None else ReplayClock(replay_from, speed)
    serve(App(load_config(config_path, log=True), clock))


def serve(app: App, announce: bool = False) -> None:
    """Prepare and start an app, and keep it going until it is told to end."""
    end, reload = threading.Event(), threading.Event()
    wake = threading.Event()

    def on(flag: threading.Event) -> Any:
        def handler(*_: Any) -> None:
            flag.set()
            wake.set()

        return handler

    signal.signal(signal.SIGTERM, on(end))
    signal.signal(signal.SIGINT, on(end))
    signal.signal(signal.SIGHUP, on(reload))
    app.prepare()
    try:
        app.start()
        log.info("serving on http://%s:%d/, %d monitors", app.web.host, app.web.port, len(app.runners))
        if announce:
            click.echo(f"Serving on http://{app.web.host}:{app.web.port}/ (and /metrics); Ctrl-C ends it.")
        while not end.is_set():
            wake.wait()
            wake.clear()
            if reload.is_set():
                reload.clear()
                app.reload()
    finally:
        log.info("stopping")
        app.stop()
        log.info("stopped")


@click.command()
@config_option
@monitor_option()
def once(config_path: Path, names: tuple[str, ...]) -> None:
    """Run one cycle of each monitor in the foreground and end; fails if one of them fails."""
    from monitor.app import App

    config = load_config(config_path, log=True)
    wanted = pick_monitors(config, names)
    app = App(config)
    signal.signal(signal.SIGTERM, lambda *_: app.stopping.set())
    app.prepare()
    try:
        failed = [m.name for m in wanted if not _cycle(app, m.name)]
    finally:
        app.close()
    if failed:
        raise SourceError(f"failed: {', '.join(failed)}; the log above says why")


def _cycle(app: App, name: str) -> bool:
    outcome = app.runners[name].run(lambda *_: None)
    if outcome is None:
        return False
    click.echo(f"{name}: {outcome.stored} of {outcome.due} due buckets stored, {outcome.rows} rows read")
    return True


@click.command()
@config_option
def migrate(config_path: Path) -> None:
    """Bring the store to this version's schema. `run`, `once` and `backfill` do it by themselves."""
    from monitor.store import Store

    config = load_config(config_path)
    store = Store(config.store.url, config.scheduler.lease)
    before, now = store.schema.migrate()
    click.echo(f"schema {now}, nothing to do" if before == now else f"schema {before or 'none'} -> {now}")
    store.close()
