"""JSON Lines -> `Sheet`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd

from monitor.errors import InputError
from monitor.scoring.files import numbered_lines, open_bytes
from monitor.scoring.sheets import Column, Sheet

JSON_ROWS = 10_000  # held as objects at a time


def read_json(path: Path, wanted: set[str]) -> Sheet:
    """The `wanted` keys of the file's objects; null or a missing key is NULL.

    Raises:
        InputError: a line is no JSON object.
    """
    names: dict[str, None] = {}
    found: dict[str, list[object]] = {}
    size = 0
    for rows in _json_rows(path):
        names.update(dict.fromkeys(chain.from_iterable(rows)))
        for name in names.keys() & wanted:
            found.setdefault(name, [None] * size).extend([row.get(name) for row in rows])
        size += len(rows)
    columns = {
        name: Column(pd.Series(values, dtype=object), np.array([value is None for value in values]))
        for name, values in found.items()
    }
    return Sheet(path, list(names), size, columns, lambda: _json_lines(path))


def _json_rows(path: Path) -> Iterator[list[dict[str, object]]]:
    """The objects, some at a time: parsed together, which takes half the time, or line by line from an odd one on."""
    done = 0
    with open_bytes(path) as file:
        while lines := list(islice(file, JSON_ROWS)):
            rows = _json_at_once(lines)
            if rows is None:
                break
            yield rows
            done += len(rows)
        else:
            return
    rest = (row for _, row in islice(_json_lines(path), done, None))
    while some := list(islice(rest, JSON_ROWS)):
        yield some


def _json_at_once(lines: list[bytes]) -> list[dict[str, object]] | None:
    """One object a line; None where that is not so."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return None
    return rows if len(rows) == len(lines) and set(map(type, rows)) == {dict} else None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """(line number, object) of every line that is not blank.

    Raises:
        InputError: a line is no JSON object.
    """
    for number, line in numbered_lines(path):
        text = line.decode().strip()
        if not text:
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path}:{number}: no JSON: {error}; each line is one object") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: {text[:40]} is no JSON object; each line is one object")
        yield number, row
