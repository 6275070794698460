"""A read that is under way when its process is to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from monitor.source.engine import Database


def raised_at_the_end(
    read: Callable[[], object], database: Database, ending: threading.Event, after: float, within: float
) -> list[str]:
    """The class of what a read raises.

    It runs for `after` seconds until its process is to end; then its database is asked to end it, for at most `within`
    seconds, as the daemon does. Nothing if it goes on.
    """
    raised: list[str] = []

    def reading() -> None:
        try:
            read()
        except BaseException as error:
            raised.append(type(error).__name__)

    thread = threading.Thread(target=reading, daemon=True)
    thread.start()
    time.sleep(after)
    ending.set()
    began = time.monotonic()
    while thread.is_alive() and time.monotonic() < began + within:
        database.interrupt()
        thread.join(0.1)
    return raised
