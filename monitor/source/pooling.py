"""Connections between two reads: which are kept, whether a kept one still lives, and how one is given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError, SQLAlchemyError

from monitor.source import session
from monitor.source.watch import Watch

KEPT_FOR = 3600
"""Seconds for which a connection is kept at most."""


def pooling(url: URL, most: int) -> dict[str, Any]:
    """Options of an engine that needs at most so many connections at a time."""
    dialect: Any = url.get_dialect()
    if url.get_backend_name() == "duckdb":  # whoever has a connection to a file keeps all others from writing it
        return {"poolclass": sa.NullPool}
    if issubclass(dialect.get_pool_class(url), sa.QueuePool):
        return {"pool_recycle": KEPT_FOR, "pool_size": most, "max_overflow": 0}
    return {"pool_recycle": KEPT_FOR}


def watched(engine: sa.Engine, url: URL, watch: Callable[[], Watch]) -> sa.Engine:
    """The engine, with each connection watched over from its first moment, and a kept one tried before it is used.

    Args:
        url: with what the driver was told.
        watch: that of the thread which asks for a connection.
    """

    @sa.event.listens_for(engine, "connect", insert=True)  # before anything is asked by it
    def _opened(driver: Any, record: Any) -> None:
        session.allow_answers(driver, url)
        watch().on(driver)
        record.info["is_new"] = True

    @sa.event.listens_for(engine, "checkout")
    def _taken(driver: Any, record: Any, _: object) -> None:
        if record.info.pop("is_new", False):
            return
        watch().on(driver)
        try:
            with watch().step(session.CONNECT_TIMEOUT):
                engine.dialect.do_ping(driver)
            if watch().is_late:  # and the request to end it may still be on its way
                raise TimeoutError("it answered too late")
        except Exception as error:  # then there is another attempt, with a new one
            watch().on(None)
            raise DisconnectionError(str(error)) from error

    return engine


def give_back(connection: sa.Connection, watch: Watch) -> None:
    """End the transaction and give the connection back; what was read stands even if the server does not answer."""
    with watch.step(session.GRACE):
        if watch.ask_no_more():  # or the request for that might hit whoever has the connection next
            connection.invalidate()
        with suppress(SQLAlchemyError, OSError):
            connection.close()
        if not connection.closed:
            connection.invalidate()
            connection.close()
