"""Run the daemon: read, compute, store and serve until SIGTERM. SIGHUP reloads the configuration."""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from monitor.cli import exit_code
from monitor.cli.common import InstantParam, command, config_option, load_config
from monitor.errors import StoreError

if TYPE_CHECKING:
    from monitor.service.app import App

log = logging.getLogger("monitor.daemon")

LOOK_EVERY = 1.0
"""Seconds after which it is looked for a signal that woke nobody."""


ALIVE_EVERY = 10.0
"""Seconds between two signs of life to systemd, far below the unit's WatchdogSec."""


@command
@config_option
@click.option("--replay-from", type=InstantParam(), help="Start the clock at this time instead of now.")
@click.option("--speed", type=click.FloatRange(min=0.001), default=1.0, show_default=True, help="With --replay-from.")
def run(config_path: Path, replay_from: int | None, speed: float) -> None:
    signals = _noted()
    from monitor.clock import ReplayClock, SystemClock
    from monitor.service.app import App

    if speed != 1.0 and replay_from is None:
        raise click.UsageError("--speed goes with --replay-from")
    clock = SystemClock() if replay_from is None else ReplayClock(replay_from, speed)
    serve(App(load_config(config_path, log=True), clock), signals=signals)


def _noted(signals: SimpleQueue[int] | None = None) -> SimpleQueue[int]:
    """Where requests to reload the configuration are noted from now on: unhandled, they would end the process."""
    found = SimpleQueue[int]() if signals is None else signals
    signal.signal(signal.SIGHUP, lambda number, _: found.put(number))
    return found


def serve(app: App, announce: bool = False, signals: SimpleQueue[int] | None = None) -> None:
    """Prepare and start an app, and keep it going until it is stopped.

    Args:
        signals: that have come so far, as `_noted` has them.
    """
    from monitor.messages.words import counted

    signals = _noted(signals)

    def note(number: int, _: object) -> None:
        signals.put(number)  # may happen in the middle of anything, and so must take no lock

    def end_at_once(number: int, _: object) -> NoReturn:
        raise _EndedEarly

    is_serving, has_ended = False, True
    try:
        _on_end(end_at_once)
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
            app.reload()
    except _EndedEarly:
        log.info("told to end before anything was served")
    finally:
        _on_end(note)
        if is_serving:
            log.info("stopping")
        has_ended = app.stop()
        if is_serving and has_ended:
            log.info("stopped")
    if not has_ended:
        logging.shutdown()
        os._exit(exit_code(StoreError("")))  # threads that hang in the store would keep the process


def _next(signals: SimpleQueue[int], look: Callable[[], None]) -> int:
    """The next signal, once there is one.

    Python runs handlers in the main thread alone, when that does something. A signal that the system gave to another
    thread, or that came just as this one began to wait, does not end the wait; so it ends by itself, and `look`
    is called.
    """
    while True:
        look()
        with suppress(Empty):
            return signals.get(timeout=LOOK_EVERY)


class _Watched:
    """Tells systemd that the daemon is ready, and for as long as it is well that it lives (sd_notify's protocol)."""

    def __init__(self, health: Callable[[], str]) -> None:
        self._health = health
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        self._last = 0.0
        self._tell("READY=1")

    def look(self) -> None:
        """To be called every second or so."""
        if self._address and time.monotonic() - self._last >= ALIVE_EVERY and not self._health():
            self._last = time.monotonic()
            self._tell("WATCHDOG=1")

    def _tell(self, state: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.connect(f"\0{self._address[1:]}" if self._address[0] == "@" else self._address)
                line.send(state.encode())


class _EndedEarly(BaseException):
    """Told to end before there was anything to end in order; no fault, so nobody may catch it as one."""


def _on_end(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
