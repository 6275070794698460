"""Files as bytes and lines, zipped or not."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, cast

from monitor.errors import InputError
from monitor.scoring.names import ALIASES

BOM = b"\xef\xbb\xbf"


STANDARD_INPUT = "-"


@contextmanager
def on_disk(path: Path) -> Iterator[Path]:
    """The path; of `-` one of a copy of standard input, which has the ending of what it holds, while the context lasts.

    Raises:
        InputError: as raised within, with standard input under that name.
    """
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
    """The ending that a file of this content has; empty for a TREC run."""
    with path.open("rb") as file:
        zipped = ".gz" * (file.read(2) == b"\x1f\x8b")
    with cast(IO[bytes], gzip.open(path)) if zipped else path.open("rb") as file:
        first = file.readline(1 << 20).removeprefix(BOM).strip()
    names = {name.encode() for some in ALIASES.values() for name in some}
    if first.startswith((b"PAR1", b"{")):
        return ".parquet" if first.startswith(b"PAR1") else ".jsonl" + zipped
    if len(first.split()) >= 6 and not names & set(first.replace(b",", b" ").split()):
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
    """What the name ends in, .gz aside: `.csv` of `A.CSV.gz`."""
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
    """The error about a file whose content cannot be had at all."""
    return InputError(f"{path}: cannot be read: {why}; check the file and its name")
