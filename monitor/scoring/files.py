"""Files as bytes and lines, zipped or not."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from monitor.errors import InputError

BOM = b"\xef\xbb\xbf"


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
