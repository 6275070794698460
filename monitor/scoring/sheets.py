"""A file as columns of text and numbers, and errors that name a place in it."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn, TypeAlias, cast

import numpy as np
import pandas as pd

from monitor.arrays import Bools
from monitor.errors import InputError

ALIASES: dict[str, tuple[str, ...]] = {
    "request": ("request", "request_id"),
    "query": ("query", "query_id", "qid", "topic"),
    "item": ("item", "item_id", "docno", "docid", "doc_id"),
    "position": ("position", "rank"),
    "score": ("score",),
    "grade": ("grade", "relevance", "rel", "label", "rating"),
}
"""Column names tried, in order, where no option names one."""


@dataclass(frozen=True, slots=True)
class Names:
    """The given column names; `ALIASES` are tried for the others. `base`: the first position."""

    request: str | None = None
    query: str | None = None
    item: str | None = None
    position: str | None = None
    score: str | None = None
    grade: str | None = None
    base: int = 1

    def of(self, role: str) -> str | None:
        """The name given for a key of `ALIASES`."""
        return cast("str | None", getattr(self, role))


BOM = b"\xef\xbb\xbf"


STANDARD_INPUT = "-"


@contextmanager
def on_disk(path: Path) -> Iterator[Path]:
    """The path; for `-` that of a copy of standard input, with the ending of its content, while the context lasts."""
    if str(path) != STANDARD_INPUT:
        yield path
        return
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "input"
        with copy.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        copy = copy.rename(copy.with_suffix(_suffix(copy)))
        try:
            yield copy
        except InputError as error:
            raise InputError(str(error).replace(str(copy), "standard input")) from None


def _suffix(path: Path) -> str:
    """The ending for a file of this content; empty for a TREC run or qrels."""
    with path.open("rb") as file:
        zipped = ".gz" * (file.read(2) == b"\x1f\x8b")
    with cast(IO[bytes], gzip.open(path)) if zipped else path.open("rb") as file:
        first = file.readline(1 << 20).removeprefix(BOM).strip()
    names = {name.encode() for some in ALIASES.values() for name in some}
    if first.startswith((b"PAR1", b"{")):
        return ".parquet" if first.startswith(b"PAR1") else ".jsonl" + zipped
    fields = first.split()
    is_trec = len(fields) >= 6 or (len(fields) == 4 and fields[3].lstrip(b"-").isdigit())
    if is_trec and not names & set(first.replace(b",", b" ").split()):
        return zipped
    return next((kind for kind, by in ((".tsv", b"\t"), (".csv", b",")) if by in first), "") + zipped


def open_bytes(path: Path) -> IO[bytes]:
    """The file, unzipped if it ends in .gz."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line without a byte order mark) of each line."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line.removeprefix(BOM)


def ending(path: Path) -> str:
    """The name's ending, .gz aside: `.csv` of `A.CSV.gz`."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()


def undecodable(path: Path) -> int:
    """Number of the first line that is not UTF-8."""
    for number, line in numbered_lines(path):
        try:
            line.decode()
        except UnicodeDecodeError:
            return number
    return 1


def unreadable(path: Path, why: object) -> InputError:
    """The error for a file that cannot be read at all."""
    return InputError(f"{path}: cannot be read: {why}; check the file and its name")


Series: TypeAlias = "pd.Series[Any]"


@dataclass(frozen=True)
class FileColumn:
    """(n,) values as in the file, and which of them are NULL."""

    values: Series
    null: Bools


@dataclass(frozen=True)
class Sheet:
    """A file of `size` rows: `names` of all its columns, and the potentially useful columns.

    `lines` gives (line number, content) of each row, from the start; None without lines.
    """

    path: Path
    names: list[str]
    size: int
    columns: dict[str, FileColumn]
    lines: Callable[[], Iterable[tuple[int, object]]] | None
    is_trec: bool = False

    def at(self, row: int) -> str:
        """The location of a row (from 0): `file:line`, or `file: row`."""
        if self.lines is None:
            return f"{self.path}: row {row + 1}"
        number, _ = next(islice(self.lines(), row, None), (None, None))
        return f"{self.path}:{number}"

    def find(self, role: str, names: Names, anyhow: bool = False) -> str | None:
        """The column of a key of `ALIASES`; None without one."""
        given = names.of(role)
        if given is not None and given not in self.columns and not anyhow:
            self.refuse(f"no column {given!r} (--{role})")
        choices = ALIASES[role] if given is None else (given, *ALIASES[role])
        return next((name for name in choices if name in self.columns), None)

    def require(self, role: str, names: Names, remedy: str = "", anyhow: bool = False) -> str:
        """As `find`, but raises InputError if there is none."""
        name = self.find(role, names, anyhow)
        if name is None:
            self.refuse(f"no column for the {role}", f"; name one with --{role}{remedy}")
        return name

    def refuse(self, why: str, remedy: str = "") -> NoReturn:
        """Raises InputError that lists the columns."""
        raise InputError(f"{self.path}: {why}; it has {', '.join(self.names)}{remedy}")

    def refuse_value(self, row: int, name: str, why: str) -> NoReturn:
        """Raises InputError about the value of a column in a row."""
        column = self.columns[name]
        value = "(empty)" if column.null[row] else shown(column.values.iloc[row])
        raise InputError(f"{self.at(row)}: {name} {value} {why}")

    def refuse_where(self, wrong: Bools, name: str, why: str) -> None:
        """As `refuse_value`, for the first row that is `wrong` (n,), if any."""
        row = first_true(wrong)
        if row is not None:
            self.refuse_value(row, name, why)


def first_true(mask: Bools) -> int | None:
    """Index of the first true value; None without one."""
    return int(np.argmax(mask)) if mask.any() else None


def shown(value: object) -> str:
    """A value in a message: texts in quotes."""
    return repr(value) if isinstance(value, str) else str(value)
