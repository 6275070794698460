"""CSV and TSV -> `Sheet`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from monitor.errors import InputError
from monitor.scoring.files import ending, open_bytes
from monitor.scoring.sheets import Column, Sheet

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def read_csv(path: Path, wanted: set[str]) -> Sheet:
    """The file's `wanted` columns as texts; an empty field is NULL.

    Raises:
        InputError: a wanted column is there twice, a record is not as long as the header, or its quotes do not match.
    """
    header = next(_csv_records(path), (1, []))[1]
    used = [name for name in header if name in wanted]
    if len(set(used)) < len(used):
        raise InputError(f"{path}:1: a column is there twice; rename one of them: {', '.join(header)}")
    size = _csv_size(path, len(header)) if header else 0
    if not size:
        return Sheet(path, header, 0, {}, None)
    options: dict[str, Any] = {"usecols": used, "dtype": "str", "index_col": False, "na_filter": False}
    frame = pd.read_csv(path, sep=SEPARATORS[ending(path)], encoding="utf-8-sig", **options)
    columns = {name: Column(frame[name], (frame[name] == "").to_numpy(bool)) for name in used}
    return Sheet(path, header, size, columns, lambda: islice(_csv_records(path), 1, None))


def _csv_size(path: Path, width: int) -> int:
    """Number of records below the header; as `_csv_records` counts them, but in C if there is nothing odd."""
    with _open_csv(path) as file:
        try:
            widths = Counter(map(len, csv.reader(file, **_dialect(path))))
        except csv.Error:
            widths = Counter()
    if list(widths) == [width]:
        return widths[width] - 1
    return sum(1 for _ in _csv_records(path)) - 1


def _open_csv(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="")


def _dialect(path: Path) -> dict[str, Any]:
    return {"delimiter": SEPARATORS[ending(path)], "strict": True}


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, fields) of every record that is not blank, from the header on.

    pandas fills records that are too short and cuts some that are too long, so they are counted here.

    Raises:
        InputError: a record is not as long as the header, or its quotes do not match.
    """
    width, number = 0, 1
    with _open_csv(path) as file:
        reader = csv.reader(file, **_dialect(path))
        try:
            for fields in reader:
                start, number = number, reader.line_num + 1
                if not fields or (len(fields) == 1 and not fields[0].strip()):
                    continue
                width = width or len(fields)
                if len(fields) != width:
                    why = f"{len(fields)} fields where the header has {width}"
                    raise InputError(f"{path}:{start}: {why}; correct the line")
                yield start, fields
        except csv.Error as error:
            raise InputError(f"{path}:{reader.line_num}: {error}; correct the line") from None
