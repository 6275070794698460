"""What a database's errors mean for the person who runs rankmon: a fixed reason, and the remedy."""

from __future__ import annotations

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
    ("42P01", "42703", "3F000", "42S02", "42S22"),
    (
        *("no such table", "no such column", "does not exist", "doesn't exist", "unknown column"),
        *("unknown table", "unknown_table", "unknown_identifier", "referenced column"),
    ),
    "compare the table and columns in the configuration with the database",
)

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
        ("permission denied", "access denied", "command denied", "not enough privileges"),
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
        ("08", "57P", "53", "25P03", "SQLITE_CANTOPEN"),
        (
            *("connect", "unable to open", "timeout expired", "resolve", "closed", "refused", "unreachable"),
            *("timed out", "gone away", "server shutdown", "query execution was interrupted"),
        ),
        "is the database up, and is the URL right?",
    ),
)


_VAGUE = ("42000", "70100", "HY000")
"""SQLSTATEs under which MariaDB and MySQL report faults of several kinds; there the words tell."""


def fault_of(error: BaseException) -> Fault | None:
    """The kind of a driver's error; None where it is none of these."""
    code = str(getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or "")
    code = code or str(getattr(error, "sqlite_errorname", None) or "")
    said = str(error).lower()
    if code == "SQLITE_ERROR":
        return _MISSING if said.startswith(("no such table", "no such column")) else None
    if code and code not in _VAGUE:
        return next((f for f in _FAULTS if code.startswith(f.codes)), None)
    return next((f for f in _FAULTS if any(w in said for w in f.words)), None)
