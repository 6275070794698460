"""A file as columns, and the errors that name a place in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.measures.kernels import Bools
from monitor.scoring.names import ALIASES, Names

Series: TypeAlias = "pd.Series[Any]"


@dataclass(frozen=True)
class Column:
    """(n,) values as the file has them, and which of them are NULL."""

    values: Series
    null: Bools


@dataclass(frozen=True)
class Sheet:
    """A file of `size` rows: `names` of all its columns, and those that may be of use.

    `lines` gives (line number, content) of each row anew; None where there are no lines.
    """

    path: Path
    names: list[str]
    size: int
    columns: dict[str, Column]
    lines: Callable[[], Iterable[tuple[int, object]]] | None
    is_trec: bool = False

    def at(self, row: int) -> str:
        """Where a row (from 0) stands: `file:line`, or `file: row`."""
        if self.lines is None:
            return f"{self.path}: row {row + 1}"
        number, _ = next(islice(self.lines(), row, None), (None, None))
        return f"{self.path}:{number}"

    def find(self, role: str, names: Names, anyhow: bool = False) -> str | None:
        """The column of a key of `ALIASES`; None where there is none.

        Raises:
            InputError: a name is given and not there; but `anyhow` tries the aliases then.
        """
        given = names.of(role)
        if given is not None and given not in self.columns and not anyhow:
            self.refuse(f"no column {given!r} (--{role})")
        choices = ALIASES[role] if given is None else (given, *ALIASES[role])
        return next((name for name in choices if name in self.columns), None)

    def require(self, role: str, names: Names, remedy: str = "", anyhow: bool = False) -> str:
        """As `find`; but to find nothing is an InputError."""
        name = self.find(role, names, anyhow)
        if name is None:
            self.refuse(f"no column for the {role}", f"; name one with --{role}{remedy}")
        return name

    def refuse(self, why: str, remedy: str = "") -> NoReturn:
        """Raise an InputError that lists the columns there are."""
        raise InputError(f"{self.path}: {why}; it has {', '.join(self.names)}{remedy}")

    def refuse_value(self, row: int, name: str, why: str) -> NoReturn:
        """Raise an InputError about the value of a column in a row."""
        column = self.columns[name]
        value = "(empty)" if column.null[row] else shown(column.values.iloc[row])
        raise InputError(f"{self.at(row)}: {name} {value} {why}")

    def refuse_where(self, wrong: Bools, name: str, why: str) -> None:
        """As `refuse_value`, about the first row that is `wrong` (n,), if any is."""
        row = first_true(wrong)
        if row is not None:
            self.refuse_value(row, name, why)


def first_true(mask: Bools) -> int | None:
    """Row of the first true value; None where there is none."""
    return int(np.argmax(mask)) if mask.any() else None


def shown(value: object) -> str:
    """A value in a message: texts in quotes."""
    return repr(value) if isinstance(value, str) else str(value)
