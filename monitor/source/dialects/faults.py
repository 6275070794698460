"""Maps database errors to a fixed reason and a fix for the operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of failure.

    Attributes:
        codes: prefixes of SQLSTATEs, or of the error names some databases use instead.
        words: lower-case message parts, for drivers without codes and for failed connections.
        lasting: whether retrying the same statement can never succeed.
    """

    reason: str
    codes: tuple[str, ...]
    words: tuple[str, ...]
    remedy: str
    lasting: bool = False


OF_SCHEMAS = "; may this user use their schema?"
"""Why a table may also be missing, on databases with users."""

_MISSING = Fault(
    "missing",
    ("42P01", "42703", "42704", "3F000", "42S02", "42S22"),
    (
        *("no such table", "no such column", "does not exist", "doesn't exist", "unknown column"),
        *("unknown table", "unknown_table", "unknown_identifier", "referenced column"),
        "does not have a column named",
    ),
    f"compare the table and columns in the configuration with the database{OF_SCHEMAS}",
    lasting=True,
)

SILENT = Fault(
    "connect",
    (),
    ("during query (timed out)", "connection timeout expired"),
    "it did not answer in time: is the database up, is it what listens there, and does a proxy in between still "
    "reach it?",
)
"""A driver's own timeout. See `by_own_limits`."""

_PASSING = (
    Fault(
        "resources",
        ("53000", "53100", "53200", "54P01", "OutOfMemoryException", "MEMORY_LIMIT_EXCEEDED", "CANNOT_ALLOCATE_MEMORY"),
        (
            *("out of memory", "outofmemory", "out of sort memory", "memory limit", "unable_to_acquire_memory"),
            *("gc overhead limit", "insufficient system memory", "ora-04030", "ora-04031", "resources exceeded during"),
            *("no space left", "disk full", "ora-01652", "spill limit", "is full (errno", "executorlostfailure"),
        ),
        "the database ran out of memory or disk; give it more, or lower max_concurrent; engine: pull needs less",
    ),
    Fault(
        "resources",
        (),
        ("too many parameters", "count field incorrect"),  # SQL Server's wording, and its ODBC driver's
        "too large for one statement; if it continues, use engine: pull",
    ),
    Fault(
        "timeout",
        ("40001", "40P01"),
        ("deadlock", "lock wait timeout", "ora-00060", "ora-08177", "definition has changed"),
        "another transaction was in the way",
    ),
    Fault(
        "connect",
        ("53300", "TOO_MANY_SIMULTANEOUS_QUERIES"),
        (
            *("too many connections", "too_many_simultaneous_queries", "too many clients", "query_queue_full"),
            *("too many queued queries", "ora-00018", "ora-00020", "rate limit"),
        ),
        "the database has too many connections or queries; lower max_concurrent, or let it allow more",
    ),
    Fault(
        "data",
        (),
        (
            *("no magic bytes found", "snappy decompression", "varint-decoding", "dictionary offset"),
            *("zstd decompress", "too small to be a parquet", "footer length error", "tprotocolexception"),
        ),
        "a Parquet file is damaged or half written: write it under a different name and rename it when it is "
        "complete; nothing from it was stored",
    ),
    SILENT,
    Fault(
        "connect",
        (),
        (
            *("due to user request", "query_was_cancelled", "interrupt error", "administratively_killed"),
            *("sql execution canceled", "ora-01013", "sparkcontext was shut down", "sparkcontext is shutting down"),
        ),
        "somebody ended this statement on the server; ask the database administrators, or lower max_concurrent",
    ),
)
"""Checked first, by words then by codes: transient faults, and those only the words distinguish."""

