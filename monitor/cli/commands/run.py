"""Run the daemon: read, compute, store and serve until SIGTERM. SIGHUP reloads the configuration."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

import click

from monitor.cli import exit_code
from monitor.cli.common import command, load_config
from monitor.cli.options import InstantParam, config_option
from monitor.errors import StoreError

if TYPE_CHECKING:
    from monitor.service.app import App

log = logging.getLogger("monitor.daemon")

WAKE_EVERY = 1.0
"""Seconds between checks for a signal that did not end the wait."""


ALIVE_EVERY = 10.0
"""Seconds between watchdog notifications to systemd, far below the unit's WatchdogSec."""


@command
@config_option
@click.option("--replay-from", type=InstantParam(), help="Start the clock at this time instead of now.")
@click.option("--speed", type=click.FloatRange(min=0.001), default=1.0, show_default=True, help="With --replay-from.")
def run(config_path: Path, replay_from: int | None, speed: float) -> None:
    signals = _noted()
    if speed != 1.0 and replay_from is None:
        raise click.UsageError("--speed goes with --replay-from")
    try:
        from monitor.clock import ReplayClock, SystemClock
        from monitor.service.app import App

        clock = SystemClock() if replay_from is None else ReplayClock(replay_from, speed)
        serve(App(load_config(config_path, log=True), clock), signals=signals)
    except KeyboardInterrupt:
        log.info("stopped before anything was served")


def _noted(signals: SimpleQueue[int] | None = None) -> SimpleQueue[int]:
    """Queue of reload requests from now on: unhandled, they would end the process."""
    found = SimpleQueue[int]() if signals is None else signals
    signal.signal(signal.SIGHUP, lambda number, _: found.put(number))
    return found


def serve(app: App, announce: bool = False, signals: SimpleQueue[int] | None = None) -> None:
    """Prepare, start and run an app until it is stopped. `signals`: those received so far, as from `_noted`.

    Raises:
        KeyboardInterrupt: it was stopped before it started.
    """
    from monitor.messages.words import counted

    signals = _noted(signals)

    def note(number: int, _: object) -> None:
        signals.put(number)  # a handler can interrupt anything, so it must take no lock

    is_serving, has_ended = False, True
    try:
        _on_end(signal.default_int_handler)
        app.web.listen()
        app.prepare()
        _on_end(note)
        app.start()
        is_serving = True
        watched = _Watched(app.health)
        log.info("serving on %s, %s", app.web.url, counted(len(app.runners), "monitor"))
        if announce:
            click.echo(f"Serving on {app.web.url} (and /metrics); Ctrl-C ends it.")
        while _next(signals, watched.look) == signal.SIGHUP:
            # A file may hang: in this thread it would keep the next signal from being seen.
            threading.Thread(target=app.reload, name="reload", daemon=True).start()
    finally:
        _on_end(note)
        if is_serving:
            log.info("stopping")
        has_ended = app.stop()
        if is_serving and has_ended:
            log.info("stopped")
    if not has_ended:
        logging.shutdown()
        os._exit(exit_code(StoreError("")))  # threads hanging in the store would keep the process


def _next(signals: SimpleQueue[int], look: Callable[[], None]) -> int:
    """The next signal; calls `look` while it waits.

    Python runs handlers only in the main thread, when that does something. A signal given to another thread, or just
    before this wait began, does not end it; so the wait ends every WAKE_EVERY.
    """
    while True:
        look()
        with suppress(Empty):
            return signals.get(timeout=WAKE_EVERY)


class _Watched:
    """Tells systemd that the daemon is ready, and while healthy that it lives (sd_notify's protocol)."""

    def __init__(self, health: Callable[[], str]) -> None:
        self._health = health
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._last = 0.0
        self._tell("READY=1")

    def look(self) -> None:
        """Call about every second."""
        if self._address and time.monotonic() - self._last >= ALIVE_EVERY and not self._health():
            self._last = time.monotonic()
            self._tell("WATCHDOG=1")

    def _tell(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.connect(f"\0{self._address[1:]}" if self._address[0] == "@" else self._address)
                line.send(state.encode())


def _on_end(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
