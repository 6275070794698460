"""Charts for notifications, drawn when they are sent: in bounded time, or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from monitor.errors import InputError
from monitor.messages.notification import Notification
from monitor.messages.words import lasting
from monitor.page.fall import draw_fall
from monitor.page.png import as_png, can_draw
from monitor.service.fall import fall_of
from monitor.store import Store
from monitor.types import Monitor

WITHIN, REST = 5.0, 600.0
"""Seconds until a notification goes without its chart, and for which none is drawn after one that took so long."""


class Charts:
    """Draws the falls that notifications tell of, from the store."""

    def __init__(self, store: Store, monitors: Callable[[], Sequence[Monitor]]) -> None:
        self._store = store
        self._monitors = monitors
        self._rests_until = 0.0

    def draw(self, notification: Notification) -> bytes:
        """The PNG; empty without the extra, and for what is no fall in quality. Raises whatever hinders it."""
        if notification.matter != "quality" or not can_draw() or time.monotonic() < self._rests_until:
            return b""
        found: Future[bytes] = Future()

        def run() -> None:
            try:
                found.set_result(self._draw(notification))
            except Exception as error:
                found.set_exception(error)

        threading.Thread(target=run, name=f"chart of {notification.incident}", daemon=True).start()
        try:
            return found.result(WITHIN)
        except TimeoutError:
            self._rests_until = time.monotonic() + REST
            raise TimeoutError(f"not drawn within {WITHIN:.0f} s; no charts for {lasting(int(REST))}") from None

    def _draw(self, notification: Notification) -> bytes:
        monitor = next((m for m in self._monitors() if m.name == notification.monitor), None)
        stored = self._store.alerts.incident(notification.incident)
        if monitor is None or stored is None:
            raise InputError("its monitor or incident is gone")
        return as_png(draw_fall(fall_of(monitor, self._store, stored)))
