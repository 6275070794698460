"""Keeps a user's SELECT inside its parentheses, where databases take one query only.

A parser may disagree with the server (MySQL's `/*! ... */`, `--x`); anything ambiguous between databases is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n]+)
      | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<quoted>'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)
      | (?P<bracket>\[(?:[\w\ .,]|-(?!-))*\])
      | (?P<dollar>\$(?:\w|[^\x00-\x7f])*\$)
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CONTROL = re.compile(r"[^\S \t\n\xa0\u2000-\u200a\u202f\u205f\u3000]|[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_ESCAPED_QUOTE = re.compile(r"""(?<!\\)(?:\\\\)*\\['"`]""")
_FIRST = ("select", "with", "from")  # FROM first is DuckDB's

_REFUSED_SIGNS = {
    "'": "a quote ' is not closed; close it",
    '"': 'a quote " is not closed; close it',
    "`": "a quote ` is not closed; close it",
    "/*": "a comment is not closed; close it",
    "//": "`//` starts a comment in some databases; use `--`",
    "#": "# starts a comment in some databases; use `-- `, and quote a name that contains one",
    "[": "a name in brackets contains a quote, a parenthesis or another special character; use a view",
}


@dataclass(frozen=True)
class Quoting:
    """How a database tokenizes quotes and comments. The default refuses anything ambiguous.

    Attributes:
        ticks: backticks quote names; in PostgreSQL one is an operator.
        arrays: brackets are arrays; SQLite and SQL Server quote names with them.
        hashes: # is an operator or part of a name; in MySQL, BigQuery and ClickHouse it begins a comment.
        slashes: // divides.
        dashes: -- always begins a comment; in MySQL only before a blank.
        triples: texts may have triple quotes.
        parameters: $x, @x and :x are parameters.
    """

    ticks: bool = False
    arrays: bool = False
    hashes: bool = False
    slashes: bool = False
    dashes: bool = False
    triples: bool = False
    parameters: bool = False

    def enclosed(self, text: str) -> str:
        """The text without a final semicolon, safe inside parentheses before a line break.

        Raises:
            ValueError: it might escape; the message has the part, the line and the fix.
        """
        text = text.replace("\r\n", "\n")
        if found := _CONTROL.search(text):
            raise _refusal(text, found.start(), f"it contains the control character {found.group()!r}; remove it")
        open_at, end, is_begun = list[int](), None, False
        for token in _TOKEN.finditer(text):
            kind, word, at = str(token.lastgroup), token.group(), token.start()
            if wrong := self._doubt(kind, word, text[token.end() :][:1]):
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
                    raise _refusal(text, at, f"it starts with {word!r}; a query starts with SELECT or WITH")
        if open_at:
            raise _refusal(text, open_at[-1], "it opens a parenthesis that it does not close; close it")
        return text[:end]

    def _doubt(self, kind: str, word: str, following: str) -> str:
        """Why a token may end elsewhere in another database, or under other settings; or empty."""
        if kind == "quoted":
            return self._doubt_of_quotes(word)
        if kind == "comment":
            return self._doubt_of_comment(word)
        if kind == "dollar":
            return "texts between dollar signs are not supported; write them in '...'"
        if kind == "word" and word.lower() in ("q", "nq") and following == "'":
            return "quotes after q are not supported; write '...'"
        return self._doubt_of_sign(word, following) if kind == "sign" else ""

    def _doubt_of_quotes(self, quoted: str) -> str:
        if _ESCAPED_QUOTE.search(quoted):
            return "a backslash before a quote is ambiguous; double the quote or use a view"
        if self.triples and quoted[:3] in ("'''", '"""'):
            return "texts in three quotes are not supported; use one quote"
        return 'a backtick quotes no name here; quote it with "' if quoted[0] == "`" and not self.ticks else ""

    def _doubt_of_comment(self, comment: str) -> str:
        if comment.startswith("--"):
            if comment.endswith("\\"):
                return "a comment ends with a backslash, which may continue it; remove the backslash"
            is_sure = self.dashes or comment[2:3] in ("", " ", "\t")
            return "" if is_sure else "put a space after `--`; without one it starts no comment in MySQL"
        if comment.startswith(("/*!", "/*M!")):
            return "MySQL executes such a comment; remove it"
        return "a comment starts within a comment; remove the inner `/*`" if "/*" in comment[2:] else ""

    def _doubt_of_sign(self, sign: str, following: str) -> str:
        found = sign + following if sign == "/" else sign
        is_usual = {"//": self.slashes, "#": self.hashes, "[": self.arrays}.get(found, False)
        if found in _REFUSED_SIGNS and not is_usual:
            return _REFUSED_SIGNS[found]
        if self.parameters and sign in "$@:" and re.match(r"\w|:", following):
            return f"parameters such as {sign}{following} are not supported; write the value"
        if ord(sign) > 127:
            return f"the character {sign!r} is outside quotes, where databases interpret it differently; remove it"
        return ""


def _refusal(text: str, at: int, wrong: str) -> ValueError:
    line = text.count("\n", 0, at) + 1
    return ValueError(f"line {line} of the query: {wrong}" if "\n" in text.strip() else wrong)
