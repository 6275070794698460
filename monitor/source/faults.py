"""What a database's errors mean for the person who runs rankmon: a fixed reason, and the remedy."""

from __future__ import annotations

import re
from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of failure.

    Attributes:
        reason: as in `SourceError`.
        codes: beginnings of the SQLSTATEs, or names of SQLite's result codes, that mean it.
        words: for drivers without such codes, and where connecting fails: parts of the message, in lower case.
    """

    reason: str
    codes: tuple[str, ...]
    words: tuple[str, ...]
    remedy: str


_MISSING = Fault(
    "missing",
    ("42P01", "42703", "42704", "3F000", "42S02", "42S22"),
    (
        *("no such table", "no such column", "does not exist", "doesn't exist", "unknown column"),
        *("unknown table", "unknown_table", "unknown_identifier", "referenced column"),
    ),
    "compare the table and columns in the configuration with the database; may this user use their schema?",
)

_TOLD = (
    Fault(
        "timeout",
        (),
        ("due to conflict with recovery",),
        "a replica ends statements that hold up what it replays: raise its max_standby_streaming_delay, or turn on its "
        "hot_standby_feedback; what was cut off is read again",
    ),
    Fault(
        "connect",
        (),
        ("due to user request",),
        "somebody ended this statement on the server, and it is read again; ask whoever looks after the database, or "
        "lower max_concurrent",
    ),
)
"""What the words tell apart that the codes do not."""

_FAULTS = (
    Fault(
        "timeout",
        ("57014", "SQLITE_INTERRUPT"),
        (
            "statement timeout",
            "execution time exceeded",
            "max_statement_time exceeded",
            "maximum execution time",
            "timeout_exceeded",
        ),
        "raise statement_timeout, or index the time column",
    ),
    Fault(
        "timeout",
        ("55P03", "SQLITE_BUSY", "SQLITE_LOCKED"),
        ("database is locked",),
        "another process locks the data for long; let it commit sooner, or put SQLite into WAL mode",
    ),
    Fault(
        "permission",
        ("42501", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_READONLY"),
        (
            *("permission denied", "access denied", "command denied", "not enough privileges"),
            *("insufficient privileges", "not authorized", "permission was denied"),
        ),
        "let this user log in, and grant SELECT to it",
    ),
    Fault(
        "connect",
        ("28",),
        ("authentication failed", "no pg_hba.conf entry", "role "),
        "may this user log in, with this password and from this machine?",
    ),
    Fault(
        "missing",
        ("3D000",),
        ('database "', "unknown database"),
        "there is no such database on that server; name another in the URL, or have it made",
    ),
    Fault("query", ("25006",), (), "a source is only read; take what writes out of the SELECT"),
    _MISSING,
    Fault(
        "data",
        ("42883", "42804", "42846", "22"),
        ("could not decode to utf-8",),
        "a column is of another type than it is declared or used as; see its format, or convert it in a `select:`",
    ),
    Fault(
        "connect",
        ("SQLITE_NOTADB", "SQLITE_CORRUPT"),
        (),
        "is this the right file, and is it whole?",
    ),
    Fault(
        "connect",
        ("SQLITE_IOERR", "SQLITE_FULL"),
        (),
        "is the disk sound, and can temporary files be written (set SQLITE_TMPDIR)?",
    ),
    Fault(
        "connect",
        ("57P01", "57P02"),
        ("server has gone away", "lost connection", "query execution was interrupted", "connection was killed"),
        "the server ended it: it was restarted, or somebody did; what was cut off is read again; is the database up?",
    ),
    Fault(
        "connect",
        ("08", "57P", "53", "25P03", "SQLITE_CANTOPEN"),
        (
            *("connect", "unable to open", "timeout expired", "resolve", "closed", "refused", "unreachable"),
            *("timed out", "gone away", "server shutdown", "read 0 bytes"),
        ),
        "is the database up, and is the URL right?",
    ),
)


_VAGUE = ("42000", "70100", "HY000")
"""SQLSTATEs under which MariaDB and MySQL report faults of several kinds; there the words tell."""


_CARRIERS = ("thrift", "requests", "urllib3", "http", "google")
"""Packages by which drivers speak to their servers."""


def is_of_the_way(error: BaseException) -> bool:
    """Whether an error is one of the way to the server: some drivers let those through as they are."""
    return isinstance(error, OSError | EOFError) or type(error).__module__.partition(".")[0] in _CARRIERS


def fault_of(error: BaseException) -> Fault | None:
    """The kind of a driver's error; None where it is none of these."""
    code = str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")
    code = code or str(getattr(error, "sqlite_errorname", None) or "")
    said = str(error).lower()
    if told := next((f for f in _TOLD if any(w in said for w in f.words)), None):
        return told
    if code == "SQLITE_ERROR":
        return _MISSING if said.startswith(("no such table", "no such column")) else None
    if code and code not in _VAGUE:
        return next((f for f in _FAULTS if code.startswith(f.codes)), None)
    return next((f for f in _FAULTS if any(w in said for w in f.words)), None)


# ---- what is to be granted -----------------------------------------------------------------------------------------

_GRANTS = (
    (re.compile(r"permission denied for schema \"?([^\s\"]+)"), "GRANT USAGE ON SCHEMA {} TO {}"),
    (re.compile(r"permission denied for database \"?([^\s\"]+)"), "GRANT CONNECT ON DATABASE {} TO {}"),
    (re.compile(r"permission denied for function \"?([^\s\"]+)"), "GRANT EXECUTE ON FUNCTION {} TO {}"),
    (
        re.compile(r"permission denied for (?:(?:foreign )?table|(?:materialized )?view|relation) \"?([^\s\"]+)"),
        "GRANT SELECT ON {} TO {}",
    ),
    (re.compile(r"command denied to user .*? for table '?(`[^\s]+`|[^\s']+)"), "GRANT SELECT ON {} TO {}"),
    (re.compile(r"to database '([^']+)'"), "GRANT SELECT ON {}.* TO {}"),
)
"""What PostgreSQL, MariaDB and MySQL say -> the statement that an owner must run, of what, to whom."""


def grant_for(said: str, user: str | None) -> str:
    """The statement that mends a refusal, as far as its text says what was refused; empty if it does not.

    >>> grant_for("permission denied for table events", "watcher")
    'GRANT SELECT ON events TO watcher'
    """
    matches = ((pattern.search(said), statement) for pattern, statement in _GRANTS)
    return next((statement.format(match[1], user) for match, statement in matches if match and user), "")
