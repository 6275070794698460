"""TREC runs and qrels -> `Sheet`."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.scoring.files import numbered_lines, open_bytes
from monitor.scoring.sheets import Column, Sheet


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of TREC file: its columns, those that are used, and whether more may follow."""

    title: str
    columns: tuple[str, ...]
    used: tuple[str, ...]
    open_ended: bool


RUN = Layout("a TREC run", ("qid", "Q0", "docno", "rank", "score", "tag"), ("qid", "docno", "score"), True)
QRELS = Layout("TREC qrels", ("qid", "iter", "docno", "rel"), ("qid", "docno", "rel"), False)


def looks_like(layout: Layout, path: Path) -> bool:
    """Whether the first line with content has as many fields, or more where these may follow."""
    with open_bytes(path) as file:
        lines = (line.split() for line in islice(file, 1000))
        fields = next((f for f in lines if f and not f[0].startswith(b"#")), [])
    return len(fields) == len(layout.columns) or (layout.open_ended and len(fields) > len(layout.columns))


def read_trec(path: Path, layout: Layout) -> Sheet:
    """The file's used columns, none of which is NULL anywhere.

    Raises:
        InputError: a line has too few columns, or too many.
    """
    frame = _trec_at_once(path, layout)
    if frame is None:
        frame = pd.DataFrame(_trec_by_line(path, layout), dtype=object)
    present = np.zeros(len(frame), bool)
    columns = {name: Column(frame[name], present) for name in layout.used}
    return Sheet(path, list(layout.used), len(frame), columns, lambda: trec_lines(path, layout), is_trec=True)


def _trec_at_once(path: Path, layout: Layout) -> pd.DataFrame | None:
    """The columns, read in C; None where comments or a wrong number of columns need a closer look."""
    dtypes = dict.fromkeys(layout.columns, "category") | dict.fromkeys(layout.used, "str")
    options: dict[str, Any] = {"header": None, "index_col": False, "na_filter": False, "quoting": csv.QUOTE_NONE}
    # pandas refuses lines that are too long unless columns are picked; a first one that is too long, it warns of.
    picked = [*layout.used, layout.columns[-1]] if layout.open_ended else list(layout.columns)
    options["usecols"] = picked if layout.open_ended else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, sep=r"\s+", names=list(layout.columns), dtype=dtypes, **options)
    except (ValueError, pd.errors.ParserWarning):  # a ValueError is also what is not UTF-8
        return None
    odd = (frame[layout.columns[-1]] == "").any() or frame["qid"].str.startswith("#").any()
    return None if odd else frame


def _trec_by_line(path: Path, layout: Layout) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in layout.used}
    places = [(column, layout.columns.index(name)) for name, column in found.items()]
    for _, fields in trec_lines(path, layout):
        for column, place in places:
            column.append(fields[place].decode())
    return found


def trec_lines(path: Path, layout: Layout) -> Iterator[tuple[int, list[bytes]]]:
    """(line number, fields) of every line that is neither blank nor a comment.

    Raises:
        InputError: a line has too few columns, or too many.
    """
    width = len(layout.columns)
    for number, line in numbered_lines(path):
        fields = line.split()
        if not fields or fields[0].startswith(b"#"):
            continue
        if len(fields) < width or (len(fields) > width and not layout.open_ended):
            what = f"{layout.title} has {width} ({' '.join(layout.columns)})"
            raise InputError(f"{path}:{number}: {len(fields)} columns where {what}; correct the line")
        yield number, fields
