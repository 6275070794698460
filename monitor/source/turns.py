"""So many at once, and no more: the others wait their turn, or give up when the process is to end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from monitor.errors import Stopped

LOOK_EVERY = 0.5
"""Seconds after which who waits looks whether the process is to end, should nobody have told."""


class Turns:
    """Safe to use from several threads. Who holds a turn must not ask for another one, or might wait for ever."""

    def __init__(self, most: int, stop: Callable[[], bool]) -> None:
        """`most` turns at the same time; `stop` says whether the process is to end."""
        self._left = most
        self._stop = stop
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[None]:
        """A turn, for as long as the block lasts. Raises Stopped instead if the process is to end."""
        self._take()
        try:
            yield
        finally:
            with self._changed:
                self._left += 1
                self._changed.notify()

    def _take(self) -> None:
        with self._changed:
            while self._left < 1:
                if self._stop():
                    raise Stopped("waiting for a turn was stopped")
                self._changed.wait(LOOK_EVERY)
            self._left -= 1

    def look(self) -> None:
        """Have all who wait look whether the process is to end."""
        with self._changed:
            self._changed.notify_all()
