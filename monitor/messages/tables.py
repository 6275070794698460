"""Tables as data, for text and pages alike, and how figures are written in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

DASH = "–"
Columns: TypeAlias = Mapping[str, Callable[[Any], str]]
"""Title -> text of a row's cell."""


class TextTable(NamedTuple):
    """A table; the columns in `left` are text, the others numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: tuple[int, ...] = (0,)


def tabled(columns: Columns, body: Iterable[Any], left: Sequence[int] = (0,)) -> TextTable:
    """A table with a column per title, whose function renders a row's cell."""
    return TextTable(tuple(columns), tuple(tuple(show(row) for show in columns.values()) for row in body), tuple(left))


def formatted(form: str, times: int = 1) -> Callable[[float | None], str]:
    """Makes texts of numbers, so many times as large, by a format; a dash of one that is unknown."""
    return lambda value: DASH if value is None else form.format(times * value)


percent = formatted("{:.1f} %", 100)
change = formatted("{:+.1f} %", 100)
number = formatted("{:.4f}")
signed = formatted("{:+.4f}")
tenths = formatted("{:+.1f}")
count = formatted("{:,.0f}")


def interval(lower: float | None, upper: float | None) -> str:
    """`0.7000 – 0.7500`; a dash if there is none."""
    return DASH if lower is None else f"{number(lower)} – {number(upper)}"
