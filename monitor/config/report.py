"""Collects the mistakes of one configuration file, to report all at once, each with its line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from monitor.errors import ConfigError, Where, without

_WORD = re.compile(r"[A-Za-z]{0,5}|\d{0,5}")
"""A filled-in value that is not masked within a sentence, as it could be any word or number of it."""


_ONE_VARIABLE = re.compile(r"\$\{[^}]*\}")


class Report:
    """The mistakes found in one file so far.

    Attributes:
        file: named in front of every mistake.
        lines: line of each place, from 1.
        written: what the file says, and what it became, if a value contains ${NAME}.
        unread: keys at the top that nobody needs, so that what is wrong below them does not matter.
    """

    def __init__(self, file: Path, unread: Collection[str] = ()) -> None:
        self.file = file
        self.unread = unread
        self.lines: dict[Where, int] = {}
        self.written: dict[Where, tuple[str, str]] = {}
        self._problems: dict[tuple[int, str], None] = {}
        self._unknown: set[Where] = set()

    def add(self, where: Where, text: str) -> None:
        """Note a mistake at `where`, unless the value there could not be made out in the first place."""
        self._note(where, self._as_written(where, text))

    def add_unknown(self, where: Where, text: str) -> None:
        """Note why the value at `where` cannot be made out; whatever else is said about it would mislead."""
        self.add(where, text)
        self._unknown.add(where)

    def add_of_file(self, where: Where, name: str, text: str) -> None:
        """Note what is wrong with the file that the value at `where` names; `{file}` in the text stands for it.

        It is reported in full, with the variables that it came of. What is one variable, and no full path, stays as
        written: somebody may have put the secret itself there.
        """
        path, (written, _) = str(self.file.parent / name), self.written.get(where, ("", ""))
        if written and (Path(name).is_absolute() or not _ONE_VARIABLE.fullmatch(written)):
            path = f"{path} ({written})"
        elif written:
            path = self._as_written(where, path)
        self._note(where, text.replace("{file}", path))

    def _note(self, where: Where, text: str) -> None:
        if where not in self._unknown and not (where and where[0] in self.unread):
            self.add_line(self.line(where), f"{path_of(where)}: {text}" if where else text)

    def add_line(self, line: int, text: str) -> None:
        """Note a mistake by its line alone."""
        self._problems[line, f"{self.file}:{line}: {text}"] = None

    def take_over(self, where: Where, problems: Iterable[str]) -> None:
        """Note the mistakes of another file, which the value at `where` names."""
        for problem in problems:
            self._problems[self.line(where), problem] = None

    def line(self, where: Where) -> int:
        """Line of a place; of what holds it, where it is missing."""
        return line_of(where, self.lines)

    def raise_if_any(self) -> None:
        """Raise ConfigError with every mistake, in the file's order, if there is one."""
        if self._problems:
            # No exception is passed on as the cause: pydantic's would show the values, and with them the secrets.
            raise ConfigError([text for _, text in sorted(self._problems, key=lambda p: p[0])]) from None

    def _as_written(self, where: Where, text: str) -> str:
        written, became = self.written.get(where, ("", ""))
        text = text.replace(repr(became), repr(written))
        return text if _WORD.fullmatch(became) else without(text, [became], written)


@dataclass(frozen=True)
class Scope:
    """A monitor at its place in the file, with `defaults` for what it does not set."""

    where: Where
    own: Mapping[str, object]
    defaults: Mapping[str, object]
    report: Report

    def place(self, steps: Where) -> Where:
        """Where in the file something of the monitor stands."""
        mine, others = self.own.get(str(steps[0])), self.defaults.get(str(steps[0]))
        if isinstance(mine, dict) and isinstance(others, dict) and steps[0] == "labels" and len(steps) > 1:
            mine, others = mine.get(steps[1]), others.get(steps[1])
        return ("defaults", *steps) if mine is None and others is not None else (*self.where, *steps)

    def has(self, name: str) -> bool:
        """Whether the file says anything of a key of the monitor."""
        return name in self.own or name in self.defaults

    def refuse(self, text: str, *steps: str | int) -> None:
        """Report a mistake at a place of the monitor, wherever that stands."""
        self.report.add(self.place(steps) if steps else self.where, text)


def nearest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A remedy for an unknown word: the known one it resembles, else another remedy, else all words there are."""
    choices = list(known)
    close = difflib.get_close_matches(word, choices, 1)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"known are {', '.join(choices)}"


def line_of(where: Where, lines: Mapping[Where, int]) -> int:
    """Line of a place; of what holds it, where it is missing."""
    while where and where not in lines:
        where = where[:-1]
    return lines.get(where, 1)


def path_of(where: Where) -> str:
    """A place as people write it.

    >>> path_of(("monitors", 0, "bucket"))
    'monitors[0].bucket'
    """
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
