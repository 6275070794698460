"""CSV, TSV, JSON Lines, Parquet, TREC runs and qrels -> `Sheet`."""

from __future__ import annotations

import csv
import io
import json
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from monitor.database_url import how_to_install
from monitor.errors import InputError
from monitor.scoring.sheets import (
    ALIASES,
    FileColumn,
    Names,
    Sheet,
    ending,
    numbered_lines,
    open_bytes,
    undecodable,
    unreadable,
)

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def read_csv(path: Path, wanted: set[str]) -> Sheet:
    """The file's `wanted` columns as texts; an empty field is NULL."""
    header = next(_csv_records(path), (1, []))[1]
    used = [name for name in header if name in wanted]
    if len(set(used)) < len(used):
        raise InputError(f"{path}:1: a column appears twice; rename one of them: {', '.join(header)}")
    size = _csv_size(path, len(header)) if header else 0
    if not size:
        return Sheet(path, header, 0, {}, None)
    options: dict[str, Any] = {"usecols": used, "dtype": "str", "index_col": False, "na_filter": False}
    frame = pd.read_csv(path, sep=SEPARATORS[ending(path)], encoding="utf-8-sig", **options)
    columns = {name: FileColumn(frame[name], (frame[name] == "").to_numpy(bool)) for name in used}
    return Sheet(path, header, size, columns, lambda: islice(_csv_records(path), 1, None))


def _csv_size(path: Path, width: int) -> int:
    """Number of records below the header, as by `_csv_records`, but in C if nothing is odd."""
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
    """(number of the first line, fields) of non-blank records, header included: pandas pads or cuts odd ones."""
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


JSON_ROWS = 10_000  # objects in memory at a time


def read_json(path: Path, wanted: set[str]) -> Sheet:
    """The `wanted` keys of the file's objects; null or a missing key is NULL."""
    names: dict[str, None] = {}
    found: dict[str, list[object]] = {}
    size = 0
    for rows in _json_rows(path):
        names.update(dict.fromkeys(chain.from_iterable(rows)))
        for name in names.keys() & wanted:
            found.setdefault(name, [None] * size).extend([row.get(name) for row in rows])
        size += len(rows)
    columns = {
        name: FileColumn(pd.Series(values, dtype=object), np.array([value is None for value in values]))
        for name, values in found.items()
    }
    return Sheet(path, list(names), size, columns, lambda: _json_lines(path))


def _json_rows(path: Path) -> Iterator[list[dict[str, object]]]:
    """The objects in batches: parsed together, which takes half the time, or line by line from an odd one on."""
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
    """One object per line; None if that does not hold."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return None
    return rows if len(rows) == len(lines) and set(map(type, rows)) == {dict} else None


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """(line number, object) of every non-blank line."""
    for number, line in numbered_lines(path):
        text = line.decode().strip()
        if not text:
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON: {error}; each line is one object") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{number}: {text[:40]} is not a JSON object; each line is one object")
        yield number, row


def read_ratings(path: Path, _: set[str]) -> Sheet:
    """Judgments of OpenSearch's Search Relevance Workbench, as they are put there or as they are got from it."""
    try:
        with open_bytes(path) as file:
            body = json.load(file)
        (body,) = [hit["_source"] for hit in body["hits"]["hits"]] if "hits" in body else [body]
        queries = [(one["query"], each) for one in body["judgmentRatings"] for each in one["ratings"]]
        rows = [(query, each["docId"], each["rating"]) for query, each in queries]
    except (ValueError, TypeError, KeyError) as error:
        why = f"no judgmentRatings of query, docId and rating ({type(error).__name__}: {error})"
        raise InputError(f"{path}: {why}; for one object per line, use the ending .jsonl") from None
    names = ["query", "docid", "rating"]
    frame = pd.DataFrame(rows, columns=names, dtype=object)
    return Sheet(path, names, len(frame), {n: FileColumn(frame[n], frame[n].isna().to_numpy()) for n in names}, None)


