"""Charts for notifications, drawn when they are sent, in bounded time or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from monitor.errors import InputError
from monitor.messages.notification import Notification
from monitor.page.fall import draw_fall
from monitor.page.png import as_png, can_draw
from monitor.service.fall import fall_of
from monitor.store import Store
from monitor.types import Monitor

WITHIN = 5.0
"""Seconds until a notification goes without its chart; no other is drawn while one takes longer."""


class Charts:
    """Draws the falls that notifications tell of, from the store."""

    def __init__(self, store: Store, monitors: Callable[[], Sequence[Monitor]]) -> None:
        self._store = store
        self._monitors = monitors
        self._late: threading.Thread | None = None

    def draw(self, notification: Notification) -> bytes:
        """The PNG; empty without the extra, and for anything but a fall in quality. Raises whatever hinders it."""
        if notification.matter != "quality" or not can_draw() or (self._late is not None and self._late.is_alive()):
            return b""
        found: Future[bytes] = Future()

        def run() -> None:
            try:
                found.set_result(drawn(self._store, self._monitors(), notification.incident))
            except Exception as error:
                found.set_exception(error)

        drawing = threading.Thread(target=run, name=f"chart of {notification.incident}", daemon=True)
        drawing.start()
        try:
            return found.result(WITHIN)
        except TimeoutError:
            self._late = drawing
            raise TimeoutError(f"not drawn within {WITHIN:.0f} s; no further chart until it is") from None


def drawn(store: Store, monitors: Sequence[Monitor], incident: str) -> bytes:
    """PNG of an incident's fall. Raises StoreError, and InputError if there is none."""
    stored = store.alerts.incident(incident)
    monitor = None if stored is None else next((m for m in monitors if m.name == stored.incident.monitor), None)
    if stored is None or monitor is None:
        raise InputError("its monitor or incident is gone")
    if stored.incident.matter != "quality":
        raise InputError("only a fall in quality has a chart")
    return as_png(draw_fall(fall_of(monitor, store, stored)))