_NOT_UNDERSTOOD = Fault(
    "query",
    (
        *("42601", "0A", "54001", "ParserException", "SyntaxException", "NotImplementedException"),
        *("SYNTAX_ERROR", "UNKNOWN_FUNCTION", "NUMBER_OF_ARGUMENTS", "NOT_IMPLEMENTED", "UNKNOWN_SETTING"),
        *("UNSUPPORTED_METHOD", "TOO_DEEP_AST", "TOO_BIG_AST", "QUERY_IS_TOO_LARGE"),
    ),
    (
        *("error in your sql syntax", "parse_syntax_error", "sql compilation error: syntax", "incorrect syntax near"),
        *("name=syntax_error", "doesn't yet support", "(1305,"),
        *("function with name", "no function matches", "no such function", "unresolved_routine"),
        *("undefined_function", "unknown function", "function_not_found", "function not found"),
        *("unsupported_feature", "unsupported_subquery", "not supported", "not_supported"),
        *("expression tree is too large", "too many terms in compound select", "parser stack overflow"),
        *("ora-00933", "ora-00936", "ora-00923"),
    ),
    "",
    lasting=True,
)
"""Syntax the database does not know, or features it lacks."""

_WRONG_TYPE = Fault(
    "data",
    ("42883", "42804", "42846", "42P18", "42K09", "ILLEGAL_TYPE_OF_ARGUMENT", "TYPE_MISMATCH", "NO_COMMON_TYPE"),
    (
        *("datatype_mismatch", "illegal_type_of_argument", "type_mismatch", "type mismatch", "ora-00932"),
        *("cannot mix values of type", "cannot compare values of type"),
    ),
    "a column has a different type than declared or used; check its format, or convert it in a `select:`",
    lasting=True,
)

