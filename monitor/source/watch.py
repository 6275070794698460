"""A limit on our side for each step of a driver's: a server, or what lies on the way to it, may never answer.

Most databases end a statement themselves when it has taken too long. Where that does not come through, the driver
would wait for ever, and with it the monitor. So each step has a time by which it must be over. After that the database
is asked to end the statement; if that does not help, what the driver reads from is shut, and the driver sees its end.
"""

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
"""Seconds for which a database is asked to end a statement, before the line to it is cut."""

LOOK_EVERY = 0.5
"""Seconds after which who waits looks whether the process is to end, should nobody have told."""


class Watch:
    """Watches over one connection's steps, of which there is one at a time. Used by one thread, ended from any.

    Attributes:
        is_late: whether a step took longer than it might.
        is_ended: whether a step was ended, for that or as somebody wished; then the connection cannot be used again.
        is_on: whether there is, or was until now, a connection to watch over; not while one is being opened.
    """

    def __init__(self, limit: float, ask: Callable[[Any], None]) -> None:
        """Take what is to be done.

        Args:
            limit: seconds for each step; infinite: nobody watches.
            ask: has a driver's connection end what it is doing; may fail, and may take as long as it likes.
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
        """Watch over this connection of a driver's from now on; what became of another one is forgotten.

        None: there is none for now.
        """
        line = _line_of(driver)
        with self._changed:
            self._let_go()
            self._driver, self._line = driver, line
            self.is_late = self.is_ended = False
            self.is_on = driver is not None

    def ask_no_more(self) -> bool:
        """From now on, never ask for an end by this connection: somebody else may have it next. Too late if it is True.

        What the step reads from is still cut when it is late.
        """
        with self._changed:
            self._driver = None
            return self.is_ended

    def _let_go(self) -> None:
        if self._line is not None:
            self._line.close()
        self._driver = self._line = None

    @contextmanager
    def step(self, limit: float | None = None) -> Iterator[None]:
        """A step within `limit` seconds, by default the watch's own; meanwhile it takes the place of one around it."""
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
        """End the step under way, from any thread; at once if the database does so when it is asked, else soon.

        Returns:
            Waits until it was asked, so many seconds at most.
        """
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
        """(the number of a step that is late by now, what is to be asked to end it if it was not); None: all is over.

        That it is late is noted before anything else can happen: who ends a step later sees that it was.
        """
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
        """Whether a step is done within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over or self._step != step, seconds)

    def _ask_for_an_end(self, driver: Any) -> threading.Thread:
        """Ask in a thread of its own, for the answer may not come either. None: there is nobody to ask."""

        def ask() -> None:
            with suppress(Exception):  # it may just have ended by itself
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
    """The socket of a driver's connection, by a number of its own, so that it is not another's once that is closed."""
    holders: tuple[Any, ...] = (driver, getattr(driver, "_sock", None), getattr(driver, "_usock", None))
    for holder in holders:
        with suppress(Exception):  # some drivers have none, and say so in ways of their own
            return socket.socket(fileno=os.dup(holder.fileno()))
    return None


# ---- connections between two reads ---------------------------------------------------------------------------------


def watched(engine: sa.Engine, opened: Callable[[Any], None], watch: Callable[[], Watch]) -> sa.Engine:
    """The engine, with each connection watched over from its first moment, and a kept one tried before it is used.

    Args:
        opened: is given each new connection of a driver's.
        watch: that of the thread which asks for a connection.
    """

    @sa.event.listens_for(engine, "connect", insert=True)  # before anything is asked by it
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
            if watch().is_late:  # and the request to end it may still be on its way
                raise TimeoutError("it answered too late")
        except Exception as error:  # then there is another attempt, with a new one
            watch().on(None)
            raise DisconnectionError(str(error)) from error

    return engine


def give_back(connection: sa.Connection, watch: Watch) -> None:
    """End the transaction and give the connection back; what was read stands even if the server does not answer."""
    with watch.step(base.GRACE):
        if watch.ask_no_more():  # or the request for that might hit whoever has the connection next
            connection.invalidate()
        with suppress(SQLAlchemyError, OSError):
            connection.close()
        if not connection.closed:
            connection.invalidate()
            connection.close()


# ---- turns ---------------------------------------------------------------------------------------------------------


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
