"""Limits how long to wait for PostgreSQL: a hung server would block a run and its monitor forever.

`tcp_user_timeout` detects a vanished machine, but not a stopped server, one that waits for a disk, or a proxy that
takes what comes and passes on nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa

SHORTEST_WAIT = 10.0
"""Seconds that a response is waited for at least."""


def limit_waits(engine: sa.Engine, seconds: float) -> None:
    """Make the engine's psycopg connections give up, and close, after so many seconds without a response."""
    limit = max(seconds, SHORTEST_WAIT)

    @sa.event.listens_for(engine, "do_connect")
    def _connect(_: object, __: object, arguments: Any, options: Any) -> Any:
        connection = _impatient().connect(*arguments, **options)
        connection.longest_wait = limit
        return connection


@contextmanager
def at_leisure(connection: sa.Connection) -> Iterator[None]:
    """Waits without a limit: changing the tables of a large store takes long."""
    driver: Any = connection.connection.driver_connection
    if not hasattr(driver, "longest_wait"):  # another driver's, which waits anyway
        yield
        return
    usual, driver.longest_wait = driver.longest_wait, math.inf
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    try:
        yield
    finally:
        driver.longest_wait = usual


@cache
def _impatient() -> type[Any]:
    """A psycopg connection with a limit on every wait; psycopg is missing without its extra."""
    import psycopg

    class Impatient(psycopg.Connection[Any]):
        longest_wait = math.inf  # connecting has a limit of its own

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            return super().wait(self._within(gen, self.longest_wait), *arguments, **options)

        def _within(self, steps: Any, limit: float) -> Generator[Any, Any, Any]:
            """Runs the same protocol steps, and closes the connection when the server stays silent too long."""
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
