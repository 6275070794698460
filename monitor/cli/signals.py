"""Signals, for whoever waits for them."""

from __future__ import annotations

import signal
import socket
from types import TracebackType
from typing import Self


class Signals:
    """Signals in the order in which they come, whichever thread the system gives them to.

    Python runs handlers in the main thread alone, as soon as that does something. A signal that another thread was
    given does not wake it, and so would wait for as long as it waits. Here each is written down the moment it arrives.
    """

    def __init__(self) -> None:
        self._from, self._to = socket.socketpair()
        self._to.setblocking(False)
        self._before = -1

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._to.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._before)
        self._from.close()
        self._to.close()

    def get(self) -> int:
        """The next signal that has a handler, as soon as there is one; 0 once `end` was called."""
        return self._from.recv(1)[0]

    def end(self) -> None:
        """Wake who waits, for there is nothing more to wait for."""
        self._to.send(b"\0")


def noted(number: int, frame: object) -> None:
    """A handler of what is taken from `Signals`."""
