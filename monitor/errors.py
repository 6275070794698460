"""The errors of rankmon, shaped by what the caller can do about them, and what they may show."""

import re
from collections.abc import Iterable

Where = tuple[str | int, ...]
"""Place of a value in the configuration, as keys and list indexes: ("monitors", 0, "bucket")."""

NO_MEMORY = "out of memory; give this process more, or read a shorter period at a time"
NO_THREADS = "out of threads; raise the limit on processes (ulimit -u, TasksMax, the container's pids) or on memory"


def exhausted(error: BaseException) -> str:
    """What this process has run out of, with the fix; empty if that is not the error.

    >>> exhausted(RuntimeError("can't start new thread"))[:14], exhausted(RuntimeError("bad"))
    ('out of threads', '')
    """
    if isinstance(error, MemoryError):
        return NO_MEMORY
    return NO_THREADS if isinstance(error, RuntimeError) and str(error) == "can't start new thread" else ""


class RankmonError(Exception):
    """Base of all errors with a message for people: what, where, and the fix."""


class ConfigError(RankmonError):
    """The configuration is wrong; nothing was started. `problems` holds one text per mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(RankmonError):
    """A file or argument on the command line is wrong; a different one helps."""


class SourceError(RankmonError):
    """The user's database failed; a later retry may help.

    `reason`, for the failure counter: connect, timeout, permission, missing, driver, resources, query or data.
    `lasting`: the statement cannot be served until something changes.
    """

    def __init__(self, message: str, reason: str = "query", lasting: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.lasting = lasting

    @property
    def may_pass(self) -> bool:
        """Whether it is an outage."""
        return self.reason == "connect"

    @property
    def is_of_mapping(self) -> bool:
        """Whether the configuration asks for what the source does not have, or cannot do."""
        return self.lasting or self.reason == "query"


class StoreError(RankmonError):
    """rankmon's own database is unreachable (`may_pass`), or does not have the schema that this version needs."""

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class StoreLocked(StoreError):
    """Another process has locked what was to be written; a later retry may help."""


class LeaseLost(RankmonError):
    """Another process writes this monitor; this one writes nothing."""


class ClockError(RankmonError):
    """This machine's clock is wrong, compared with the store or a database's clock; nothing was read or judged."""


class Undelivered(RankmonError):
    """A receiver did not accept a notification; it asked to wait `wait` seconds. The text contains no secret."""

    def __init__(self, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.wait = wait


class Unserved(RankmonError):
    """The address cannot be served, perhaps because another process has it; a later retry may help."""


class Stopped(RankmonError):
    """The process was asked to stop; the current batch was dropped."""


class TooMany(RankmonError):
    """An answer is larger than memory allows at once; read a shorter time range."""


SHORT = 8
"""Characters below which a secret is hidden only as a word of its own: it could be part of any word."""


def without(text: str, secrets: Iterable[str], shown: str = "***") -> str:
    """`text` with stars (or `shown`) instead of secrets, such as the password in a URL.

    >>> without("column exists; cannot log in with x at db://me:x@host", ["x"])
    'column exists; cannot log in with *** at db://me:***@host'
    >>> without("at db://me:open-sesame@host, not open-sesame1", ["open-sesame"])
    'at db://me:***@host, not ***1'
    """
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        found = re.escape(secret)
        text = re.sub(rf"(?<!\w){found}(?!\w)" if len(secret) < SHORT else found, lambda _: shown, text)
    return text
