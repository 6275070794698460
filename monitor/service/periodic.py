"""Tasks that repeat in a thread of their own, apart from the monitors' runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from monitor.errors import StoreError

log = logging.getLogger(__name__)

WARN_AGAIN = 600.0
"""Seconds until the same store error is logged again."""


class PeriodicTask:
    """Calls `run` until stopped: every `period()` real seconds, when woken, and at once while it returns True.

    A store out of reach is logged at `level` and tried again: the monitors' runs warn of it anyway.
    """

    def __init__(
        self, name: str, run: Callable[[], bool | None], period: Callable[[], float], level: int = logging.DEBUG
    ) -> None:
        self.is_stopped = False
        self._name = name
        self._run = run
        self._period = period
        self._level = level
        self._awake = threading.Event()
        self._warned: tuple[str, float] = "", 0.0
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Begin with the first call."""
        self._thread.start()

    def wake(self) -> None:
        """Call it now."""
        self._awake.set()

    def end(self) -> None:
        """Stop calling it; `join` waits for the call under way."""
        self.is_stopped = True
        self._awake.set()

    def join(self, seconds: float = 2.0) -> None:
        """Wait for its end; a call that hangs is left behind."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _loop(self) -> None:
        while True:
            self._awake.clear()
            if self.is_stopped:
                return
            if not self._call():
                self._awake.wait(self._period())

    def _call(self) -> bool:
        try:
            is_busy = bool(self._run())
            self._warned = "", 0.0
            return is_busy
        except StoreError as error:
            self._warn(str(error))
        except Exception:
            log.exception("%s: a fault in rankmon itself; please report it", self._name)
        return False

    def _warn(self, text: str) -> None:
        """Log a store error, unless the same was logged recently."""
        now = time.monotonic()
        if text != self._warned[0] or now - self._warned[1] >= WARN_AGAIN:
            log.log(self._level, "%s: %s", self._name, text)
            self._warned = text, now
