"""Plain English: texts in the package and around it contain none of the phrases that earlier texts overused."""

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
"""Matches across line ends, too."""

FIELDS = re.compile(r"^ *\w+: ", re.MULTILINE)
"""Field names in a docstring."""

AROUND = ("", "config", "deploy", "docs", "migrations", "tests/benchmarks")
ROOMS = ["monitor", *sorted(f"monitor/{path.parent.name}" for path in ROOT.glob("monitor/*/__init__.py")), *AROUND]
FLAT = ("", "monitor")
"""Rooms that are searched without their subfolders."""
READ = (".html", ".json", ".md", ".py", ".service", ".sh", ".tpl", ".txt", ".yaml", ".yml", "Makefile", "Dockerfile")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every string in a Python module; any other file is one text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def tics(room: str) -> list[str]:
    """The places in a room where a banned phrase occurs."""
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
def test_texts_are_in_plain_english(room: str) -> None:
    assert tics(room) == []
