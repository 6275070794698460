"""Plain English: no text that people read has a tic of earlier texts, in the package or around it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = (
    r"\b(anew|besides?|of late|no more(?! than)|there is to say|as good as|is told|comes to|amid|as where|at the most"
    r"|behind by|for ever|goes on|graver|gravest|has come|in place of|is had|mended|on its way back|one's own|put into"
    r"|steps aside|stepped aside|stands twice|such that|take it (?:out|away)|there twice|too good|well again)\b"
)
BANNED = re.compile(WORDS.replace(" ", r"\s+"), re.IGNORECASE)
"""Also where a line ends between two words."""

FIELDS = re.compile(r"^ *\w+: ", re.MULTILINE)
"""Names of fields in a docstring."""

AROUND = ("", "config", "deploy", "docs", "migrations", "tests/benchmarks")
ROOMS = ["monitor", *sorted(f"monitor/{path.parent.name}" for path in ROOT.glob("monitor/*/__init__.py")), *AROUND]
FLAT = ("", "monitor")
"""Rooms that are searched without their folders."""
READ = (".html", ".json", ".md", ".py", ".service", ".sh", ".tpl", ".txt", ".yaml", ".yml", "Makefile", "Dockerfile")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every text and docstring of a module, and of another file as a whole."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def tics(room: str) -> list[str]:
    """Where a banned word stands in a room."""
    inside = (ROOT / room).glob("*") if room in FLAT else (ROOT / room).rglob("*")
    files = [path for path in inside if path.name.endswith(READ)]
    return [
        f"{path.relative_to(ROOT)}:{line + plain.count(chr(10), 0, found.start())}: {found[0]}"
        for path in sorted(files)
        for line, text in texts(path)
        for plain in (FIELDS.sub("", text),)
        for found in BANNED.finditer(plain)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_in_plain_english(room: str) -> None:
    assert tics(room) == []
