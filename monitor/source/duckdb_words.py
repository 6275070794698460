"""What DuckDB says, without the statement that it points into, the names that we give to tables, and its guesses."""

from __future__ import annotations

import re

_POINTED = re.compile(r"\s*(LINE \d+: )(.*)\n( *)(\^+)[ ]*")
_OURS = re.compile(r'(?:Table|Values list) "[re]" does not have a column named')
_ALIAS = re.compile(r'(?<![\w."])"?[re]"?\.(?=[\w"])')
_GUESS = re.compile(r'\s*Did you mean "(?:pg_|sqlite_|duckdb_|information_schema\.)[^"]*"\?')


def plainly(said: str, is_missing: bool) -> str:
    r"""A message in plain words, as of several lines.

    Of a statement in which something does not fit, what the message points at stays: it alone names the column. What is
    missing is named by the message itself.

    >>> plainly('Values list "r" does not have a column named "sku"\n\nLINE 1: r.sku\n        ^^^^^', True)
    'there is no column named "sku"'
    >>> plainly('Cannot compare\n\nLINE 1: SELECT 1 WHERE r."at" > 5\n                       ^^^^^^^^^^', False)
    'Cannot compare, in: "at" > 5'
    """
    text = _POINTED.sub("" if is_missing else _what_is_meant, said)
    return _OURS.sub("there is no column named", _GUESS.sub("", text))


def _what_is_meant(found: re.Match[str]) -> str:
    """The part of a line that the carets under it point at."""
    first = len(found[3]) - len(found[1])
    pointed = _ALIAS.sub("", found[2][max(first, 0) : first + len(found[4])]).strip()
    return f", in: {pointed}" if len(pointed) > 1 else ""
