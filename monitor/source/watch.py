"""A deadline on each driver step, since a server or network may never answer: cancel first, then shut the socket."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError

from monitor.errors import Stopped
from monitor.source.dialects import base

ASKED_FOR = 2
"""Seconds for a database to obey a cancel request before its connection is cut."""

CHECK_STOP_EVERY = 0.5
"""Seconds between a waiter's checks for shutdown."""


class Watch:
    """Watches the steps of one connection, one at a time. Used by one thread; `end` works from any.

    Attributes:
        is_late: a step exceeded its limit.
        is_ended: a step was ended, late or on request; the connection is then unusable.
        is_on: a connection is, or was until now, being watched; false while one is opened.
    """

    def __init__(self, limit: float, ask: Callable[[Any], None]) -> None:
        """Configures the watch; it starts with the first connection.

        Args:
            limit: seconds per step; infinite: no watching.
            ask: cancels what a driver's connection is doing; may fail or block.
        """
        self.limit = limit
        self.is_late = self.is_ended = self.is_on = False
        self._ask = ask
        self._driver: Any = None
        self._line: socket.socket | None = None
        self._step = 0
        self._due = math.inf
        self._is_over = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        if self.limit < math.inf:
            self._thread = threading.Thread(target=self._guard, name="rankmon-watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._let_go()

    def on(self, driver: Any) -> None:
        """Watches this driver connection from now on and forgets the previous one; None: none for now."""
        line = _line_of(driver)
        with self._changed:
            self._let_go()
            self._driver, self._line = driver, line
            self.is_late = self.is_ended = False
            self.is_on = driver is not None

    def ask_no_more(self) -> bool:
        """Stops cancel requests over this connection, for its next user; True: too late. A late socket is still cut."""
        with self._changed:
            self._driver = None
            return self.is_ended

    def _let_go(self) -> None:
        if self._line is not None:
            self._line.close()
        self._driver = self._line = None

    @contextmanager
    def step(self, limit: float | None = None) -> Iterator[None]:
        """A step within `limit` seconds, by default the watch's own; suspends an enclosing step's limit."""
        outer = self._due
        self._begin(time.monotonic() + (self.limit if limit is None else min(limit, self.limit)))
        try:
            yield
        finally:
            self._begin(outer)

    def _begin(self, due: float) -> None:
        with self._changed:
            self._step += 1
            self._due = due
            self._changed.notify_all()

    def end(self) -> Callable[[float], None]:
        """Ends the running step, from any thread; returns a wait (seconds) for the request to be sent."""
        with self._changed:
            self.is_ended = True
            driver = self._driver
            if self._due < math.inf:
                self._due = min(self._due, time.monotonic() + ASKED_FOR)
                self._changed.notify_all()
        return self._ask_for_an_end(driver).join

    # ---- the watching thread -----------------------------------------------------------------------------------

    def _guard(self) -> None:
        while (late := self._await_late()) is not None:
            step, to_ask = late
            self._ask_for_an_end(to_ask)
            if not self._is_past(step, ASKED_FOR):
                self._cut()
            self._is_past(step, None)

    def _await_late(self) -> tuple[int, Any] | None:
        """(late step, connection to cancel unless already ended), `is_late` set under the lock; None at the end."""
        with self._changed:
            while not self._is_over:
                left = self._due - time.monotonic()
                if left <= 0:
                    if self.is_ended:
                        return self._step, None
                    self.is_late = self.is_ended = True
                    return self._step, self._driver
                self._changed.wait(None if left == math.inf else left)
        return None

    def _is_past(self, step: int, seconds: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over or self._step != step, seconds)

    def _ask_for_an_end(self, driver: Any) -> threading.Thread:
        """Asks in a separate thread, since the request may hang. None: nobody to ask."""

        def ask() -> None:
            with suppress(Exception):  # it may just have ended
                if driver is not None:
                    self._ask(driver)

        thread = threading.Thread(target=ask, name="rankmon-end", daemon=True)
        thread.start()
        return thread

    def _cut(self) -> None:
        with self._changed, suppress(OSError):
            if self._line is not None:
                self._line.shutdown(socket.SHUT_RDWR)


def _line_of(driver: Any) -> socket.socket | None:
    """A duplicated descriptor of the driver's socket, which stays valid if the original number is reused."""
    holders: tuple[Any, ...] = (driver, getattr(driver, "_sock", None), getattr(driver, "_usock", None))
    for holder in holders:
        with suppress(Exception):  # some drivers have none, and say so in their own ways
            return socket.socket(fileno=os.dup(holder.fileno()))
    return None


# ---- connections between two reads ---------------------------------------------------------------------------------


def watched(engine: sa.Engine, opened: Callable[[Any], None], watch: Callable[[], Watch]) -> sa.Engine:
    """The engine with every connection watched from the start, and pooled ones pinged before use.

    Args:
        opened: called with each new driver connection.
        watch: returns the calling thread's watch.
    """

    @sa.event.listens_for(engine, "connect", insert=True)  # before any query on it
    def _opened(driver: Any, record: Any) -> None:
        opened(driver)
        watch().on(driver)
        record.info["is_new"] = True

    @sa.event.listens_for(engine, "checkout")
    def _taken(driver: Any, record: Any, _: object) -> None:
        if record.info.pop("is_new", False):
            return
        watch().on(driver)
        try:
            with watch().step(base.CONNECT_TIMEOUT):
                engine.dialect.do_ping(driver)
            if watch().is_late:  # the cancel request may still be in flight
                raise TimeoutError("it answered too late")
        except Exception as error:  # retried with a new connection
            watch().on(None)
            raise DisconnectionError(str(error)) from error

    return engine


def give_back(connection: sa.Connection, watch: Watch) -> None:
    """Ends the transaction and returns the connection; results stand even if the server does not answer."""
    with watch.step(base.GRACE):
        if watch.ask_no_more():  # a cancel in flight might hit the next user
            connection.invalidate()
        with suppress(SQLAlchemyError, OSError):
            connection.close()
        if not connection.closed:
            connection.invalidate()
            connection.close()


# ---- turns ---------------------------------------------------------------------------------------------------------


@contextmanager
def turn(turns: threading.Semaphore, stop: Callable[[], bool]) -> Iterator[None]:
    """One of the `turns` for the duration of the block; a holder must not ask for another, which can deadlock.

    Raises:
        Stopped: `stop` said that the process is shutting down.
    """
    while not turns.acquire(timeout=CHECK_STOP_EVERY):
        if stop():
            raise Stopped("waiting for a turn was stopped")
    try:
        yield
    finally:
        turns.release()
