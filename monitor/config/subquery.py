"""Whether a SELECT of the user's own stays within the parentheses that it is put into.

It is told by words, quotes and comments alone. Inside parentheses every database takes one query and nothing else, so a
text that cannot leave them writes nothing that the database's own functions do not write. A parser would know more and
be sure of less: where it reads quotes or comments otherwise than the server, such as MySQL's `/*! ... */` and `--x`, it
is passed by. So what databases read in different ways is refused.
"""

from __future__ import annotations

import re

_MYSQL = {"mysql", "mariadb"}
_OTHERS = {"postgresql", "redshift", "duckdb", "clickhouse", "clickhousedb", "trino", "awsathena", "snowflake"}
_OTHERS |= {"hive", "databricks", "bigquery", "sqlite", "mssql", "oracle"}

TICKS = _MYSQL | {"sqlite", "bigquery", "clickhouse", "clickhousedb", "hive", "databricks"}
"""Dialects that quote names by backticks; to PostgreSQL one is an operator."""

ARRAYS = _OTHERS - {"sqlite", "mssql"}
"""Where brackets are arrays; SQLite and SQL Server quote names by them."""

HASHES = {"postgresql", "redshift", "duckdb", "mssql", "oracle"}
"""Where # is an operator or part of a name; to MySQL, BigQuery and ClickHouse it begins a comment."""

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n]+)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<quoted>'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)
      | (?P<bracket>\[(?:[\w\ .,]|-(?!-))*\])
      | (?P<dollar>\$(?:\w|[^\x00-\x7f])*\$)
      | (?P<word>\w+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONTROL = re.compile(r"[^\S \t\n\xa0\u2000-\u200a\u202f\u205f\u3000]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_ESCAPED_QUOTE = re.compile(r"""(?<!\\)(?:\\\\)*\\['"`]""")
_FIRST = ("select", "with", "from")  # the last is DuckDB's


def enclosed(text: str, dialect: str) -> str:
    """The text without a semicolon at its end and what follows it, safe to be put into parentheses before a line break.

    Args:
        dialect: SQLAlchemy's name; one that is not known is read in the strictest way.

    Raises:
        ValueError: it might leave them; the message says what, in which line, and the remedy.
    """
    text = text.replace("\r\n", "\n")
    if found := _CONTROL.search(text):
        raise _refusal(text, found.start(), f"it contains the control character {found.group()!r}; remove it")
    open_at, end, is_begun = list[int](), None, False
    for token in _TOKEN.finditer(text):
        kind, word, at = str(token.lastgroup), token.group(), token.start()
        if wrong := _doubt(kind, word, text[token.end() :][:1], dialect):
            raise _refusal(text, at, wrong)
        if kind in ("blank", "comment"):
            continue
        if word == ";":
            end = at if end is None else end
            if open_at:
                raise _refusal(text, at, "a statement ends within parentheses; give one SELECT")
        elif end is not None:
            raise _refusal(text, at, "a second statement follows the semicolon; give one SELECT")
        elif word == "(":
            open_at.append(at)
        elif word == ")" and not open_at:
            raise _refusal(text, at, "it closes a parenthesis that it did not open; remove it")
        elif word == ")":
            open_at.pop()
        elif not is_begun:
            is_begun = True
            if word.lower() not in _FIRST:
                raise _refusal(text, at, f"it begins with {word!r}; a query begins with SELECT or WITH")
    if open_at:
        raise _refusal(text, open_at[-1], "it opens a parenthesis that it does not close; close it")
    return text[:end]


def _doubt(kind: str, word: str, following: str, dialect: str) -> str:
    """What is wrong with a token that another database, or the same with other settings, ends elsewhere; or empty."""
    if kind == "quoted":
        if _ESCAPED_QUOTE.search(word):
            return "a backslash stands before a quote, which ends the text or not; double the quote or use a view"
        if dialect == "bigquery" and word[:3] in ("'''", '"""'):
            return "texts in three quotes are not supported; use one quote"
        if word[0] == "`" and dialect not in TICKS:
            return 'a backtick quotes no name here; quote it by "'
    if kind == "comment":
        return _doubt_of_comment(word, dialect)
    if kind == "dollar":
        return "texts between dollar signs are not supported; write them in '...'"
    if kind == "word":
        return (
            "quotes after q are not supported; write '...'" if word.lower() in ("q", "nq") and following == "'" else ""
        )
    if kind == "other":
        return _doubt_of_sign(word, following, dialect)
    return ""


def _doubt_of_comment(comment: str, dialect: str) -> str:
    if comment.startswith("--"):
        if comment.endswith("\\"):
            return "a comment ends in a backslash, which may continue it; remove the backslash"
        is_sure = dialect in _OTHERS or comment[2:3] in ("", " ", "\t")
        return "" if is_sure else "put a blank after `--`; without one it begins no comment in MySQL"
    if comment.startswith(("/*!", "/*M!")):
        return "MySQL runs what stands in such a comment; remove it"
    return "a comment begins within a comment; remove the inner `/*`" if "/*" in comment[2:] else ""


def _doubt_of_sign(sign: str, following: str, dialect: str) -> str:
    if sign in "'\"`":
        return f"a quote {sign} is not closed; close it"
    if sign == "/" and following == "*":
        return "a comment is not closed; close it"
    if sign == "/" and following == "/" and dialect != "duckdb":
        return "`//` begins a comment in some databases; use `--`"
    if sign == "#" and dialect not in HASHES:
        return "# begins a comment in some databases; use `-- `, and quote a name that holds one"
    if sign == "[" and dialect not in ARRAYS:
        return "a name in brackets holds a quote, a parenthesis or another special character; use a view"
    if dialect == "sqlite" and sign in "$@:" and re.match(r"\w|:", following):
        return f"parameters such as {sign}{following} are not supported; write the value"
    if ord(sign) > 127:
        return f"the character {sign!r} stands outside quotes, where databases read it in different ways; remove it"
    return ""


def _refusal(text: str, at: int, wrong: str) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line} of the query: {wrong}" if "\n" in text.strip() else wrong)
