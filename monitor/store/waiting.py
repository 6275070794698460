"""How long the store's PostgreSQL is waited for: one that hangs would hold a run, and its monitor, for ever.

Of a machine that is gone the line tells (`tcp_user_timeout`). Where it still answers for a server that is stopped, or
that waits for a disk, nothing does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa

LONGEST_WAIT = 300.0
"""Seconds for each answer. Those to a statement that waits for another's lock are among them."""


def limit_waits(engine: sa.Engine) -> None:
    """Have the engine's connections, which are psycopg's, give up an answer after LONGEST_WAIT, and themselves."""

    @sa.event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, arguments: Any, options: Any) -> Any:
        return _impatient().connect(*arguments, **options)


@contextmanager
def at_leisure(connection: sa.Connection) -> Iterator[None]:
    """Wait for as long as it takes: the tables of a large store are changed."""
    driver: Any = connection.connection.driver_connection
    if not hasattr(driver, "longest_wait"):  # another driver's, which waits anyway
        yield
        return
    driver.longest_wait = math.inf
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    try:
        yield
    finally:
        driver.longest_wait = None


@cache
def _impatient() -> type[Any]:
    """A connection of psycopg's, which is not there without its extra, with a limit on all that it waits for."""
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        longest_wait: float | None = None

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            limit = LONGEST_WAIT if self.longest_wait is None else self.longest_wait
            return super().wait(self._within(gen, limit), *arguments, **options)

        def _within(self, steps: Any, limit: float) -> Generator[Any, Any, Any]:
            """The same steps of a talk with the server; given up, as the line is, when it says nothing for so long."""
            due, ready = time.monotonic() + limit, None
            while True:
                try:
                    wish = steps.send(ready)
                except StopIteration as end:
                    return end.value
                ready = yield wish
                if ready:
                    due = time.monotonic() + limit
                elif time.monotonic() > due:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server has not answered for {limit:g} s")

    return Impatient
