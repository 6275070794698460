"""Periodic tasks in threads of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from monitor.errors import StoreError

log = logging.getLogger(__name__)

FIRST_RETRY = 5.0
LONGEST_RETRY = 300.0
"""Longest wait before a retry, seconds; a monitor whose period is longer waits for that."""

WARN_AGAIN = 600.0
"""Seconds until the same store error is logged again."""


def doubling(failures: int, most: float) -> float:
    """Seconds to wait before a retry after `failures` earlier failures; doubles each time."""
    return min(FIRST_RETRY * 2.0 ** min(failures, 20), most)


class PeriodicTask:
    """Calls `run` every `period` real seconds, when woken, and at once while it returns True, until stopped.

    Store errors are logged at `level` and retried: the monitors' runs warn of them anyway.
    """

    def __init__(self, name: str, run: Callable[[], bool | None], period: float, level: int = logging.DEBUG) -> None:
        self.is_stopped = False
        self._name = name
        self._run = run
        self._period = period
        self._level = level
        self._awake = threading.Event()
        self._warned: tuple[str, float] = "", 0.0
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Start with the first call."""
        self._thread.start()

    def wake(self) -> None:
        """Call it now."""
        self._awake.set()

    def end(self) -> None:
        """Stop; `join` waits for a call in progress."""
        self.is_stopped = True
        self._awake.set()

    def join(self, seconds: float = 2.0) -> None:
        """Wait for the end; a hanging call is abandoned."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _loop(self) -> None:
        while True:
            self._awake.clear()
            if self.is_stopped:
                return
            if not self._call():
                self._awake.wait(self._period)

    def _call(self) -> bool:
        try:
            is_busy = bool(self._run())
            self._warned = "", 0.0
            return is_busy
        except StoreError as error:
            self._warn(str(error))
        except Exception:
            log.exception("%s: a bug in rankmon; please report it", self._name)
        return False

    def _warn(self, text: str) -> None:
        now = time.monotonic()
        if text != self._warned[0] or now - self._warned[1] >= WARN_AGAIN:
            log.log(self._level, "%s: %s", self._name, text)
            self._warned = text, now
