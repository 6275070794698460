"""Renders a command's result, a dataclass, as text or JSON. Each field declares how it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from math import isfinite
from typing import Any, TypeVar, dataclass_transform

from monitor.messages.tables import Columns, tabled

T = TypeVar("T")


def column(title: str, show: Callable[[Any], str] = str, left: bool = False) -> Any:
    """A dataclass field that is a table column."""
    return field(metadata={"title": title, "show": show, "left": left})


@dataclass_transform(frozen_default=True, field_specifiers=(column, field))
def record(made: type[T]) -> type[T]:
    """A frozen dataclass with columns."""
    return dataclass(frozen=True)(made)


@dataclass(frozen=True)
class Shown:
    """Data for JSON, the lines that people read, and the command's exit code; `table`: (rows, kind) for CSV."""

    data: Any
    lines: Callable[[], Iterable[str]]
    exit_code: int = 0
    table: tuple[Sequence[Any], type] | None = None


def render(found: Any, style: str) -> str:
    """One or more dataclasses as `json`, `csv` or text for people."""
    import json

    if style == "json":
        return json.dumps(plain(found), indent=2)
    return _csv(*(getattr(found, "table", None) or (found, None))) if style == "csv" else "\n".join(lines(found))


def plain(value: Any) -> Any:
    """JSON data: fields by name, null for non-finite numbers."""
    if isinstance(value, Shown):
        return plain(value.data)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        from monitor.series.partials import text_of

        return text_of(value)
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    if is_dataclass(value) and not hasattr(value, "kernel"):  # a measure is its text
        return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.metadata.get("json", True)}
    return str(value)


def lines(found: Any) -> Iterator[str]:
    """Lines for people: from its own method `lines`; else a line per field, and a table for fields of dataclasses."""
    if hasattr(found, "lines"):
        yield from found.lines()
    elif isinstance(found, Sequence):
        if found and _columns(found[0]):
            yield from rows(found)
        else:
            yield from (line for one in found for line in lines(one))
    else:
        for f in fields(found):
            value = getattr(found, f.name)
            is_nested = is_dataclass(value) or (isinstance(value, Sequence) and not isinstance(value, str))
            yield from lines(value) if is_nested else (f"{f.metadata.get('title', f.name)}: {_shown(f, found)}",)


def rows(found: Sequence[Any], indent: str = "") -> list[str]:
    """Lines of a table of dataclasses; empty without any."""
    if not found:
        return []
    columns = _columns(found[0])
    head = [f.metadata["title"] for f in columns]
    left = [i for i, f in enumerate(columns) if f.metadata["left"]]
    return [indent + line for line in table(head, [[_shown(f, one) for f in columns] for one in found], left)]


def _columns(one: Any) -> list[Field[Any]]:
    return [f for f in fields(one) if "title" in f.metadata] if is_dataclass(one) else []


def _shown(f: Field[Any], one: Any) -> str:
    show: Callable[[Any], str] = f.metadata.get("show", str)
    return show(getattr(one, f.name))


def _csv(found: Sequence[Any], kind: type | None = None) -> str:
    import csv
    import io

    text, names = io.StringIO(), [f.name for f in fields(kind or found[0])] if kind or found else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([names, *([_cell(getattr(one, name)) for name in names] for one in found)])
    return text.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def table(head: Sequence[str], body: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Lines of a table with equal column widths; columns in `left` are text, the others numbers.

    >>> table(("slice", "drop"), [("overall", "3 %")])
    ['slice    drop', 'overall   3 %']
    """
    every = [tuple(head), *map(tuple, body)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]

    def cell(text: str, number: int) -> str:
        return text.ljust(widths[number]) if number in left else text.rjust(widths[number])

    return ["  ".join(cell(text, i) for i, text in enumerate(row)).rstrip() for row in every]


def table_of(columns: Columns, body: Iterable[Any], left: Sequence[int] = (0,)) -> list[str]:
    """Lines of a table with a column per title, whose function renders a row's cell."""
    return table(*tabled(columns, body, left))