_FAULTS = (
    Fault(
        "timeout",
        ("57014", "SQLITE_INTERRUPT", "TIMEOUT_EXCEEDED"),
        (
            "statement timeout",
            "execution time exceeded",
            "max_statement_time exceeded",
            "maximum execution time",
            "timeout_exceeded",
            *("maximum run time", "exceeded_time_limit", "warehouse timeout", "query timeout expired", "job timed out"),
            *("call timeout", "dpy-4024", "dpi-1067", "exceeded the maximum time"),
        ),
        "raise statement_timeout, or index the time column; a transaction that locks the table can also cause this",
    ),
    Fault(
        "timeout",
        ("55P03", "SQLITE_BUSY", "SQLITE_LOCKED"),
        ("database is locked",),
        "another process locks the data for too long; let it commit sooner, or switch SQLite to WAL mode",
    ),
    Fault(
        "permission",
        ("42501", "SQLITE_PERM", "SQLITE_AUTH"),
        (
            *("permission denied", "access denied", "command denied", "not enough privileges"),
            *("insufficient privileges", "not authorized", "permission was denied"),
        ),
        "let this user log in, and grant SELECT to it",
    ),
    Fault(
        "connect",
        ("28",),
        ("authentication failed", "no pg_hba.conf entry", "pg_hba.conf rejects", "role "),
        "may this user log in, with this password and from this machine?",
    ),
    Fault(
        "missing",
        ("3D000",),
        ('database "', "unknown database"),
        "no such database on that server; name another in the URL, or create it",
    ),
    Fault("query", ("25006",), (), "sources are read-only; remove what writes from the SELECT"),
    _NOT_UNDERSTOOD,
    _WRONG_TYPE,
    _MISSING,
    Fault(
        "data",
        ("22", "ConversionException", "OutOfRangeException", "CANNOT_PARSE", "CANNOT_CONVERT_TYPE"),
        ("could not decode to utf-8",),
        "a column has a different type than declared or used; check its format, or convert it in a `select:`",
    ),
    Fault(
        "connect",
        ("57P01", "57P02"),
        ("server has gone away", "lost connection", "query execution was interrupted", "connection was killed"),
        "the server ended it, by a restart or on request; is the database up?",
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
"""SQLSTATEs that MariaDB and MySQL use for several faults; the words decide."""


_CARRIERS = ("thrift", "requests", "urllib3", "http", "google")


def is_of_the_way(error: BaseException) -> bool:
    """Whether an error comes from the transport: some drivers let those through unwrapped."""
    return isinstance(error, OSError | EOFError) or type(error).__module__.partition(".")[0] in _CARRIERS


def find_fault(error: BaseException, own: Iterable[Fault], name: str) -> Fault | None:
    """The kind of a driver's error; None if unknown.

    Args:
        own: the database's own faults, checked first.
        name: the database's error name, if it has no SQLSTATE.
    """
    state, said = state_of(error), str(error).lower()
    for faults in (own, _PASSING):
        if told := _by_words(faults, said) or _by_code(faults, state or name):
            return told
    if state == "SQLITE_ERROR":
        return _MISSING if said.startswith(("no such table", "no such column")) else _NOT_UNDERSTOOD
    if state and state not in _VAGUE:
        return _by_code(_FAULTS, state)
    return _by_code(_FAULTS, name) or _by_words(_FAULTS, said)


def _by_code(faults: Iterable[Fault], code: str) -> Fault | None:
    return next((f for f in faults if code and code.startswith(f.codes)), None)


def _by_words(faults: Iterable[Fault], said: str) -> Fault | None:
    return next((f for f in faults if any(w in said for w in f.words)), None)


def state_of(error: BaseException) -> str:
    """The SQLSTATE, or the name of SQLite's result code; empty if there is none."""
    names = ("sqlstate", "pgcode", "sqlite_errorname")
    return next((str(found) for name in names if (found := getattr(error, name, None))), "")


def lateness(limit: float, has_no_limit: bool) -> tuple[str, str]:
    """(reason, message) for a step that took longer than `limit` seconds on our side.

    Args:
        has_no_limit: the database has no statement limit, so ours is the only one.
    """
    if has_no_limit:
        slow = f"statement timeout: longer than {limit:g} s"
        return "timeout", f"{slow}; raise statement_timeout, or let each statement read fewer rows"
    return "connect", (
        f"did not answer for {limit:g} s, longer than a statement may run there, so the connection was closed; "
        "is the database up, and does a proxy or firewall in between drop connections?"
    )


def by_own_limits(limits: Mapping[str, float], is_connected: bool) -> Fault:
    """`SILENT`, with advice if the URL's own timeouts are shorter than the statement limit.

    Args:
        limits: the URL's `connect_timeout` and `read_timeout` in seconds, if set.
        is_connected: a statement went unanswered; else the connection attempt did.
    """
    short = [f"{name} of {of:g} s" for name, of in limits.items() if name == "read_timeout" or not is_connected]
    if not short:
        return SILENT
    remedy = f"the URL's {' and '.join(short)} may be too short: raise it, or remove it"
    if not is_connected:
        return SILENT._replace(remedy=f"{SILENT.remedy} Or {remedy}")
    return SILENT._replace(reason="timeout", remedy=f"{remedy}; statement_timeout allows longer statements")


_SIDES = {"r": "rankings", "e": "labels"}
"""Alias in our statements -> what it stands for."""

_OF_SIDE = re.compile(r"(?<![\w.])[\"'`]?([re])[\"'`]?\.[\"'`\w]|(?:[Tt]able|Values list) \"([re])\"")


def looked_for(said: str, statement: str) -> str:
    """Where a missing column was looked for; empty if the message does not say.

    >>> looked_for("column e.usr does not exist", "SELECT e.usr FROM shop.events AS e")
    'looked for in the labels, shop.events'
    """
    if not (match := _OF_SIDE.search(said)):
        return ""
    side = match[1] or match[2]
    table = re.search(rf"((?:[\w$.]|\"[^\"]+\"|`[^`]+`)+) AS [\"`]?{side}\b", statement)
    name = table[1].replace('"', "").replace("`", "") if table else ""
    return f"looked for in the {_SIDES[side]}" + (f", {name}" if name else "")
