"""A read that is under way when its process is to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from monitor.source.engine import Database

BEGIN_SECONDS = 60.0


def raised_at_the_end(
    read: Callable[[], object],
    database: Database,
    ending: threading.Event,
    is_under_way: Callable[[], object],
    within: float,
) -> list[str]:
    """The class of what a read raises.

    Once its server works on its statement, as `is_under_way` says, its process is to end; then its database is asked to
    end it, for at most `within` seconds, as the daemon does. Nothing if it goes on.
    """
    raised: list[str] = []

    def reading() -> None:
        try:
            read()
        except BaseException as error:
            raised.append(type(error).__name__)

    thread = threading.Thread(target=reading, daemon=True)
    thread.start()
    deadline = time.monotonic() + BEGIN_SECONDS
    while not is_under_way():
        assert thread.is_alive(), raised
        assert time.monotonic() < deadline, "the statement never came to its server"
        time.sleep(0.02)
    ending.set()
    began = time.monotonic()
    while thread.is_alive() and time.monotonic() < began + within:
        database.interrupt()
        thread.join(0.1)
    return raised