def read_parquet(path: Path, wanted: set[str]) -> Sheet:
    """The file's `wanted` columns, dictionaries unfolded."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet needs pyarrow; {how_to_install('parquet')}") from None
    try:
        file = parquet.ParquetFile(path)
        names = list(file.schema_arrow.names)
        table = file.read(columns=[name for name in names if name in wanted])
    except pa.ArrowException as error:
        raise unreadable(path, error) from None
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = pd.Series(column.to_pandas())
        columns[name] = FileColumn(values, column.is_null().to_numpy())
    return Sheet(path, names, file.metadata.num_rows, columns, None)


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of TREC file: its columns, those used, and whether more may follow."""

    title: str
    columns: tuple[str, ...]
    used: tuple[str, ...]
    open_ended: bool


RUN = Layout("a TREC run", ("qid", "Q0", "docno", "rank", "score", "tag"), ("qid", "docno", "score"), True)
QRELS = Layout("TREC qrels", ("qid", "iter", "docno", "rel"), ("qid", "docno", "rel"), False)


def looks_like(layout: Layout, path: Path) -> bool:
    """Whether the first line with content has as many fields, or more where allowed."""
    with open_bytes(path) as file:
        lines = (line.split() for line in islice(file, 1000))
        fields = next((f for f in lines if f and not f[0].startswith(b"#")), [])
    return len(fields) == len(layout.columns) or (layout.open_ended and len(fields) > len(layout.columns))


def read_trec(path: Path, layout: Layout) -> Sheet:
    """The file's used columns, without NULL."""
    frame = _trec_at_once(path, layout)
    if frame is None:
        frame = pd.DataFrame(_trec_by_line(path, layout), dtype=object)
    present = np.zeros(len(frame), bool)
    columns = {name: FileColumn(frame[name], present) for name in layout.used}
    return Sheet(path, list(layout.used), len(frame), columns, lambda: trec_lines(path, layout), is_trec=True)


def _trec_at_once(path: Path, layout: Layout) -> pd.DataFrame | None:
    """The columns, read in C; None if comments or a wrong number of columns need a closer look."""
    dtypes = dict.fromkeys(layout.columns, "category") | dict.fromkeys(layout.used, "str")
    options: dict[str, Any] = {"header": None, "index_col": False, "na_filter": False, "quoting": csv.QUOTE_NONE}
    # pandas refuses lines that are too long unless columns are picked; for a first one that is too long it warns.
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
    """(line number, fields) of every line that is neither blank nor a comment."""
    width = len(layout.columns)
    for number, line in numbered_lines(path):
        fields = line.split()
        if not fields or fields[0].startswith(b"#"):
            continue
        if len(fields) < width or (len(fields) > width and not layout.open_ended):
            what = f"{layout.title} has {width} ({' '.join(layout.columns)})"
            raise InputError(f"{path}:{number}: {len(fields)} columns where {what}; correct the line")
        yield number, fields


TREC_ENDINGS = ("", ".run", ".trec", ".res", ".qrels", ".qrel", ".txt")


def read_sheet(path: Path, layout: Layout, names: Names) -> Sheet:
    """The file, by its ending; one with an unknown ending may be a TREC file."""
    wanted = {name for role in ALIASES for name in (names.of(role), *ALIASES[role]) if name is not None}
    try:
        sheet = _reader(path, layout)(path, wanted)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, (isinstance(error, OSError) and error.strerror) or error) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}:{undecodable(path)}: this line is not UTF-8; convert the file, e.g. with iconv"
        ) from None
    if sheet.size == 0:
        raise InputError(f"{path}: has no rows; give a file with one row per item")
    return sheet


def _reader(path: Path, layout: Layout) -> Callable[[Path, set[str]], Sheet]:
    kind = ending(path)
    if kind in SEPARATORS:
        return read_csv
    if kind in (".jsonl", ".ndjson"):
        return read_json
    if kind == ".json":
        return read_ratings
    if path.suffix.lower() == ".parquet":
        return read_parquet
    if kind not in TREC_ENDINGS and not looks_like(layout, path):
        known = ".csv, .tsv, .jsonl or .ndjson (also with .gz), .parquet, .json of judgments"
        raise InputError(f"{path}: unknown ending, and not {layout.title}; known are {known}; convert or rename it")
    return lambda path, _: read_trec(path, layout)
