"""What was measured, as a table on the terminal and as RESULTS.md."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from sqlite3 import sqlite_version
from typing import Literal

LIBRARIES = ("numpy", "pandas", "sqlalchemy", "pyarrow", "ranx", "numba", "pytrec-eval-terrier")


@dataclass(frozen=True)
class Line:
    """One row of a table.

    Attributes:
        figure: what was measured, with its unit; or why it was not.
        ratio: what `aim` is about.
        aim: what it should be at least or at most; None: shown for scale only.
    """

    what: str
    figure: str
    ratio: float | None = None
    aim: float | None = None
    direction: Literal["at least", "at most"] = "at least"

    @property
    def met(self) -> str:
        """`yes`, `no`, or nothing where there is no aim or nothing was measured."""
        if self.aim is None or self.ratio is None:
            return ""
        is_met = self.ratio >= self.aim if self.direction == "at least" else self.ratio <= self.aim
        return "yes" if is_met else "no"

    @property
    def cells(self) -> tuple[str, ...]:
        """As text: what, figure, ratio, aim, met."""
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}" if self.ratio < 100 else f"{self.ratio:.0f}"
        return self.what, self.figure, ratio, "" if self.aim is None else f"{self.direction} {self.aim:g}", self.met


@dataclass(frozen=True)
class Section:
    """A table, and what a reader must know about it."""

    title: str
    columns: tuple[str, str, str, str, str]
    lines: Sequence[Line]
    remarks: str


def duration(seconds: float) -> str:
    """In milliseconds below a second."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def table(section: Section) -> str:
    """The section's table in Markdown, in columns of equal width."""
    rows = [section.columns, *(line.cells for line in section.lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(section.columns))]
    text = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([f"| {text[0]} |", f"|{rule}|", *(f"| {row} |" for row in text[1:])])


def markdown(sections: Sequence[Section]) -> str:
    """All tables, with the facts of the machine."""
    parts = ["# Benchmarks", "By `make bench ARGS=--write`. Every time is a median of runs in turn.", facts()]
    for section in sections:
        parts += [f"## {section.title}", section.remarks, table(section)]
    return "\n\n".join(parts) + "\n"


def facts() -> str:
    """The machine and the versions, without names of hosts or paths."""
    libraries = ", ".join(f"{name} {found}" for name in LIBRARIES if (found := _version(name)))
    machine = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs ({_cpu_model()})"
    return f"{machine}, Python {platform.python_version()}, SQLite {sqlite_version}, {libraries}."


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
