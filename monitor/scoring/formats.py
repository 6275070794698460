"""Which reader a file is for."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

from monitor.errors import InputError
from monitor.scoring.delimited import SEPARATORS, read_csv
from monitor.scoring.files import ending, undecodable, unreadable
from monitor.scoring.jsonlines import read_json
from monitor.scoring.names import ALIASES, Names
from monitor.scoring.parquet import read_parquet
from monitor.scoring.sheets import Sheet
from monitor.scoring.trec import Layout, looks_like, read_trec

TREC_ENDINGS = ("", ".run", ".trec", ".res", ".qrels", ".qrel", ".txt")


def read_sheet(path: Path, layout: Layout, names: Names) -> Sheet:
    """The file, by its ending; one with an unknown ending that looks like a TREC file is one.

    Raises:
        InputError: it is missing, unreadable, empty or not of its format.
    """
    wanted = {name for role in ALIASES for name in (names.of(role), *ALIASES[role]) if name is not None}
    try:
        sheet = _reader(path, layout)(path, wanted)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, (isinstance(error, OSError) and error.strerror) or error) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}:{undecodable(path)}: this line is not UTF-8; convert the file, say with iconv"
        ) from None
    if sheet.size == 0:
        raise InputError(f"{path}: holds no rows; give a file with a row for each item")
    return sheet


def _reader(path: Path, layout: Layout) -> Callable[[Path, set[str]], Sheet]:
    kind = ending(path)
    if kind in SEPARATORS:
        return read_csv
    if kind in (".jsonl", ".ndjson"):
        return read_json
    if path.suffix.lower() == ".parquet":
        return read_parquet
    if kind not in TREC_ENDINGS and not looks_like(layout, path):
        known = ".csv, .tsv, .jsonl or .ndjson (also with .gz), .parquet"
        raise InputError(f"{path}: unknown ending, and not {layout.title}; known are {known}; convert or rename it")
    return lambda path, _: read_trec(path, layout)
