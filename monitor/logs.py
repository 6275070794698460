"""Logging, set up only by the command line."""

from __future__ import annotations

import json
import logging
import select
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

from monitor.messages.words import plain


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message, and the exception if there is one."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return plain(json.dumps(entry, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """`2026-01-31T05:00:00.000Z warning monitor.service.runner: ...`; a line break in a message cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the exception below it if there is one."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        text = f"{at} {record.levelname.lower()} {record.name}: {message}"
        return plain(f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text)


MAX_LINES = 500
"""Lines that one place in the code may write in a minute, so that a loop that fails at once fills no disk."""


class RateLimit(logging.Filter):
    """Lets MAX_LINES of each place through in a minute, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place, now = (record.pathname, record.lineno), self._clock()
        since, count = self._counts.get(place, (now, 0))
        if now - since >= 60:
            if count > MAX_LINES:
                left_out = f"({count - MAX_LINES:,} lines like this left out)"
                record.msg, record.args = f"{record.getMessage()} {left_out}", None
            since, count = now, 0
        self._counts[place] = since, count + 1
        return count < MAX_LINES


UNREAD_FOR = 1.0
"""Seconds that a line waits for a full pipe to be read, before it is lost. Until one fits again, none waits."""

MAX_PIECE = 400
"""Characters that fit, in any encoding, into the room that a pipe has when it takes anything (PIPE_BUF)."""


class NonBlockingHandler(logging.StreamHandler[TextIO]):
    """Loses lines that nobody reads, and counts them. Waiting for a reader would stop all threads, and the shutdown."""

    _lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, as far as there is room."""
        try:
            begin = ""
            if self._lost:
                begin = "\n"  # the first that was lost may have been cut
                lost = f"({self._lost:,} lines before this lost: not read)"
                record.msg, record.args = f"{record.getMessage()} {lost}", None
            text = f"{begin}{self.format(record)}\n"
            for start in range(0, len(text), MAX_PIECE):
                if not self._has_room():
                    self._lost += 1
                    return
                self.stream.write(text[start : start + MAX_PIECE])
                self.flush()
            self._lost = 0
        except Exception:
            self.handleError(record)

    def _has_room(self) -> bool:
        try:
            return bool(select.select([], [self.stream], [], 0 if self._lost else UNREAD_FOR)[1])
        except OSError:
            return True  # a stream in memory


REPEATING = (
    "apprise",
    "clickhouse_connect.driver._backend.http_sync",
    "clickhouse_connect.driver.httputil",
    "psycopg",
    "sqlalchemy.pool",
    "thrift.transport.TSocket",
    "urllib3.connectionpool",
)
"""Loggers of drivers and their pools that log what they also raise; the error is logged with place and remedy.

Apprise logs whole URLs, and with them their tokens.
"""


def silence_drivers() -> None:
    """Keep drivers from logging what they also raise."""
    for name in REPEATING:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def set_up(level: str, style: Literal["text", "json"]) -> None:
    """Log to standard error; of libraries, warnings and errors only."""
    handler = NonBlockingHandler(sys.stderr)
    handler.addFilter(RateLimit())
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("monitor").setLevel(level.upper())
    # It warns of whatever anybody sends, and would have the operator install something.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
