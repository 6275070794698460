"""A thread that looks at the store again and again, beside the monitors' runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from monitor.errors import StoreError

log = logging.getLogger(__name__)


class PeriodicTask:
    """Calls `look` until it is stopped. That the store is out of reach ends nothing: the monitors' runs say so."""

    def __init__(self, name: str, what: str, look: Callable[[], None], every: Callable[[], float]) -> None:
        """`name` of the thread; `what` is looked at, for the log; `every`: real seconds between two looks."""
        self._what = what
        self._look = look
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a look that hangs is left behind."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2)

    def _keep(self) -> None:
        while not self._stopping.wait(self._every()):
            try:
                self._look()
            except StoreError as error:
                log.debug("%s: %s", self._what, error)
            except Exception:
                log.exception("%s: a fault in rankmon itself; please report it", self._what)
