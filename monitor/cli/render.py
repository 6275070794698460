"""Plain tables for people, and small words that several of them use."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row], left: Sequence[int] = (0,)) -> list[str]:
    """Lines of a table in columns of equal width; those numbered in `left` are text, the others numbers.

    >>> table(("slice", "drop"), [("overall", "3 %")])
    ['slice    drop', 'overall   3 %']
    """
    every = [tuple(head), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in every) for i in range(len(head))]

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column in left else text.rjust(widths[column])

    return ["  ".join(cell(text, i) for i, text in enumerate(row)).rstrip() for row in every]


def percent(share: float | None, digits: int = 1) -> str:
    """`3.1 %`; a dash where there is nothing known."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def number(value: float | None) -> str:
    """`0.7312`; a dash where there is nothing known."""
    return "–" if value is None else f"{value:.4f}"


def count(value: float | None) -> str:
    """`12,345`; a dash where there is nothing known."""
    return "–" if value is None else f"{value:,.0f}"
